"""`fedtailor diagnose TABLE|SCENARIO`: who differs, who gains from sharing, what to
train, before any training.
"""

import json
import math
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor._base.choice import require
from fedtailor._base.digests import finite
from fedtailor._base.printable import one_line, say_block
from fedtailor.algorithms import FedAvg
from fedtailor.cli.advice import as_typed, as_typed_text
from fedtailor.cli.names import print_help_or_raise
from fedtailor.cli.options import (
    check_counts,
    check_seeds,
    parse,
    parse_parts,
)
from fedtailor.cli.sizes import sizes_of, with_sizes
from fedtailor.cli.table_experiment import changed_options, table_description
from fedtailor.data.federation import Federation
from fedtailor.data.tables import ENDINGS, TableOptions, from_table
from fedtailor.engine.executors import Settings
from fedtailor.lab import scenarios
from fedtailor.lab.experiments.diagnose import Advice
from fedtailor.lab.experiments.diagnose import diagnose as diagnose_federation
from fedtailor.lab.experiments.option_text import architecture_of_text
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.models import Architecture, conv1d, logistic
from fedtailor.statistics.diagnosis import RESTS_ON, RaceEntry

if TYPE_CHECKING:
    import polars as pl

USAGE = "fedtailor diagnose TABLE.csv|TABLE.parquet|SCENARIO [options]"

MAX_CLIENTS, MAX_PAIRS = 20, 10
SMALLEST_P = 0.0001
"""Smaller p-values are not printed: tails so far out are not known."""


@dataclass(frozen=True)
class Options:
    """Options of a diagnosis."""

    seed: int = 0
    """Random seed for the split and the initial model."""
    warm: int = 0
    """Rounds of FedAvg before the probe. A network that has learned nothing may hide who
    resembles whom; 10 rounds show it."""
    devices: int | None = None
    """Devices to use (all by default)."""
    json: bool = False
    """Print one JSON object, with all clients and pairs, instead of tables."""

    def __post_init__(self) -> None:
        check_counts(self, "devices")
        require(
            self.warm >= 0,
            f"warm is {self.warm}; it must be a number of rounds, 0 or more",
        )
        check_seeds("seed", self.seed)


@dataclass(frozen=True)
class TableDiagnosisOptions(Options, TableOptions):
    """Options of a diagnosis of a table of one's own."""

    model: str | None = None
    """The model: its name, with arguments after a colon (default: linear; conv1d
    for windows).
    """

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        TableOptions.__post_init__(self)


def diagnose(arguments: list[str]) -> int:
    """Prints the diagnosis of the clients of a table or a scenario."""
    if not arguments or arguments[0].startswith("-"):
        code = print_help_or_raise(
            arguments,
            USAGE,
            "A scenario has its own sizes: fedtailor diagnose digits-rotated --help",
            "; `fedtailor scenarios` lists the scenarios",
        )
        parse(TableDiagnosisOptions, ["--help"], "fedtailor diagnose TABLE.csv")
        return code
    name, remaining = arguments[0], arguments[1:]
    if name.lower().endswith(ENDINGS) or Path(name).is_file():
        path = Path(name)
        require(
            name.lower().endswith(ENDINGS),
            f"{name} is not a table ({', '.join(ENDINGS)})",
        )
        options: Options = parse(
            TableDiagnosisOptions, remaining, f"fedtailor diagnose {name}"
        )
        federation, model, description = _read_user_table(path, options)
        fedavg = FedAvg()
    else:
        scenario = scenarios.find(name)
        scenario, options = _parse(scenario, remaining)
        federation, model = scenario.build(options.seed), scenario.model
        description = federation.describe()
        fedavg = scenario.algorithm("fedavg")
        assert isinstance(fedavg, FedAvg)
    advice = diagnose_federation(
        federation,
        model,
        seed=options.seed,
        warm=options.warm,
        fedavg=fedavg,
        settings=Settings(devices=options.devices),
    )
    if options.json:
        say_block(description, file=sys.stderr)
        say_block(json.dumps(finite(as_dict(advice)), allow_nan=False))
    else:
        say_block(f"{description}\n\n{as_text(advice)}")
    return 0


def _read_user_table(
    path: Path, options: Options
) -> tuple[Federation, Architecture, str]:
    """Returns the federation, the model, and a description of the table."""
    assert isinstance(options, TableDiagnosisOptions)
    with as_typed():
        table = from_table(path, seed=options.seed, **changed_options(options))
    if options.model is not None:
        model = architecture_of_text(options.model)
    else:
        model = logistic() if options.window is None else conv1d()
    return table, model, as_typed_text(table_description(table))


def _parse(scenario: Scenario, arguments: list[str]) -> tuple[Scenario, Options]:
    """Parses the parameters of the scenario and the options.

    Raises:
        ValueError: an option or a value is wrong; the message is one line.
    """
    options = Options()
    sizes = sizes_of(scenario, [field.name for field in fields(options)])
    parsed = parse_parts(
        {"sizes": sizes, "options": options},
        f"Diagnose {scenario.name}: {scenario.description}.",
        arguments,
        f"fedtailor diagnose {scenario.name}",
    )
    return with_sizes(scenario, parsed["sizes"]), parsed["options"]


def as_dict(advice: Advice) -> dict[str, Any]:
    """The diagnosis as a dict for JSON."""
    return {
        "federation": advice.federation,
        "sentences": advice.sentences(),
        "cannot_tell": advice.race.doubt != "",
        "race": [asdict(entry) for entry in advice.race.entries],
        "probe_bytes": advice.probe_bytes,
        "clients": advice.diagnosis.clients().to_dicts(),
        "pairs": advice.diagnosis.pairs().to_dicts(),
        "rests_on": RESTS_ON,
    }


def as_text(advice: Advice) -> str:
    """The diagnosis as text: sentences, methods to train, tables and explanations."""
    clients, pairs = advice.diagnosis.clients(), advice.diagnosis.pairs()
    sorted_pairs = pairs.sort("gradient_ratio", descending=True, maintain_order=True)
    header = ["method", "down", "to each", "up", "start with", "because"]
    methods = [_recommendation_cells(entry) for entry in advice.race.entries]
    columns = [name for name in (*clients.columns, *pairs.columns) if name in RESTS_ON]
    explanations = [f"  {name}: {RESTS_ON[name]}" for name in columns]
    pairs_title = "Pairs, by gradients the most unlike ones first"
    parts = [
        "\n".join(map(one_line, advice.sentences())),
        "Train (sent in a round; the probe has sent"
        f" {_format_bytes(advice.probe_bytes)}):",
        _align_columns(header, methods),
        "Clients" + _truncation_note(MAX_CLIENTS, len(clients)),
        _format_table(clients.head(MAX_CLIENTS)),
        pairs_title + _truncation_note(MAX_PAIRS, len(pairs)),
        _format_table(sorted_pairs.head(MAX_PAIRS)),
        "\n".join(["What the columns rest on:", *explanations]),
    ]
    return "\n\n".join(parts)


def _recommendation_cells(entry: RaceEntry) -> list[str]:
    settings = [f"{name} {value}" for name, value in entry.settings.items()]
    traffic = (entry.bytes_down, entry.bytes_down_unicast, entry.bytes_up)
    settings_text = ", ".join(settings) or "-"
    cells = [entry.method, *map(_format_bytes, traffic), settings_text, entry.because]
    return list(map(one_line, cells))


def _truncation_note(limit: int, total: int) -> str:
    return f" (the first {limit} of {total}; --json has all):" if total > limit else ":"


def _format_table(frame: "pl.DataFrame") -> str:
    cells = []
    for row in frame.iter_rows(named=True):
        cells.append([_format_cell(value, name) for name, value in row.items()])
    return _align_columns([name.replace("_", " ") for name in frame.columns], cells)


def _format_cell(value: Any, column: str) -> str:
    if not isinstance(value, float):
        return one_line(value)
    # Not a number: nothing is known. Infinite: clients do not differ at all.
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "no limit"
    if column.endswith("_p") and value < SMALLEST_P:
        return f"<{SMALLEST_P}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _align_columns(header: list[str], rows: list[list[str]]) -> str:
    """Formats rows of text with aligned columns."""
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _format_bytes(count: int) -> str:
    """Formats a number of bytes with a unit from B to TB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
