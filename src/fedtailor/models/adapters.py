"""Models made of two functions of the user."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network


@dataclass(frozen=True)
class Functions(Architecture):
    """The architecture of `from_function`."""

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
    """A model of two functions. Models are equal if the function objects are equal, so
    define these only once.

    Args:
        init: key -> parameters, any pytree of floating-point arrays.
        apply: (parameters, x [b, ...]) -> outputs [b, ...].

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Example:
        >>> import jax.numpy as jnp
        >>> model = ft.models.from_function(
        ...     lambda key: jnp.zeros((4, 3)), lambda w, x: x @ w
        ... )
        >>> model.bind((4,), 3).size
        12
    """
    return Functions(init, apply)
