"""GPFL: rounds by plain formulas; what embeddings and conditions do; limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import EXACT, float64, served_to, train
from conformance.two_layers import (
    FULL,
    RATE,
    STEPS,
    TwoLayers,
    clients,
    data_of,
    network,
)
from fedtailor import models
from fedtailor.algorithms import GPFL
from fedtailor.algorithms.gpfl import ValvedFeatures

SIZE, CLASSES = 5, 3
CUTS = np.cumsum([CLASSES * SIZE, 25, 5, 5, 5, 25, 5, 5])


def features(theta, x):
    return jnp.maximum(x @ theta[:20].reshape(4, 5) + theta[20:25], 0)


def head(theta, z):
    return z @ theta[25:40].reshape(5, 3) + theta[40:]


def layers(modules, condition):
    """The two layers of the valve for a condition, and the embeddings."""
    parts = jnp.split(modules, CUTS)
    made = []
    for w, b, gain, offset in (parts[1:5], parts[5:]):
        inner = jnp.maximum(condition @ w.reshape(SIZE, SIZE) + b, 0)
        norm = (inner - inner.mean()) / jnp.sqrt(inner.var() + 1e-5)
        made.append(norm * gain + offset)
    return made[0], made[1]


def embeddings_of(modules):
    return modules[: CUTS[0]].reshape(CLASSES, SIZE)


def objective(both, x, y, conditions, targets, lam, distance):
    """What a step of GPFL lowers, for (theta, modules)."""
    theta, modules = both
    z, opened = features(theta, x), []
    for condition in conditions:
        scale, shift = layers(modules, condition)
        opened.append(jnp.maximum((1 + scale) * z + shift, 0))
    logs = jax.nn.log_softmax(head(theta, opened[0]))
    fit = -logs[jnp.arange(len(y)), y].mean()
    rows, vectors = opened[1], embeddings_of(modules)
    cosines = (rows @ vectors.T) / (
        jnp.linalg.norm(rows, axis=1)[:, None] * jnp.linalg.norm(vectors, axis=1)
    )
    near = -jax.nn.log_softmax(cosines)[jnp.arange(len(y)), y].mean()
    apart = rows - targets[y]
    size = jnp.linalg.norm(apart)
    if distance == "examples":
        size = jnp.linalg.norm(apart, axis=1).mean()
    return fit + near + lam * size


def by_hand(start, modules, *, conditions, distance, lam, mu, rounds=3):
    """The clients' models, the shared modules, and the p_i that clients predict with."""
    data, shares = data_of(clients())
    own, body = [start] * len(data), start
    kept = [np.zeros((CLASSES, SIZE))] * len(data)
    slope = jax.jit(jax.grad(objective), static_argnums=6)

    def means(i):
        vectors = np.array(embeddings_of(modules))
        if conditions == "trained":
            vectors = kept[i]
        y = data[i][1]
        return np.bincount(y, minlength=3) / len(y) @ vectors, vectors.mean(axis=0)

    for _ in range(rounds):
        bodies, all_modules = [], []
        now = [means(i) for i in range(len(data))]
        targets = np.array(embeddings_of(modules))
        for i, (x, y) in enumerate(data):
            theta = np.where(TwoLayers.head, own[i], body)
            mine = np.array(modules)
            for _ in range(STEPS):
                by_theta, by_modules = slope(
                    (theta, mine), x, y, now[i], targets, lam, distance
                )
                theta = theta - RATE * np.array(by_theta)
                mine = mine - RATE * (np.array(by_modules) + mu * mine)
            own[i], kept[i] = theta, np.array(embeddings_of(mine))
            bodies.append(theta)
            all_modules.append(mine)
        body, modules = shares @ bodies, shares @ all_modules
    thetas = np.where(TwoLayers.head, own, body)
    return thetas, modules, [means(i)[0] for i in range(len(data))]


@pytest.mark.parametrize(
    ("conditions", "distance"), [("received", "examples"), ("trained", "batch")]
)
def test_three_rounds_are_those_of_the_formulas(conditions, distance):
    with float64():
        method = GPFL(
            sgd=FULL, lam=0.3, mu=0.1, conditions=conditions, distance=distance
        )
        begun = train(method, clients(), network(), 0)
        training = train(method, clients(), network(), 3)
        thetas, modules, condition = by_hand(
            np.array(training.initial(0)),
            np.array(begun.server.modules[0]),
            conditions=conditions,
            distance=distance,
            lam=0.3,
            mu=0.1,
        )
        np.testing.assert_allclose(training.server.modules[0], modules, **EXACT)
        for found, theta, at in zip(
            served_to(training, clients().names), thetas, condition, strict=True
        ):
            assert isinstance(found, ValvedFeatures)
            np.testing.assert_allclose(found.model, theta, **EXACT)
            scale, shift = layers(modules, at)
            np.testing.assert_allclose(found.scale, 1 + scale, **EXACT)
            np.testing.assert_allclose(found.shift, shift, **EXACT)


def test_a_client_predicts_with_the_valve():
    with float64():
        training = train(GPFL(sgd=FULL), clients(), network(), 1)
        x, _ = data_of(clients())[0][0]
        found = served_to(training, clients().names)[0]
        theta = np.asarray(found.model)
        opened = np.maximum(
            TwoLayers().features(theta, x) * found.scale + found.shift, 0
        )
        np.testing.assert_allclose(
            found.outputs(training.model)(jnp.asarray(x)), head(theta, opened), **EXACT
        )


def test_embeddings_come_to_their_classes():
    """With many steps the general features of an example lie nearest to its class."""
    with float64():
        near = []
        for lam in (0.0, 1.0):
            method = GPFL(sgd=FULL, lam=lam, mu=0.0)
            training = train(method, clients(), network(), 8)
            modules = np.asarray(training.server.modules[0])
            vectors = np.array(embeddings_of(modules))
            scale, shift = layers(modules, vectors.mean(axis=0))
            distance = []
            for theta, (x, y) in zip(
                [it.model for it in served_to(training, clients().names)],
                data_of(clients())[0],
                strict=True,
            ):
                opened = np.maximum((1 + scale) * features(theta, x) + shift, 0)
                distance.append(np.linalg.norm(opened - vectors[y], axis=1).mean())
            near.append(np.mean(distance))
        assert near[1] < near[0]


def test_a_newcomer_trains_a_head_below_what_it_receives():
    with float64():
        federation = clients()
        federation.unseen[1] = True
        training = train(GPFL(sgd=FULL), federation, network(), 1)
        found, server = served_to(training, clients().names)[1], training.server
        part = server.part
        np.testing.assert_array_equal(
            part.take(np.asarray(found.model)), part.take(np.asarray(server.model[0]))
        )
        x, y = data_of(federation)[0][1]
        start = np.array(training.initial(0))
        theta = part.put(start, part.take(np.asarray(server.model[0])))

        def loss(theta):
            opened = jnp.maximum(features(theta, x) * found.scale + found.shift, 0)
            logs = jax.nn.log_softmax(head(theta, opened))
            return -logs[jnp.arange(len(y)), y].mean()

        for _ in range(STEPS):
            slope = np.where(TwoLayers.head, jax.grad(loss)(jnp.asarray(theta)), 0)
            theta = theta - RATE * slope
        np.testing.assert_allclose(found.model, theta, **EXACT)


def test_wrong_settings_and_models_are_told():
    with pytest.raises(ValueError, match="conditions is 'sent'; it must be 'received'"):
        GPFL(conditions="sent")
    with pytest.raises(ValueError, match="mu is -1"):
        GPFL(mu=-1)
    regression = models.mlp(2).bind((4,), 1, loss=models.squared_error)
    with pytest.raises(ValueError, match="this model has none; choose another"):
        train(GPFL(), clients(), regression, 0)
