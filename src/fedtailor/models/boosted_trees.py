"""Boosted trees as a network, so that a client's trees are a vector like other models.

They are grown by `fedtailor.statistics.boosting`, not by steps of gradients.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.models.architecture import Architecture, Network

TREE_ARRAYS = ("input", "threshold", "left", "right", "value")
"""The arrays [rounds, scores, nodes] of a network; numbers of nodes and inputs are floats,
as all of a model's vector.
"""
_ROWS = 4096
"""Rows that are looked up at once."""


@dataclass(frozen=True)
class BoostedTrees(Architecture):
    """The sum of a constant and of the values of trees.

    A node that asks for an input has its number, the largest value that goes to the left,
    and the numbers of its children; a leaf has the input -1, and a value. All trees have
    as many places for nodes; a tree uses the first ones.

    Attributes:
        rounds: trees that are added to each score.
        scores: numbers that trees add up for a row: one for each class, or one.
        nodes: the nodes of the largest tree.
        depth: the most questions until a leaf.
        is_logit: whether the score is the logit of the second of two classes.
    """

    rounds: int
    scores: int
    nodes: int
    depth: int
    is_logit: bool = False

    def __post_init__(self) -> None:
        # Each question takes a row to another node.
        require(
            0 <= self.depth <= self.nodes,
            f"trees of {self.nodes} nodes are not {self.depth} questions deep",
        )

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        if len(input_shape) != 1 or outputs != self.scores + self.is_logit:
            raise ValueError(
                f"boosted trees of {self.scores} scores take rows of numbers, not inputs"
                f" of shape {list(input_shape)} with {outputs} outputs"
            )
        shape = (self.rounds, self.scores, self.nodes)
        network = {name: jnp.zeros(shape) for name in TREE_ARRAYS}
        # Each tree is a leaf.
        network["input"] -= 1
        return network | {"baseline": jnp.zeros(self.scores)}

    def apply(
        self, network: Network, x: Float[Array, "b inputs"], key: Array | None
    ) -> Float[Array, "b outputs"]:
        trees = self.rounds * self.scores
        flat = {name: network[name].reshape(trees, self.nodes) for name in TREE_ARRAYS}
        every = jnp.arange(trees)

        def values_of(row: Float[Array, " inputs"]) -> Float[Array, " scores"]:
            def descend(_: int, node: Array) -> Array:
                asked = flat["input"][every, node].astype(jnp.int32)
                is_left = row[jnp.maximum(asked, 0)] <= flat["threshold"][every, node]
                left, right = flat["left"][every, node], flat["right"][every, node]
                child = jnp.where(is_left, left, right).astype(jnp.int32)
                return jnp.where(asked >= 0, child, node)

            start = jnp.zeros(trees, jnp.int32)
            leaf = jax.lax.fori_loop(0, self.depth, descend, start)
            values = flat["value"][every, leaf].reshape(self.rounds, self.scores)
            return network["baseline"] + values.sum(axis=0)

        scores = jax.lax.map(values_of, x, batch_size=_ROWS)
        if self.is_logit:
            return jnp.concatenate([jnp.zeros_like(scores), scores], axis=1)
        return scores
