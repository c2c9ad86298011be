"""Clients with different networks: each trains as it would among clients of its own
network; what needs one network is refused.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from conformance.problems import classification, personal, train
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedPer, FedProto, LGFedAvg, Local, Then
from fedtailor.engine.training import Participation
from fedtailor.models import Model
from fedtailor.protocol import SGD, Algorithm
from fedtailor.testing import predictors

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
SMALL, LARGE = models.mlp(5), models.mlp((7, 5))
NAMES = classification().names
MIXED = models.by_client({NAMES[1]: LARGE, NAMES[3]: LARGE}, default=SMALL)
UNSEEN = np.array([False, False, False, True, True])


def bound(architecture) -> Model:
    return architecture.bind((4,), 3)


def of_network(vector, index):
    """The entries of a vector that belong to a network."""
    start = bound(SMALL).size if index else 0
    size = bound(LARGE).size if index else bound(SMALL).size
    # `by_client` lists the networks as they are named first.
    return vector[start : start + size]


def networks():
    return bound(
        models.by_client(
            dict.fromkeys(NAMES, SMALL) | {NAMES[1]: LARGE, NAMES[3]: LARGE}
        )
    )


def test_a_model_has_all_networks_and_each_client_its_own():
    mixed = networks()
    assert mixed.size == bound(SMALL).size + bound(LARGE).size
    assert [mixed.member_of(name) for name in NAMES] == [0, 1, 0, 1, 0]
    x = jnp.ones((2, 4))
    theta = mixed.init(ft_key())
    for client, architecture in ((NAMES[0], SMALL), (NAMES[1], LARGE)):
        alone = bound(architecture)
        np.testing.assert_array_equal(
            mixed.of_client(client).logits(theta, x),
            alone.logits(alone.init(ft_key()), x),
        )


def ft_key():
    return jax.random.key(3)


@pytest.mark.as_shipped
@pytest.mark.parametrize("participation", [Participation(), Participation(count=2)])
def test_alone_each_client_trains_as_with_its_own_network_only(participation):
    """To the bit, and newcomers too: the networks of others change nothing."""
    federation = classification(unseen=UNSEEN)
    options = {"participation": participation}
    (mixed,) = predictors(
        train(Local(sgd=TRAINED), federation, networks(), 3, **options)
    )
    for index, architecture in enumerate((SMALL, LARGE)):
        (alone,) = predictors(
            train(Local(sgd=TRAINED), federation, bound(architecture), 3, **options)
        )
        for client, name in enumerate(NAMES):
            if networks().member_of(name) == index:
                np.testing.assert_array_equal(
                    of_network(mixed[client], index), alone[client]
                )


def test_entries_of_other_networks_stay():
    training = train(Local(sgd=TRAINED), classification(), networks(), 2)
    start = np.asarray(training.initial(0))
    for client, theta in enumerate(personal(training)):
        index = networks().member_of(NAMES[client])
        np.testing.assert_array_equal(
            of_network(theta, 1 - index), of_network(start, 1 - index)
        )
        assert (of_network(theta, index) != of_network(start, index)).any()


def test_prototypes_are_shared_between_networks():
    """The server's mean is that of all clients' features, whatever their networks."""
    federation = classification()
    training = train(FedProto(sgd=TRAINED), federation, networks(), 2)
    sums = np.zeros((3, 6))
    for client, theta in enumerate(personal(training)):
        rows = federation.client(client).train
        model = training.model.of_client(NAMES[client])
        z = np.asarray(model.features(jnp.asarray(theta), jnp.asarray(rows.x)))
        for row, label in zip(z, rows.y, strict=True):
            sums[label] += np.append(row, 1)
    means = sums[:, :5] / sums[:, 5:]
    np.testing.assert_allclose(
        training.server.prototypes[:, :5], means, rtol=1e-4, atol=1e-5
    )


def test_a_head_is_shared_between_networks():
    """All clients predict with the server's head on bodies of their own."""
    federation = classification(unseen=UNSEEN)
    training = train(LGFedAvg(sgd=TRAINED), federation, networks(), 2)
    model = training.model
    head = np.asarray(training.server.model[0])[model.part("head").indices]
    assert head.shape == (3 * 6,)
    (served,) = predictors(training)
    for client, name in enumerate(NAMES):
        part = model.of_client(name).part("head")
        np.testing.assert_array_equal(served[client][part.indices], head)


@pytest.mark.slow
def test_the_mean_of_heads_by_hand():
    """One step on all rows from the received head, for networks of both kinds."""
    federation = classification()
    sgd = SGD(lr=0.2, steps=1, batch_size=64)
    training = train(LGFedAvg(sgd=sgd, weights="uniform"), federation, networks(), 1)
    model, start = training.model, training.initial(0)
    common = np.asarray(start)[model.part("head").indices]
    heads = []
    for client, name in enumerate(NAMES):
        own, rows = model.of_client(name), federation.client(client).train
        part = own.part("head")
        theta = part.put(jnp.asarray(start), jnp.asarray(common))

        def loss(theta, own=own, rows=rows):
            outputs = own.logits(theta, jnp.asarray(rows.x, jnp.float32))
            return own.losses(outputs, jnp.asarray(rows.y)).mean()

        heads.append(np.asarray(part.take(theta - 0.2 * jax.grad(loss)(theta))))
    found = np.asarray(training.server.model[0])[model.part("head").indices]
    np.testing.assert_allclose(found, np.mean(heads, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [FedProto(sgd=TRAINED), LGFedAvg(sgd=TRAINED)])
def test_equal_networks_by_name_are_one_network_to_the_bit(method):
    federation = classification()
    one, named = (
        personal(train(method, federation, bound(it), 2))
        for it in (SMALL, models.by_client(dict.fromkeys(NAMES, SMALL)))
    )
    np.testing.assert_array_equal(one, named)


def test_the_pull_changes_what_clients_with_other_networks_learn():
    federation = classification()
    pulled, alone = (
        personal(train(FedProto(sgd=TRAINED, lam=lam), federation, networks(), 2))
        for lam in (2.0, 0.0)
    )
    assert (pulled != alone).any(axis=1).all()


@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_runs_are_measured_kept_and_opened(tmp_path, debug):
    federation = classification(unseen=UNSEEN)
    run = ft.run(
        FedProto(sgd=replace(TRAINED, epochs=1)),
        federation,
        MIXED,
        2,
        directory=tmp_path / "run",
        keep_rows=True,
        settings=ft.Settings(debug=debug),
    )
    rows = federation.client(1).test
    accuracy = run.metrics.values("accuracy")[1]
    predicted = run.personal(NAMES[1]).predict(rows.x)
    assert np.mean(predicted == rows.y) == pytest.approx(accuracy)
    opened = ft.open(tmp_path / "run", federation=federation)
    for name in NAMES:
        np.testing.assert_array_equal(
            opened.personal(name).predict(rows.x), run.personal(name).predict(rows.x)
        )
    again = ft.run(
        FedProto(sgd=replace(TRAINED, epochs=1)),
        federation,
        MIXED,
        3,
        directory=tmp_path / "run",
        resume=True,
        settings=ft.Settings(debug=debug),
    )
    assert again.summary().rounds == 3


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    federation = classification()
    method = FedProto(sgd=TRAINED)
    whole = ft.run(method, federation, MIXED, 4, directory=tmp_path / "a")
    ft.run(method, federation, MIXED, 2, directory=tmp_path / "b")
    parts = ft.run(method, federation, MIXED, 4, directory=tmp_path / "b", resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(
            whole.personal(name).predictor, parts.personal(name).predictor
        )


@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_methods_that_need_one_network_refuse_in_one_line(name):
    from conformance.examples import example

    algorithm = example(name)
    if algorithm.in_common == "the network":
        with pytest.raises(ValueError, match="needs clients that have one network"):
            train(algorithm, classification(), networks(), 0)
    elif algorithm.in_common == "nested widths":
        with pytest.raises(ValueError, match="the upper left of the widest one"):
            train(algorithm, classification(), networks(), 0)
    else:
        train(algorithm, classification(), networks(), 0)


def test_schedules_and_settings_are_refused():
    federation = classification()
    with pytest.raises(ValueError, match="fedavg needs clients that have one network"):
        ft.run(Then(FedAvg(), rounds=1, next=Local()), federation, MIXED, 2)
    with pytest.raises(ValueError, match="fedper needs clients"):
        ft.run(FedPer(), federation, MIXED, 2)
    wide = models.by_client({NAMES[0]: models.mlp(9)}, default=SMALL)
    with pytest.raises(ValueError, match=r"as many features .* \(5,\), \(9,\)"):
        ft.run(FedProto(), federation, wide, 1)
    with pytest.raises(ValueError, match="has no network"):
        ft.run(Local(), federation, models.by_client({NAMES[0]: SMALL}), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "needs a network for each client"),
        (({"a": 3},), "of the kind int"),
        (({"a": models.by_client({}, SMALL)},), "plain networks"),
        (({"a": SMALL.in_precision("bfloat16")},), "plain networks"),
    ],
)
def test_wrong_networks_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.by_client(*arguments)
