"""Several runs in lock-step: the exchanges that they yield at the same step are answered
together, as one cohort.

Runs of one method with different seeds yield exchanges of the same task and size. A cohort
of twenty small clients leaves most of a GPU idle, and clients of unequal sizes leave one of
several devices waiting; the cohorts of all seeds together use the devices better.
"""

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation
from fedtailor.engine.client.pool import largest_split
from fedtailor.engine.executors.debug import DebugExecutor
from fedtailor.engine.executors.device_executor import DeviceExecutor
from fedtailor.engine.executors.devices import Devices, ExchangeRequest, Place
from fedtailor.engine.executors.kinds import executor_kind
from fedtailor.engine.executors.settings import Settings
from fedtailor.models import Model
from fedtailor.protocol import Answers, Exchange, Exchanges

T = TypeVar("T")


def place_together(
    federations: Sequence[Federation], dtypes: Sequence[str], settings: Settings
) -> list[Place | None]:
    """Place the examples of several federations on the devices: together where they have
    the same format, so that one program can train clients of several runs.

    Args:
        federations: who holds which examples.
        dtypes: the floating-point type that each federation's model computes in.
        settings: which devices to use, and how.

    Returns:
        Where those of each federation are; None for executors without compiled programs.

    Raises:
        ValueError: there are several processes: their runs would not keep step.
    """
    require(
        jax.process_count() == 1,
        "trainings at once need one process; with several, train one after another",
    )
    places: list[Place | None] = [None] * len(federations)
    if settings.debug:
        return places
    by_format: dict[Hashable, list[int]] = {}
    for position, (federation, dtype) in enumerate(
        zip(federations, dtypes, strict=True)
    ):
        by_format.setdefault((dtype, *_format(federation)), []).append(position)
    for positions in by_format.values():
        alike = [federations[position] for position in positions]
        devices = Devices(alike, dtypes[positions[0]], settings)
        for index, position in enumerate(positions):
            places[position] = Place(devices, index)
    return places


class LockstepGroup:
    """The executors of several runs, which it drives together.

    Attributes:
        executors: one for each federation.
    """

    def __init__(
        self,
        federations: Sequence[Federation],
        models: Sequence[Model],
        settings: Settings,
        directories: Sequence[Any],
        places: Sequence[Place | None] | None = None,
    ) -> None:
        """Make the executors.

        Args:
            federations: who holds which examples.
            models: what is trained on each.
            settings: which devices to use, and how.
            directories: of the runs; None = a run has none.
            places: where the examples are; None = place them now.

        Raises:
            ValueError: see `place_together`.
        """
        if places is None:
            dtypes = [model.precision.sums for model in models]
            places = place_together(federations, dtypes, settings)
        self.executors = [
            executor_kind(settings)(
                federation, model, settings, directory=directory, place=place
            )
            for federation, model, directory, place in zip(
                federations, models, directories, places, strict=True
            )
        ]

    def drive(self, runs: Sequence[Exchanges[T]], stopped: threading.Event) -> list[T]:
        """Let the executors answer the exchanges of their runs, step by step.

        An error ends the run in which it happened, and sets `stopped`: runs that look at
        this event save their state and end early. A `KeyboardInterrupt` that no run
        raised itself ends all runs at once.

        Returns:
            What the runs return.

        Raises:
            Exception: the first error that ended a run, after all runs have ended.
        """
        members = [
            _Member(run, executor)
            for run, executor in zip(runs, self.executors, strict=True)
        ]
        running = members
        try:
            # In each step every run continues to its next exchange, then the exchanges
            # of all runs are answered together.
            while running:
                for member in running:
                    member.executor.concurrency = len(running)
                for member in running:
                    member.resume()
                if any(member.error is not None for member in members):
                    stopped.set()
                running = [member for member in running if member.exchange is not None]
                _answer_all(running)
        finally:
            for member in members:
                member.executor.concurrency = 1
                member.exchanges.close()

        # An interruption is raised only if there is no other error: it may be the
        # consequence of an error (`stopped`).
        errors = [member.error for member in members if member.error is not None]
        causes = [error for error in errors if not isinstance(error, KeyboardInterrupt)]
        if errors:
            raise (causes or errors)[0]
        return [member.result for member in members]


class _Member(Generic[T]):
    """One run of a group.

    Attributes:
        exchange: the exchange that the run waits for; None when the run has ended.
        reply: what the run receives next: answers, or an error to raise in it.
        error: the error that ended the run, if there was one.
        result: what the run returned, if it has ended without an error.
    """

    result: T

    def __init__(self, exchanges: Exchanges[T], executor: DeviceExecutor) -> None:
        self.exchanges = exchanges
        self.executor = executor
        self.exchange: Exchange | None = None
        self.reply: Answers | Exception | None = None
        self.error: BaseException | None = None

    def resume(self) -> None:
        """Send the run its reply, and let it continue to its next exchange or to its
        end.
        """
        reply, self.reply, self.exchange = self.reply, None, None
        try:
            if isinstance(reply, Exception):
                self.exchange = self.exchanges.throw(reply)
            else:
                self.exchange = self.exchanges.send(reply)  # pyright: ignore[reportArgumentType] (None at the start)
        except StopIteration as stopped:
            self.result = stopped.value
        except Exception as error:
            self.error = error
        except KeyboardInterrupt as stop:
            # A run that was asked to stop saves its state and raises a subclass of this
            # error, and the other runs may do the same. A plain one ends all runs.
            if type(stop) is KeyboardInterrupt:
                raise
            self.error = stop


def _answer_all(members: Sequence[_Member]) -> None:
    """Answer the exchanges of all members: requests of equal programs together.

    An error becomes the reply to the members that it concerns, and is raised in their
    runs.
    """
    groups: dict[Hashable, list[tuple[_Member, ExchangeRequest]]] = {}
    for member in members:
        exchange = member.exchange
        assert exchange is not None
        try:
            # A single run shares its programs with nobody.
            if len(members) == 1:
                member.reply = member.executor.exchange(exchange)
                continue
            requests = member.executor.requests(exchange)
            # Exchanges in parts, and executors without compilation, cannot share a
            # program.
            if len(requests) > 1 or isinstance(member.executor, DebugExecutor):
                member.reply = member.executor.exchange(exchange)
            else:
                request = member.executor.in_sums(requests[0])
                key = id(member.executor.devices), request.program_key
                groups.setdefault(key, []).append((member, request))
        except Exception as error:
            member.reply = error
    for group in groups.values():
        devices = group[0][0].executor.devices
        try:
            outputs = devices.run([request for _, request in group])
        except Exception as error:
            for member, _ in group:
                member.reply = error
            continue
        for (member, request), output in zip(group, outputs, strict=True):
            member.reply = member.executor.answers(request, output)


def _format(federation: Federation) -> tuple[Hashable, ...]:
    """A key that is equal for federations whose examples can share a pool without a
    change in the size of their batches.
    """
    x, y = federation.x, federation.y
    normalization = (
        np.asarray(value, float).tobytes()
        for value in (federation.shift, federation.scale)
    )
    return (
        x.shape[1:],
        x.dtype,
        y.shape[1:],
        y.dtype,
        largest_split(federation),
        *normalization,
    )
