"""DeviceTrainer: what steps of a method's own must not do, and how their work counts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import classification, softmax_model, train
from fedtailor.algorithms import FedAvg
from fedtailor.protocol import hyperparameters


@hyperparameters
class OwnStep(FedAvg):
    """`FedAvg` whose clients only take two steps of their own."""

    step: Callable = None

    def client(self, state, inbox, local):
        theta = inbox.only("model")
        unchanged = local.loop(
            theta, lambda theta, batch, _: self.step(local, theta), 2, 4
        )
        return state, {"model": unchanged}


def one_loss(local, theta):
    return theta + 0 * local.loss(theta)


def two_losses(local, theta):
    return theta + 0 * local.map(local.loss, jnp.stack([theta, theta])).sum()


def loss_in_a_loop(local, theta):
    return local.fori_loop(2, lambda _, theta: one_loss(local, theta), theta)


@pytest.mark.parametrize("step", [one_loss, two_losses, loss_in_a_loop])
def test_a_pass_over_a_split_inside_of_a_step_is_refused(step):
    federation = classification(clients=1, sizes=[9])
    with pytest.raises(TypeError, match="whole-split passes go outside"):
        train(OwnStep(step=step), federation, softmax_model("float32"), 1)


def counted(local, theta):
    def count(_, theta):
        local.count_work(gradients=1)
        return theta

    return local.fori_loop(3, count, count(None, theta))


@pytest.mark.parametrize("debug", [False, True])
def test_every_pass_of_a_loop_inside_of_a_step_is_counted(debug):
    """Two steps on 4 examples each, with 1 + 3 gradients in a step."""
    federation = classification(clients=1, sizes=[9])
    training = train(
        OwnStep(step=counted), federation, softmax_model("float32"), 1, debug=debug
    )
    assert training.ledger.frame()["gradients"].sum() == 2 * 4 * (1 + 3)


@hyperparameters
class LossAsModel(FedAvg):
    """`FedAvg` whose clients answer with the loss of what they received."""

    def client(self, state, inbox, local):
        theta = inbox.only("model")
        return state, {"model": 0 * theta + local.loss(theta)}


@pytest.mark.parametrize("rows", [1, 9])
def test_a_loss_is_the_mean_over_all_rows_however_few(rows):
    federation, model = (
        classification(clients=1, sizes=[rows]),
        softmax_model("float32"),
    )
    start = train(LossAsModel(), federation, model, 0).server.model[0]
    found = train(LossAsModel(), federation, model, 1).server.model
    x, y = federation.client(0).train
    logits = model.logits(model.params(start), jnp.asarray(x, jnp.float32))
    losses = -jax.nn.log_softmax(logits)[jnp.arange(rows), jnp.asarray(y)]
    np.testing.assert_allclose(found, losses.mean(), rtol=1e-6)
