"""FedGH: rounds by hand, the server's step in closed form, heads in different orders."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import fedtailor as ft
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
from fedtailor.algorithms import FedGH, LGFedAvg
from fedtailor.engine.training import Participation, Privacy
from fedtailor.models.dense_head import dense_head_of
from fedtailor.protocol import SGD

FULL = SGD(lr=0.3, steps=3, batch_size=64)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])
NAMES = classification().names


def mlp(dtype="float64", hidden=5):
    return models.mlp(hidden).bind((4,), 3, dtype=dtype)


def by_hand(federation, model, rounds, theta, *, rate, epochs=1, batch=1):
    """FedGH on full batches: the clients' steps with JAX's gradients, the server's in
    NumPy.

    Returns:
        The clients' models [m, d], with the shared head.
    """
    data = [federation.client(client).train for client in range(len(federation))]
    head = model.part("head")
    bodies = [np.asarray(theta)] * len(data)
    shared = np.asarray(head.take(np.asarray(theta)))
    for _ in range(rounds):
        examples = []
        # The server takes the clients in the order of their ids.
        for client in np.argsort(federation.ids):
            rows = data[client]
            x, y = jnp.asarray(rows.x), np.asarray(rows.y)

            def loss(theta, x=x, y=y):
                return model.losses(model.logits(theta, x), jnp.asarray(y)).mean()

            w = jnp.asarray(head.put(bodies[client], shared))
            for _ in range(3):
                w = w - 0.3 * jax.grad(loss)(w)
            bodies[client] = np.asarray(w)
            z = np.asarray(model.features(w, x))
            for label in range(3):
                if (y == label).any():
                    examples.append((z[y == label].mean(axis=0), label))
        # The last layer of a narrow network is stored as W [5, 3] and b [3].
        weight, bias = shared[:15].reshape(5, 3).copy(), shared[15:].copy()
        for _ in range(epochs):
            for start in range(0, len(examples), batch):
                some = examples[start : start + batch]
                errors = [softmax(z @ weight + bias) - np.eye(3)[k] for z, k in some]
                pairs = zip(some, errors, strict=True)
                weight = weight - rate * np.mean(
                    [np.outer(z, e) for (z, _), e in pairs], 0
                )
                bias = bias - rate * np.mean(errors, axis=0)
        shared = np.concatenate([weight.reshape(-1), bias])
    return np.array([head.put(body, shared) for body in bodies])


@pytest.mark.parametrize(("epochs", "batch"), [(1, 1), (3, 4)])
def test_rounds_by_hand(epochs, batch):
    with float64():
        federation, model = classification(), mlp()
        method = FedGH(
            sgd=FULL, server_lr=0.4, server_epochs=epochs, server_batch=batch
        )
        training = train(method, federation, model, 3)
        expected = by_hand(
            federation,
            model,
            3,
            training.initial(0),
            rate=0.4,
            epochs=epochs,
            batch=batch,
        )
        np.testing.assert_allclose(personal(training), expected, **EXACT)


def test_one_step_on_all_means_in_closed_form():
    """Of a linear model from zero, features are inputs and all classes are equally
    likely: W = server_lr mean (z_ik (e_k - 1/3)').
    """
    with float64():
        federation = classification()
        model = models.logistic().bind((4,), 3, dtype="float64")
        method = FedGH(sgd=FULL, server_lr=0.7, server_batch=64)
        training = train(method, federation, model, 0)
        server = training.server
        training.server = server.replace(head=jnp.zeros_like(server.head))
        training.advance()
        gains = []
        for client in range(len(federation)):
            rows = federation.client(client).train
            for label in np.unique(rows.y):
                z = np.append(np.mean(rows.x[rows.y == label], axis=0), 1)
                gains.append(np.outer(z, np.eye(3)[label] - 1 / 3))
        expected = 0.7 * np.mean(gains, axis=0)
        found = np.asarray(training.server.head)
        np.testing.assert_allclose(
            np.vstack([found[server.weight], found[server.bias]]), expected, **EXACT
        )


def test_without_steps_of_the_server_clients_train_under_the_first_head():
    with float64():
        training = train(FedGH(sgd=TRAINED, server_lr=0.0), classification(), mlp(), 2)
        head = mlp().part("head")
        np.testing.assert_array_equal(
            head.take(personal(training)),
            np.tile(head.take(np.asarray(training.initial(0))), (5, 1)),
        )


def test_only_the_head_comes_down_and_means_go_up():
    training = train(FedGH(sgd=TRAINED), classification(), mlp("float32"), 2)
    totals = training.ledger.totals()
    assert totals.models_up == 0
    assert totals.bytes_up == 2 * 5 * 4 * 3 * 6


@pytest.mark.parametrize("unseen", [None, UNSEEN])
def test_absent_clients_and_newcomers_have_the_shared_head(unseen):
    federation = classification(unseen=unseen)
    training = train(
        FedGH(sgd=TRAINED),
        federation,
        mlp("float32"),
        2,
        participation=Participation(count=2),
    )
    assert np.isfinite(np.asarray(training.server.head)).all()
    (served,) = predictors(training)
    heads = mlp("float32").part("head").take(served)
    np.testing.assert_array_equal(heads, np.tile(training.server.head, (5, 1)))


def test_different_networks_train_under_one_head():
    small, large = models.mlp(5), models.mlp((7, 5))
    mixed = models.by_client({NAMES[1]: large, NAMES[3]: large}, default=small)
    with float64():
        federation = classification()
        training = train(
            FedGH(sgd=FULL, server_lr=0.4),
            federation,
            mixed.bind((4,), 3, dtype="float64"),
            1,
        )
        model, start = training.model, np.asarray(training.initial(0))
        shared = np.asarray(model.part("head").take(start))
        weight, bias = shared[:15].reshape(5, 3).copy(), shared[15:].copy()
        for client in np.argsort(federation.ids):
            own = model.of_client(NAMES[client])
            rows = federation.client(client).train
            x, y = jnp.asarray(rows.x), jnp.asarray(rows.y)

            def loss(theta, own=own, x=x, y=y):
                return own.losses(own.logits(theta, x), y).mean()

            theta = jnp.asarray(own.part("head").put(start, shared))
            for _ in range(3):
                theta = theta - 0.3 * jax.grad(loss)(theta)
            z = np.asarray(own.features(theta, x))
            for label in np.unique(rows.y):
                mean = z[np.asarray(y) == label].mean(axis=0)
                error = softmax(mean @ weight + bias) - np.eye(3)[label]
                weight, bias = weight - 0.4 * np.outer(mean, error), bias - 0.4 * error
        found = np.asarray(training.server.head)
        expected = np.concatenate([weight.reshape(-1), bias])
        np.testing.assert_allclose(found, expected, **EXACT)


class Linear(eqx.Module):
    """Two layers, the last of which stores its weights as [outputs, features]."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, inputs, outputs, key):
        self.first = eqx.nn.Linear(inputs, 5, key=key)
        self.last = eqx.nn.Linear(5, outputs, key=key)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.first(x)))


@pytest.mark.parametrize("hidden", [5, 40])
def test_where_the_weights_of_a_head_are(hidden):
    """Also of wide layers, which are stored transposed."""
    model = mlp("float32", hidden)
    head = dense_head_of(model, "fedgh")
    theta = jnp.asarray(np.random.default_rng(0).normal(size=model.size), jnp.float32)
    x = jnp.ones((2, 4))
    shared = model.part("head").take(theta)
    np.testing.assert_allclose(
        model.features(theta, x) @ shared[head.weight] + shared[head.bias],
        model.logits(theta, x),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("method", [FedGH(), LGFedAvg()])
def test_heads_in_different_orders_are_refused(method):
    networks = models.by_client(
        {NAMES[0]: models.from_equinox(Linear, 4, 3)}, default=models.mlp(5)
    )
    with pytest.raises(ValueError, match="in different orders"):
        ft.run(method, classification(), networks, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"server_lr": -1.0}, "server_lr is -1.0"),
        ({"server_epochs": 0}, "server_epochs is 0"),
        ({"server_batch": 0}, "server_batch is 0"),
        ({"sgd": SGD(dp_noise=1.0, dp_norm=1.0)}, "private steps do not cover"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedGH(**arguments)


def test_what_it_cannot_do_is_refused():
    with float64(), pytest.raises(ValueError, match=r"head|classes"):
        train(FedGH(), quadratics([[0.0], [1.0]]), quadratic_model(1), 1)
    with pytest.raises(ValueError, match=r"secure_aggregation|models"):
        ft.run(
            FedGH(),
            classification(),
            models.mlp(5),
            1,
            privacy=Privacy(secure_aggregation=True),
        )
