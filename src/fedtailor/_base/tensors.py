"""Arrays in safetensors files, also those of bfloat16, which `safetensors.numpy` cannot
read.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

DTYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
"""Types of arrays, by their names in safetensors."""


def tensor(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """The array of an entry of a safetensors file: its type, shape and bytes.

    Raises:
        ValueError: its type is not one of `DTYPES`, or it holds booleans that are none.
    """
    if entry["dtype"] not in DTYPES:
        raise ValueError(
            f"array {name!r} is of the type {entry['dtype']}, which no file or message"
            " may hold"
        )
    array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
    if array.dtype == np.dtype(bool) and (array.view(np.uint8) > 1).any():
        raise ValueError(f"array {name!r} holds bytes that are not booleans")
    return array.reshape(entry["shape"])


def metadata(data: bytes) -> dict[str, str]:
    """The texts in a safetensors file, which `deserialize` has accepted."""
    # The header is 8 bytes of length, followed by JSON.
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).get("__metadata__") or {}


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the texts of a safetensors file.

    Raises:
        SafetensorError: the file is damaged, or holds arrays of a type that is not read.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    entries = deserialize(data)
    try:
        return {name: tensor(name, entry) for name, entry in entries}, metadata(data)
    except ValueError as error:
        raise SafetensorError(str(error)) from None


ALIGNMENT = 64
"""The bytes at whose multiples arrays begin that JAX takes from NumPy without a copy."""


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of zeros that JAX's CPU devices take without a copy."""
    # NumPy aligns arrays to 16 bytes only. So the array is a view into larger memory that
    # begins at the first aligned byte.
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


class TensorFile(Mapping[str, np.ndarray]):
    """The arrays of a safetensors file, each of which is read when it is asked for.

    Raises:
        SafetensorError: the file is damaged; when an array is asked for, even if it is
            of a type that is not read.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, prefix: str = "") -> None:
        """Open a file.

        Args:
            path: the file.
            prefix: only arrays whose names begin so, which are called by the rest.
        """
        self.path, self.prefix = path, prefix
        # This checks that the entries fit the file.
        with safe_open(path, framework="np"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(length))
        self._first = 8 + length
        self._texts: dict[str, str] = entries.get("__metadata__") or {}
        self._entries = {
            name.removeprefix(prefix): entry
            for name, entry in entries.items()
            if name != "__metadata__" and name.startswith(prefix)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        data = aligned((end - begin,), np.dtype(np.uint8))
        with self.path.open("rb") as file:
            self._read_into(data, file, begin)
        try:
            return tensor(name, {**entry, "data": data})
        except ValueError as error:
            raise SafetensorError(str(error)) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, which is not read."""
        return tuple(self._entries[name]["shape"])

    def rows(self, name: str, rows: NDArray[np.integer[Any]]) -> np.ndarray:
        """Some rows of an array, ascending. No others are read, and none is mapped: pages
        of a mapped file count as memory of this process.

        Raises:
            SafetensorError, OSError: as for the whole array.
        """
        entry = self._entries[name]
        shape = tuple(entry["shape"][1:])
        size = DTYPES[entry["dtype"]].itemsize * math.prod(shape)
        values = np.empty((len(rows), size), np.uint8)
        # Rows that follow each other are read together.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        ends = np.append(starts[1:], len(rows))
        with self.path.open("rb") as file:
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                begin = entry["data_offsets"][0] + int(rows[start]) * size
                self._read_into(values[start:end], file, begin)
        return values.reshape(-1).view(DTYPES[entry["dtype"]]).reshape(-1, *shape)

    def _read_into(self, memory: NDArray[np.uint8], file: BinaryIO, begin: int) -> None:
        """Fill memory with the bytes of arrays from `begin` on."""
        file.seek(self._first + begin)
        if file.readinto(memory) != memory.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
            raise SafetensorError(f"{self.path} has become shorter")

    @property
    def texts(self) -> dict[str, str]:
        """The texts in the file."""
        return self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def is_float(array: Any) -> bool:
    """Whether an array holds floating-point numbers, those of 16 bits included."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))
