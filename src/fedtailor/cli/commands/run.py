"""`fedtailor run ALGORITHM SCENARIO`: train one method on one scenario."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.digests import finite
from fedtailor._base.printable import say_block
from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli.advice import as_typed
from fedtailor.cli.names import print_help_or_raise
from fedtailor.cli.options import check_counts, check_seeds, parse_parts
from fedtailor.cli.progress import explain_interrupt, progress_of
from fedtailor.cli.sizes import sizes_of, with_sizes
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import Run, simulate
from fedtailor.engine.runs import run as train
from fedtailor.engine.runs.summary import as_lines
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.engine.training import Sampling, as_participation
from fedtailor.lab import scenarios
from fedtailor.lab.experiments.option_text import (
    AUTO,
    architecture_of_text,
    asynchronous_of_text,
    uplink_of_texts,
)
from fedtailor.lab.scenarios.scenario import ADAPTER_RATE, Scenario
from fedtailor.lab.trackers import find_trackers
from fedtailor.models.low_rank import has_adapters
from fedtailor.models.precision import FileDType, dtype_of
from fedtailor.protocol import Algorithm, is_hyperparameters
from fedtailor.protocol.plain import check_trains

USAGE = "fedtailor run ALGORITHM SCENARIO [options]"


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    rounds: int
    """Communication rounds (the scenario's by default)."""
    model: str | None = None
    """Another model than the scenario's: its name, with arguments after a colon
    (mlp:hidden=64), or a function of a file (net.py:Net)."""
    precision: FileDType = "float32"
    """The type of the model's numbers: bfloat16 in training and in messages, which halves
    these; mixed in training only, so that parameters stay in float32. So do sums."""
    seed: int = 0
    """Random seed for the split, the initial models and everything else."""
    participation: float = 1.0
    """How many clients take part in a round: a share (up to 1), or a number (from 2)."""
    sampling: Sampling = "uniform"
    """How clients are sampled in each round: a fixed number, uniformly (uniform) or in
    proportion to training samples (samples); or each independently with the probability
    --participation (poisson), as the accounting of noise assumes."""
    uplink: tuple[str, ...] = ()
    """What happens to an update on its way to the mean: robust-mean:median, clip:0.5,
    gaussian-noise:1.0,norm=0.5, byzantine:sign-flip (in a simulation), top-k:0.01, quantize,
    cast:bfloat16 (`fedtailor.aggregation.pipelines`), in this order."""
    asynchronous: str | None = None
    """Asynchronous training: the number of answers after which the server updates its
    model, with settings after it (5,weight=hinge,mean_delay=1,slowness=speeds.csv;
    `AsynchronousServer`). --participation then says how many train at the same time."""
    metrics: tuple[str, ...] = ()
    """What to measure in addition to loss and accuracy (roc_auc, balanced_accuracy, ...); the
    first is what the run is judged by."""
    evaluate_every: int = 1
    """Evaluate the personal models after every n-th round, and after the last."""
    evaluate_clients: int | None = None
    """Evaluate so many clients, drawn once (all by default)."""
    out: Path | None = None
    """Keep the run in this directory: settings, metrics, ledger, checkpoints."""
    resume: bool = False
    """Continue the run in --out."""
    checkpoint_every: int = 10
    """Save after every n-th round, and after the last."""
    keep_rows: bool = False
    """Write what became of every test row to rows.parquet in --out."""
    track: tuple[str, ...] = ()
    """Show the run in experiment trackers, too: mlflow, tensorboard, wandb (offline).
    """
    devices: int | None = None
    """Devices to use (all by default)."""
    canonical: bool = False
    """Aggregate in the order of clients, so that results do not depend on the number of
    devices.
    """
    debug: bool = False
    """One client at a time without compilation; errors name client and step."""
    plan: bool = False
    """Print what a round needs of the memory, and train nothing."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        check_counts(
            self,
            "rounds",
            "evaluate_every",
            "evaluate_clients",
            "checkpoint_every",
            "devices",
        )
        check_seeds("seed", self.seed)


def run(arguments: list[str]) -> int:
    """Trains one method on one scenario and prints the results."""
    names = [argument for argument in arguments[:2] if not argument.startswith("-")]
    if len(names) < 2:
        return print_help_or_raise(
            arguments,
            USAGE,
            "The options depend on both: fedtailor run ALGORITHM SCENARIO --help",
            "; `fedtailor algorithms` and `fedtailor scenarios` list the names",
        )
    require(
        Path(names[1]).suffix not in (".csv", ".tsv", ".parquet"),
        f"{names[1]} is a table, and no scenario; name it with --path:"
        f" fedtailor run {names[0]} table --path {names[1]} --target COLUMN",
    )
    scenario = scenarios.find(names[1])
    method = find_algorithm(names[0], own_files=True).about.name
    algorithm, scenario, options = _parse(method, scenario, arguments[2:])
    if options.resume:
        if options.out is None:
            raise ValueError("--resume needs the directory of the run: --out DIR")
        require(
            (options.out / MANIFEST).exists(),
            f"there is no run in {options.out} to resume; leave out --resume to start"
            " one there",
        )
    require(
        options.out is not None or not options.keep_rows,
        "--keep-rows needs a directory: --out DIR",
    )
    title = f"{names[0]} on {names[1]}, seed {options.seed}"
    trackers = find_trackers(
        options.track, options.out, experiment=scenario.name, run=title
    )
    settings = Settings(
        devices=options.devices, debug=options.debug, canonical=options.canonical
    )
    with as_typed():
        federation = scenario.build(options.seed)
    if options.plan:
        training = simulate(
            algorithm,
            federation,
            scenario.model,
            seed=options.seed,
            participation=as_participation(options.participation, options.sampling),
            uplink=uplink_of_texts(options.uplink),
            asynchronous=asynchronous_of_text(options.asynchronous),
            metrics=options.metrics,
            settings=settings,
        )
        exchange = training.planned_exchange()
        memory = training.executor.plan(exchange)
        plan = {"exchange": exchange.task, **memory.as_dict()}
        words = memory.in_words(exchange.task)
        if has_adapters(scenario.model) and hasattr(algorithm, "sgd"):
            rate: Any = algorithm
            words["learning rate"] = (
                f"{rate.sgd.lr:g} (by default, adapters train at {ADAPTER_RATE:g} times"
                " the scenario's rate)"
            )
        say_block(json.dumps(plan) if options.json else as_lines(words))
        return 0
    with (
        progress_of(f"{names[0]} on {names[1]}", options.rounds) as progress,
        explain_interrupt(f"stopped; continue with --out {options.out} --resume"),
    ):
        finished = train(
            algorithm,
            federation,
            scenario.model,
            options.rounds,
            seed=options.seed,
            participation=as_participation(options.participation, options.sampling),
            uplink=uplink_of_texts(options.uplink),
            asynchronous=asynchronous_of_text(options.asynchronous),
            evaluate_every=options.evaluate_every,
            evaluate_clients=options.evaluate_clients,
            metrics=options.metrics,
            settings=settings,
            callbacks=trackers,
            progress=progress,
            directory=options.out,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume,
            keep_rows=options.keep_rows,
            origin=scenario.origin(options.seed),
        )
    _print(finished, names[1], options.json)
    return 0


def _parse(
    name: str, scenario: Scenario, arguments: list[str]
) -> tuple[Algorithm, Scenario, Options]:
    """Parses hyper-parameters, parameters of the scenario, and options.

    Returns:
        The method with its hyper-parameters, which default to the scenario's, the
        scenario with its parameters, and the options.

    Raises:
        ValueError: an option or a value is wrong; the message is one line.
    """

    def parsed_for(default: Any) -> dict[str, Any]:
        options = Options(rounds=scenario.rounds)
        reserved_names = [field.name for field in (*fields(default), *fields(options))]
        return parse_parts(
            {
                "algorithm": default,
                "sizes": sizes_of(scenario, reserved_names),
                "options": options,
            },
            f"Train {name} on {scenario.name}: {scenario.description}.",
            arguments,
            f"fedtailor run {name} {scenario.name}",
        )

    parsed = parsed_for(scenario.algorithm(name))
    changed, options = with_sizes(scenario, parsed["sizes"]), parsed["options"]
    if options.model is not None:
        require(
            options.model != AUTO,
            "--model auto compares models; it is an option of `fedtailor compare"
            " TABLE`, which then says which one to run",
        )
        changed = replace(changed, model=architecture_of_text(options.model))
        # The network of an option may have adapters, whose default rate is another one.
        if has_adapters(changed.model) != has_adapters(scenario.model):
            parsed = parsed_for(changed.algorithm(name))
    algorithm = parsed["algorithm"]
    check_local_training(algorithm)
    if options.precision != "float32":
        model = changed.model.in_precision(dtype_of(options.precision))
        changed = replace(changed, model=model)
    return algorithm, changed, options


def check_local_training(algorithm: Any, prefix: str = "--") -> None:
    """Calls `check_trains` for all hyper-parameters with their option names."""
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        check_trains(value, f"{prefix}{field.name}.")
        if is_hyperparameters(value):
            check_local_training(value, f"{prefix}{field.name}.")


def _print(finished: Run, scenario: str, as_json: bool) -> None:
    summary = finished.summary().as_dict()
    summary = {"algorithm": summary.pop("algorithm"), "scenario": scenario, **summary}
    if as_json:
        say_block(json.dumps(finite(summary), allow_nan=False, default=str))
        return
    say_block(as_lines(summary))
