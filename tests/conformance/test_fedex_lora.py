"""FedEx-LoRA: the weight is the mean of the clients' weights, rounds in NumPy, low ranks."""

import numpy as np
import pytest

from conformance.adapters import Adapted, adapted, weight_of
from conformance.problems import EXACT, float64, softmax_model, train
from conformance.two_layers import FULL, RATE, STEPS, clients, data_of
from fedtailor.algorithms import FedAvg, FedExLoRA
from fedtailor.algorithms.fedex_lora import nearest_factors


def by_hand(model, theta, rounds=3):
    """The network's weight [outputs, inputs] after each round."""
    net, (data, shares) = Adapted(model), data_of(clients())
    a, b, rest = *net.factors(theta), 0.0
    weights = []
    for _ in range(rounds):
        sent = [net.descend(a, b, rest, x, y, RATE, STEPS) for x, y in data]
        mean = sum(
            q * own_b @ own_a for q, (own_a, own_b) in zip(shares, sent, strict=True)
        )
        a = sum(q * own_a for q, (own_a, _) in zip(shares, sent, strict=True))
        b = sum(q * own_b for q, (_, own_b) in zip(shares, sent, strict=True))
        rest = rest + net.scale * (mean - b @ a)
        weights.append(net.weight + net.scale * b @ a + rest)
    return weights


def test_three_rounds_are_those_of_numpy():
    with float64():
        model = adapted(rank=2, local_rank=3)
        training = train(FedExLoRA(sgd=FULL), clients(), model, 3)
        expected = by_hand(model, training.initial(0))[-1]
        found = weight_of(model, training.server.model[0])
        np.testing.assert_allclose(found, expected, **EXACT)


def test_the_weight_of_a_round_is_the_mean_of_the_clients_weights(monkeypatch):
    """What the averages of the factors alone do not give."""
    sent, original = [], FedExLoRA.server

    def server(self, server, downlink, answers, cohort):
        sent.append(np.asarray(answers.reporters("model")))
        return original(self, server, downlink, answers, cohort)

    monkeypatch.setattr(FedExLoRA, "server", server)
    with float64():
        model = adapted(rank=2, local_rank=3)
        training = train(FedExLoRA(sgd=FULL, weights="uniform"), clients(), model, 3)
        mean = np.mean([weight_of(model, theta) for theta in sent[-1]], axis=0)
        found = weight_of(model, training.server.model[0])
        np.testing.assert_allclose(found, mean, **EXACT)
        averaged = train(FedAvg(sgd=FULL), clients(), adapted(rank=2), 3)
        factors = weight_of(adapted(rank=2), averaged.server.model[0])
        assert np.abs(found - factors).max() > 1e-4


def test_with_a_low_rank_the_nearest_rest_is_kept():
    rng = np.random.default_rng(0)
    rest = rng.normal(size=(5, 4))
    lengths = np.linalg.svd(rest)[1]
    for rank in (1, 2, 4):
        a, b = nearest_factors(rest, rank)
        assert a.shape == (rank, 4) and b.shape == (5, rank)
        error = np.linalg.norm(rest - b @ a)
        assert error == pytest.approx(np.linalg.norm(lengths[rank:]), abs=1e-12)


def test_without_adapters_it_is_fedavg_and_without_a_second_one_it_is_refused():
    with float64():
        ours, theirs = (
            train(it(sgd=FULL), clients(), softmax_model(), 2).server.model
            for it in (FedExLoRA, FedAvg)
        )
        np.testing.assert_array_equal(ours, theirs)
        with pytest.raises(ValueError, match="this model has none; give lora"):
            train(FedExLoRA(), clients(), adapted(rank=2), 0)
