"""`bind`: an architecture becomes the model of a federation; what is none of these is
said in one line.
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
    homes = [base.__module__ for base in kind.__mro__]
    said = next(
        (
            said
            for home, said in OF_OTHERS.items()
            if any(_within(it, home) for it in homes)
        ),
        None,
    )
    if (
        said is None
        and _within(getattr(model, "__module__", None) or "", "fedtailor.models")
        and callable(model)
    ):
        said = (
            "a function; call it:"
            f" fedtailor.models.{getattr(model, '__name__', 'mlp')}()"
        )
    raise ValueError(
        "the model is"
        f" {said or _named(model) + '; fedtailor.models makes models, such as mlp(64)'}"
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
    said = f"the method is {_named(algorithm)}; give one such as fedtailor.FedAvg()"
    require(isinstance(algorithm, Algorithm), said)


def require_federation(federation: object) -> None:
    """Refuse what is no federation.

    Raises:
        ValueError: it is none.
    """
    said = (
        f"the federation is {_named(federation)}; make one with"
        " fedtailor.federation.from_arrays, or of a table with"
        " fedtailor.tables.from_table"
    )
    require(isinstance(federation, Federation), said)


def _named(value: Any) -> str:
    """What somebody gave, in a message: texts and small values as they are, of others
    their kind.
    """
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"of the kind {type(value).__name__}"
    )


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
