"""What a coordinator knows about the data of its clients, without their examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation import SPLITS
from fedtailor.protocol import PreprocessingFacts


@dataclass
class RemoteData:
    """The data of a federation of machines (implements `fedtailor.protocol.DataFacts`).

    Attributes:
        name: title of the job.
        digest: identity of the job, as the coordinator has no examples.
        rows: numbers of training, validation and test rows [3] of each client, by name,
            in the order of the clients' indices; zeros for newcomers of an earlier
            start that are away.
        seen: names of the clients that take part in training.
        preprocessing: how rows become inputs, if the clients have agreed on it.
        default_metrics: see `fedtailor.protocol.DataFacts`.
    """

    name: str
    digest: str
    rows: dict[str, NDArray[np.int64]]
    seen: frozenset[str]
    preprocessing: PreprocessingFacts | None = None
    default_metrics: tuple[str, ...] = ()

    groups = None
    public = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rows)

    @property
    def description(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "clients": len(self.seen),
            "names": [name for name in self.rows if name in self.seen],
            "job": self.digest,
        }

    @property
    def unseen(self) -> NDArray[np.bool_]:
        return np.array([name not in self.seen for name in self.rows], bool)

    @property
    def sizes(self) -> Mapping[str, NDArray[np.int64]]:
        counts = np.array(list(self.rows.values()), np.int64).reshape(-1, len(SPLITS))
        return {split: counts[:, place] for place, split in enumerate(SPLITS)}

    @property
    def target_units(self) -> tuple[float, float]:
        if self.preprocessing is None:
            return 0.0, 1.0
        return self.preprocessing.target_shift, self.preprocessing.target_scale

    def origin_in(self, directory: Path) -> None:
        """The examples are at the clients, and their files are their own affair."""
        return
