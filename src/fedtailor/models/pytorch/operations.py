"""The table of PyTorch's operations in JAX, by their names without the overload ("add",
not "aten.add.Tensor").

Every entry is called as `function(context, *args, **kwargs)`, with PyTorch's positional
arguments and arrays in its layout. Those that are registered with `layout=True` also take
`FeatureMaps` and `Images`. Register a missing operation like this:

    @operation("my_op")
    def my_op(context, x): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from fedtailor.models.pytorch.layout import torch_layout

OPERATIONS: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


class Unsupported(ValueError):
    """An operation, or a use of one, that cannot be converted to JAX."""

    advice = "replace it in the module"
    """What its author can do."""


class MissingOperation(Unsupported):
    """An operation that is not in `OPERATIONS`."""

    advice = (
        "replace it in the module, or register it with"
        " fedtailor.models.pytorch.operation"
    )


class DependsOnValues(Unsupported):
    """Code that does something else for other values."""

    advice = (
        "take torch.where instead of an if, and a fixed number of steps instead of a"
        " loop that stops by a value"
    )


@dataclass(frozen=True)
class Ref:
    """The output of another operation, an input, a parameter or a constant, by name."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One call: `name` is a key of `OPERATIONS`, such as "linear"; `args` and `kwargs`
    hold `Ref`s and plain values.
    """

    output: str
    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass
class Context:
    """The mode of a run of a program, and its state.

    Attributes:
        dtype: of floating-point numbers.
        weight: of each example of a training step (0 = padding), or None in evaluation.
        key: randomness of a training step, or None (dropout off).
        new_statistics: new running statistics by path.
        operation: the operation that runs now.
        draws: how many keys have been drawn from `key`.
        frozen: large constants that are inputs of the compiled program, by digest.
    """

    dtype: DTypeLike
    weight: Float[Array, " b"] | None = None
    key: Array | None = None
    new_statistics: dict[str, Array] = field(default_factory=dict)
    operation: Operation | None = None
    draws: int = 0
    frozen: Mapping[str, Array] = field(default_factory=dict)

    @property
    def operation_name(self) -> str:
        """The name under which the current operation was called."""
        assert self.operation is not None
        return self.operation.name

    def next_key(self) -> Array | None:
        """A new key; None if dropout is off."""
        self.draws += 1
        return None if self.key is None else jax.random.fold_in(self.key, self.draws)


def operation(*names: str, layout: bool = False) -> Callable[[Function], Function]:
    """Register a function as the operations of these names (decorator).

    Args:
        names: of the operations.
        layout: whether the function takes `FeatureMaps` and `Images`. If not, they are
            converted to PyTorch's layout before the call.
    """

    def register(function: Function) -> Function:
        def called(context: Context, *args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_to_torch_layout, args))
            return function(context, *args, **kwargs)

        for name in names:
            OPERATIONS[name] = function if layout else called
        return function

    return register


def _to_torch_layout(argument: Any) -> Any:
    return (
        tuple(map(torch_layout, argument))
        if isinstance(argument, tuple)
        else torch_layout(argument)
    )
