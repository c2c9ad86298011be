"""A page for each method, of what the method and the suite say of it."""

import inspect
import re
from collections.abc import Iterable

import fedtailor.algorithms
from conformance.examples import OPT_OUTS
from fedtailor._base.field_docs import doc_without_fields
from fedtailor.cli.commands.algorithms import GROUPS, LEGEND, ORDER, fact_of, group
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
    found = {
        f"methods/{name}": page(name, method) for name, method in registered().items()
    }
    return found | {"methods/index": overview()}


def overview() -> str:
    """All methods in a table for each group, with links to their pages."""
    lines = [
        "# All methods",
        "",
        (
            "*For whom: you know what may travel and what must stay, and look for the"
            " methods that keep to it.* [The methods](../../methods.md) explains the"
            " columns and helps to choose."
        ),
        "",
    ]
    for heading in GROUPS["travels"]:
        rows = [
            (
                f"[{name}]({name}.md)",
                _source(method),
                *(fact_of(method.about, fact) or "nothing" for fact in FACTS),
            )
            for name, method in registered().items()
            if group(method.about, "travels") == heading
        ]
        lines += [
            f"## A client receives: {heading}",
            "",
            table(["method", "source", *FACTS], rows),
        ]
    lines += ["", *(f"{escaped(text)}\n" for text in LEGEND[:1])]
    names = "\n".join(registered())
    lines += [f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{names}\n```", ""]
    return "\n".join(lines)


def page(name: str, method: type[Algorithm]) -> str:
    """The page of one method."""
    parts = [
        f"# {name}",
        "*For whom: you consider this method, or compare an implementation with ours.*",
        f"**{escaped(method.about.paper)}**",
        paragraphs(doc_without_fields(method)),
        "## Use it",
        example(name, method),
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
