"""`Metrics`: the evaluations of clients' personal models, by round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import check_choice
from fedtailor.models import Model
from fedtailor.models.metrics import Metric, default_metrics, find_metric, find_metrics

if TYPE_CHECKING:
    import polars as pl


MEASURED_SPLITS = ("val", "test")
"""The splits on which clients measure."""
PRIVACY = "all"
"""The name that evaluations of epsilon have instead of a split's."""


def select_metrics(
    requested: Sequence[str | Metric], model: Model
) -> tuple[tuple[Metric, ...], Metric]:
    """The metrics of a run.

    Args:
        requested: metrics, or their names, that are measured in addition to the default
            ones.
        model: what is trained.

    Returns:
        All metrics that are measured, each of them once, and the one that the run is
        judged by.

    Raises:
        ValueError: a metric is unknown or not defined for this model.
    """
    metrics = find_metrics(requested, model)
    names = {metric.name for metric in metrics}
    defaults = [metric for metric in default_metrics(model) if metric.name not in names]
    main = metrics[0] if metrics else find_metric(model.metric)
    return (*defaults, *metrics), main


@dataclass(frozen=True)
class Evaluation:
    """One metric of some clients after a round.

    Attributes:
        round: rounds done.
        clients: [c] indices of the clients in the federation.
        unseen: whether these clients never took part in training.
        split: "val" or "test"; `PRIVACY` for an epsilon.
        metric: the name of a `Metric`, or of a further number that a metric reports.
        values: [c], as `Metric.result` returns them, in the unit of the user's data.
    """

    round: int
    clients: NDArray[np.int64]
    unseen: bool
    split: str
    metric: str
    values: NDArray[np.float64]


@dataclass
class Metrics:
    """Evaluations in the order in which they were made.

    Example:
        >>> run.metrics.frame(federation.names).columns
        ['round', 'client', 'unseen', 'split', 'metric', 'value']
        >>> run.metrics.values("accuracy").shape
        (20,)
    """

    evaluations: list[Evaluation] = field(default_factory=list)

    def record(
        self,
        round: int,
        clients: NDArray[np.int64],
        unseen: bool,
        scores: Mapping[str, Any],
        metrics: Sequence[Metric],
        target_scale: float = 1.0,
    ) -> None:
        """Add the answers of clients to the task "evaluate".

        Clients are recorded in the federation's order, without those that have no
        samples in a split, or for which a metric is not defined (such as the area under
        the curve if all samples are of one class).

        Args:
            round: rounds done.
            clients: [c] indices in the federation of the clients that answered.
            unseen: whether these clients never took part in training.
            scores: split -> a dict with "count", the number of samples of each client
                [c], and "statistics", metric's name -> statistics stacked over clients
                [c, ...].
            metrics: the metrics that were measured.
            target_scale: the factor from the unit of the model's target to the unit of
                the user's data.
        """
        # `clients` is in the order of client ids; tables list clients as the user did.
        order = np.argsort(clients)
        for split, split_scores in scores.items():
            present = order[split_scores["count"][order] > 0]
            if not len(present):
                continue
            for metric in metrics:
                statistic = {
                    key: rows[present]
                    for key, rows in split_scores["statistics"][metric.name].items()
                }
                for name, values in metric.values_of_clients(statistic).items():
                    defined = ~np.isnan(values)
                    if not defined.any():
                        continue
                    if name == metric.name:
                        _require_within(metric, values[defined])
                    if metric.unit == "target":
                        values = values * target_scale
                    self.evaluations.append(
                        Evaluation(
                            round=round,
                            clients=clients[present][defined],
                            unseen=unseen,
                            split=split,
                            metric=name,
                            values=values[defined],
                        )
                    )

    def values(
        self,
        metric: str = "accuracy",
        split: str = "test",
        *,
        round: int | None = None,
        unseen: bool = False,
    ) -> NDArray[np.float64]:
        """A metric of all clients after one round.

        Args:
            metric: its name.
            split: "val" or "test".
            round: rounds done; None = the last evaluation.
            unseen: whether to return the values of unseen clients instead of those of
                seen clients.

        Returns:
            [c], in the federation's order; empty if there is no such evaluation.

        Raises:
            ValueError: there is no metric or split of that name.
        """
        self._check_names(metric, split)
        matching = [
            evaluation
            for evaluation in self._select(metric, split, unseen)
            if round is None or evaluation.round == round
        ]
        return matching[-1].values if matching else np.zeros(0)

    def curve(
        self, metric: str = "accuracy", split: str = "test", *, unseen: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The mean of a metric over clients, by round (arguments as for `values`).

        Returns:
            Rounds [r], and the means after them [r].

        Raises:
            ValueError: there is no metric or split of that name.
        """
        self._check_names(metric, split)
        matching = self._select(metric, split, unseen)
        rounds = np.array([evaluation.round for evaluation in matching], np.int64)
        means = np.array([evaluation.values.mean() for evaluation in matching])
        return rounds, means

    def _check_names(self, metric: str, split: str) -> None:
        """Refuse a misspelt metric or split.

        A metric that exists may lack values: it was not measured, or is undefined for
        all clients.

        Raises:
            ValueError: there is no such metric or split; the message lists the metrics
                that were measured, or the splits.
        """
        check_choice(split, (*MEASURED_SPLITS, PRIVACY), "split with measurements")
        measured = {evaluation.metric for evaluation in self.evaluations}
        if measured and metric not in Metric.registry:
            check_choice(metric, sorted(measured), "metric in this run")

    def _select(self, metric: str, split: str, unseen: bool) -> list[Evaluation]:
        """The evaluations of one kind, in the order in which they were made."""
        return [
            evaluation
            for evaluation in self.evaluations
            if evaluation.metric == metric
            and evaluation.split == split
            and evaluation.unseen == unseen
        ]

    def frame(self, names: tuple[str, ...]) -> "pl.DataFrame":
        """The evaluations as a tidy frame (the layout of `metrics.parquet`).

        Args:
            names: of all clients, in the federation's order.

        Returns:
            The columns round, client (name), unseen, split, metric and value.
        """
        import polars as pl

        types: dict[str, type[pl.DataType]] = {
            "round": pl.Int32,
            "client": pl.String,
            "unseen": pl.Boolean,
            "split": pl.String,
            "metric": pl.String,
            "value": pl.Float64,
        }
        if not self.evaluations:
            return pl.DataFrame(schema=types)
        lines = [len(evaluation.clients) for evaluation in self.evaluations]
        columns: dict[str, Any] = {
            name: pl.Series(
                [getattr(evaluation, name) for evaluation in self.evaluations]
            ).gather(np.repeat(np.arange(len(lines)), lines))
            for name in ("round", "unseen", "split", "metric")
        }
        clients = np.concatenate(
            [evaluation.clients for evaluation in self.evaluations]
        )
        columns["client"] = pl.Series(names).gather(clients)
        columns["value"] = np.concatenate(
            [evaluation.values for evaluation in self.evaluations]
        )
        return pl.DataFrame({name: columns[name] for name in types}, types)

    @classmethod
    def from_frame(cls, frame: "pl.DataFrame", names: tuple[str, ...]) -> "Metrics":
        """The inverse of `frame`.

        Args:
            frame: what `frame` returned.
            names: of all clients, in the federation's order.

        Returns:
            The evaluations in the order in which they first occur in the frame.
        """
        # The rows of one evaluation follow each other, in the order of its clients.
        position = {name: index for index, name in enumerate(names)}
        metrics = cls()
        keys = ["round", "unseen", "split", "metric"]
        for part in frame.partition_by(keys, maintain_order=True):
            clients = np.array([position[name] for name in part["client"]], np.int64)
            values = part["value"].to_numpy().copy()
            shared = part.select(keys).row(0, named=True)
            metrics.evaluations.append(
                Evaluation(clients=clients, values=values, **shared)
            )
        return metrics


def _require_within(metric: Metric, values: NDArray[np.float64]) -> None:
    """Require that a metric's values are ones that it can have.

    Raises:
        ValueError: one is not; values are shares, for example, where the unit is "%".
    """
    low, high = metric.limits()
    wrong = values[~metric.can_be(values)]
    if len(wrong):
        raise ValueError(
            f"metric {metric.name} gave {wrong[0]:g} for a client; by its limits() it is"
            f" from {low:g} to {high:g}"
        )
