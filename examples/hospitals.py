"""Four hospitals, from a table to a decision.

Four hospitals want to predict who is ill. Do they gain from training together, and if
so, by which method? The table is made up here; with one of your own, start at the
second step. The same steps, with what each of them prints, are the tutorial.
"""

from contextlib import redirect_stdout
from io import StringIO

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedtailor.cli import main

# 1. A table: one row for each patient, a column for the hospital, one to predict. In
# the west, age and cholesterol mean something else than in the other three hospitals;
# the south is small.
PATIENTS = {"north": 160, "east": 160, "south": 40, "west": 160}
EFFECTS = {"west": (-0.8, 1.6, -1.2, 0.2)}
COMMON = (1.4, 0.9, 0.9, 0.6)


def made_table(seed: int = 0) -> pl.DataFrame:
    """Patients whose illness follows a logistic model of each hospital."""
    rng = np.random.default_rng(seed)
    frames = []
    for hospital, patients in PATIENTS.items():
        z = rng.normal(size=(patients, 3))
        smokes = rng.random(patients) < 0.3
        effects = EFFECTS.get(hospital, COMMON)
        score = z @ effects[:3] + effects[3] * smokes - 0.2
        ill = rng.random(patients) < 1 / (1 + np.exp(-2 * score))
        frames.append(
            pl.DataFrame(
                {
                    "hospital": hospital,
                    "age": np.round(55 + 12 * z[:, 0]),
                    "pressure": np.round(130 + 15 * z[:, 1]),
                    "cholesterol": np.round(220 + 40 * z[:, 2]),
                    "smokes": np.where(smokes, "yes", "no"),
                    "ill": np.where(ill, "yes", "no"),
                }
            )
        )
    return pl.concat(frames)


def run() -> None:
    made_table().write_csv("hospitals.csv")
    columns = ["--client", "hospital", "--target", "ill"]
    # 2. Before training: who differs, and which methods are worth trying?
    main(["diagnose", "hospitals.csv", *columns])
    # 3. Train them, and decide. Learning rates are chosen on validation data.
    methods = ["--algorithms", "local", "fedavg", "ditto", "ucfl"]
    main(
        ["compare", "hospitals.csv", *columns, *methods, "--rounds", "60", "--details"]
    )
    # 4. The same as one page, which needs no network, and as tables.
    with redirect_stdout(StringIO()):
        main(["report", "fedtailor-results", "--html", "report.html"])
        main(["report", "fedtailor-results", "--out", "report", "--no-figures"])
    picture(pl.read_csv("report/hospitals/tables/hospitals-gains.csv"))


def picture(gains: pl.DataFrame) -> None:
    """Draws the gain of each hospital by each method, with its interval."""
    figure, axes = plt.subplots(figsize=(7, 4))
    colors = {"fedavg": "C0", "ditto": "C1", "ucfl": "C2"}
    for place, row in enumerate(gains.iter_rows(named=True)):
        axes.plot([row["from"], row["to"]], [place, place], color=colors[row["method"]])
        axes.plot(row["gain"], place, "o", color=colors[row["method"]])
    labels = [
        f"{row['client']}, {row['method']}" for row in gains.iter_rows(named=True)
    ]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.axvline(0, color="gray", linewidth=1)
    axes.set(xlabel="gain over training alone, points of accuracy (95 % interval)")
    figure.tight_layout()
    figure.savefig("hospitals.png", dpi=120)


if __name__ == "__main__":
    run()
