"""The entry point of the command line: finds a command, runs it and reports errors.

Each error is reported in one line on the standard error. Importing fedtailor takes
seconds, so little is imported before the handling of Ctrl-C is set up.
"""

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from fedtailor._base.printable import one_line, say, say_block, say_status
from fedtailor._base.xla_flags import wait_without_limit

TRACEBACK = "--traceback"
INTERRUPTED = 130
"""The exit code after Ctrl-C, following shells: 128 + 2 (128 + 15 after SIGTERM).

The other exit codes are in `failures`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line. It never raises an error.

    Returns:
        The exit code (see `failures`).
    """
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    with _exit_on_interrupt():
        from fedtailor.cli.failures import explain

    try:
        with _resend_dropped_interrupts(), _clean_warnings():
            code = _run(
                [argument for argument in command_line if argument != TRACEBACK]
            )
        _flush()
        return code
    except BaseException as error:
        if TRACEBACK in command_line:
            import traceback

            say_status(*traceback.format_exc().rstrip().split("\n"))
        code, message = explain(error)
        output_error = _discard_output()
        if output_error and isinstance(error, OSError) and error.filename is None:
            message = f"the standard output: {output_error}"
        # On a terminal, the line of the cursor already contains ^C or a progress bar.
        _print_error(message, below=code >= INTERRUPTED and sys.stderr.isatty())
        return code


def _run(arguments: list[str]) -> int:
    from fedtailor.cli import registry
    from fedtailor.cli.names import HELP

    if not arguments or arguments[0] in (*HELP, "help"):
        say_block(_usage(registry.summaries()))
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        import fedtailor

        say(f"fedtailor {fedtailor.__version__}")
        return 0
    with _exit_on_interrupt(), _without_collections():
        command = registry.find(arguments[0])
    wait_without_limit()
    try:
        return command(arguments[1:])
    except SystemExit as exit_request:  # --help
        return exit_request.code if isinstance(exit_request.code, int) else 0


def _usage(summaries: dict[str, str]) -> str:
    width = max(map(len, summaries))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
    commands = "\n".join(lines)
    return f"""usage: fedtailor COMMAND [options]

Personalized federated learning: one fitted model per client.

{commands}

Exit codes: 0 done, 1 the machine or fedtailor failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
`fedtailor COMMAND --help` says more; with {TRACEBACK}, errors are printed as Python raises them."""


_MAX_MESSAGE = 2000
"""Characters of a message; what it quotes, such as a column's name, may be of any length."""


def _print_error(message: str, *, below: bool = False) -> None:
    """Prints a line on the standard error, if that is still open.

    Args:
        message: the line; nothing is printed if it is empty.
        below: whether to leave the line of the cursor first.
    """
    try:
        if len(message) > _MAX_MESSAGE:
            half = _MAX_MESSAGE // 2
            left_out = len(message) - 2 * half
            message = f"{message[:half]} [{left_out:,} characters] {message[-half:]}"
        line = f"fedtailor: {message}"
        if message:
            say_status(*(["", line] if below else [line]))
    except (OSError, ValueError):
        _redirect_to_devnull(sys.stderr)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collects no garbage inside the context, where modules are imported, and then
    freezes what was allocated.

    Collections find nothing in what modules define, and take a tenth of the time in
    which a small run starts and ends. Nothing is changed where JAX is imported already:
    a program that runs a command may have garbage of its own.
    """
    if "jax" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _clean_warnings() -> Iterator[None]:
    """Prints warnings of libraries, which may quote a name, as lines that do nothing."""
    show = warnings.showwarning

    def show_cleaned(
        message: Warning | str, category: type[Warning], *where: Any, **options: Any
    ) -> None:
        show(one_line(message), category, *where, **options)

    warnings.showwarning = show_cleaned
    try:
        yield
    finally:
        warnings.showwarning = show


# Ctrl-C.


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process at once.

    During imports nothing can be lost, and a half-imported library would turn the
    interrupt into another error.
    """
    # Only the main thread may set handlers. The handler of a host program is kept.
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not in_main_thread or handler is not signal.default_int_handler:
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        _print_error("interrupted")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _resend_dropped_interrupts() -> Iterator[None]:
    """Sends a Ctrl-C again that Python drops in a callback of the garbage collector."""
    previous_hook = sys.unraisablehook

    def resend(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # A thread sends it after this hook has returned.
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            previous_hook(unraisable)

    sys.unraisablehook = resend
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


# The standard streams.


def _open_missing_streams() -> None:
    """Redirects a closed standard output or error (`>&-`) to the null device.

    Otherwise the next opened file would get its file descriptor, and output of
    libraries would end up in that file.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _flush() -> None:
    """Flushes the standard output, while an error such as a full disk can be reported.

    Raises:
        OSError: the output cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the standard output") from error


def _discard_output() -> str:
    """Flushes the standard output, or drops the output if that fails.

    Without dropping it, Python would try again at its exit.

    Returns:
        The reason of the failure, or "".
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_devnull(sys.stdout)
    except (OSError, ValueError) as error:
        _redirect_to_devnull(sys.stdout)
        return getattr(error, "strerror", None) or str(error)
    return ""


def _redirect_to_devnull(stream: TextIO) -> None:
    """Redirects a stream to the null device."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
