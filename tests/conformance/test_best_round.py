"""FineTune and DAPPER from the model of the best round by validation, not from the last
one.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    softmax_model,
    train,
)
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms import DAPPER, FedAvg, FineTune
from fedtailor.data.federation import Ragged
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD
from fedtailor.testing import CHECKS

ROUGH = SGD(lr=1.5, epochs=2, batch_size=8)
"""So large a rate that validation losses rise and fall."""
NOTHING = SGD(steps=0)
BEST = {
    "finetune": FineTune(sgd=ROUGH, tune=NOTHING, best=True),
    "dapper": DAPPER(
        sgd=ROUGH,
        tune=NOTHING,
        best=True,
        cover=(1.0,),
        optimizer=ServerOptimizer(),
        source="proxy",
        proxy=lambda rng, count: (np.zeros((count, 4)), np.zeros(count, int)),
    ),
}


@pytest.mark.parametrize("name", BEST)
def test_the_served_model_is_that_of_the_least_validation_loss_of_reporters(name):
    rounds, sampled = 6, Participation(count=3)
    with float64():
        federation, model = classification(), softmax_model()
        plain = train(FedAvg(sgd=ROUGH), federation, model, 0, participation=sampled)
        place = plain.population.original_index
        found = []
        for _ in range(rounds):
            theta, samples, total = plain.server.model[0], 0, 0.0
            report = sampled.sample(plain.population.ids, 0, plain.round)
            for client in place[report]:
                x, y = map(jnp.asarray, federation.client(client).val)
                total += float(
                    model.losses(model.logits(model.params(theta), x), y).sum()
                )
                samples += len(y)
            found.append((total / samples, np.asarray(theta)))
            plain.advance()
        best = min(range(rounds), key=lambda k: found[k][0])
        assert 0 < best < rounds - 1
        training = train(BEST[name], federation, model, rounds, participation=sampled)
        np.testing.assert_allclose(training.server.model, plain.server.model, **EXACT)
        np.testing.assert_allclose(training.server.loss, found[best][0], **EXACT)
        np.testing.assert_allclose(
            personal(training), np.tile(found[best][1], (5, 1)), **EXACT
        )
        np.testing.assert_allclose(
            training.algorithm.global_model(training.server), found[best][1], **EXACT
        )


@pytest.mark.parametrize("name", BEST)
def test_without_validation_samples_it_is_the_last_one(name):
    with float64():
        federation = replace(classification(), val=Ragged.empty(5))
        training = train(BEST[name], federation, softmax_model(), 2)
        np.testing.assert_array_equal(
            personal(training), np.tile(training.server.model, (5, 1))
        )


@pytest.mark.parametrize("check", ["empty round", "resume"])
def test_an_empty_round_and_a_resumed_run(check):
    CHECKS[check](BEST["finetune"])


def test_best_is_of_one_model():
    with pytest.raises(ValueError, match="best is of a single common model"):
        DAPPER(best=True, clusters=2)
