"""`fedtailor algorithms [NAME]`: all methods, grouped, or one with its
hyper-parameters.
"""

import dataclasses
import json
import sys
import textwrap
from typing import TYPE_CHECKING, get_args

from fedtailor._base.about import About, ModelsReceived, Sees
from fedtailor._base.choice import check_choice, require
from fedtailor._base.printable import output_width, say, say_block, say_status
from fedtailor.cli.described_methods import built_in_methods, others_offer_methods
from fedtailor.cli.names import parse_name_and_json

if TYPE_CHECKING:
    from fedtailor.protocol import Algorithm

USAGE = (
    "usage: fedtailor algorithms [NAME] [--by travels|keeps|sees|validation] [--json]"
)
ORDER = """
local fedavg fedavgm finetune oracle ucfl ucfl-parallel hypcluster dapper mapper
afl self-fl cgpfl cgpfl-heur fedprox scaffold cfl fedfomo pfedme ditto
per-fedavg apfl l2gd ifca
fedper fedrep lg-fedavg fedbn fedbabu fedrod fedala moon feddbe knn-per feddpa flexlora
mr-mtl feddyn fedadam fedyogi fedadagrad fedem fedamp pacfl pfedhn
fedproto fedgh fedtgp heterofl fedmd
fedfew fedlc ccvr fedas fedpac fedex-lora hetlora gpfl fedcp
""".split()  # noqa: SIM905 (a line a family; quotes and commas would hide the names)
"""The methods in the order of the list, by family; other methods come last."""

FACTS = {
    "travels": "what of the server's models a client receives in a round",
    "keeps": "whether a client keeps anything between rounds",
    "sees": "what of the clients the server computes with",
    "validation": "whether a client uses validation data where it has any",
}
"""Facts that the list can be grouped by -> description."""
GROUPS = {
    "travels": get_args(ModelsReceived),
    "keeps": ("nothing", "something"),
    "sees": get_args(Sees),
    "validation": ("not used", "used"),
}
"""The groups of each fact, in the order of the list."""
ABOUT_FIELDS = {
    "travels": "models_received",
    "keeps": "client_keeps",
    "sees": "server_sees",
    "unseen": "unseen_clients_get",
}
"""Words of the list -> fields of `About`, where the names differ."""
LEGEND = (
    (
        "sees: sums = weighted sums over clients; sums, numbers = such sums, and a"
        " number or two of each client (its loss, which model it chose); models = each"
        " client's model or gradient; data = examples, or a summary of each client's"
        " inputs. Where sums suffice, and for ucfl with streams = NUMBER, a"
        " federation's secure_aggregation shows the coordinator nothing else. It is"
        " refused for mapper, fedem, fedlc, feddbe and fedrod, of which sums show"
        " clients; some others need the setting steps."
    ),
    (
        "`fedtailor algorithms --by FACT` groups by travels, keeps, sees or validation;"
        " `fedtailor algorithms NAME` says all about one. All of it is about default"
        " settings."
    ),
)


def algorithms(arguments: list[str]) -> int:
    """Prints the list of all methods, or one method."""
    fact, remaining = _parse_fact(arguments)
    name, as_json = parse_name_and_json(remaining, USAGE)
    require(name is None or fact is None, USAGE)
    if name is not None:
        from fedtailor.algorithms.find import find_algorithm

        _print_method(find_algorithm(name, own_files=True), as_json)
        return 0
    known = _known_methods()
    other_names = sorted(name for name in known if name not in ORDER)
    names = [name for name in ORDER if name in known] + other_names
    methods = [known[name] for name in names]
    if as_json:
        say_block(json.dumps([as_dict(about) for about in methods], indent=2))
    else:
        say_block(_format_list(methods, fact or "travels"))
    return 0


def _known_methods() -> dict[str, About]:
    """All methods by name. Those that cannot be loaded are said."""
    # Importing JAX takes seconds. A program that has imported it may have methods of its
    # own.
    if "jax" not in sys.modules and not others_offer_methods():
        return built_in_methods()
    from fedtailor.algorithms.find import load_installed_algorithms
    from fedtailor.protocol import Algorithm

    for problem in load_installed_algorithms():
        say_status(f"not listed: {problem}")
    return {name: method.about for name, method in Algorithm.registry.items()}


def _parse_fact(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the fact after `--by` or None, and the other arguments.

    Raises:
        ValueError: there is no such fact.
    """
    # "--by=sees" is "--by" and "sees".
    words: list[str] = []
    for argument in arguments:
        words += argument.replace("--by=", "--by ", 1).split(" ", 1)
    if "--by" not in words:
        return None, arguments
    index = words.index("--by")
    require(len(words) > index + 1, f"--by needs one of {', '.join(FACTS)}")
    check_choice(words[index + 1], FACTS, "fact to group by")
    return words[index + 1], words[:index] + words[index + 2 :]


def _print_method(method: "type[Algorithm]", as_json: bool) -> None:
    """Prints the facts and the hyper-parameters of a method."""
    from fedtailor._base.field_docs import doc_without_fields
    from fedtailor.cli.hyper import parameters

    rows, doc = parameters(method()), doc_without_fields(method)
    if as_json:
        content = {**as_dict(method.about), "doc": doc, "parameters": rows}
        say_block(json.dumps(content, indent=2))
        return
    say_block(f"{method.about.name}: {method.about.paper}\n\n{doc}\n")
    for word in ("down", "up", "keeps", "sees", "validation", "unseen"):
        say(f"{word:>10}: {fact_of(method.about, word) or 'not used'}")
    say("", "Hyper-parameters:")
    for row in rows:
        say(f"  --{row['name']} (default {row['default']})")
        say(f"      {row['doc']}")


def as_dict(about: About) -> dict[str, str]:
    """The facts about a method for JSON, where `models_received` is "travels"."""
    return {
        "travels" if name == "models_received" else name: value
        for name, value in dataclasses.asdict(about).items()
    }


def fact_of(about: About, word: str) -> str:
    """The fact about a method that a word of the list stands for."""
    return getattr(about, ABOUT_FIELDS.get(word, word))


def group(about: About, fact: str) -> str:
    """The group of a method if the list is grouped by a fact."""
    if fact == "keeps":
        return "nothing" if about.client_keeps == "nothing" else "something"
    if fact == "validation":
        return "used" if about.validation else "not used"
    return fact_of(about, fact)


def _format_list(methods: list[About], fact: str) -> str:
    """Formats the list, grouped by a fact, with one line for each method."""
    width = max(output_width(), 60)
    # "keeps" is the last column, because its text may need a second line.
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
            f"{word:<{column_width}}"
            for word, column_width in zip(aligned, widths, strict=False)
        )
        first_columns = "  " + "".join(padded)
        return textwrap.wrap(
            last,
            width,
            initial_indent=first_columns,
            subsequent_indent=" " * len(first_columns),
            break_long_words=False,
        )

    lines = textwrap.wrap(f"{len(methods)} methods, by {FACTS[fact]}", width)
    lines += ["", *line(header)]
    for heading in GROUPS[fact]:
        members = [about for about in methods if group(about, fact) == heading]
        if members:
            lines += ["", f"{fact}: {heading}"]
        for about in sorted(members, key=_sort_key):
            lines += line(rows[about.name])
    lines.append("")
    for text in LEGEND:
        lines += textwrap.wrap(text, width)
    return "\n".join(lines)


def _sort_key(about: About) -> tuple[int, ...]:
    """The key that sorts methods with the same facts next to each other."""
    return tuple(
        GROUPS[fact].index(group(about, fact))
        for fact in ("travels", "sees", "keeps", "validation")
    )


def _cell(about: About, fact: str) -> str:
    if fact == "validation":
        return "used" if about.validation else "-"
    return fact_of(about, fact)
