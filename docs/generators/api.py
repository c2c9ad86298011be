"""The reference of the public names of fedtailor."""

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

import fedtailor
from generators.methods import registered
from generators.text import escaped, table

PACKAGES = {
    "data.federation": "Who holds which data: builders, partitioners, splits, data sets.",
    "data.tables": "Federations from tables: files or data frames with a column of clients.",
    "models": "Architectures, and adapters for Equinox, Flax and PyTorch.",
    "lab.scenarios": "Data, model and settings that belong together, by name.",
    "engine.runs": "Training, and what comes out of it.",
    "engine.training": "Participation, callbacks, and a run as a value.",
    "aggregation.pipelines": "What happens to messages on their way: clipping, noise, compression.",
    "models.metrics": "What is measured on clients' predictions.",
    "lab.report.plot": "The four figures that people ask for first, of runs in memory.",
    "aggregation.accounting": "Bytes, times over a network, and privacy that was spent.",
    "statistics.decision": "Intervals, tests, and who gains from sharing.",
    "deployment": "Trained runs in use: predict, export, enrol, unlearn, model cards.",
    "engine.storage": "Run directories and exported models.",
    "remote": "Federations of machines: what the commands `serve` and `join` do.",
    "lab.trackers": "Runs in MLflow, TensorBoard and Weights & Biases.",
    "engine.executors": "Who trains the clients: devices, and settings for them.",
    "aggregation": "Means of models, clusters and weights, for authors of methods.",
    "protocol": "The types that methods, clients and servers share, for authors.",
    "testing": "Checks of a method of your own, and problems with known solutions.",
}
"""Package below fedtailor -> what it is for."""

BEGINNING = """import numpy as np

import fedtailor as ft

federation = ft.scenarios.digits_rotated(seed=0)
run = ft.run(ft.FedAvg(), federation, ft.models.logistic(), rounds=2)
"""
"""What all examples go on from."""

FURTHER_BEGINNINGS = {
    "data.federation": """
from fedtailor.data.federation import Dataset

data = Dataset(np.zeros((60, 2)), np.arange(60) % 3)
""",
    "data.tables": """
import polars as pl

frame = pl.DataFrame(
    {
        "hospital": ["north", "south"] * 30,
        "age": np.arange(60) % 50 + 20.0,
        "ill": np.arange(60) % 3 == 0,
    }
)
""",
    "statistics.decision": """
import polars as pl

values = pl.DataFrame(
    [
        {"method": method, "client": client, "seed": seed, "value": start + 0.01 * seed}
        for method, start in (("local", 0.7), ("fedavg", 0.8))
        for client in "abc"
        for seed in range(3)
    ]
)
rows = pl.DataFrame(
    [
        {"method": method, "client": client, "seed": 0, "row": row, "correct": row > wrong}
        for method, wrong in (("local", 15), ("fedavg", 5))
        for client in "abc"
        for row in range(40)
    ]
)
""",
}
"""Package -> what the examples of its names go on from besides."""

WITHOUT_EXAMPLE = {
    "lab.scenarios": (
        "All are called alike: `ft.scenarios.digits_rotated(seed=0, clients=8)` is a"
        " federation, as with every other name, whose further arguments are keywords;"
        " `fedtailor scenarios NAME` shows the data, the model and the settings."
    ),
    "protocol": (
        "A method in one file, with most of these names, is in"
        " [a new method](../../write-an-algorithm.md). The others are for methods,"
        " transforms, metrics and executors that do more: each is used in fedtailor's own"
        " source."
    ),
}
"""Packages whose names have no example of their own -> what is written in their place."""


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    found = {f"api/{name}": _package(name) for name in PACKAGES}
    return found | {"api/index": _overview(), "api/fedtailor": _main_names()}


def names_of(package: str) -> list[str]:
    """The public names of a package that the reference documents."""
    module = import_module(f"fedtailor.{package}")
    main = [getattr(fedtailor, name) for name in main_names()]
    return [
        name
        for name in module.__all__
        if _is_documented(getattr(module, name)) and getattr(module, name) not in main
    ]


def main_names() -> list[str]:
    """The names of fedtailor itself but for modules and methods."""
    return [name for name in dir(fedtailor) if _is_documented(getattr(fedtailor, name))]


def _is_documented(value: Any) -> bool:
    """Whether a value is a class or a function, and no method, which has its page."""
    is_method = value in registered().values()
    return (inspect.isclass(value) or inspect.isroutine(value)) and not is_method


def summary(value: Any) -> str:
    """The first sentence of a docstring."""
    doc = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(doc.split())


def _overview() -> str:
    methods = [
        (f"[`{method.__name__}`](../methods/{name}.md)", escaped(summary(method)))
        for name, method in registered().items()
    ]
    rows = [
        (f"[`{name}`](fedtailor.md)", escaped(summary(getattr(fedtailor, name))))
        for name in main_names()
    ]
    packages = [
        (f"[`fedtailor.{name}`]({name}.md)", escaped(words))
        for name, words in PACKAGES.items()
    ]
    toctree = "\n".join(["fedtailor", *PACKAGES])
    return f"""# Names in Python

*For whom: you write Python with fedtailor, and look for a name.* `import fedtailor as ft` has the names that most
programs need; packages below it have the rest.

## Of fedtailor itself

{table(["name", "what it is"], rows)}

## Packages

{table(["package", "what it is for"], packages)}

## Methods

{table(["class", "method"], methods)}

```{{toctree}}
:hidden:
:titlesonly:

{toctree}
```
"""


def _main_names() -> str:
    blocks = [_directive(fedtailor, name) for name in main_names()]
    return (
        "# fedtailor\n\n*For whom: you write Python with fedtailor.* The names of"
        " `import fedtailor as ft`, with an example each. The examples go on from\n\n"
        f"```python\n{BEGINNING}```\n\n" + "\n".join(blocks)
    )


def _package(name: str) -> str:
    module = import_module(f"fedtailor.{name}")
    blocks = [_directive(module, public) for public in names_of(name)]
    others = [
        (f"`{public}`", escaped(repr(getattr(module, public))[:80]))
        for public in module.__all__
        if not _is_documented(getattr(module, public))
        and not inspect.ismodule(getattr(module, public))
        and getattr(module, public) not in registered().values()
    ]
    constants = (
        f"\n## Constants and types\n\n{table(['name', 'value'], others)}"
        if others
        else ""
    )
    introduction = (
        f"# fedtailor.{name}\n\n*For whom: you write Python with fedtailor.*"
        f" {escaped(PACKAGES[name])}\n\n"
    )
    if name in WITHOUT_EXAMPLE:
        introduction += f"{WITHOUT_EXAMPLE[name]}\n\n"
    else:
        introduction += (
            f"The examples go on from\n\n```python\n{beginning(name)}```\n\n"
        )
    return introduction + "\n".join(blocks) + constants


def beginning(package: str) -> str:
    """What the examples of a package go on from."""
    return BEGINNING + FURTHER_BEGINNINGS.get(package, "")


def _directive(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "autoexception"
    members = "   :members:\n" if kind == "autoclass" else ""
    return f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: {module.__name__}.{name}\n{members}```\n"
