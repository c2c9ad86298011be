"""Whether a converted module computes what PyTorch computes."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.models.pytorch.operations import Context, Unsupported
from fedtailor.models.pytorch.optional import Tensor, pytorch
from fedtailor.models.pytorch.program import Program
from fedtailor.models.pytorch.sequences import RECURRENT
from fedtailor.models.pytorch.start import first_line

TOLERANCE = 1e-5
"""The largest difference that is accepted, relative to the largest entry of PyTorch's
array.
"""
BATCH = 4


def check_conversion(
    exported: Sequence[Any], programs: Sequence[Program], example: Tensor
) -> None:
    """Compare outputs, gradients and running statistics on a random batch, in double
    precision and without dropout.

    Args:
        exported: the exported programs of training and evaluation mode.
        programs: their conversions.
        example: a batch of inputs.

    Raises:
        Unsupported: they differ; the message says by how much, and where.
    """
    x = random_like(example)
    for mode, original, program in zip(
        ("training", "evaluation"), exported, programs, strict=True
    ):
        expected, network = _run_pytorch(original, x, program)
        with jax.enable_x64(True):
            results = _run_jax(program, network, x)
        for name, values in expected.items():
            scale = max(float(np.abs(values).max(initial=0)), 1e-12)
            error = np.inf
            if results[name].shape == values.shape:
                error = float(np.abs(results[name] - values).max(initial=0)) / scale
            # A gradient that is zero up to rounding, such as that of a bias before
            # batch normalisation.
            is_rounding = name.startswith("gradient") and scale < 1e-10
            # `not <=`, so that NaN counts as a difference
            if not error <= TOLERANCE and not is_rounding:
                raise Unsupported(
                    f"its {name} in {mode} mode is {error:.0e} (relative) away from"
                    " PyTorch's"
                )


def random_like(example: Tensor) -> Tensor:
    """A batch of four random inputs in double precision, or of random tokens between the
    smallest and the largest one of the example.
    """
    torch = pytorch()

    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, shape, generator=generator, dtype=example.dtype)


def _run_pytorch(
    original: Any, x: Tensor, program: Program
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Run a forward and a backward pass by PyTorch.

    Returns:
        By name, the outputs, the loss, the gradients and the statistics after the pass;
        and by path, the parameters and statistics before it.
    """
    torch = pytorch()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = original.module()
    for node in list(module.graph.nodes):
        _use_double_precision(node)
        _remove_dropout(node, module.graph)
    module.recompile()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    network = {path: tensors[path].detach().numpy().copy() for _, path in program.names}
    try:
        outputs = module(x)
    except RuntimeError as error:
        raise Unsupported(
            f"PyTorch fails in double precision ({first_line(error)})"
        ) from None
    outputs = outputs[0] if isinstance(outputs, tuple | list) else outputs
    loss = torch.square(outputs - 1).mean()
    loss.backward()
    results = {"output": outputs.detach().numpy(), "loss": loss.detach().numpy()}
    for path in network:
        if (
            isinstance(tensors[path], torch.nn.Parameter)
            and tensors[path].grad is not None
        ):
            results[f"gradient of {path}"] = tensors[path].grad.numpy()
        elif not isinstance(tensors[path], torch.nn.Parameter):
            results[path] = tensors[path].detach().numpy()
    return results, network


def _use_double_precision(node: Any) -> None:
    """Replace float32 in the arguments of a node, as of `x.float()`, by float64."""
    torch = pytorch()

    def as_double(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    node.args = torch.fx.node.map_aggregate(node.args, as_double)
    node.kwargs = torch.fx.node.map_aggregate(node.kwargs, as_double)


def _remove_dropout(node: Any, graph: Any) -> None:
    """Remove a dropout layer, or set the dropout rate of another layer to 0, as the two
    libraries draw different random numbers.
    """
    name = str(node.target)
    if "dropout" in name and node.op == "call_function" and name.startswith("aten."):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    elif name.startswith(tuple(f"aten.{kind}" for kind in RECURRENT)):
        node.update_arg(5, 0.0)
    elif name.startswith("aten.scaled_dot_product_attention") and len(node.args) > 4:
        node.update_arg(4, 0.0)


def _run_jax(
    program: Program, network: dict[str, NDArray[Any]], x: Tensor
) -> dict[str, NDArray[Any]]:
    """Compute by the converted program what `_run_pytorch` computes.

    Raises:
        Unsupported: the program cannot run.
    """
    inputs = jnp.asarray(x.numpy())

    @jax.jit
    def loss(network: Any) -> tuple[Any, Any]:
        context = Context(jnp.float64, names=dict(program.names))
        outputs = program.run(network, inputs, context)
        return jnp.square(outputs - 1).mean(), (outputs, context.new_statistics)

    try:
        (value, (outputs, new_statistics)), gradient = jax.jit(
            jax.value_and_grad(loss, has_aux=True)
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
