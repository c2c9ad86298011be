"""PyTorch modules as models, trained by this library's own engine."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import ArrayLike, NDArray

from fedtailor.models.model import Architecture, Model
from fedtailor.models.parts import Anatomy
from fedtailor.models.pytorch.check import check_conversion
from fedtailor.models.pytorch.convert import (
    converted,
    exported,
    has_randomness,
    head_of,
    layer_order,
    norms_of,
    statistics_of,
)
from fedtailor.models.pytorch.layout import Images, Value
from fedtailor.models.pytorch.operations import Context, Ref, Unsupported
from fedtailor.models.pytorch.optional import TorchModuleType, pytorch
from fedtailor.models.pytorch.program import Program

MICRO_BATCH = 20
"""Examples to differentiate at a time in modules with convolutions (as in the zoo's)."""


class Start:
    """Where training starts: the module's present values, or new ones as the module's own layers draw them.

    Attributes:
        shapes: of parameters and running statistics, by path.
        names: every name in the module's state dict, with the path of the parameter it is stored under.
        present: the module's present values, by name.
    """

    def __init__(self, make: Callable[[], TorchModuleType] | None, module: TorchModuleType, paths: list[str]) -> None:
        self._make, self._module = make, module
        state = module.state_dict(keep_vars=True)
        self.present = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
        self.shapes = {path: self.present[path].shape for path in paths}
        stored = {state[path].data_ptr(): path for path in paths if state[path].numel()}
        self.names = {
            name: name if name in paths else stored.get(tensor.data_ptr(), "") for name, tensor in state.items()
        }
        self._identity = id(self) if make is None else (id(make), repr(module))

    def draw(self, words: NDArray[np.uint32]) -> dict[str, NDArray[np.float32]]:
        """Parameters and running statistics, by path, from two random words."""
        torch = pytorch()

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(np.asarray(words, np.uint32).tobytes()[:8], "little") >> 1)
            module = self._module if self._make is None else self._make()
        state = module.state_dict()
        return {path: state[path].detach().numpy().astype(np.float32) for path in self.shapes}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@dataclass(frozen=True)
class TorchModule(Architecture):
    """A PyTorch module; see `from_torch`."""

    training: Program
    evaluation: Program
    start: Start
    example_shape: tuple[int, ...]
    input_dtype: str
    micro_batch: int | None

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> dict[str, Array]:
        _placed(jax.ShapeDtypeStruct((1, *input_shape), jnp.float32), self.example_shape)
        kinds = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in self.start.shapes.items()}
        return jax.pure_callback(self.start.draw, kinds, jax.random.key_data(key), vmap_method="sequential")

    def apply(self, network: Any, x: Shaped[Array, "b ..."], key: Array | None) -> Float[Array, "b ..."]:
        program = self.evaluation if key is None else self.training
        return program.run(network, self._input(network, x), self._context(network, program, key=key))

    def is_stochastic(self, network: Any) -> bool:
        return has_randomness(self.training, self.evaluation)

    def statistics(self, network: Any) -> tuple[str, ...]:
        return statistics_of(self.training)

    def train(
        self, network: Any, x: Shaped[Array, "b ..."], key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Float[Array, "b ..."], Any]:
        context = self._context(network, self.training, key, weight)
        outputs = self.training.run(network, self._input(network, x), context)
        return outputs, {**network, **context.renewed}

    def anatomy(self, network: Any, input_shape: tuple[int, ...]) -> Anatomy:
        head, names = head_of(self.evaluation), dict(self.evaluation.names)
        path = None if head is None else names[head.args[1].name].rpartition(".")[0]
        order = layer_order(self.evaluation)
        return Anatomy(path, norms_of(self.evaluation), order, self.input_dtype)

    def features(
        self, network: Any, anatomy: Anatomy, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        program = self.evaluation if key is None else self.training
        context = self._context(network, program, key)
        return program.run(network, self._input(network, x), context, watch=_head_input(program))

    def train_features(
        self, network: Any, anatomy: Anatomy, x: Shaped[Array, "b ..."], key: Array | None, weight: Float[Array, " b"]
    ) -> Float[Array, "b ..."]:
        context = self._context(network, self.training, key, weight)
        return self.training.run(network, self._input(network, x), context, watch=_head_input(self.training))

    def head_outputs(
        self, network: Any, anatomy: Anatomy, features: Float[Array, "b ..."], input_shape: tuple[int, ...]
    ) -> Float[Array, "b ..."]:
        # The body runs on zeros, unread, and the compiler removes it.
        program, context = self.evaluation, self._context(network, self.evaluation)
        nothing = jnp.zeros((len(features), *self.example_shape), self.input_dtype)
        return program.run(network, nothing, context, given=(_head_input(program), features))

    def _input(self, network: Any, x: Shaped[Array, "b ..."]) -> Value:
        return _placed(x, self.example_shape)

    def _context(
        self, network: Any, program: Program, key: Array | None = None, weight: Float[Array, " b"] | None = None
    ) -> Context:
        dtype = jnp.result_type(*network.values()) if network else jnp.float32
        return Context(dtype, weight, key, dict(program.names))


def _head_input(program: Program) -> str:
    head = head_of(program)
    assert head is not None and isinstance(head.args[0], Ref)
    return head.args[0].name


def _placed(x: Any, example_shape: tuple[int, ...]) -> Any:
    """Inputs as stored, as the module takes them: images may have their channels last, gray ones none.

    Raises:
        ValueError: they do not fit.
    """
    shape = x.shape[1:]
    if shape == example_shape:
        return x
    if len(example_shape) == 3 and math.prod(shape) == math.prod(example_shape):
        channels, height, width = example_shape
        if shape == (height, width, channels) or channels == 1:
            return Images(x.reshape(len(x), height, width, channels)) if hasattr(x, "reshape") else x
    if len(example_shape) == 1 and math.prod(shape) == example_shape[0]:
        return x.reshape(len(x), -1) if hasattr(x, "reshape") else x
    raise ValueError(f"the module's example has shape {example_shape}, and inputs have shape {shape}; "
                     "images may be [channels, height, width] or [height, width, channels]")  # fmt: skip


def from_torch(
    module: TorchModuleType | Callable[[], TorchModuleType], example_input: Any, *, pretrained: bool = False,
    check: bool = True,
) -> TorchModule:  # fmt: skip
    """A PyTorch module, trained by this library's own engine at its speed; for example

        models.from_torch(lambda: MyNet(classes=10), torch.zeros(1, 3, 32, 32))

    The module is traced by `torch.export`, once in training and once in evaluation mode, and its operations are run in
    JAX, convolutions in this library's own. The result is checked against PyTorch in double precision on a random
    batch: outputs, gradients and running statistics, to 1e-5 relative, in both modes (dropout off).

    Running statistics of BatchNorm are entries of theta; parameters with `requires_grad=False` and other buffers stay
    as they are. PyTorch is not needed for training itself, but for the start of it. Models that come from one function
    `module` are equal, and share compiled programs.

    Args:
        module: a function that makes the module, as which a class without arguments will do: every seed starts from
            parameters of its own; or a module: every seed starts from its layers' `reset_parameters`.
        example_input: a batch [b, ...] of inputs as the module takes them (images with channels first); the data may
            have channels last.
        pretrained: start every seed, and every client, from the module's present values.
        check: compare with PyTorch; do not turn this off but for speed, for modules that have passed it.

    Raises:
        ValueError: PyTorch is missing, the module cannot be converted (the message names the operation), or the result
            differs from PyTorch's.
    """
    torch = pytorch()
    made: Any = module if isinstance(module, torch.nn.Module) else module()
    if not isinstance(made, torch.nn.Module):
        raise ValueError(f"from_torch takes a torch.nn.Module, or a function that makes one, not {module!r}")
    name, example = type(made).__name__, torch.as_tensor(example_input)
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise ValueError(f"{name} has no parameters that require a gradient, so that there is nothing to train")
    try:
        both = [exported(made, example, training) for training in (True, False)]
        training, evaluation = map(converted, both)
        if check:
            check_conversion(both, (training, evaluation), example)
    except Unsupported as error:
        raise ValueError(f"{name} cannot be converted: {error}; replace it in the module, or register it with "
                         "fedtailor.models.pytorch.operation") from None  # fmt: skip
    paths = sorted({path for program in (training, evaluation) for _, path in program.names})
    make = None if pretrained else _maker(module, made)
    convolves = any(one.name.startswith("conv") for one in training.operations)
    kind = "float32" if example.is_floating_point() else "int32"
    shape = tuple(example.shape[1:])
    return TorchModule(training, evaluation, Start(make, made, paths), shape, kind, MICRO_BATCH if convolves else None)


def _maker(module: Any, made: TorchModuleType) -> Callable[[], TorchModuleType]:
    """A function that makes the module with new parameters."""
    if module is not made:
        return module

    def make() -> TorchModuleType:
        copied = copy.deepcopy(made)
        for layer in copied.modules():
            reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
            if reset is not None:
                reset()
            elif any(True for _ in layer.parameters(recurse=False)):
                raise ValueError(
                    f"{type(layer).__name__} has parameters of its own and no reset_parameters; pass a function that "
                    "makes the module, or pretrained=True to start from its present values"
                )
        return copied

    make()  # says at once what cannot be drawn anew
    return make


def state_dict(model: Model, theta: ArrayLike) -> dict[str, NDArray[Any]]:
    """A model vector theta [d] as the state dict of the PyTorch module, as NumPy arrays.

    Raises:
        ValueError: the model does not come from `from_torch`.
    """
    if not isinstance(model.architecture, TorchModule):
        raise ValueError("this model does not come from from_torch, so that there is no state dict of it")
    start: Start = model.architecture.start
    trained: Mapping[str, Any] = {path: np.asarray(values) for path, values in model.params(jnp.asarray(theta)).items()}
    return {name: trained[path] if path else start.present[name] for name, path in start.names.items()}


def save_state_dict(model: Model, theta: ArrayLike, path: Path | str) -> Path:
    """Write `state_dict` as a safetensors file, which plain PyTorch reads:

        module.load_state_dict(safetensors.torch.load_file(path))

    Raises:
        ValueError: as `state_dict`, or the file cannot be written.
    """
    from safetensors.numpy import save_file

    path = Path(path)
    arrays = {name: np.ascontiguousarray(values) for name, values in state_dict(model, theta).items()}
    try:
        save_file(arrays, path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; name another file") from None
    return path
