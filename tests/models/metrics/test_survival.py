"""Metrics of runs on times to an event are those of `fedtailor.models.tasks.times` on arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.data.tables import from_table
from fedtailor.models import linear
from fedtailor.models.metrics import CIndex, IntegratedBrier, UnoCIndex, find_metrics
from fedtailor.models.tasks import CoxPartial, DiscreteTime
from fedtailor.models.tasks import times as survival

ENDS = (2.0, 4.0, 7.0, 9.0)


def drawn(seed, count):
    """Events at whole numbers, rows that are censored between them, and outputs."""
    rng = np.random.default_rng(seed)
    event = rng.random(count) < 0.6
    time = rng.integers(1, 11, count) + 0.5 * ~event
    return time, event, rng.normal(0, 2, (count, len(ENDS)))


def task_of(grid, train):
    curve = survival.censoring_curve(*train)
    shares = tuple(curve.survival(grid).tolist())
    return DiscreteTime(grid, ENDS, censoring=shares)


def measured(metric, task, time, event, outputs, batches=3):
    """The metric of a run, whose statistic is the sum over batches with padding."""
    model = linear().bind((2,), len(ENDS), loss=task)
    y, total = np.stack([time, event], 1), None
    for rows in np.array_split(np.arange(len(time)), batches):
        padded, weight = [*rows, 0], [*np.ones(len(rows)), 0.0]
        statistic = metric.statistic(
            model,
            jnp.asarray(outputs[padded]),
            jnp.asarray(y[padded]),
            jnp.array(weight),
        )
        total = statistic if total is None else jax.tree.map(jnp.add, total, statistic)
    whole, sent = metric.result(total), metric.result(metric.condense(total))
    assert whole == pytest.approx(sent, abs=1e-12)
    return whole


def test_unos_index_and_briers_score_are_those_of_arrays():
    with jax.enable_x64(True):
        train = drawn(0, 400)[:2]
        time, event, outputs = drawn(1, 90)
        grid = tuple(map(float, range(1, 11)))
        task = task_of(grid, train)
        risk = task.predict(outputs)
        found = measured(UnoCIndex(), task, time, event, outputs)
        # Risks within 3 % are ties in histograms.
        expected = survival.uno(time, event, risk, *train)
        assert found == pytest.approx(expected, abs=2e-3)
        harrell = measured(CIndex(), task, time, event, outputs)
        assert abs(found - harrell) > 5e-3

        at_ends = task.survival_at(outputs, ENDS)
        scores = survival.brier_scores(time, event, at_ends, ENDS, *train)
        expected = survival.integrated_brier(ENDS, scores)
        found = measured(IntegratedBrier(), task, time, event, outputs)
        assert found == pytest.approx(expected, abs=1e-12)


def test_risks_far_apart_are_ranked_exactly():
    with jax.enable_x64(True):
        train = drawn(0, 400)[:2]
        time, event, outputs = drawn(2, 40)
        outputs[:] = np.linspace(-8, 4, 40)[
            np.random.default_rng(0).permutation(40), None
        ]
        task = task_of(tuple(map(float, range(1, 11))), train)
        expected = survival.uno(time, event, task.predict(outputs), *train)
        found = measured(UnoCIndex(), task, time, event, outputs)
        assert found == pytest.approx(expected, abs=1e-12)


def test_times_after_everybody_is_censored_are_left_out():
    train = np.array([1.0, 3.0, 4.5, 5.0]), np.array([True, True, False, False])
    task = task_of((1.0, 3.0, 7.0, 9.0), train)
    assert task.censoring == (1.0, 1.0, 0.0, 0.0)
    time, event, outputs = drawn(3, 60)
    assert np.isfinite(measured(UnoCIndex(), task, time, event, outputs))
    assert np.isfinite(measured(IntegratedBrier(), task, time, event, outputs))


def test_they_apply_where_the_curve_of_censoring_is_known():
    known = linear().bind((2,), 4, loss=task_of((1.0, 9.0), drawn(0, 50)[:2]))
    assert UnoCIndex().applies(known) and IntegratedBrier().applies(known)
    unknown = linear().bind((2,), 4, loss=DiscreteTime((1.0, 9.0), ENDS))
    assert not UnoCIndex().applies(unknown) and not IntegratedBrier().applies(unknown)
    cox = linear().bind((2,), 1, loss=CoxPartial((1.0, 9.0), censoring=(1.0, 0.5)))
    assert UnoCIndex().applies(cox) and not IntegratedBrier().applies(cox)
    with pytest.raises(ValueError, match="choose from"):
        find_metrics("integrated_brier", cox)


def test_a_run_on_a_table_has_them():
    time, event, _ = drawn(5, 300)
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "client": np.repeat(["a", "b", "c"], 100),
            "days": time,
            "died": event,
            "age": rng.normal(size=300) - time,
        }
    )
    table = from_table(frame, target="days", event="died")
    run = ft.run(
        ft.FedAvg(),
        table,
        linear(),
        rounds=3,
        metrics=("c_index", "uno", "integrated_brier"),
    )
    values = {
        it.metric: it.values
        for it in run.training.metrics.evaluations
        if it.split == "test"
    }
    assert (values["uno"] > 0.5).all() and (values["integrated_brier"] < 0.35).all()
