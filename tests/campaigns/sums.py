"""A coordinator of secure sums that tells each client what it likes: which vector, which
weights, which clients, and who is lost. What it opens is compared with what the clients
hold, and no combination of it may be nearly one client's vector, or round the others to 0.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fedtailor.aggregation.secure_sums import MAX_SHARE, FixedPoint, SecureSums
from fedtailor.aggregation.sum_shares import (
    largest_shares,
    others_hide,
)
from fedtailor.remote.sums import client as sum_client
from fedtailor.remote.sums import server as sum_server
from fedtailor.remote.sums.client import SecureSumClient
from fedtailor.remote.sums.server import NamedArrays, SecureSumServer, SumStage
from fedtailor.remote.wire.messages import Request, check_arrays
from fedtailor.remote.wire.refusals import Refused
from fedtailor.remote.wire.secure_sums import STAGES, SUM, VECTORS
from fedtailor.remote.wire.transport import TooFewClients

SIZE = 3
SUMS = 8
"""Sums of one try."""

TIMES = {"model": 1.0, "control": -2.0}
"""The vectors of a client by their kind, in units of the first."""

_LIES = ("kind", "weights", "alone", "left out", "lost", "fewer", "invented")


class _Lying(SecureSumServer):
    """Checks nothing, names clients that have no part, and keeps the sum as it is."""

    phantoms: tuple[str, ...] = ()
    opened: np.ndarray | None = None
    masked_by: tuple[str, ...] = ()

    def _check_enough(self, answers: Any) -> None:
        if not answers:
            raise TooFewClients("nobody is left")

    def _unsafe_combination(self, weights: Any) -> str:
        return ""

    def _survivors(self, answers: Any) -> Any:
        return np.array([it in answers or it in self.phantoms for it in self._names])

    def _unmask(self, masked: Any, shares: Any, codes: Any) -> Any:
        total = super()._unmask(masked, shares, codes)
        if masked:
            self.opened = FixedPoint(self._settings.range).decode(total)
            self.masked_by = tuple(masked)
        return total


class ChosenSums:
    """Tries against clients that add vectors.

    Attributes:
        answered: how many sums were asked for and opened, and how many messages refused.
    """

    def __init__(self) -> None:
        self.answered = Counter[str]()

    def chosen_sums(self, rng: np.random.Generator) -> None:
        """Some sums over the same vectors, in one round or several."""
        most = int(rng.choice([4, 4, 50]))
        with (
            patch.object(sum_client, "MAX_NEIGHBOURS", most),
            patch("fedtailor.aggregation.secure_sums.NOISE", 0.0),
            patch.object(sum_server, "unsafe_sums", lambda *arguments: {}),
            patch.object(sum_server, "normalized", lambda weights, surviving: weights),
        ):
            _Try(rng, most, self.answered).run()


class _Try:
    """One federation, and what its coordinator has opened."""

    def __init__(
        self, rng: np.random.Generator, most: int, answered: Counter[str]
    ) -> None:
        self._rng, self._most, self._answered = rng, most, answered
        self._names = tuple(f"c{i}" for i in range(int(rng.integers(4, 10))))
        self._settings = SecureSums(
            threshold=float(rng.choice([2 / 3, 0.8, 1.0])),
            scope="run" if rng.random() < 0.7 else "round",
        )
        self._vectors = dict(
            zip(self._names, rng.normal(size=(len(self._names), SIZE)), strict=True)
        )
        self._clients = {it: SecureSumClient(it, self._settings) for it in self._names}
        self._round = -1
        self._asked_otherwise: set[str] = set()
        # [sums, clients] what was opened, in units of the clients' vectors.
        self._opened: list[np.ndarray] = []

    def run(self) -> None:
        """Ask for sums, and look at what was opened after each."""
        for _ in range(SUMS):
            if self._round < 0 or self._rng.random() < 0.4:
                self._begin()
            self._add()
            if self._opened:
                opened = np.array(self._opened)
                are_hidden = others_hide(opened * (1 + 1e-6))
                assert are_hidden.all(), (
                    f"{self._settings}: the others of"
                    f" {self._names[int(are_hidden.argmin())]} round to 0 in {self._opened}"
                )
                shares = largest_shares(opened)
                assert shares.max() <= MAX_SHARE + 1e-6, (
                    f"{self._settings}: {self._names[int(shares.argmax())]} is"
                    f" {shares.max():.0%} of {np.round(self._opened, 4).tolist()}"
                )

    def _begin(self) -> None:
        """A new round, whose vectors are those of the ones before."""
        self._round += 1
        if self._settings.scope == "round":
            self._opened = []
        # The answer of who is asked something else may be known: it is 0.
        lies = self._rng.random() < 0.2
        self._asked_otherwise = {str(self._rng.choice(self._names))} if lies else set()
        for name, client in self._clients.items():
            is_other = name in self._asked_otherwise
            vector = self._vectors[name] * (not is_other)
            update = {kind: times * vector for kind, times in TIMES.items()}
            client.hold(self._round, update, asked="other" if is_other else "")

    def _weights(self, clients: int) -> np.ndarray:
        count = int(self._rng.choice([1, 1, 1, 2]))
        rng, shape = self._rng, (count, clients)
        drawn = [
            np.ones(shape),
            np.ones(shape),
            rng.uniform(-1, 1, shape),
            rng.exponential(size=shape) ** 2,
            rng.integers(0, 2, shape).astype(float),
            1 + 10.0 ** rng.uniform(-10, 0) * rng.uniform(-1, 1, shape),
        ]
        weights = drawn[int(rng.integers(len(drawn)))]
        total = np.abs(weights).sum(axis=1, keepdims=True)
        return weights / np.where(total > 0, total, 1)

    def _add(self) -> None:
        """One sum, with lies or without."""
        rng, names = self._rng, self._names
        lies = {it for it in _LIES if rng.random() < 0.15}
        if "fewer" in lies and len(names) > 3:
            left_out = int(rng.integers(len(names)))
            names = names[:left_out] + names[left_out + 1 :]
        one = str(rng.choice(names))
        kind = str(rng.choice(list(TIMES)))
        kinds = dict.fromkeys(names, kind)
        if "kind" in lies:
            kinds[one] = next(it for it in TIMES if it != kind)
        lost = {}
        if "lost" in lies:
            stage = STAGES.index(str(rng.choice(STAGES)))
            lost[str(rng.choice(names))] = STAGES[stage:]
        phantoms = ("x", "y") if "invented" in lies else ()
        if "left out" in lies:
            lost[one], phantoms = STAGES, (*phantoms, one)
        told: dict[str, np.ndarray] = {}

        def ask(stage: SumStage) -> dict[str, NamedArrays]:
            found = {}
            for name, arrays in stage.arrays.items():
                if stage.task in lost.get(name, ()):
                    continue
                arrays = dict(arrays)
                if stage.task == VECTORS:
                    if "weights" in lies and name == one:
                        arrays["weights"] = arrays["weights"][:, ::-1].copy()
                    own = stage.columns.index(name)
                    if "alone" in lies and name != one:
                        # Each of the others is told that it alone weighs nothing.
                        arrays["weights"] = arrays["weights"].copy()
                        arrays["weights"][:, own] = 0
                    told[name] = arrays["weights"][:, own]
                settings = {**stage.settings_for(name), "kind": kinds[name]}
                message = Request(
                    *("job", self._round, 0, stage.task, name),
                    algorithm={SUM: settings},
                    arrays=arrays,
                )
                self._answered["asked"] += 1
                try:
                    answer = self._clients[name](message)
                    check_arrays(answer, stage.expected[name])
                except (Refused, ValueError):
                    self._answered["refused"] += 1
                else:
                    found[name] = answer
            return found

        server = _Lying(
            ask,
            (*names, *(it for it in phantoms if it not in names)),
            SIZE,
            replace(self._settings),
            neighbours=self._most,
            asked="",
            vector=(kind, None),
        )
        server.phantoms = phantoms
        if one in phantoms:
            server._asked = [it for it in names if it != one]
        server._asked = [it for it in server._asked if it in names]
        with suppress(TooFewClients, ValueError, KeyError):
            server.run(self._weights(len(server._names)))
        if server.opened is not None:
            self._look(server, told, kinds)

    def _look(
        self, server: _Lying, told: dict[str, np.ndarray], kinds: dict[str, str]
    ) -> None:
        """Whether what was opened is the sum without masks, and of whom."""
        assert server.opened is not None
        parts = np.zeros((len(server.opened), len(self._names)))
        for name in server.masked_by:
            is_known = name in self._asked_otherwise
            times = TIMES[kinds[name]] * (not is_known)
            parts[:, self._names.index(name)] = told[name] * times
        vectors = np.array([self._vectors[name] for name in self._names])
        wrong = np.abs(server.opened - parts @ vectors).max()
        if wrong > 2 * len(self._names) * FixedPoint(self._settings.range).step:
            self._answered["still masked"] += 1
            return
        self._answered["opened"] += 1
        # Those with a thousandth of a sum, or more, as it was meant.
        for row in parts:
            size = np.abs(row)
            many = (size > 0.9e-3 * size.sum()).sum()
            assert many == 0 or many >= 3, f"a sum over {many}: {row.tolist()}"
            if size.any():
                self._opened.append(row)
