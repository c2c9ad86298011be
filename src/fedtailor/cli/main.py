"""Which command was asked for, and how everything a user can do wrong ends: one line, exit code 2."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

COMMANDS = {
    "algorithms": ("fedtailor.cli.lists", "all methods, or one with its hyper-parameters"),
    "scenarios": ("fedtailor.cli.lists", "data, model and settings that belong together"),
    "run": ("fedtailor.cli.run", "train one method on one scenario"),
    "compare": ("fedtailor.cli.compare", "an experiment: methods, scenarios, seeds and grids; or a table of your own"),
    "report": ("fedtailor.cli.report", "tables and figures of what compare ran"),
    "federation": ("fedtailor.cli.federation", "train over machines that keep their own data"),
    "demo": ("fedtailor.cli.demo", "compare methods on rotated and relabelled digits, with figures"),
}
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code (0 done, 2 wrong usage, 130 interrupted)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        import fedtailor

        print(f"fedtailor {fedtailor.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return fail(f"there is no command {name!r}; the commands are {', '.join(COMMANDS)}")
    try:
        command: Callable[[list[str]], int] = getattr(import_module(COMMANDS[name][0]), name)
        return command(rest)
    except (ValueError, ArithmeticError) as error:
        return fail(str(error))
    except KeyboardInterrupt as stopped:
        print(f"\nfedtailor: {stopped or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe is gone (fedtailor algorithms | head): nothing left to say
        return 0


def fail(message: str) -> int:
    """Say what is wrong on stderr, in one line; the exit code of wrong usage."""
    print(f"fedtailor: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    head = [
        "usage: fedtailor COMMAND [options]",
        "",
        "Personalized federated learning: one fitted model per client.",
        "",
    ]
    return "\n".join([*head, *lines, "", "`fedtailor COMMAND --help` says more."])
