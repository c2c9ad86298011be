"""What was measured: losses and accuracies of clients' personal models, by round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Evaluation:
    """One metric of some clients after a round.

    Attributes:
        round: rounds done.
        clients: [c] places in the federation.
        unseen: whether these clients never trained.
        split: "val" or "test".
        metric: "loss" (mean over the split) or "accuracy" (share correct, in [0, 1]).
        values: [c].
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
        self, round: int, clients: NDArray[np.int64], unseen: bool, scores: Mapping[str, Any], classification: bool
    ) -> None:
        """Add what clients [c] (places in the federation) answered to the task "evaluate": split -> "count" [c]
        and "sums" [c, 2] (of losses and of correct predictions).

        Clients are listed in the federation's order; those without samples in a split are left out."""
        order = np.argsort(clients)
        for split, of_split in scores.items():
            count, sums = of_split["count"], of_split["sums"]
            present = order[count[order] > 0]
            for column, metric in enumerate(("loss", "accuracy") if classification else ("loss",)):
                if len(present):
                    values = sums[present, column].astype(np.float64) / count[present]
                    self.evaluations.append(Evaluation(round, clients[present], unseen, split, metric, values))

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
