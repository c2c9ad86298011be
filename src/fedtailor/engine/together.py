"""Several trainings at once: each in a thread of its own, and what they ask of their clients becomes one cohort.

The seeds of one method ask the same of equally many clients. A cohort of twenty small clients leaves most of a GPU
idle, and clients of unequal sizes leave one of several devices waiting; all seeds' cohorts together do so less.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import numpy as np

from fedtailor.engine.devices import Call, Devices
from fedtailor.engine.settings import Settings
from fedtailor.federation import Federation
from fedtailor.protocol import require

T = TypeVar("T")


class Seat:
    """One training's place at a `Meeting`: what it has asked, and what it was answered."""

    def __init__(self, meeting: "Meeting") -> None:
        self.meeting = meeting
        self.taken = True
        self.brought: tuple[Federation, str, Settings] | None = None
        self.asked: Call | None = None
        self.answer: dict[str, Any] | BaseException | None = None

    @property
    def sharing(self) -> int:
        """Trainings that share the devices' time (at least 1: who asks is there)."""
        return max(len(self.meeting.taken()), 1)

    @property
    def stopped(self) -> threading.Event:
        """Set when all trainings of the meeting are to save what they have and end."""
        return self.meeting.stopped

    def bring(self, federation: Federation, dtype: str, settings: Settings) -> None:
        """Whose clients this training asks; once, before `run`."""
        with self.meeting.changed:
            require(self.brought is None, "a seat is for one training; give the next one another seat")
            self.brought = federation, dtype, settings
            self.meeting.places.clear()

    def run(self, call: Call) -> dict[str, Any]:
        """As `Devices.run`; waits until all trainings that have not left ask for something.

        Raises:
            KeyboardInterrupt: the meeting was closed.
        """
        meeting = self.meeting
        with meeting.changed:
            self.asked = call
            if self.taken:
                meeting.answer_if_all_asked()
                meeting.changed.wait_for(lambda: self.answer is not None or meeting.closed)
            else:
                meeting.answer([self])
            answer, self.answer = self.answer, None
        if isinstance(answer, dict):
            return answer
        raise KeyboardInterrupt if answer is None else answer

    def leave(self) -> None:
        """Nobody needs to wait for this training any more; whatever else it asks is run at once."""
        with self.meeting.changed:
            self.taken = False
            self.meeting.answer_if_all_asked()


class Meeting:
    """Trainings that ask their clients together. Calls of equal `program`s are run as one.

    Attributes:
        stopped: see `Seat.stopped`.
        closed: nothing is run any more.
        places: the devices that hold the examples of each seat's training, and which of their federations it is.
        changed: held by whoever asks, answers, brings or leaves; notified of answers.
    """

    def __init__(self, seats: int, stopped: threading.Event) -> None:
        self.stopped, self.closed = stopped, False
        self.seats = [Seat(self) for _ in range(seats)]
        self.places: dict[Seat, tuple[Devices, int]] = {}
        self.changed = threading.Condition()

    def taken(self) -> list[Seat]:
        """Those whose trainings have not left."""
        return [seat for seat in self.seats if seat.taken]

    def close(self) -> None:
        """End all trainings at once, as soon as nothing runs on the devices."""
        self.closed = True
        with self.changed:
            self.changed.notify_all()

    def answer_if_all_asked(self) -> None:
        """In the order of the seats, whoever came first: results must not depend on threads."""
        taken = self.taken()
        if taken and all(seat.asked is not None for seat in taken):
            self.answer(taken)
            self.changed.notify_all()

    def answer(self, seats: Sequence[Seat]) -> None:
        """Run what they asked. Errors are answers: they belong to those who asked, not to the thread that runs it."""
        try:
            places = self._places()
        except BaseException as error:
            for seat in seats:
                seat.asked, seat.answer = None, error
            return
        groups: dict[Any, list[tuple[Seat, Call]]] = {}
        for seat in seats:
            call, seat.asked = seat.asked, None
            assert call is not None
            devices, place = places[seat]
            alone = seat if devices.settings.debug else None
            groups.setdefault((devices, call.program, alone), []).append((seat, replace(call, federation=place)))
        for (devices, *_), group in groups.items():
            if self.closed:
                return
            try:
                answers = devices.run([call for _, call in group])
            except BaseException as error:
                answers = [error] * len(group)
            for (seat, _), answer in zip(group, answers, strict=True):
                seat.answer = answer

    def _places(self) -> dict[Seat, tuple[Devices, int]]:
        if not self.places:
            alike: dict[Any, list[tuple[Seat, Federation]]] = {}
            for seat in self.seats:
                if seat.brought is not None:
                    federation, dtype, settings = seat.brought
                    alike.setdefault((dtype, settings, *_form(federation)), []).append((seat, federation))
            places: dict[Seat, tuple[Devices, int]] = {}
            for (dtype, settings, *_), group in alike.items():
                devices = Devices([federation for _, federation in group], dtype, settings)
                places.update({seat: (devices, place) for place, (seat, _) in enumerate(group)})
            self.places = places
        return self.places


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
        seat = meeting.seats[number]
        try:
            found[number] = tasks[number](seat)
        except BaseException as error:  # also an interrupt: it is raised where the caller is
            errors.append(error)
            stopped.set()
        finally:
            seat.leave()

    threads: list[threading.Thread] = []
    try:
        for number in range(len(tasks)):
            thread = threading.Thread(target=attend, args=(number,), daemon=True)
            thread.start()
            threads.append(thread)
        _join(threads)
    except BaseException:  # an interrupt, or no memory for another thread
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
