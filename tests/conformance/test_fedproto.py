"""FedProto: alone without its pull, rounds by hand, prototypes that are weighted means of
sums, classes that nobody has.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from conformance.problems import (
    EXACT,
    ROUNDED,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedProto, Local
from fedtailor.engine.training import Participation, Privacy
from fedtailor.protocol import SGD

FULL = SGD(lr=0.3, steps=3, batch_size=64)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])


def mlp(dtype="float64"):
    return models.mlp(5).bind((4,), 3, dtype=dtype)


@pytest.mark.as_shipped
def test_without_its_pull_it_is_local_to_the_bit():
    clients = classification(unseen=UNSEEN)
    ours, alone = (
        predictors(train(method, clients, mlp("float32"), 3))
        for method in (FedProto(sgd=TRAINED, lam=0.0), Local(sgd=TRAINED))
    )
    for one, other in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def by_hand(federation, model, lam, rounds, theta):
    """FedProto on full batches, client by client.

    Returns:
        The clients' models [m, d], and the prototypes [classes, size + 1].
    """
    data = [federation.client(client).train for client in range(len(federation))]
    thetas = [jnp.asarray(theta)] * len(data)
    prototypes = np.zeros((3, 6))
    for _ in range(rounds):
        sums = np.zeros((3, 6))
        for client, rows in enumerate(data):
            x, y = jnp.asarray(rows.x), np.asarray(rows.y)
            target, known = prototypes[y, :5], prototypes[y, 5]

            def loss(theta, x=x, y=y, target=target, known=known):
                z = model.features(theta, x)
                fit = model.losses(model.logits(theta, x), jnp.asarray(y))
                return (fit + lam * known * ((z - target) ** 2).mean(axis=1)).mean()

            for _ in range(3):
                thetas[client] = thetas[client] - 0.3 * jax.grad(loss)(thetas[client])
            z = np.asarray(model.features(thetas[client], x))
            for row, label in zip(z, y, strict=True):
                sums[label] += np.append(row, 1.0)
        for label in range(3):
            if sums[label, 5]:
                prototypes[label] = np.append(sums[label, :5] / sums[label, 5], 1.0)
    return np.array(thetas), prototypes


def test_rounds_by_hand():
    with float64():
        federation, model = classification(), mlp()
        training = train(FedProto(sgd=FULL, lam=2.0), federation, model, 3)
        thetas, prototypes = by_hand(federation, model, 2.0, 3, training.initial(0))
        np.testing.assert_allclose(training.server.prototypes, prototypes, **EXACT)
        np.testing.assert_allclose(personal(training), thetas, **EXACT)


def test_a_class_that_no_client_has_has_no_prototype():
    """Its row stays zero, and it pulls nobody; a class that nobody has in a later round
    keeps its prototype.
    """
    federation = classification()
    y = np.minimum(federation.y, 1)  # nobody has class 2
    training = train(
        FedProto(sgd=TRAINED, lam=1.0), replace(federation, y=y), mlp("float32"), 2
    )
    assert (np.asarray(training.server.prototypes)[2] == 0).all()
    assert (np.asarray(training.server.prototypes)[:2, -1] == 1).all()
    assert np.isfinite(personal(training)).all()


def test_a_strong_pull_brings_features_together():
    def spread(lam):
        training = train(
            FedProto(sgd=FULL, lam=lam), classification(), mlp("float32"), 8
        )
        federation, apart = training.executor.federation, []
        for client, theta in enumerate(personal(training)):
            rows = federation.client(client).train
            z = np.asarray(
                training.model.features(jnp.asarray(theta), jnp.asarray(rows.x))
            )
            target = np.asarray(training.server.prototypes)[rows.y, :5]
            apart.append(((z - target) ** 2).mean())
        return np.mean(apart)

    assert spread(5.0) < 0.7 * spread(0.0)


def test_secure_sums_show_the_server_sums_only():
    federation = classification()
    method = FedProto(sgd=TRAINED)
    options = {"rounds": 2, "seed": 1}
    open_run = ft.run(method, federation, mlp("float32"), **options)
    hidden = ft.run(
        method,
        federation,
        mlp("float32"),
        privacy=Privacy(secure_aggregation=True),
        **options,
    )
    np.testing.assert_allclose(
        hidden.training.server.prototypes,
        open_run.training.server.prototypes,
        **ROUNDED,
    )


def test_only_reporters_count():
    training = train(
        FedProto(sgd=TRAINED),
        classification(),
        mlp("float32"),
        2,
        participation=Participation(count=2),
    )
    assert training.phase.participated.sum() <= 4
    assert training.ledger.totals().models_up == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"sgd": SGD(dp_noise=1.0, dp_norm=1.0)}, "private steps do not cover"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedProto(**arguments)


def test_models_without_classes_or_head_are_refused():
    with float64(), pytest.raises(ValueError, match=r"head|classes"):
        train(FedProto(), quadratics([[0.0], [1.0]]), quadratic_model(1), 1)
