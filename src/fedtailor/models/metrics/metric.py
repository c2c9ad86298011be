"""`Metric`: a number that measures a model on a split, computed from sums over batches.

For example, the share of samples whose correct class is among the k most probable ones:

    @dataclass(frozen=True)
    class TopK(Metric):
        name: ClassVar[str] = "top_k"
        title: ClassVar[str] = "Top-k accuracy"
        unit: ClassVar[Literal["%", "", "target"]] = "%"
        higher_is_better: ClassVar[bool] = True
        tasks = (Classification,)

        k: int = 5

        def applies(self, model):
            return super().applies(model) and model.outputs > self.k

        def statistic(self, model, outputs, y, weight):
            _, classes = jax.lax.top_k(outputs, self.k)
            correct = (classes == y[:, None]).any(axis=1)
            return {"correct": jnp.vdot(correct, weight), "count": weight.sum()}

        def result(self, statistic):
            return float(mean(statistic, "correct"))
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor._base.entry_points import find_registered, register_class
from fedtailor.models import Model
from fedtailor.models.tasks import Task

Statistic = Mapping[str, Shaped[Array | np.ndarray, "..."]]
"""Sums over samples: key -> array, whose shape depends on the model only. The statistic of
the union of two disjoint sets of samples is the sum of their statistics, key by key.
"""

ENTRY_POINTS = "fedtailor.metrics"
"""The group of entry points in which other packages offer subclasses of `Metric`, each
under its name.
"""


@dataclass(frozen=True)
class Metric(ABC):
    """Base of all metrics: subclass it, set the five class variables, write `statistic`
    and `result`.

    A metric is computed in three steps:

    1. For each batch, the client calls `statistic`, which returns sums over the samples
       of the batch. The client adds up the sums of all batches of a split.
    2. The client calls `condense` on the total. The result is sent to the server. By
       default it is the total itself.
    3. The server calls `values`, or `values_of_clients` for many clients at once, which
       return the numbers to store. By default these are `result` alone.

    JAX traces `statistic` and `condense`. The three methods of step 3 run on the host.
    They must accept what `condense` returns, and also a statistic that has not been
    condensed.

    A metric with settings is a frozen dataclass. Metrics of the same class with equal
    settings are equal, and share compiled programs. A subclass that sets `name` registers
    itself.

    Example:
        >>> from fedtailor.models.metrics import find_metric
        >>> find_metric("f1_macro").higher_is_better
        True
    """

    name: ClassVar[str]
    """Its name in files, in settings and on the command line."""
    title: ClassVar[str]
    """Its name in tables and figures."""
    unit: ClassVar[Literal["%", "", "target"]] = ""
    """"%": a share in [0, 1], shown in per cent. "": a number without a unit. "target":
    a number in the unit of the regression's target, such as an error in euros, which is
    converted back if targets were standardised.
    """
    higher_is_better: ClassVar[bool]
    tasks: ClassVar[tuple[type[Task], ...]] = ()
    """The tasks for whose outputs and targets it is defined, their subclasses included."""
    registry: ClassVar[dict[str, type["Metric"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            register_class(Metric.registry, cls.name, cls, "metric")

    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value that the metric can have. A coordinator
        refuses what clients measured if it gives another one.
        """
        return (0.0, 1.0) if self.unit == "%" else (-math.inf, math.inf)

    def can_be(
        self, values: ArrayLike, rounding: float = 1e-6
    ) -> NDArray[np.bool_] | np.bool_:
        """Whether values [...] are within `limits`, up to rounding, or NaN (undefined)."""
        low, high = self.limits()
        values = np.asarray(values)
        is_within = (values >= low - rounding) & (values <= high + rounding)
        return is_within | np.isnan(values)

    def applies(self, model: Model) -> bool:
        """Whether the metric is defined for a model's outputs and targets."""
        return isinstance(model.task, self.tasks)

    @abstractmethod
    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        """Sums over the samples of one batch (traced).

        Args:
            model: the model that was trained, for which `applies` is True.
            outputs: logits or log-probabilities [b, classes], or predicted targets [b,
                ...].
            y: labels [b] or targets [b, ...].
            weight: 1 for a sample, 0 for padding.

        Returns:
            key -> sum. The sums of two batches must add up to those of both together.
        """

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """Reduce a client's statistic to what the server needs (traced).

        Override this if `result` needs much less than the sums, which makes evaluations
        of many clients faster. For example, `ROCAUC` reduces two histograms
        {"of_class", "of_others"} [scores, bins] to {"ordered", "pairs"} [scores].

        Args:
            statistic: the sums over all batches of a split.

        Returns:
            key -> array; by default the statistic itself. The keys must differ from those
            of the statistic if the values do, so that `result` can distinguish the two.
            Condensed statistics are never added.
        """
        return statistic

    @abstractmethod
    def result(self, statistic: Statistic) -> float:
        """The metric of one client (on the host).

        Args:
            statistic: the client's sums over a split, condensed or not.

        Returns:
            The metric in double precision; NaN if it is undefined.
        """

    def values(self, statistic: Statistic) -> dict[str, float]:
        """All numbers to store for one client, by name.

        By default this is `result` alone, under the name of the metric.
        """
        return {self.name: self.result(statistic)}

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        """`values` of many clients, whose statistics are stacked.

        The default calls `values` for one client after another. A metric that can
        compute all clients with the same array operations overrides it, so that a
        thousand clients cost one call.

        Args:
            statistic: key -> [c, ...].

        Returns:
            name -> [c]; NaN for clients without a value of that name.
        """
        num_clients = len(next(iter(statistic.values())))
        # Clients may have values of different names, such as the cells of a confusion
        # matrix that are not empty.
        columns: dict[str, NDArray[np.float64]] = {}
        for client in range(num_clients):
            own = {key: rows[client, ...] for key, rows in statistic.items()}
            for name, value in self.values(own).items():
                if name not in columns:
                    columns[name] = np.full(num_clients, np.nan)
                columns[name][client] = value
        return columns


def find_metric(name: str) -> Metric:
    """The metric of that name, with its default settings.

    Raises:
        ValueError: neither fedtailor nor an installed package has a metric of that
            name, or the package's is broken.

    Example:
        >>> from fedtailor.models.metrics import find_metric
        >>> find_metric("accuracy").name
        'accuracy'
    """
    return find_registered(Metric.registry, name, "metric", ENTRY_POINTS, base=Metric)()


def find_metrics(
    names: str | Metric | Sequence[str | Metric], model: Model
) -> tuple[Metric, ...]:
    """The metrics to measure for a model.

    Args:
        names: names of metrics, for those with their default settings, or metrics; a
            single one need not be in a sequence.
        model: the model that is measured.

    Returns:
        Each metric once, in the order given.

    Raises:
        ValueError: a metric is unknown, not defined for the model, or given twice with
            different settings.

    Example:
        >>> from fedtailor.models.metrics import find_metrics
        >>> [
        ...     metric.name
        ...     for metric in find_metrics(["loss", "accuracy"], run.training.model)
        ... ]
        ['loss', 'accuracy']
    """
    metrics: dict[str, Metric] = {}
    if isinstance(names, str) or not isinstance(names, Sequence):
        names = (names,)
    for name in names:
        require(
            isinstance(name, str | Metric),
            f"the metric {name!r} is neither a name, such as 'roc_auc', nor a metric of"
            " fedtailor.models.metrics",
        )
        metric = find_metric(name) if isinstance(name, str) else name
        require(
            "name" in vars(type(metric)),
            f"the metric {type(metric).__name__} has no `name` of its own, only that of"
            f" {metric.name!r}; give it one",
        )
        if not metric.applies(model):
            choices = ", ".join(_applicable_names(model))
            raise ValueError(
                f"the metric {metric.name!r} is not defined for"
                f" {model.task.describe(model.outputs)}; choose from {choices}"
            )
        if metric.name in metrics and metrics[metric.name] != metric:
            raise ValueError(
                f"the metric {metric.name!r} is asked for twice with different settings"
            )
        metrics[metric.name] = metric
    return tuple(metrics.values())


def _applicable_names(model: Model) -> list[str]:
    """The names of all metrics that apply to a model, in alphabetical order."""
    return sorted(
        name
        for name, metric_class in Metric.registry.items()
        if metric_class().applies(model)
    )


def default_metrics(model: Model) -> tuple[Metric, ...]:
    """The metrics that are always measured: the loss and, for classifications, the
    accuracy.

    Example:
        >>> from fedtailor.models.metrics import default_metrics
        >>> [metric.name for metric in default_metrics(run.training.model)]
        ['loss', 'accuracy']
    """
    return find_metrics(model.task.metrics, model)


def in_double(statistic: Statistic, *keys: str) -> tuple[NDArray[np.float64], ...]:
    """Convert some sums of a statistic to double precision.

    Args:
        statistic: of one client, or stacked.
        keys: of these sums.

    Returns:
        One array for each key.
    """
    return tuple(np.asarray(statistic[key], np.float64) for key in keys)


def mean(statistic: Statistic, key: str) -> NDArray[np.float64]:
    """The mean over samples: statistic[key] / statistic["count"].

    Args:
        statistic: of one client, or of several, stacked [c].
        key: of the sum over samples, which may be of several targets.

    Returns:
        The mean [] or [c], or [targets] or [c, targets], in double precision; NaN
        without samples.
    """
    sums, count = in_double(statistic, key, "count")
    if sums.ndim > count.ndim:
        count = count[..., None]
    has_samples = count > 0
    # Divide by 1 instead of 0 where there are no samples.
    means = sums / np.where(has_samples, count, 1)
    return np.where(has_samples, means, np.nan)


def one_hot(
    labels: Shaped[Array, " b"], classes: int, like: Float[Array, " b"]
) -> Float[Array, "b classes"]:
    """1 in the column of the label's class, else 0, in the precision of `like`.

    A label that is not a class gives a row of zeros.
    """
    is_class = labels[:, None] == jnp.arange(classes, dtype=labels.dtype)
    return is_class.astype(like.dtype)
