"""Self-FL: its fixed point, number of steps, variances, weights, and what becomes of it
without its components.
"""

import jax.numpy as jnp
import numpy as np
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
    softmax_model,
    train,
)
from fedtailor.algorithms import FedAvg, Local
from fedtailor.algorithms.self_fl import SelfFL
from fedtailor.algorithms.then import Then
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
z = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
LR = 0.05
PLAIN = SGD(lr=LR, steps=3, batch_size=BATCH)
INTER = 0.5
INTRA = np.array([0.2, 0.9, 0.4, 2.5])
PRECISION = 1 / (INTER + INTRA)
OTHERS = PRECISION.sum() - PRECISION
HESSIANS = {
    "unit": np.ones(4),
    0.5: np.full(4, 0.5),
    "fisher": 1 / (SIZES * INTRA),
    "literal": 1 / INTRA,
    "power": A,
}


def known(federation, **fields):
    """Self-FL with the variances of the clients of `federation` given (in the order of
    ids).
    """
    order = train(
        Local(), federation, quadratic_model(federation.y.shape[1] // 2), 0
    ).executor.seen.original_index
    fields = {"sgd": PLAIN, "l_max": 200, "smoothing": 1.0, **fields}
    return SelfFL(inter_variance=INTER, intra_variances=INTRA[order], **fields)


def steps(curvature="unit", posterior="paper", l_max=200):
    """Eq. 8 in plain arithmetic."""
    others = OTHERS if posterior == "paper" else 1 / (INTER + 1 / OTHERS)
    rho = others / (1 / INTRA + others)
    return np.clip(
        np.ceil(np.log(rho) / np.log(1 - LR * HESSIANS[curvature])), 1, l_max
    )


def fixed_point(contraction, optima):
    """(I - R L)^-1 (I - R) z, where L averages over the others."""
    mean_of_others = np.where(np.eye(4, dtype=bool), 0, PRECISION) / OTHERS[:, None]
    R = np.diag(contraction)
    return np.linalg.solve(np.eye(4) - R @ mean_of_others, (np.eye(4) - R) @ optima)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize("curvature", ["unit", 0.5, "fisher", "literal", "power"])
def test_the_number_of_steps_is_that_of_equation_8(curvature, posterior):
    """After one round from 0 a client's model is z (1 - (1 - eta A)^l)."""
    with float64():
        federation = quadratics(z, A, SIZES)
        method = known(federation, curvature=curvature, posterior=posterior, l_max=60)
        run = train(method, federation, quadratic_model(1), 1)
        found = np.log(1 - personal(run)[:, 0] / z) / np.log(1 - LR * A)
    np.testing.assert_allclose(found, steps(curvature, posterior, l_max=60), rtol=1e-8)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
def test_fixed_point(posterior):
    with float64():
        federation = quadratics(z, A, SIZES)
        found = personal(
            train(
                known(federation, posterior=posterior),
                federation,
                quadratic_model(1),
                150,
            )
        )[:, 0]
    np.testing.assert_allclose(
        found, fixed_point((1 - LR * A) ** steps(posterior=posterior), z), **EXACT
    )


def test_fixed_point_of_vectors():
    curvature = np.array([[0.5, 3.0], [1.0, 1.0], [2.0, 0.5], [1.5, 2.5]])
    optima = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -3.0], [4.0, 1.0]])
    with float64():
        federation = quadratics(optima, curvature, SIZES)
        found = personal(train(known(federation), federation, quadratic_model(2), 150))
    for k in range(2):
        expected = fixed_point((1 - LR * curvature[:, k]) ** steps(), optima[:, k])
        np.testing.assert_allclose(found[:, k], expected, **EXACT)


def equal_variances(steps, optima_first=False, rounds=200):
    """Personal models where all variances are 0.8 and the rate makes l steps contract
    by exactly rho.
    """
    a, M = 1 / (INTER + 0.8), 4
    rho = (M - 1) * a / (1 / 0.8 + (M - 1) * a)
    method = SelfFL(
        sgd=SGD(lr=1 - rho ** (1 / steps), batch_size=BATCH),
        smoothing=1.0,
        inter_variance=INTER,
        intra_variances=np.full(M, 0.8),
    )
    with float64():
        run = train(
            method,
            quadratics(z, 1.0, SIZES),
            quadratic_model(1),
            0 if optima_first else rounds,
        )
        if optima_first:
            run.server = run.server.replace(model=jnp.array([[z.mean()]]))
            rows = run.executor.client_states
            moments = rows["moments"][0] + 1, *rows["moments"][1:]
            optima = jnp.asarray(z[run.executor.seen.original_index, None])
            states = {"model": optima, "moments": moments}, ()
            run.executor.states.write(np.arange(len(z)), states)
            run.advance()
        return personal(run)[:, 0], rho


@pytest.mark.parametrize("steps", [1, 3])
def test_equal_variances_reach_their_fixed_point_and_the_optimum_of_equation_3_from_local_optima(
    steps,
):
    found, rho = equal_variances(steps)
    np.testing.assert_allclose(
        found, z.mean() + (1 - rho) / (1 + rho / 3) * (z - z.mean()), **EXACT
    )
    found, rho = equal_variances(steps, optima_first=True)
    np.testing.assert_allclose(
        found, z.mean() + (1 - rho * 4 / 3) * (z - z.mean()), **EXACT
    )


@pytest.mark.parametrize("participation", [Participation(), Participation(count=3)])
def test_variances_weights_and_smoothing_are_the_papers(participation):
    """Equations 13, 14, 11 and the moving average, from the models that travelled."""
    method = SelfFL(sgd=SGD(lr=0.2, batch_size=BATCH))
    with float64():
        run = train(
            method, classification(), softmax_model(), 0, participation=participation
        )
        sent, intra, inter = [[] for _ in range(5)], np.full(5, np.nan), 0.0
        for t in range(5):
            report, before = (
                participation.sample(run.population.ids, 0, t),
                np.asarray(run.server.model)[0],
            )
            run.advance()
            models = np.asarray(run.executor.client_states["model"])
            for client in np.flatnonzero(report):
                sent[client].append(models[client])
                if len(sent[client]) > 1:
                    intra[client] = np.var(sent[client], axis=0, ddof=1).mean()
            inter = np.var(models[report], axis=0, ddof=1).mean()
            np.testing.assert_allclose(run.server.intra, intra, **EXACT)
            np.testing.assert_allclose(run.server.inter, inter, **EXACT)
            variances = np.where(
                np.isnan(intra),
                0 if np.isnan(intra).all() else np.nanmedian(intra),
                intra,
            )
            a = np.where(
                report, 1.0 if np.isnan(intra).all() else 1 / (inter + variances), 0
            )
            C = report.sum() / 5
            np.testing.assert_allclose(
                np.asarray(run.server.model)[0],
                (1 - C) * before + C * a @ models / a.sum(),
                **EXACT,
            )


def test_the_start_of_a_round_is_equation_10():
    """A rate of almost 0 leaves clients where they start."""
    still = SGD(lr=1e-14, steps=1, batch_size=BATCH)
    with float64():
        federation = quadratics(z, A, SIZES)
        run = train(known(federation), federation, quadratic_model(1), 2)
        before, theta = personal(run)[:, 0], np.asarray(run.server.model)[0, 0]
        run.phase.algorithm = known(federation, sgd=still, dynamic_steps=False)
        run.advance()
        np.testing.assert_allclose(
            personal(run)[:, 0], theta - PRECISION / OTHERS * (before - theta), **EXACT
        )


def test_without_its_components_it_is_fedavg_bit_for_bit():
    sgd = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=BATCH)
    bare = {
        "sgd": sgd,
        "initialisation": False,
        "dynamic_steps": False,
        "smoothing": 1.0,
    }
    with float64():
        federation, model = classification(), softmax_model()
        for weights in ("samples", "uniform"):
            found = train(
                SelfFL(**bare, weights=weights), federation, model, 3
            ).server.model
            expected = train(
                FedAvg(sgd=sgd, weights=weights), federation, model, 3
            ).server.model
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
        equal = SelfFL(**bare, inter_variance=0.3, intra_variances=np.full(5, 0.7))
        found = train(equal, federation, model, 3).server.model
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), **EXACT)


def test_gain_and_its_limits():
    with float64():
        federation = quadratics(z, A, SIZES)
        method = known(federation)
        run = train(method, federation, quadratic_model(1), 1)
        gain = by_place(run, method.personalization_gain(run.server))
        np.testing.assert_allclose(gain, 1 + INTRA * OTHERS, **EXACT)
        apart = run.server.replace(inter=1e12)
        np.testing.assert_allclose(method.personalization_gain(apart), 1, atol=1e-10)
        exact = known(federation, posterior="exact").personalization_gain(run.server)
        np.testing.assert_allclose(
            by_place(run, exact), 1 + INTRA / (INTER + 1 / OTHERS), **EXACT
        )
        fresh = train(SelfFL(), federation, quadratic_model(1), 1)
        assert np.isnan(fresh.algorithm.personalization_gain(fresh.server)).all()
        (diagnostic,) = method.diagnostics(run.server)
        assert diagnostic.name == "gain"
        np.testing.assert_array_equal(diagnostic.x, np.arange(4))
        np.testing.assert_allclose(
            by_place(run, diagnostic.y), 1 + INTRA * OTHERS, **EXACT
        )
        (unknown,) = fresh.algorithm.diagnostics(fresh.server)
        assert len(unknown.x) == 0


def test_clients_far_apart_learn_alone():
    with float64():
        federation = quadratics(z, 1.0, SIZES)
        method = known(federation, l_max=2000)
        far = SelfFL(**{**vars(method), "inter_variance": 1e12})
        found = personal(train(far, federation, quadratic_model(1), 3))[:, 0]
    np.testing.assert_allclose(found, z, rtol=1e-8)


def test_warm_rounds_are_fedavg_and_histories_start_after_them():
    sgd = SGD(lr=0.1, steps=4, batch_size=BATCH)
    with float64():
        federation, model = classification(), softmax_model()
        warm = train(SelfFL(sgd=sgd, warm=2), federation, model, 5)
        then = train(
            Then(FedAvg(sgd=sgd), rounds=2, next=SelfFL(sgd=sgd)), federation, model, 5
        )
        np.testing.assert_array_equal(personal(warm), personal(then))
        assert (np.asarray(warm.executor.client_states["moments"][0]) == 3).all()


def test_forgetting_follows_the_recent_models():
    with float64():
        federation, model = classification(), softmax_model()
        sgd = SGD(lr=0.2, batch_size=BATCH)
        runs = [
            train(SelfFL(sgd=sgd, forget=forget), federation, model, 2)
            for forget in (0.0, 0.3)
        ]
        for run in runs:  # from now on the models stand still
            run.phase.algorithm = SelfFL(
                sgd=SGD(lr=1e-9, steps=1),
                forget=run.algorithm.forget,
                initialisation=False,
            )
            for _ in range(12):
                run.advance()
        kept, forgot = (run.server.intra for run in runs)
    assert (forgot < kept / 2).all() and (forgot > 0).all()


def test_those_who_never_took_part_are_served_like_newcomers():
    with float64():
        federation = classification(
            clients=6, unseen=[False, False, False, True, False, False]
        )
        sgd = SGD(lr=0.1, batch_size=BATCH)
        run = train(
            SelfFL(sgd=sgd),
            federation,
            softmax_model(),
            3,
            participation=Participation(count=1),
        )
        found, theta = predictors(run)[0], np.asarray(run.server.model)[0]
        absent = ~run.server.took_part
        assert 0 < absent.sum() < 5
        own = np.asarray(run.executor.client_states["model"])
        for row, place in enumerate(run.executor.seen.original_index):
            if absent[row]:
                assert (
                    np.abs(found[place] - theta).max()
                    > 1e-3
                    < np.abs(found[place] - own[row]).max()
                )
            else:
                np.testing.assert_array_equal(found[place], own[row])
        assert np.abs(found[3] - theta).max() > 1e-3


def test_absent_clients_keep_model_and_history():
    with float64():
        method = SelfFL(sgd=SGD(lr=0.1, batch_size=BATCH))
        assert_absent_keep_their_state(
            train(
                method,
                classification(),
                softmax_model(),
                1,
                participation=Participation(count=2),
            )
        )


def test_a_single_client_takes_all_steps_from_the_global_model():
    with float64():
        method = SelfFL(sgd=SGD(lr=LR, batch_size=BATCH), l_max=7)
        run = train(method, quadratics(z[3:], A[3:], SIZES[3:]), quadratic_model(1), 3)
        np.testing.assert_allclose(
            personal(run), [[z[3] * (1 - (1 - LR * A[3]) ** 21)]], **EXACT
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": "equal"},
        {"curvature": "flat"},
        {"curvature": 0},
        {"posterior": "prior"},
        {"l_max": 0},
        {"warm": -1},
        {"forget": 1.0},
        {"smoothing": 0.0},
        {"inter_variance": -1.0},
    ],
)
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelfFL(**wrong)


def test_variances_must_fit_the_clients_and_the_literal_rule_the_rate():
    with float64():
        federation = quadratics(z, A, SIZES)
        with pytest.raises(ValueError, match="4 numbers"):
            train(SelfFL(intra_variances=np.ones(3)), federation, quadratic_model(1), 0)
        method = known(
            federation, curvature="literal", sgd=SGD(lr=0.3, batch_size=BATCH)
        )
        with pytest.raises(ValueError, match="no solution"):
            train(method, federation, quadratic_model(1), 1)
