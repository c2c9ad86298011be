"""Initial parameters and inputs of PyTorch modules."""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from fedtailor._base.documentation import see
from fedtailor.models.pytorch.layout import Images
from fedtailor.models.pytorch.optional import TorchModuleType, pytorch

COUNTER = "num_batches_tracked"
"""The name of BatchNorm's counter, which is not used unless its momentum is None."""


class Start:
    """The initial values of a module: its present values, or new ones that the module's
    own layers draw.

    Attributes:
        shapes: path -> shape, of parameters and running statistics.
        names: name in the module's state dict -> path of the parameter or statistic that
            holds it; "" if no training changes it.
        present: name in the state dict -> present values.
    """

    def __init__(
        self,
        make: Callable[[], TorchModuleType] | None,
        module: TorchModuleType,
        paths: list[str],
    ) -> None:
        self._make, self._module = make, module
        state = module.state_dict(keep_vars=True)
        self.present = {
            name: tensor.detach().numpy().copy() for name, tensor in state.items()
        }
        self.shapes = {path: self.present[path].shape for path in paths}
        # A tensor of tied layers has several names in the state dict, the first of which
        # is in `paths`.
        first = shared_paths(module)
        self.names = {
            name: first[name] if first.get(name) in paths else "" for name in state
        }
        self._identity = id(self) if make is None else (id(make), repr(module))

    @property
    def module(self) -> TorchModuleType:
        """The module as it was given."""
        return self._module

    def constants(self) -> str:
        """A fingerprint of the entries of the state dict that no training changes,
        without counters.
        """
        fixed = {}
        for name, path in self.names.items():
            if not path and COUNTER not in name:
                fixed[name] = self.present[name]
        return start_digest(fixed)

    def build(self, key: Array) -> dict[str, Array]:
        """As `draw`, but from a JAX key, and for use in compiled programs."""
        shapes = {
            path: jax.ShapeDtypeStruct(shape, jnp.float32)
            for path, shape in self.shapes.items()
        }
        # PyTorch draws on the host. Compiled programs call it once for each key.
        return jax.pure_callback(
            self.draw, shapes, jax.random.key_data(key), vmap_method="sequential"
        )

    def draw(self, words: NDArray[np.uint32]) -> dict[str, NDArray[np.float32]]:
        """Parameters and running statistics, by path, from two random words."""
        torch = pytorch()

        # The layers draw from PyTorch's global generator, whose state is restored
        # afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(words))
            module = self._module if self._make is None else self._make()
        state = module.state_dict()
        return {
            path: state[path].detach().numpy().astype(np.float32)
            for path in self.shapes
        }

    def __repr__(self) -> str:
        """Equal in every process, as a run's manifest stores it."""
        if self._make is not None:
            return "Start(new values)"
        return f"Start(present values {start_digest(self.present)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def shared_paths(module: TorchModuleType) -> dict[str, str]:
    """The path of every parameter and buffer of a module -> the first path of the same
    tensor, which tied layers have in common.
    """
    first: dict[int, str] = {}
    paths = {}
    for path, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        paths[path] = first.setdefault(id(tensor), path)
    return paths


def owner_of(path: str) -> str:
    """The path of the module that has a parameter, which may be computed from others
    (`torch.nn.utils.parametrize`).
    """
    owner, computed, _ = path.partition(".parametrizations.")
    return owner if computed else path.rpartition(".")[0]


def copy_module(module: TorchModuleType) -> TorchModuleType:
    """A copy of a module.

    Raises:
        ValueError: PyTorch cannot copy it, for example because it holds tensors that were
            computed from others.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:  # PyTorch raises many kinds of errors
        raise ValueError(
            f"{type(module).__name__} cannot be copied: {first_line(error)}"
        ) from None


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def seed_of(words: NDArray[np.uint32]) -> int:
    """Two random words as a seed that PyTorch takes."""
    return int.from_bytes(np.asarray(words, np.uint32).tobytes()[:8], "little") >> 1


def start_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """A fingerprint of arrays and their names."""
    sha256 = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        header = f"{name} {array.dtype} {array.shape}"
        sha256.update(header.encode() + np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()[:16]


def initializer(
    module: Any, instance: TorchModuleType
) -> Callable[[], TorchModuleType]:
    """A function that makes the module with new random parameters.

    Args:
        module: what the user passed: the module itself, or a function that makes it.
        instance: the module.

    Raises:
        ValueError: a layer of a module has parameters and no `reset_parameters`.
    """
    if module is not instance:
        return module

    def make() -> TorchModuleType:
        new = copy_module(instance)
        for layer in new.modules():
            reset = getattr(layer, "reset_parameters", None) or getattr(
                layer, "_reset_parameters", None
            )
            if reset is not None:
                reset()
            elif any(True for _ in layer.parameters(recurse=False)):
                raise ValueError(
                    f"{type(layer).__name__} has parameters of its own and no"
                    " reset_parameters; pass a function that makes the module, or"
                    " pretrained=True to start from its present values"
                    f"{see('models#pytorch-modules')}"
                )
        return new

    make()  # raises the error now, and not when training starts
    return make


def reshape_inputs(x: Any, example_shape: tuple[int, ...]) -> Any:
    """Inputs in the shape that the module takes.

    Args:
        x: inputs [b, ...] as they are stored. Images may have their channels last, and
            gray ones may have no axis of channels.
        example_shape: the shape of one input of the module.

    Raises:
        ValueError: the shapes do not match.
    """
    shape = x.shape[1:]
    if shape == example_shape:
        return x
    if len(example_shape) == 3 and math.prod(shape) == math.prod(example_shape):
        channels, height, width = example_shape
        if shape == (height, width, channels) or channels == 1:
            return (
                Images(x.reshape(len(x), height, width, channels))
                if hasattr(x, "reshape")
                else x
            )
    if len(example_shape) == 1 and math.prod(shape) == example_shape[0]:
        return x.reshape(len(x), -1) if hasattr(x, "reshape") else x
    raise ValueError(
        f"the module's example has shape {example_shape}, and inputs have shape"
        f" {shape}; images may be [channels, height, width] or [height, width,"
        " channels]"
    )
