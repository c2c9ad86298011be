"""What PyTorch's operations are in JAX: a table by name, without the overload ("add",
not "aten.add.Tensor").

Every entry is called as `function(context, *args, **kwargs)`, with PyTorch's positional
arguments and arrays in its layout; those marked with `layout=True` take `Planes` and
`Images` too. Register what is missing:

    @operation("my_op")
    def my_op(context, x): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from fedtailor.models.pytorch.layout import plain

OPERATIONS: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


class Unsupported(ValueError):
    """An operation, or a use of one, that has no counterpart here."""


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
    """What operations need beside their arguments.

    Attributes:
        dtype: of floating-point numbers.
        weight: of each example of a training step (0 = padding), or None in evaluation.
        key: randomness of a training step, or None (dropout off).
        names: path in the module of each parameter and statistic.
        renewed: new running statistics by path; filled while a program runs.
    """

    dtype: DTypeLike
    weight: Float[Array, " b"] | None = None
    key: Array | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    renewed: dict[str, Array] = field(default_factory=dict)
    operation: Operation | None = None
    draws: int = 0

    @property
    def operation_name(self) -> str:
        """Under which of its names the operation was called that runs now."""
        assert self.operation is not None
        return self.operation.name

    def next_key(self) -> Array | None:
        """A key for one more use of randomness."""
        self.draws += 1
        return None if self.key is None else jax.random.fold_in(self.key, self.draws)

    def path(self, place: int) -> str:
        """The path of the parameter or statistic that stands at a place of the
        operation's arguments.
        """
        assert self.operation is not None
        argument = self.operation.args[place]
        if not isinstance(argument, Ref) or argument.name not in self.names:
            raise Unsupported(
                f"{self.operation.name} with statistics that are computed"
            )
        return self.names[argument.name]


def operation(*names: str, layout: bool = False) -> Callable[[Function], Function]:
    """Register a function under names of operations; without `layout`, its arguments
    are in PyTorch's layout.
    """

    def register(function: Function) -> Function:
        def called(context: Context, *args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_plain, args))
            return function(context, *args, **kwargs)

        # most operations know PyTorch's layout only: what is kept as planes or images
        # is put into it for them
        for name in names:
            OPERATIONS[name] = function if layout else called
        return function

    return register


def _plain(argument: Any) -> Any:
    return (
        tuple(map(plain, argument)) if isinstance(argument, tuple) else plain(argument)
    )
