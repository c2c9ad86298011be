"""Survival from a table: what is read, what is refused, and a run from end to end."""

import json

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli import main
from fedtailor.data.tables import Preprocessing, from_table
from fedtailor.engine.training.binding import bind
from fedtailor.models.tasks import CoxPartial, DiscreteTime
from fedtailor.models.tasks.times import comparisons, harrell

OPTIONS = {"client": "site", "target": "days", "event": "died"}


def cohort(rows=240, sites=3, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    days = np.ceil(100 * rng.exponential(np.exp(-(age - 60) / 8)))
    last = rng.uniform(20, 400, rows).round()
    return pl.DataFrame(
        {
            "site": [f"s{row % sites}" for row in range(rows)],
            "age": age,
            "dose": rng.normal(size=rows),
            "days": np.minimum(days, last),
            "died": np.where(days <= last, "yes", "no"),
        }
    )


def test_targets_are_times_and_events():
    frame = cohort()
    table = from_table(frame, **OPTIONS)
    assert isinstance(table.loss, DiscreteTime) and table.classes is None
    np.testing.assert_array_equal(table.y[:, 0], frame["days"].cast(pl.Float32))
    np.testing.assert_array_equal(table.y[:, 1] > 0, frame["died"] == "yes")
    assert table.preprocessing.columns[0].name == "age"
    # events are in all splits in the same share
    shares = [table.y[split.rows, 1].mean() for split in (table.train, table.test)]
    assert abs(shares[0] - shares[1]) < 0.05
    ends = np.array(table.loss.ends)
    events = table.y[table.train.rows]
    events = events[events[:, 1] > 0, 0]
    assert len(ends) == 10 and ends[-1] == events.max()
    counts = np.histogram(events, [0, *ends])[0]
    assert counts.min() > 0.5 * counts.max()
    again = Preprocessing.from_json(table.preprocessing.to_json())
    assert again == table.preprocessing
    _, y = again.transform_labelled(frame)
    np.testing.assert_array_equal(y, table.y)
    assert isinstance(from_table(frame, hazard="cox", **OPTIONS).loss, CoxPartial)


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        ({"died": pl.lit("no")}, {}, "of no row that the event was seen"),
        ({"died": pl.lit("perhaps")}, {}, "neither yes"),
        ({"died": pl.lit(None, pl.String)}, {}, "missing in row 1"),
        ({"days": -pl.col("days")}, {}, "is -.* in row 1; a time is"),
        ({"days": pl.lit("soon")}, {}, "it must hold numbers, the times"),
        ({}, {"event": "nowhere"}, "no event column|no column"),
        ({}, {"task": "regression"}, "leave one out"),
        ({}, {"event": "days"}, "cannot be both"),
        ({}, {"hazard": "weibull"}, "hazard"),
    ],
)
def test_what_is_refused(change, options, problem):
    frame = cohort().with_columns(**change)
    with pytest.raises(ValueError, match=problem):
        from_table(frame, **{**OPTIONS, **options})


def test_labels_of_the_event_may_be_named():
    frame = cohort().with_columns(
        died=pl.col("died").replace({"yes": "relapse", "no": "well"})
    )
    table = from_table(frame, positive="relapse", **OPTIONS)
    assert table.y[:, 1].sum() == (frame["died"] == "relapse").sum()


@pytest.mark.parametrize("hazard", ["discrete", "cox"])
def test_a_run_from_end_to_end(hazard, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = cohort()
    frame.write_csv("cohort.csv")
    frame.drop("days", "died").head(30).write_csv("new.csv")
    options = ["--path", "cohort.csv", "--client", "site", "--target", "days"]
    options += ["--event", "died", "--hazard", hazard, "--rounds", "20"]
    options += ["--sgd.lr", "0.3", "--metrics", "c_index", "--keep-rows"]
    assert main(["run", "fedavg", "table", *options, "--out", "run", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean"] > 0.65, summary
    rows = pl.read_parquet("run/rows.parquet")
    assert {"risk", "time", "event"} <= {*rows.columns}
    seen = comparisons(rows["time"], rows["event"] > 0, rows["risk"])
    assert seen.value > 0.65 and seen.pairs > 300

    times = ["--times", "50", "200"] if hazard == "discrete" else []
    assert main(["predict", "run", "new.csv", "--out", "p.csv", *times]) == 0
    predicted = pl.read_csv("p.csv")
    age = frame["age"].head(30)
    assert np.corrcoef(predicted["risk"], age)[0, 1] > 0.5
    if hazard == "discrete":
        assert (predicted["S(50)"] > predicted["S(200)"]).all()
        assert predicted["S(200)"].is_between(0, 1).all()
    else:
        assert main(["predict", "run", "new.csv", "--times", "3"]) == 2
        assert "no survival curves" in capsys.readouterr().err
    assert main(["export", "run", "--out", "models"]) == 0
    assert main(["predict", "models", "new.csv", "--out", "q.csv", *times]) == 0
    assert pl.read_csv("q.csv").equals(predicted)
    capsys.readouterr()
    assert main(["card", "run", "--client", "s1"]) == 0
    card = capsys.readouterr().out
    assert "survival" in card and "C-index" in card
    assert "comparable pairs" in card
    assert " to " in card.split("C-index")[1].splitlines()[0]


def test_the_metric_is_nearly_harrells():
    table = from_table(cohort(600), **OPTIONS)
    run = ft.run(
        ft.FedAvg(ft.SGD(lr=0.3, steps=5, batch_size=4096)),
        table,
        ft.models.linear(),
        rounds=10,
        metrics="c_index",
    )
    outcomes = run.row_outcomes()
    frame = run.frame().filter((pl.col("split") == "test") & (pl.col("round") == 10))
    frame = frame.filter(pl.col("metric") == "c_index")
    measured = dict(frame.select("client", "value").iter_rows())
    for name in table.names:
        rows = outcomes.filter(pl.col("client") == name)
        exact = harrell(rows["time"], rows["event"] > 0, rows["risk"])
        assert measured[name] == pytest.approx(exact, abs=0.02)


def test_a_model_of_an_earlier_run_starts_at_the_new_rows():
    table = from_table(cohort(), **OPTIONS)
    model = bind(ft.models.linear(), table)
    again = bind(model.architecture, from_table(cohort(seed=1), **OPTIONS))
    assert again.architecture.inner == model.architecture.inner
    assert again.architecture.start != model.architecture.start
