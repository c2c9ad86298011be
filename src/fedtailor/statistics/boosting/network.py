"""Boosted trees as vectors of a network that can be kept, exported and used."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.boosted_trees import TREE_ARRAYS, BoostedTrees
from fedtailor.statistics.boosting.boost import BoostedModel
from fedtailor.statistics.boosting.tree import Tree


def as_vectors(models: Sequence[BoostedModel], like: Model) -> tuple[Model, list[Any]]:
    """The vectors of boosted trees, and the network that all of them are of.

    Rows whose inputs are numbers of single precision end in the same leaves.

    Args:
        models: the trees, of the same task.
        like: a model of the same inputs and outputs.

    Returns:
        The network, which has room for the largest of the models, and a vector [d] for each.
    """
    scores = len(models[0].baseline)
    trees = [tree for it in models for of_round in it.trees for tree in of_round]
    network = BoostedTrees(
        rounds=max(len(it.trees) for it in models),
        scores=scores,
        nodes=max((len(tree.input) for tree in trees), default=1),
        depth=max((_depth(tree) for tree in trees), default=0),
        is_logit=models[0].classes == 2,
    )
    bound = network.bind(like.input_shape, like.outputs, like.loss)
    vectors = []
    for model in models:
        arrays = _arrays(model, network)
        vectors.append(np.asarray(bound.vector(arrays), np.float32))
    return bound, vectors


def _arrays(model: BoostedModel, network: BoostedTrees) -> dict[str, NDArray]:
    shape = (network.rounds, network.scores, network.nodes)
    arrays = {name: np.zeros(shape, np.float32) for name in TREE_ARRAYS}
    arrays["input"] -= 1
    for place, of_round in enumerate(model.trees):
        for score, tree in enumerate(of_round):
            size = len(tree.input)
            for name in TREE_ARRAYS:
                values = getattr(tree, name)
                if name == "threshold":
                    values = _rounded_down(values)
                arrays[name][place, score, :size] = values
    return arrays | {"baseline": np.asarray(model.baseline, np.float32)}


def _rounded_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest numbers of single precision that are not above these: a number of
    single precision is at most one if and only if it is at most the other.
    """
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near > values, below, near)


def _depth(tree: Tree) -> int:
    """The most questions from the root to a leaf. Children come after their parents."""
    depth = np.zeros(len(tree.input), np.int64)
    for node in np.flatnonzero(tree.input >= 0):
        for child in (tree.left[node], tree.right[node]):
            depth[child] = depth[node] + 1
    return int(depth.max())
