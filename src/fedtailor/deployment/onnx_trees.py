"""Writes boosted trees into an ONNX graph, as one operator for all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.deployment.onnx_layers import Graph
from fedtailor.deployment.onnx_table import ML_DOMAIN
from fedtailor.models.boosted_trees import TREE_ARRAYS, BoostedTrees


def write_trees(graph: Graph, architecture: BoostedTrees, network: Any, x: str) -> str:
    """Append boosted trees, applied to the value x [n, inputs].

    Returns:
        The name of the outputs [n, outputs].
    """
    arrays = {name: np.asarray(network[name]) for name in TREE_ARRAYS}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    number = 0
    for of_round in range(architecture.rounds):
        for score in range(architecture.scores):
            tree = {name: it[of_round, score] for name, it in arrays.items()}
            _add_tree(columns, tree, number, score)
            number += 1
    attributes: dict[str, Any] = {
        "domain": ML_DOMAIN,
        "n_targets": architecture.scores,
        "base_values": np.asarray(network["baseline"]).tolist(),
        **columns,
    }
    scores = graph.node("TreeEnsembleRegressor", x, **attributes)
    if not architecture.is_logit:
        return scores
    zeros = graph.node("Sub", scores, scores)
    return graph.node("Concat", zeros, scores, axis=1)


_COLUMNS = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_modes",
    "nodes_values",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "target_treeids",
    "target_nodeids",
    "target_ids",
    "target_weights",
)
"""Attributes of the operator: lists over all nodes, and over all leaves."""


def _add_tree(
    columns: dict[str, list[Any]],
    tree: dict[str, NDArray[np.float32]],
    number: int,
    score: int,
) -> None:
    """Add the nodes of one tree that a row can get to.

    Raises:
        ValueError: it is no tree: two ways lead to a node, or one to none.
    """
    waiting, seen = [0], {0}
    while waiting:
        node = waiting.pop()
        is_leaf = tree["input"][node] < 0
        left, right = tree["left"][node], tree["right"][node]
        if not is_leaf:
            for child in (left, right):
                require(
                    0 <= child < len(tree["input"]) and child not in seen,
                    "the trees are damaged: two ways lead to a node of one, or one to none",
                )
                seen.add(int(child))
        left, right = (0, 0) if is_leaf else (int(left), int(right))
        values = (
            number,
            node,
            0 if is_leaf else int(tree["input"][node]),
            "LEAF" if is_leaf else "BRANCH_LEQ",
            0.0 if is_leaf else float(tree["threshold"][node]),
            0 if is_leaf else left,
            0 if is_leaf else right,
        )
        for name, value in zip(_COLUMNS[:7], values, strict=True):
            columns[name].append(value)
        if not is_leaf:
            waiting += [right, left]
            continue
        leaf = (number, node, score, float(tree["value"][node]))
        for name, value in zip(_COLUMNS[7:], leaf, strict=True):
            columns[name].append(value)
