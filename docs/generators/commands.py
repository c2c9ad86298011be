"""Every command with its options, as the parser knows them."""

import contextlib
import io
import warnings
from dataclasses import dataclass
from typing import Any

import tyro

from fedtailor.cli import registry
from fedtailor.cli.commands.federation import COMMANDS as FEDERATION
from generators.text import escaped, table

EXAMPLE_RUN = ("ditto", "digits-rotated")
"""Method and scenario whose options the page of `fedtailor run` shows."""
VARIANTS: dict[str, list[list[str]]] = {
    "run": [[*EXAMPLE_RUN]],
    "compare": [["EXPERIMENT.toml"], ["TABLE.csv"]],
    "diagnose": [["TABLE.csv"], ["digits-rotated"]],
    "federation": [[name] for name in FEDERATION],
}
"""Command -> the words after which it has other options."""
NOTES = {
    "run": (
        "The options are those of the run, the hyper-parameters of the method"
        " ([methods](../methods.md)) and the sizes of the scenario."
        f" Here: `fedtailor run {' '.join(EXAMPLE_RUN)}`."
    ),
}


@dataclass(frozen=True)
class Option:
    """One option or argument of a command."""

    name: str
    values: str
    default: str
    doc: str


class _Parsed(BaseException):
    """What a command hands to the parser. No error that a command would catch."""

    def __init__(self, target: Any, program: str, config: Any) -> None:
        self.target, self.program, self.config = target, program, config


def page() -> str:
    """The page of all commands."""
    lines = [
        "# Commands",
        "",
        (
            "*For whom: you use fedtailor in a terminal, and look for an option.* This"
            " page is made from the program's own parser; `fedtailor COMMAND --help`"
            " shows the same. For output that programs read see"
            " [scripts and agents](agents.md)."
        ),
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    lines += [
        f"| [`{name}`](#fedtailor-{name}) | {escaped(summary)} |"
        for name, summary in registry.summaries().items()
    ]
    lines += [
        "",
        (
            "Exit codes: 0 done, 1 the machine or fedtailor failed, 2 wrong input, 130"
            " Ctrl-C, 143 SIGTERM. With `--traceback`, errors are printed as Python raises"
            " them."
        ),
    ]
    for name in registry.summaries():
        lines += ["", f"## fedtailor {name}", ""]
        usage = usage_of(name)
        if usage:
            lines += [f"```text\n{usage}\n```", ""]
        if name in NOTES:
            lines += [NOTES[name], ""]
        variants = VARIANTS.get(name, [[]])
        for words in variants:
            found = options(name, words)
            if found is None:
                continue
            program, summary, rows = found
            if len(variants) > 1:
                lines += [f"### {program}", ""]
            if summary:
                lines += [escaped(summary), ""]
            lines.append(
                table(
                    ["option", "values", "default", "what it is"],
                    (
                        (
                            f"`{row.name}`",
                            f"`{row.values}`" if row.values else "",
                            f"`{row.default}`" if row.default else "",
                            escaped(row.doc),
                        )
                        for row in rows
                    ),
                )
            )
    return "\n".join(lines) + "\n"


def usage_of(name: str) -> str:
    """What `fedtailor NAME --help` prints where the options depend on more words."""
    output = io.StringIO()
    with contextlib.suppress(_Parsed, SystemExit), contextlib.redirect_stdout(output):
        _called(name, ["--help"])
    return output.getvalue().strip()


def options(name: str, words: list[str]) -> tuple[str, str, list[Option]] | None:
    """Program, description and options of a command after some words.

    Returns:
        None if the command has no parsed options.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            _called(name, [*words, "--help"])
        except _Parsed as parsed:
            return _options(parsed)
        except SystemExit:
            return None
    return None


def _called(name: str, arguments: list[str]) -> None:
    """Calls a command whose parser raises `_Parsed` instead of parsing."""

    def parse(target: Any, *, prog: str, config: Any = (), **_: Any) -> None:
        raise _Parsed(target, prog, config)

    original = tyro.cli
    tyro.cli = parse
    try:
        registry.find(name)(arguments)
    finally:
        tyro.cli = original


def _options(parsed: _Parsed) -> tuple[str, str, list[Option]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(
            parsed.target, prog=parsed.program, config=parsed.config
        )
    rows = []
    for action in parser._actions:
        if action.dest == "help":
            continue
        doc, _, default = (action.help or "").rpartition(" (default: ")
        if not default.endswith(")") or not doc:
            doc, default = action.help or "", ""
        required = doc.endswith("(required)")
        rows.append(
            Option(
                name=", ".join(action.option_strings) or str(action.metavar),
                values="" if action.metavar is None else _values(str(action.metavar)),
                default="required" if required else default.removesuffix(")"),
                doc=doc.removesuffix("(required)").strip(),
            )
        )
    description = " ".join((parser.description or "").split())
    return parsed.program, description, rows


def _values(metavar: str) -> str:
    """A placeholder of the parser, shorter."""
    return metavar.replace("{None}|", "").replace("|", " or ").strip("{}")
