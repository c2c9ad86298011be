"""FedBN: what differs between clients, statistics that stay, resumed runs."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.normal import Normal, normal
from conformance.problems import EXACT, classification, float64, personal, predictors, softmax_model, train
from fedtailor.algorithms import FedAvg, FedBN
from fedtailor.protocol import SGD, hyperparameters
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS

TRAINED = SGD(lr=0.1, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])


def test_without_normalisation_layers_it_is_fedavg():
    with float64():
        federation = classification(unseen=UNSEEN)
        ours, expected = (predictors(train(it(sgd=TRAINED), federation, softmax_model(), 3)) for it in (FedBN, FedAvg))
        np.testing.assert_array_equal(ours, expected)


@hyperparameters
class ByName(FedBN):
    """Looks for layers with "bn" in their names, of which there are none."""

    def own_part(self, parts):
        return "nothing"


@hyperparameters
class AffineOnly(FedBN):
    """Averages running statistics."""

    def own_part(self, parts):
        return "layers.1.scale,layers.1.bias"


@pytest.mark.parametrize("mutant", [ByName, AffineOnly])
def test_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_what_differs(mutant)


def test_clients_differ_in_normalisation_layers_only():
    check_what_differs(FedBN)


def check_what_differs(kind):
    with float64():
        model = normal()
        found = personal(train(kind(sgd=TRAINED), classification(), model, 3))
        norm = model.part("norm")
        rest = norm.complement.take(found)
        np.testing.assert_array_equal(rest, np.tile(rest[:1], (5, 1)))
        own, statistics = norm.take(found), model.statistics.take(found)
        for one in range(1, 5):
            assert (own[one] != own[0]).all() and (statistics[one] != statistics[0]).all()


def test_one_client_is_fedavg():
    """What a client keeps is what it trained, statistics included."""
    with float64():
        alone = classification(clients=1)
        ours, expected = (personal(train(it(sgd=TRAINED), alone, normal(), 3)) for it in (FedBN, FedAvg))
        np.testing.assert_allclose(ours, expected, **EXACT)


def test_a_newcomer_takes_statistics_from_its_data_and_initial_scales_and_offsets():
    with float64():
        model, federation = normal(), classification(unseen=UNSEEN)
        algorithm = FedBN(sgd=SGD(lr=0.1, epochs=2, batch_size=64))
        training = train(algorithm, federation, model, 2)
        found = predictors(training)[0][1]
        shared = np.asarray(training.server.model[0])
        x, _ = federation.client(1).train
        renewed = model.train_outputs(model.params(jnp.asarray(shared)), jnp.asarray(x), jnp.ones(len(x)))[1]
        np.testing.assert_allclose(found, model.vector(renewed), **EXACT)
        assert (model.statistics.take(found) != model.statistics.take(shared)).all()
        affine = model.part("norm").mask & ~model.statistics.mask
        np.testing.assert_array_equal(found[affine], np.asarray(training.initial(0))[affine])


def test_a_resumed_run_is_the_same(tmp_path: Path):
    federation, model = classification(), Normal().bind((4,), 3)

    def measured(directory, rounds, resume=False):
        run(FedBN(sgd=TRAINED), federation, model, rounds, directory=directory, checkpoint_every=2, resume=resume)
        return [(directory / file).read_bytes() for file in (METRICS, LEDGER)]

    whole = measured(tmp_path / "whole", 4)
    measured(tmp_path / "parts", 2)
    assert measured(tmp_path / "parts", 4, resume=True) == whole


def test_evaluation_uses_a_clients_own_statistics():
    with float64():
        model, federation = normal(), classification()
        training = train(FedBN(sgd=TRAINED), federation, model, 2)
        training.evaluate()
        losses = training.metrics.values("loss")
        for i, theta in enumerate(jnp.asarray(personal(training))):
            x, y = map(jnp.asarray, federation.client(i).test)
            expected = model.losses(model.logits(model.params(theta), x), y).mean()
            assert losses[i] == pytest.approx(float(expected), rel=1e-10)
