"""`fedtailor diagnose TABLE|SCENARIO`: who differs, who gains from sharing, what to
train, before any training.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedtailor.cli.options import check_counts, check_seeds, parse
from fedtailor.cli.own_table import changed_options
from fedtailor.cli.sizes import sized, sizes_of
from fedtailor.diagnosis import RESTS_ON, Recommendation
from fedtailor.executors import Settings
from fedtailor.experiments import scenarios
from fedtailor.experiments.diagnose import Advice
from fedtailor.experiments.diagnose import diagnose as ask
from fedtailor.experiments.scenario import Scenario
from fedtailor.federation import Federation
from fedtailor.models import Architecture, logistic
from fedtailor.protocol import require
from fedtailor.storage.digests import finite
from fedtailor.tables import ENDINGS, TableOptions, from_table

if TYPE_CHECKING:
    import polars as pl

USAGE = "fedtailor diagnose TABLE.csv|TABLE.parquet|SCENARIO [options]"

CLIENTS_SHOWN, PAIRS_SHOWN = 20, 10


@dataclass(frozen=True)
class Options:
    """Options of a diagnosis."""

    seed: int = 0
    """Of the data's split and the initial model."""
    devices: int | None = None
    """Devices to use (all by default)."""
    json: bool = False
    """Print one JSON object, with all clients and pairs, instead of tables."""

    def __post_init__(self) -> None:
        check_counts(self, "devices")
        check_seeds("seed", self.seed)


@dataclass(frozen=True)
class OwnTableOptions(Options, TableOptions):
    """Options of a diagnosis of a table of one's own."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        TableOptions.__post_init__(self)


def diagnose(arguments: list[str]) -> int:
    """Print what one probe of a table's or a scenario's clients says."""
    if not arguments or arguments[0].startswith("-"):
        if "-h" in arguments or "--help" in arguments:
            print(
                f"usage: {USAGE}\n\nThe options depend on the data: fedtailor diagnose"
                " digits-rotated --help"
            )
            return 0
        raise ValueError(f"usage: {USAGE}; `fedtailor scenarios` lists the scenarios")
    name, rest = arguments[0], arguments[1:]
    if name.lower().endswith(ENDINGS) or Path(name).is_file():
        path = Path(name)
        require(
            name.lower().endswith(ENDINGS), f"{name} is no table ({', '.join(ENDINGS)})"
        )
        options: Options = parse(OwnTableOptions, rest, f"fedtailor diagnose {name}")
        federation, model, about = _own_table(path, options)
    else:
        scenario = scenarios.find(name)
        scenario, options = _parse(scenario, rest)
        federation, model = scenario.build(options.seed), scenario.model
        about = federation.describe()
    advice = ask(
        federation, model, seed=options.seed, settings=Settings(devices=options.devices)
    )
    if options.json:
        print(json.dumps(finite(as_dict(advice)), allow_nan=False))
    else:
        print(f"{about}\n\n{as_text(advice)}")
    return 0


def _own_table(path: Path, options: Options) -> tuple[Federation, Architecture, str]:
    assert isinstance(options, OwnTableOptions)
    table = from_table(path, seed=options.seed, **changed_options(options))
    return (
        table,
        logistic(),
        "\n".join([table.describe(), *(f"  {note}" for note in table.notes)]),
    )


def _parse(scenario: Scenario, arguments: list[str]) -> tuple[Scenario, Options]:
    """The scenario with its sizes, and the options.

    Raises:
        ValueError: a wrong option or value, in one line.
    """
    import tyro

    options = Options()
    sizes = sizes_of(scenario, [field.name for field in fields(options)])

    def together(sizes: Any, options: Any) -> tuple[Scenario, Options]:
        return sized(scenario, sizes), options

    flat = tyro.conf.arg(name="")
    together.__annotations__ = {
        "sizes": Annotated[type(sizes), flat],
        "options": Annotated[Options, flat],
    }
    together.__defaults__ = (sizes, options)
    together.__doc__ = f"Diagnose {scenario.name}: {scenario.description}."
    return parse(together, arguments, f"fedtailor diagnose {scenario.name}")


def as_dict(advice: Advice) -> dict[str, Any]:
    """All that was found, for JSON."""
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
    """The sentences, the methods to train, and the tables, each with what it rests
    on.
    """
    clients, pairs = advice.diagnosis.clients(), advice.diagnosis.pairs()
    most_unlike = pairs.sort("gradient_ratio", descending=True, maintain_order=True)
    parts = ["\n".join(advice.sentences())]
    parts.append(
        f"Train (sent in a round; the probe has sent {_bytes(advice.probe_bytes)}):"
    )
    parts.append(
        _lines(
            ["method", "down", "to each", "up", "start with", "because"],
            map(_row, advice.race.entries),
        )
    )
    parts.append("Clients" + _first(CLIENTS_SHOWN, len(clients)))
    parts.append(_shown(clients.head(CLIENTS_SHOWN)))
    parts.append(
        "Pairs, by gradients the most unlike ones first"
        + _first(PAIRS_SHOWN, len(pairs))
    )
    parts.append(_shown(most_unlike.head(PAIRS_SHOWN)))
    columns = [name for name in (*clients.columns, *pairs.columns) if name in RESTS_ON]
    parts.append(
        "What the columns rest on:\n"
        + "\n".join(f"  {name}: {RESTS_ON[name]}" for name in columns)
    )
    return "\n\n".join(parts)


def _row(entry: Recommendation) -> list[str]:
    settings = (
        ", ".join(f"{name} {value}" for name, value in entry.settings.items()) or "-"
    )
    sent = (entry.bytes_down, entry.bytes_down_unicast, entry.bytes_up)
    return [entry.method, *map(_bytes, sent), settings, entry.because]


def _first(most: int, there: int) -> str:
    return f" (the first {most} of {there}; --json has all):" if there > most else ":"


def _shown(frame: "pl.DataFrame") -> str:
    cells = [[_cell(value) for value in row] for row in frame.iter_rows()]
    return _lines([name.replace("_", " ") for name in frame.columns], cells)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _lines(header: list[str], rows: Any) -> str:
    """Columns, aligned by spaces."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _bytes(count: int) -> str:
    """A number of bytes in the unit in which it has up to four digits."""
    units = ["B", "kB", "MB", "GB", "TB"]
    value, unit = float(count), 0
    while value >= 1000 and unit + 1 < len(units):
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {units[unit]}"
