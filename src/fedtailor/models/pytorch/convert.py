"""Converts a PyTorch module to two programs, one for training and one for evaluation."""

import traceback
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import fedtailor.models.pytorch.elementwise
import fedtailor.models.pytorch.layers
import fedtailor.models.pytorch.normalization
import fedtailor.models.pytorch.resampling
import fedtailor.models.pytorch.sequences
import fedtailor.models.pytorch.shapes  # noqa: F401  (these register their operations)
from fedtailor.models.pytorch.operations import (
    OPERATIONS,
    DependsOnValues,
    MissingOperation,
    Operation,
    Ref,
    Unsupported,
)
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.program import Constants, Head, ModuleProgram
from fedtailor.models.pytorch.randomness import RANDOM
from fedtailor.models.pytorch.sequences import RECURRENT
from fedtailor.models.pytorch.shapes import OVER_EXAMPLES
from fedtailor.models.pytorch.start import (
    COUNTER,
    copy_module,
    first_line,
    owner_of,
    shared_paths,
)

IGNORED = (
    "_assert_scalar",
    "_assert_async",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)
"""Operations that only check something."""


def export_program(module: TorchModuleType, example: Tensor, training: bool) -> Any:
    """The `torch.export.ExportedProgram` of a module, for batches of any size. It has no
    in-place operations: buffers that change are outputs.

    Raises:
        Unsupported: the module cannot be exported.
    """
    torch = pytorch()

    # The batch has three rows, as PyTorch would take a size of 1 for a constant.
    module = copy_module(module).train(training)
    rows = torch.cat([example[:1]] * 3)

    def export_program(strict: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the insides of PyTorch's own layers
            program = torch.export.export(
                module,
                (rows,),
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                strict=strict,
            )
            inline_regions(program.graph_module)
            return program.run_decompositions({})

    try:
        with _shapes_of_first_steps() as layers:
            program = export_program(strict=False)
        kept = any(name_of(node) in RECURRENT for node in program.graph.nodes)
        return program if kept or not layers else export_program(strict=False)
    except Unsupported:
        raise
    except Exception as error:  # PyTorch raises many kinds, with pages of advice
        if "data-dependent" in str(error):
            raise DependsOnValues(
                "what its code does depends on values (an if, a loop, .item() or the"
                f" number of rows that a mask selects){_place(error)}"
            ) from None
        if "specialized" not in str(error):
            raise Unsupported(
                f"torch.export cannot trace it ({first_line(error)}){_place(error)}"
            ) from None
    # `len(x)` makes the size of the batch a number. The strict mode, which analyses the
    # module's Python code, still takes it for a variable.
    try:
        return export_program(strict=True)
    except Exception:
        raise Unsupported(
            "its code works for one size of batch only: it loops over examples, say, or"
            " has a number instead of x.shape[0]"
        ) from None


@contextmanager
def _shapes_of_first_steps() -> Iterator[list[Any]]:
    """Inside, PyTorch finds the shapes of what a recurrent layer gives from the first step
    of its loop over time. It would trace all steps, four times for a module, which takes
    most of the time of its conversion.

    Yields:
        The layers that were shortened. A program is right only if it has them, not their
        steps.
    """
    layers: list[Any] = []
    decompositions: Any = import_module("torch._decomp.decompositions")
    run_layers: Any = getattr(decompositions, "_rnn_helper", None)

    def of_first_step(layer: Any) -> Any:
        def run(x: Any, *args: Any, **kwargs: Any) -> Any:
            if x.dim() != 3:  # packed sequences are [steps and examples, inputs]
                return layer(x, *args, **kwargs)
            layers.append(layer)
            outputs, states = layer(x[:1], *args, **kwargs)
            return pytorch().cat([outputs] * int(x.shape[0])), states

        return run

    def run_first_steps(*args: Any) -> Any:
        *others, layer = args
        return run_layers(*others, of_first_step(layer))

    if run_layers is None:  # another release of PyTorch
        yield layers
        return
    decompositions._rnn_helper = run_first_steps
    try:
        yield layers
    finally:
        decompositions._rnn_helper = run_layers


def _place(error: Exception) -> str:
    """The line of the module's own code in which an error was raised; "" = unknown."""
    libraries = (str(Path(pytorch().__file__).parent), str(Path(__file__).parent))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.line and not frame.filename.startswith(libraries):
            return f", in `{frame.line}`"
    return ""


def inline_regions(graph_module: Any) -> None:
    """Put the operations of `with torch.no_grad():`, which `torch.export` keeps as a
    module of their own, instead of its call. What they read is detached.

    Raises:
        Unsupported: a region computes gradients, or in another precision.
    """
    torch = pytorch()
    graph = graph_module.graph
    for call in list(graph.nodes):
        kind = getattr(call.target, "__name__", "") if call.op == CALL else ""
        if kind == "wrap_with_set_grad_enabled":
            enabled, region, *inputs = call.args
            if enabled:
                raise Unsupported(
                    "it has torch.enable_grad() inside of torch.no_grad()"
                )
        elif kind == "wrap_with_autocast":
            _, _, enabled, _, region, *inputs = call.args
            if enabled:
                raise Unsupported("it computes in a lower precision (torch.autocast)")
        else:
            continue
        body = getattr(graph_module, region.target)
        inline_regions(body)
        values: dict[Any, Any] = {}
        with graph.inserting_before(call):
            if kind == "wrap_with_set_grad_enabled":
                detach = torch.ops.aten.detach.default
                inputs = [
                    graph.call_function(detach, (node,)) if _is_tensor(node) else node
                    for node in inputs
                ]
            given = iter(inputs)
            for node in body.graph.nodes:
                if node.op == "placeholder":
                    values[node] = next(given)
                elif node.op == "get_attr":
                    name = f"{region.target}_{node.target}"
                    setattr(graph_module, name, getattr(body, node.target))
                    values[node] = graph.get_attr(name)
                elif node.op == CALL:
                    values[node] = graph.node_copy(node, values.__getitem__)
        results = next(node for node in body.graph.nodes if node.op == "output").args[0]
        for reader in list(call.users):  # each takes one of the results
            reader.replace_all_uses_with(values[results[reader.args[1]]])
            graph.erase_node(reader)
        graph.erase_node(call)
    graph_module.recompile()


CALL = "call_function"


def _is_tensor(node: Any) -> bool:
    """Whether a node of a graph gives a tensor."""
    torch = pytorch()
    return isinstance(node, torch.fx.Node) and isinstance(
        node.meta.get("val"), torch.Tensor
    )


def convert(
    program: Any, module: TorchModuleType, statistics: Sequence[str]
) -> ModuleProgram:
    """The program that `export_program` found, as operations of `OPERATIONS`.

    Args:
        program: what `export_program` returned.
        module: what it exported.
        statistics: the paths of the running statistics.

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
    updates = _updates(program)
    # Tied layers have one parameter with several paths.
    first_paths = shared_paths(module)
    paths = {name: first_paths.get(path, path) for name, path in paths.items()}
    # Training does not change buffers that are not statistics, parameters without a
    # gradient, and tensors in the module's code.
    constants = {}
    for name, path in paths.items():
        is_fixed_buffer = name in signature.inputs_to_buffers and path not in statistics
        is_frozen = (
            name in signature.inputs_to_parameters and not tensors[path].requires_grad
        )
        if is_fixed_buffer or is_frozen:
            constants[name] = path
    constants |= signature.inputs_to_lifted_tensor_constants
    inputs, outputs = signature.user_inputs, signature.user_outputs
    if len(outputs) != 1 or len(inputs) != 1:
        raise Unsupported(
            f"it takes {len(inputs)} inputs and gives {len(outputs)} outputs; have it give"
            " one tensor, and name several inputs: example_input={'ids': ids, 'mask': mask}"
        )
    batch = _size_of_batch(program)
    used = _used(graph, {outputs[0], *(name for _, name in updates)})
    operations = [
        _operation(node, batch)
        for node in graph.nodes
        if node.op == CALL and node.name in used
    ]
    shapes = {name: tuple(tensors[path].shape) for name, path in paths.items()}
    trained = {name: path for name, path in paths.items() if name not in constants}
    rows = [node.name for node in graph.nodes if _first_axis(node) == batch]
    modules = {node.name: _modules_around(node) for node in graph.nodes}
    arrays = {}
    for name, path in constants.items():
        if name in used:
            arrays[name] = tensors[path].detach().numpy().copy()
    return ModuleProgram(
        tuple(fuse(operations, shapes)),
        tuple(trained.items()),
        Constants(arrays),
        inputs[0],
        Ref(outputs[0]),
        updates,
        find_head(operations, trained, shapes, inputs[0], rows, modules),
    )


def _updates(program: Any) -> tuple[tuple[str, str], ...]:
    """The running statistics, which are the buffers that the program changes: the path of
    each, and the name of its new value. BatchNorm's counters are left out.
    """
    changed = program.graph_signature.buffers_to_mutate
    return tuple(
        sorted(
            (path, name) for name, path in changed.items() if not path.endswith(COUNTER)
        )
    )


def _size_of_batch(program: Any) -> str:
    """The symbol that stands for the number of examples in the shapes of a program."""
    name = program.graph_signature.user_inputs[0]
    node = next(node for node in program.graph.nodes if node.name == name)
    return _first_axis(node)


def _first_axis(node: Any) -> str:
    """The length of the first axis of a node's tensor; "" if it has none."""
    shape: Any = getattr(node.meta.get("val"), "shape", ())
    return str(shape[0]) if len(shape) else ""


def _modules_around(node: Any) -> set[str]:
    """The paths of the modules in whose code a node is."""
    return {path for path, _ in node.meta.get("nn_module_stack", {}).values()}


def _used(graph: Any, names: set[str]) -> set[str]:
    """The names of all nodes on which some nodes depend, and their own."""
    used = set(names)
    for node in reversed(graph.nodes):
        if node.name in used:
            used.update(value.name for value in node.all_input_nodes)
    return used


def name_of(node: Any) -> str:
    """The name of a node's operation in `OPERATIONS`."""
    if node.op != "call_function":
        return ""
    if not hasattr(node.target, "_schema"):
        return f"python.{node.target.__name__}"
    space, name = node.target._schema.name.split("::")
    return name if space == "aten" else f"{space}.{name}"


def _operation(node: Any, batch: str) -> Operation:
    """A node of the graph as a call of `OPERATIONS`.

    Args:
        node: of the graph.
        batch: the symbol of the size of the batch.

    Raises:
        Unsupported: it has no counterpart.
    """
    name = name_of(node)
    name = "nothing" if name in IGNORED else name
    if name not in OPERATIONS:
        raise MissingOperation(
            f"its operation {name!r} has no counterpart in"
            " fedtailor.models.pytorch.operations"
        )
    positional, named = _arguments(node)
    kwargs = {
        key: _argument(value)
        for key, value in named.items()
        if key not in _MEMORY_ARGUMENTS
    }
    if name in OVER_EXAMPLES:
        kwargs |= _axes_of_batch(node, batch)
    return Operation(
        node.name,
        name,
        tuple(map(_argument, positional)),
        tuple(sorted(kwargs.items())),
    )


def _arguments(node: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a node; those that PyTorch allows by position are, as their names
    are PyTorch's.
    """
    args, kwargs = list(node.args), dict(node.kwargs)
    if not hasattr(node.target, "_schema") or name_of(node) in OVER_EXAMPLES:
        return args, kwargs
    places = [a for a in node.target._schema.arguments if not a.kwarg_only]
    last = max((i for i, a in enumerate(places) if a.name in kwargs), default=-1)
    for argument in places[len(args) : last + 1]:
        args.append(kwargs.pop(argument.name, argument.default_value))
    return args, kwargs


def _axes_of_batch(node: Any, batch: str) -> dict[str, Any]:
    """The argument that tells a reduction along which of its axes examples lie."""
    shape = node.args[0].meta["val"].shape
    reduced = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if reduced is None or reduced == []:
        reduced = range(len(shape))
    axes = [axis % len(shape) for axis in reduced]
    examples = tuple(axis for axis in axes if str(shape[axis]) == batch)
    return {"examples": examples} if examples else {}


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
    relu, pool = (second, third) if second.name == "relu" else (third, second)
    kind = {"max_pool2d": "max", "avg_pool2d": "average"}.get(pool.name)
    if kind is None or relu.name != "relu":
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
    """The names of all values that an operation reads, in nested arguments, too."""
    pending: list[Any] = [*operation.args, *(value for _, value in operation.kwargs)]
    while pending:
        value = pending.pop()
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple):
            pending += value


# properties of programs
# --------------------------------------------------------------------------------------

NORMS = (
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "rms_norm",
)
"""Operations of normalisation layers."""
DENSE = {"linear": (0, 1, 2), "addmm": (1, 2, 0), "mm": (0, 1), "matmul": (0, 1)}
"""Operations of dense layers: the places of input, weight and bias in their arguments."""
SIZES = ("sym_size", "python.mul", "python.add", "python.sub", "python.floordiv")
"""Operations that give numbers."""


def is_mixing(program: ModuleProgram) -> bool:
    """Whether an example changes what the others of its batch give, but for batch
    normalisation.
    """
    return any(
        name == "examples"
        for operation in program.operations
        for name, _ in operation.kwargs
    )


def has_randomness(training: ModuleProgram, evaluation: ModuleProgram) -> bool:
    """Whether training differs from evaluation by more than statistics."""
    if any(map(_is_random, training.operations)):
        return True
    if training.statistics:
        return False
    return _unnamed(training) != _unnamed(evaluation)


def _is_random(operation: Operation) -> bool:
    """Whether an operation draws random numbers."""
    name, args = operation.name, operation.args
    if name in RANDOM:
        return True
    if name == "native_dropout":
        return args[1] > 0 and args[2] is not False
    if name in RECURRENT:
        return args[5] > 0 and args[6]
    if name == "scaled_dot_product_attention":
        rate = args[4] if len(args) > 4 else dict(operation.kwargs).get("dropout_p", 0)
        return rate > 0
    return False


def _unnamed(program: ModuleProgram) -> list[Any]:
    """The operations with numbers instead of names, without copies."""
    number: dict[str, Any] = {name: path for name, path in program.names}

    def unnamed(value: Any) -> Any:
        if isinstance(value, Ref):
            return ("value", number.get(value.name, value.name))
        return tuple(map(unnamed, value)) if isinstance(value, tuple) else value

    operations = []
    for index, operation in enumerate(program.operations):
        if operation.name == "clone":
            source = operation.args[0]
            number[operation.output] = number.get(source.name, source.name)
            continue
        name = "view" if operation.name == "_unsafe_view" else operation.name
        args = operation.args
        if name in RECURRENT:  # without their training flag, as there is no dropout
            args = (*args[:6], None, *args[7:])
        operations.append((name, unnamed(args), unnamed(operation.kwargs)))
        number[operation.output] = index
    return operations


def layer_order(program: ModuleProgram) -> tuple[str, ...]:
    """The modules that own parameters, in the order of their last use."""
    names = dict(program.names)
    used = [
        names[name].rpartition(".")[0]
        for operation in program.operations
        for name in _refs(operation)
        if name in names
    ]
    return tuple(dict.fromkeys(reversed(used)))[::-1]


def norms_of(program: ModuleProgram) -> tuple[str, ...]:
    """The normalisation layers that have parameters."""
    names = dict(program.names)
    modules = []
    for operation in program.operations:
        if operation.name in NORMS:
            modules += [
                names[name].rpartition(".")[0]
                for name in list(_refs(operation))
                if name in names
            ]
    return tuple(dict.fromkeys(modules))


def find_head(
    operations: Sequence[Operation],
    paths: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    inputs: str,
    rows: Sequence[str],
    modules: Mapping[str, Container[str]],
) -> Head | None:
    """The last dense layer: the last operation with a matrix of trained parameters, or
    with one that is computed from these, if it is a dense one.

    Args:
        operations: in the order in which they run.
        paths: name in the operations -> path, of trained parameters and statistics.
        shapes: name of a parameter -> its shape.
        inputs: the name of the input.
        rows: the names of the values that have one row for each example.
        modules: name of a value -> the paths of the modules inside of which it is
            computed.

    Returns:
        None if there is none, if it has no row for each example, or if it shares its
        weight with another layer.
    """
    # What each value is computed from: trained parameters, by name, and maybe the input.
    sources: dict[str, frozenset[str]] = {name: frozenset([name]) for name in paths}
    sources[inputs] = frozenset([inputs])
    layers = []  # operations on what comes from the input with matrices of parameters
    for operation in operations:
        read = [sources.get(name, frozenset()) for name in _refs(operation)]
        sources[operation.output] = frozenset().union(*read)
        matrices = set()
        for names in read:
            if inputs not in names:
                matrices |= {paths[name] for name in names if len(shapes[name]) > 1}
        if matrices and inputs in sources[operation.output]:
            layers.append((operation, matrices))
    if not layers or layers[-1][0].name not in DENSE:
        return None
    last, matrices = layers[-1]
    if any(matrices & others for _, others in layers[:-1]):
        return None
    places = [last.args[place] for place in DENSE[last.name] if place < len(last.args)]
    taken, weight, *bias = [value for value in places if isinstance(value, Ref)]
    if taken.name not in rows or inputs not in sources[taken.name]:
        return None
    module = _common_module(sorted(matrices))
    inside = [one for one in operations if module in modules[one.output]]
    sizes = {one.output for one in operations if one.name in SIZES}
    entering = {
        name
        for operation in inside
        for name in _refs(operation)
        if inputs in sources.get(name, ()) and module not in modules[name]
    } - sizes
    if last in inside and module and len(entering) == 1 and entering <= set(rows):
        return Head(module, entering.pop())
    # Its parameters are those of a module that does more.
    own_paths = {paths[name] for name in sources[weight.name]}
    for value in bias:
        own_paths |= {paths[name] for name in sources[value.name]}
    for path in paths.values():
        is_inside = path.startswith(f"{module}.") or not module
        if is_inside and path not in own_paths:
            return Head(min(matrices), taken.name) if len(matrices) == 1 else None
    return Head(module, taken.name)


def _common_module(paths: Sequence[str]) -> str:
    """The innermost module that has all of these parameters."""
    modules = [owner_of(path).split(".") for path in paths]
    common = modules[0]
    while any(module[: len(common)] != common for module in modules):
        common = common[:-1]
    return ".".join(common)
