"""Whether a converted module computes what PyTorch computes."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.xla_flags import FIRST_JAX_WITHOUT_OLD_EMITTERS
from fedtailor.models.inputs import Inputs
from fedtailor.models.pytorch.operations import Context, Unsupported
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.program import ModuleProgram
from fedtailor.models.pytorch.start import copy_module, first_line
from fedtailor.protocol import along_axis

TOLERANCE = 1e-5
"""The largest difference that is accepted, relative to the largest entry of PyTorch's
array.
"""
QUICK_TO_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""XLA's options for a program that runs once."""
if jax.__version_info__ < FIRST_JAX_WITHOUT_OLD_EMITTERS:
    QUICK_TO_COMPILE |= {"xla_cpu_use_fusion_emitters": False}
BATCH, PADDING = 4, 2
"""Examples of the comparison, and of padding after them."""


def check_conversion(
    module: TorchModuleType,
    programs: Sequence[ModuleProgram],
    example: Tensor,
    inputs: Inputs | None,
) -> None:
    """Compare outputs, gradients and running statistics on a random batch with those of
    the module, in double precision. Random draws are the means of their distributions.

    JAX gets more examples, which have a weight of 0: they must not change anything.

    Args:
        module: is not changed.
        programs: its conversions in training and evaluation mode.
        example: a batch of inputs.
        inputs: what they are, if there are several.

    Raises:
        Unsupported: they differ; the message says by how much, and where.
    """
    x = random_like(example, inputs)
    has_tokens = inputs is not None or not example.is_floating_point()
    padding = x.numpy()[:PADDING] * (1 if has_tokens else 3)
    padded = np.concatenate([x.numpy(), padding])
    for mode, program in zip(("training", "evaluation"), programs, strict=True):
        expected, network = _run_pytorch(module, x, program, mode == "training")
        with jax.enable_x64(True):
            results = _run_jax(program, network, padded, mode == "training")
            difference = _difference(expected, results)
            if difference is None:
                continue
            # What is right without padding depends on the other examples of a batch.
            alone = _run_jax(program, network, x.numpy(), mode == "training")
        if _difference(expected, alone) is None:
            advice = {
                "training": "; only batch normalisation, and means and sums over a batch"
                " that change buffers, can be converted",
                "evaluation": ", so that there is no prediction for one of them",
            }[mode]
            raise Unsupported(
                f"in {mode} mode what it gives for one example depends on the others of"
                f" the batch{advice}"
            )
        what, how = difference
        if what.startswith("gradient"):  # the outputs, which come first, are equal
            how += ": has it a torch.autograd.Function with a derivative of its own?"
        raise Unsupported(f"its {what} in {mode} mode {how}")


def _difference(
    expected: Mapping[str, NDArray[Any]], results: Mapping[str, NDArray[Any]]
) -> tuple[str, str] | None:
    """The first array that is not as expected, and how it differs; None = all are."""
    for name, values in expected.items():
        result = results[name][: len(values)] if name == "output" else results[name]
        if result.shape != values.shape:
            return name, f"is {list(result.shape)} and PyTorch's {list(values.shape)}"
        scale = max(float(np.abs(values).max(initial=0)), 1e-12)
        # A gradient that is zero up to rounding, such as that of a bias before batch
        # normalisation.
        if name.startswith("gradient") and scale < 1e-10:
            scale = 1.0
        # PyTorch may give infinite numbers, too.
        same = (result == values) | (np.isnan(result) & np.isnan(values))
        error = float(np.abs(np.where(same, 0, result - values)).max(initial=0)) / scale
        # `not <=`, so that NaN counts as a difference
        if not error <= TOLERANCE:
            return name, f"is {error:.0e} (relative) away from PyTorch's"
    return None


def random_like(example: Tensor, inputs: Inputs | None = None, seed: int = 0) -> Tensor:
    """A batch of four random inputs in double precision, or of random tokens between the
    smallest and the largest one of the example.
    """
    torch = pytorch()

    if inputs is not None:
        dtype = torch.float64 if example.is_floating_point() else example.dtype
        parts = [
            random_like(part, seed=number).reshape(BATCH, -1).to(dtype)
            for number, part in enumerate(inputs.unpack(example).values())
        ]
        return torch.cat(parts, dim=1)
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, shape, generator=generator, dtype=example.dtype)


def _run_pytorch(
    module: TorchModuleType, x: Tensor, program: ModuleProgram, training: bool
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Run a forward and a backward pass by PyTorch, in double precision.

    Returns:
        By name, the outputs, the loss, the gradients and the statistics after the pass;
        and by path, the parameters and statistics before it.
    """
    torch = pytorch()
    module = copy_module(module).double().train(training)
    parameters = dict(module.named_parameters())
    tensors = {**parameters, **dict(module.named_buffers())}
    # Zeros and ones, from which layers often start, would hide what they are for.
    generator = torch.Generator().manual_seed(1)
    network = {}
    for path in sorted({path for _, path in program.names}):
        tensor = tensors[path].detach()
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) / 10
        # Variances stay positive.
        tensor.add_(noise - 0.05 if path in parameters else noise * (1 + tensor.abs()))
        network[path] = tensor.numpy().copy()
    try:
        with warnings.catch_warnings(), in_double_precision():
            warnings.simplefilter("ignore")
            outputs = module(x)
        loss = torch.square(outputs - 1).mean()
        loss.backward()
    except RuntimeError as error:
        raise Unsupported(
            f"PyTorch fails in double precision ({first_line(error)})"
        ) from None
    results = {"output": outputs.detach().numpy(), "loss": loss.detach().numpy()}
    for path in network:
        if path not in parameters:
            results[path] = _tensor_of(module, path).detach().numpy()
        elif parameters[path].grad is not None:
            results[f"gradient of {path}"] = parameters[path].grad.numpy()
    return results, network


def _tensor_of(module: TorchModuleType, path: str) -> Tensor:
    """The tensor at a path; a module may have put a new one there."""
    layer, _, name = path.rpartition(".")
    return getattr(module.get_submodule(layer), name)


@contextmanager
def in_double_precision() -> Iterator[None]:
    """A context in which PyTorch takes float64 for float32, even for new tensors, and
    the means of random numbers for the numbers.
    """
    torch = pytorch()
    dispatch: Any = import_module("torch.utils._python_dispatch")

    means = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}

    def as_double(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    class Mode(dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            args = torch.utils._pytree.tree_map(as_double, args)
            kwargs = torch.utils._pytree.tree_map(as_double, kwargs or {})
            name = function._schema.name.removeprefix("aten::")
            result = function(*args, **kwargs)
            if name in means:
                return result.fill_(means[name])
            if name in ("bernoulli", "bernoulli_"):
                # PyTorch leaves out arguments that have their defaults.
                default = 0.5 if function._overloadname == "float" else args[0]
                p = args[1] if len(args) > 1 else kwargs.get("p", default)
                return result.copy_(p) if torch.is_tensor(p) else result.fill_(p)
            if name == "uniform_":
                low, high = (*args[1:], *(0.0, 1.0)[len(args) - 1 :])
                return result.fill_((low + high) / 2)
            if name == "normal_":
                return result.fill_(args[1] if len(args) > 1 else 0.0)
            return result

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of `torch.zeros(...)` in a module's code
    try:
        with Mode():
            yield
    finally:
        torch.set_default_dtype(default)


def _run_jax(
    program: ModuleProgram,
    network: dict[str, NDArray[Any]],
    x: NDArray[Any],
    training: bool,
) -> dict[str, NDArray[Any]]:
    """Compute by the converted program what `_run_pytorch` computes; all examples after
    the first ones are padding.

    Raises:
        Unsupported: the program cannot run.
    """
    is_example = jnp.arange(len(x)) < BATCH
    # As in `Model.train_outputs`, models without statistics get no weights.
    weight = is_example.astype(float) if training and program.statistics else None

    @jax.jit
    def loss(network: Any) -> tuple[Any, Any]:
        statistics = program.statistics
        network = {
            path: jax.lax.stop_gradient(values) if path in statistics else values
            for path, values in network.items()
        }
        context = Context(jnp.float64, weight)
        outputs = program.run(network, jnp.asarray(x), context)
        errors = jnp.square(outputs - 1)
        where = along_axis(is_example, 0, outputs.ndim)
        return errors.mean(where=where), (outputs, context.new_statistics)

    try:
        (value, (outputs, new_statistics)), gradient = jax.jit(
            jax.value_and_grad(loss, has_aux=True),
            compiler_options=QUICK_TO_COMPILE,
        )(network)
    except (TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, Unsupported):
            raise
        raise Unsupported(
            f"its operations do not fit together in JAX ({first_line(error)})"
        ) from None
    results = {"output": outputs, "loss": value}
    results |= {f"gradient of {path}": values for path, values in gradient.items()}
    # All statistics, including those that this mode does not update.
    results |= {path: new_statistics.get(path, network[path]) for path in network}
    return {what: np.asarray(values) for what, values in results.items()}
