"""`Calibration`: from which rows the sets and intervals of each client are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import check_choice, require
from fedtailor.statistics.conformal.quantiles import (
    BINS,
    conformal_rank,
    quantile_of_counts,
    quantile_of_scores,
    score_counts,
)

OWN_ROWS = 50
"""Validation rows from which a client's sets are its own. With n rows its coverage is
distributed as a beta variable of standard deviation sqrt(c (1 - c) / (n + 2)): 4 points
for 50 rows at 90 %.
"""

ThresholdSource = Literal["own", "group", "all"]
"""Whose validation rows a threshold is from."""
_KINDS = ("classes", "numbers")


@dataclass(frozen=True)
class Threshold:
    """The largest score that a set or an interval of a client takes in.

    Attributes:
        value: the score; infinite where even all rows are too few for the coverage.
        source: whose rows it is from: the client's own, those of its group of clients,
            or those of all clients.
        rows: their number.
    """

    value: float
    source: ThresholdSource
    rows: int


@dataclass(frozen=True)
class ClientCalibration:
    """What one client has of its own.

    Attributes:
        scores: the scores of its validation rows in ascending order, 1 - p(true class)
            or |y - prediction| in the target's unit.
        group: the group of clients that it belongs to; None if there are no groups.
        temperature: its logits are divided by it for probabilities; None for
            numbers, and for a client with too few rows.
    """

    scores: tuple[float, ...]
    group: str | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Calibration:
    """The validation scores of all clients.

    A client's threshold is from its own rows if it has `OWN_ROWS`; else from the sum of
    the histograms of its group's clients if they have as many together; else from the
    sum over all clients. Own rows make the coverage hold for the client. Pooled rows
    make it hold on average over the rows of all clients, not for each of them.

    Attributes:
        kind: "classes" or "numbers".
        clients: by name.
        scale: the unit of histograms of numbers; 1 for classes.
        counts: the sum of the histograms of all clients [bins].
        group_counts: by group, the sum of its clients' histograms.
    """

    kind: Literal["classes", "numbers"]
    clients: Mapping[str, ClientCalibration]
    scale: float
    counts: Int[NDArray, " bins"]
    group_counts: Mapping[str, Int[NDArray, " bins"]]

    @classmethod
    def of(
        cls,
        kind: Literal["classes", "numbers"],
        scores: Mapping[str, ArrayLike],
        *,
        groups: Mapping[str, str] | None = None,
        temperatures: Mapping[str, float | None] | None = None,
        scale: float = 1.0,
    ) -> "Calibration":
        """The calibration of clients with these scores, by name."""
        groups, temperatures = groups or {}, temperatures or {}
        clients = {}
        total = np.zeros(BINS, np.int64)
        by_group: dict[str, NDArray[np.int64]] = {}
        for name, values in scores.items():
            ordered = np.sort(np.asarray(values, np.float64))
            group = groups.get(name)
            counts = score_counts(ordered / scale)
            total += counts
            if group is not None:
                by_group[group] = by_group.get(group, 0) + counts
            clients[name] = ClientCalibration(
                tuple(ordered.tolist()), group, temperatures.get(name)
            )
        return cls(kind, clients, scale, total, by_group)

    def threshold(self, client: str, coverage: float) -> Threshold:
        """The threshold of a client, which may be one without rows of its own.

        Raises:
            ValueError: the coverage is not between 0 and 1.
        """
        known = self.clients.get(client, ClientCalibration(()))
        rows = len(known.scores)
        if rows >= OWN_ROWS and conformal_rank(rows, coverage) <= rows:
            return self.own_threshold(client, coverage)
        pools: list[tuple[ThresholdSource, NDArray[np.int64]]] = [("all", self.counts)]
        if known.group is not None and known.group in self.group_counts:
            pools.insert(0, ("group", self.group_counts[known.group]))
        for source, counts in pools:
            total = int(counts.sum())
            enough = total >= OWN_ROWS and conformal_rank(total, coverage) <= total
            if enough or source == "all":
                value = self.scale * quantile_of_counts(counts, coverage)
                return Threshold(self._bounded(value), source, total)
        raise AssertionError("the pool of all clients is the last one")

    def own_threshold(self, client: str, coverage: float) -> Threshold:
        """The threshold from a client's own rows, however few they are.

        Raises:
            ValueError: the coverage is not between 0 and 1.
        """
        scores = self.clients[client].scores
        value = quantile_of_scores(scores, coverage)
        return Threshold(self._bounded(value), "own", len(scores))

    def _bounded(self, value: float) -> float:
        """No score of a class is above 1."""
        return min(value, 1.0) if self.kind == "classes" else value

    def only(self, names: Sequence[str]) -> "Calibration":
        """The calibration for some clients: others' scores are left out, and only sums
        over all clients stay.
        """
        kept = {name: self.clients[name] for name in names if name in self.clients}
        groups = {client.group for client in kept.values()}
        return Calibration(
            self.kind,
            kept,
            self.scale,
            self.counts,
            {name: it for name, it in self.group_counts.items() if name in groups},
        )

    @cached_property
    def rows(self) -> int:
        """The number of validation rows of all clients together."""
        return int(self.counts.sum())

    # files
    # ----------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """As an object for JSON, which `from_dict` reads."""
        return {
            "kind": self.kind,
            "scale": self.scale,
            "counts": _sparse(self.counts),
            "groups": {name: _sparse(it) for name, it in self.group_counts.items()},
            "clients": {
                name: {
                    "scores": list(client.scores),
                    "group": client.group,
                    "temperature": client.temperature,
                }
                for name, client in self.clients.items()
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Calibration":
        """Read the output of `as_dict`.

        Raises:
            ValueError: the content is none.
        """
        try:
            check_choice(content["kind"], _KINDS, "kind of scores")
            clients = {
                str(name): ClientCalibration(
                    tuple(sorted(float(score) for score in client["scores"])),
                    None if client["group"] is None else str(client["group"]),
                    _optional_temperature(client["temperature"]),
                )
                for name, client in content["clients"].items()
            }
            scale = float(content["scale"])
            counts = _dense(content["counts"])
            groups = {
                str(name): _dense(entries)
                for name, entries in content["groups"].items()
            }
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"it is not a calibration ({type(error).__name__}: {error})"
            ) from None
        is_valid = math.isfinite(scale) and scale > 0
        for client in clients.values():
            is_valid &= all(0 <= score < math.inf for score in client.scores)
        require(is_valid, "it is not a calibration: scores are finite numbers from 0")
        return cls(content["kind"], clients, scale, counts, groups)


def _optional_temperature(value: Any) -> float | None:
    if value is None:
        return None
    temperature = float(value)
    require(
        math.isfinite(temperature) and temperature > 0,
        "it is not a calibration: temperatures are above 0",
    )
    return temperature


def _sparse(counts: Int[NDArray, " bins"]) -> list[list[int]]:
    """The bins that have rows, with their counts."""
    return [[int(place), int(counts[place])] for place in np.flatnonzero(counts)]


def _dense(entries: Any) -> NDArray[np.int64]:
    """The output of `_sparse` as a histogram."""
    counts = np.zeros(BINS, np.int64)
    for place, count in entries:
        is_count = isinstance(place, int) and isinstance(count, int) and count > 0
        require(
            is_count and 0 <= place < BINS,
            f"it is not a calibration: a histogram has {BINS} bins of counts",
        )
        counts[place] = count
    return counts
