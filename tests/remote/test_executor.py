"""The same methods over messages: every request and answer goes through bytes, and the models are the simulation's."""

import jax
import numpy as np
import pytest

from conformance.examples import example
from fedtailor.algorithms import DAPPER
from fedtailor.algorithms.dapper import sampler
from fedtailor.protocol import Algorithm
from fedtailor.runs import simulate
from fedtailor.executors import Settings
from fedtailor.testing.conformance import SAMPLED, participation_of
from fedtailor.testing.problems import classification, predictors, softmax_model
from fedtailor.training import Participation
from remote.federations import Remote

GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
ONE_MACHINE = Settings(devices=1, canonical=True)


def federation():
    return classification(groups=GROUPS, unseen=UNSEEN)


def method(name):
    """The method as the suite runs it; DAPPER with public examples, as its server has no others."""
    if name == "dapper":
        rng = np.random.default_rng(3)
        data = federation()
        return DAPPER(
            sgd=example(name).sgd, tune=example(name).tune, source="proxy",
            proxy=sampler(rng.normal(size=(20, 4)).astype(data.x.dtype), rng.integers(0, 3, 20).astype(data.y.dtype)),
        )  # fmt: skip
    return example(name)


def simulated(algorithm, clients, rounds, **options):
    training = simulate(algorithm, clients, softmax_model("float32"), settings=ONE_MACHINE, **options)
    for _ in range(rounds):
        training.advance()
    return training


def assert_close(ours, expected, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_methods_give_the_models_of_the_simulation(name, tmp_path):
    algorithm, clients = method(name), federation()
    participation = participation_of(algorithm)
    ours = Remote(algorithm, clients, softmax_model("float32"), tmp_path, participation=participation)
    training = ours.training()
    for _ in range(3):
        training.advance()
    training.evaluate()
    expected = simulated(algorithm, clients, 3, participation=participation)
    expected.evaluate()
    assert_close(training.server, expected.server)
    wanted = predictors(expected)
    assert np.isfinite(wanted[0]).all()
    personal = ours.personal(training)
    for place, client in enumerate(clients.names):
        assert_close(personal[client], [leaf[place] for leaf in wanted])
    for metric in ("loss", "accuracy"):
        for unseen in (False, True):
            mine = training.metrics.values(metric, unseen=unseen)
            assert len(mine) == (1 if unseen else 4)
            np.testing.assert_allclose(mine, expected.metrics.values(metric, unseen=unseen), rtol=1e-4)
    assert training.ledger.totals() == expected.ledger.totals()
    assert ours.lines == []
