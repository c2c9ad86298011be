"""HetLoRA: rounds in NumPy with ranks that shrink, weights by size, limits."""

import numpy as np
import pytest

from conformance.adapters import Adapted, adapted
from conformance.problems import (
    EXACT,
    answers_of,
    by_place,
    float64,
    personal,
    softmax_model,
    train,
)
from conformance.two_layers import FULL, RATE, STEPS, clients, data_of
from fedtailor.algorithms import FedAvg, HetLoRA

RANKS, GAMMA, LAM = (2, 3), 0.5, 2.0


def by_hand(model, theta, rounds=3):
    """A and B of the server, and the rank of each client."""
    net, federation = Adapted(model), clients()
    data, _ = data_of(federation)
    ranks = np.empty(5, int)
    ranks[np.argsort(federation.ids)] = [RANKS[i % 2] for i in range(5)]
    a, b = net.factors(theta)
    for _ in range(rounds):
        sent, sizes = [], []
        for i, (x, y) in enumerate(data):
            rank = ranks[i]
            kept = max(int(GAMMA * rank), 1)
            own_a, own_b = (
                np.where(np.arange(3)[:, None] < rank, a, 0),
                b * (np.arange(3) < rank),
            )

            def norms(a, b, kept=kept):
                return np.linalg.norm(a[kept:]), np.linalg.norm(b[:, kept:])

            def penalty(a, b, kept=kept):
                by_a, by_b = np.zeros_like(a), np.zeros_like(b)
                of_a, of_b = np.linalg.norm(a[kept:]), np.linalg.norm(b[:, kept:])
                if of_a > 0:
                    by_a[kept:] = LAM * of_b * a[kept:] / of_a
                if of_b > 0:
                    by_b[:, kept:] = LAM * of_a * b[:, kept:] / of_b
                return by_a, by_b

            before = np.prod(norms(own_a, own_b))
            own_a, own_b = net.descend(own_a, own_b, 0.0, x, y, RATE, STEPS, penalty)
            if np.prod(norms(own_a, own_b)) < before:
                ranks[i] = kept
                own_a[kept:], own_b[:, kept:] = 0, 0
            sent.append((own_a, own_b))
            sizes.append(np.linalg.norm(own_b @ own_a))
        share = np.array(sizes) / sum(sizes)
        a = sum(q * own_a for q, (own_a, _) in zip(share, sent, strict=True))
        b = sum(q * own_b for q, (_, own_b) in zip(share, sent, strict=True))
    return a, b, ranks


def test_three_rounds_are_those_of_numpy():
    with float64():
        model = adapted(rank=3)
        method = HetLoRA(sgd=FULL, ranks=RANKS, gamma=GAMMA, lam=LAM)
        training = train(method, clients(), model, 3)
        a, b, ranks = by_hand(model, training.initial(0))
        found = Adapted(model).factors(training.server.model[-1])
        np.testing.assert_allclose(found[0], a, **EXACT)
        np.testing.assert_allclose(found[1], b, **EXACT)
        states = by_place(training, training.executor.client_states["rank"])
        dealt = np.sort([RANKS[i % 2] for i in range(5)])
        assert (np.sort(ranks) < dealt).any()  # some have pruned
        np.testing.assert_array_equal(states, ranks)
        served = personal(training)[:, Adapted(model).entries.a]
        np.testing.assert_array_equal(served.any(axis=2).sum(axis=1), ranks)


def test_what_has_no_adapter_is_averaged_as_in_fedavg():
    with float64():
        ours, theirs = (
            train(it(sgd=FULL), clients(), softmax_model(), 2).server.model
            for it in (HetLoRA, FedAvg)
        )
        np.testing.assert_allclose(ours, theirs, **EXACT)


def test_clients_count_by_the_size_of_their_products():
    """And by their samples where all products are zero."""
    with float64():
        model = adapted(rank=3)
        training = train(HetLoRA(sgd=FULL), clients(), model, 0)
        cohort = training.round_cohort(np.ones(5, bool))
        models = np.arange(5.0)[:, None] * np.ones(model.size)
        for size, expected in (
            (np.array([1.0, 0, 0, 0, 3.0]), 3.0),
            (np.zeros(5), np.arange(5) @ cohort.sizes / cohort.sizes.sum()),
        ):
            answers = answers_of(cohort, model=models, size=size)
            server = training.algorithm.server(training.server, None, answers, cohort)
            np.testing.assert_allclose(server.model, expected, **EXACT)


def test_a_rank_that_keeps_all_is_not_pruned():
    with float64():
        method = HetLoRA(sgd=FULL, ranks=RANKS, gamma=1.0, lam=LAM)
        training = train(method, clients(), adapted(rank=3), 2)
        ranks = np.sort(training.executor.client_states["rank"])
        np.testing.assert_array_equal(ranks, [2, 2, 2, 3, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"gamma": 0.0}, "gamma is 0.0"),
        ({"split": "both"}, "leave it out"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        HetLoRA(**arguments)
