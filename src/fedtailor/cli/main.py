"""Which command was asked for, and that whatever goes wrong ends in one line on the standard error."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from fedtailor.cli import registry
from fedtailor.cli.failures import DONE, INTERRUPTED, WRONG, explain

TRACEBACK = "--traceback"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code (see `failures`). Nothing is raised, whatever happens."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    try:
        try:
            code = _run([argument for argument in given if argument != TRACEBACK])
        except SystemExit as asked:  # --help
            code = asked.code if isinstance(asked.code, int) else DONE
        sys.stdout.flush()  # while a full disk can still be reported
        return code
    except BaseException as error:
        if TRACEBACK in given:
            traceback.print_exc()
        code, said = explain(error)
        unwritten = _discard_output()
        if unwritten and isinstance(error, OSError):
            said = f"cannot write to the standard output: {unwritten}"
        # A terminal has shown ^C, or a bar, on the line that the cursor is in.
        _say(said, "\n" if code == INTERRUPTED and sys.stderr.isatty() else "")
        return code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return DONE if arguments else WRONG
    if arguments[0] in ("-V", "--version"):
        import fedtailor

        print(f"fedtailor {fedtailor.__version__}")
        return DONE
    with _interrupt_at_once():
        command = registry.find(arguments[0])
    return command(arguments[1:])


def _usage() -> str:
    summaries = registry.summaries()
    width = max(map(len, summaries))
    return "\n".join([
        "usage: fedtailor COMMAND [options]",
        "",
        "Personalized federated learning: one fitted model per client.",
        "",
        *(f"  {name:<{width}}  {what}" for name, what in summaries.items()),
        "",
        "`fedtailor COMMAND --help` says more; with --traceback, errors are printed as Python raises them.",
    ])  # fmt: skip


def _say(message: str, before: str = "") -> None:
    """A line on the standard error, if there is one left that takes it."""
    if message:
        with suppress(OSError, ValueError):
            print(f"{before}fedtailor: {message}", file=sys.stderr, flush=True)


@contextmanager
def _interrupt_at_once() -> Iterator[None]:
    """Ctrl-C ends the process: for imports, in which nothing is lost, and which would make other errors of it."""
    usual = threading.current_thread() is threading.main_thread() and \
        signal.getsignal(signal.SIGINT) is signal.default_int_handler  # fmt: skip
    if not usual:
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        _say("interrupted")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_missing_streams() -> None:
    """Where the standard output or error is closed (`>&-`), what is written there goes nowhere.

    Otherwise the next file that is opened would take its number, and stray lines of libraries its contents.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _discard_output() -> str:
    """Write what is still to be printed; if that fails, drop it, so that Python does not try again at its exit.

    Returns:
        Why it failed; "" if it did not.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _point_nowhere(sys.stdout)
        return "" if isinstance(error, BrokenPipeError) else getattr(error, "strerror", None) or str(error)
    return ""


def _point_nowhere(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
