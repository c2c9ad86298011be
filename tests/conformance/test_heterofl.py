"""HeteroFL: one width is FedAvg to the bit, rounds in NumPy, networks that are not nested."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from conformance.problems import (
    EXACT,
    classification,
    float64,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, HeteroFL
from fedtailor.engine.training import Participation
from fedtailor.models.nested import nested_networks
from fedtailor.protocol import SGD, Exchange

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
FULL = SGD(lr=0.3, steps=2, batch_size=64)
NAMES = classification().names
UNSEEN = np.array([False, False, False, True, True])
WIDE = 20
NARROW = 6


def mixed(dtype="float64"):
    """The widest head is stored transposed, and the narrower one is not."""
    networks = {NAMES[1]: models.mlp(NARROW), NAMES[4]: models.mlp(NARROW)}
    return models.by_client(networks, default=models.mlp(WIDE)).bind(
        (4,), 3, dtype=dtype
    )


@pytest.mark.as_shipped
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_with_one_width_it_is_fedavg_to_the_bit(weights):
    federation = classification(unseen=UNSEEN)
    named = models.by_client(dict.fromkeys(NAMES, models.mlp(5)))
    (ours,), (expected,) = (
        predictors(train(method, federation, network.bind((4,), 3), 3))
        for method, network in (
            (HeteroFL(sgd=TRAINED, weights=weights), named),
            (FedAvg(sgd=TRAINED, weights=weights), models.mlp(5)),
        )
    )
    np.testing.assert_array_equal(ours, expected)


class Network:
    """Two dense layers in NumPy."""

    def __init__(self, w1, b1, w2, b2):
        self.arrays = [np.array(it) for it in (w1, b1, w2, b2)]

    @classmethod
    def of(cls, model, theta, index):
        """One of the networks of a model."""
        layers = model.with_network(index).network(jnp.asarray(theta))[index].layers
        dense = [layer for layer in layers if hasattr(layer, "weight")]
        first, second = (
            (
                np.asarray(it.weight).T if it.transposed else np.asarray(it.weight),
                it.bias,
            )
            for it in dense
        )
        return cls(*first, *second)

    def narrow(self, width):
        w1, b1, w2, b2 = self.arrays
        return Network(w1[:, :width], b1[:width], w2[:width], b2)

    def step(self, x, y, rate, factor, clip=np.inf, even=False, has=1.0):
        """A step along a clipped gradient; the hidden layer is followed by a factor, and the
        scores of classes that the client does not have are 0.
        """
        w1, b1, w2, b2 = self.arrays
        inner = (x @ w1 + b1) * factor
        z = np.maximum(inner, 0)
        w2 = w2 * has
        outputs = z @ w2 + b2 * has
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        error = (
            has * (powers / powers.sum(axis=1, keepdims=True) - np.eye(3)[y]) / len(y)
        )
        back = (error @ w2.T) * (inner > 0) * (1 / factor if even else factor)
        changes = (x.T @ back, back.sum(axis=0), z.T @ error, error.sum(axis=0))
        norm = np.sqrt(sum((change**2).sum() for change in changes))
        rate = rate * min(1, clip / norm)
        self.arrays = [
            it - rate * change for it, change in zip(self.arrays, changes, strict=True)
        ]


@pytest.mark.parametrize(
    ("scale", "clip", "even", "weights"),
    [
        (True, None, False, "uniform"),
        (True, 0.3, False, "samples"),
        (True, None, True, "samples"),
        (False, None, False, "samples"),
        (False, 0.3, False, "uniform"),
    ],
)
def test_three_rounds_are_those_of_numpy(scale, clip, even, weights):
    with float64():
        federation, model = classification(), mixed()
        method = HeteroFL(
            sgd=replace(FULL, clip=clip),
            scale=scale,
            even_steps=even,
            weights=weights,
        )
        start = train(method, federation, model, 0)
        training = train(method, federation, model, 3)
        index = model.member_of(NAMES[0])
        widest = Network.of(model, start.server.model[0], index)
        for _ in range(3):
            totals = [np.zeros_like(it) for it in widest.arrays]
            counts = [np.zeros_like(it) for it in widest.arrays]
            for client, name in enumerate(NAMES):
                rows = federation.client(client).train
                width = WIDE if model.member_of(name) == index else NARROW
                network = widest.narrow(width)
                for _ in range(2):
                    factor = WIDE / width if scale else 1
                    network.step(rows.x, rows.y, 0.3, factor, clip or np.inf, even)
                share = len(rows.y) if weights == "samples" else 1
                # The upper left of each array: its first rows, and its first columns.
                for total, count, it in zip(
                    totals, counts, network.arrays, strict=True
                ):
                    part = tuple(map(slice, it.shape))
                    total[part] += share * it
                    count[part] += share
            widest = Network(
                *(total / count for total, count in zip(totals, counts, strict=True))
            )
        theta = training.server.model[0]
        for number, width in ((index, WIDE), (1 - index, NARROW)):
            found = Network.of(model, theta, number)
            for one, other in zip(
                found.arrays, widest.narrow(width).arrays, strict=True
            ):
                np.testing.assert_allclose(one, other, **EXACT)


def test_numbers_that_no_reporter_has_stay():
    federation, model = classification(), mixed("float32")
    training = train(HeteroFL(sgd=TRAINED), federation, model, 0)
    networks = nested_networks(model, "heterofl")
    narrower = 1 - networks.widest
    start = np.asarray(training.server.model[0])
    cohort = training.round_cohort(_narrow(training, model))
    downlink = training.algorithm.broadcast(training.server, cohort)
    answers = training.executor.exchange(
        Exchange("client", training.algorithm, cohort, downlink)
    )
    theta = np.asarray(
        training.algorithm.server(training.server, downlink, answers, cohort).model[0]
    )
    held = np.zeros(model.size, bool)
    held[networks.nested[narrower]] = True
    held[networks.own[narrower]] = True
    np.testing.assert_array_equal(theta[~held], start[~held])
    assert (theta[held] != start[held]).mean() > 0.5


def _narrow(training, model):
    """Which clients, in the order of ids, have the narrower network."""
    members = [model.member_of(name) for name in training.population.names]
    return np.array(members) != model.member_of(NAMES[0])


def test_newcomers_and_absent_clients_have_the_model_in_their_width():
    federation, model = classification(unseen=UNSEEN), mixed("float32")
    training = train(
        HeteroFL(sgd=TRAINED),
        federation,
        model,
        3,
        participation=Participation(count=2),
    )
    (served,) = predictors(training)
    theta, x = training.server.model[0], jnp.ones((2, 4))
    for client, name in enumerate(NAMES):
        index = model.member_of(name)
        w1, b1, w2, b2 = Network.of(model, theta, index).arrays
        # The hidden layer of a narrow network is followed by the factor of its training.
        z = np.maximum(x @ w1 + b1, 0) * (WIDE / len(b1))
        np.testing.assert_allclose(
            model.of_client(name).logits(jnp.asarray(served[client], "float32"), x),
            z @ w2 + b2,
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("narrow", "wide", "shape"),
    [
        (models.mlp((4, 8)), models.mlp((16, 8)), (4,)),
        (
            models.cnn_5x5(hidden=20, channels=(2, 4)),
            models.cnn_5x5(hidden=40, channels=(4, 8)),
            (16, 16),
        ),
        (models.conv1d((2, 4)), models.conv1d((4, 8)), (30, 2)),
        (models.periodic_mlp(4, 2, 3), models.periodic_mlp(8, 2, 3), (4,)),
    ],
)
def test_networks_of_the_zoo_are_nested(narrow, wide, shape):
    """Of convolutions the first channels."""
    model = models.by_client({"a": narrow}, default=wide).bind(shape, 3)
    networks = nested_networks(model, "heterofl")
    assert networks.widest == 1
    assert networks.rates[1] == 1
    assert len(networks.own[0]) == len(set(networks.nested[0])) < len(networks.own[1])


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ((models.mlp(5), models.mlp((7, 5))), "upper left"),
        ((models.mlp((4, 9)), models.mlp((30, 8))), "upper left"),
        ((models.lstm(9, 4, 3), models.lstm(9, 4, 5)), "upper left"),
        ((models.periodic_mlp(4, 2), models.periodic_mlp(4, 3)), "upper left"),
        (
            (models.lenet5(norm="group"), models.cnn_5x5(hidden=9, channels=(2, 4))),
            "normalisation",
        ),
    ],
)
def test_networks_that_are_not_nested_are_refused(networks, message):
    """Gates of a recurrent layer lie side by side, so that its upper left is not one."""
    narrow, wide = networks
    shape = (16, 16) if message == "normalisation" else (4,)
    model = models.by_client({"a": narrow}, default=wide).bind(shape, 3)
    with pytest.raises(ValueError, match=message) as refused:
        nested_networks(model, "heterofl")
    assert "\n" not in str(refused.value)


def test_a_run_is_kept_and_opened(tmp_path):
    federation = classification(unseen=UNSEEN)
    networks = models.by_client({NAMES[1]: models.mlp(NARROW)}, models.mlp(WIDE))
    method = HeteroFL(sgd=TRAINED)
    whole = ft.run(method, federation, networks, 3, directory=tmp_path / "a")
    ft.run(method, federation, networks, 2, directory=tmp_path / "b")
    resumed = ft.run(
        method, federation, networks, 3, directory=tmp_path / "b", resume=True
    )
    opened = ft.open(tmp_path / "a", federation=federation)
    x = federation.client(1).test.x
    for name in NAMES:
        expected = whole.personal(name)
        for other in (resumed, opened):
            np.testing.assert_array_equal(
                other.personal(name).predict(x), expected.predict(x)
            )


def test_a_linear_model_is_fedavg_too():
    with float64():
        (ours,), (expected,) = (
            predictors(train(method, classification(), softmax_model(), 2))
            for method in (
                HeteroFL(sgd=TRAINED),
                FedAvg(sgd=TRAINED, weights="uniform"),
            )
        )
        np.testing.assert_array_equal(ours, expected)


def test_messages_are_as_long_as_the_clients_own_networks():
    """A stream for both widths is as long as the wider one, sent once; uplinks, and a
    stream for each client, are as long as each one's network.
    """
    model = mixed("float32")
    lengths = {width: models.mlp(width).bind((4,), 3).size for width in (NARROW, WIDE)}
    assert sorted(it.own_size for it in model.members) == sorted(lengths.values())
    training = train(HeteroFL(sgd=TRAINED, scale=False), classification(), model, 3)
    totals = training.ledger.totals()
    each = 3 * lengths[WIDE] + 2 * lengths[NARROW]
    assert totals.bytes_up == totals.bytes_down_unicast == 3 * 4 * each
    assert totals.bytes_down == 3 * 4 * lengths[WIDE]
    assert totals.models_up == 15 and totals.models_down == 3


def test_classes_that_a_client_does_not_have_are_left_out():
    """Rounds in NumPy, of clients that have two or three of three classes: absent ones have
    the score 0, and their weights are averaged over the others.
    """
    with float64():
        federation, model = classification(), mixed()
        y = np.array(federation.y)
        for client in range(3):
            rows = federation.train[client]
            y[rows] = np.where(y[rows] == client, (client + 1) % 3, y[rows])
        federation = replace(federation, y=y)
        training = train(HeteroFL(sgd=FULL, mask=True), federation, model, 2)
        start = train(HeteroFL(sgd=FULL, mask=True), federation, model, 0)
        index = model.member_of(NAMES[0])
        widest = Network.of(model, start.server.model[0], index)
        for _ in range(2):
            totals = [np.zeros_like(it) for it in widest.arrays]
            counts = [np.zeros_like(it) for it in widest.arrays]
            for client, name in enumerate(NAMES):
                rows = federation.client(client).train
                has = np.isin(np.arange(3), rows.y).astype(float)
                width = WIDE if model.member_of(name) == index else NARROW
                network = widest.narrow(width)
                for _ in range(2):
                    network.step(rows.x, rows.y, 0.3, WIDE / width, has=has)
                for place, (total, count, it) in enumerate(
                    zip(totals, counts, network.arrays, strict=True)
                ):
                    part = tuple(map(slice, it.shape))
                    weight = has if place >= 2 else 1.0
                    total[part] += weight * it
                    count[part] += weight
            widest = Network(*(t / c for t, c in zip(totals, counts, strict=True)))
        for number, width in ((index, WIDE), (1 - index, NARROW)):
            found = Network.of(model, training.server.model[0], number)
            for one, other in zip(
                found.arrays, widest.narrow(width).arrays, strict=True
            ):
                np.testing.assert_allclose(one, other, **EXACT)
        (served,) = predictors(training)
        x = jnp.asarray(federation.client(0).test.x)
        scores = model.of_client(NAMES[0]).logits(jnp.asarray(served[0]), x)
        assert (np.asarray(scores)[:, 0] == 0).all() and np.asarray(scores).any()


def test_with_all_classes_a_mask_changes_nothing():
    with float64():
        ours, expected = (
            train(HeteroFL(sgd=TRAINED, mask=mask), classification(), mixed(), 2)
            for mask in (True, False)
        )
        np.testing.assert_allclose(ours.server.model, expected.server.model, **EXACT)


def test_a_mask_needs_classes():
    with float64(), pytest.raises(ValueError, match="mask is of classes"):
        train(HeteroFL(mask=True), quadratics([[0.0], [1.0]]), quadratic_model(1), 1)
    with pytest.raises(ValueError, match="leave out mask"):
        HeteroFL(mask=True, sgd=SGD(dp_noise=1.0, dp_norm=1.0))
