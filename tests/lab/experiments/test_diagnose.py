"""The probe behind `diagnose`: what clients answer, and what is made of it."""

from functools import partial

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.data.federation import from_arrays
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs.run import executor_of, simulate
from fedtailor.lab.experiments.diagnose import (
    BATCH_SHARE,
    _feature_subset,
    diagnose,
    gather_evidence,
)
from fedtailor.statistics.diagnosis import Evidence, batch_sizes, recommend_race
from fedtailor.statistics.diagnosis import diagnose as diagnose_evidence

SGD = ft.SGD(lr=0.1, epochs=1, batch_size=16)


def clients(signs, rows=60, features=3, offset=0.0, **options):
    """Clients that label the same inputs by a slope of their own sign; the first
    feature lies around `offset`.
    """
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(signs)), rows)
    x = rng.normal(size=(len(owner), features)) + offset * np.eye(features)[0]
    y = (x[:, 1] * np.array(signs)[owner] > 0).astype(int)
    names = [
        f"site {len(signs) - client}" for client in owner
    ]  # not in the order of their ids
    return from_arrays(
        x.astype(np.float32), y, names, **{"test": 0.2, "classes": 2, **options}
    )


def evidence_of(federation, model, classes=2, features=3):
    executor = executor_of(
        federation, model.bind(federation.input_shape, 2), Settings()
    )
    return gather_evidence(executor, executor.model, classes, features)


def test_the_evidence_is_that_of_the_training_rows():
    federation = clients([1, 1, -1], offset=1000, unseen=("site 2",))
    evidence, sent = evidence_of(federation, ft.models.logistic())
    seen = [federation.client(name) for name in evidence.names]
    assert [client.index for client in seen] == list(federation.seen) and len(seen) == 2
    np.testing.assert_array_equal(
        evidence.sizes, [len(client.train.y) for client in seen]
    )
    np.testing.assert_array_equal(
        evidence.label_counts,
        [np.bincount(client.train.y, minlength=2) for client in seen],
    )
    rows = [np.asarray(client.train.x, np.float64) for client in seen]
    np.testing.assert_allclose(
        evidence.feature_means, [x.mean(axis=0) for x in rows], rtol=1e-5, atol=1e-6
    )
    variances = evidence.feature_squares - evidence.feature_means**2
    np.testing.assert_allclose(
        variances, [x.var(axis=0) for x in rows], rtol=1e-4
    )  # also of the feature near 1000
    assert sent == 2 * 4 * (
        8 + 2 + 3 + 3
    )  # two clients: gradient, classes, means, variances, in single precision


def test_gradients_are_those_of_the_probe_of_ucfl():
    federation, model = clients([1, -1, 1]), ft.models.logistic()
    evidence, _ = evidence_of(federation, model)
    method = ft.UCFL(sgd=SGD, warm=0, sigma_batch=BATCH_SHARE)
    training = simulate(method, federation, model)
    training.probe()
    order = np.argsort(training.population.original_index)
    np.testing.assert_allclose(
        evidence.gradients, training.server.gradients[order], rtol=1e-6
    )
    np.testing.assert_allclose(
        evidence.sigma2, training.server.sigma2[order], rtol=1e-6
    )


@pytest.mark.slow
def test_after_rounds_of_fedavg_groups_are_found_that_no_pair_shows():
    """Clients that label the same inputs by opposite slopes, a third of a network."""
    federation = clients([1, -1, 1, -1, 1, -1], rows=40)
    model, fedavg = ft.models.mlp(8), ft.FedAvg(sgd=SGD)
    at_once, later = (
        diagnose(federation, model, warm=warm, fedavg=fedavg) for warm in (0, 10)
    )
    assert at_once.diagnosis.silhouette is None
    np.testing.assert_array_equal(later.diagnosis.groups, [0, 1, 0, 1, 0, 1])
    advised = ["warm 10" in " ".join(it.sentences()) for it in (at_once, later)]
    assert advised == [True, False]
    # what the clients sent in ten rounds is counted, too
    weights = model.bind((3,), 2).size
    assert later.probe_bytes - at_once.probe_bytes == 10 * 6 * 4 * weights
    with pytest.raises(ValueError, match="warm is -1"):
        diagnose(federation, model, warm=-1)


def test_batches_are_a_twentieth_and_at_most_half():
    np.testing.assert_array_equal(
        batch_sizes(np.array([1, 2, 3, 9, 40, 100]), BATCH_SHARE), [1, 1, 1, 1, 2, 5]
    )


def test_of_very_many_features_some_are_compared():
    np.testing.assert_array_equal(_feature_subset(1000, 64), np.arange(64))
    some = _feature_subset(1000, 3072)
    assert (
        len(some) == 800
        and some[0] == 0
        and some[-1] == 3071
        and np.ptp(np.diff(some)) == 1
    )


def test_labels_or_inputs_that_are_none_are_not_asked_for():
    evidence, _ = evidence_of(
        clients([1, -1]), ft.models.logistic(), classes=0, features=0
    )
    assert (
        evidence.label_counts is None
        and evidence.feature_means is None
        and evidence.feature_squares is None
    )


def test_opposed_groups_are_found_and_named():
    advice = ft.diagnose(clients([1, -1] * 3, rows=300, val=0.1), ft.models.logistic())
    assert diagnose is ft.diagnose
    np.testing.assert_array_equal(advice.diagnosis.groups, [0, 1] * 3)
    said = advice.sentences()
    assert (
        3 <= len(said) <= 7
        and said[-1] == "Train ucfl, ifca, local and let validation data choose."
    )
    assert advice.validation == 180


def test_missing_validation_rows_are_said():
    advice = ft.diagnose(clients([1, 1]), ft.models.logistic())
    assert advice.sentences()[-1].endswith(
        "There are no validation rows yet: set some aside."
    )


def test_a_single_client_and_equal_rows_end_in_one_line():
    with pytest.raises(ValueError, match="one client alone cannot be compared"):
        ft.diagnose(clients([1]), ft.models.logistic())
    same = from_arrays(
        np.ones((40, 2), np.float32),
        np.zeros(40, int),
        ["a", "b"] * 20,
        test=0.2,
        classes=2,
    )
    with pytest.raises(
        ValueError, match="the gradients of client 'a' do not vary between batches"
    ):
        ft.diagnose(same, ft.models.logistic())


@pytest.mark.slow
@pytest.mark.parametrize("groups", [False, True])
def test_what_a_method_is_said_to_send_is_what_it_sends(groups):
    gradients = np.repeat(np.eye(3)[:2] if groups else np.zeros((2, 3)), 2, axis=0)
    gradients = gradients + 1e-3 * np.random.default_rng(0).normal(size=(4, 3))
    known = Evidence(
        list("abcd"), np.full(4, 50), gradients, np.full(4, 1e-5), np.full(4, 16)
    )
    federation, model = clients([1, -1, 1, -1]), ft.models.logistic()
    race = recommend_race(diagnose_evidence(known), 4 * 8)
    assert race.entries[0].method == ("ucfl" if groups else "fedavg")
    for entry in race.entries:
        # with the streams from the first round on
        literal = partial(ft.UCFL, warm=0)
        method = {"ucfl": literal, "ifca": ft.IFCA, "local": ft.Local}.get(entry.method)
        method = method or {"fedavg": ft.FedAvg, "ditto": ft.Ditto}[entry.method]
        run = ft.run(
            method(sgd=SGD, **entry.settings), federation, model, 4, evaluate_every=4
        )
        last = run.ledger.frame()
        last = last.filter((last["round"] == 3) & (last["phase"] == "round"))
        down, up = (
            last.filter(last["direction"] == "down"),
            last.filter(last["direction"] == "up"),
        )
        sent = (
            down["bytes_multicast"].sum(),
            down["bytes_unicast"].sum(),
            up["bytes_unicast"].sum(),
        )
        assert sent == (
            entry.bytes_down,
            entry.bytes_down_unicast,
            entry.bytes_up,
        ), entry.method
