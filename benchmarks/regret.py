"""Is it enough to train the three methods that `diagnose` recommends, and let
validation data choose?

Trains every method of fedtailor that fits (see `field`) on small tables of known truth
and on digits: all with the same local training, those that the diagnosis has something
to say about with what it starts them with, the others with their defaults. For each
scenario and seed it notes the mean test accuracy over clients of

    chosen      the one of the three recommended methods with the best validation accuracy (of equal ones, loss)
    chosen all  the one of all methods with the best validation accuracy, likewise
    best        the one of all methods with the best test accuracy (which nobody can know)

and prints the regret of the first against the other two, and what the three cost in
gradients of examples (of the probe, too) compared with all; then how some three methods
do that are the same everywhere. Runs that the file of results holds are not repeated;
all scenarios and seeds of a method are trained as one cohort.
"""

import argparse
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from measuring import machine

import fedtailor as ft
from fedtailor.data.federation import Federation, from_arrays
from fedtailor.engine.executors import LockstepGroup, Settings
from fedtailor.engine.runs import Run, run_exchanges
from fedtailor.engine.training import RunSpec
from fedtailor.engine.training.binding import bind
from fedtailor.lab.experiments.diagnose import Advice, diagnose
from fedtailor.lab.scenarios.scenario import defaults_with
from fedtailor.models import Architecture
from fedtailor.protocol import SGD, Algorithm, Diverged, Exchanges
from fedtailor.statistics.diagnosis.recommend import METHODS, starting_point

CLIENTS, ROWS, FEATURES = 8, 200, 6
LOCAL = SGD(lr=0.1, epochs=2, batch_size=16)
ROUNDS = 25
SPLITS: dict[str, Any] = {"test": 0.6, "val": 0.1}
WITH_A_BODY = {"fedala", "fedbabu", "fedper", "fedrep", "lg-fedavg"}
"""Methods that share a part of the model and keep the other."""


def linear(
    slopes: Callable[[np.random.Generator, int], np.ndarray],
    *,
    shift: float = 0.0,
    intercepts: float = 0.0,
    noise: float = 0.5,
    unequal: bool = False,
) -> Callable[..., Federation]:
    """A table with y = [slope x + intercept + noise > 0] at every client.

    Args:
        slopes: draws one slope for each of so many clients [clients, features].
        shift: deviation of clients' means of x.
        intercepts: deviation of clients' intercepts.
        noise: deviation of the noise.
        unequal: whether sizes go from a third of the usual to about twice.

    Returns:
        The table of a seed; and of a number of rows a client and of clients, if they
        are to be other ones.
    """

    def build(seed: int, rows: int = ROWS, clients: int = CLIENTS) -> Federation:
        rng = np.random.default_rng(seed)
        slope = slopes(rng, clients)
        sizes = np.full(clients, rows)
        if unequal:
            sizes = np.linspace(rows / 3, 5 * rows / 3, clients).astype(int)
            sizes[-1] += clients * rows - sizes.sum()
        owner = np.repeat(np.arange(clients), sizes)
        x = (
            rng.normal(size=(len(owner), FEATURES))
            + shift * rng.normal(size=(clients, FEATURES))[owner]
        )
        score = (
            np.einsum("nf,nf->n", x, slope[owner])
            + (intercepts * rng.normal(size=clients))[owner]
        )
        y = (score + noise * rng.normal(size=len(owner)) > 0).astype(np.int64)
        return from_arrays(
            x.astype(np.float32),
            y,
            [f"c{client}" for client in owner],
            classes=2,
            seed=seed,
            **SPLITS,
        )

    return build


def common(rng: np.random.Generator, clients: int) -> np.ndarray:
    return np.tile(rng.normal(size=FEATURES), (clients, 1))


def near(rng: np.random.Generator, clients: int) -> np.ndarray:
    return common(rng, clients) + 0.4 * rng.normal(size=(clients, FEATURES))


def own(rng: np.random.Generator, clients: int) -> np.ndarray:
    return rng.normal(size=(clients, FEATURES))


def groups(count: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, clients: rng.normal(size=(count, FEATURES))[
        np.arange(clients) % count
    ]


def opposed(rng: np.random.Generator, clients: int) -> np.ndarray:
    return common(rng, clients) * np.where(np.arange(clients) % 2, 1, -1)[:, None]


def outlier(rng: np.random.Generator, clients: int) -> np.ndarray:
    return (
        common(rng, clients)
        * np.where(np.arange(clients) == clients - 1, -1, 1)[:, None]
    )


TABLES: dict[str, Callable[..., Federation]] = {
    "one population": linear(common),
    "one population, noisy": linear(common, noise=4.0),
    "opposed groups": linear(opposed),
    "three groups": linear(groups(3)),
    "an outlier": linear(outlier),
    "near a common model": linear(near),
    "each its own": linear(own),
    "each its own, noisy": linear(own, noise=4.0),
    "inputs differ": linear(common, shift=1.5),
    "labels differ": linear(common, intercepts=3.0),
    "unequal sizes, near": linear(near, unequal=True),
}
DIGITS: dict[str, Callable[..., Federation]] = {
    "digits, label shift": ft.scenarios.digits_label_shift,
    "digits, rotated": ft.scenarios.digits_rotated,
    "digits, permuted": ft.scenarios.digits_permuted,
}


def scenario(name: str, seed: int) -> tuple[Federation, Architecture]:
    """The data and the model."""
    if name in TABLES:
        return TABLES[name](seed), ft.models.logistic()
    return DIGITS[name](seed=seed, clients=CLIENTS, **SPLITS), ft.models.mlp(32)


def field(model: Architecture) -> list[str]:
    """The methods that are trained: all but those that do not fit.

    The oracle is told the true groups; FedBN is FedAvg where no layer normalises; and a
    linear model has no body.
    """
    left_out = {"oracle", "fedbn"} | (
        WITH_A_BODY if model == ft.models.logistic() else set()
    )
    return sorted(set(Algorithm.registry) - left_out)


def method(name: str, advice: Advice) -> Algorithm:
    """A method that trains as all others do, with what the diagnosis starts it with."""
    if name not in METHODS:
        return defaults_with(LOCAL)(name)
    kind: Any = Algorithm.registry[name]
    given = starting_point(name, advice.diagnosis)
    if name == "finetune":
        given["tune"] = LOCAL
    return kind(sgd=LOCAL, **given)


def look(advice: Advice, federation: Federation) -> dict[str, Any]:
    """What the diagnosis says of one scenario and seed, and what it costs."""
    return {
        "race": [entry.method for entry in advice.race.entries],
        "probe": (
            2 * int(federation.train.sizes.sum())
        ),  # a pass for the gradient and one for its variance
        "methods": {},
    }


def train(
    name: str, cells: Sequence[tuple[Federation, Architecture, Advice, int]]
) -> Iterable[dict[str, Any] | None]:
    """A method on some scenarios and seeds, as one cohort: accuracies and gradients;
    None where it diverged.
    """
    models = [bind(model, federation) for federation, model, _, _ in cells]
    group = LockstepGroup(
        [cell[0] for cell in cells], models, Settings(), [None] * len(cells)
    )

    def one(executor: Any, advice: Advice, seed: int) -> Exchanges[Run | None]:
        spec = RunSpec(
            method(name, advice), executor.model, ROUNDS, seed, evaluate_every=ROUNDS
        )
        with suppress(Diverged):
            return (yield from run_exchanges(spec, executor))
        return None

    runs = [
        one(executor, advice, seed)
        for executor, (_, _, advice, seed) in zip(group.executors, cells, strict=True)
    ]
    for run in group.drive(runs, threading.Event()):
        yield (
            None
            if run is None
            else {
                "val": float(run.metrics.values(split="val").mean()),
                "val loss": float(run.metrics.values("loss", "val").mean()),
                "test": float(run.metrics.values(split="test").mean()),
                "gradients": run.ledger.totals().gradients,
            }
        )


def choose(methods: dict[str, dict[str, Any]], among: Iterable[str]) -> str:
    """The one that validation data choose: by accuracy, and of equally accurate ones by
    loss.
    """
    return max(
        among,
        key=lambda name: (round(methods[name]["val"], 9), -methods[name]["val loss"]),
    )


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The regrets of one scenario and seed, in points of accuracy, and the cost as a
    share.
    """
    methods = {
        name: entry for name, entry in found["methods"].items() if entry is not None
    }
    race = [name for name in found["race"] if name in methods]
    chosen, chosen_all = choose(methods, race), choose(methods, methods)
    best = max(methods, key=lambda name: methods[name]["test"])
    cost = found["probe"] + sum(methods[name]["gradients"] for name in race)
    return {
        "chosen": chosen,
        "chosen all": chosen_all,
        "best": best,
        "regret": 100 * (methods[chosen_all]["test"] - methods[chosen]["test"]),
        "regret to best": 100 * (methods[best]["test"] - methods[chosen]["test"]),
        "accuracy": 100 * methods[chosen]["test"],
        "cost": cost / sum(entry["gradients"] for entry in methods.values()),
    }


def table(results: dict[str, Any]) -> str:
    """Markdown: a line for each scenario, its seeds averaged."""
    lines = [
        "| scenario | seeds | recommended | chosen | chosen of all | best | regret | to"
        " the best | cost |"
    ]
    lines.append("|" + 9 * "---|")
    everything = []
    for name in [*TABLES, *DIGITS]:
        cells = [
            found for key, found in results.items() if key.rpartition(" ")[0] == name
        ]
        if not cells:
            continue
        summaries = [summary(found) for found in cells]
        everything += summaries
        words = [" / ".join(dict.fromkeys(" ".join(found["race"]) for found in cells))]
        words += [
            " / ".join(dict.fromkeys(one[what] for one in summaries))
            for what in ("chosen", "chosen all", "best")
        ]
        mean = [
            np.mean([one[what] for one in summaries])
            for what in ("regret", "regret to best", "cost")
        ]
        lines.append(
            f"| {name} | {len(cells)} | {' | '.join(words)} | {mean[0]:.2f} |"
            f" {mean[1]:.2f} | {mean[2]:.0%} |"
        )
    if everything:
        regrets, to_best, cost = (
            np.array([one[what] for one in everything])
            for what in ("regret", "regret to best", "cost")
        )
        error = (
            regrets.std(ddof=1) / np.sqrt(len(regrets)) if len(regrets) > 1 else np.nan
        )
        lines.append(
            f"| all (standard error) | {len(everything)} | | | | | {regrets.mean():.2f}"
            f" ({error:.2f}) | {to_best.mean():.2f} | {cost.mean():.0%} |"
        )
    return "\n".join(lines)


def control(results: dict[str, Any]) -> str:
    """How three methods do that are the same everywhere, without any diagnosis: all
    threes, in one line.
    """
    cells = [
        found
        for found in results.values()
        if all(found["methods"].get(name) for name in METHODS)
    ]
    if not cells:
        return "no cell has all methods"
    regrets = {
        three: float(
            np.mean(
                [summary({**found, "race": list(three)})["regret"] for found in cells]
            )
        )
        for three in combinations(METHODS, 3)
    }
    ruled = float(np.mean([summary(found)["regret"] for found in cells]))
    better = sum(regret < ruled for regret in regrets.values())
    least = min(regrets, key=regrets.__getitem__)
    return (
        f"Fixed threes, over {len(cells)} cells: {better} of {len(regrets)} have less"
        f" regret than the rule ({ruled:.2f}); median"
        f" {np.median(list(regrets.values())):.2f}, least {regrets[least]:.2f}"
        f" ({' '.join(least)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument(
        "--out", type=Path, default=Path("regret.json"), help="results so far"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*TABLES, *DIGITS], default=[*TABLES, *DIGITS]
    )
    given = parser.parse_args()
    results = json.loads(given.out.read_text())["results"] if given.out.exists() else {}

    cells = {}
    for name, seed in product(given.only, given.seeds):
        federation, model = scenario(name, seed)
        advice = diagnose(federation, model, seed=seed)
        cells[f"{name} {seed}"] = federation, model, advice, seed
        trained = results.get(f"{name} {seed}", {}).get("methods", {})
        results[f"{name} {seed}"] = {**look(advice, federation), "methods": trained}
    for names in (TABLES, DIGITS):
        keys = [key for key in cells if key.rpartition(" ")[0] in names]
        for other in field(cells[keys[0]][1]) if keys else []:
            missing = [key for key in keys if other not in results[key]["methods"]]
            if not missing:
                continue
            started = perf_counter()
            for key, found in zip(
                missing, train(other, [cells[key] for key in missing]), strict=True
            ):
                results[key]["methods"][other] = found
            given.out.write_text(
                json.dumps(
                    {"machine": machine("jax", "numpy"), "results": results}, indent=1
                )
            )
            print(
                f"{other}, {len(missing)} times: {perf_counter() - started:.1f} s",
                flush=True,
            )
    shown = {key: results[key] for key in cells}
    print(machine("jax", "numpy"))
    print(table(shown))
    print(control(shown))


if __name__ == "__main__":
    main()
