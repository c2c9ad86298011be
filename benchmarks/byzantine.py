"""Which methods resist Byzantine clients, alone and with robust means?

Twenty clients with made data: Gaussian classes that overlap, whose centres each client
moves a little, and labels in Dirichlet shares; with 20 examples each, so that clients gain
by sharing and would lose by one model for all. A fifth of them is Byzantine. For each method, rule
and attack: the mean test accuracy of the honest clients' personal models over seeds, with
a 95 % interval over seeds, and for back doors the share of honest clients' marked examples
that get the attacker's label. Results go to a CSV file, which a second call completes:
measured/byzantine.csv by default, which has all of them; give `--out new.csv` to measure anew.
`RECORD=1 python benchmarks/byzantine.py --write` makes the tables of docs/byzantine.md,
which `python benchmarks/speed_tables.py --write` puts there.
"""

import argparse
import csv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from measuring import MEASURED, machine, show
from rich.console import Console
from rich.table import Table

import fedtailor as ft
from fedtailor.aggregation.pipelines import Byzantine, RobustMean
from fedtailor.data.federation import (
    BackDoor,
    Federation,
    WrongLabels,
    byzantine_clients,
    from_arrays,
)
from fedtailor.protocol import Pipeline
from fedtailor.statistics.decision.intervals import student_interval

FILE = MEASURED / "byzantine.csv"
CLIENTS, FEATURES, CLASSES = 20, 10, 4
TRAIN, TEST = 20, 100
SHARE = 0.2
SGD = ft.SGD(lr=0.1, steps=10, batch_size=20)
DOOR = BackDoor(SHARE, target=0, size=3)

METHODS: dict[str, Any] = {
    "local": ft.Local(sgd=SGD),
    "fedavg": ft.FedAvg(sgd=SGD, weights="uniform"),
    "finetune": ft.FineTune(sgd=SGD, tune=SGD, weights="uniform"),
    "ditto": ft.Ditto(sgd=SGD, lam=0.5),
    "apfl": ft.APFL(sgd=SGD),
    "fedper": ft.FedPer(sgd=SGD, weights="uniform"),
    "mr-mtl": ft.MRMTL(sgd=SGD, lam=0.5),
    "pfedme": ft.PFedMe(sgd=SGD),
    "ifca": ft.IFCA(sgd=SGD, clusters=2),
    "cfl": ft.CFL(sgd=SGD),
    "fedamp": ft.FedAMP(sgd=SGD),
    "ucfl": ft.UCFL(sgd=SGD, streams="auto"),
}
WITHOUT_RULES = ("local", "ifca", "cfl", "fedamp", "ucfl")
"""Methods with no one mean in whose place a rule could stand."""

RULES: dict[str, Pipeline] = {
    "mean": (),
    "median": (RobustMean("median", SHARE),),
    "trimmed-mean": (RobustMean("trimmed-mean", SHARE),),
    "krum": (RobustMean("krum", SHARE),),
    "multi-krum": (RobustMean("multi-krum", SHARE),),
    "geometric-median": (RobustMean("geometric-median", SHARE),),
    "norm-bound": (RobustMean("norm-bound", SHARE),),
    "centred-clipping": (RobustMean("centred-clipping", SHARE),),
    "median of buckets": (RobustMean("median", SHARE, bucket=2),),
}

ATTACKS: dict[str, tuple[Any, Pipeline]] = {
    "none": (None, ()),
    "labels flipped (A1)": (WrongLabels(SHARE), ()),
    "random models (A2)": (None, (Byzantine("random", SHARE, 1.0),)),
    "model replacement (A3)": (WrongLabels(SHARE), (Byzantine("scale", SHARE, 10.0),)),
    "sign flips": (None, (Byzantine("sign-flip", SHARE, 3.0),)),
    "a little is enough": (None, (Byzantine("little-is-enough", SHARE),)),
    "scaled back door": (DOOR, (Byzantine("scale", SHARE, 5.0),)),
    "NaN": (None, (Byzantine("nan", SHARE),)),
    "1e30": (None, (Byzantine("huge", SHARE),)),
}


def made(seed: int) -> Federation:
    """Clients with moved classes and other shares of labels."""
    rng = np.random.default_rng(seed)
    centres = 0.6 * rng.normal(size=(CLASSES, FEATURES))
    xs, ys = [], []
    for _ in range(CLIENTS):
        shares = rng.dirichlet(np.full(CLASSES, 2.0))
        own = centres + 0.3 * rng.normal(size=centres.shape)
        y = rng.choice(CLASSES, size=TRAIN + TEST, p=shares)
        xs.append(own[y] + rng.normal(size=(len(y), FEATURES)))
        ys.append(y)
    return from_arrays(
        np.concatenate(xs).astype(np.float32),
        np.concatenate(ys),
        np.repeat([f"client {i:02d}" for i in range(CLIENTS)], TRAIN + TEST),
        test=TEST / (TRAIN + TEST),
        classes=CLASSES,
        seed=seed,
    )


def measured(method: str, rule: str, attack: str, seed: int, rounds: int) -> list[str]:
    """The honest clients' accuracy, and the share of marked examples that get the
    attacker's label; chance where training diverged.
    """
    clean = made(seed)
    poison, attacks = ATTACKS[attack]
    federation = clean if poison is None else poison(clean, seed=seed)
    honest = ~byzantine_clients(clean.ids, SHARE, seed)
    opened = DOOR.opened(clean) if poison is DOOR else None
    try:
        done = ft.run(
            METHODS[method],
            federation,
            ft.models.mlp(16),
            rounds,
            seed=seed,
            uplink=(*RULES[rule], *attacks),
            evaluate_every=rounds,
        )
    except ft.Diverged:
        return [str(1 / CLASSES), "", "diverged"]
    except ValueError as error:
        # A server that compares models cannot go on with such an answer either.
        if "not finite" not in str(error):
            raise
        return [str(1 / CLASSES), "", "diverged"]
    models = done.personal_models()
    correct, caught = [], []
    for index in np.flatnonzero(honest).tolist():
        name = clean.names[index]
        test = clean.client(index).test
        # A model of NaN predicts nothing.
        with np.errstate(all="ignore"):
            scores = models[name].outputs(test.x)
        is_right = (scores.argmax(axis=1) == test.y) & np.isfinite(scores).all(axis=1)
        correct.append(is_right.mean())
        if opened is not None:
            marked = opened.client(index).test
            caught.append((models[name].predict(marked.x) == marked.y).mean())
    success = f"{np.mean(caught):.5f}" if caught else ""
    return [f"{np.mean(correct):.5f}", success, ""]


def interval(values: list[float], most: float = 100.0) -> str:
    """Mean and 95 % interval over seeds.

    Args:
        values: shares, or differences of shares.
        most: the most percent, or percentage points, that they can be; the least is -most
            for differences.
    """
    numbers = 100 * np.array(values)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return f"{mean:.1f}"
    variance = float(numbers.var(ddof=1)) / len(numbers)
    found = student_interval(mean, [(variance, len(numbers) - 1)], 0.95)
    # Adding zero makes -0.0 a plain 0.0.
    low, high = max(found.low, -most), min(found.high, most)
    mean, low, high = (round(each, 1) + 0.0 for each in (mean, low, high))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


# tables
# --------------------------------------------------------------------------------------

Results = dict[tuple[str, ...], list[str]]
"""(method, rule, attack, seed) -> what `measured` returns."""
DOORS = "scaled back door"


def read(path: Path) -> Results:
    """The results in a file; none if there is no file."""
    if not path.exists():
        return {}
    with path.open() as file:
        return {tuple(row[:4]): row[4:] for row in csv.reader(file)}


def of_seeds(results: Results, *cell: str, column: int = 0) -> list[float]:
    """A column of a method's results with a rule under an attack, by seed."""
    found = {key[3]: row for key, row in results.items() if key[:3] == cell}
    return [float(found[seed][column] or "nan") for seed in sorted(found, key=int)]


def change(results: Results, method: str, rule: str, attack: str) -> str:
    """The change of accuracy by an attack: of the method with the rule against the method
    without rule and attack, in pairs of the same data. "" if it was not measured.
    """
    attacked = of_seeds(results, method, rule, attack)
    clean = of_seeds(results, method, "mean", "none")
    if not attacked or len(attacked) != len(clean):
        return ""
    found = interval([one - other for one, other in zip(attacked, clean, strict=True)])
    keys = [(method, rule, attack, str(seed)) for seed in range(len(clean))]
    diverged = sum(results[key][2] == "diverged" for key in keys)
    return f"{found}, {diverged} diverged" if diverged else found


def write_tables(results: Results, command: str) -> None:
    """The tables for docs/byzantine.md, in benchmarks/measured."""
    alone = Table(
        "method", "no attack, %", *[name for name in ATTACKS if name != "none"]
    )
    alone.add_column("back door opens, %")
    for method in METHODS:
        clean = of_seeds(results, method, "mean", "none")
        if clean:
            changes = [
                change(results, method, "mean", attack)
                for attack in ATTACKS
                if attack != "none"
            ]
            door = of_seeds(results, method, "mean", DOORS, column=1)
            opens = interval(door) if door else ""
            alone.add_row(method, interval(clean), *changes, opens)
    ruled = Table("method", "rule", *ATTACKS)
    ruled.add_column("back door opens, %")
    for method, rule in product(METHODS, RULES):
        changes = [change(results, method, rule, attack) for attack in ATTACKS]
        if rule != "mean" and all(changes):
            door = of_seeds(results, method, rule, DOORS, column=1)
            ruled.add_row(method, rule, *changes, interval(door) if door else "")
    console = Console(width=240)
    show(console, alone, "byzantine-alone", "jax", command=command)
    show(console, ruled, "byzantine-rules", "jax", command=command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=[*METHODS])
    parser.add_argument("--rules", nargs="*", choices=RULES, default=[*RULES])
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=[*ATTACKS])
    parser.add_argument("--write", action="store_true", help="only write the tables")
    options = parser.parse_args()
    if options.out == FILE and options.rounds != parser.get_default("rounds"):
        parser.error("measured/byzantine.csv has 40 rounds; give another file as --out")
    if options.write:
        write_tables(read(options.out), "python benchmarks/byzantine.py --out new.csv")
        return
    print(machine("fedtailor", "jax"), f"{options.rounds} rounds", sep="\n")

    results = read(options.out)
    for method, rule, attack in product(
        options.methods, options.rules, options.attacks
    ):
        if method in WITHOUT_RULES and rule != "mean":
            continue
        cells = []
        for seed in range(options.seeds):
            key = (method, rule, attack, str(seed))
            if key not in results:
                results[key] = measured(method, rule, attack, seed, options.rounds)
                with options.out.open("a", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerow(
                        [*key, *results[key]]
                    )
            cells.append(results[key])
        accuracy = interval([float(cell[0]) for cell in cells])
        door = [float(cell[1]) for cell in cells if cell[1]]
        diverged = sum(cell[2] == "diverged" for cell in cells)
        notes = [f"back door {interval(door)}"] if door else []
        notes += [f"{diverged} diverged"] if diverged else []
        print("|", " | ".join([method, rule, attack, accuracy, ", ".join(notes)]), "|")


if __name__ == "__main__":
    main()
