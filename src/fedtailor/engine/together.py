"""Several trainings at once: each in a thread of its own, and what they ask of their clients becomes one cohort.

The seeds of one method ask the same of equally many clients. A cohort of twenty small clients leaves most of a GPU
idle, and clients of unequal sizes leave one of several devices waiting; all seeds' cohorts together do so less.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from fedtailor.engine.devices import Call, Devices
from fedtailor.engine.settings import Settings
from fedtailor.federation import Federation

T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """One training's place at a `Meeting`."""

    meeting: "Meeting"
    number: int

    @property
    def sharing(self) -> int:
        """Trainings that take part."""
        return self.meeting.sharing

    def bring(self, federation: Federation, dtype: str, settings: Settings) -> None:
        """Whose clients this training asks; to be called before `run`."""
        self.meeting.bring(self.number, federation, dtype, settings)

    def run(self, call: Call) -> dict[str, Any]:
        """As `Devices.run`; waits until all trainings that have not left ask for something."""
        return self.meeting.run(self.number, call)

    def leave(self) -> None:
        """Nobody needs to wait for this training any more; whatever else it asks is run at once."""
        self.meeting.leave(self.number)


class Meeting:
    """Trainings that ask their clients together. Calls of equal `program`s are run as one."""

    def __init__(self, seats: int) -> None:
        self._present = set(range(seats))
        self._brought: dict[int, tuple[Federation, str, Settings]] = {}
        self._places: dict[int, tuple[Devices, int]] = {}
        self._asked: dict[int, Call] = {}
        self._answers: dict[int, dict[str, Any] | Exception] = {}
        self._changed = threading.Condition()

    @property
    def sharing(self) -> int:
        """See `Seat.sharing`."""
        return len(self._brought)

    def bring(self, number: int, federation: Federation, dtype: str, settings: Settings) -> None:
        """See `Seat.bring`."""
        with self._changed:
            self._brought[number] = federation, dtype, settings
            self._places.clear()

    def run(self, number: int, call: Call) -> dict[str, Any]:
        """See `Seat.run`."""
        with self._changed:
            self._asked[number] = call
            if number in self._present:
                self._answer_if_all_asked()
                self._changed.wait_for(lambda: number in self._answers)
            else:
                self._answer([number])
            answer = self._answers.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leave(self, number: int) -> None:
        """See `Seat.leave`."""
        with self._changed:
            self._present.discard(number)
            self._answer_if_all_asked()

    def _answer_if_all_asked(self) -> None:
        if self._present and self._present <= self._asked.keys():
            self._answer(sorted(self._present))  # whoever came first: results must not depend on threads
            self._changed.notify_all()

    def _answer(self, numbers: Sequence[int]) -> None:
        groups: dict[Any, list[int]] = {}
        for number in numbers:
            groups.setdefault((id(self._place(number)[0]), self._asked[number].program), []).append(number)
        for group in groups.values():
            calls = [replace(self._asked.pop(number), federation=self._place(number)[1]) for number in group]
            try:
                answers: Sequence[Any] = self._place(group[0])[0].run(calls)
            except Exception as error:
                answers = [error] * len(group)
            self._answers.update(zip(group, answers, strict=True))

    def _place(self, number: int) -> tuple[Devices, int]:
        """The devices that hold a training's examples, and the place of its federation there."""
        if not self._places:
            alike: dict[Any, list[int]] = {}
            for other, (federation, dtype, _) in sorted(self._brought.items()):
                alike.setdefault((dtype, *_form(federation)), []).append(other)
            for others in alike.values():
                _, dtype, settings = self._brought[others[0]]
                devices = Devices([self._brought[other][0] for other in others], dtype, settings)
                self._places.update({other: (devices, place) for place, other in enumerate(others)})
        return self._places[number]


def together(tasks: Sequence[Callable[[Seat], T]], stop: threading.Event) -> list[T]:
    """Run every task in a thread of its own, with a seat at one meeting; what they return.

    If one raises, `stop` is set (tasks that look at it end early), and the error is raised when all have ended.
    """
    meeting = Meeting(len(tasks))
    found: dict[int, T] = {}
    errors: list[BaseException] = []

    def attend(number: int) -> None:
        seat = Seat(meeting, number)
        try:
            found[number] = tasks[number](seat)
        except BaseException as error:  # also Interrupted: it is raised where the caller is
            errors.append(error)
            stop.set()
        finally:
            seat.leave()

    threads = [threading.Thread(target=attend, args=(number,), daemon=True) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(tasks))]


def _form(federation: Federation) -> tuple[Any, ...]:
    """Equal for federations whose examples can lie in one pool."""
    x, y = federation.x, federation.y
    normalisation = (np.asarray(value, float).tobytes() for value in (federation.shift, federation.scale))
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype, *normalisation
