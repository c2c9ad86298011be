"""`Baseline`: a model that is trained by itself, for comparison with the federated methods."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import check_choice, require
from fedtailor._base.entry_points import register_class
from fedtailor.models import Model
from fedtailor.models.tasks import Survival, Task

Predict = Callable[[int, NDArray[Any]], NDArray[Any]]
"""A trained baseline. From the position of a client and inputs [n, d] it makes the
logarithms of the classes' probabilities [n, classes], predicted targets [n], or a survival
model's outputs [n, outputs].
"""


@dataclass(frozen=True)
class Problem:
    """What a baseline is trained on: the training rows of all clients that train.

    Attributes:
        x: for each client its inputs [n_c, d].
        y: for each client its class numbers or targets [n_c], or times and events [n_c, 2].
        classes: number of classes; None for other targets.
        seed: seed of everything random.
        val_x, val_y: likewise of the validation rows; some baselines choose their
            number of trees with them; empty = there are none.
        task: what is predicted; None = classes, or numbers.
        names: the clients' names; empty = they have none.
        weights: how much each training row counts [n_c]; empty = all the same.
        val_weights: likewise of the validation rows.
    """

    x: Sequence[Float[NDArray, "n d"]]
    y: Sequence[NDArray[Any]]
    classes: int | None
    seed: int
    val_x: Sequence[NDArray[Any]] = ()
    val_y: Sequence[NDArray[Any]] = ()
    task: Task | None = None
    names: Sequence[str] = ()
    weights: Sequence[Float[NDArray, " n"]] = ()
    val_weights: Sequence[Float[NDArray, " n"]] = ()

    def __len__(self) -> int:
        return len(self.x)

    def weights_of(self, client: int) -> NDArray[np.float64] | None:
        """The weights of a client's training rows [n_c]; None = all the same."""
        return self.weights[client] if self.weights else None


@dataclass(frozen=True)
class KeptModels:
    """Models of a baseline that can be kept, exported and used like those of a method.

    Attributes:
        model: the network.
        vectors: for each client that trained, its model [d].
        shared: the model [d] of clients that did not train; None = they have none.
        chosen: what was chosen on validation rows, by name, for `Baseline.with_choices`.
    """

    model: Model
    vectors: Sequence[Any]
    shared: Any
    chosen: Mapping[str, Any]


class Baseline(ABC):
    """Base of all baselines. A subclass that sets `name` registers itself.

    Class variables:
        name: its name in options and files.
        title: its name in tables.
        needs_pooled_data: whether all clients' rows have to lie in one place.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs_pooled_data: ClassVar[bool]
    is_linear: ClassVar[bool] = False
    """Whether its predictions are linear in the inputs (before a softmax)."""
    is_alone: ClassVar[bool] = False
    """Whether each client trains on its own rows only."""
    over_machines: ClassVar[bool] = False
    """Whether clients can train it where their rows are: alone, or by messages of a job."""
    by_default: ClassVar[bool] = True
    """Whether a comparison trains it without being asked."""
    keeps_models: ClassVar[bool] = False
    """Whether its models can be kept and refitted (`keep`, `with_choices`)."""
    about: ClassVar[str] = ""
    """What is trained and what travels, in sentences, for the card of a kept model."""
    registry: ClassVar[dict[str, type["Baseline"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            register_class(Baseline.registry, cls.name, cls, "baseline")

    def title_for(self, classes: int | None) -> str:
        """Its name in tables, where that depends on what is predicted."""
        return self.title

    def applies(self, task: Task) -> bool:
        """Whether it is for such targets: classes and numbers, unless it says else."""
        return not isinstance(task, Survival)

    @abstractmethod
    def fit(self, problem: Problem) -> Predict:
        """Train it.

        Raises:
            ValueError: it cannot be trained on these rows; the message says why.
        """

    def keep(self, fitted: Any, model: Model) -> KeptModels:
        """The models of what `fit` returned, if it `keeps_models`.

        Args:
            fitted: what `fit` returned.
            model: a model of the same inputs and outputs.
        """
        raise NotImplementedError(f"{self.name} keeps no models")

    def with_choices(self, chosen: Sequence[Mapping[str, Any]]) -> "Baseline":
        """This baseline with what several trainings chose, for rows without validation
        rows; if it `keeps_models`.

        Args:
            chosen: `KeptModels.chosen` of each training.
        """
        raise NotImplementedError(f"{self.name} keeps no models")


def require_one_target(problem: Problem) -> None:
    """Require a class or one number for each row.

    Raises:
        ValueError: the targets are several, such as a time and an event.
    """
    require(
        all(np.ndim(y) == 1 or np.shape(y)[1:] == (1,) for y in problem.y),
        "it takes a class or one number for each row",
    )


def baseline_names() -> tuple[str, ...]:
    """The names of all baselines, in the order of tables."""
    for module in ("trees", "scikit_learn", "federated", "cox"):
        # These register their baselines.
        import_module(f"fedtailor.lab.baselines.{module}")
    return tuple(Baseline.registry)


def default_baselines() -> tuple[str, ...]:
    """The names of those that a comparison trains without being asked."""
    return tuple(
        name for name in baseline_names() if Baseline.registry[name].by_default
    )


def find_baseline(name: str) -> Baseline:
    """The baseline of that name.

    Raises:
        ValueError: there is none.
    """
    check_choice(name, baseline_names(), "baseline")
    return Baseline.registry[name]()
