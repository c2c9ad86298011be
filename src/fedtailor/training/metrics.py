"""What was measured: metrics of clients' personal models, by round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.metrics import Metric

if TYPE_CHECKING:
    import polars as pl


PRIVACY = "all"
"""The split of epsilons: they are of no rows in particular."""


@dataclass(frozen=True)
class Evaluation:
    """One metric of some clients after a round.

    Attributes:
        round: rounds done.
        clients: [c] places in the federation.
        unseen: whether these clients never trained.
        split: "val" or "test"; of an epsilon `PRIVACY`.
        metric: name of what was measured: a `Metric`'s, or of something more that it tells.
        values: [c], as `Metric.result` gives them; targets' units are those of the data as the user gave them.
    """

    round: int
    clients: NDArray[np.int64]
    unseen: bool
    split: str
    metric: str
    values: NDArray[np.float64]


@dataclass
class Metrics:
    """Evaluations in the order in which they were made."""

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
        """Add what clients [c] (places in the federation) answered to the task "evaluate".

        Clients are listed in the federation's order. Left out are those without samples in a split, and those for which
        a metric is not defined (as the area under the curve where all samples are of one class).

        Args:
            round: rounds done.
            clients: who answered.
            unseen: whether they never trained.
            scores: split -> "count" [c] and "statistics", of every metric by its name, stacked [c, ...].
            metrics: what was measured.
            target_scale: what one unit of the model's target is in the user's own.
        """
        order = np.argsort(clients)
        for split, of_split in scores.items():
            present = order[of_split["count"][order] > 0]
            if not len(present):
                continue
            for metric in metrics:
                statistic = {key: rows[present] for key, rows in of_split["statistics"][metric.name].items()}
                for name, values in metric.values_of_clients(statistic).items():
                    defined = ~np.isnan(values)
                    if defined.any():
                        scaled = values * target_scale if metric.unit == "target" else values
                        self.evaluations.append(
                            Evaluation(round, clients[present][defined], unseen, split, name, scaled[defined])
                        )

    def values(
        self, metric: str = "accuracy", split: str = "test", *, round: int | None = None, unseen: bool = False
    ) -> NDArray[np.float64]:
        """A metric of all clients [c] after `round` (default: the last one evaluated); empty where nothing fits."""
        found = [e for e in self.evaluations if (e.metric, e.split, e.unseen) == (metric, split, unseen)]
        found = [e for e in found if round is None or e.round == round]
        return found[-1].values if found else np.zeros(0)

    def curve(
        self, metric: str = "accuracy", split: str = "test", *, unseen: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(rounds [r], mean over clients [r])."""
        found = [e for e in self.evaluations if (e.metric, e.split, e.unseen) == (metric, split, unseen)]
        return np.array([e.round for e in found], np.int64), np.array([e.values.mean() for e in found])

    def frame(self, names: tuple[str, ...]) -> "pl.DataFrame":
        """A tidy frame with the columns round, client (name), unseen, split, metric, value."""
        import polars as pl

        parts = [
            pl.DataFrame(
                {
                    "round": np.full(len(e.clients), e.round, np.int32),
                    "client": [names[client] for client in e.clients],
                    "unseen": np.full(len(e.clients), e.unseen),
                    "split": [e.split] * len(e.clients),
                    "metric": [e.metric] * len(e.clients),
                    "value": e.values,
                }
            )
            for e in self.evaluations
        ]
        types = {"round": pl.Int32, "client": pl.String, "unseen": pl.Boolean, "split": pl.String, "metric": pl.String}
        return pl.concat(parts) if parts else pl.DataFrame(schema=types | {"value": pl.Float64})

    @classmethod
    def from_frame(cls, frame: "pl.DataFrame", names: tuple[str, ...]) -> "Metrics":
        """The inverse of `frame`."""
        place = {name: index for index, name in enumerate(names)}
        metrics = cls()
        keys = ["round", "unseen", "split", "metric"]
        for key, part in frame.group_by(keys, maintain_order=True):
            round, unseen, split, metric = key
            clients = np.array([place[name] for name in part["client"]], np.int64)
            values = part["value"].to_numpy().copy()
            metrics.evaluations.append(
                Evaluation(int(str(round)), clients, bool(unseen), str(split), str(metric), values)
            )
        return metrics
