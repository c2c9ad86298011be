"""`fedtailor algorithms [NAME]`: all methods, grouped, or one with its
hyper-parameters.
"""

import dataclasses
import inspect
import json
import shutil
import sys
import textwrap
from typing import get_args

from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli.hyper import parameters
from fedtailor.cli.names import parse_name_and_json
from fedtailor.protocol import About, Algorithm, check_choice, require
from fedtailor.protocol.about import ModelsReceived, Sees

USAGE = (
    "usage: fedtailor algorithms [NAME] [--by travels|keeps|sees|validation] [--json]"
)
ORDER = """
local fedavg fedavgm finetune oracle ucfl ucfl-parallel hypcluster dapper mapper
afl self-fl cgpfl cgpfl-heur fedprox scaffold cfl fedfomo pfedme ditto
per-fedavg apfl l2gd ifca
fedper fedrep lg-fedavg fedbn fedbabu fedrod fedala moon feddbe knn-per
mr-mtl feddyn fedadam fedyogi fedadagrad fedem fedamp pacfl pfedhn
""".split()  # noqa: SIM905 (a line a family; quotes and commas would hide the names)
"""Families together; methods that are not listed come last."""

FACTS = {
    "travels": "what of the server's models a client receives in a round",
    "keeps": "whether a client keeps anything between rounds",
    "sees": "what of the clients the server computes with",
    "validation": "whether a client uses validation data where it has any",
}
"""What the list is grouped by -> in words."""
GROUPS = {
    "travels": get_args(ModelsReceived),
    "keeps": ("nothing", "something"),
    "sees": get_args(Sees),
    "validation": ("not used", "used"),
}
"""The groups of each fact, in the order in which they are listed."""
FIELDS = {
    "travels": "models_received",
    "keeps": "client_keeps",
    "sees": "server_sees",
    "unseen": "unseen_clients_get",
}
"""The short words of the list -> the fields of `About`, where they have longer names."""
LEGEND = (
    (
        "sees: sums = weighted sums over clients; sums, numbers = such sums, and a"
        " number or two of each client (its loss, which model it chose); models = each"
        " client's model or gradient; data = examples, or a summary of each client's"
        " inputs. Where sums suffice, and for ucfl with streams = NUMBER, a"
        " federation's secure_aggregation shows the coordinator nothing else."
    ),
    (
        "`fedtailor algorithms --by FACT` groups by travels, keeps, sees or validation;"
        " `fedtailor algorithms NAME` says all about one. All of it is about default"
        " settings."
    ),
)


def algorithms(arguments: list[str]) -> int:
    """The list of all methods, or all about one."""
    fact, rest = _grouped_by(arguments)
    name, as_json = parse_name_and_json(rest, USAGE)
    require(name is None or fact is None, USAGE)
    if name is not None:
        _one(find_algorithm(name), as_json)
        return 0
    others = sorted(name for name in Algorithm.registry if name not in ORDER)
    names = [name for name in ORDER if name in Algorithm.registry] + others
    methods = [Algorithm.registry[name].about for name in names]
    if as_json:
        print(json.dumps([dataclasses.asdict(about) for about in methods], indent=2))
    else:
        print(_listed(methods, fact or "travels"))
    return 0


def _grouped_by(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The fact after `--by`, and the other arguments.

    Raises:
        ValueError: there is no such fact.
    """
    # "--by=sees" is "--by" and "sees".
    words: list[str] = []
    for argument in arguments:
        words += argument.replace("--by=", "--by ", 1).split(" ", 1)
    if "--by" not in words:
        return None, arguments
    place = words.index("--by")
    require(len(words) > place + 1, f"--by needs one of {', '.join(FACTS)}")
    check_choice(words[place + 1], FACTS, "fact to group by")
    return words[place + 1], words[:place] + words[place + 2 :]


def _one(kind: type[Algorithm], as_json: bool) -> None:
    """Print all about one method."""
    rows, doc = parameters(kind()), inspect.getdoc(kind)
    if as_json:
        about = dataclasses.asdict(kind.about)
        print(json.dumps({**about, "doc": doc, "parameters": rows}, indent=2))
        return
    print(f"{kind.about.name}: {kind.about.paper}\n\n{doc}\n")
    for word in ("down", "up", "keeps", "sees", "validation", "unseen"):
        print(f"{word:>10}: {fact_of(kind.about, word) or 'not used'}")
    print("\nHyper-parameters:")
    for row in rows:
        print(f"  --{row['name']} (default {row['default']})")
        print(f"      {row['doc']}")


def fact_of(about: About, word: str) -> str:
    """What a method says by one word of the list."""
    return getattr(about, FIELDS.get(word, word))


def group(about: About, fact: str) -> str:
    """The group of a method in the list by one fact."""
    if fact == "keeps":
        return "nothing" if about.client_keeps == "nothing" else "something"
    if fact == "validation":
        return "used" if about.validation else "not used"
    return fact_of(about, fact)


def _listed(methods: list[About], fact: str) -> str:
    """The methods under the headings of one fact's groups, with the other facts.

    A line a method, as wide as the terminal.
    """
    width = max(shutil.get_terminal_size().columns, 60) if sys.stdout.isatty() else 100
    # What a client keeps comes last, as the only text that may need a second line.
    columns = [name for name in ("travels", "sees", "validation") if name != fact]
    columns.append("keeps")
    rows = {}
    for about in methods:
        rows[about.name] = [about.name, *(_cell(about, column) for column in columns)]
    header = ["", *columns]
    cells = zip(header, *rows.values(), strict=True)
    widths = [2 + max(map(len, column)) for column in cells]

    def line(words: list[str]) -> list[str]:
        *aligned, last = words
        padded = (
            f"{word:<{room}}" for word, room in zip(aligned, widths, strict=False)
        )
        start = "  " + "".join(padded)
        return textwrap.wrap(
            last,
            width,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
        )

    lines = textwrap.wrap(f"{len(methods)} methods, by {FACTS[fact]}", width)
    lines += ["", *line(header)]
    for heading in GROUPS[fact]:
        members = [about for about in methods if group(about, fact) == heading]
        if members:
            lines += ["", f"{fact}: {heading}"]
        for about in sorted(members, key=_alike):
            lines += line(rows[about.name])
    lines.append("")
    for text in LEGEND:
        lines += textwrap.wrap(text, width)
    return "\n".join(lines)


def _alike(about: About) -> tuple[int, ...]:
    """Puts methods beside those whose facts are the same."""
    return tuple(
        GROUPS[fact].index(group(about, fact))
        for fact in ("travels", "sees", "keeps", "validation")
    )


def _cell(about: About, fact: str) -> str:
    if fact == "validation":
        return "used" if about.validation else "-"
    return fact_of(about, fact)
