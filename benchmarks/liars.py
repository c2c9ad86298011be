"""Which methods resist clients that lie, alone and with robust means?

Twenty clients with made data: Gaussian classes that overlap, whose centres each client
moves a little, and labels in Dirichlet shares; with 20 examples each, so that clients gain
by sharing and would lose by one model for all. A fifth of them lie. For each method, rule
and attack: the mean test accuracy of the honest clients' personal models over seeds, with
a 95 % interval over seeds, and for back doors the share of honest clients' marked examples
that get the attacker's label. Results go to a CSV file, which a second call completes.
"""

import argparse
import csv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine

import fedtailor as ft
from fedtailor.decision.intervals import student_interval
from fedtailor.federation import (
    BackDoor,
    Federation,
    WrongLabels,
    from_arrays,
    liars_among,
)
from fedtailor.pipelines import Lies, RobustMean
from fedtailor.protocol import Pipeline

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
    "random models (A2)": (None, (Lies("random", SHARE, 1.0),)),
    "model replacement (A3)": (WrongLabels(SHARE), (Lies("scale", SHARE, 10.0),)),
    "sign flips": (None, (Lies("sign-flip", SHARE, 3.0),)),
    "a little is enough": (None, (Lies("little-is-enough", SHARE),)),
    "scaled back door": (DOOR, (Lies("scale", SHARE, 5.0),)),
    "NaN": (None, (Lies("nan", SHARE),)),
    "1e30": (None, (Lies("huge", SHARE),)),
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
    poison, lies = ATTACKS[attack]
    federation = clean if poison is None else poison(clean, seed=seed)
    honest = ~liars_among(clean.ids, SHARE, seed)
    opened = DOOR.opened(clean) if poison is DOOR else None
    try:
        done = ft.run(
            METHODS[method],
            federation,
            ft.models.mlp(16),
            rounds,
            seed=seed,
            uplink=(*RULES[rule], *lies),
            evaluate_every=rounds,
        )
    except ft.Diverged:
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


def interval(values: list[float]) -> str:
    """Mean and 95 % interval over seeds, in percent."""
    numbers = 100 * np.array(values)
    if len(numbers) < 2:
        return f"{numbers.mean():.1f}"
    variance = float(numbers.var(ddof=1)) / len(numbers)
    found = student_interval(
        float(numbers.mean()), [(variance, len(numbers) - 1)], 0.95
    )
    return f"{numbers.mean():.1f} [{found.low:.1f}, {found.high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("liars.csv"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=[*METHODS])
    parser.add_argument("--rules", nargs="*", choices=RULES, default=[*RULES])
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=[*ATTACKS])
    options = parser.parse_args()
    print(machine("fedtailor", "jax"), f"{options.rounds} rounds", sep="\n")

    results: dict[tuple[str, ...], list[str]] = {}
    if options.out.exists():
        for row in csv.reader(options.out.open()):
            results[tuple(row[:4])] = row[4:]
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
                    csv.writer(file).writerow([*key, *results[key]])
            cells.append(results[key])
        accuracy = interval([float(cell[0]) for cell in cells])
        door = [float(cell[1]) for cell in cells if cell[1]]
        diverged = sum(cell[2] == "diverged" for cell in cells)
        notes = [f"back door {interval(door)}"] if door else []
        notes += [f"{diverged} diverged"] if diverged else []
        print("|", " | ".join([method, rule, attack, accuracy, ", ".join(notes)]), "|")


if __name__ == "__main__":
    main()
