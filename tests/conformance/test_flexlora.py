"""FlexLoRA: products of adapters are averaged, and each client gets the best of its rank."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import classification, softmax_model, train
from fedtailor.algorithms import FedAvg, FlexLoRA
from fedtailor.algorithms.flexlora import best_factors
from fedtailor.engine.runs import run
from fedtailor.models import lora, merged, mlp
from fedtailor.models.low_rank import adapters_of
from fedtailor.protocol import SGD
from fedtailor.testing import classification as clients

CLIENTS = 4


def sent_in(monkeypatch, method, federation, network, rounds):
    """A run, and what reporters sent in each round."""
    sent, original = [], FlexLoRA.server

    def server(self, server, downlink, answers, cohort):
        sent.append(np.asarray(answers.reporters("model")))
        return original(self, server, downlink, answers, cohort)

    monkeypatch.setattr(FlexLoRA, "server", server)
    return run(method, federation, network, rounds), sent


def whole(done, theta):
    """The network with its adapters added to its weights."""
    return np.asarray(merged(done.model, jnp.asarray(theta))[1])


def test_factors_are_the_nearest_of_their_rank_to_the_mean_product():
    """The error is the length of the singular values that are left out (Eckart, Young)."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 6, 3))
    weights = rng.dirichlet(np.ones(5))
    total = np.einsum("c,cor,cri->oi", weights, b, a)
    lengths = np.linalg.svd(total)[1]
    best_a, best_b = best_factors(weights, a, b)
    np.testing.assert_allclose(best_a @ best_a.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(best_b.T @ best_b, np.diag(lengths[:3] ** 2), atol=1e-12)
    error = np.linalg.norm(total - best_b @ best_a)
    np.testing.assert_allclose(error, np.linalg.norm(lengths[3:]), rtol=1e-10)
    for rank in (1, 2):
        cut = np.linalg.norm(total - best_b[:, :rank] @ best_a[:rank])
        np.testing.assert_allclose(cut, np.linalg.norm(lengths[rank:]), rtol=1e-10)
    assert best_factors(weights, a, 0 * b) is None
    # Large singular values in both factors: the same product, and equal lengths.
    assert (lengths[:3] > 1).any()
    both_a, both_b = best_factors(weights, a, b, "both")
    np.testing.assert_allclose(both_b @ both_a, best_b @ best_a, atol=1e-12)
    expected = np.maximum(1, np.sqrt(lengths[:3]))
    np.testing.assert_allclose(np.linalg.norm(both_a, axis=1), expected, rtol=1e-12)
    np.testing.assert_allclose(
        np.linalg.norm(both_b, axis=0), lengths[:3] / expected, rtol=1e-12
    )


def test_at_full_rank_the_network_is_the_mean_of_the_clients_networks(monkeypatch):
    """What averages of the factors do not give; by samples, of which clients have
    different numbers.
    """
    network, federation = lora(mlp(5), rank=4), clients(CLIENTS)
    far = replace(PLAIN, lr=0.5)
    method = FlexLoRA(sgd=far, ranks=(4,))
    done, sent = sent_in(monkeypatch, method, federation, network, 2)
    sizes = federation.train.sizes[np.argsort(federation.ids)]
    assert len(set(sizes.tolist())) > 1
    networks = np.stack([whole(done, theta) for theta in sent[-1]])
    expected = sizes / sizes.sum() @ networks
    found = whole(done, done.training.server.model[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    averaged = whole(done, sizes / sizes.sum() @ sent[-1])
    assert np.abs(averaged - expected).max() > 1e-4


def test_a_single_client_gets_its_own_product_back(monkeypatch):
    """At a rank below the full one, which no approximation is needed for."""
    method = FlexLoRA(sgd=PLAIN, ranks=(2,))
    done, sent = sent_in(monkeypatch, method, clients(1), lora(mlp(5), rank=3), 2)
    found = done.training.server.model[0]
    np.testing.assert_allclose(
        whole(done, found), whole(done, sent[-1][0]), rtol=0, atol=1e-6
    )
    assert np.abs(np.asarray(found) - sent[-1][0]).max() > 1e-2  # other factors


def test_what_is_beyond_a_clients_rank_stays_zero_in_its_training(monkeypatch):
    """With momentum, weight decay and Adam; and a message has the size of all ranks."""
    sgd = SGD(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=2, batch_size=8)
    for trained in (sgd, SGD(optimizer=optax.adam(0.01), epochs=2, batch_size=8)):
        method = FlexLoRA(sgd=trained, ranks=(1, 3))
        network = lora(mlp(5), rank=3)
        done, sent = sent_in(monkeypatch, method, clients(CLIENTS), network, 2)
        for adapter in adapters_of(done.model):
            assert not sent[-1][::2][:, adapter.a[1:]].any()
            assert not sent[-1][::2][:, adapter.b[:, 1:]].any()
            assert sent[-1][1::2][:, adapter.b].all(axis=0).any()
        assert done.summary().bytes_up == CLIENTS * 2 * 4 * done.model.size


def test_the_order_of_the_clients_changes_nothing():
    """Ranks belong to names, and products do not depend on the order of their terms."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 6, 3))
    weights, order = rng.dirichlet(np.ones(5)), rng.permutation(5)
    one = best_factors(weights, a, b)
    other = best_factors(weights[order], a[order], b[order])
    np.testing.assert_allclose(other[1] @ other[0], one[1] @ one[0], atol=1e-10)
    federation = clients(CLIENTS)
    method = FlexLoRA(sgd=PLAIN, ranks=(1, 3), named=(f"{federation.names[0]}=2",))
    found = [
        run(method, given, lora(mlp(5), rank=3), 2).training.server.model
        for given in (federation, federation.only(federation.names[::-1]))
    ]
    np.testing.assert_array_equal(found[0], found[1])


def ranks_of(method, count):
    """Name -> rank, for as many clients."""
    federation = clients(count)
    done = run(method, federation, lora(mlp(5), rank=4), 1)
    first = adapters_of(done.model)[0]
    return {
        name: int(np.abs(done.personal(name).theta[first.a]).any(axis=1).sum())
        for name in federation.names
    }


def test_ranks_by_shares_and_by_name():
    method = FlexLoRA(sgd=PLAIN, ranks=(1, 2, 4), shares=(0.5, 0.3, 0.2))
    found = ranks_of(method, 10)
    counts = [list(found.values()).count(rank) for rank in (1, 2, 4)]
    assert counts == [5, 3, 2]
    one, other = list(found)[:2]
    named = FlexLoRA(sgd=PLAIN, named=(f"{one}=3", f"{other}=1"))
    assert list(ranks_of(named, 4).values()) == [3, 1, 4, 4]


def test_clients_stay_in_their_rank_and_newcomers_get_the_largest():
    method = FlexLoRA(sgd=TRAINED, ranks=(1, 3))
    done = run(method, clients(CLIENTS), lora(mlp(5), rank=4), 3)
    names = np.asarray(done.federation.names)[np.argsort(done.federation.ids)]
    models = np.stack([done.personal(name).theta for name in names])
    for adapter in adapters_of(done.model):
        for index, model in enumerate(models):
            rank = (1, 3)[index % 2]
            used = np.abs(model[adapter.a]).max(axis=1) > 0
            assert used.tolist() == [row < rank for row in range(len(used))]
            assert not model[adapter.b][:, rank:].any() and model[adapter.b].any()
    # A model of rank 1 is the first singular vector of that of rank 3.
    low, high = done.training.server.model
    for adapter in adapters_of(done.model):
        np.testing.assert_array_equal(low[adapter.a][:1], high[adapter.a][:1])


def test_without_adapters_it_is_fedavg_to_the_bit():
    model, data = softmax_model("float32"), classification()
    found = train(FlexLoRA(sgd=TRAINED), data, model, 3)
    expected = train(FedAvg(sgd=TRAINED), data, model, 3)
    np.testing.assert_array_equal(found.server.model, expected.server.model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": (1, 2), "shares": (1.0,)}, "there are 1 shares and 2 ranks; give"),
        ({"ranks": (1, 2), "shares": (0.5, 0.6)}, "they must be 0 or more, and add up"),
        ({"named": ("a",)}, "named holds 'a'; write NAME=RANK with a rank of 1 or"),
        ({"named": ("a=0",)}, "named holds 'a=0'; write NAME=RANK"),
        ({"named": ("a=1", "a=2")}, "named gives two ranks to 'a'; give it one"),
        ({"named": ("a=1",)}, "named gives a rank to 'a', and no client that trains"),
        ({"ranks": (6,)}, "a client has the rank 6, and the full rank of the largest"),
    ],
)
def test_wrong_settings_end_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        run(FlexLoRA(**settings), clients(CLIENTS), lora(mlp(5), rank=9), 1)


@pytest.mark.parametrize(
    ("ranks", "network", "message"),
    [
        ((0, 2), lora(mlp(5), rank=2), r"ranks are \(0, 2\); each must be 1 or more"),
        ((2,), mlp(5), "ranks are those of low-rank adapters, and the model has none"),
        (
            (3,),
            lora(mlp(5), rank=2),
            "a client has the rank 3 and the model's adapters",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(ranks, network, message):
    with pytest.raises(ValueError, match=message):
        run(FlexLoRA(ranks=ranks), clients(CLIENTS), network, 1)
