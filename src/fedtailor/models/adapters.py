"""Models of the user's own: two functions here, modules of Equinox, Flax and PyTorch in
the files of these names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Shaped

from fedtailor.models.model import Architecture, Network


@dataclass(frozen=True)
class Functions(Architecture):
    """Two functions; see `from_function`."""

    init: Callable[[Array], Any]
    function: Callable[[Any, Array], Array]

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        return self.init(key)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        return self.function(network, x)


def from_function(
    init: Callable[[Array], Any], apply: Callable[[Any, Array], Array]
) -> Functions:
    """A model from two functions; models are equal when the function objects are, so
    define these once.

    Args:
        init: key -> parameters, any pytree of floating-point arrays.
        apply: (parameters, x [b, ...]) -> outputs [b, ...].

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.
    """
    return Functions(init, apply)
