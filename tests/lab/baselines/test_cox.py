"""Cox's model as a baseline: coefficients, hazards, and what a comparison measures."""

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import from_table
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import Problem, evaluate, find_baseline
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models import linear
from fedtailor.models.tasks import CoxPartial, DiscreteTime, default_loss, task_of
from fedtailor.models.tasks.times import harrell

NAMES = ("cox-alone", "cox-stratified", "cox-pooled")
KEPT = NAMES[:2]
ENDS = (2.0, 5.0, 9.0)


def clients(count=3, rows=80):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(rows, 2)) for _ in range(count)]
    y = []
    for place, own in enumerate(x):
        time = rng.exponential(4 * (place + 1) * np.exp(-own[:, 0]))
        y.append(np.stack([time, rng.random(rows) < 0.7], axis=1))
    return x, y


def problem(task, **changes):
    x, y = clients()
    return Problem(x, y, None, 0, task=task, **changes)


@pytest.mark.extra
def test_risks_are_those_of_scikit_survival():
    sksurv = pytest.importorskip("sksurv.linear_model", reason="scikit-survival")
    given = problem(CoxPartial())
    groups = {
        "cox-alone": (given.x[1], given.y[1]),
        "cox-pooled": (np.concatenate(given.x), np.concatenate(given.y)),
    }
    for name, (x, y) in groups.items():
        target = np.array(
            list(zip(y[:, 1] > 0, y[:, 0], strict=True)), [("e", bool), ("t", float)]
        )
        fitted = sksurv.CoxPHSurvivalAnalysis(alpha=1.0, ties="efron", tol=1e-12)
        fitted.fit(x, target)
        found = find_baseline(name).fit(given)(1, given.x[1])
        np.testing.assert_allclose(found[:, 0], given.x[1] @ fitted.coef_, atol=1e-6)


def test_stratified_is_pooled_for_one_client_and_between_otherwise():
    x, y = clients(1)
    one = Problem(x, y, None, 0, task=DiscreteTime((9.0,), ENDS))
    found = [find_baseline(name).fit(one)(0, x[0]) for name in NAMES]
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    np.testing.assert_allclose(found[0], found[2], atol=1e-12)
    given = problem(DiscreteTime((9.0,), ENDS))
    alone, stratified, pooled = (
        find_baseline(name).fit(given)(2, given.x[2]) for name in NAMES
    )
    assert np.abs(stratified - pooled).max() > 0.1
    assert np.abs(stratified - alone).max() > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_survival_is_breslows(name):
    """By hand: the hazard of each event is one over the weights of who is at risk."""
    task = DiscreteTime((9.0,), ENDS)
    given = problem(task)
    predict = find_baseline(name).fit(given)
    outputs = predict(0, given.x[0])
    risk = np.asarray(find_baseline(name).fit(problem(CoxPartial()))(0, given.x[0]))
    x, y = given.x[0], given.y[0]
    of_rows = risk[:, 0]
    if name == "cox-pooled":
        x, y = np.concatenate(given.x), np.concatenate(given.y)
        of_rows = find_baseline(name).fit(problem(CoxPartial()))(0, x)[:, 0]
    expected = []
    for end in ENDS:
        hazard = sum(
            1 / np.exp(of_rows[y[:, 0] >= time]).sum()
            for time, event in y
            if event and time <= end
        )
        expected.append(np.exp(-hazard * np.exp(risk[:, 0])))
    found = task.survival_at(outputs, ENDS)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-6)
    # The order of risks is that of Cox's model.
    assert (np.argsort(task.predict(outputs)) == np.argsort(risk[:, 0])).all()


@pytest.mark.parametrize("task", [CoxPartial(), DiscreteTime((9.0,), ENDS)])
@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_predicts_as_what_was_fitted(name, task):
    """Also where hazards are so small, or so large, that their odds are hard to compute."""
    given = problem(task)
    extreme = np.array([[-30.0, 0.0], [-4.0, 1.0], [9.0, 0.0], [40.0, 0.0]])
    baseline = find_baseline(name)
    fitted = baseline.fit(given)
    model = linear().bind((2,), task.outputs(None, (2,)), task)
    kept = baseline.keep(fitted, model)
    assert kept.chosen == {} and len(kept.vectors) == 3
    for client, vector in enumerate(kept.vectors):
        x = np.concatenate([given.x[client], extreme])
        expected = fitted(client, x)
        found = kept.model.logits(
            kept.model.params(jnp.asarray(vector)), jnp.asarray(x, np.float32)
        )
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)
    # A newcomer's baseline hazard is that of all rows; of models alone it has none.
    assert (kept.shared is None) == (name == "cox-alone")
    if kept.shared is not None:
        shared, five = jnp.asarray(kept.shared), jnp.asarray(given.x[0][:5])
        found = kept.model.logits(kept.model.params(shared), five)
        risks = np.asarray(task.predict(np.asarray(found)))
        own = task.predict(fitted(0, given.x[0][:5]))
        assert (np.argsort(risks) == np.argsort(own)).all()


def test_a_client_without_events_has_no_risks_of_its_own():
    x, y = clients()
    y[1][:, 1] = 0
    given = Problem(x, y, None, 0, task=DiscreteTime((9.0,), ENDS))
    outputs = find_baseline("cox-alone").fit(given)(1, x[1])
    assert np.ptp(outputs, axis=0).max() == 0 and np.isfinite(outputs).all()
    assert np.isfinite(find_baseline("cox-stratified").fit(given)(1, x[1])).all()


def test_they_are_for_survival_only():
    for name in NAMES:
        baseline = find_baseline(name)
        assert baseline.applies(CoxPartial()) and not baseline.applies(
            task_of(default_loss(2))
        )
        assert not find_baseline("linear-alone").applies(CoxPartial())
    assert [find_baseline(name).needs_pooled_data for name in NAMES] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("hazard", ["discrete", "cox"])
def test_they_are_measured_as_runs_are(hazard, tmp_path):
    x, y = clients()
    frame = pl.DataFrame(
        {
            "client": np.repeat(["a", "b", "c"], 80),
            "days": np.concatenate(y)[:, 0],
            "died": np.concatenate(y)[:, 1],
            "u": np.concatenate(x)[:, 0],
            "v": np.concatenate(x)[:, 1],
        }
    )
    table = from_table(frame, target="days", event="died", hazard=hazard)
    for name in NAMES:
        evaluate(find_baseline(name), table, bind(linear(), table), tmp_path / name)
        stored = StoredRun(tmp_path / name)
        rows = stored.rows
        assert {"risk", "time", "event"} <= {*rows.columns}
        for client in "abc":
            own = rows.filter(pl.col("client") == client)
            exact = harrell(own["time"], own["event"] > 0, own["risk"])
            values = stored.last("test").filter(pl.col("client") == client)
            assert values["value"][0] == pytest.approx(exact, abs=0.1)
            assert exact > 0.6
