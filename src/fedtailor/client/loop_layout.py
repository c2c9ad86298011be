"""The layout of parameters inside a training loop: narrow matrices are transposed."""

import jax
from jaxtyping import Array

from fedtailor.models.layers import NARROW
from fedtailor.protocol import Params


class LoopLayout:
    """A model's parameters as a training loop carries them.

    Narrow matrices (a last layer, of one column a class) are transposed: on CPUs their
    updates took three times as long. The model itself is given its own layout.
    """

    def __init__(self, params: Params, *, transpose_narrow: bool) -> None:
        """Choose which parameters are transposed.

        Args:
            params: the model's parameters.
            transpose_narrow: if False, the loop's layout is the model's.
        """
        self._is_transposed = jax.tree.map(
            lambda w: transpose_narrow and _is_narrow(w), params
        )

    def to_loop(self, tree: Params) -> Params:
        """Bring a tree from the model's layout to the loop's."""
        return jax.tree.map(
            lambda w, is_transposed: w.T if is_transposed else w,
            tree,
            self._is_transposed,
        )

    def to_model(self, tree: Params) -> Params:
        """Bring a tree from the loop's layout back to the model's."""
        return self.to_loop(tree)  # transposing a second time undoes the first


def _is_narrow(w: Array) -> bool:
    return w.ndim == 2 and w.shape[1] < NARROW <= w.shape[0]
