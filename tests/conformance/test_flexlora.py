"""FlexLoRA: products of adapters are averaged, and each client gets the best of its rank."""

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import classification, softmax_model, train
from fedtailor.algorithms import FedAvg, FlexLoRA
from fedtailor.algorithms.flexlora import best_factors
from fedtailor.models import lora, merged, mlp
from fedtailor.models.low_rank import adapters_of
from fedtailor.runs import run
from fedtailor.testing import classification as clients

CLIENTS = 4


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


def test_at_full_rank_the_network_is_the_mean_of_the_clients_networks(monkeypatch):
    """What averages of the factors do not give."""
    network, federation = lora(mlp(5), rank=5), clients(CLIENTS)
    away = {}
    for kind in (FlexLoRA, FedAvg):
        method = kind(sgd=PLAIN, weights="uniform")
        sent, original = [], kind.server

        def server(self, server, downlink, answers, cohort, sent=sent, do=original):
            sent.append(np.asarray(answers.reporters("model")))
            return do(self, server, downlink, answers, cohort)

        monkeypatch.setattr(kind, "server", server)
        done = run(method, federation, network, 2)
        networks = [merged(done.model, jnp.asarray(each))[1] for each in sent[-1]]
        found = merged(done.model, done.training.server.model[0])[1]
        away[method.about.name] = np.abs(found - np.mean(networks, axis=0)).max()
    assert away["flexlora"] < 1e-6 < 1e-4 < away["fedavg"]


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
