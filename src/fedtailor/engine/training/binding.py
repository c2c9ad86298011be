"""`bind` turns an architecture into the model of a federation. An argument of a wrong type
raises an error that says in one line what to pass instead.
"""

from typing import Any

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation
from fedtailor.models import Architecture, Model
from fedtailor.models.architecture import InPrecision
from fedtailor.models.survival import ProportionalHazards
from fedtailor.models.tasks import DiscreteTime, Task, default_loss, task_of
from fedtailor.protocol import Algorithm, Pipeline, Transform
from fedtailor.protocol.hyperparameters import require_decorated

OTHER_LIBRARIES = {
    "torch.nn": "a PyTorch module; wrap it with fedtailor.models.from_torch",
    "equinox": (
        "an Equinox module; give what makes it to fedtailor.models.from_equinox, with"
        " its arguments"
    ),
    "flax.linen": "a Flax module; wrap it with fedtailor.models.from_linen",
    "flax.nnx": (
        "an NNX module; write it as a flax.linen or an Equinox module, which"
        " fedtailor.models wraps"
    ),
    "sklearn": (
        "a scikit-learn estimator, which is not trained in rounds; take"
        " fedtailor.models.logistic() or mlp()"
    ),
    "keras": (
        "a Keras model; write it as a flax.linen, Equinox or PyTorch module, which"
        " fedtailor.models wraps"
    ),
}
"""Package of another library -> how the error message names a model of that package, and
what to do with it."""


def bind(model: Model | Architecture, federation: Federation) -> Model:
    """The model for a federation's inputs and targets.

    Returns:
        A model for the federation's task, such as a classification of its classes or a
        regression of its targets; a `Model` is returned unchanged.

    Raises:
        ValueError: an argument has a wrong type, or the model does not take such
            inputs.
    """
    require_federation(federation)
    require_model(model)
    network = model.architecture if isinstance(model, Model) else model
    require_inputs(network, federation)
    if isinstance(model, Model):
        return model
    precision: Any = "float32"
    if isinstance(model, InPrecision):
        model, precision = model.inner, model.precision
    loss = federation.loss
    if loss is None:
        loss = default_loss(federation.classes)
    require(
        federation.classes is None or isinstance(loss, Task),
        "the data have classes, and their loss is a function, which would be that of a"
        " regression: give fedtailor.models.Classification(loss), or classes=None",
    )
    if isinstance(loss, DiscreteTime) and loss.start:
        # A model of an earlier run starts again, at the log-odds of these rows.
        inner = model.inner if isinstance(model, ProportionalHazards) else model
        model = ProportionalHazards(inner, loss.start)
    require_known_tokens(model, federation)
    outputs = task_of(loss).outputs(federation.classes, federation.y.shape[1:])
    return model.in_precision(precision).bind(
        federation.input_shape, outputs, loss=loss
    )


def require_inputs(model: Architecture, federation: Federation) -> None:
    """Refuse a network for other inputs than those of the federation, if an example has
    several.

    Raises:
        ValueError: with what is missing, surplus or of another shape.
    """
    taken, given = model.inputs, federation.inputs
    if taken is not None and given is not None and (wrong := taken.difference(given)):
        raise ValueError(wrong)


def require_known_tokens(model: Architecture, federation: Federation) -> None:
    """Refuse token ids that a network does not know.

    Raises:
        ValueError: with the first of them.
    """
    known, x = model.known_tokens, federation.x
    if known is None or x.dtype.kind not in "iu" or not x.size:
        return
    worst = int(x.max()) if x.min() >= 0 else int(x.min())
    require(
        0 <= worst < known,
        f"the inputs have the token {worst}, and the network knows 0 to {known - 1}; take"
        " the tokenizer that belongs to it",
    )


def require_model(model: object) -> None:
    """Refuse an argument that is not a model.

    Raises:
        ValueError: the argument is not a model; the message says what to do instead.
    """
    if isinstance(model, Model | Architecture):
        return
    kind = model if isinstance(model, type) else type(model)
    # The class of a user's own module is defined in the user's file. The library is among
    # its base classes.
    modules = [base.__module__ for base in kind.__mro__]
    for package, advice in OTHER_LIBRARIES.items():
        if any(_within(module, package) for module in modules):
            raise ValueError(f"the model is {advice}")
    defining_module = getattr(model, "__module__", None) or ""
    if callable(model) and _within(defining_module, "fedtailor.models"):
        raise ValueError(
            "the model is a function; call it:"
            f" fedtailor.models.{getattr(model, '__name__', 'mlp')}()"
        )
    raise ValueError(
        f"the model is {describe_argument(model)}; fedtailor.models makes models, such as"
        " mlp(64)"
    )


def require_algorithm(algorithm: object) -> None:
    """Refuse an argument that is not a method.

    Raises:
        ValueError: the argument is not an `Algorithm`, or its class is not decorated.
    """
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        raise ValueError(
            f"the method is the class {algorithm.__name__}; make one of it:"
            f" {algorithm.__name__}()"
        )
    require(
        isinstance(algorithm, Algorithm),
        f"the method is {describe_argument(algorithm)}; give one such as fedtailor.FedAvg()",
    )
    require_decorated(type(algorithm))


def require_federation(federation: object) -> None:
    """Refuse an argument that is not a federation.

    Raises:
        ValueError: the argument is not a `Federation`.
    """
    require(
        isinstance(federation, Federation),
        f"the federation is {describe_argument(federation)}; make one with"
        " fedtailor.data.federation.from_arrays, or of a table with"
        " fedtailor.data.tables.from_table",
    )


def as_pipeline(transforms: Transform | Pipeline, name: str) -> Pipeline:
    """The pipeline of an argument, which may be a single transform.

    Args:
        transforms: the argument.
        name: of the argument, "uplink" or "downlink".

    Raises:
        ValueError: it is not a pipeline, or the class of a transform is not decorated.
    """
    if isinstance(transforms, Transform):
        transforms = (transforms,)
    is_sequence = isinstance(transforms, list | tuple)
    require(
        is_sequence and all(isinstance(each, Transform) for each in transforms),
        f"{name} is {transforms!r}; give transforms of fedtailor.aggregation.pipelines, such as"
        f" {name}=(Clip(1.0),)",
    )
    for transform in transforms:
        require_decorated(type(transform))
    return tuple(transforms)


def describe_argument(value: Any) -> str:
    """Describe a wrong argument: strings and numbers by their value, everything else by
    its type.
    """
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of the kind {type(value).__name__}"


def _within(module: str, package: str) -> bool:
    """Whether a module is a package or belongs to it, by their dotted names."""
    return module == package or module.startswith(f"{package}.")
