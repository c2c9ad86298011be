"""FedAS: rounds in NumPy; what alignment and the traces do; limits that are FedPer."""

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    float64,
    personal,
    predictors,
    train,
)
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
from fedtailor.algorithms import FedAS, FedPer
from fedtailor.protocol import SGD

ALIGN = SGD(lr=0.3, steps=2, batch_size=64)


def by_hand(fisher, theta, rounds=3):
    """FedAS on full batches of `clients()`: the models, and the server's body."""
    net, (data, _) = TwoLayers(), data_of(clients())
    own, body = [theta] * len(data), theta
    for _ in range(rounds):
        traces = []
        for i, (x, y) in enumerate(data):
            means = net.class_means(own[i], x, y)
            counts = np.bincount(y, minlength=3)[y][:, None]
            trained = np.where(net.head, own[i], body)
            for _ in range(2):
                apart = net.features(trained, x) - means[y]
                slope = net.gradient(
                    trained, x, np.zeros((len(y), 3)), 2 * apart / 5 / counts
                )
                trained = trained - 0.3 * np.where(net.head, 0, slope)
            for _ in range(STEPS):
                trained = trained - RATE * net.fit_gradient(trained, x, y)
            own[i] = trained
            parts = np.split(np.arange(len(y)), len(y))
            if fisher == "batches":
                parts = [np.arange(len(y))]
            norms = [
                np.square(net.fit_gradient(trained, x[rows], y[rows])).sum()
                for rows in parts
            ]
            traces.append(np.mean(norms))
        weights = np.array(traces) / sum(traces)
        body = weights @ np.array(own)
    return np.array(own), body


@pytest.mark.parametrize("fisher", ["examples", "batches"])
def test_three_rounds_are_those_of_numpy(fisher):
    with float64():
        method = FedAS(sgd=FULL, align=ALIGN, fisher=fisher)
        training = train(method, clients(), network(), 3)
        own, body = by_hand(fisher, np.array(training.initial(0)))
        np.testing.assert_allclose(personal(training), own, **EXACT)
        found = training.server.part.take(np.asarray(training.server.model[0]))
        np.testing.assert_allclose(found, body[~TwoLayers.head], **EXACT)


def test_without_alignment_and_traces_clients_train_as_in_fedper():
    with float64():
        still = SGD(lr=0.3, steps=0, batch_size=64)
        method = FedAS(sgd=FULL, align=still, fisher="off")
        ours = train(method, clients(), network(), 2)
        theirs = train(FedPer(sgd=FULL), clients(), network(), 2)
        head = network().part("head")
        np.testing.assert_allclose(
            head.take(personal(ours)), head.take(personal(theirs)), **EXACT
        )
        np.testing.assert_allclose(ours.server.model, theirs.server.model, **EXACT)


def test_alignment_brings_features_nearer_to_their_means():
    net, (data, _) = TwoLayers(), data_of(clients())
    with float64():
        distances = []
        for steps in (0, 40):
            align = SGD(lr=0.3, steps=steps, batch_size=64)
            still = SGD(lr=0.1, steps=0, batch_size=64)
            training = train(FedAS(sgd=still, align=align), clients(), network(), 1)
            start = np.array(training.initial(0))
            distance = [
                np.square(
                    net.features(theta, x) - net.class_means(start, x, y)[y]
                ).mean()
                for theta, (x, y) in zip(personal(training), data, strict=True)
            ]
            distances.append(np.mean(distance))
        assert distances[1] < 0.9 * distances[0]


def test_a_newcomer_trains_body_and_head_from_the_received_body():
    with float64():
        federation, net = clients(), TwoLayers()
        federation.unseen[1] = True
        training = train(FedAS(sgd=FULL, align=ALIGN), federation, network(), 1)
        x, y = data_of(federation)[0][1]
        server = training.server
        theta = server.part.put(
            np.array(training.initial(0)), server.part.take(np.asarray(server.model[0]))
        )
        for _ in range(STEPS):
            theta = theta - RATE * net.fit_gradient(theta, x, y)
        np.testing.assert_allclose(predictors(training)[0][1], theta, **EXACT)


def test_wrong_settings_and_models_are_told():
    with pytest.raises(ValueError, match="fisher is 'all'"):
        FedAS(fisher="all")
    regression = models.mlp(2).bind((4,), 1, loss=models.squared_error)
    with pytest.raises(ValueError, match="this model has none; choose another"):
        train(FedAS(), clients(), regression, 0)
