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

from fedtailor.client.pool import largest_split
from fedtailor.executors.debug import DebugExecutor
from fedtailor.executors.device_executor import DeviceExecutor
from fedtailor.executors.devices import Devices, ExchangeRequest
from fedtailor.executors.kinds import executor_kind
from fedtailor.executors.settings import Settings
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Answers, Exchange, Exchanges, require

T = TypeVar("T")


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
    ) -> None:
        """Place the examples of all federations on the devices, together where they
        have one form.

        Raises:
            ValueError: there are several processes: their runs would not keep step.
        """
        require(
            jax.process_count() == 1,
            "trainings at once need one process; with several, train one after another",
        )
        # Examples of one form lie in one pool, so that one program can train clients of
        # several runs.
        same_form: dict[Hashable, list[int]] = {}
        for run, (federation, model) in enumerate(
            zip(federations, models, strict=True)
        ):
            same_form.setdefault((model.dtype, *_form(federation)), []).append(run)
        executors: dict[int, DeviceExecutor] = {}
        for runs in same_form.values():
            devices = Devices(
                [federations[run] for run in runs], models[runs[0]].dtype, settings
            )
            for position, run in enumerate(runs):
                executor_class = executor_kind(models[run], settings)
                # What runs without compilation shares no program, and no pool.
                shared: dict[str, Any] = {
                    "devices": devices,
                    "federation_index": position,
                }
                executors[run] = executor_class(
                    federations[run],
                    models[run],
                    settings,
                    directory=directories[run],
                    **({} if issubclass(executor_class, DebugExecutor) else shared),
                )
        self.executors = [executors[run] for run in range(len(federations))]

    def drive(self, runs: Sequence[Exchanges[T]], stopped: threading.Event) -> list[T]:
        """Let the executors answer the exchanges of their runs, step by step.

        An error ends the run that it happened in, and sets `stopped`: runs that look at
        it save what they have and end early. A `KeyboardInterrupt` that no run raised
        itself ends all at once.

        Returns:
            What the runs return.

        Raises:
            Exception: the first that ended a run, when all have ended.
        """
        members = [
            _Member(run, executor)
            for run, executor in zip(runs, self.executors, strict=True)
        ]
        running = members
        try:
            # A step: every run goes on to its next exchange (the first, to begin with),
            # then all of these are answered together.
            while running:
                for member in running:
                    member.executor.concurrency = len(running)
                for member in running:
                    member.resume()
                if any(member.error is not None for member in members):
                    stopped.set()
                running = [member for member in running if member.exchange is not None]
                _answer(running)
        finally:
            for member in members:
                member.executor.concurrency = 1
                member.exchanges.close()

        # An interruption is raised only if nothing else went wrong: it may be the
        # consequence of an error (`stopped`).
        errors = [member.error for member in members if member.error is not None]
        causes = [error for error in errors if not isinstance(error, KeyboardInterrupt)]
        if errors:
            raise (causes or errors)[0]
        return [member.result for member in members]


class _Member(Generic[T]):
    """One run of a group.

    Attributes:
        exchange: the exchange that it waits for; None when it has ended.
        answer: what is sent into it next: answers, or an error to raise in it.
        error: the error that ended it, if one did.
        result: what it returned, if it has ended without an error.
    """

    result: T

    def __init__(self, exchanges: Exchanges[T], executor: DeviceExecutor) -> None:
        self.exchanges = exchanges
        self.executor = executor
        self.exchange: Exchange | None = None
        self.answer: Answers | Exception | None = None
        self.error: BaseException | None = None

    def resume(self) -> None:
        """Hand the run its answer and let it go on to its next exchange, or to its
        end.
        """
        answer, self.answer, self.exchange = self.answer, None, None
        try:
            if isinstance(answer, Exception):
                self.exchange = self.exchanges.throw(answer)
            else:
                self.exchange = self.exchanges.send(answer)  # pyright: ignore[reportArgumentType] (None at the start)
        except StopIteration as stopped:
            self.result = stopped.value
        except Exception as error:
            self.error = error
        except KeyboardInterrupt as stop:
            # A run that was asked to stop saves and raises a subclass of this: the
            # others have their turn to do the same. A plain one ends all at once.
            if type(stop) is KeyboardInterrupt:
                raise
            self.error = stop


def _answer(members: Sequence[_Member]) -> None:
    """Answer the exchanges of all members: requests of equal programs as one.

    An error becomes the answer of the members that it concerns, and is raised in their
    runs.
    """
    groups: dict[Hashable, list[tuple[_Member, ExchangeRequest]]] = {}
    for member in members:
        exchange = member.exchange
        assert exchange is not None
        try:
            requests = member.executor.requests(exchange)
            # What comes in parts, or runs without compilation, cannot share a program.
            if len(requests) > 1 or isinstance(member.executor, DebugExecutor):
                member.answer = member.executor.exchange(exchange)
            else:
                key = id(member.executor.devices), requests[0].program
                groups.setdefault(key, []).append((member, requests[0]))
        except Exception as error:
            member.answer = error
    for group in groups.values():
        devices = group[0][0].executor.devices
        try:
            outputs = devices.run([request for _, request in group])
        except Exception as error:
            for member, _ in group:
                member.answer = error
            continue
        for (member, request), output in zip(group, outputs, strict=True):
            member.answer = member.executor.answers(request, output)


def _form(federation: Federation) -> tuple[Hashable, ...]:
    """Equal for federations whose examples can lie in one pool, and whose batches have
    as much room there as alone.
    """
    x, y = federation.x, federation.y
    normalisation = (
        np.asarray(value, float).tobytes()
        for value in (federation.shift, federation.scale)
    )
    return (
        x.shape[1:],
        x.dtype,
        y.shape[1:],
        y.dtype,
        largest_split(federation),
        *normalisation,
    )
