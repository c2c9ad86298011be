"""`Inputs`: several inputs of one example, side by side in one array."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require

_DTYPES = {"f": "float32", "b": "bool"}
"""Kinds of NumPy -> what the network gets of them; whole numbers of any length are int32."""
_LARGEST = 2**24
"""Single precision holds all whole numbers up to it."""


@dataclass(frozen=True)
class Inputs:
    """What the inputs of one example are, if there are several: token ids and a mask, an
    image and numbers. Federations, batches and files hold them side by side, as one array
    [n, size], and the network takes them apart.

    Attributes:
        names: in alphabetical order, which is that of the columns.
        shapes: of each input of one example.
        dtypes: of each, "float32", "int32" or "bool".

    Example:
        >>> parts = {"image": np.zeros((5, 8, 8)), "age": np.ones(5)}
        >>> inputs = ft.models.Inputs.of(parts)
        >>> inputs.size, str(inputs)
        (65, 'age [], image [8, 8]')
        >>> inputs.unpack(inputs.pack(parts))["image"].shape
        (5, 8, 8)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Inputs":
        """The inputs that arrays [n, ...] hold, by name.

        Raises:
            ValueError: there is none, or one holds no numbers or has no rows.
        """
        names = tuple(sorted(values))
        require(
            bool(names) and all(isinstance(name, str) for name in names),
            "inputs are a mapping of names to arrays, such as {'ids': ids, 'mask': mask}",
        )
        shapes, dtypes = [], []
        for name in names:
            array = np.asarray(values[name])
            require(
                array.ndim > 0 and array.dtype.kind in "fiub",
                f"the input {name!r} is {array.dtype} of shape {array.shape}; it must have"
                " numbers for each example [n, ...]",
            )
            shapes.append(array.shape[1:])
            dtypes.append(_DTYPES.get(array.dtype.kind, "int32"))
        return cls(names, tuple(shapes), tuple(dtypes))

    @property
    def size(self) -> int:
        """The length of one example, all its inputs side by side."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype(self) -> str:
        """Of the one array: "float32" if there is an input of that type, or "int32"."""
        return "float32" if "float32" in self.dtypes else "int32"

    @property
    def is_mixed(self) -> bool:
        """Whether whole numbers stand beside others, in one array of single precision."""
        return self.dtype == "float32" and set(self.dtypes) != {"float32"}

    def pack(self, values: Mapping[str, Any]) -> NDArray[Any]:
        """The inputs of n examples as one array [n, size].

        Args:
            values: the inputs by name, [n, ...] each.

        Raises:
            ValueError: an input is missing, there is one more, they differ in shape or in
                number, or a whole number is too large.
        """
        given = Inputs.of(values)
        if problem := self.difference(given):
            raise ValueError(problem)
        lengths = {name: len(values[name]) for name in self.names}
        require(
            len(set(lengths.values())) == 1,
            f"the inputs have different numbers of examples: {lengths}",
        )
        columns = []
        for name in self.names:
            array = np.asarray(values[name])
            if array.dtype.kind in "iu" and array.size:
                largest = _LARGEST if self.is_mixed else np.iinfo(np.int32).max
                found = max(abs(int(array.min())), abs(int(array.max())))
                require(
                    found <= largest,
                    f"the input {name!r} has the whole number {found}, and the largest is"
                    f" {largest}; give it as floats",
                )
            columns.append(array.reshape(len(array), -1).astype(self.dtype))
        return np.concatenate(columns, axis=1)

    def unpack(self, packed: Any) -> dict[str, Any]:
        """The inputs by name, of an array [..., size] of NumPy, JAX or PyTorch."""
        parts, start = {}, 0
        for name, shape, dtype in zip(
            self.names, self.shapes, self.dtypes, strict=True
        ):
            end = start + math.prod(shape)
            part = packed[..., start:end].reshape((*packed.shape[:-1], *shape))
            if dtype != self.dtype:
                is_tensor = hasattr(part, "long")
                tensor = {"int32": "long", "bool": "bool"}[dtype]
                part = getattr(part, tensor)() if is_tensor else part.astype(dtype)
            parts[name], start = part, end
        return parts

    def difference(self, given: "Inputs") -> str | None:
        """What is wrong with other inputs where these are expected, in one line; None =
        nothing.
        """
        missing = [name for name in self.names if name not in given.names]
        surplus = [name for name in given.names if name not in self.names]
        if missing or surplus:
            more = f"add {', '.join(missing)}" if missing else ""
            less = f"leave {', '.join(surplus)} out" if surplus else ""
            return (
                f"the inputs are {given}, and the network takes {self}:"
                f" {' and '.join(filter(None, (more, less)))}"
            )
        for name, shape, dtype, other, kind in zip(
            self.names,
            self.shapes,
            self.dtypes,
            given.shapes,
            given.dtypes,
            strict=True,
        ):
            if other != shape:
                return (
                    f"the input {name!r} has the shape {list(other)}, and the network takes"
                    f" {list(shape)}"
                )
            if kind != dtype:
                return (
                    f"the input {name!r} is {kind}, and the network takes {dtype}; convert"
                    f" it: .astype('{dtype}')"
                )
        return None

    def __str__(self) -> str:
        named = zip(self.names, self.shapes, strict=True)
        return ", ".join(f"{name} {list(shape)}" for name, shape in named)
