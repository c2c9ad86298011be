"""A page for each method, of what the method and the suite say of it."""

import inspect
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import fedtailor.algorithms
from conformance.examples import OPT_OUTS
from fedtailor._base.field_docs import doc_without_fields
from fedtailor.cli.commands.algorithms import GROUPS, ORDER, fact_of, group
from fedtailor.cli.hyper import parameters
from fedtailor.protocol import Algorithm
from fedtailor.testing import CHECKS
from generators import measured
from generators.text import escaped, paragraphs, sentences, table

FACTS = {
    "down": "The server sends a client, in a round",
    "up": "A client sends the server, in a round",
    "keeps": "A client keeps from round to round",
    "sees": "The server computes with",
    "validation": "Validation data decide",
    "unseen": "A client that never trained gets",
}
"""Fact of `About` -> how the page of a method puts it."""

SEES = {
    "nothing": "nothing of the clients",
    "sums": "weighted sums over clients, which secure aggregation can form",
    "sums, numbers": (
        "weighted sums over clients, and a number or two of each client, such as its loss"
    ),
    "models": "each client's model or gradient",
    "data": "examples of clients, or a summary of each client's inputs",
}
COLUMNS = {
    "nothing": "the server sees nothing",
    "sums": "sums over clients",
    "sums, numbers": "sums, and a number or two of each client",
    "models": "each client's model",
    "data": "examples, or summaries of inputs",
}
"""What the server sees -> the column of the overview."""
SUITS = {
    "nothing": "clients do not need each other's models, or their networks differ",
    "a part": "clients share one part of the task, such as its features, and differ in the rest",
    "one model": "clients resemble each other enough for one common model",
    "one of several": "clients form groups, or differ by degrees, and nobody knows how",
    "several": "each client is a mixture of a few kinds, or should choose among models",
}
"""What a client receives -> of which clients that makes sense."""
ROUND_TIMES = Path(__file__).parents[2] / "benchmarks" / "measured" / "algorithms.json"
CHEAP, DEAR = 1.25, 1.75
"""Times FedAvg's, up to which and from which a round is called cheap and dear."""
WORDS = re.compile(
    r"\b(?:the|a|their|this) papers?\b|\bpaper's\b|\breleased code\b"
    r"|\bthis implementation\b|\bnot in the papers?\b",
    re.IGNORECASE,
)
"""Marks a sentence that compares this implementation with its source."""
MODEL_FOR = {
    "fedbn": 'ft.models.cnn(norm="batch")',
    "feddpa": "ft.models.lora(ft.models.mlp(hidden=64), local_rank=8)",
    "fedex-lora": "ft.models.lora(ft.models.mlp(hidden=64), local_rank=64)",
    "flexlora": "ft.models.lora(ft.models.mlp(hidden=64))",
    "hetlora": "ft.models.lora(ft.models.mlp(hidden=64))",
}
ADAPTERS = "a model with low-rank adapters: without them it is FedAvg"
NEEDS = {
    "oracle": "a population whose groups are known in advance, which made data have",
    "fedbn": "a model with normalisation layers: without one it is FedAvg",
    "feddpa": "a model with two low-rank adapters of each weight",
    "fedex-lora": ADAPTERS,
    "flexlora": ADAPTERS,
    "hetlora": ADAPTERS,
}
"""What a method needs that most do not."""


def registered() -> dict[str, type[Algorithm]]:
    """The methods of this package, in the order of the command line's list."""
    for name in fedtailor.algorithms.__all__:
        getattr(fedtailor.algorithms, name)
    return {name: Algorithm.registry[name] for name in ORDER}


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    return {
        f"methods/{name}": page(name, method) for name, method in registered().items()
    }


def overview() -> str:
    """What docs/methods.md shows of all methods: what a client receives against what the
    server sees, and the papers. `PYTHONPATH=docs:src:tests python -m generators.methods`
    prints it.
    """
    known = registered()
    rows = []
    for received in GROUPS["travels"]:
        row = [f"**{received}**"]
        for seen in GROUPS["sees"]:
            found = [
                _link(name, italic=group(method.about, "keeps") == "something")
                for name, method in known.items()
                if method.about.models_received == received
                and method.about.server_sees == seen
            ]
            row.append(", ".join(found))
        rows.append(row)
    papers = [(_link(name), _source(known[name]) or "-") for name in sorted(known)]
    return f""":::{{container}} matrix

{table(["a client receives", *COLUMNS.values()], rows)}
:::

## By paper

{table(["method", "source"], papers)}"""


def _link(name: str, italic: bool = False) -> str:
    mark = "*" if italic else ""
    return f"{mark}[{name}](generated/methods/{name}.md){mark}"


def page(name: str, method: type[Algorithm]) -> str:
    """The page of one method."""
    parts = [
        f"# {name}",
        "*For whom: you consider this method, or compare an implementation with ours.*",
        f"**{escaped(method.about.paper)}**",
        paragraphs(doc_without_fields(method)),
        "## Use it",
        example(name, method),
        "## When to use it",
        _when(name, method),
        "## What travels and what stays",
        _facts(method),
        "## Hyper-parameters",
        _parameters(method),
        "## Properties that the tests prove",
        _properties(name),
        *_departures(method),
        *_claims(name),
        *_figures(name),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def example(name: str, method: type[Algorithm]) -> str:
    """How to train with a method, in Python and on the command line."""
    note = f"It needs {NEEDS[name]}.\n\n" if name in NEEDS else ""
    return f"""{note}```python
{code(name, method)}```

```sh
fedtailor run {name} digits-rotated
```"""


def code(name: str, method: type[Algorithm]) -> str:
    """The example of a method's page in Python, which the tests run."""
    model = MODEL_FOR.get(name, "ft.models.mlp(hidden=64)")
    return f"""import fedtailor as ft

federation = ft.scenarios.digits_rotated(seed=0)
run = ft.run(ft.{method.__name__}(), federation, {model}, rounds=10)
print(run.summary())
"""


def _source(method: type[Algorithm]) -> str:
    found = re.match(r".*?\b\d{4}\b", method.about.paper)
    return found[0] if found else ""


def _facts(method: type[Algorithm]) -> str:
    about = method.about
    said = {fact: fact_of(about, fact) for fact in FACTS} | {
        "sees": SEES[about.server_sees]
    }
    said["validation"] = said["validation"] or "nothing"
    if about.sums_if:
        said["sees"] += f"; sums only if {about.sums_if}"
    rows = [(FACTS[fact], escaped(words)) for fact, words in said.items()]
    return (
        "With default settings. Counts are of models; the ledger of a run counts bytes.\n\n"
        + table(["", ""], rows)
    )


def _when(name: str, method: type[Algorithm]) -> str:
    """Which clients a method suits, and what speaks against it, from its facts."""
    about, times = method.about, _times_fedavgs()
    good, bad = [SUITS[about.models_received]], []
    if about.client_keeps != "nothing" and about.models_received != "nothing":
        good.append(
            f"each client can keep {escaped(about.client_keeps)} between rounds"
        )
        bad.append("clients rarely take part twice, or must keep nothing")
    elif about.models_received != "nothing":
        good.append("clients come and go, since they keep nothing between rounds")
    if about.server_sees == "nothing":
        good.append("nothing may leave a client")
    elif about.server_sees == "sums":
        good.append(
            "the server may see sums only"
            " ([secure aggregation](../../secure-aggregation.md))"
        )
    else:
        reason = f"the server must not see {SEES[about.server_sees]}"
        if about.sums_if:
            reason += f" (it needs sums only if {escaped(about.sums_if)})"
        bad.append(reason)
    if about.in_common != "the network" and name != "local":
        good.append(
            "networks differ between clients: what they have in common is"
            f" {about.in_common} ([how](../../networks.md))"
        )
    if about.models_received == "several":
        bad.append("the downlink is slow: several models travel in each round")
    if about.validation:
        bad.append("clients have no validation rows, with which this method decides")
    if name in times and times[name] >= DEAR:
        bad.append(
            f"computing is scarce: a round took {times[name]:.1f} times as long as"
            " FedAvg's ([measured](../../speed.md#methods))"
        )
    elif name in times and times[name] <= CHEAP and name != "fedavg":
        good.append(
            "rounds must be short: one took"
            f" {times[name]:.2f} times as long as FedAvg's"
            " ([measured](../../speed.md#methods))"
        )
    parts = ["Use it when", _bullets(good)]
    if bad:
        parts += ["Take another when", _bullets(bad)]
    return "\n\n".join(parts)


@cache
def _times_fedavgs() -> dict[str, float]:
    """Method -> the time of a round, measured, over FedAvg's in the same turns."""
    rows = json.loads(ROUND_TIMES.read_text())["rows"]
    return {row[0]: float(row[2]) for row in rows}


def _parameters(method: type[Algorithm]) -> str:
    rows = [
        (f"`--{row['name']}`", f"`{row['default']}`", escaped(row["doc"]))
        for row in parameters(method())
    ]
    note = (
        "Names as on the command line; in Python `--sgd.lr 0.1` is"
        f" `ft.{method.__name__}(sgd=ft.SGD(lr=0.1))`.\n\n"
    )
    if not rows:
        return "None."
    shown = note if any("." in row[0] for row in rows) else ""
    return shown + table(["option", "default", "what it is"], rows)


def _properties(name: str) -> str:
    rows = []
    for check, function in CHECKS.items():
        reason = OPT_OUTS.get((check, name))
        claim = " ".join((inspect.getdoc(function) or "").split()).split(". ")[0]
        rows.append(
            (
                check,
                "yes" if reason is None else f"no: {escaped(reason)}",
                escaped(claim.rstrip(".")),
            )
        )
    return (
        "What holds for every method, and is checked for this one"
        " ([how](../../conformance.md)).\n\n"
        + table(["property", "holds", "what is checked"], rows)
    )


def _departures(method: type[Algorithm]) -> list[str]:
    """What the documentation of a method says of its paper and its released code."""
    said = [
        escaped(sentence)
        for sentence in sentences(doc_without_fields(method))
        if WORDS.search(sentence)
    ]
    said += [
        f"`--{row['name']}`: {escaped(row['doc'])}"
        for row in parameters(method())
        if WORDS.search(row["doc"])
    ]
    if not said:
        return []
    return [
        "## Where it follows or leaves its paper",
        (
            "What the documentation of the method says of its source, sentence by"
            " sentence. [What is reproduced](../../reproduction.md) has the evidence."
        ),
        _bullets(said),
    ]


def _claims(name: str) -> list[str]:
    rows = []
    for ordering, better in measured.claims(name):
        other = ordering.below if better else ordering.above
        words = (
            f"**{escaped(ordering.above)}** better than {escaped(ordering.below)}"
            if better
            else f"{escaped(ordering.above)} better than **{escaped(other)}**"
            if other == ordering.below
            else f"{escaped(other)} better than **{escaped(ordering.below)}**"
        )
        rows.append((escaped(ordering.where), words, ordering.gain, ordering.verdict))
    if not rows:
        return []
    return [
        "## Published orderings, measured here",
        (
            "What papers publish about this method (in bold) beside another, and the"
            " difference measured here with its 95 % interval over seeds. Most were"
            " measured at a smaller size than published"
            " ([sizes and quotes](../../reproduction.md)). *yes*: the interval excludes"
            " zero on the side that was published; *no*: on the other side; *open*:"
            " it contains zero."
        ),
        table(["where", "published", "difference here", "verdict"], rows),
    ]


def _figures(name: str) -> list[str]:
    rows = [
        (
            escaped(f"{figure.source} ({figure.experiment})"),
            escaped(figure.column),
            escaped(figure.label),
            figure.published or "-",
            figure.text,
            str(figure.seeds),
        )
        for figure in measured.figures()
        if measured.method_of(figure.experiment, figure.label) == name
    ]
    if not rows:
        return [
            "## Measured numbers",
            "This method is part of no experiment whose results are kept.",
        ]
    return [
        "## Measured numbers",
        (
            "Means over seeds with their 95 % intervals (Student's), from `results/`,"
            " where each experiment says what it measures, its sizes and its machine. A"
            " name that ends in `-quick` is a smaller size than the published one: such a"
            " number shows an order of methods, and is not comparable with the published"
            " figure."
        ),
        table(["experiment", "data", "method", "published", "here", "seeds"], rows),
    ]


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"* {item}" for item in items)


if __name__ == "__main__":
    print(overview(), end="")
