"""Several runs in lock-step: what they ask of their clients at a time becomes one
cohort.

The seeds of one method ask the same of equally many clients. A cohort of twenty small
clients leaves most of a GPU idle, and clients of unequal sizes leave one of several
devices waiting; all seeds' cohorts together do so less.
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


class LockstepExecutor(DeviceExecutor):
    """The clients of one run, on devices that also hold the clients of others."""

    def __init__(self, group: "LockstepGroup", *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._group = group

    @property
    def concurrency(self) -> int:
        return max(self._group.running, 1)


class LockstepGroup:
    """The executors of several runs, and how these are driven together.

    Attributes:
        executors: one for each federation.
        running: how many of the runs have not ended.
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
        self.running = 0
        members = list(zip(federations, models, directories, strict=True))
        # Examples of one form lie in one pool, so that one program can train clients of
        # several runs.
        of_one_form: dict[Hashable, list[int]] = {}
        for number, (federation, model, _) in enumerate(members):
            of_one_form.setdefault((model.dtype, *_form(federation)), []).append(number)
        self.executors: list[DeviceExecutor] = [None] * len(members)  # pyright: ignore[reportAttributeAccessIssue]
        for numbers in of_one_form.values():
            dtype = models[numbers[0]].dtype
            devices = Devices(
                [federations[number] for number in numbers], dtype, settings
            )
            for position, number in enumerate(numbers):
                federation, model, directory = members[number]
                kind = executor_kind(model, settings)
                if issubclass(kind, DebugExecutor):
                    self.executors[number] = kind(
                        federation, model, settings, directory=directory
                    )
                else:
                    self.executors[number] = LockstepExecutor(
                        self,
                        federation,
                        model,
                        settings,
                        directory=directory,
                        devices=devices,
                        number=position,
                    )

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
        waiting = members
        self.running = len(members)
        try:
            # Each goes on to its first exchange; from then on all answers of a step are
            # made before any run goes on.
            for member in members:
                member.resume()
            waiting = [member for member in members if member.exchange is not None]
            while waiting:
                self.running = len(waiting)
                _answer(waiting)
                for member in waiting:
                    member.resume()
                if any(member.error is not None for member in members):
                    stopped.set()
                waiting = [member for member in members if member.exchange is not None]
        finally:
            self.running = 0
            for member in members:
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
        exchange: what it asks now; None when it has ended.
        answer: what it is answered: answers, or an error that belongs to it.
        error: what ended it.
        result: what it returned.
    """

    result: T

    def __init__(self, exchanges: Exchanges[T], executor: DeviceExecutor) -> None:
        self.exchanges, self.executor = exchanges, executor
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
    """Answer what the members ask: requests of equal programs as one."""
    groups: dict[Hashable, list[tuple[_Member, ExchangeRequest]]] = {}
    for member in members:
        exchange = member.exchange
        assert exchange is not None
        try:
            requests = member.executor.requests(exchange)
            # what comes in parts, or runs without compilation, cannot share a program
            if len(requests) > 1 or isinstance(member.executor, DebugExecutor):
                member.answer = member.executor.exchange(exchange)
            else:
                (request,) = requests
                key = id(member.executor.devices), request.program
                groups.setdefault(key, []).append((member, request))
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
