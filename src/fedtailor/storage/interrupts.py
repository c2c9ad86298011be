"""Ctrl-C and the end of a job's time: the round that is under way ends and is saved
first.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C; what schedulers, containers and `kill` send some seconds before they end a
process.
"""


class Interrupted(KeyboardInterrupt):
    """Somebody stopped a run; its directory holds everything up to the last round.

    Attributes:
        code: the exit code that shells have for the last signal: 130 for Ctrl-C, 143
            for SIGTERM.
    """

    code: ClassVar[int] = 128 + signal.SIGINT


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the round can end first; a second
    signal raises `KeyboardInterrupt` at once.
    """
    stopped = threading.Event()
    # Python lets only the main thread install handlers; elsewhere nothing sets the event.
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    Interrupted.code = 128 + signal.SIGINT

    # Not `stopped.is_set()`: an error in another run of a group sets the event, too, and
    # the first Ctrl-C after it is still the first.
    was_signalled = False

    def stop(signum: int, frame: Any) -> None:
        nonlocal was_signalled
        if was_signalled:
            raise KeyboardInterrupt
        was_signalled = True
        Interrupted.code = 128 + signum
        stopped.set()

    before = [(which, signal.signal(which, stop)) for which in SIGNALS]
    try:
        yield stopped
    finally:
        for which, handler in before:
            signal.signal(which, handler)
