"""`FrozenArrays`: the arrays of a network that no training changes, which are not part
of theta.

They exist once: on the host in this object, and once on each device of an executor, which
hands them to its compiled programs as an input (`placed`). Programs that are not given
them hold them as constants.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedtailor._base.choice import require
from fedtailor._base.tensors import ALIGNMENT, TensorFile, aligned

_PLACED: ContextVar[Mapping[str, Sequence[Array]]] = ContextVar(
    "placed", default=MappingProxyType({})
)
"""Digest -> the arrays in the program that is being traced, in the order of the names."""


class FrozenArrays(Mapping[str, NDArray[Any]]):
    """Arrays by name, which cannot be written to. Equal content is equal.

    Attributes:
        digest: of names, shapes and numbers.

    Example:
        >>> from fedtailor.models import FrozenArrays
        >>> arrays = FrozenArrays({"weight": np.zeros((2, 3))})
        >>> arrays["weight"].shape
        (2, 3)
        >>> arrays == FrozenArrays({"weight": np.zeros((2, 3))})
        True
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Take arrays, those of double precision in single precision.

        They are asked for one after the other, so that a file or a device can give each
        when it is needed.
        """
        self._arrays: dict[str, NDArray[Any]] = {}
        self._copies: dict[Any, tuple[Array, ...]] = {}
        sha256 = hashlib.sha256()
        for name in sorted(arrays):
            array = _aligned(np.asarray(arrays[name]))
            array.flags.writeable = False
            self._arrays[name] = array
            sha256.update(f"{name} {array.dtype} {array.shape}\n".encode())
            sha256.update(array.reshape(-1).view(np.uint8).data)
        self.digest = sha256.hexdigest()[:32]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenArrays) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        """Equal in every process, as files hold it."""
        return f"FrozenArrays({self.size:,} numbers, {self.digest})"

    @property
    def size(self) -> int:
        """The number of entries of all arrays."""
        return sum(array.size for array in self._arrays.values())

    @property
    def nbytes(self) -> int:
        """Their memory in bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    def present(self) -> dict[str, Array]:
        """The arrays by name, for use in a network: inputs of the program that is being
        traced if it was given them (`placed`), else constants.
        """
        inputs = _PLACED.get().get(self.digest)
        return dict(zip(self._arrays, inputs or self.on_device, strict=True))

    @property
    def on_device(self) -> tuple[Array, ...]:
        """The arrays on the default device, in the order of their names. Computations
        with arrays of other devices may move them.
        """
        # In a program that is being traced, copies would be a part of it.
        with jax.ensure_compile_time_eval():
            (device,) = jnp.zeros(()).devices()
            return self._on(device)

    def on(self, sharding: Sharding) -> tuple[Array, ...]:
        """The arrays on all devices of a sharding, in the order of their names. A device
        holds them once; CPUs share the memory of the host.
        """
        devices = [*sharding.addressable_devices_indices_map(())]
        with jax.ensure_compile_time_eval():
            shards = zip(*map(self._on, devices), strict=True)
            return tuple(
                jax.make_array_from_single_device_arrays(
                    array.shape, sharding, list(copies)
                )
                for array, copies in zip(self._arrays.values(), shards, strict=True)
            )

    def _on(self, device: Any) -> tuple[Array, ...]:
        """The arrays on one device."""
        if device not in self._copies:
            with jax.default_device(device):
                self._copies[device] = tuple(map(jax.device_put, self._arrays.values()))
        return self._copies[device]

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes by name."""
        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype)
            for name, array in self._arrays.items()
        }


COUNTER = "num_batches_tracked"
"""The end of the name of a counter of PyTorch's batch normalisation, which is not used."""


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """An array that devices take without a copy, in single precision if it is in double;
    a view if it is one already.
    """
    dtype = np.dtype(np.float32) if array.dtype == np.float64 else array.dtype
    is_ready = array.dtype == dtype and array.flags.c_contiguous
    if is_ready and array.ctypes.data % ALIGNMENT == 0:
        return array.view()
    copy = aligned(array.shape, dtype)
    copy[...] = array
    return copy


@contextmanager
def placed(frozen: FrozenArrays | None, arrays: Sequence[Array]) -> Iterator[None]:
    """Let networks that are run inside the context use these arrays.

    Args:
        frozen: whose arrays they are; None = there are none.
        arrays: inputs of the program that is being traced, in the order of the names;
            empty = networks use constants.
    """
    if frozen is None or not len(arrays):
        yield
        return
    token = _PLACED.set({**_PLACED.get(), frozen.digest: tuple(arrays)})
    try:
        yield
    finally:
        _PLACED.reset(token)


def frozen_inputs(model: Any) -> tuple[Array, ...]:
    """The frozen arrays of a model on the default device, as inputs of one program;
    empty if it has none.
    """
    frozen = model.frozen
    if frozen is None:
        return ()
    return frozen.on_device


def start_file(path: str | Path, digest: str | None) -> FrozenArrays:
    """The arrays of a safetensors file, from which both sides of a federation start.

    Args:
        path: the file.
        digest: what its `FrozenArrays.digest` must be; None = anything.

    Raises:
        ValueError: the file cannot be read, or is another one.

    Example:
        >>> from fedtailor.models import start_file
        >>> from safetensors.numpy import save_file
        >>> save_file({"weight": np.zeros((2, 3))}, "base.safetensors")
        >>> digest = start_file("base.safetensors", None).digest
        >>> list(start_file("base.safetensors", digest))
        ['weight']
    """
    arrays = FrozenArrays(arrays_by_path(path))
    if digest not in (None, arrays.digest):
        raise ValueError(
            f"{path} holds other arrays than asked for (its digest is"
            f" {arrays.digest}, not {digest}); get the file of the others"
        )
    return arrays


def arrays_by_path(source: Any) -> Mapping[str, NDArray[Any]]:
    """Arrays by path, such as "layers.2.weight".

    Args:
        source: a mapping from paths to arrays (also of PyTorch), a safetensors file, or a
            network (an Equinox module, a tree of Flax's parameters).

    Raises:
        ValueError: the file cannot be read, or there are no arrays.
    """
    from fedtailor.models.parameter_layout import is_parameter
    from fedtailor.models.tree_paths import path_of

    if isinstance(source, str | Path):
        # The other end of a pipe may never come.
        require(
            Path(source).is_file(),
            f"cannot read arrays from {source} (there is no such file); name a safetensors"
            " file",
        )
        try:
            file = TensorFile(Path(source))
            if not any(name.endswith(COUNTER) for name in file):
                return file
            return {name: file[name] for name in file if not name.endswith(COUNTER)}
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"cannot read arrays from {source} ({error}); name a safetensors file"
            ) from None
    if isinstance(source, Mapping) and not any(
        isinstance(value, Mapping) for value in source.values()
    ):
        # Paths with dots are keys already, as in a state dict of PyTorch, whose tensors
        # become NumPy's.
        arrays = {}
        for name, array in source.items():
            plain = array.detach().cpu().numpy() if hasattr(array, "detach") else array
            if is_parameter(plain):
                arrays[str(name)] = plain
    else:
        leaves = jax.tree_util.tree_leaves_with_path(source)
        arrays = {path_of(path): leaf for path, leaf in leaves if is_parameter(leaf)}
    if not arrays:
        raise ValueError(
            "there are no arrays to start from; give a network, arrays by path, or a"
            " safetensors file"
        )
    return {name: np.asarray(array) for name, array in arrays.items()}
