"""One exchange with a cohort: what the clients need, a task for all of them, and their outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.engine.cohort import Task, deal
from fedtailor.engine.data import split_sizes
from fedtailor.engine.devices import Call, Devices
from fedtailor.engine.errors import Diverged
from fedtailor.engine.settings import Settings
from fedtailor.engine.together import Seat
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Cohort, Down, client_keys

FIXED = 2**63
"""The round that keys what a client draws once for all rounds."""


@dataclass(frozen=True)
class Outputs:
    """What a task yielded.

    Attributes:
        values: stacked outputs [c', ...], c' >= c, perhaps still being computed.
        report: [c] who was to answer.
        done: [c', 3] gradients and forward passes computed, and whether all is finite.
        blame: the error for a client (its place in the cohort) whose output is NaN or infinite.
    """

    values: dict[str, Any]
    report: NDArray[np.bool_]
    done: Any
    blame: Callable[[int], Diverged]

    @cached_property
    def work(self) -> tuple[int, int]:
        """Gradients and forward passes computed; waits for the devices.

        Raises:
            Diverged: a client's output is NaN or infinite.
        """
        done = np.asarray(self.done)[: len(self.report)]
        if not done[:, 2].all():
            raise self.blame(int(np.argmin(done[:, 2])))
        gradients, forwards = done[:, :2].sum(axis=0, dtype=np.int64)
        return int(gradients), int(forwards)

    def checked(self) -> "Outputs":
        """The same, when it is there and finite.

        Raises:
            Diverged: a client's output is NaN or infinite.
        """
        _ = self.work
        return self


class Mapper:
    """Runs client tasks on a federation's clients, which are addressed by their place in the federation."""

    def __init__(
        self, federation: Federation, model: Model, seed: int, settings: Settings, seat: Seat | None = None
    ) -> None:
        """`seat`: at the meeting of trainings that ask their clients together."""
        self.federation, self.model, self.seed, self.settings, self.seat = federation, model, seed, settings, seat
        self.shards = settings.mesh().size
        self.size = split_sizes(federation)
        self.fixed = client_keys(seed, FIXED, federation.ids)
        if seat is not None:
            seat.bring(federation, model.dtype, settings)

    @cached_property
    def devices(self) -> Devices:
        """Where this federation's examples lie (with a seat: at the meeting)."""
        assert self.seat is None
        return Devices([self.federation], self.model.dtype, self.settings)

    def order(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order in which to list `clients` (places in the federation) in a cohort, for equal loads."""
        if self.settings.canonical or self.settings.debug:
            return np.arange(len(clients))
        return deal(self.size[clients, 0].astype(np.int64), self.shards, self.settings.several_at_once)

    def padded(self, clients: int) -> int:
        """Rows of a cohort of `clients`, rounded up to whole shards."""
        return -(-clients // self.shards) * self.shards

    def run(
        self, task: Task, algorithm: Algorithm, cohort: Cohort, clients: NDArray[np.int64], states: Any, down: Down
    ) -> Outputs:
        """`task` on `clients` (places in the federation, in cohort order); `states` has `padded` rows.

        Raises:
            Diverged: (debug engine) a client's model became NaN or infinite.
        """
        keys = client_keys(self.seed, cohort.round, cohort.ids), self.fixed[clients]
        report = cohort.report & np.asarray(down.reply, bool)
        who = clients, self.size[clients], self.padded(len(clients))
        call = Call(0, task, algorithm, self.model, *who, keys, cohort.round, report, states, down)
        values = self.devices.run([call])[0] if self.seat is None else self.seat.run(call)
        doing = {"client": "training", "probe": "the probe"}.get(task, "the personal model")

        def blame(client: int) -> Diverged:
            return Diverged(self.federation.names[clients[client]], cohort.round, doing=doing)

        return Outputs(values, report, values.pop("report"), blame)
