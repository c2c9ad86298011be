"""FedDBE: its limit, rounds by hand, the mean that travels once, newcomers."""

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedDBE
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD, hyperparameters

PLAIN = SGD(lr=0.1, epochs=2, batch_size=8, weight_decay=0.01)
FULL = SGD(lr=0.1, steps=2, batch_size=64)
UNSEEN = np.array([False, True, False, False, False])


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def test_without_vector_and_pull_it_is_fedavg():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3)
            for it in (FedDBE(sgd=PLAIN, kappa=0, vector=False), FedAvg(sgd=PLAIN))
        )
        np.testing.assert_allclose(ours.server.model, expected.server.model, **EXACT)
        np.testing.assert_allclose(personal(ours), personal(expected), **EXACT)


@hyperparameters
class Restarting(FedDBE):
    """The running mean starts anew in every round."""

    def client(self, state, inbox, local):
        return super().client({**state, "running": state["mean"]}, inbox, local)


@hyperparameters
class Plain(FedDBE):
    """The vector is trained, and left out where a client predicts."""

    def personal(self, state, inbox, local):
        return inbox.only("model")


@pytest.mark.parametrize("mutant", [Restarting, Plain])
def test_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_rounds(mutant)


def test_rounds_are_those_of_the_paper():
    check_rounds(FedDBE)


def check_rounds(kind):
    kappa, momentum = 0.5, 0.3
    with float64():
        federation, model = classification(clients=2, sizes=[12, 20]), mlp()
        training = train(
            kind(sgd=FULL, kappa=kappa, momentum=momentum), federation, model, 2
        )
        theta, data = (
            training.initial(0),
            [tuple(map(jnp.asarray, federation.client(i).train)) for i in range(2)],
        )
        mean = (
            12 * model.features(theta, data[0][0]).mean(0)
            + 20 * model.features(theta, data[1][0]).mean(0)
        ) / 32
        vector, running = [jnp.zeros(5)] * 2, [mean] * 2

        def loss(both, running, i):
            theta, vector = both
            z = model.features(theta, data[i][0])
            after = (1 - momentum) * running + momentum * z.mean(0)
            losses = model.losses(model.head_outputs(theta, z + vector), data[i][1])
            return losses.mean() + kappa * ((after - mean) ** 2).sum(), after

        gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=2)
        for _ in range(2):
            locals_ = []
            for i in range(2):
                own = theta
                for _ in range(2):
                    g, after = gradient((own, vector[i]), running[i], i)
                    own, vector[i], running[i] = (
                        own - 0.1 * g[0],
                        vector[i] - 0.1 * g[1],
                        after,
                    )
                locals_.append(own)
            theta = (12 * locals_[0] + 20 * locals_[1]) / 32
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)
        for i, found in enumerate(jnp.asarray(personal(training))):
            expected = model.head_outputs(
                theta, model.features(theta, data[i][0]) + vector[i]
            )
            np.testing.assert_allclose(
                model.logits(model.params(found), data[i][0]), expected, **EXACT
            )
            assert np.abs(vector[i]).max() > 1e-3


def test_the_mean_goes_once_to_each_client_and_once_to_the_server():
    with float64():
        training = train(
            FedDBE(sgd=PLAIN),
            classification(),
            mlp(),
            0,
            participation=Participation(count=2),
        )
        for reporting in ([1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [1, 1, 1, 0, 1]):
            training.advance(np.array(reporting, bool))
        frame = training.ledger.frame().filter(pl.col("kind") == "features")
        assert (
            frame.filter(pl.col("direction") == "up")["bytes_unicast"].sum()
            == 5 * 5 * 8
        )
        down = frame.filter(
            (pl.col("direction") == "down") & (pl.col("phase") == "round")
        )
        assert down["unicasts"].to_list() == [2, 1, 1]
        told = np.asarray(training.executor.client_states["mean"]).any(axis=1)
        np.testing.assert_array_equal(told, [True, True, True, False, True])


def test_a_newcomer_trains_its_vector_and_nothing_else():
    with float64():
        model = mlp()
        training = train(FedDBE(sgd=PLAIN), classification(unseen=UNSEEN), model, 2)
        (found,), shared = predictors(training), np.asarray(training.server.model[0])
        bias = model.part("bias").mask & model.part("head").mask
        assert bias.sum() == 3
        np.testing.assert_array_equal(found[:, ~bias], np.tile(shared[~bias], (5, 1)))
        assert (found[1][bias] != shared[bias]).all()


def test_wrong_settings_are_refused():
    for wrong in ({"kappa": -1.0}, {"momentum": 0.0}, {"momentum": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FedDBE(**wrong)
    with pytest.raises(ValueError, match="feddbe's coupled steps are plain SGD"):
        FedDBE(sgd=SGD(momentum=0.9))
