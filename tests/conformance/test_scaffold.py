"""SCAFFOLD against FedAvg and gradient descent, its controls, and its fixed point."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.problems import (
    EXACT,
    answers_of,
    assert_absent_keep_their_state,
    by_place,
    classification,
    float64,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import SCAFFOLD, FedAvg
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD, hyperparameters

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
RAGGED = SGD(lr=0.1, epochs=2, batch_size=8)
FULL = SGD(lr=0.1, steps=1, batch_size=64)
"""The whole training set of every client of `classification` in one batch."""


def scalars(unseen=None):
    return quadratics(a[:, :1], A[:, :1], SIZES, unseen=unseen)


@hyperparameters
class EverybodyTrains(SCAFFOLD):
    """Also clients that do not report train, as they do in a deployment whose answers
    come too late.
    """

    participants = "all"


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_is_uniform_fedavg(option):
    with float64():  # not to the last bit: the correction by 0 - 0 is compiled in
        corrected, plain = (
            train(algorithm, classification(), softmax_model(), 1).server.model
            for algorithm in (
                SCAFFOLD(sgd=RAGGED, option=option),
                FedAvg(sgd=RAGGED, weights="uniform"),
            )
        )
        np.testing.assert_allclose(corrected, plain, **EXACT)


@pytest.mark.parametrize("reporters", [2, 4])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_servers_control_is_the_mean_of_all_clients_controls(weights, reporters):
    share = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    with float64():
        training = train(
            SCAFFOLD(sgd=RAGGED, weights=weights),
            scalars(),
            quadratic_model(1),
            0,
            participation=Participation(count=reporters),
        )
        for _ in range(4):
            training.advance()
            own = by_place(training, training.executor.client_states["control"])
            assert np.count_nonzero(own) >= reporters
            np.testing.assert_allclose(training.server.control, share @ own, **EXACT)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_step_on_all_samples_is_gradient_descent_on_the_mean(option):
    with float64():
        federation, model = classification(), softmax_model()
        x, y = jnp.asarray(federation.x), jnp.asarray(federation.y)
        training = train(
            SCAFFOLD(sgd=FULL, option=option, server_lr=0.5), federation, model, 3
        )
        theta = training.initial(0)
        loss = jax.jit(
            lambda theta: (
                sum(
                    model.losses(
                        model.logits(model.params(theta), x[rows]), y[rows]
                    ).mean()
                    for rows in np.split(
                        federation.train.rows, federation.train.offsets[1:-1]
                    )
                )
                / 5
            )
        )
        for _ in range(3):
            theta = theta - 0.5 * 0.1 * jax.grad(loss)(theta)
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)


def test_a_decaying_rate_does_not_bend_the_controls():
    decaying = replace(FULL, lr_decay=0.3)
    with float64():
        first, second = (
            train(
                SCAFFOLD(sgd=decaying, option=option),
                classification(),
                softmax_model(),
                3,
            )
            for option in ("I", "II")
        )
        np.testing.assert_allclose(first.server.model, second.server.model, **EXACT)
        np.testing.assert_allclose(first.server.control, second.server.control, **EXACT)


def test_identical_clients_are_fedavg():
    with float64():  # 8 samples are one batch, so that all clients draw the same one
        same = classification(sizes=[8] * 5, same=True)
        corrected, plain = (
            train(algorithm, same, softmax_model(), 3).server.model
            for algorithm in (SCAFFOLD(sgd=RAGGED), FedAvg(sgd=RAGGED))
        )
        np.testing.assert_allclose(corrected, plain, **EXACT)


@pytest.mark.parametrize(
    ("option", "weights"), [("I", "uniform"), ("II", "uniform"), ("II", "samples")]
)
@pytest.mark.parametrize(
    "sgd", [RAGGED, SGD(lr=0.1, steps=5, batch_size=8)], ids=["epochs", "steps"]
)
def test_the_fixed_point_is_the_minimum_of_the_mean_loss(sgd, option, weights):
    """Whatever the number of steps, which differs from client to client where they
    count epochs.
    """
    c = A * (SIZES[:, None] if weights == "samples" else 1)
    with float64():
        federation = quadratics(a, A, SIZES)
        training = train(
            SCAFFOLD(sgd=sgd, option=option, weights=weights),
            federation,
            quadratic_model(2),
            150,
        )
        expected = (c * a).sum(axis=0) / c.sum(axis=0)
        np.testing.assert_allclose(training.server.model[0], expected, **EXACT)
        own = by_place(training, training.executor.client_states["control"])
        np.testing.assert_allclose(own, A * (expected - a), **EXACT)


def test_the_server_learning_rate_is_a_step_towards_the_average():
    with float64():
        whole, half = (
            train(
                SCAFFOLD(sgd=RAGGED, server_lr=lr), scalars(), quadratic_model(1), 1
            ).server.model
            for lr in (1.0, 0.5)
        )
        np.testing.assert_allclose(half, whole / 2, **EXACT)  # from 0


def test_absent_clients_keep_their_controls():
    with float64():
        for kind in (SCAFFOLD, EverybodyTrains):
            training = train(
                kind(sgd=RAGGED),
                scalars(),
                quadratic_model(1),
                0,
                participation=Participation(count=2),
            )
            assert_absent_keep_their_state(training)


def test_a_round_without_reporters_changes_nothing():
    with float64():
        training = train(SCAFFOLD(sgd=RAGGED), scalars(), quadratic_model(1), 2)
        cohort = training.round_cohort(np.zeros(4, bool))
        cohort = replace(cohort, rows=np.arange(4), reporting=np.zeros(4, bool))
        answers = answers_of(cohort, model=np.ones((4, 1)), control=np.ones((4, 1)))
        downlink = training.algorithm.broadcast(training.server, cohort)
        after = training.algorithm.server(training.server, downlink, answers, cohort)
        for name in ("model", "control"):
            np.testing.assert_array_equal(
                getattr(after, name), getattr(training.server, name)
            )


def test_newcomers_and_deliveries_get_the_model_alone():
    with float64():
        training = train(
            SCAFFOLD(sgd=RAGGED),
            scalars([False, True, False, False]),
            quadratic_model(1),
            2,
        )
        for unseen in (False, True):
            ledger = Ledger()
            service = training.serve(unseen=unseen, ledger=ledger)
            assert [
                (e.kind, e.streams) for e in ledger.entries if e.direction == "down"
            ] == [("model", 1)]
            found = training.predictors(service)
            np.testing.assert_array_equal(
                found, np.broadcast_to(training.server.model, found.shape)
            )


@pytest.mark.parametrize(
    "sgd",
    [SGD(momentum=0.9), SGD(optimizer=optax.adam(0.1))],
    ids=["momentum", "optimizer"],
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_other_optimisers_are_refused(option, sgd):
    with pytest.raises(
        ValueError,
        match=r"plain SGD only; train without momentum and without an optimizer",
    ):
        SCAFFOLD(sgd=sgd, option=option)


def test_errors():
    for none in (SGD(epochs=0), SGD(steps=0)):
        with pytest.raises(ValueError, match=r"ask for 1 epoch or step at least"):
            SCAFFOLD(sgd=none)
    with pytest.raises(ValueError, match=r"option is 'III'; it must be 'I' or 'II'"):
        SCAFFOLD(option="III")
    with pytest.raises(ValueError, match=r"server_lr is 0\.0; it must be above 0"):
        SCAFFOLD(server_lr=0)
