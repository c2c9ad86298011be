"""`Metric`: one number of a model on a split, from sums that add up over batches.

For example, the share of samples whose correct class is among the k most probable ones:

    @dataclass(frozen=True)
    class TopK(Metric):
        name: ClassVar[str] = "top_k"
        title: ClassVar[str] = "Top-k accuracy"
        unit: ClassVar[Literal["%", "", "target"]] = "%"
        higher_is_better: ClassVar[bool] = True

        k: int = 5

        def applies(self, model):
            return is_classification(model) and model.outputs > self.k

        def statistic(self, model, outputs, y, weight):
            _, classes = jax.lax.top_k(outputs, self.k)
            correct = (classes == y[:, None]).any(axis=1)
            return {"correct": jnp.vdot(correct, weight), "count": weight.sum()}

        def result(self, statistic):
            return float(mean(statistic, "correct"))
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
from fedtailor.protocol import find_registered

Statistic = Mapping[str, Shaped[Array | np.ndarray, "..."]]
"""Sums over samples: key -> array whose shape depends on the model only. The statistic
of two disjoint sets of samples together is the sum of their statistics, key by key.
"""

ENTRY_POINTS = "fedtailor.metrics"
"""The group of entry points in which other packages offer subclasses of `Metric`, each
under its name.
"""


@dataclass(frozen=True)
class Metric(ABC):
    """Base of all metrics: subclass it, set the four class variables, write `applies`,
    `statistic` and `result`.

    From a batch to numbers, for c clients:

    * `statistic`: the sums of one batch, key -> [...]. They are added up over the
      batches of a client's split. Runs on the client, traced.
    * `condense`: what of these sums leaves the client, key -> [...]; the sums as they
      are, unless a metric can make less of them. Runs on the client, traced.
    * `result`: the metric of one client, a float. Runs on the host.
    * `values`: all numbers to store of one client, name -> float; the result alone,
      unless a metric has more.
    * `values_of_clients`: `values` of c clients at once, from statistics that are
      stacked, key -> [c, ...]; gives name -> [c].

    The three methods on the host must accept a statistic in both forms, as `statistic`
    gives it and as `condense` does.

    A metric with settings is a frozen dataclass; metrics are equal, and share compiled
    programs, when class and settings are equal. A subclass that sets `name` registers
    itself.
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
            model: the model that was trained, for which `applies` is True.
            outputs: logits or log-probabilities [b, classes], or predicted targets [b,
                ...].
            y: labels [b] or targets [b, ...].
            weight: 1 for a sample, 0 for padding.

        Returns:
            key -> sum. Adding the sums of two batches must give those of both together.
        """

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """What leaves the client of its sums over all batches (traced).

        By default these are the sums as they are. Override this if the result needs
        much less: the evaluation of a thousand clients is then many times as fast. For
        example, `ROCAUC` adds up two histograms {"of_class", "of_others"} [scores,
        bins], of which it sends {"ordered", "pairs"} [scores].

        Condensed statistics are not added any more. `result`, `values` and
        `values_of_clients` must accept both forms, and can tell them apart by the keys.
        """
        return statistic

    @abstractmethod
    def result(self, statistic: Statistic) -> float:
        """The metric of one client, from its sums over all batches (on the host).

        It is computed in double precision, and NaN where it is undefined.
        """

    def values(self, statistic: Statistic) -> dict[str, float]:
        """All numbers to store of one client, by name.

        By default this is the result alone, under the name of the metric.
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
            name -> [c], NaN where a client has no such value.
        """
        num_clients = len(next(iter(statistic.values())))
        # Clients may have values of different names, such as the cells of a confusion
        # matrix that are not empty.
        columns: dict[str, NDArray[np.float64]] = {}
        for client in range(num_clients):
            of_client = {key: rows[client, ...] for key, rows in statistic.items()}
            for name, value in self.values(of_client).items():
                if name not in columns:
                    columns[name] = np.full(num_clients, np.nan)
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
    """The metrics to measure of one model.

    Args:
        names: names of metrics, for those with their default settings, or metrics.
        model: the model that is measured.

    Returns:
        Each metric once, in the order given.

    Raises:
        ValueError: a metric is unknown, not defined for the model, or given twice with
            different settings.
    """
    metrics: dict[str, Metric] = {}
    for wanted in names:
        metric = find_metric(wanted) if isinstance(wanted, str) else wanted
        if not metric.applies(model):
            defined = ", ".join(_names_of_defined(model))
            raise ValueError(
                f"the metric {metric.name!r} is not defined for {_kind(model)}; choose"
                f" from {defined}"
            )
        if metric.name in metrics and metrics[metric.name] != metric:
            raise ValueError(
                f"the metric {metric.name!r} is asked for twice with different settings"
            )
        metrics[metric.name] = metric
    return tuple(metrics.values())


def _names_of_defined(model: Model) -> list[str]:
    """The names of all metrics that are defined for a model, in alphabetical order."""
    names = []
    for name, metric_class in Metric.registry.items():
        # with its default settings
        metric = metric_class()
        if metric.applies(model):
            names.append(name)
    return sorted(names)


def default_metrics(model: Model) -> tuple[Metric, ...]:
    """The metrics that are measured of every model: its loss and, of a classification,
    the accuracy.
    """
    names = [name for name in ("loss", "accuracy") if find_metric(name).applies(model)]
    return find_metrics(names, model)


def add_statistics(first: Any, second: Any) -> Any:
    """The statistics of two disjoint sets of samples together.

    Args:
        first, second: statistics, or trees of them (name of metric -> statistic).
    """
    return jax.tree.map(operator.add, first, second)


def zero_statistic(batch_statistic: Callable[..., Any], *arguments: Any) -> Any:
    """The statistic of no samples, to which those of batches are added.

    Args:
        batch_statistic: computes the statistic of a batch (or a tree of statistics).
        arguments: its arguments, of which only shapes and types matter.

    Returns:
        Zeros in the shapes of `batch_statistic(*arguments)`, which is not computed.
    """
    shapes = jax.eval_shape(batch_statistic, *arguments)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def in_double(statistic: Statistic, *keys: str) -> tuple[NDArray[np.float64], ...]:
    """Some sums of a statistic in double precision, in which results are computed.

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
        key: of the sum over samples.

    Returns:
        The mean [] or [c] in double precision; NaN without samples.
    """
    sums, count = in_double(statistic, key, "count")
    has_samples = count > 0
    # Where there are no samples, a division by 1 takes the place of that by 0.
    means = sums / np.where(has_samples, count, 1)
    return np.where(has_samples, means, np.nan)


def is_classification(model: Model) -> bool:
    """Whether outputs are scores of classes, with one label for each example."""
    return isinstance(model.loss, Classification)


def is_sequence(model: Model) -> bool:
    """Whether outputs are scores of tokens, with one label for each token."""
    return isinstance(model.loss, TokenCrossEntropy)


def is_regression(model: Model) -> bool:
    """Whether outputs are predicted targets."""
    return not is_classification(model) and not is_sequence(model)


def one_hot(
    labels: Shaped[Array, " b"], classes: int, like: Float[Array, " b"]
) -> Float[Array, "b classes"]:
    """1 in the column of the label's class, else 0, in the precision of `like`."""
    # As a comparison and not an index, so that a label that is no class gives zeros.
    is_class = labels[:, None] == jnp.arange(classes, dtype=labels.dtype)
    return is_class.astype(like.dtype)


def _kind(model: Model) -> str:
    """What a model predicts, for messages."""
    if is_classification(model):
        return f"a classification of {model.outputs} classes"
    return "sequences" if is_sequence(model) else "a regression"
