"""Whatever goes wrong ends in one line, with an exit code, and never in a traceback."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import polars as pl
import pytest

from fedtailor._base.choice import MachineFailed
from fedtailor.cli import failures, main, registry
from fedtailor.cli.failures import explain
from fedtailor.engine.storage import Interrupted
from fedtailor.engine.storage.checkpoint import load_tree
from fedtailor.engine.storage.run_files import CHECKPOINT
from fedtailor.protocol import Algorithm


def failing(monkeypatch, error):
    """The command line, whose only command raises `error`."""

    def command(arguments):
        raise error

    monkeypatch.setattr(registry, "find", lambda name: command)
    # As if it were raised by fedtailor, and not in the code of these tests.
    monkeypatch.setattr(failures, "_own_location", lambda error: "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("lr is 0;\n it must be above 0"), 2, "lr is 0; it must be above 0"),
        (ValueError(), 2, "ValueError (test_failures.py, line "),
        (ZeroDivisionError("division by zero"), 2, "division by zero"),
        (MachineFailed("the port is closed"), 1, "fedtailor: the port is closed\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "x.csv"),
            2,
            "x.csv: Permission denied",
        ),
        (
            OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "b"),
            2,
            "a -> b: Invalid cross-device link",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "the standard output: No space left on device",
        ),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            2,
            "is not UTF-8",
        ),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (MemoryError(), 1, "out of memory; use fewer clients"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes"),
            1,
            "out of memory",
        ),
        (
            pl.exceptions.ComputeError("no such column"),
            1,
            "a table cannot be read or written: no such column",
        ),
        (
            pl.exceptions.PanicException("index out of bounds"),
            1,
            "a table cannot be read or written: index out",
        ),
        (KeyError("rounds"), 1, "unexpected KeyError (test_failures.py, line "),
        (
            AttributeError("'list' object has no attribute 'get'"),
            1,
            "fault of fedtailor: please report",
        ),
        (AssertionError(), 1, "unexpected AssertionError"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted(), 130, "interrupted"),
        (
            Interrupted("stopped; continue with --resume"),
            130,
            "stopped; continue with --resume",
        ),
    ],
    ids=repr,
)
def test_every_kind_of_failure_is_one_line(monkeypatch, capsys, error, code, said):
    failing(monkeypatch, error)
    assert main(["anything"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("fedtailor: ") and shown.err.count("\n") == 1
    assert said in shown.err and len(shown.err) > len("fedtailor: \n")


def test_what_fails_in_ones_own_code_is_told_by_its_line(monkeypatch):
    with pytest.raises(KeyError) as found:
        {}["share"]
    code, said = explain(found.value)
    line = found.traceback[-1].lineno + 1
    assert code == 2
    assert (
        said == f"your code fails in test_failures.py, line {line}: KeyError: 'share'"
    )


def test_what_fails_on_what_ones_own_method_returns_names_the_method(monkeypatch):
    inside = AttributeError("'NoneType' object has no attribute 'model'")
    kind = SimpleNamespace(__module__="mine")
    monkeypatch.setattr(failures, "_own_location", lambda error: "")
    monkeypatch.setitem(Algorithm.registry, "blend", kind)
    for error in (inside, ValueError("not enough values to unpack (expected 2)")):
        code, said = explain(error)
        assert code == 1 and "does blend return what the table of functions" in said
    assert explain(ValueError("lr is 0")) == (2, "lr is 0")


def test_developers_are_shown_the_traceback(monkeypatch, capsys):
    failing(monkeypatch, KeyError("rounds"))
    assert main(["anything", "--traceback"]) == 1
    shown = capsys.readouterr().err
    assert (
        shown.startswith("Traceback")
        and "raise error" in shown
        and shown.splitlines()[-1].startswith("fedtailor: ")
    )


def test_an_interrupt_that_a_library_makes_another_error_of_is_one():
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("half imported") from error
    except RuntimeError as error:
        assert explain(error) == (130, "interrupted")


def test_the_end_of_a_pipe_is_no_failure(monkeypatch, capsys):
    failing(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert main(["anything"]) == 0
    assert capsys.readouterr().err == ""


def test_what_would_steer_a_terminal_is_not_printed():
    code, shown = explain(ValueError("a\x1b[31m\r\nb\x9bc\td"))
    assert (code, shown) == (2, r"a\x1b[31m b\x9bc d")


def test_an_interrupt_that_python_drops_is_sent_again(monkeypatch, capsys):
    class Dying:
        def __del__(self):
            raise KeyboardInterrupt

    def command(arguments):
        Dying()
        time.sleep(10)
        return 0

    monkeypatch.setattr(registry, "find", lambda name: command)
    assert main(["anything"]) == 130
    assert capsys.readouterr().err == "fedtailor: interrupted\n"


PROGRAM = "import sys; from fedtailor.cli import main; sys.exit(main(sys.argv[1:]))"


def command_line(*arguments, program=PROGRAM, redirect=""):
    """The command line in a process of its own, with a shell's redirections."""
    words = [sys.executable, "-c", program, *arguments]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
    }
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirect}', "bash", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="this system has no /dev/full"
)
def test_a_full_disk_on_the_standard_output():
    done = command_line("--help", redirect=">/dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        "fedtailor: the standard output: No space left on device\n",
    )
    unbuffered = PROGRAM.replace(
        "sys;", "sys; sys.stdout.reconfigure(write_through=True);"
    )
    done = command_line("--help", program=unbuffered, redirect=">/dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        "fedtailor: the standard output: No space left on device\n",
    )
    done = command_line("nothing", redirect="2>/dev/full")
    assert (done.returncode, done.stdout) == (2, "")


def test_closed_streams():
    done = command_line("--help", redirect=">&-")
    assert (done.returncode, done.stderr) == (0, "")
    done = command_line("nothing", redirect=">&- 2>&-")
    assert done.returncode == 2


def test_the_reader_of_a_pipe_may_leave():
    done = command_line("--help", redirect="| true")
    assert done.stderr == ""


def test_ctrl_c_while_libraries_are_imported():
    program = (
        "import contextlib, signal, sys\n"
        "from fedtailor.cli import main, registry\n"
        "def find(name):\n"
        "    with contextlib.suppress(BaseException):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    raise ImportError('half imported')\n"
        "registry.find = find\n"
        "sys.exit(main(['run']))\n"
    )
    done = command_line(program=program)
    assert (done.returncode, done.stderr, done.stdout) == (
        130,
        "fedtailor: interrupted\n",
        "",
    )


def test_the_users_own_handler_of_ctrl_c_stays(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:

        def find(name):
            signal.raise_signal(signal.SIGINT)
            return lambda arguments: 0

        monkeypatch.setattr(registry, "find", find)
        assert main(["anything"]) == 0 and heard == [1]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_run_that_is_stopped_by_a_signal_is_saved_and_says_which_one_by_its_exit_code(
    tmp_path, monkeypatch, capsys, number, code
):
    @contextmanager
    def stopping(title, rounds):
        yield lambda training, evaluated: os.kill(os.getpid(), number)

    monkeypatch.setattr("fedtailor.cli.commands.run.progress_of", stopping)
    monkeypatch.setattr(Interrupted, "code", 130)  # put back after the test
    out = tmp_path / "run"
    arguments = ["local", "digits-rotated", "--clients", "2"]
    assert main(["run", *arguments, "--rounds", "3", "--out", str(out)]) == code
    assert capsys.readouterr().err.endswith(
        f"fedtailor: stopped; continue with --out {out} --resume\n"
    )
    assert load_tree(out / CHECKPOINT)["round"] == 1
