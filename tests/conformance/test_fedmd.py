"""FedMD: alone without a digest or with a single client, rounds by hand, the consensus as a
mean of scores, different networks, what travels.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

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
from fedtailor.algorithms import FedMD, Local
from fedtailor.data.federation import set_aside
from fedtailor.engine.training import Participation, Privacy
from fedtailor.protocol import SGD

FULL = SGD(lr=0.3, steps=3, batch_size=64)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])
NAMES = classification().names
SMALL, LARGE = models.mlp(5), models.mlp((7, 5))


def mlp(dtype="float64"):
    return SMALL.bind((4,), 3, dtype=dtype)


def mixed(dtype="float64"):
    by_name = {NAMES[1]: LARGE, NAMES[3]: LARGE}
    return models.by_client(by_name, default=SMALL).bind((4,), 3, dtype=dtype)


@pytest.mark.as_shipped
@pytest.mark.parametrize("model", [mlp, mixed])
def test_without_a_digest_it_is_local_to_the_bit(model):
    clients = classification(unseen=UNSEEN)
    ours, alone = (
        predictors(train(method, clients, model("float32"), 3))
        for method in (FedMD(sgd=TRAINED, digest_epochs=0), Local(sgd=TRAINED))
    )
    for one, other in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_consensus_of_one_client_is_its_own_scores():
    """So that squared distances have a gradient of zero, and it trains alone."""
    with float64():
        single = classification(clients=1)
        ours, alone = (
            train(method, single, mlp(), 3)
            for method in (
                FedMD(sgd=TRAINED, distance="squared", digest_lr=0.5),
                Local(sgd=TRAINED),
            )
        )
        np.testing.assert_allclose(personal(ours), personal(alone), **EXACT)
        own = ours.model.logits(
            jnp.asarray(personal(ours)[0]), jnp.asarray(single.public)
        )
        np.testing.assert_allclose(ours.server.consensus, own, **EXACT)


def distance_of(kind, scores, target):
    """A mean distance in NumPy, for tests of the gradient by differences."""
    if kind == "absolute":
        return np.abs(scores - target).mean()
    if kind == "squared":
        return ((scores - target) ** 2).mean()
    return -(softmax(target, axis=1) * log_softmax(scores, axis=1)).sum(axis=1).mean()


@pytest.mark.parametrize("kind", ["absolute", "squared", "cross-entropy"])
def test_a_digest_descends_along_the_distance(kind):
    """One step on all public inputs, by differences in NumPy. At its own scores the
    cross-entropy is their entropy.
    """
    with float64():
        federation, model = classification(), mlp()
        method = FedMD(
            sgd=SGD(lr=1e-12, steps=1), digest_lr=0.1, digest_batch=64, distance=kind
        )
        training = train(method, federation, model, 1)
        target = np.random.default_rng(0).normal(size=(9, 3))
        training.server = training.server.replace(consensus=jnp.asarray(target))
        before = personal(training)[2]
        training.advance()
        change = (personal(training)[2] - before) / -0.1

        def at(theta):
            scores = model.logits(jnp.asarray(theta), jnp.asarray(federation.public))
            return distance_of(kind, np.asarray(scores), target)

        for index in (0, 7, model.size - 1):
            small = np.zeros(model.size)
            small[index] = 1e-6
            slope = (at(before + small) - at(before - small)) / 2e-6
            np.testing.assert_allclose(change[index], slope, rtol=1e-5, atol=1e-8)
    if kind == "cross-entropy":
        shares = softmax(target, axis=1)
        entropy = -(shares * np.log(shares)).sum(axis=1).mean()
        np.testing.assert_allclose(distance_of(kind, target, target), entropy)


def by_hand(federation, model, rounds, theta, *, rate, epochs, weights):
    """FedMD on full batches and squared distances, client by client.

    Returns:
        The clients' models [m, d], and the consensus [p, classes].
    """
    public = jnp.asarray(federation.public)
    thetas = [jnp.asarray(theta)] * len(federation)
    consensus = None
    for _ in range(rounds):
        sent = []
        for client in range(len(federation)):
            own, rows = model.of_client(NAMES[client]), federation.client(client).train
            x, y = jnp.asarray(rows.x), jnp.asarray(rows.y)

            def apart(theta, own=own, target=consensus):
                return ((own.logits(theta, public) - target) ** 2).mean()

            def loss(theta, own=own, x=x, y=y):
                return own.losses(own.logits(theta, x), y).mean()

            w = thetas[client]
            for _ in range(0 if consensus is None else epochs):
                w = w - rate * jax.grad(apart)(w)
            for _ in range(3):
                w = w - 0.3 * jax.grad(loss)(w)
            thetas[client] = w
            sent.append(np.asarray(own.logits(w, public)))
        shares = federation.train.sizes if weights == "samples" else np.ones(len(sent))
        consensus = np.average(sent, axis=0, weights=shares)
    return np.array(thetas), consensus


@pytest.mark.parametrize("model", [mlp, mixed])
@pytest.mark.parametrize(("epochs", "weights"), [(1, "uniform"), (2, "samples")])
def test_rounds_by_hand(model, epochs, weights):
    with float64():
        federation = classification()
        method = FedMD(
            sgd=FULL,
            distance="squared",
            digest_lr=0.2,
            digest_epochs=epochs,
            digest_batch=64,
            weights=weights,
        )
        training = train(method, federation, model(), 3)
        thetas, consensus = by_hand(
            federation,
            training.model,
            3,
            training.initial(0),
            rate=0.2,
            epochs=epochs,
            weights=weights,
        )
        np.testing.assert_allclose(training.server.consensus, consensus, **EXACT)
        np.testing.assert_allclose(personal(training), thetas, **EXACT)


def test_small_batches_see_each_public_input_once_in_a_pass():
    """Squared distances of a linear model are least at the consensus: many passes in batches
    of 2 of 5 come there as whole ones do.
    """
    with float64():
        federation = replace(classification(), public=np.eye(4)[[0, 1, 2, 3, 0]])
        model = models.logistic().bind((4,), 3, dtype="float64")
        found = []
        for batch in (2, 64):
            method = FedMD(
                sgd=SGD(lr=1e-12, steps=1),
                distance="squared",
                digest_lr=0.3,
                digest_epochs=800,
                digest_batch=batch,
            )
            training = train(method, federation, model, 1)
            target = np.tile([1.0, -2.0, 0.5], (5, 1))
            training.server = training.server.replace(consensus=jnp.asarray(target))
            training.advance()
            theta = jnp.asarray(personal(training)[0])
            found.append(model.logits(theta, jnp.asarray(federation.public)))
        for scores in found:
            np.testing.assert_allclose(scores, target, atol=1e-6)


def test_the_order_of_clients_changes_nothing():
    federation = classification()
    order = np.array([3, 0, 4, 2, 1])
    shuffled = replace(
        federation,
        **{k: getattr(federation, k).take(order) for k in ("train", "val", "test")},
        names=tuple(np.array(federation.names)[order].tolist()),
    )
    one, other = (
        train(FedMD(sgd=TRAINED), each, mixed("float32"), 3)
        for each in (federation, shuffled)
    )
    np.testing.assert_array_equal(one.server.consensus, other.server.consensus)


def test_a_digest_brings_clients_together():
    """Their scores of the public set come closer to the consensus."""

    def spread(epochs):
        method = FedMD(
            sgd=FULL, digest_epochs=epochs, digest_lr=0.5, distance="squared"
        )
        training = train(method, classification(), mlp("float32"), 6)
        public = jnp.asarray(classification().public, jnp.float32)
        scores = [
            training.model.logits(jnp.asarray(theta), public)
            for theta in personal(training)
        ]
        return np.var(scores, axis=0).mean()

    assert spread(5) < 0.7 * spread(0)


def test_secure_sums_show_the_server_sums_only():
    options = {"rounds": 2, "seed": 1}
    method, federation = FedMD(sgd=TRAINED), classification()
    open_run = ft.run(method, federation, mlp("float32"), **options)
    hidden = ft.run(
        method,
        federation,
        mlp("float32"),
        privacy=Privacy(secure_aggregation=True),
        **options,
    )
    np.testing.assert_allclose(
        hidden.training.server.consensus,
        open_run.training.server.consensus,
        **ROUNDED,
    )


def test_scores_travel_and_nothing_else():
    """9 public inputs of 3 classes in float32; in the first round there is no consensus."""
    training = train(FedMD(sgd=TRAINED), classification(), mixed("float32"), 3)
    totals = training.ledger.totals()
    assert totals.models_up == totals.models_down == 0
    assert totals.bytes_up == 3 * 5 * 9 * 3 * 4
    assert totals.bytes_down == 2 * 9 * 3 * 4
    assert totals.bytes_down_unicast == 2 * 5 * 9 * 3 * 4


def test_passes_over_public_inputs_are_counted():
    """In each of 3 rounds 9 forwards of 5 clients, in two of them 9 gradients."""
    counts = []
    for method in (FedMD(sgd=TRAINED, digest_batch=4), Local(sgd=TRAINED)):
        totals = train(method, classification(), mlp("float32"), 3).ledger.totals()
        counts.append((totals.gradients, totals.forwards))
    ours, alone = counts
    assert (ours[0] - alone[0], ours[1] - alone[1]) == (2 * 5 * 9, 3 * 5 * 9)


def test_absent_clients_train_later():
    training = train(
        FedMD(sgd=TRAINED),
        classification(unseen=UNSEEN),
        mlp("float32"),
        3,
        participation=Participation(count=2),
    )
    assert training.phase.participated.sum() <= 4
    for thetas in predictors(training):
        assert np.isfinite(thetas).all()


def test_rows_of_a_scenario_are_a_public_set():
    federation = set_aside(classification(public=0), 0.2)
    run = ft.run(FedMD(sgd=TRAINED), federation, mlp("float32"), 2)
    assert run.training.server.consensus.shape == (len(federation.public), 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"digest_lr": 0.0}, "digest_lr is 0.0"),
        ({"digest_epochs": -1}, "digest_epochs is -1"),
        ({"digest_batch": 0}, "digest_batch is 0"),
        ({"distance": "none"}, "distance"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedMD(**arguments)


def test_what_it_cannot_do_is_refused():
    with float64(), pytest.raises(ValueError, match="classes"):
        train(FedMD(), quadratics([[0.0], [1.0]]), quadratic_model(1), 1)
    with pytest.raises(ValueError, match="needs a public set") as refused:
        ft.run(FedMD(), classification(public=0), models.mlp(5), 1)
    assert "\n" not in str(refused.value)
