"""`fedtailor algorithms [NAME]`: all methods, or one with its hyper-parameters."""

import dataclasses
import inspect
import json
import re
import shutil
import sys
import textwrap
from functools import partial

from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli.hyper import parameters
from fedtailor.cli.names import names_and_json
from fedtailor.protocol import Algorithm

USAGE = "usage: fedtailor algorithms [NAME] [--json]"
ORDER = (
    *("local", "fedavg", "fedavgm", "finetune", "oracle", "ucfl", "ucfl-parallel", "hypcluster", "dapper", "mapper"),
    *("afl", "self-fl", "cgpfl", "cgpfl-heur", "fedprox", "scaffold", "cfl", "fedfomo", "pfedme", "ditto"),
    *("per-fedavg", "apfl", "l2gd", "ifca"),
    *("fedper", "fedrep", "lg-fedavg", "fedbn", "fedbabu", "fedrod", "fedala", "moon", "feddbe", "knn-per"),
    *("mr-mtl", "feddyn", "fedadam", "fedyogi", "fedadagrad", "fedem", "fedamp", "pacfl", "pfedhn"),
)
"""Families together; methods that are not listed come last."""
TRAINING = ("down", "up", "keeps")
"""What the list says of a client in training: what it receives and sends in a round, and what it keeps."""


def algorithms(arguments: list[str]) -> int:
    """The list of all methods, or all about one."""
    name, as_json = names_and_json(arguments, USAGE)
    if name is not None:
        _one(find_algorithm(name), as_json)
        return 0
    listed = sorted(Algorithm.registry, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    rows = [dataclasses.asdict(Algorithm.registry[name].about) for name in listed]
    print(json.dumps(rows, indent=2) if as_json else _listed(rows))
    return 0


def _one(kind: type[Algorithm], as_json: bool) -> None:
    about, found = dataclasses.asdict(kind.about), parameters(kind())
    if as_json:
        print(json.dumps({**about, "doc": inspect.getdoc(kind), "parameters": found}, indent=2))
        return
    print(f"{kind.about.name}: {kind.about.paper}\n\n{inspect.getdoc(kind)}\n")
    for name in (*TRAINING, "unseen"):
        print(f"{name:>7}: {about[name]}")
    print("\nHyper-parameters:")
    for row in found:
        print(f"  --{row['name']} (default {row['default']})\n      {row['doc']}")


def _listed(rows: list[dict[str, str]]) -> str:
    """A few lines a method, as wide as the terminal: its source, what travels in a round, and whom it serves how."""
    margin = " " * (2 + max(len(row["name"]) for row in rows))
    width = max(shutil.get_terminal_size().columns, 60) if sys.stdout.isatty() else 100
    fill = partial(textwrap.fill, width=width, initial_indent=margin, subsequent_indent=f"{margin}  ")
    head = "What a client receives (down) and sends (up) in a round, what it keeps, and what one that is unseen gets:"
    lines = [textwrap.fill(head, width), ""]
    for row in rows:
        source = re.match(r".*?\b\d{4}\b", row["paper"])
        lines.append(f"{row['name']:<{len(margin)}}{source[0] if source else row['paper']}")
        lines.append(fill("; ".join(f"{name}: {row[name]}" for name in TRAINING)))
        lines.append(fill(f"unseen: {row['unseen']}"))
    return "\n".join([*lines, "", "`fedtailor algorithms NAME` says more."])
