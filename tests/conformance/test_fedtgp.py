"""FedTGP: rounds by hand, margins of constructed means, clients as in FedProto."""

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
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedProto, FedTGP, Local
from fedtailor.algorithms.fedtgp import adaptive_margin
from fedtailor.engine.training import Participation, Privacy
from fedtailor.protocol import SGD, server_rng

FULL = SGD(lr=0.3, steps=3, batch_size=64)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])
NAMES = classification().names


def mlp(dtype="float64"):
    return models.mlp(5).bind((4,), 3, dtype=dtype)


class Generator:
    """e_k -> relu(e_k U + a) V + b in NumPy, and its steps."""

    def __init__(self, server):
        self.e = np.array(server.embeddings)
        self.u, self.v = (np.array(layer["weights"]) for layer in server.layers)
        self.a, self.b = (np.array(layer["bias"]) for layer in server.layers)

    def prototypes(self):
        return np.maximum(self.e @ self.u + self.a, 0) @ self.v + self.b

    def step(self, examples, margin, rate):
        prototypes, onto = self.prototypes(), np.zeros_like(self.e)
        for z, label in examples:
            distance = np.linalg.norm(z - prototypes, axis=1)
            own = np.eye(len(self.e))[label]
            # loss = -log softmax_label(-(d + margin own)); d loss / d distance = own - p
            change = own - softmax(-(distance + margin * own))
            onto += change[:, None] * (prototypes - z) / distance[:, None]
        onto /= len(examples)
        inner = self.e @ self.u + self.a
        back = (onto @ self.v.T) * (inner > 0)
        steps = (
            back @ self.u.T,
            self.e.T @ back,
            back.sum(axis=0),
            np.maximum(inner, 0).T @ onto,
            onto.sum(axis=0),
        )
        values = (self.e, self.u, self.a, self.v, self.b)
        self.e, self.u, self.a, self.v, self.b = (
            value - rate * step for value, step in zip(values, steps, strict=True)
        )


def by_hand(federation, model, method, rounds, theta, server):
    """FedTGP on full batches: the clients' steps with JAX's gradients, the server's in
    NumPy.

    Returns:
        The clients' models [m, d], and the prototypes [classes, size].
    """
    data = [federation.client(client).train for client in range(len(federation))]
    thetas, generator = [jnp.asarray(theta)] * len(data), Generator(server)
    known, prototypes = 0.0, np.zeros((3, 5))
    for number in range(rounds):
        rows, means = [], {}
        for client in np.argsort(federation.ids):
            x, y = jnp.asarray(data[client].x), np.asarray(data[client].y)
            target = prototypes[y]

            def loss(theta, x=x, y=y, target=target, known=known):
                z = model.features(theta, x)
                fit = model.losses(model.logits(theta, x), jnp.asarray(y))
                apart = ((z - target) ** 2).mean(axis=1)
                return (fit + method.lam * known * apart).mean()

            for _ in range(3):
                thetas[client] = thetas[client] - 0.3 * jax.grad(loss)(thetas[client])
            z = np.asarray(model.features(thetas[client], x))
            for label in range(3):
                if (y == label).any():
                    mean = z[y == label].mean(axis=0)
                    rows.append((mean, label))
                    means.setdefault(label, []).append(mean)
        centres = {label: np.mean(found, axis=0) for label, found in means.items()}
        gaps = [
            min(np.linalg.norm(c - o) for j, o in centres.items() if j != k)
            for k, c in centres.items()
        ]
        margin = min(max(gaps), method.tau)
        # The order is drawn among places; each has three rows a client.
        places = [3 * client + label for client, label in places_of(federation)]
        order = np.tile(places, (method.server_epochs, 1))
        order = server_rng(0, "fedtgp", number).permuted(order, axis=1)
        example = dict(zip(places, rows, strict=True))
        for epoch in order:
            for start in range(0, len(epoch), method.server_batch):
                batch = epoch[start : start + method.server_batch]
                generator.step([example[place] for place in batch], margin, 0.2)
        known, prototypes = 1.0, generator.prototypes()
    return np.array(thetas), prototypes


def places_of(federation):
    """The classes of each client, in the order of ids."""
    for row, client in enumerate(np.argsort(federation.ids)):
        for label in np.unique(federation.client(client).train.y):
            yield row, label


@pytest.mark.parametrize("tau", [100.0, 0.05])
def test_rounds_by_hand(tau):
    with float64():
        federation, model = classification(), mlp()
        method = FedTGP(
            sgd=FULL, lam=2.0, tau=tau, server_lr=0.2, server_epochs=4, server_batch=4
        )
        start = train(method, federation, model, 0)
        training = train(method, federation, model, 3)
        thetas, prototypes = by_hand(
            federation, model, method, 3, training.initial(0), start.server
        )
        found = np.asarray(training.server.prototypes)
        np.testing.assert_allclose(found[:, :5], prototypes, **EXACT)
        assert (found[:, 5] == 1).all()
        np.testing.assert_allclose(personal(training), thetas, **EXACT)


@pytest.mark.as_shipped
def test_without_its_pull_it_is_local_to_the_bit():
    clients = classification(unseen=UNSEEN)
    ours, alone = (
        predictors(train(method, clients, mlp("float32"), 3))
        for method in (FedTGP(sgd=TRAINED, lam=0.0), Local(sgd=TRAINED))
    )
    for one, other in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_first_round_is_that_of_fedproto():
    """There is no prototype yet."""
    ours, theirs = (
        personal(train(method(sgd=TRAINED), classification(), mlp("float32"), 1))
        for method in (FedTGP, FedProto)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_the_margin_is_the_largest_gap_to_the_nearest_class():
    """Classes at 0, 1 and 4 of a line, the first one as the mean of two clients."""
    means = np.array([[-1.0], [1.0], [0.0], [1.0], [0.0], [4.0]])
    is_seen = np.array([True, True, False, True, False, True])
    assert adaptive_margin(means, is_seen, 3, 100.0) == pytest.approx(3.0)
    assert adaptive_margin(means, is_seen, 3, 2.0) == 2.0
    alone = np.array([True, False, False] * 2)
    assert adaptive_margin(means, alone, 3, 2.0) == 2.0


def test_prototypes_come_to_the_only_client_s_means():
    """Each is nearer to the mean of its class than a fifth of the smallest gap between
    classes.
    """
    with float64():
        single = classification(clients=1, sizes=[40], groups=[0])
        sgd = SGD(lr=0.1, epochs=10, batch_size=8)
        method = FedTGP(sgd=sgd, server_lr=0.1, server_epochs=1000)
        training = train(method, single, mlp(), 1)
        rows = single.client(0).train
        theta = jnp.asarray(personal(training)[0])
        z = np.asarray(training.model.features(theta, jnp.asarray(rows.x)))
        means = np.array([z[rows.y == label].mean(axis=0) for label in range(3)])
        prototypes = np.asarray(training.server.prototypes)[:, :5]
        gaps = np.linalg.norm(means[:, None] - means, axis=2)[np.triu_indices(3, 1)]
        assert (np.linalg.norm(means - prototypes, axis=1) < 0.2 * gaps.min()).all()


def test_different_networks_share_prototypes():
    small, large = models.mlp(5), models.mlp((7, 5))
    mixed = models.by_client({NAMES[1]: large, NAMES[3]: large}, default=small)
    training = train(
        FedTGP(sgd=TRAINED), classification(unseen=UNSEEN), mixed.bind((4,), 3), 3
    )
    assert np.isfinite(predictors(training)[0]).all()
    pulled, alone = (
        personal(
            train(
                FedTGP(sgd=TRAINED, lam=lam), classification(), mixed.bind((4,), 3), 2
            )
        )
        for lam in (2.0, 0.0)
    )
    assert (pulled != alone).any(axis=1).all()


def test_only_reporters_count():
    training = train(
        FedTGP(sgd=TRAINED),
        classification(),
        mlp("float32"),
        2,
        participation=Participation(count=2),
    )
    assert np.isfinite(np.asarray(training.server.prototypes)).all()
    assert training.ledger.totals().models_up == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"tau": -1.0}, "tau is -1.0"),
        ({"server_lr": -1.0}, "server_lr is -1.0"),
        ({"server_epochs": 0}, "server_epochs is 0"),
        ({"server_batch": 0}, "server_batch is 0"),
        ({"sgd": SGD(dp_noise=1.0, dp_norm=1.0)}, "fedtgp.*private steps"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedTGP(**arguments)


def test_secure_sums_are_refused():
    with pytest.raises(ValueError, match="fedtgp"):
        ft.run(
            FedTGP(),
            classification(),
            models.mlp(5),
            1,
            privacy=Privacy(secure_aggregation=True),
        )
