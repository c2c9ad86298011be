"""Which methods may train privately, and which may have noise on their updates: traced,
not trained.
"""

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.examples import without_adapters
from fedtailor.aggregation.pipelines import GaussianNoise
from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.algorithms import FedAvg, FineTune
from fedtailor.engine.runs import simulate
from fedtailor.models import mlp
from fedtailor.protocol import (
    SGD,
    Algorithm,
    Downlink,
    Noise,
    Streams,
    Transform,
    hyperparameters,
    init_pipeline,
    noise_of,
)
from fedtailor.remote.wire.wire import answer_shapes
from fedtailor.testing import classification

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
    "feddpa",
    "fedlc",
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
    "feddpa",
    "feddyn",
    "fedex-lora",
    "fedmd",
    "fedper",
    "fedprox",
    "fedrep",
    "fedyogi",
    "finetune",
    "flexlora",
    "heterofl",
    "hetlora",
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
MORE_IS_SENT = {
    "afl",
    "ccvr",
    "fedas",
    "fedcp",
    "fedfew",
    "fedfomo",
    "fedgh",
    "fedmd",
    "fedpac",
    "fedproto",
    "fedtgp",
    "gpfl",
    "hetlora",
    "hypcluster",
    "ifca",
    "scaffold",
    "self-fl",
}
FEATURES = {"fedpac", "ccvr", "fedgh", "fedproto", "fedtgp"}
"""Whose clients send mean features, which private steps do not cover."""


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
    algorithm = without_adapters(Algorithm.registry[name]())
    weighs = {"weights": "uniform"} if hasattr(algorithm, "weights") else {}
    on_mean = allowed(replace(algorithm, **weighs), uplink=(GaussianNoise(delta=0.01),))
    by_client = allowed(algorithm, uplink=(GaussianNoise(delta=0.01, by="client"),))
    assert on_mean == (name in AVERAGING)
    assert by_client == (name not in PROBING | MORE_IS_SENT | HANDING_OUT_EXAMPLES)
    if name in FEATURES:
        with pytest.raises(ValueError, match="private steps do not cover"):
            private(algorithm)
        return
    assert allowed(private(algorithm)) == (name in ONLY_TRAIN)


@pytest.mark.parametrize("kind", [FedAvg, FineTune])
def test_a_server_of_ones_own_promises_nothing(kind):
    class Mine(kind):
        def server(self, server, downlink, answers, cohort):
            return super().server(server, downlink, answers, cohort)

    assert kind().server_only_averages and kind().server_sees == "sums"
    assert not Mine().server_only_averages and Mine().server_sees == "models"


def test_a_method_of_ones_own_says_what_its_server_needs():
    """It can then be private, and summed behind masks."""

    class Mine(FedAvg):
        about = replace(FedAvg.about, name="mine-says")
        server_only_averages = True

        def server(self, server, downlink, answers, cohort):
            return super().server(server, downlink, answers, cohort)

    class Heir(Mine):
        about = replace(FedAvg.about, name="heir-of-mine")

    try:
        for method in (Mine(), Heir()):
            assert method.server_only_averages and method.server_sees == "sums"
            assert allowed(method, uplink=(GaussianNoise(delta=0.01),)) == (
                method.weights == "uniform"
            )
            SecureSums().check(method, ())
    finally:
        del Algorithm.registry["mine-says"], Algorithm.registry["heir-of-mine"]


def test_the_best_round_is_sought_by_more_than_a_mean():
    assert not FineTune(best=True).server_only_averages


def test_noise_of_two_transforms_is_refused():
    class Noisy(Transform):
        noise = Noise("client", 1.0, 1e-5)

    with pytest.raises(ValueError, match="2 transforms add noise"):
        noise_of((GaussianNoise(by="client"), Noisy()))
    assert noise_of((Noisy(),), by="server") is None


@pytest.mark.parametrize("name", sorted(AVERAGING | {"fedem", "cfl", "fedamp"}))
def test_what_a_client_sends_stays_within_the_clip_norm_of_what_it_was_sent(name):
    """Whatever its data: the reference of its change is a function of the downlink.
    Long steps take the models of a mixture, which lie close together, past each other.
    """
    algorithm = with_long_steps(without_adapters(Algorithm.registry[name]()))
    noise = GaussianNoise(delta=0.01, by="client", multiplier=1e-6, norm=0.01)
    clients = classification(12, sizes=[12] * 12, groups=np.arange(12) % 2)
    training = simulate(algorithm, clients, mlp(5), uplink=(noise,))
    if name == "fedem":
        close = training.initial(0) + jnp.arange(3)[:, None] * 0.01
        training.server = training.server.replace(model=close)
    exchange = next(training.next_round())
    answers = training.executor.exchange(exchange)
    (kind,) = answers.update
    sent, start = answers.host(kind).astype(float), np.zeros(1)
    if kind == "model":
        streams = exchange.downlink.streams["model"]
        start = np.asarray(streams.values, float)[streams.recipients]
        start = start.reshape(sent.shape)
    lengths = np.linalg.norm((sent - start).reshape(len(sent), -1), axis=1)
    assert 0.005 < lengths.max() < 0.01 * (1 + 1e-3)


def with_long_steps(algorithm):
    long = {"lr": 1.0, "epochs": 3}
    trained = {
        field.name: replace(getattr(algorithm, field.name), **long)
        for field in fields(algorithm)
        if isinstance(getattr(algorithm, field.name), SGD)
    }
    return replace(algorithm, **trained)


@hyperparameters
class Choosing(FedAvg):
    """Its clients are sent two models and send the better one."""

    def broadcast(self, server, cohort):
        both = jnp.stack([server.model[0], 9 + server.model[0]])
        return Downlink({"model": Streams.all_to_all(both, len(cohort))})

    def client(self, state, inbox, local):
        losses = jnp.stack([local.loss(m) for m in inbox["model"]])
        return state, {"model": inbox["model"][losses.argmin()]}


def test_a_model_chosen_among_several_has_no_fixed_reference():
    """Which one is nearest depends on the client's data: the choice would show."""
    noise = GaussianNoise(delta=0.01, by="client")
    clients = classification(12, sizes=[12] * 12)
    with pytest.raises(ValueError, match="sent 2 models and send one of another shape"):
        simulate(Choosing(), clients, mlp(5), uplink=(noise,)).advance()
