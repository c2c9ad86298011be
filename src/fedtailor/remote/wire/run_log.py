"""The log of a coordinator or a client: lines with times, levels and rounds."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from fedtailor._base.choice import require
from fedtailor._base.printable import one_line, say_status

Level = Literal["debug", "info", "warning"]
LEVELS: tuple[Level, ...] = get_args(Level)


class RunLog:
    """Writes lines for people, with the time, the level and the round.

    Called with a line, it logs it as a warning: what other parts of the program report
    on their own (`log: Callable[[str], None]`) is what went wrong.

    Args:
        level: the lowest level that is logged.
        file: file to which all lines are appended, too; None = none.
        show: prints a line.
        warned: called for every warning, also for those that are not logged.
        clock: returns the time in seconds since the epoch.

    Raises:
        ValueError: there is no such level, or the file cannot be written.

    Attributes:
        round: number of the round that is under way, from 0; None = none.
    """

    def __init__(
        self,
        level: str = "info",
        file: Path | None = None,
        *,
        show: Callable[[str], None] = say_status,
        warned: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        require(
            level in LEVELS,
            f"there is no log level {level!r}; the levels are {', '.join(LEVELS)}",
        )
        self._lowest = LEVELS.index(level)
        self._show, self._clock, self.warned = show, clock, warned
        self.round: int | None = None
        self._file = file
        try:
            self._append("")
        except OSError as error:
            raise ValueError(f"cannot write {file}: {error.strerror}") from None

    def __call__(self, line: str) -> None:
        """Log a line as a warning."""
        self.warned()
        self.write("warning", line)

    def info(self, line: str) -> None:
        """Log what a user wants to know when all goes well."""
        self.write("info", line)

    def debug(self, line: str) -> None:
        """Log what helps to find a fault."""
        self.write("debug", line)

    def to_file(self, line: str) -> None:
        """Log a line as `info` does, in the file only."""
        self.write("info", line, show=False)

    def write(self, level: Level, line: str, *, show: bool = True) -> None:
        """Log a line at a level, if it is logged; `show` = on the screen, too."""
        if LEVELS.index(level) < self._lowest:
            return
        moment = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(self._clock()))
        where = "" if self.round is None else f"round {self.round + 1}: "
        text = f"{moment} {level.upper():7} {where}{line}"
        # A full disk must not end a training, wherever the lines go.
        with suppress(OSError):
            if show:
                self._show(text)
        try:
            self._append(f"{one_line(text)}\n")
        except OSError as error:
            self._file = None
            with suppress(OSError):
                self._show(f"the log file is given up: {error.strerror}")

    def _append(self, text: str) -> None:
        """Append to the file, which is opened anew: it may have been moved away."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)


def info_of(log: Callable[[str], None]) -> Callable[[str], None]:
    """What logs a line that tells no trouble: the level "info" of a log that has levels."""
    return log.info if isinstance(log, RunLog) else log
