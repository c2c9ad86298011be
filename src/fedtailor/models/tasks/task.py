"""`Task`: what a model is to predict, as one value.

A new task is one file in this folder: a subclass of `Task`, and the losses that files
name, which `register` adds. For example, counts with Poisson's loss:

    @dataclass(frozen=True)
    class Poisson(Regression):
        def __call__(self, outputs, y):
            log_rates = outputs.reshape(len(outputs), -1)
            counts = y.reshape(log_rates.shape).astype(outputs.dtype)
            return (jnp.exp(log_rates) - counts * log_rates).sum(-1)

        def predict(self, outputs):
            return np.exp(outputs)

    poisson = register("poisson", Poisson())
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.entry_points import find_registered, register_class
from fedtailor._base.printable import name_of
from fedtailor.protocol import along_axis

LossFunction = Callable[[Array, Array], Array]
"""(outputs [b, ...], targets [b, ...]) -> loss of each example [b]. It must be hashable, so
that equal models share compiled programs. A `Task` is one; any other function is that of a
regression.
"""

Decode = Callable[[NDArray[Any]], Sequence[Any] | NDArray[Any]]
"""Class numbers or targets of a model [n, ...] -> the user's labels or targets [n, ...]."""

ENTRY_POINTS = "fedtailor.losses"
"""The group of entry points in which other packages offer losses, each under its name."""

L = TypeVar("L", bound=LossFunction)

_LOSSES: dict[str, LossFunction] = {}


@dataclass(frozen=True)
class Task(ABC):
    """Base of all tasks: the loss of a model, and all that follows from what its outputs
    mean.

    Subclass it as a frozen dataclass and write `__call__`; the other methods are those of
    predicted numbers. Tasks with equal fields are equal, and share compiled programs. A
    subclass that sets `name` is found by it in files.

    Attributes:
        name: of the kind of task.
        predicts_classes: whether outputs are class scores [b, classes] whose softmax is
            the prediction, and targets are class numbers [b].
        metrics: names of the metrics that are measured in all runs.
        metrics_of_tables: names of the metrics that judge models of a table,
            unless the user asks for others: those in the unit of its target.
        couples_examples: whether the loss of an example depends on the others of its
            batch, which is then never cut.
    """

    name: ClassVar[str]
    predicts_classes: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    metrics_of_tables: ClassVar[tuple[str, ...]] = ()
    couples_examples: ClassVar[bool] = False
    registry: ClassVar[dict[str, type["Task"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_class(Task.registry, cls.__name__, cls, "task")

    # training
    # ----------------------------------------------------------------------------------

    @abstractmethod
    def __call__(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        """The loss of each example (traced)."""

    def losses(
        self,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"] | None = None,
    ) -> Float[Array, " b"]:
        """The loss of each example of a batch with padding (traced).

        Args:
            outputs: the model's outputs.
            y: targets.
            weight: 1 for an example, 0 for padding, whose loss is not used; None = no
                padding. Only losses that couple examples need it.
        """
        return self(outputs, y)

    def outputs(self, classes: int | None, target_shape: tuple[int, ...]) -> int:
        """How many outputs a model needs.

        Args:
            classes: the number of classes or symbols of the data, if they have any.
            target_shape: the shape of one example's targets.
        """
        return int(np.prod(target_shape, dtype=int))

    def check_outputs(
        self, shape: tuple[int, ...], examples: int, outputs: int
    ) -> None:
        """Refuse a network whose outputs [b, ...] are not what this task needs.

        Raises:
            ValueError: the shape is wrong; the message says what to do.
        """
        return

    # evaluation
    # ----------------------------------------------------------------------------------

    def main_metric(self, has_inputs: bool) -> str:
        """The name of the metric that clients are compared by."""
        return "loss"

    def weights(
        self, y: Shaped[Array, "b ..."], weight: Float[Array, " b"]
    ) -> Float[Array, "b ..."]:
        """The weight of each of an example's targets: 0 for padding (traced)."""
        return jnp.broadcast_to(along_axis(weight, 0, y.ndim), y.shape)

    def row_scores(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> dict[str, Shaped[Array, "b ..."]]:
        """What is kept of each test row in addition to its loss, by column (traced)."""
        return {}

    def in_units(
        self, scores: Mapping[str, NDArray[Any]], shift: float, scale: float
    ) -> dict[str, NDArray[Any]]:
        """`row_scores` in the user's unit, in which targets are y * scale + shift."""
        return dict(scores)

    def baseline(
        self,
        y_train: Shaped[np.ndarray, "n ..."],
        y_test: Shaped[np.ndarray, "t ..."],
        outputs: int,
    ) -> dict[str, float]:
        """The metrics of the best prediction that ignores the inputs, by name; NaN where
        one is not defined. Metrics that are left out have no such baseline.
        """
        return {}

    # models in use
    # ----------------------------------------------------------------------------------

    def describe(self, outputs: int) -> str:
        """What a model with this number of outputs predicts, for messages."""
        return f"the task {self.name!r}"

    def predict(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """The predictions of outputs [n, ...]: class numbers or targets."""
        return outputs

    def probabilities(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Class probabilities [n, classes] of outputs.

        Raises:
            ValueError: the task has no classes.
        """
        raise ValueError("this model does not predict classes; use outputs(x)")

    def prediction_columns(
        self, outputs: NDArray[Any], decode: Decode, *, probabilities: bool
    ) -> dict[str, Any]:
        """The columns of a table of predictions, in the user's words and units.

        Args:
            outputs: of n rows.
            decode: converts class numbers or targets to those of the user.
            probabilities: whether the probability of every class is asked for.

        Raises:
            ValueError: the task has no probabilities.
        """
        require(
            not probabilities,
            "these models predict no classes: there are no probabilities",
        )
        predictions = self.predict(outputs)
        # [targets, rows]
        targets = np.asarray(decode(predictions.reshape(len(predictions), -1))).T
        names = ["prediction"]
        if len(targets) > 1:
            names = [f"prediction {number + 1}" for number in range(len(targets))]
        return dict(zip(names, targets, strict=True))


# losses in files
# --------------------------------------------------------------------------------------


def register(name: str, loss: L) -> L:
    """Register a loss under a name, so that files can refer to it.

    Raises:
        ValueError: the name is taken by another loss.
    """
    require(
        _LOSSES.setdefault(name, loss) == loss,
        f"there is a loss {name!r} already; choose another name",
    )
    return loss


def registered_losses() -> dict[str, LossFunction]:
    """All registered losses by name, in the order of registration."""
    return dict(_LOSSES)


def find_loss(name: str) -> LossFunction:
    """The loss of that name.

    Raises:
        ValueError: neither fedtailor nor an installed package has such a loss, or the
            package's is broken.
    """
    return find_registered(_LOSSES, name, "loss", ENTRY_POINTS)


def plain_loss(loss: LossFunction) -> Any:
    """A loss as a value of TOML or JSON: its name if it is registered, or the settings
    of its task.
    """
    for name, registered in _LOSSES.items():
        if registered == loss:
            return name
    return _settings(loss)


def loss_of(plain: Any) -> LossFunction:
    """The loss that `plain_loss`, or the manifest of a run, describes.

    Raises:
        ValueError: only the user's code knows it.
    """
    for name, loss in _LOSSES.items():
        if plain in (name, _settings(loss)):
            return loss
    if isinstance(plain, str) and plain.isidentifier():
        return find_loss(plain)
    task = _task_of(plain) if isinstance(plain, Mapping) else None
    if task is not None:
        return task
    raise ValueError(f"the loss {plain!r} is one that only your code knows")


def _task_of(settings: Mapping[str, Any]) -> Task | None:
    """The task with these settings; None if they do not determine it."""
    kind = Task.registry.get(settings.get("type", ""))
    fields = {}
    for name, value in settings.items():
        # A field that is a function stands there by its name, which is not a function.
        if name != "type" and isinstance(value, str):
            return None
        if name != "type":
            fields[name] = tuple(value) if isinstance(value, list) else value
    try:
        task = None if kind is None else kind(**fields)
    except (TypeError, ValueError):
        return None
    return task if task is not None and _settings(task) == settings else None


def _settings(loss: LossFunction) -> Any:
    """The fields of a task, with names instead of functions; the name of a function."""
    if not isinstance(loss, Task):
        return name_of(loss)
    table: dict[str, Any] = {"type": type(loss).__name__}
    for field in dataclasses.fields(loss):
        value = getattr(loss, field.name)
        if callable(value):
            value = name_of(value)
        if value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def one_for_each(losses: Array, examples: int) -> Array:
    """What a loss of the user's own returned, one number for each example.

    Raises:
        ValueError: it is something else, such as the mean of the batch.
    """
    shape = jnp.shape(losses)
    require(
        shape == (examples,),
        f"the loss returned shape {shape} for a batch of {examples} examples; it must"
        f" return one number for each, shape ({examples},)",
    )
    return losses
