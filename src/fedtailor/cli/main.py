"""Which command was asked for.

Whatever goes wrong ends in one line on the standard error. Little is imported before
Ctrl-C is taken care of: importing fedtailor takes seconds.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

TRACEBACK = "--traceback"
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it (128 + 2; 128 + 15 after SIGTERM).

The others are in `failures`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Nothing is raised, whatever happens.

    Returns:
        The exit code (see `failures`).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    with _interrupts_end_imports():
        from fedtailor.cli.failures import explain

    try:
        with _interrupts_arrive():
            code = _run([argument for argument in given if argument != TRACEBACK])
        _flush()
        return code
    except BaseException as error:
        if TRACEBACK in given:
            import traceback

            traceback.print_exc()
        code, said = explain(error)
        unwritten = _discard_output()
        if unwritten and isinstance(error, OSError) and error.filename is None:
            said = f"the standard output: {unwritten}"
        # A terminal has shown ^C, or a bar, on the line that the cursor is in.
        _say(said, "\n" if code >= INTERRUPTED and sys.stderr.isatty() else "")
        return code


def _run(arguments: list[str]) -> int:
    from fedtailor.cli import registry

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage(registry.summaries()))
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        import fedtailor

        print(f"fedtailor {fedtailor.__version__}")
        return 0
    with _interrupts_end_imports():
        command = registry.find(arguments[0])
    try:
        return command(arguments[1:])
    except SystemExit as asked:  # --help
        return asked.code if isinstance(asked.code, int) else 0


def _usage(summaries: dict[str, str]) -> str:
    width = max(map(len, summaries))
    lines = [f"  {name:<{width}}  {what}" for name, what in summaries.items()]
    commands = "\n".join(lines)
    return f"""usage: fedtailor COMMAND [options]

Personalized federated learning: one fitted model per client.

{commands}

Exit codes: 0 done, 1 the machine or fedtailor failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
`fedtailor COMMAND --help` says more; with {TRACEBACK}, errors are printed as Python raises them."""


def _say(message: str, before: str = "") -> None:
    """A line on the standard error, if there is one left that takes it."""
    try:
        if message:
            print(f"{before}fedtailor: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _point_nowhere(sys.stderr)


# Ctrl-C.


@contextmanager
def _interrupts_end_imports() -> Iterator[None]:
    """Ctrl-C ends the process at once.

    Nothing is lost yet, and half-imported libraries would make other errors of it.
    """
    # Only the main thread may set handlers, and a host program's own one stays.
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not in_main_thread or handler is not signal.default_int_handler:
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


@contextmanager
def _interrupts_arrive() -> Iterator[None]:
    """A Ctrl-C that Python drops is sent again.

    It drops the errors in callbacks of the garbage collector.
    """
    before = sys.unraisablehook

    def send_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # From a thread, once this hook is left.
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(dropped)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


# The standard streams.


def _open_missing_streams() -> None:
    """Let what is written to a closed standard output or error (`>&-`) go nowhere.

    Otherwise the next file that is opened would take its number, and stray lines of
    libraries its contents.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _flush() -> None:
    """Write what is still to be printed, while a full disk can be reported.

    Raises:
        OSError: it cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the standard output") from error


def _discard_output() -> str:
    """Write what is still to be printed; if that fails, drop it.

    Python would try again at its exit.

    Returns:
        Why it failed; "" if it did not.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _point_nowhere(sys.stdout)
    except (OSError, ValueError) as error:
        _point_nowhere(sys.stdout)
        return getattr(error, "strerror", None) or str(error)
    return ""


def _point_nowhere(stream: TextIO) -> None:
    """Let what is written to a stream from now on be lost."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
