"""How well members are told from others on digits, with noise and without: what a
promise of privacy is about.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

from fedtailor.aggregation.pipelines import GaussianNoise
from fedtailor.algorithms import FedAvg, Local
from fedtailor.engine.runs import simulate
from fedtailor.lab.scenarios import digits_label_shift
from fedtailor.models import logistic
from fedtailor.protocol import SGD, decode


def interval(values):
    """Mean, and the 95 % interval of a mean of independent values."""
    half = 1.96 * np.std(values, ddof=1) / len(values) ** 0.5
    return np.mean(values), np.mean(values) - half, np.mean(values) + half


def attacks_on_examples(sgd):
    """For every client, how well its own model's losses tell its training rows from its
    test rows (AUC).
    """
    federation = digits_label_shift(0, clients=40, test=0.5)
    training = simulate(Local(sgd=sgd), federation, logistic())
    training.advance()
    model, x = training.model, (federation.x - federation.shift) * federation.scale
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(federation.y, jnp.int32)
    of_model = jax.jit(
        jax.vmap(lambda theta: model.losses(model.logits(model.params(theta), x), y))
    )
    losses = np.asarray(of_model(training.executor.client_states["model"]))
    found = []
    for client, of_client in zip(
        training.executor.seen.original_index, losses, strict=True
    ):
        members, others = federation.train[client], federation.test[client]
        member = np.repeat([1, 0], [len(members), len(others)])
        found.append(
            roc_auc_score(member, -of_client[np.concatenate([members, others])])
        )
    return np.array(found)


def test_private_steps_hide_examples():
    sgd = SGD(lr=0.5, steps=60, batch_size=16)
    plain, private = (
        attacks_on_examples(sgd),
        attacks_on_examples(replace(sgd, dp_noise=25.0, dp_norm=1.0)),
    )
    print("examples", interval(plain), interval(private), interval(plain - private))
    assert interval(plain)[1] > 0.6 > interval(private)[2]
    assert interval(plain - private)[1] > 0


def attacks_on_clients(multiplier, rounds=16):
    """For many draws of half of the clients, how well what the server's model moved
    along a client's own change tells who was drawn (AUC)."""
    noise = GaussianNoise(multiplier=multiplier, norm=0.1, delta=0.01)
    sgd = SGD(lr=0.1, epochs=2)
    training = simulate(
        FedAvg(sgd=sgd, weights="uniform"),
        digits_label_shift(0, clients=20),
        logistic(),
        uplink=(noise,),
    )
    exchange = next(training.next_round())
    answers = training.executor.exchange(exchange)
    start = np.asarray(training.server.model[0])
    changes = answers.host("model") - start
    found = []
    for round in range(rounds):
        drawn = np.random.default_rng([round, 1]).random(20) < 0.5
        cohort = replace(exchange.cohort, reporting=drawn, round=round)
        update, _ = decode(
            training.uplink,
            answers.update,
            exchange.downlink,
            cohort,
            training.uplink_state,
        )
        server = training.algorithm.server(
            training.server, exchange.downlink, replace(answers, update=update), cohort
        )
        moved = np.asarray(server.model[0]) - start
        found.append(
            roc_auc_score(
                drawn, changes @ moved - 0.5 * np.square(changes).sum(axis=1) / 10
            )
        )
    return np.array(found)


def test_noise_on_the_mean_hides_clients():
    almost_open, noisy = attacks_on_clients(1e-6), attacks_on_clients(2.0)
    print(
        "clients", interval(almost_open), interval(noisy), interval(almost_open - noisy)
    )
    assert interval(almost_open)[1] > 0.7
    assert interval(almost_open - noisy)[1] > 0
