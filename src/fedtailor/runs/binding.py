"""`bind`: an architecture becomes the model of a federation; a wrong kind of argument
ends in one line that says what to give instead.
"""

from typing import Any

import numpy as np

from fedtailor.federation import Federation
from fedtailor.models import Architecture, Model, cross_entropy, squared_error
from fedtailor.protocol import Algorithm, require

OF_OTHERS = {
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
"""Where classes of other libraries are defined, and what to do with such an object."""


def bind(model: Model | Architecture, federation: Federation) -> Model:
    """The model for a federation's inputs and targets.

    Returns:
        A classification of its classes, or a regression of its targets; a `Model` is
        returned as it is.

    Raises:
        ValueError: one of both is something else, or the model does not take such
            inputs.
    """
    require_federation(federation)
    require_model(model)
    if isinstance(model, Model):
        return model
    if federation.classes is not None:
        return model.bind(
            federation.input_shape, federation.classes, loss=cross_entropy
        )
    targets = int(np.prod(federation.y.shape[1:], dtype=int))
    return model.bind(federation.input_shape, targets, loss=squared_error)


def require_model(model: object) -> None:
    """Refuse what is no model, with what to do instead.

    Raises:
        ValueError: it is none.
    """
    if isinstance(model, Model | Architecture):
        return
    kind = model if isinstance(model, type) else type(model)
    # A user's own module is defined in the user's file: the library stands further down
    # among its base classes.
    modules = [base.__module__ for base in kind.__mro__]
    for package, advice in OF_OTHERS.items():
        if any(_within(module, package) for module in modules):
            raise ValueError(f"the model is {advice}")
    own_module = getattr(model, "__module__", None) or ""
    if callable(model) and _within(own_module, "fedtailor.models"):
        raise ValueError(
            "the model is a function; call it:"
            f" fedtailor.models.{getattr(model, '__name__', 'mlp')}()"
        )
    raise ValueError(
        f"the model is {_describe(model)}; fedtailor.models makes models, such as"
        " mlp(64)"
    )


def require_algorithm(algorithm: object) -> None:
    """Refuse what is no method.

    Raises:
        ValueError: it is none.
    """
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        raise ValueError(
            f"the method is the class {algorithm.__name__}; make one of it:"
            f" {algorithm.__name__}()"
        )
    require(
        isinstance(algorithm, Algorithm),
        f"the method is {_describe(algorithm)}; give one such as fedtailor.FedAvg()",
    )


def require_federation(federation: object) -> None:
    """Refuse what is no federation.

    Raises:
        ValueError: it is none.
    """
    require(
        isinstance(federation, Federation),
        f"the federation is {_describe(federation)}; make one with"
        " fedtailor.federation.from_arrays, or of a table with"
        " fedtailor.tables.from_table",
    )


def _describe(value: Any) -> str:
    """A wrong argument in a message: strings and numbers as they are, of everything
    else the type.
    """
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of the kind {type(value).__name__}"


def _within(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it, by their dotted names."""
    return module == package or module.startswith(f"{package}.")
