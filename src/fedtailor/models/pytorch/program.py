"""A PyTorch module as a list of operations, and its interpretation in JAX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fedtailor.models.pytorch.layout import Value, torch_layout
from fedtailor.models.pytorch.operations import OPERATIONS, Context, Operation, Ref
from fedtailor.models.pytorch.start import start_digest

LARGE = 1 << 16
"""The size from which a constant is an input of compiled programs."""


class Constants(Mapping[str, np.ndarray]):
    """Arrays that training does not change. Two instances with the same content are
    equal.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)
        self._content = {
            name: start_digest({"": array})
            for name, array in sorted(self._arrays.items())
        }
        self._hash = hash(tuple(self._content.items()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        """Equal in every process, as a run's manifest stores it."""
        return f"Constants({start_digest(self._arrays)})"

    def __hash__(self) -> int:
        return self._hash

    @property
    def large(self) -> dict[str, np.ndarray]:
        """By their digests, the arrays of floats that are too large to be constants of
        compiled programs: parameters that are frozen.
        """
        return {
            self._content[name]: array
            for name, array in self._arrays.items()
            if array.dtype == np.float32 and array.size >= LARGE
        }

    def present(self, frozen: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays by name, or what takes their place in `frozen`, by digest."""
        return {
            name: frozen.get(self._content[name], array)
            for name, array in self._arrays.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self._content == other._content


@dataclass(frozen=True)
class Head:
    """The last dense layer of a program.

    Attributes:
        path: of the module that has its parameters, or of its weight.
        input: the name of the value that it takes.
    """

    path: str
    input: str


@dataclass(frozen=True)
class ModuleProgram:
    """The operations of a module in one mode, training or evaluation.

    Attributes:
        operations: in the order in which they run.
        names: (name in the operations, path in the module) of parameters and running
            statistics.
        constants: by their name in the operations.
        input: the name of the input.
        output: what the module returns.
        updates: (path, name in the operations) of the new values of running statistics.
        head: the last dense layer; None if there is none.
    """

    operations: tuple[Operation, ...]
    names: tuple[tuple[str, str], ...]
    constants: Constants
    input: str
    output: Ref
    updates: tuple[tuple[str, str], ...] = ()
    head: Head | None = None

    @property
    def statistics(self) -> tuple[str, ...]:
        """The paths of running statistics."""
        return tuple(path for path, _ in self.updates)

    def run(
        self,
        network: Mapping[str, Array],
        x: Value,
        context: Context,
        *,
        stop_at: str | None = None,
        replace: tuple[str, Array] | None = None,
    ) -> Any:
        """The module's output, or that of the operation `stop_at`.

        Args:
            network: parameters and running statistics, by their path in the module.
            x: a batch of inputs.
            context: the mode, and what it needs.
            stop_at: the name of a value to stop at, and to return instead of the output.
            replace: the name of a value, and the array to use for it instead of the
                output of its operation.
        """
        # An interpreter: every operation looks up its arguments by name and stores its
        # output under its own name.
        values: dict[str, Any] = {name: network[path] for name, path in self.names}
        values |= {
            name: jax.numpy.asarray(array, _dtype(array, context))
            for name, array in self.constants.present(context.frozen).items()
        }
        values[self.input] = x
        replaced, replacement = replace or ("", None)
        if replaced == self.input:
            values[replaced] = replacement
        if stop_at == self.input:
            return torch_layout(x)
        for operation in self.operations:
            if operation.output == replaced:
                values[replaced] = replacement
                continue
            context.operation = operation
            args = [_resolve(argument, values) for argument in operation.args]
            kwargs = {name: _resolve(value, values) for name, value in operation.kwargs}
            result = OPERATIONS[operation.name](context, *args, **kwargs)
            values[operation.output] = result
            if operation.output == stop_at:
                return torch_layout(result)
        for path, name in self.updates:
            context.new_statistics[path] = torch_layout(values[name])
        return torch_layout(values[self.output.name])


def _resolve(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple):
        return tuple(_resolve(item, values) for item in argument)
    return argument


def _dtype(array: np.ndarray, context: Context) -> Any:
    return (
        context.dtype
        if array.dtype.kind == "f"
        else jax.dtypes.canonicalize_dtype(array.dtype)
    )
