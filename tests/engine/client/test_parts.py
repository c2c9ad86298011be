"""Parts of the model in local training: what is frozen keeps its bits, the rest moves
as if it stood alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.normal import Normal
from conformance.problems import EXACT, classification, float64, train
from fedtailor import models
from fedtailor.algorithms import FedAvg
from fedtailor.protocol import SGD, hyperparameters

PLAIN = SGD(lr=0.1, epochs=2, batch_size=64)
SETTINGS = {
    "plain": PLAIN,
    "momentum and decay": SGD(
        lr=0.1, momentum=0.9, weight_decay=0.1, epochs=2, batch_size=64
    ),
    "optax": SGD(
        epochs=2, batch_size=64, optimizer=optax.adamw(0.01, weight_decay=0.1)
    ),
}


@hyperparameters
class Frozen(FedAvg):
    """FedAvg that trains one part of the model, pulled towards zero."""

    part: str = "head"

    def client(self, state, inbox, local):
        theta = inbox.only("model")
        part = local.part_of_model(self.part)
        return state, {
            "model": local.sgd(
                theta, self.sgd, proximal=(0.5, 0 * theta), train_only=part
            )
        }


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("part", ["head", "body"])
def test_what_is_frozen_keeps_its_bits_and_the_rest_moves(part, settings):
    with float64():
        model = models.mlp(5).bind((4,), 3, dtype="float64")
        training = train(
            Frozen(sgd=SETTINGS[settings], part=part),
            classification(clients=1),
            model,
            1,
        )
        before, after = (
            np.asarray(training.initial(0)),
            np.asarray(training.server.model[0]),
        )
    moved = model.part(part).mask
    np.testing.assert_array_equal(after[~moved], before[~moved])
    assert (after[moved] != before[moved]).all(where=before[moved] != 0)


def test_a_part_is_trained_by_its_own_gradient():
    """With full batches, momentum, weight decay and pull, against steps on the part
    alone.
    """
    sgd = SETTINGS["momentum and decay"]
    with float64():
        federation, model = (
            classification(clients=1),
            models.mlp(5).bind((4,), 3, dtype="float64"),
        )
        training = train(Frozen(sgd=sgd), federation, model, 1)
        part, theta = model.part("head"), training.initial(0)
        x, y = map(jnp.asarray, federation.client(0).train)

        def loss(head):
            return model.losses(
                model.logits(model.params(part.put(theta, head)), x), y
            ).mean()

        head = part.take(theta)
        velocity = jnp.zeros_like(head)
        for _ in range(2):
            velocity = 0.9 * velocity + jax.grad(loss)(head) + (0.1 + 0.5) * head
            head = head - 0.1 * velocity
        np.testing.assert_allclose(
            training.server.model[0], part.put(theta, head), **EXACT
        )


def test_running_statistics_outside_the_part_stay():
    model = models.lenet5(norm="batch").bind((28, 28, 1), 3)
    federation = classification(clients=1, sizes=[8])
    images = (
        np.random.default_rng(0)
        .normal(size=(len(federation.y), 28, 28, 1))
        .astype(np.float32)
    )
    federation = type(federation)(
        images,
        federation.y,
        federation.train,
        federation.val,
        federation.test,
        federation.names,
        classes=3,
    )
    sgd = SGD(lr=0.1, steps=1, batch_size=8)
    statistics = model.statistics
    for part, moves in (("head", False), ("body", True)):
        training = train(Frozen(sgd=sgd, part=part), federation, model, 1)
        before, after = (
            np.asarray(statistics.take(it))
            for it in (training.initial(0), training.server.model[0])
        )
        assert (before != after).any() == moves


@hyperparameters
class Halves(FedAvg):
    """FedAvg whose gradient goes through features and head, one after the other."""

    def client(self, state, inbox, local):
        def gradient(params, batch, step):
            local.count_work(gradients=1)

            def loss(params):
                outputs = local.head_outputs(params, local.features(params, batch.x))
                return (
                    jnp.vdot(local.losses(outputs, batch.y), batch.weight)
                    / batch.weight.sum()
                )

            return jax.grad(loss)(params)

        return state, {
            "model": local.sgd(inbox.only("model"), self.sgd, gradient=gradient)
        }


@pytest.mark.parametrize(
    "architecture", [models.mlp(5), Normal()], ids=["mlp", "batch normalisation"]
)
def test_features_and_head_are_the_model(architecture):
    """Also the running statistics, in batches of which some are padded."""
    with float64():
        federation, model = (
            classification(),
            architecture.bind((4,), 3, dtype="float64"),
        )
        whole, halves = (
            train(kind(sgd=PLAIN), federation, model, 2) for kind in (FedAvg, Halves)
        )
        np.testing.assert_allclose(halves.server.model, whole.server.model, **EXACT)
        assert halves.ledger.totals().gradients == whole.ledger.totals().gradients


def test_a_part_that_the_model_lacks_is_refused_in_one_line():
    with pytest.raises(
        ValueError,
        match="'tail' is nothing of this model; the parts it has are: head, body",
    ):
        train(Frozen(part="tail"), classification(), models.mlp(5).bind((4,), 3), 1)
