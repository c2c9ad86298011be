"""Which methods may train privately, and which may have noise on their updates: traced,
not trained.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

from fedtailor.algorithms import FedAvg, FineTune
from fedtailor.models import mlp
from fedtailor.pipelines import GaussianNoise
from fedtailor.protocol import SGD, Algorithm, init_pipeline
from fedtailor.remote.wire import answer_shapes
from fedtailor.runs import simulate
from fedtailor.testing import classification
from fedtailor.training.privacy import needs_only_mean

AVERAGING = {
    "apfl",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedala",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedper",
    "fedprox",
    "fedrep",
    "fedrod",
    "fedyogi",
    "finetune",
    "knn-per",
    "lg-fedavg",
    "mapper",
    "moon",
    "mr-mtl",
    "per-fedavg",
}
"""Whose server makes nothing but a mean of models."""
ONLY_TRAIN = {
    "cfl",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedamp",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "feddyn",
    "fedper",
    "fedprox",
    "fedrep",
    "fedyogi",
    "finetune",
    "knn-per",
    "l2gd",
    "lg-fedavg",
    "local",
    "mr-mtl",
    "oracle",
    "pfedhn",
    "scaffold",
    "self-fl",
}
"""Whose clients look at their examples in `LocalTrainer.sgd` only."""
PROBING = {"feddbe", "pacfl", "ucfl", "ucfl-parallel"}
HANDING_OUT_EXAMPLES = {"dapper"}
MORE_IS_SENT = {"afl", "fedfomo", "hypcluster", "ifca", "scaffold", "self-fl"}


def first_messages(algorithm, **options):
    """The kinds of message in a first round."""
    clients = classification(12, sizes=[12] * 12, groups=np.arange(12) % 2)
    training = simulate(algorithm, clients, mlp(5), **options)
    exchange, theta = next(training.next_round()), training.initial(0)
    state = (
        training.algorithm.init_state(theta, training.model),
        init_pipeline(training.uplink, theta),
    )
    state = () if exchange.task == "probe" else state
    return set(
        answer_shapes(
            exchange,
            training.algorithm,
            state,
            training.model,
            training.executor.devices.pool,
        )["update"]
    )


def allowed(algorithm, **options):
    try:
        return bool(first_messages(algorithm, **options) | {"nothing"})
    except ValueError as refused:
        assert "\n" not in str(refused)
        return False


def private(algorithm):
    """The method with private steps wherever it trains."""
    trained = {
        field.name: getattr(algorithm, field.name) for field in fields(algorithm)
    }
    private = {"dp_noise": 1.0, "dp_norm": 1.0, "batch_size": 8}
    return replace(
        algorithm,
        **{k: replace(v, **private) for k, v in trained.items() if isinstance(v, SGD)},
    )


@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_who_may_promise_what(name):
    algorithm = Algorithm.registry[name]()
    weighs = {"weights": "uniform"} if hasattr(algorithm, "weights") else {}
    on_mean = allowed(replace(algorithm, **weighs), uplink=(GaussianNoise(delta=0.01),))
    by_client = allowed(algorithm, uplink=(GaussianNoise(delta=0.01, by="client"),))
    assert on_mean == (name in AVERAGING)
    assert by_client == (name not in PROBING | MORE_IS_SENT | HANDING_OUT_EXAMPLES)
    assert allowed(private(algorithm)) == (name in ONLY_TRAIN)


@pytest.mark.parametrize("kind", [FedAvg, FineTune])
def test_a_server_of_ones_own_promises_nothing(kind):
    class Mine(kind):
        def server(self, server, downlink, answers, cohort):
            return super().server(server, downlink, answers, cohort)

    assert needs_only_mean(kind()) and not needs_only_mean(Mine())


def test_the_best_round_is_sought_by_more_than_a_mean():
    assert not needs_only_mean(FineTune(best=True))
