"""UCFL that chooses the batch n_k of its variances on validation data, needs none, or
makes its probe later.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.aggregation import Probe, user_centric_weights
from fedtailor.algorithms import UCFL, FedAvg, UCFLParallel
from fedtailor.algorithms.helpers.trial import Trial
from fedtailor.algorithms.ucfl import CANDIDATES
from fedtailor.data.federation.splits import Ragged
from fedtailor.protocol import SGD
from fedtailor.testing.conformance import CHECKS

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
AUTO = UCFL(warm=0, sgd=TRAINED, sigma_batch="auto", trial=2)
BOUND = UCFL(warm=0, sgd=TRAINED, kernel="bound")
SIZES = np.array([3, 8, 13, 18])


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "order"])
def test_conformance(name):
    CHECKS[name](AUTO if name == "one client" else replace(AUTO, streams=2))
    if name not in ("empty round", "test rows"):
        CHECKS[name](BOUND)


@pytest.mark.slow
def test_conformance_order():
    CHECKS["order"](AUTO)


def test_one_probe_gives_the_weights_of_every_batch():
    """w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i^2)) with sigma_i^2 = tr S_i (1/n_k -
    1/n_i), n_k = share n_i.
    """
    with float64():
        federation = quadratics([-1.0, -0.5, 0.0, 0.5], 1.0, SIZES + 1)
        y = federation.y.copy()
        y[:, 1] += np.random.default_rng(0).normal(size=len(y))
        parts = {
            "train": [rows[:-1] for rows in federation.train],
            "val": [rows[-1:] for rows in federation.train],
        }
        federation = replace(
            federation, y=y, **{split: Ragged.of(rows) for split, rows in parts.items()}
        )
        trial = train(AUTO, federation, quadratic_model(1), 0)
        found = {}
        for share, state in zip(CANDIDATES, trial.server.candidates, strict=True):
            found[state.kernel, share] = by_place(
                trial, by_place(trial, state.rows).T
            ).T  # rows and columns
        centres = [y[rows, 1] for rows in federation.train]
    mean, trace = (
        np.array([c.mean() for c in centres]),
        np.array([c.var(ddof=1) for c in centres]),
    )
    for share in (0.1, 0.25, 0.5):
        sigma2 = trace * (1 / (share * SIZES) - 1 / SIZES)
        expected = SIZES * np.exp(
            -np.square(mean[:, None] - mean) / (2 * sigma2[:, None])
        )
        np.testing.assert_allclose(
            found["eq9", share], expected / expected.sum(axis=1, keepdims=True), **EXACT
        )
    np.testing.assert_allclose(
        found["eq9", 0.0], np.tile(SIZES / SIZES.sum(), (4, 1)), **EXACT
    )
    np.testing.assert_array_equal(found["eq9", 1.0], np.eye(4))
    probe = Probe(-mean[:, None], trace / SIZES, SIZES)
    np.testing.assert_allclose(
        found["bound", CANDIDATES[-1]], user_centric_weights(probe, "bound"), **EXACT
    )


def test_the_bounds_probe_is_that_of_auto():
    with float64():
        federation, model = classification(), softmax_model()
        bound, auto = (
            train(method, federation, model, 0).server for method in (BOUND, AUTO)
        )
    last = auto.candidates[-1]
    np.testing.assert_array_equal(bound.rows, last.rows)
    np.testing.assert_array_equal(bound.sigma2, last.sigma2)
    assert (bound.kernel, last.kernel) == ("bound", "bound") and np.ptp(
        bound.rows
    ) > 0.1


def test_candidates_train_as_alone_and_the_one_of_least_validation_error_goes_on():
    with float64():
        federation, model = classification(val=40), softmax_model()
        run = train(AUTO, federation, model, 2)
        rows = [candidate.rows for candidate in run.server.candidates]
        alone = [
            train(UCFL(sgd=TRAINED, rows=weights), federation, model, 1)
            for weights in rows
        ]
        errors = []
        for candidate, other in zip(run.server.candidates, alone, strict=True):
            other.evaluate()
            other.advance()
            other.evaluate()
            np.testing.assert_allclose(candidate.model, other.server.model, **EXACT)
            accuracies = [
                other.metrics.values(split="val", metric="accuracy", round=done)
                for done in (1, 2)
            ]
            errors.append(
                1 - np.mean(accuracies)
            )  # of three measurements, the later half
        assert isinstance(run.server, Trial)
        run.advance()
        best = int(np.argmin(errors))
        assert sorted(errors)[1] - sorted(errors)[0] > 1e-3 and best > 0
        np.testing.assert_allclose(
            run.server.tried, np.stack([CANDIDATES, errors], axis=1), **EXACT
        )
        np.testing.assert_array_equal(run.server.rows, rows[best])
        for training in (run, alone[best], alone[best]):
            training.advance()
        np.testing.assert_allclose(personal(run), personal(alone[best]), **EXACT)
        _, line = run.algorithm.diagnostics(run.server)
    assert line.chosen == (None if best == 5 else pytest.approx(CANDIDATES[best]))
    np.testing.assert_array_equal(line.y, run.server.tried[:5, 1])


def test_while_candidates_compete_the_leader_is_served():
    with float64():
        run = train(AUTO, classification(), softmax_model(), 2)
        leader = int(run.server.errors[1:].mean(axis=0).argmin())
        served = personal(run)
        run.server = run.server.candidates[leader]
        np.testing.assert_array_equal(served, personal(run))


def test_the_ledger_counts_what_the_choice_costs():
    """Six models each way in the rounds of the trial and in the one that chooses, but
    the first, which starts from the probe's; then one."""
    with float64():
        run = train(AUTO, classification(val=40), softmax_model(), 4)
        d = run.server.initial.shape[0]
    frame, k = run.ledger.frame(), len(CANDIDATES)
    models = frame.filter((pl.col("phase") == "round") & (pl.col("kind") == "model"))
    up, down = (
        models.filter(pl.col("direction") == way).sort("round")
        for way in ("up", "down")
    )
    assert up["unicasts"].to_list() == [5 * k, 5 * k, 5 * k, 5]
    assert dict(zip(down["round"], down["unicasts"], strict=True)) == {
        1: 5 * k,
        2: 5 * k,
        3: 5,
    }
    errors = frame.filter(pl.col("kind") == "error")
    assert errors["bytes_unicast"].to_list() == [5 * k * 8] * 3
    probe = frame.filter((pl.col("phase") == "probe") & (pl.col("direction") == "up"))
    assert probe["scalars"].sum() == 3 * 5 and probe["bytes_unicast"].sum() == 5 * d * 8
    work = frame.filter(
        (pl.col("phase") == "round") & (pl.col("direction") == "compute")
    ).sort("round")
    assert work["gradients"].to_list() == [k * work["gradients"][3]] * 3 + [
        work["gradients"][3]
    ]


def test_a_newcomer_with_a_clients_data_gets_its_model_whatever_the_batch():
    """Its row is of the chosen n_k, too."""
    with float64():
        unseen = np.array([False, False, False, True, False])
        federation = classification(sizes=[8] * 5, unseen=unseen)
        twins = np.array([0, 1, 2, 1, 4])
        run = train(
            AUTO,
            replace(federation, train=federation.train.take(twins)),
            softmax_model(),
            1,
        )
        own = []
        for candidate in run.server.candidates:
            run.server = candidate
            (found,) = predictors(run)
            np.testing.assert_allclose(found[3], found[1], **EXACT)
            own.append(np.diagonal(candidate.rows).mean())
    assert own[:5] == sorted(own[:5]) and len(set(np.round(own, 6))) == len(CANDIDATES)


def test_the_choice_waits_for_clients_with_validation_data():
    with float64():
        base = classification()
        held = [rows if client else rows[:0] for client, rows in enumerate(base.val)]
        run = train(
            replace(AUTO, trial=1),
            replace(base, val=Ragged.of(held)),
            softmax_model(),
            0,
        )
        listed = run.executor.seen.original_index
        for _ in range(3):
            run.advance(reporting=listed == 0)
        assert isinstance(run.server, Trial) and not len(run.server.errors)
        run.advance(reporting=listed != 1)
        assert isinstance(run.server, Trial) and len(run.server.errors) == 1
        run.advance(reporting=listed != 1)
        assert not isinstance(run.server, Trial)


def test_the_probe_after_rounds_of_fedavg_is_made_at_their_model():
    A, a = np.array([0.5, 1.0, 2.0, 3.0]), np.array([-1.0, 0.5, 2.0, 4.0])
    plain = SGD(lr=0.2, steps=3, batch_size=8)
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1, shifted)
        run = train(UCFL(sgd=plain, warm=2), federation, model, 3)
        average = train(FedAvg(sgd=plain), federation, model, 2).server.model[0]
        np.testing.assert_array_equal(run.server.initial, average)
        np.testing.assert_allclose(
            by_place(run, run.server.gradients)[:, 0], A * (average[0] - a), **EXACT
        )


def test_what_cannot_be_chosen_is_refused():
    with (
        float64(),
        pytest.raises(
            ValueError, match="no client has any; split some off, or name a number"
        ),
    ):
        train(AUTO, classification(val=0), softmax_model(), 1)
    for wrong in (
        dict(sigma_batch="automatic"),
        dict(sigma_batch="auto", trial=0),
        dict(warm=-1),
    ):
        with pytest.raises(ValueError, match=r"it must be"):
            UCFL(**wrong)
    with pytest.raises(ValueError, match="have ucfl choose it"):
        UCFLParallel(sigma_batch="auto")


def test_the_trial_goes_on_until_a_candidate_has_learned():
    """Errors of models that are as wrong as the initial one say nothing: three times
    the rounds, then no longer.
    """
    with float64():
        federation, model = classification(val=40), softmax_model()
        slow = replace(AUTO, trial=1, sgd=SGD(lr=1e-9, batch_size=8))
        waiting, over = (
            train(slow, federation, model, 3),
            train(slow, federation, model, 4),
        )
        quick = train(AUTO, federation, model, 3)
    assert isinstance(waiting.server, Trial) and len(waiting.server.errors) == 3
    assert not isinstance(over.server, Trial)
    assert (
        not isinstance(quick.server, Trial)
        and quick.server.tried[:, 1].min() <= waiting.server.errors[0, 0] / 2
    )
