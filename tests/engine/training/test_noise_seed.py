"""Noise does not come off: private runs of one seed that differ in anything draw
independent noise, and equal runs draw the same.
"""

from dataclasses import replace

import numpy as np
import optax
import pytest

from fedtailor.aggregation.pipelines import Clip, GaussianNoise, Quantize
from fedtailor.aggregation.pipelines.gaussian_noise import AdaptiveClipNorm
from fedtailor.algorithms import Ditto, FedAvg, FedProx
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD
from fedtailor.testing import classification, softmax_model

CLIENTS = 20
BOUND = 1e-3  # so small that all changes and gradients are clipped
STEP = SGD(lr=1.0, steps=1, batch_size=64)
PRIVATE = replace(STEP, dp_noise=4.0, dp_norm=BOUND)
AVERAGE = FedAvg(sgd=STEP, weights="uniform")
NOISE = GaussianNoise(multiplier=4.0, norm=BOUND, delta=0.01)


def begun(algorithm=AVERAGE, *uplink, clients=None, **options):
    return simulate(
        algorithm,
        classification(CLIENTS, sizes=[12] * CLIENTS) if clients is None else clients,
        softmax_model("float32"),
        uplink=uplink,
        **options,
    )


def released(training):
    """How far the first round moves the server's model."""
    before = np.asarray(training.initial(0), float)
    training.advance()
    return np.asarray(training.server.model[0], float) - before


def with_noise(kind, multiplier):
    """How far private FedAvg moves in a round, with one of the kinds of noise."""
    if kind == "steps":
        return begun(FedAvg(sgd=replace(PRIVATE, dp_noise=multiplier)))
    settings = {
        "server": {},
        "client": {"by": "client"},
        "adaptive": {"quantile": 0.5, "norm_rate": 1e-6},
    }
    return begun(AVERAGE, replace(NOISE, multiplier=multiplier, **settings[kind]))


@pytest.mark.parametrize("kind", ["server", "client", "adaptive", "steps"])
def test_noise_of_two_strengths_does_not_cancel(kind):
    """With one noise in both, ratio x g(z) - g(2 z) would be the mean without it."""
    clean, weak, strong = (
        released(with_noise(kind, multiplier)) for multiplier in (1e-6, 0.5, 1.0)
    )
    adaptive = AdaptiveClipNorm(0.5, 1e-6, CLIENTS)
    z = [0.5, 1.0]
    if kind == "adaptive":
        z = [adaptive.change_multiplier(multiplier) for multiplier in z]
    # The deviation of the mean's noise for z = 1
    unit = {"client": CLIENTS**-0.5, "steps": CLIENTS**-0.5 / 12}.get(kind, 1 / CLIENTS)
    ratio = z[1] / z[0]
    left = ratio * weak - strong - (ratio - 1) * clean
    assert 0.5 < left.std() / (2**0.5 * z[1] * unit * BOUND) < 2


DIFFERENT = {
    "nothing": begun,
    "rate": lambda noise: begun(replace(AVERAGE, sgd=replace(STEP, lr=0.5)), noise),
    "method": lambda noise: begun(FedProx(sgd=STEP, weights="uniform"), noise),
    "optimizer": lambda noise: begun(
        replace(AVERAGE, sgd=replace(STEP, optimizer=optax.sgd(0.5))), noise
    ),
    "its rate": lambda noise: begun(
        replace(AVERAGE, sgd=replace(STEP, optimizer=optax.sgd(0.6))), noise
    ),
    "bound before": lambda noise: begun(AVERAGE, Clip(2 * BOUND), noise),
    "rounding after": lambda noise: begun(AVERAGE, noise, Quantize()),
    "norm": lambda noise: begun(AVERAGE, replace(noise, norm=2 * BOUND)),
    "participation": lambda noise: begun(
        AVERAGE, noise, participation=Participation(0.9, sampling="poisson")
    ),
    "one client less": lambda noise: begun(
        AVERAGE, noise, clients=classification(CLIENTS - 1, sizes=[12] * (CLIENTS - 1))
    ),
    "one cell": lambda noise: begun(AVERAGE, noise, clients=with_another_cell()),
    "seed": lambda noise: begun(AVERAGE, noise, seed=1),
}


def with_another_cell():
    clients = classification(CLIENTS, sizes=[12] * CLIENTS)
    x = np.array(clients.x)
    x[clients.train[0][0]] += 1.0
    return replace(clients, x=x)


def test_whatever_differs_between_two_runs_has_noise_of_its_own():
    """Even one cell: two releases with one noise would differ by what it changed."""
    drawn = {}
    for what, build in DIFFERENT.items():
        training = build(NOISE) if what != "nothing" else begun(AVERAGE, NOISE)
        everybody = np.ones(len(training.population), bool)
        drawn[what] = training.round_cohort(everybody).rng("gaussian noise").random()
    assert len(set(drawn.values())) == len(DIFFERENT)


def test_a_cell_or_a_client_is_not_the_difference_of_two_runs():
    """End to end: the runs that an attacker compares have noise of deviation z C / c."""
    deviation = 4 * BOUND / CLIENTS
    for other in ("one cell", "one client less"):
        left = released(begun(AVERAGE, NOISE)) - released(DIFFERENT[other](NOISE))
        assert 0.5 < left.std() / (2**0.5 * deviation) < 2
    both = [
        released(begun(FedAvg(sgd=PRIVATE), clients=clients))
        for clients in (None, with_another_cell())
    ]
    deviation = 4 * BOUND / 12 / CLIENTS**0.5
    assert 0.5 < (both[0] - both[1]).std() / (2**0.5 * deviation) < 2


def test_the_server_draws_for_those_who_report():
    """A round done again with others would else show the difference of both sums."""
    training = begun(AVERAGE, NOISE)
    moves = []
    for absent in (0, 1):
        reporting = np.arange(CLIENTS) != absent
        exchange = next(training.next_round(reporting))
        answers = training.executor.exchange(exchange)
        downlink = training.algorithm.broadcast(training.server, exchange.cohort)
        server, _ = training._aggregate(downlink, exchange, answers)
        moves.append(np.asarray(server.model[0], float))
    deviation = 4 * BOUND / CLIENTS
    assert 0.5 < (moves[0] - moves[1]).std() / (2**0.5 * deviation) < 2


@pytest.mark.as_shipped
@pytest.mark.parametrize("algorithm", [FedAvg(sgd=PRIVATE), Ditto(sgd=PRIVATE)])
def test_equal_runs_are_equal_to_the_bit(algorithm):
    first, second = begun(algorithm), begun(algorithm)
    for training in (first, second):
        training.advance()
        training.advance()
    np.testing.assert_array_equal(first.server.model, second.server.model)


def test_runs_without_a_promise_draw_as_their_seed_says():
    """Methods that are equal on paper stay equal to the bit."""
    assert begun(AVERAGE)._secret == begun(Ditto(sgd=STEP), Clip(1.0))._secret == 0
