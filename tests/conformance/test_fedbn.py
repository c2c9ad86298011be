"""FedBN: what differs between clients, statistics that stay, resumed runs."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.normal import Normal, normal
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedBN
from fedtailor.engine.runs import run
from fedtailor.engine.storage.run_files import LEDGER, METRICS
from fedtailor.protocol import SGD, hyperparameters

TRAINED = SGD(lr=0.1, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])


def test_without_normalisation_layers_it_is_fedavg():
    with float64():
        federation = classification(unseen=UNSEEN)
        ours, expected = (
            predictors(train(it(sgd=TRAINED), federation, softmax_model(), 3))
            for it in (FedBN, FedAvg)
        )
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
            assert (own[one] != own[0]).all() and (
                statistics[one] != statistics[0]
            ).all()


def test_one_client_is_fedavg():
    """What a client keeps is what it trained, statistics included."""
    with float64():
        alone = classification(clients=1)
        ours, expected = (
            personal(train(it(sgd=TRAINED), alone, normal(), 3))
            for it in (FedBN, FedAvg)
        )
        np.testing.assert_allclose(ours, expected, **EXACT)


def test_a_newcomer_takes_statistics_from_its_data_and_initial_scales_and_offsets():
    with float64():
        model, federation = normal(), classification(unseen=UNSEEN)
        algorithm = FedBN(sgd=SGD(lr=0.1, epochs=2, batch_size=64))
        training = train(algorithm, federation, model, 2)
        found = predictors(training)[0][1]
        shared = np.asarray(training.server.model[0])
        x, _ = federation.client(1).train
        renewed = model.train_outputs(
            model.params(jnp.asarray(shared)), jnp.asarray(x), jnp.ones(len(x))
        )[1]
        np.testing.assert_allclose(found, model.vector(renewed), **EXACT)
        assert (model.statistics.take(found) != model.statistics.take(shared)).all()
        affine = model.part("norm").mask & ~model.statistics.mask
        np.testing.assert_array_equal(
            found[affine], np.asarray(training.initial(0))[affine]
        )


def test_a_resumed_run_is_the_same(tmp_path: Path):
    federation, model = classification(), Normal().bind((4,), 3)

    def measured(directory, rounds, resume=False):
        run(
            FedBN(sgd=TRAINED),
            federation,
            model,
            rounds,
            directory=directory,
            checkpoint_every=2,
            resume=resume,
        )
        return [(directory / file).read_bytes() for file in (METRICS, LEDGER)]

    whole = measured(tmp_path / "whole", 4)
    measured(tmp_path / "parts", 2)
    assert measured(tmp_path / "parts", 4, resume=True) == whole


@pytest.mark.slow
def test_a_resnet_keeps_its_statistics_is_evaluated_with_them_and_resumes_to_the_bit(
    tmp_path: Path,
):
    """The residual network of the zoo: two clients, whose normalisations alone differ,
    and grow over the rounds.
    """
    plain = classification(clients=2, sizes=[6, 8])
    images = (
        np.random.default_rng(0).normal(size=(len(plain.y), 8, 8, 3)).astype(np.float32)
    )
    federation, model = (
        replace(plain, x=images, public=None),
        models.resnet(8).bind((8, 8, 3), 3),
    )

    def trained(directory, rounds, resume=False):
        algorithm = FedBN(sgd=SGD(lr=0.1, steps=1, batch_size=8))
        return run(
            algorithm,
            federation,
            model,
            rounds,
            directory=tmp_path / directory,
            resume=resume,
        )

    first, whole = trained("parts", 1), trained("whole", 2)
    parts = trained("parts", 2, resume=True)
    for file in (METRICS, LEDGER):
        assert (tmp_path / "parts" / file).read_bytes() == (
            tmp_path / "whole" / file
        ).read_bytes()
    early, late, again = (
        np.stack([own.theta for own in done.personal_models().values()])
        for done in (first, whole, parts)
    )
    assert late.tobytes() == again.tobytes()
    norm, statistics = model.part("norm"), model.statistics
    np.testing.assert_array_equal(
        norm.complement.take(late[0]), norm.complement.take(late[1])
    )
    assert (statistics.take(late[0]) != statistics.take(late[1])).all()
    # means start at 0 and variances at 1, and a tenth of each batch's comes in
    start = statistics.take(np.asarray(model.init(jax.random.key(0))))
    moved = np.abs(statistics.take(late) - start).sum(axis=1) / np.abs(
        statistics.take(early) - start
    ).sum(axis=1)
    assert (moved > 1.5).all()
    for own, client in zip(whole.personal_models().values(), federation, strict=True):
        outputs = model.logits(
            model.params(jnp.asarray(own.theta)),
            jnp.asarray((client.test.x - own.shift) * own.scale),
        )
        expected = float(model.losses(outputs, jnp.asarray(client.test.y)).mean())
        found = whole.metrics.values("loss")[federation.names.index(client.name)]
        assert found == pytest.approx(expected, rel=1e-4)


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
