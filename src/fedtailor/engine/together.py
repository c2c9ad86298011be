"""Several trainings at once: each in a thread of its own, and what they ask of their clients becomes one cohort.

The seeds of one method ask the same of equally many clients. A cohort of twenty small clients leaves most of a GPU
idle, and clients of unequal sizes leave one of several devices waiting; all seeds' cohorts together do so less.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

from fedtailor.engine.devices import Call, Devices
from fedtailor.engine.settings import Settings
from fedtailor.federation import Federation
from fedtailor.protocol import require

T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """One training's place at a `Meeting`."""

    meeting: "Meeting"
    number: int

    @property
    def sharing(self) -> int:
        """Trainings that share the devices' time."""
        return self.meeting.present

    @property
    def stopped(self) -> threading.Event:
        """Set when all trainings of the meeting are to save what they have and end."""
        return self.meeting.stopped

    def bring(self, federation: Federation, dtype: str, settings: Settings) -> None:
        """Whose clients this training asks; once, before `run`."""
        self.meeting.bring(self.number, federation, dtype, settings)

    def run(self, call: Call) -> dict[str, Any]:
        """As `Devices.run`; waits until all trainings that have not left ask for something.

        Raises:
            KeyboardInterrupt: the meeting was closed.
        """
        return self.meeting.run(self.number, call)

    def leave(self) -> None:
        """Nobody needs to wait for this training any more; whatever else it asks is run at once."""
        self.meeting.leave(self.number)


class Meeting:
    """Trainings that ask their clients together. Calls of equal `program`s are run as one.

    Attributes:
        stopped: see `Seat.stopped`.
    """

    def __init__(self, seats: int, stopped: threading.Event) -> None:
        self.stopped = stopped
        self._present = set(range(seats))
        self._closed = False
        self._brought: dict[int, tuple[Federation, str, Settings]] = {}
        self._places: dict[int, tuple[Devices, int]] = {}
        self._asked: dict[int, Call] = {}
        self._answers: dict[int, dict[str, Any] | BaseException] = {}
        self._changed = threading.Condition()

    @property
    def present(self) -> int:
        """Trainings that have not left (at least 1: who asks is there)."""
        return max(len(self._present), 1)

    def bring(self, number: int, federation: Federation, dtype: str, settings: Settings) -> None:
        """See `Seat.bring`."""
        with self._changed:
            require(number not in self._brought, "a seat is for one training; give the next one another seat")
            self._brought[number] = federation, dtype, settings
            self._places.clear()

    def run(self, number: int, call: Call) -> dict[str, Any]:
        """See `Seat.run`."""
        with self._changed:
            self._asked[number] = call
            if number in self._present:
                self._answer_if_all_asked()
                self._changed.wait_for(lambda: number in self._answers or self._closed)
            else:
                self._answer([number])
            answer = self._answers.pop(number, KeyboardInterrupt())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, number: int) -> None:
        """See `Seat.leave`."""
        with self._changed:
            self._present.discard(number)
            self._answer_if_all_asked()

    def close(self) -> None:
        """End all trainings at once, as soon as nothing runs on the devices."""
        self._closed = True
        with self._changed:
            self._changed.notify_all()

    def _answer_if_all_asked(self) -> None:
        if self._present and self._present <= self._asked.keys():
            self._answer(sorted(self._present))  # whoever came first: results must not depend on threads
            self._changed.notify_all()

    def _answer(self, numbers: Sequence[int]) -> None:
        """Run what was asked. Errors are answers: they belong to those who asked, not to the thread that runs it."""
        asked = {number: self._asked.pop(number) for number in numbers}
        if self._closed:
            return
        try:
            groups: dict[Any, list[int]] = {}
            for number, call in asked.items():
                devices, _ = self._place(number)
                alone = number if devices.settings.debug else None
                groups.setdefault((id(devices), call.program, alone), []).append(number)
            for group in groups.values():
                calls = [replace(asked[number], federation=self._place(number)[1]) for number in group]
                self._answers.update(zip(group, self._place(group[0])[0].run(calls), strict=True))
        except BaseException as error:
            self._answers.update({number: error for number in asked if number not in self._answers})

    def _place(self, number: int) -> tuple[Devices, int]:
        """The devices that hold a training's examples, and the place of its federation there."""
        if not self._places:
            alike: dict[Any, list[int]] = {}
            for other, (federation, dtype, settings) in sorted(self._brought.items()):
                alike.setdefault((dtype, settings, *_form(federation)), []).append(other)
            for others in alike.values():
                _, dtype, settings = self._brought[others[0]]
                devices = Devices([self._brought[other][0] for other in others], dtype, settings)
                self._places.update({other: (devices, place) for place, other in enumerate(others)})
        return self._places[number]


def together(tasks: Sequence[Callable[[Seat], T]], stopped: threading.Event) -> list[T]:
    """Run every task in a thread of its own, with a seat at one meeting; what they return.

    Tasks that look at `stopped` end early when it is set, which the first error of one of them does, too; the error is
    raised when all have ended. A `KeyboardInterrupt` ends them as soon as nothing runs on the devices.

    Raises:
        ValueError: there are several processes, whose threads would not meet in the same order.
    """
    require(jax.process_count() == 1, "trainings at once need one process; with several, train one after another")
    meeting = Meeting(len(tasks), stopped)
    found: dict[int, T] = {}
    errors: list[BaseException] = []

    def attend(number: int) -> None:
        seat = Seat(meeting, number)
        try:
            found[number] = tasks[number](seat)
        except BaseException as error:  # also an interrupt: it is raised where the caller is
            errors.append(error)
            stopped.set()
        finally:
            seat.leave()

    threads = [threading.Thread(target=attend, args=(number,), daemon=True) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    try:
        _join(threads)
    except KeyboardInterrupt:
        meeting.close()
        _join(threads)  # a thread inside of a program would take the process down with it
        raise
    if errors:
        raise min(errors, key=lambda error: isinstance(error, KeyboardInterrupt))  # what went wrong, then who stopped
    return [found[number] for number in range(len(tasks))]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _form(federation: Federation) -> tuple[Any, ...]:
    """Equal for federations whose examples can lie in one pool."""
    x, y = federation.x, federation.y
    normalisation = (np.asarray(value, float).tobytes() for value in (federation.shift, federation.scale))
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype, *normalisation
