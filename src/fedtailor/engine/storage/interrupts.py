"""Handlers of Ctrl-C and SIGTERM, which let the current round finish and be saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""SIGINT is sent by Ctrl-C, SIGTERM by schedulers, containers and `kill` some seconds
before they kill a process.
"""


class Interrupted(KeyboardInterrupt):
    """A signal stopped a run, whose directory holds everything up to the last round.

    Attributes:
        code: the conventional exit code for the signal: 130 for Ctrl-C, 143 for
            SIGTERM.

    Example:
        >>> from fedtailor.engine.storage import Interrupted
        >>> issubclass(Interrupted, KeyboardInterrupt)
        True
    """

    code: ClassVar[int] = 128 + signal.SIGINT


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the current round can finish.

    A second signal raises `KeyboardInterrupt` immediately.

    Example:
        >>> from fedtailor.engine.storage import interrupts
        >>> with interrupts() as stopped:
        ...     print(stopped.is_set())
        False
    """
    stopped = threading.Event()
    # Only the main thread can install handlers; in others nothing sets the event.
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    Interrupted.code = 128 + signal.SIGINT

    # Not `stopped.is_set()`: an error in another run of the group sets the event as
    # well, and the next Ctrl-C is still the first one.
    received_signal = False

    def stop(signum: int, frame: Any) -> None:
        nonlocal received_signal
        if received_signal:
            raise KeyboardInterrupt
        received_signal = True
        Interrupted.code = 128 + signum
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
