"""The layout of parameters inside a training loop: narrow matrices are transposed."""

import jax
from jaxtyping import Array

from fedtailor.models.layers import NARROW
from fedtailor.protocol import Params


class LoopLayout:
    """Converts a model's parameters to the layout of a training loop and back.

    In a loop, narrow matrices (such as a last layer with one column for each class) are
    transposed: untransposed, their updates take three times as long on CPUs.
    """

    def __init__(self, params: Params, *, transpose_narrow: bool) -> None:
        """Choose which parameters are transposed.

        Args:
            params: the model's parameters.
            transpose_narrow: False = the two layouts are the same.
        """
        self._is_transposed = jax.tree.map(
            lambda w: transpose_narrow and _is_narrow(w), params
        )

    def to_loop(self, tree: Params) -> Params:
        """Convert a tree from the model's layout to the loop's."""
        return jax.tree.map(
            lambda w, is_transposed: w.T if is_transposed else w,
            tree,
            self._is_transposed,
        )

    def to_model(self, tree: Params) -> Params:
        """Convert a tree from the loop's layout to the model's."""
        return self.to_loop(tree)  # transposing twice changes nothing


def _is_narrow(w: Array) -> bool:
    return w.ndim == 2 and w.shape[1] < NARROW <= w.shape[0]
