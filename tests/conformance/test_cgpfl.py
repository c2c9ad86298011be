"""CGPFL and CGPFL-Heur: pFedMe as a special case, fixed points, identity of contexts,
their number.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from conformance.problems import (
    BATCH,
    EXACT,
    assert_absent_keep_their_state,
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
from fedtailor.algorithms import PFedMe
from fedtailor.algorithms.cgpfl import CGPFL
from fedtailor.algorithms.cgpfl_heur import CGPFLHeur
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

LR, LAM, GAMMA, R, S = 0.02, 5.0, 0.3, 3, 4
INNER = SGD(lr=LR, steps=R, batch_size=BATCH)
SETTINGS = {"sgd": INNER, "lam": LAM, "inner_steps": S}
GROUPS = np.array([0, 1, 0, 1, 1, 0])
OPTIMA = np.array([-9.0, 8.0, -10.0, 9.0, 10.0, -8.5])
A = np.array([0.5, 1.0, 2.0, 3.0, 1.5, 1.0])


def envelope(alpha=1.0, **fields):
    return PFedMe(**SETTINGS, outer_lr=GAMMA / LAM, beta=alpha, **fields)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_one_context_is_pfedme(alpha, weights):
    with float64():
        federation, model = classification(), softmax_model()
        expected = train(envelope(alpha, weights=weights), federation, model, 3)
        method = CGPFL(
            contexts=1, gamma=GAMMA, alpha=alpha, weights=weights, **SETTINGS
        )
        found = train(method, federation, model, 3)
        np.testing.assert_allclose(personal(found), personal(expected), **EXACT)
        np.testing.assert_allclose(
            *(np.asarray(run.server.model) for run in (found, expected)), **EXACT
        )


def test_a_context_for_each_client_is_pfedme_for_each_client():
    with float64():
        federation, model = classification(), softmax_model()
        found = train(CGPFL(contexts=5, gamma=GAMMA, **SETTINGS), federation, model, 3)
        for client in (0, 3):
            alone = replace(
                federation,
                **{
                    split: getattr(federation, split).take([client])
                    for split in ("train", "val", "test")
                },
                names=federation.names[client : client + 1],
                unseen=np.array([False]),
            )
            expected = train(envelope(), alone, model, 3)
            np.testing.assert_allclose(
                personal(found)[client], personal(expected)[0], **EXACT
            )


@pytest.mark.parametrize("start", ["context", "personal"])
def test_fixed_points_of_two_contexts(start):
    """With exact inner solves: a mean of optima weighted by 1 - (1 - gamma A / (A +
    lam))^R, for each context.
    """
    lam, gamma = 2.0, 0.8
    step = 1 - gamma * A / (A + lam)
    c = 1 - step**R
    w = np.array(
        [(c * OPTIMA)[g == GROUPS].sum() / c[g == GROUPS].sum() for g in (0, 1)]
    )[GROUPS]
    with float64():
        method = CGPFL(
            contexts=2,
            sgd=replace(INNER, lr=0.1),
            inner_steps=100,
            lam=lam,
            gamma=gamma,
            start=start,
        )
        run = train(method, quadratics(OPTIMA, A), quadratic_model(1), 60)
        context = by_place(run, run.server.context)
        np.testing.assert_allclose(np.asarray(run.server.model)[context, 0], w, **EXACT)
        # theta is solved around the local context after R - 1 of the R moves of the
        # round
        around = OPTIMA + step ** (R - 1) * (w - OPTIMA)
        np.testing.assert_allclose(
            personal(run)[:, 0], (A * OPTIMA + lam * around) / (A + lam), **EXACT
        )


def test_where_theta_starts_matters_before_inner_solves_are_exact():
    with float64():
        federation, model = classification(), softmax_model()
        runs = [
            [
                personal(
                    train(
                        CGPFL(contexts=2, start=start, **SETTINGS), federation, model, t
                    )
                )
                for t in (1, 3)
            ]
            for start in ("context", "personal")
        ]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert np.abs(runs[0][1] - runs[1][1]).max() > 1e-4


def test_contexts_stand_still_without_alpha():
    with float64():
        run = train(
            CGPFL(contexts=2, alpha=0.0, **SETTINGS),
            quadratics(OPTIMA, A),
            quadratic_model(1, shifted),
            2,
        )
        start = np.asarray(run.initial(0))
    np.testing.assert_array_equal(np.asarray(run.server.model), [start, start])


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_contexts_keep_their_identity_although_others_report_each_time(alpha):
    """Whoever comes first in a round, each group's clients stay with one context, which
    stays near their optima.
    """
    with float64():
        method = CGPFL(contexts=2, alpha=alpha, gamma=GAMMA, **SETTINGS)
        federation = quadratics(OPTIMA, A)
        run = train(
            method,
            federation,
            quadratic_model(1),
            12,
            participation=Participation(count=4),
        )
        first = by_place(run, run.server.context)
        firsts = set()
        for _ in range(12):
            cohort = by_place(
                run, run.participation.sample(run.population.ids, 0, run.round)
            )
            firsts.add(
                GROUPS[
                    run.executor.seen.original_index[
                        np.flatnonzero(cohort[run.executor.seen.original_index])[0]
                    ]
                ]
            )
            before = by_place(run, run.server.context)
            run.advance()
            after = by_place(run, run.server.context)
            both = all((cohort & (g == GROUPS)).any() for g in (0, 1))
            np.testing.assert_array_equal(after[~cohort], before[~cohort])
            if both:
                np.testing.assert_array_equal(after, first)
                models = np.asarray(run.server.model)[first, 0]
                assert (np.sign(models) == np.sign(OPTIMA)).all()
        assert firsts == {0, 1}


@pytest.mark.parametrize("first", [True, False])
def test_fewer_reports_than_contexts_end_nothing(first):
    """A client may be away for a round; the contexts without a cluster stay."""
    with float64():
        method = CGPFL(contexts=4, gamma=GAMMA, **SETTINGS)
        federation = quadratics(OPTIMA, A)
        run = train(method, federation, quadratic_model(1), 0 if first else 1)
        before = np.asarray(run.server.model)
        reporting = np.arange(len(run.population)) < 3
        run.advance(reporting=reporting)
        after = np.asarray(run.server.model)
        assert after.shape == before.shape == (4, 1)
        moved = (after != before).any(axis=1)
        assert moved.sum() <= 3 and len(set(run.server.context[reporting])) <= 3
        run.advance()
        assert (run.server.context >= 0).all()


def test_the_literal_pull_is_a_number():
    """2 beta / N with beta = 0.005 and N = 6 clients: contexts hardly move."""
    with float64():
        federation, model = quadratics(OPTIMA, A), quadratic_model(1)
        literal, scaled = (
            np.abs(
                np.asarray(
                    train(
                        CGPFL(contexts=2, gamma=g, **SETTINGS), federation, model, 1
                    ).server.model
                )
            )
            for g in (2 * 0.005 / 6, None)
        )
    assert literal.max() < 0.05 * scaled.max()


def test_traffic_is_one_stream_at_first_and_then_one_for_each_context():
    with float64():
        run = train(
            CGPFL(contexts=2, **SETTINGS), quadratics(OPTIMA, A), quadratic_model(1), 3
        )
    down = run.ledger.frame().filter(pl.col("direction") == "down")
    assert down["streams"].to_list() == [1, 2, 2]
    assert down["unicasts"].to_list() == [6, 6, 6]


def test_newcomers_take_the_context_of_lowest_loss_and_solve_around_it():
    with float64():
        federation = quadratics(OPTIMA, A, unseen=np.arange(6) >= 4)
        sgd = replace(INNER, lr=0.1)
        run = train(
            CGPFL(contexts=2, sgd=sgd, inner_steps=150, lam=LAM, gamma=GAMMA),
            federation,
            quadratic_model(1),
            30,
        )
        (found,) = predictors(run)
        contexts = np.asarray(run.server.model)[:, 0]
        for client in (4, 5):
            w = contexts[np.argmin(np.abs(contexts - OPTIMA[client]))]
            expected = (A[client] * OPTIMA[client] + LAM * w) / (A[client] + LAM)
            np.testing.assert_allclose(found[client, 0], expected, **EXACT)


def test_absent_clients_keep_their_model_and_those_never_seen_are_served():
    with float64():
        method = CGPFL(contexts=2, **SETTINGS)
        run = train(
            method,
            classification(),
            softmax_model(),
            1,
            participation=Participation(count=2),
        )
        never, own = (
            run.server.context < 0,
            np.asarray(run.executor.client_states["model"]),
        )
        found, start = by_place(run, never), np.asarray(run.initial(0))
        served = predictors(run)[0]
        assert (
            never.sum() == 3
            and (np.abs(served[found] - start).max(axis=1) > 1e-3).all()
        )
        np.testing.assert_array_equal(served[~found], by_place(run, own)[~found])
        assert_absent_keep_their_state(run)


def test_a_client_that_reports_late_trains_in_the_context_that_fits_it():
    """Two contexts near -9 and 9; a client of the second group reports for the first
    time when they are there.
    """
    with float64():
        run = train(
            CGPFL(contexts=2, gamma=GAMMA, **SETTINGS),
            quadratics(OPTIMA, A),
            quadratic_model(1),
            0,
        )
        place = run.executor.seen.original_index
        for _ in range(12):
            run.advance(place < 4)
        contexts, before = (
            np.asarray(run.server.model)[:, 0],
            by_place(run, run.server.context),
        )
        fits = [int(np.argmin(np.abs(contexts - OPTIMA[late]))) for late in (4, 5)]
        assert set(fits) == {0, 1} and (before[4:] == -1).all()
        run.advance(np.ones(6, bool))
        np.testing.assert_array_equal(by_place(run, run.server.context)[4:], fits)
        # R mini-batches of S inner steps around the context that fits, and none around
        # the other
        for late, fit in zip((4, 5), fits, strict=True):
            theta = w = contexts[fit]
            for _ in range(R):
                for _ in range(S):
                    theta = theta - LR * (
                        A[late] * (theta - OPTIMA[late]) + LAM * (theta - w)
                    )
                w = w - GAMMA * (w - theta)
            np.testing.assert_allclose(personal(run)[late, 0], theta, **EXACT)
        models = run.ledger.frame().filter(
            (pl.col("direction") == "down") & (pl.col("kind") == "model")
        )
        assert models["unicasts"].to_list()[-1] == 4 + 2 * 2


def test_the_contexts_of_clients_are_a_diagnostic():
    with float64():
        run = train(
            CGPFL(contexts=2, **SETTINGS), quadratics(OPTIMA, A), quadratic_model(1), 0
        )
        run.advance(run.executor.seen.original_index < 4)
        (found,) = run.algorithm.diagnostics(run.server)
    assert found.name == "context" and len(found.x) == 4
    np.testing.assert_array_equal(run.server.context[found.x], found.y)
    assert set(run.executor.seen.original_index[found.x]) == {0, 1, 2, 3}


HEUR = {
    "sgd": SGD(lr=0.05, steps=8, batch_size=BATCH),
    "lam": LAM,
    "inner_steps": S,
    "gamma": 0.9,
}


def contexts_found(centres, spread=0.05, **fields):
    """The number that CGPFL-Heur chooses for four clients around each centre."""
    rng = np.random.default_rng(0)
    optima = np.repeat(centres, 4, axis=0) + spread * rng.normal(
        size=(4 * len(centres), 2)
    )
    federation = quadratics(optima, 1.0, [6] * len(optima))
    return len(
        train(
            CGPFLHeur(**HEUR, **fields), federation, quadratic_model(2), 1
        ).server.model
    )


CENTRES = np.array([[8.0, 0.0], [-8.0, 1.0], [0.0, 9.0]])


def test_the_number_of_contexts():
    with float64():
        assert contexts_found(CENTRES) == 3
        assert contexts_found(CENTRES, mu=0.0) == 1
        assert contexts_found(CENTRES, mu=1e12) == 6
        assert contexts_found(CENTRES[:1]) == 1
        # of the models' scale and complexity only through a mu of one's own
        assert contexts_found(CENTRES, complexity=50.0) == 3
        assert contexts_found(CENTRES, mu=0.02, complexity=40.0) < contexts_found(
            CENTRES, mu=0.02, complexity=0.01
        )


def test_a_given_mu_weighs_distances_against_the_complexity():
    """Two contexts lower the second term from 1 to 0, and raise the first one by
    (sqrt(2) - 1) sqrt(d / m log(e m / d)).
    """
    models = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    d, m = 5.0, 40.0
    rise = (np.sqrt(2) - 1) * np.sqrt(d / m * np.log(np.e * m / d))
    for share, expected in [(0.99, 1), (1.01, 2)]:
        method = CGPFLHeur(mu=share * rise, complexity=d)
        assert method._number(models, np.full(4, 10)) == expected
    # A complexity above m counts as m.
    rise = np.sqrt(2) - 1
    for share, expected in [(0.99, 1), (1.01, 2)]:
        method = CGPFLHeur(mu=share * rise, complexity=100.0)
        assert method._number(models, np.full(4, 10)) == expected


@pytest.mark.parametrize("clients", [6, 10, 16])
def test_without_clusters_there_is_one_context_whatever_the_scale_of_the_models(
    clients,
):
    """Equally distant models: every further context explains as much as the one before,
    and e(1) = e(N/2).
    """
    sizes = np.full(clients, 10)
    for scale in 3.0 ** np.arange(-6, 7):
        assert CGPFLHeur()._number(scale * np.eye(clients), sizes) == 1


def test_a_found_number_is_kept_and_everything_else_is_cgpfl():
    with float64():
        rng = np.random.default_rng(0)
        optima = np.repeat(CENTRES, 4, axis=0) + 0.05 * rng.normal(size=(12, 2))
        federation, model = quadratics(optima, 1.0, [6] * 12), quadratic_model(2)
        found, given = (
            train(method, federation, model, 5)
            for method in (CGPFLHeur(**HEUR), CGPFL(contexts=3, **HEUR))
        )
        np.testing.assert_array_equal(personal(found), personal(given))
        np.testing.assert_array_equal(found.server.context, given.server.context)


@pytest.mark.parametrize(
    "wrong",
    [
        {"contexts": 0},
        {"start": "zero"},
        {"inner_steps": 0},
        {"lam": 0.0},
        {"alpha": -1.0},
        {"gamma": 2.0},
        {"sgd": SGD(lr=0.005, momentum=0.9)},
    ],
)
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(
        ValueError, match="plain SGD" if "sgd" in wrong else next(iter(wrong))
    ):
        CGPFL(**wrong)


def test_impossible_numbers_are_refused():
    for wrong in ({"mu": -1.0}, {"complexity": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CGPFLHeur(**wrong)
    with float64(), pytest.raises(ValueError, match="too few for 4 contexts"):
        train(
            CGPFL(),
            classification(),
            softmax_model(),
            0,
            participation=Participation(count=3),
        )
