"""The log of a coordinator or a client: lines with times and levels.

Each module says what happens to one of these loggers. Who begins a coordinator or a
client has a handler show it: `Lines`, or `RunLog` with times and a file.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from fedtailor._base.choice import require
from fedtailor._base.printable import one_line, say_status

Level = Literal["debug", "info", "warning"]
LEVELS: tuple[Level, ...] = get_args(Level)

FEDERATION = logging.getLogger("fedtailor.federation")
COORDINATOR_LOG = FEDERATION.getChild("coordinator")
CLIENTS = FEDERATION.getChild("client")


def _clean(record: logging.LogRecord) -> bool:
    """Make a record one line, whoever shows it: others choose names in it."""
    record.msg, record.args = one_line(record.getMessage()), ()
    return True


for _log in (COORDINATOR_LOG, CLIENTS):
    _log.addFilter(_clean)


def client_log(name: str) -> logging.Logger:
    """The logger of one client, as several may run in one process."""
    # A name with a dot would make it a child of another client's.
    log = CLIENTS.getChild(name.replace(".", "/"))
    log.addFilter(_clean)
    return log


class Lines(logging.Handler):
    """Shows the lines of a coordinator or a client as they are.

    Args:
        show: prints a line. If the disk is full where it goes, that ends nothing.
        level: the lowest level that is shown.
    """

    def __init__(
        self, show: Callable[[str], object] = say_status, level: int = logging.INFO
    ) -> None:
        super().__init__(level)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show the line of a record."""
        with suppress(OSError):
            self._show(record.getMessage())

    def listen(self, logger: logging.Logger) -> None:
        """Show what a logger receives from now on."""
        # The level stays when this ends: others may listen, each from its own level on.
        if not logger.isEnabledFor(self.level):
            logger.setLevel(self.level)
        logger.addHandler(self)

    @contextmanager
    def of(self, logger: logging.Logger) -> Iterator[None]:
        """Show what a logger receives until the end of the block."""
        self.listen(logger)
        try:
            yield
        finally:
            logger.removeHandler(self)


ASKED_FOR: dict[str, Any] = {"is_asked_for": True}
"""`extra` of lines of which whoever is at the other end chooses how many there are."""

MOST_ASKED_FOR = 2000
"""Such lines that are logged in a minute: they must not fill the disk."""


class RunLog(Lines):
    """Shows lines with the time and the level, and appends them to a file.

    Of lines that are `ASKED_FOR`, those beyond `MOST_ASKED_FOR` in a minute are left out.

    Args:
        level: the lowest level that is logged.
        file: file to which all lines are appended, too; None = none.
        show: prints a line.

    Raises:
        ValueError: there is no such level, or the file cannot be written.

    Example:
        >>> from fedtailor.remote import RunLog
        >>> lines = []
        >>> log = RunLog("warning", show=lines.append)  # for serve(..., log=log)
    """

    def __init__(
        self,
        level: str = "info",
        file: Path | None = None,
        *,
        show: Callable[[str], object] = say_status,
    ) -> None:
        require(
            level in LEVELS,
            f"there is no log level {level!r}; the levels are {', '.join(LEVELS)}",
        )
        super().__init__(show, logging.getLevelNamesMapping()[level.upper()])
        self._file = file
        self._minute, self._asked_for = 0, 0
        try:
            self._append("")
        except OSError as error:
            raise ValueError(f"cannot write {file}: {error.strerror}") from None

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record; one with `shown` false in the file only."""
        if getattr(record, "is_asked_for", False):
            minute = int(record.created / 60)
            if minute != self._minute:
                self._minute, self._asked_for = minute, 0
            self._asked_for += 1
            if self._asked_for > MOST_ASKED_FOR:
                return
            if self._asked_for == MOST_ASKED_FOR:
                record.msg = "further messages of this minute are not logged"
        moment = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(record.created))
        text = f"{moment} {record.levelname:7} {record.getMessage()}"
        # A full disk must not end a training, wherever the lines go.
        if getattr(record, "shown", True):
            with suppress(OSError):
                self._show(text)
        try:
            self._append(f"{text}\n")
        except OSError as error:
            self._file = None
            with suppress(OSError):
                self._show(f"the log file is given up: {error.strerror}")

    def _append(self, text: str) -> None:
        """Append to the file, which is opened again: it may have been moved away."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)
