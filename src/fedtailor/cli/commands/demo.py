"""`fedtailor demo`: compare methods on rotated and on relabelled digits, with
figures.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import fedtailor.algorithms as methods
from fedtailor._base.printable import say, say_block
from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.progress import explain_interrupt, progress_of
from fedtailor.engine.runs import run
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.lab import scenarios
from fedtailor.lab.report import StoredRun, costs, drawing
from fedtailor.lab.results.stored import RunsByScenario
from fedtailor.lab.results.tables import ReportTable
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.protocol import Algorithm

SCENARIOS = ("digits-rotated", "digits-permuted")
SEEDS = (0, 1, 2)
EVALUATE_EVERY = 2


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
    """Trains all methods on both scenarios, prints tables and draws figures."""
    options = parse(Options, arguments, "fedtailor demo")
    check_counts(options, "rounds")
    start_time = perf_counter()
    runs = {
        name: _train(scenarios.find(name), options.out / "runs" / name, options)
        for name in SCENARIOS
    }
    for name, runs_by_label in runs.items():
        demo_table(name, runs_by_label).show()
        say("")
    paths = draw_demo(runs, options.out / "figures")
    names = ", ".join(dict.fromkeys(path.stem for path in paths))
    say_block(
        f"Figures, PNG and SVG: {names}\nin {(options.out / 'figures').resolve()}"
    )
    n_runs = sum(
        len(seeds)
        for runs_by_label in runs.values()
        for seeds in runs_by_label.values()
    )
    say(f"{n_runs} runs in {perf_counter() - start_time:.0f} s")
    return 0


def methods_of(scenario: Scenario) -> dict[str, Algorithm]:
    """Label -> method of the demo, with the settings of the scenario."""
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
    """Trains the methods on a scenario; returns label -> runs, one for each seed."""
    runs_by_label: dict[str, list[StoredRun]] = {}
    rounds = options.rounds
    for seed in SEEDS:
        federation = scenario.build(seed)
        for label, algorithm in methods_of(scenario).items():
            name = label.replace(", ", "-").replace(" ", "-").lower()
            path = directory / f"{name}-{seed}"
            if options.fresh and (path / MANIFEST).exists():
                shutil.rmtree(path)
            title = f"{scenario.name}: {label}, seed {seed}"
            with (
                progress_of(title, rounds) as progress,
                explain_interrupt(
                    "stopped; `fedtailor demo` continues where it stopped"
                ),
            ):
                run(
                    algorithm,
                    federation,
                    scenario.model,
                    rounds,
                    seed=seed,
                    evaluate_every=EVALUATE_EVERY,
                    directory=path,
                    checkpoint_every=rounds,
                    resume=True,
                    progress=progress,
                )
            runs_by_label.setdefault(label, []).append(StoredRun(path))
    return runs_by_label


def demo_table(
    name: str, runs_by_label: Mapping[str, Sequence[StoredRun]]
) -> ReportTable:
    """A table of accuracies, traffic, and the time to FedAvg's best accuracy."""
    unit, rows = unit_of("accuracy"), []
    reference = costs.reference(runs_by_label)
    assert reference is not None  # FedAvg is one of the methods
    for label, runs in runs_by_label.items():
        spreads = [run.spread() for run in runs]
        mean = unit.number([spread["mean"] for spread in spreads])
        worst = unit.number([spread["worst"] for spread in spreads])
        times = costs.times_to_target(runs, runs_by_label[reference])
        rows.append([label, mean, worst, *costs.models_sent(runs), *times])
    columns = ["method", "accuracy,\n%", "worst\nclient, %"]
    columns += ["models\ndown", "models\nup", *costs.TIME_HEADERS]
    time_title = costs.time_title(reference, runs_by_label[reference])
    title = f"{name}, {len(SEEDS)} seeds; {time_title}"
    return ReportTable(title, columns, rows, note=costs.TIME_NOTE)


def draw_demo(runs: RunsByScenario, directory: Path) -> list[Path]:
    """Draws all figures of the demo."""
    return [
        *drawing.by_round(runs, directory / "accuracy-by-round"),
        *drawing.by_time(runs, directory / "accuracy-by-time"),
        *drawing.collaboration(runs, directory / "collaboration"),
        *drawing.silhouette(runs, directory / "silhouette"),
    ]
