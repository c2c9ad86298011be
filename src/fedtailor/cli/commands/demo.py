"""`fedtailor demo`: compare methods on rotated and on relabelled digits, with
figures.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import fedtailor.algorithms as methods
from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.progress import progress_of
from fedtailor.experiments import scenarios
from fedtailor.experiments.scenario import Scenario
from fedtailor.protocol import Algorithm
from fedtailor.report import StoredRun, costs, drawing
from fedtailor.report.stored import Runs
from fedtailor.report.tables import Table
from fedtailor.report.units import unit_of
from fedtailor.runs import run
from fedtailor.storage import Interrupted
from fedtailor.storage.run_files import MANIFEST

NAMES = ("digits-rotated", "digits-permuted")
SEEDS = (0, 1, 2)
EVERY = 2


@dataclass(frozen=True)
class Options:
    """Compare six methods on two scenarios over three seeds; print a table, save
    figures.
    """

    out: Path = Path("fedtailor-demo")
    """Where runs and figures go; runs that are already there are not repeated."""
    rounds: int = 40
    """Communication rounds of every run."""
    fresh: bool = False
    """Repeat runs that are already there."""


def demo(arguments: list[str]) -> int:
    """The main comparison, from data to figures."""
    options = parse(Options, arguments, "fedtailor demo")
    check_counts(options, "rounds")
    started = perf_counter()
    runs = {
        name: _train(scenarios.find(name), options.out / "runs" / name, options)
        for name in NAMES
    }
    for name, found in runs.items():
        table(name, found).show()
        print()
    written = draw(runs, options.out / "figures")
    names = ", ".join(dict.fromkeys(path.stem for path in written))
    print(f"Figures, PNG and SVG: {names}\nin {(options.out / 'figures').resolve()}")
    done = sum(len(seeds) for found in runs.values() for seeds in found.values())
    print(f"{done} runs in {perf_counter() - started:.0f} s")
    return 0


def compared(scenario: Scenario) -> dict[str, Algorithm]:
    """The methods of the demo, as the scenario recommends them."""
    ucfl = scenario.algorithm("ucfl")
    assert isinstance(ucfl, methods.UCFL)
    return {
        "Local": scenario.algorithm("local"),
        "FedAvg": scenario.algorithm("fedavg"),
        "FineTune": scenario.algorithm("finetune"),
        "Oracle": scenario.algorithm("oracle"),
        "UCFL, stream each": replace(ucfl, streams=None),
        "UCFL, auto": replace(ucfl, streams="auto"),
    }


def _train(
    scenario: Scenario, directory: Path, options: Options
) -> dict[str, list[StoredRun]]:
    """Method -> its runs, one a seed."""
    found: dict[str, list[StoredRun]] = {}
    rounds = options.rounds
    for seed in SEEDS:
        federation = scenario.build(seed)
        for label, algorithm in compared(scenario).items():
            name = label.replace(", ", "-").replace(" ", "-").lower()
            path = directory / f"{name}-{seed}"
            if options.fresh and (path / MANIFEST).exists():
                shutil.rmtree(path)
            title = f"{scenario.name}: {label}, seed {seed}"
            with progress_of(title, rounds) as progress:
                try:
                    run(
                        algorithm,
                        federation,
                        scenario.model,
                        rounds,
                        seed=seed,
                        evaluate_every=EVERY,
                        directory=path,
                        checkpoint_every=rounds,
                        resume=True,
                        progress=progress,
                    )
                except Interrupted as stopped:
                    raise Interrupted(
                        "stopped; `fedtailor demo` goes on where it was"
                    ) from stopped
            found.setdefault(label, []).append(StoredRun(path))
    return found


def table(name: str, found: Mapping[str, Sequence[StoredRun]]) -> Table:
    """Accuracy over clients and seeds, traffic, and time to FedAvg's best accuracy."""
    unit, rows = unit_of("accuracy"), []
    reference = costs.reference(found)
    assert reference is not None  # FedAvg is one of the methods
    for label, runs in found.items():
        spreads = [run.spread() for run in runs]
        mean = unit.number([spread["mean"] for spread in spreads])
        worst = unit.number([spread["worst"] for spread in spreads])
        times = costs.times_to_target(runs, found[reference])
        rows.append([label, mean, worst, *costs.models(runs), *times])
    columns = ["method", "accuracy,\n%", "worst\nclient, %"]
    columns += ["models\ndown", "models\nup", *costs.TIME_HEADERS]
    time = costs.time_title(reference, found[reference])
    title = f"{name}, {len(SEEDS)} seeds; {time}"
    return Table(title, columns, rows, note=costs.TIME_NOTE)


def draw(runs: Runs, directory: Path) -> list[Path]:
    """All figures of the demo."""
    return [
        *drawing.by_round(runs, directory / "accuracy-by-round"),
        *drawing.by_time(runs, directory / "accuracy-by-time"),
        *drawing.collaboration(runs, directory / "collaboration"),
        *drawing.silhouette(runs, directory / "silhouette"),
    ]
