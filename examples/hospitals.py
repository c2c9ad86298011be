"""Four hospitals, from a table to a decision.

Four hospitals want to predict who is ill. Do they gain from training together, and if
so, by which method? The table is made up here; with one of your own, start at the
second step. The same steps, with what each of them prints, are the tutorial.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedtailor.cli import main
from fedtailor.lab.results.stored import StoredRun
from fedtailor.protocol import client_ids

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
    picture(
        learned_from(Path("fedtailor-results")),
        pl.read_csv("report/hospitals/tables/hospitals-gains.csv"),
    )


def learned_from(results: Path) -> pl.DataFrame:
    """UCFL's weights, mean over the seeds: how much a row's hospital learns from each."""
    frames = []
    for path in results.glob("runs/*/ucfl-*"):
        run = StoredRun(path)
        if "collaboration" not in run.diagnostics:
            continue
        # The rows and columns of a diagnostic are in the order of clients' ids.
        names = list(run.seen_clients["client"])
        names = [names[i] for i in np.argsort(client_ids(tuple(names)))]
        weights = run.diagnostics["collaboration"].values
        for name, row in zip(names, weights, strict=True):
            frames.append(
                pl.DataFrame({"hospital": name, **dict(zip(names, row, strict=True))})
            )
    means = pl.concat(frames, how="diagonal").group_by("hospital").mean()
    return means.sort("hospital")


def picture(weights: pl.DataFrame, gains: pl.DataFrame) -> None:
    """Draws who learns from whom, and the gain of each hospital with its interval."""
    hospitals = list(weights["hospital"])
    figure, (matrix, forest) = plt.subplots(
        1, 2, figsize=(9, 3.8), width_ratios=(1, 1.5), layout="constrained"
    )
    values = weights.select(hospitals).to_numpy()
    matrix.imshow(values, cmap="Blues", vmin=0, vmax=0.7)
    for row, column in np.ndindex(values.shape):
        color = "white" if values[row, column] > 0.4 else "black"
        text = f"{100 * values[row, column]:.0f} %"
        matrix.text(column, row, text, ha="center", va="center", color=color)
    matrix.set_xticks(range(len(hospitals)), hospitals)
    matrix.set_yticks(range(len(hospitals)), hospitals)
    matrix.tick_params(length=0)
    matrix.set(title="Who learns from whom", xlabel="learns from (UCFL's weights)")

    methods = {"fedavg": "C1", "ditto": "C7", "ucfl": "C0"}
    names = {"fedavg": "FedAvg, one model", "ditto": "Ditto", "ucfl": "UCFL"}
    for row in gains.iter_rows(named=True):
        method = row["method"]
        if method not in methods:  # boosted trees, which are compared, too
            continue
        place = hospitals.index(row["client"])
        place += 0.22 * (list(methods).index(method) - 1)
        # The legend names each method once.
        label = names.pop(method, None)
        forest.plot([row["from"], row["to"]], [place, place], color=methods[method])
        forest.plot(row["gain"], place, "o", color=methods[method], label=label)
    forest.axvline(0, color="gray", linewidth=1)
    forest.set_yticks(range(len(hospitals)), hospitals)
    forest.tick_params(axis="y", length=0)
    forest.invert_yaxis()
    forest.set(title="What each hospital gains over training alone")
    forest.set(xlabel="points of accuracy, 95 % interval")
    forest.legend(loc="lower right", frameon=False)
    for side in ("top", "right", "left"):
        forest.spines[side].set_visible(False)
    figure.savefig("hospitals.png", dpi=150)


if __name__ == "__main__":
    run()
