"""Behind masks no sum is what one client alone has changed, whatever its weight in it is.

Weights are known to the server, and checked where sums are opened. What a client does with its
rows, such as a choice between models, can make its part smaller than its weight says, or that
of all others.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.examples import example
from fedtailor.aggregation.secure_sums import SecureSums, hidden_kinds
from fedtailor.protocol import SGD, Algorithm
from fedtailor.testing import classification, train
from fedtailor.testing.problems import float64, mlp_model

CLIENTS, ROUNDS = 4, 30
STEPS = SGD(lr=0.3, steps=10, batch_size=8)


def settings_of(name):
    """Settings of a method with which clients take as many steps, and soon differ."""
    algorithm = example(name)
    if isinstance(getattr(algorithm, "sgd", None), SGD):
        algorithm = replace(algorithm, sgd=STEPS)
    return algorithm


def is_added(algorithm):
    """Whether its updates may be added behind masks."""
    try:
        SecureSums(open_probe=True).check(algorithm, ())
    except ValueError:
        return False
    return algorithm.server_sees == "sums"


ADDED = sorted(name for name in Algorithm.registry if is_added(settings_of(name)))


def clients_of_own_classes(kind):
    """Clients with as many rows each, and so the same weights.

    Args:
        kind: "all" classes at each client, or "one" at each but the first.
    """
    groups = np.arange(CLIENTS) % 2
    clients = classification(CLIENTS, [40] * CLIENTS, seed=5, groups=groups)
    if kind == "one":
        y = np.array(clients.y)
        y[len(y) // CLIENTS :] = 1
        clients = replace(clients, y=y)
    return clients


def largest_share(algorithm, clients, rounds, monkeypatch):
    """The largest share of one client in what a sum changed, of all rounds."""
    shares, server = list[float](), type(algorithm).server

    def watched(self, state, downlink, answers, cohort):
        for kind in hidden_kinds(answers.update):
            sent = answers.update[kind]
            values = np.asarray(sent.values)[sent.row]
            values = values.reshape(len(values), -1)
            # Of models it is a change, of anything else all; there may be several models.
            known, models = 0.0, values[:, None]
            if kind == "model" and kind in downlink.streams:
                known = np.asarray(downlink.streams[kind].values)
                models = values.reshape(len(values), -1, known.shape[-1])
            lengths = np.linalg.norm(models - known, axis=2)
            sums = lengths.sum(axis=0)
            moved = sums > 1e-9
            shares.extend((lengths.max(axis=0) / np.where(moved, sums, 1))[moved])
        return server(self, state, downlink, answers, cohort)

    with float64(), monkeypatch.context() as patch:
        patch.setattr(type(algorithm), "server", watched)
        train(algorithm, clients, mlp_model(), rounds)
    return max(shares, default=0.0)


@pytest.mark.parametrize("name", ADDED)
def test_no_sum_is_what_one_client_has_changed(name, monkeypatch):
    algorithm, clients = settings_of(name), clients_of_own_classes("all")
    assert largest_share(algorithm, clients, ROUNDS, monkeypatch) < 0.9
    # Later, clients of one class have learnt it, and only the first changes the model.
    clients = clients_of_own_classes("one")
    assert largest_share(algorithm, clients, 2, monkeypatch) < 0.9


@pytest.mark.parametrize(
    ("name", "classes"), [("mapper", "all"), ("fedlc", "one"), ("fedrod", "one")]
)
def test_a_sum_of_these_can_be_what_one_client_has_changed(name, classes, monkeypatch):
    """Before, they were added."""
    assert name not in ADDED
    clients = clients_of_own_classes(classes)
    assert largest_share(settings_of(name), clients, ROUNDS, monkeypatch) > 0.9
