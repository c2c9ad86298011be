"""`Metric`: one number of a model on a split, from statistics that add up over
batches.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Classification, Model, TokenCrossEntropy
from fedtailor.protocol import find_registered, require

Statistic = Mapping[str, Shaped[Array | np.ndarray, "..."]]
"""Sums over samples: name -> array whose shape follows from the model. Two statistics
merge by adding their arrays.
"""

ENTRY_POINTS = "fedtailor.metrics"
"""Group of entry points in which other packages offer subclasses of `Metric`, under
their names.
"""


@dataclass(frozen=True)
class Metric(ABC):
    """Base of all metrics: subclass it, set the four class variables, write `applies`,
    `statistic` and `result`.

    A metric with settings is a frozen dataclass; metrics are equal, and share compiled
    programs, when class and settings are equal. A subclass that sets `name` registers
    itself.
    """

    name: ClassVar[str]
    """Its name in files, in settings and on the command line."""
    title: ClassVar[str]
    """Its name in tables and figures."""
    unit: ClassVar[Literal["%", "", "target"]] = ""
    """"%" (a share in [0, 1], shown in per cent), "" (a number) or "target" (scales
    with the regression's target).
    """
    higher_is_better: ClassVar[bool]
    registry: ClassVar[dict[str, type["Metric"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            Metric.registry[cls.name] = cls

    @property
    def percent(self) -> bool:
        """Whether values are shares, to be shown in per cent."""
        return self.unit == "%"

    @abstractmethod
    def applies(self, model: Model) -> bool:
        """Whether the metric is defined for a model's outputs and targets."""

    @abstractmethod
    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        """The sums of one batch (traced).

        Args:
            model: what was trained; `applies` holds for it.
            outputs: logits or log-probabilities [b, classes], or predicted targets [b,
                ...].
            y: labels [b] or targets [b, ...].
            weight: 1 for a sample, 0 for padding.

        Returns:
            name -> sum, such that the sums of two batches, added, are those of both
            together.
        """

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """The part of the sums over all batches that leaves the client (traced): all of
        them, unless a metric needs less.

        Where it is much less, a thousand clients' evaluation is many times as fast.
        `result`, `values` and `values_of_clients` then take both forms.
        """
        return statistic

    @abstractmethod
    def result(self, statistic: Statistic) -> float:
        """The number, in double precision, from the sums over all batches (on the
        host); NaN where it is undefined.
        """

    def values(self, statistic: Statistic) -> dict[str, float]:
        """The numbers that are stored, by name: the result alone, unless a metric has
        more.
        """
        return {self.name: self.result(statistic)}

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        """`values` of many clients, whose statistics are stacked.

        Metrics whose `result` works on stacked statistics override this, so that a
        thousand clients cost one call.

        Args:
            statistic: name -> [c, ...].

        Returns:
            name -> [c], NaN where a client has no such value.
        """
        clients = len(next(iter(statistic.values())))
        # Clients may have values of different names (the cells of a confusion matrix
        # that are not empty).
        columns: dict[str, NDArray[np.float64]] = {}
        for client in range(clients):
            of_client = {key: rows[client, ...] for key, rows in statistic.items()}
            for name, value in self.values(of_client).items():
                if name not in columns:
                    columns[name] = np.full(clients, np.nan)
                columns[name][client] = value
        return columns


def find_metric(name: str) -> Metric:
    """The metric of that name, with its default settings.

    Raises:
        ValueError: neither fedtailor nor an installed package has a metric of that
            name, or the package's is broken.
    """
    return find_registered(Metric.registry, name, "metric", ENTRY_POINTS, base=Metric)()


def find_metrics(names: Sequence[str | Metric], model: Model) -> tuple[Metric, ...]:
    """Metrics by name (or as they are), for one model; each once, in the order given.

    Raises:
        ValueError: a metric is unknown, or not defined for the model.
    """
    metrics: dict[str, Metric] = {}
    for name in names:
        metric = find_metric(name) if isinstance(name, str) else name
        if not metric.applies(model):
            others = [
                key for key, kind in Metric.registry.items() if kind().applies(model)
            ]
            defined = ", ".join(sorted(others))
            raise ValueError(
                f"the metric {metric.name!r} is not defined for {_kind(model)}; choose"
                f" from {defined}"
            )
        require(
            metrics.get(metric.name, metric) == metric,
            f"the metric {metric.name!r} is asked for twice",
        )
        metrics[metric.name] = metric
    return tuple(metrics.values())


def default_metrics(model: Model) -> tuple[Metric, ...]:
    """What is measured of every model: its loss and, of a classification, the
    accuracy.
    """
    names = [name for name in ("loss", "accuracy") if find_metric(name).applies(model)]
    return find_metrics(names, model)


def add_statistics(first: Any, second: Any) -> Any:
    """The statistics of two disjoint collections of samples together."""
    return jax.tree.map(operator.add, first, second)


def zero_statistic(batch_statistic: Callable[..., Any], *arguments: Any) -> Any:
    """The statistic of no samples: zeros shaped as what `batch_statistic(*arguments)`
    gives (nothing is computed).
    """
    shapes = jax.eval_shape(batch_statistic, *arguments)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def in_double(statistic: Statistic, *names: str) -> tuple[NDArray[np.float64], ...]:
    """Some sums of a statistic in double precision, in which results are computed.

    Returns:
        One array for each name.
    """
    return tuple(np.asarray(statistic[name], np.float64) for name in names)


def mean(statistic: Statistic, total: str) -> NDArray[np.float64]:
    """A sum over the number of samples, `statistic["count"]`, in double precision; NaN
    without samples.
    """
    sums, count = in_double(statistic, total, "count")
    undefined = np.full(np.broadcast(sums, count).shape, np.nan)
    return np.divide(sums, count, out=undefined, where=count > 0)


def is_classification(model: Model) -> bool:
    """Whether outputs are scores of classes, one label an example."""
    return isinstance(model.loss, Classification)


def is_sequence(model: Model) -> bool:
    """Whether outputs are scores of tokens, one label a token."""
    return isinstance(model.loss, TokenCrossEntropy)


def is_regression(model: Model) -> bool:
    """Whether outputs are predicted targets."""
    return not is_classification(model) and not is_sequence(model)


def one_hot(
    labels: Shaped[Array, " b"], classes: int, like: Float[Array, " b"]
) -> Float[Array, "b classes"]:
    """1 where the label is the column's class, else 0, in the precision of `like`."""
    # a comparison: a label that is no class gives a row of zeros
    is_class = labels[:, None] == jnp.arange(classes, dtype=labels.dtype)
    return is_class.astype(like.dtype)


def _kind(model: Model) -> str:
    if is_classification(model):
        return f"a classification of {model.outputs} classes"
    return "sequences" if is_sequence(model) else "a regression"
