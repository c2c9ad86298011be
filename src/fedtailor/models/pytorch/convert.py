"""Converts a PyTorch module to two programs, one for training and one for evaluation."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import fedtailor.models.pytorch.elementwise
import fedtailor.models.pytorch.layers
import fedtailor.models.pytorch.normalization
import fedtailor.models.pytorch.sequences
import fedtailor.models.pytorch.shapes  # noqa: F401  (these register their operations)
from fedtailor.models.pytorch.operations import OPERATIONS, Operation, Ref, Unsupported
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.program import Constants, Program
from fedtailor.models.pytorch.sequences import RECURRENT
from fedtailor.models.pytorch.start import COUNTER, copy_module, first_line

IGNORED = (
    "_assert_scalar",
    "_assert_async",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)
"""Operations that only check something."""


def export(module: TorchModuleType, example: Tensor, training: bool) -> Any:
    """The `torch.export.ExportedProgram` of a module in double precision, for batches
    of any size.

    Raises:
        Unsupported: the module cannot be exported.
    """
    torch = pytorch()

    # The batch has three rows, as PyTorch would take a size of 1 for a constant.
    module = copy_module(module).double().train(training)
    rows = torch.cat([example[:1]] * 3)
    rows = rows.double() if rows.is_floating_point() else rows

    def export_program(strict: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the insides of PyTorch's own layers
            return torch.export.export(
                module,
                (rows,),
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                strict=strict,
            )

    try:
        return export_program(strict=False)
    except Exception as error:  # PyTorch raises many kinds, with pages of advice
        if "specialized" not in str(error):
            raise Unsupported(
                f"torch.export cannot trace it ({first_line(error)})"
            ) from None
    # `len(x)` makes the size of the batch a number. The strict mode, which analyses the
    # module's Python code, still takes it for a variable.
    try:
        return export_program(strict=True)
    except Exception:
        raise Unsupported(
            "its code works for one size of batch only: it loops over examples, say, or"
            " has a number in place of x.shape[0]"
        ) from None


def convert(program: Any) -> Program:
    """The program that `torch.export` found, as operations of `OPERATIONS`.

    Raises:
        Unsupported: an operation has no counterpart; the message names it.
    """
    signature = program.graph_signature
    graph = program.graph
    # name in the graph -> path in the module, of all parameters and buffers
    paths: dict[str, str] = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
    }
    tensors = {**program.state_dict, **program.constants}
    # Running mean and variance are the fourth and fifth argument of a batch
    # normalisation.
    statistics = set()
    for call in graph.nodes:
        if _name(call) == "batch_norm":
            statistics |= {node.name for node in call.args[3:5] if node}
    # Training does not change buffers that are not statistics, parameters without a
    # gradient, and tensors in the module's code.
    constants = {}
    for name, path in paths.items():
        is_fixed_buffer = name in signature.inputs_to_buffers and name not in statistics
        is_frozen = (
            name in signature.inputs_to_parameters and not tensors[path].requires_grad
        )
        if is_fixed_buffer or is_frozen:
            constants[name] = path
    constants |= signature.inputs_to_lifted_tensor_constants
    operations = [
        _operation(node)
        for node in graph.nodes
        if node.op == "call_function" and not _updates_counter(node)
    ]
    outputs = next(node for node in graph.nodes if node.op == "output").args[0]
    inputs = signature.user_inputs
    if len(outputs) != 1 or len(inputs) != 1:
        raise Unsupported(
            f"it takes {len(inputs)} inputs and gives {len(outputs)} outputs, and must"
            " have one of each"
        )
    shapes = {name: tuple(tensors[path].shape) for name, path in paths.items()}
    arrays = {}
    for name, path in constants.items():
        if not path.endswith(COUNTER):
            arrays[name] = tensors[path].detach().numpy().copy()
    names = tuple((name, path) for name, path in paths.items() if name not in constants)
    kept = _remove_unused(fuse(operations, shapes), outputs[0].name)
    return Program(kept, names, Constants(arrays), inputs[0], Ref(outputs[0].name))


def _remove_unused(
    operations: Sequence[Operation], output: str
) -> tuple[Operation, ...]:
    """Remove operations whose output is not used, except in-place operations."""
    # Backwards from the output, collect the values that the kept operations read.
    used = {output}
    kept = []
    for operation in reversed(operations):
        if operation.output in used or operation.name.endswith("_"):
            used.update(_refs(operation))
            kept.append(operation)
    return tuple(reversed(kept))


def _name(node: Any) -> str:
    """The name of a node's operation in `OPERATIONS`."""
    if node.op != "call_function":
        return ""
    if not hasattr(node.target, "_schema"):
        return f"python.{node.target.__name__}"
    space, name = node.target._schema.name.split("::")
    return name if space == "aten" else f"{space}.{name}"


def _updates_counter(node: Any) -> bool:
    """Whether a node only updates BatchNorm's counter of batches."""
    return _name(node) == "add_" and COUNTER in str(node.args[0])


def _operation(node: Any) -> Operation:
    """A node of the graph as a call of `OPERATIONS`.

    Raises:
        Unsupported: it has no counterpart.
    """
    name = _name(node)
    name = "nothing" if name in IGNORED else name
    if name not in OPERATIONS:
        raise Unsupported(
            f"its operation {name!r} has no counterpart in"
            " fedtailor.models.pytorch.operations"
        )
    kwargs = {
        key: _argument(value)
        for key, value in node.kwargs.items()
        if key not in _MEMORY_ARGUMENTS
    }
    return Operation(
        node.name, name, tuple(map(_argument, node.args)), tuple(sorted(kwargs.items()))
    )


_MEMORY_ARGUMENTS = (
    "device",
    "layout",
    "pin_memory",
    "memory_format",
    "copy",
    "non_blocking",
    "implicit",
)
"""Arguments that say where and how PyTorch stores an array."""


def _argument(value: Any) -> Any:
    """An argument of a node as a hashable value that does not need PyTorch."""
    torch = pytorch()

    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_argument, value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, slice):
        return slice(*map(_argument, (value.start, value.stop, value.step)))
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else str(value)
    )


# fusion
# --------------------------------------------------------------------------------------


def fuse(
    operations: Sequence[Operation], shapes: Mapping[str, tuple[int, ...]]
) -> list[Operation]:
    """Replace a convolution, ReLU and 2x2 pooling that follow each other (or, for maxima,
    pooling and then ReLU) by one operation.

    Args:
        operations: in the order in which they run.
        shapes: name of a parameter in the operations -> its shape.

    Returns:
        The operations after the replacements.
    """
    # The operations that read each value. Only a value with a single reader may be fused
    # into it.
    readers: dict[str, list[Operation]] = {}
    for operation in operations:
        for name in _refs(operation):
            readers.setdefault(name, []).append(operation)
    # name of an output -> the fused operation, or None if it is fused into a later one
    replacements: dict[str, Operation | None] = {}
    for conv in operations:
        if conv.name != "conv2d" or not _is_fusable(conv, shapes):
            continue
        second = _only(readers.get(conv.output, []))
        third = None if second is None else _only(readers.get(second.output, []))
        if second is None or third is None:
            continue
        kind = _pooling_kind(second, third)
        if kind is None:
            continue
        bias = conv.args[2] if len(conv.args) > 2 else None
        padding = conv.args[4] if len(conv.args) > 4 else (0, 0)
        arguments = (*conv.args[:2], bias, padding, kind)
        # Other operations read the output of the last one, whose name remains.
        fused = Operation(third.output, "conv_relu_pool", arguments)
        replacements |= {conv.output: None, second.output: None, third.output: fused}
    replaced = [
        replacements.get(operation.output, operation) for operation in operations
    ]
    return [operation for operation in replaced if operation is not None]


def _pooling_kind(second: Operation, third: Operation) -> str | None:
    """The kind of pooling if two operations are ReLU and 2x2 pooling, else None."""
    relu, pool = (
        (second, third) if second.name in ("relu", "relu_") else (third, second)
    )
    kind = {"max_pool2d": "max", "avg_pool2d": "average"}.get(pool.name)
    if kind is None or relu.name not in ("relu", "relu_"):
        return None
    arguments: Any = pool.args[1:]
    if not arguments:
        return None
    stride = arguments[1] if len(arguments) > 1 and arguments[1] else arguments[0]
    is_two = set(arguments[0]) == {2} and set(stride) == {2}
    # no padding, no dilation, no rounding up
    defaults = ((0, 0), (0,), (1, 1), (1,), False)
    is_default = not pool.kwargs and all(
        argument in defaults for argument in arguments[2:]
    )
    # The order of ReLU and a maximum does not matter, that of ReLU and a mean does.
    average_of_unclipped = pool is second and kind == "average"
    return kind if is_two and is_default and not average_of_unclipped else None


def _is_fusable(operation: Operation, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether `conv_relu_pool` can compute a convolution: its kernel is square, its stride
    1, its padding the same on all sides, and it has one group.
    """
    weight = operation.args[1]
    shape = shapes.get(weight.name, ()) if isinstance(weight, Ref) else ()
    square = len(shape) == 4 and shape[2] == shape[3]
    if any(isinstance(argument, str) for argument in operation.args):  # padding="same"
        return False
    # the arguments after input, weight and bias, completed by their defaults
    defaults: tuple[Any, ...] = ((1, 1), (0, 0), (1, 1), 1)
    settings = operation.args[3:7]
    stride, padding, dilation, groups = (*settings, *defaults[len(settings) :])
    is_dense = set(stride) == {1} and set(dilation) == {1} and groups == 1
    return square and is_dense and len(set(padding)) == 1


def _only(readers: list[Operation]) -> Operation | None:
    """The reader of a value if it has exactly one, else None."""
    return readers[0] if len(readers) == 1 else None


def _refs(operation: Operation) -> Iterable[str]:
    """The names of all values that an operation reads, also in nested arguments."""
    pending: list[Any] = [*operation.args, *(value for _, value in operation.kwargs)]
    while pending:
        value = pending.pop()
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple):
            pending += value


# properties of programs
# --------------------------------------------------------------------------------------


def has_randomness(training: Program, evaluation: Program) -> bool:
    """Whether training differs from evaluation by more than batch normalisation."""
    return list(map(_without_mode, training.operations)) != list(
        map(_without_mode, evaluation.operations)
    )


def _without_mode(operation: Operation) -> Operation:
    """The operation without its training flag, if that makes no difference or only
    that of batch normalisation: for BatchNorm, and for dropout at a rate of 0.
    """
    args = list(operation.args)
    if operation.name == "batch_norm":
        args[5] = None
    elif operation.name in RECURRENT and args[5] == 0:
        args[6] = None
    elif "dropout" in operation.name and args[1] == 0:
        args[2] = None
    return replace(operation, args=tuple(args))


def head_of(program: Program) -> Operation | None:
    """The last dense layer whose weight is a parameter."""
    names = dict(program.names)
    dense = [
        operation
        for operation in program.operations
        if operation.name == "linear" and _is_parameter(operation.args[1], names)
    ]
    return dense[-1] if dense else None


def layer_order(program: Program) -> tuple[str, ...]:
    """The modules that own parameters, in the order of their last use."""
    names = dict(program.names)
    used = [
        names[name].rpartition(".")[0]
        for operation in program.operations
        for name in _refs(operation)
        if name in names
    ]
    return tuple(dict.fromkeys(reversed(used)))[::-1]


def norms_of(program: Program) -> tuple[str, ...]:
    """The normalisation layers that have parameters."""
    names = dict(program.names)
    modules = []
    for operation in program.operations:
        if operation.name in (
            "batch_norm",
            "layer_norm",
            "group_norm",
            "instance_norm",
            "rms_norm",
        ):
            modules += [
                names[name].rpartition(".")[0]
                for name in list(_refs(operation))
                if name in names
            ]
    return tuple(dict.fromkeys(modules))


def statistics_of(program: Program) -> tuple[str, ...]:
    """The paths of running statistics."""
    names = dict(program.names)
    norms = [
        operation for operation in program.operations if operation.name == "batch_norm"
    ]
    return tuple(
        names[ref.name]
        for operation in norms
        for ref in operation.args[3:5]
        if isinstance(ref, Ref)
    )


def _is_parameter(argument: Any, names: Mapping[str, str]) -> bool:
    return isinstance(argument, Ref) and argument.name in names
