"""FedALA: its limits, a step of the weights by hand, when learning begins and ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedALA, FedAvg, Local
from fedtailor.protocol import SGD, hyperparameters

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
ONE_STEP = SGD(lr=0.1, steps=1, batch_size=64)
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
UNSEEN = np.array([False, True, False, False, False])


@hyperparameters
class Own(FedALA):
    """FedALA whose weights are 0 at the start."""

    def init_state(self, theta, model):
        state = super().init_state(theta, model)
        return {**state, "weights": 0 * state["weights"]}


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def test_with_weights_fixed_at_1_it_is_fedavg():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3)
            for it in (FedALA(sgd=TRAINED, eta=0), FedAvg(sgd=TRAINED))
        )
        np.testing.assert_allclose(ours.server.model, expected.server.model, **EXACT)
        np.testing.assert_allclose(personal(ours), personal(expected), **EXACT)


def test_with_all_weights_fixed_at_0_it_is_local_training():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3)
            for it in (Own(sgd=TRAINED, eta=0, part="everything"), Local(sgd=TRAINED))
        )
        np.testing.assert_array_equal(personal(ours), personal(expected))


def test_below_the_last_layers_the_start_is_the_global_model():
    with float64():
        training = train(
            Own(sgd=TRAINED, eta=0, part="head"), classification(), mlp(), 2
        )
        body = mlp().part("body")
        np.testing.assert_array_equal(
            body.take(personal(training)),
            np.tile(body.take(np.asarray(training.server.model)), (5, 1)),
        )


@hyperparameters
class Hasty(FedALA):
    """The first learning of the weights is over after one pass."""

    def client(self, state, inbox, local):
        return super().client({**state, "began": state["began"] | True}, inbox, local)


@hyperparameters
class Forgetful(FedALA):
    """The weights start at 1 in every round."""

    def personal(self, state, inbox, local):
        return super().personal(
            {**state, "weights": jnp.ones_like(state["weights"])}, inbox, local
        )


@pytest.mark.parametrize("mutant", [Hasty, Forgetful])
def test_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_two_rounds(mutant)


def test_two_rounds_on_quadratics_are_those_of_the_paper():
    check_two_rounds(FedALA)


def check_two_rounds(kind):
    """In the first round both models are one and nothing is learned; in the second,
    passes of one step each until the deviation of ten losses is below the threshold."""
    threshold, eta = 0.01, 0.05
    with float64():
        algorithm = kind(
            sgd=ONE_STEP,
            part="everything",
            eta=eta,
            share=1.0,
            threshold=threshold,
            max_passes=80,
        )
        training = train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 2)
        q = SIZES / SIZES.sum()
        own = 0.1 * A * a
        theta = q @ own
        weights, passes = np.ones(4), np.zeros(4, int)
        for i in range(4):
            losses = []
            while not (len(losses) >= 10 and np.std(losses[-10:]) < threshold):
                start = own[i] + (theta - own[i]) * weights[i]
                losses.append(A[i] * (start - a[i]) ** 2 / 2)
                weights[i] = np.clip(
                    weights[i] - eta * A[i] * (start - a[i]) * (theta - own[i]), 0, 1
                )
            passes[i] = len(losses)
        assert (
            passes.min() == 10 < passes.max() < 80
            and ((weights > 0) & (weights < 1)).any()
        )
        start = own + (theta - own) * weights
        trained = start - 0.1 * A * (start - a)
        np.testing.assert_allclose(training.server.model[0, 0], q @ trained, **EXACT)
        # what is served: one pass more, at the final global model
        final = q @ trained
        start = trained + (final - trained) * weights
        weights = np.clip(weights - eta * A * (start - a) * (final - trained), 0, 1)
        np.testing.assert_allclose(
            personal(training)[:, 0], trained + (final - trained) * weights, **EXACT
        )
        # each counted pass is a pass over the samples: SGD in two rounds, and the
        # learning of weights in the second
        assert training.ledger.totals().gradients == (SIZES * (2 + passes)).sum()


def test_the_weights_are_learned_on_a_share_of_the_data():
    sizes = np.array([10, 20, 30, 40])
    with float64():
        whole, part = (
            train(
                FedALA(sgd=ONE_STEP, part="everything", share=share, threshold=1e9),
                quadratics(a, A, sizes),
                quadratic_model(1),
                2,
            )
            .ledger.totals()
            .gradients
            for share in (1.0, 0.7)
        )
        assert (
            whole - 2 * sizes.sum() == 10 * sizes.sum()
        )  # ten passes until there are ten losses
        assert part - 2 * sizes.sum() == 7 * sizes.sum()


class Samples:
    """A client of 10 samples in some round."""

    def __init__(self, round):
        self.round, self.size = round, 10

    def key(self, purpose):
        return jax.random.fold_in(jax.random.key(0), self.round)

    def part(self, first, end, purpose):
        return int(first), int(end)


def test_the_share_begins_elsewhere_in_every_round():
    windows = {FedALA(share=0.7)._sampled(Samples(round)) for round in range(30)}
    assert windows == {(first, first + 7) for first in range(4)}, (
        "every start, and never past the end"
    )
    assert {FedALA(share=1.0)._sampled(Samples(round)) for round in range(3)} == {
        (0, 10)
    }


def test_a_newcomer_is_served_the_global_model():
    with float64():
        training = train(FedALA(sgd=TRAINED), classification(unseen=UNSEEN), mlp(), 3)
        (found,) = predictors(training)
        np.testing.assert_array_equal(found[1], training.server.model[0])
        assert (found[0] != found[1]).any()


def test_wrong_settings_are_refused():
    for wrong in (
        {"eta": -1.0},
        {"share": 0.0},
        {"share": 1.5},
        {"threshold": -1.0},
        {"max_passes": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FedALA(**wrong)
    with float64(), pytest.raises(ValueError, match="'last9' is nothing of this model"):
        train(FedALA(part="last9"), classification(), mlp(), 0)
