"""FedPer: between FedAvg and Local, against NumPy; what travels; newcomers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.least_squares import FULL, least_squares, linear_model, trained
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedPer, Local
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


@pytest.mark.parametrize("part, limit", [("nothing", FedAvg), ("everything", Local)])
def test_with_no_own_part_it_is_fedavg_and_with_all_of_the_model_local_training(
    part, limit
):
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3)
            for it in (FedPer(sgd=TRAINED, part=part), limit(sgd=TRAINED))
        )
        np.testing.assert_array_equal(personal(ours), personal(expected))


def test_three_rounds_are_those_of_numpy():
    with float64():
        training, by_hand = trained(FedPer(sgd=FULL, part="bias"))
        body, own, bias = by_hand.start, [by_hand.start] * 4, by_hand.bias
        for _ in range(3):
            own = [by_hand.descend(i, np.where(bias, own[i], body)) for i in range(4)]
            body = by_hand.weights @ np.array(own)
        np.testing.assert_allclose(
            personal(training), [np.where(bias, it, body) for it in own], **EXACT
        )


def test_the_ledger_counts_the_part():
    with float64():
        training = train(FedPer(sgd=TRAINED), classification(), mlp(), 2)
        body = mlp().part("body").size
        totals = training.ledger.totals()
        assert totals.bytes_up == 2 * 5 * 8 * body
        assert totals.bytes_down == 2 * 8 * body
        assert [
            it.shape for it in np.atleast_1d(training.executor.client_states["own"])
        ] == [(mlp().size - body,)] * 5


def test_heads_of_absent_clients_stay_and_all_have_the_shared_body():
    with float64():
        model = mlp()
        training = train(
            FedPer(sgd=TRAINED),
            classification(),
            model,
            2,
            participation=Participation(count=2),
        )
        before = np.asarray(training.executor.client_states["own"])
        reporting = np.array([True, False, True, False, False])
        training.advance(reporting)
        changed = (np.asarray(training.executor.client_states["own"]) != before).any(
            axis=1
        )
        np.testing.assert_array_equal(changed, reporting)
        served = training.predictors(training.serve())
        bodies = model.part("body").take(served)
        np.testing.assert_array_equal(bodies, np.tile(bodies[:1], (5, 1)))


def test_a_newcomer_trains_a_head_on_the_body_and_nothing_else():
    with float64():
        model, federation = mlp(), classification(unseen=UNSEEN)
        training = train(FedPer(sgd=TRAINED), federation, model, 2)
        (found,) = predictors(training)
        body, head = model.part("body"), model.part("head")
        np.testing.assert_array_equal(body.take(found[1]), body.take(found[0]))
        np.testing.assert_array_equal(
            body.take(found[1]), body.take(np.asarray(training.server.model[0]))
        )
        start = head.take(np.asarray(training.initial(0)))
        assert (head.take(found[1]) != start).any()
        # the server's model holds the initial head
        np.testing.assert_array_equal(
            head.take(np.asarray(training.server.model[0])), start
        )


def test_a_newcomer_s_head_takes_its_steps_while_the_body_stands_still():
    """Gradient descent on the head alone, by hand; from the second step on, a body that
    moves as well gives another head.
    """
    steps, rate = 4, 0.3
    with float64():
        model, federation = mlp(), classification(unseen=UNSEEN)
        method = FedPer(sgd=SGD(lr=rate, steps=steps, batch_size=10_000))
        training = train(method, federation, model, 2)
        (found,) = predictors(training)
        rows, head = federation.client(1).train, model.part("head")
        received = jnp.asarray(training.server.model[0])

        def loss(own):
            params = model.params(head.put(received, own))
            scores = jax.nn.log_softmax(model.logits(params, jnp.asarray(rows.x)))
            return -scores[np.arange(len(rows.y)), rows.y].mean()

        own = head.take(received)
        for _ in range(steps):
            own = own - rate * jax.grad(loss)(own)
        np.testing.assert_allclose(head.take(found[1]), own, **EXACT)


def test_a_newcomer_with_nothing_of_its_own_does_not_train_at_all():
    """An empty part would be trained without effect, for as long as a round takes."""
    trained = []

    def sgd(theta, settings, train_only):
        trained.append(train_only.size)
        return theta + 1

    with float64():
        model, method = mlp(), FedPer(sgd=TRAINED)
        theta, local = jnp.zeros(model.size), SimpleNamespace(sgd=sgd)
        empty, head = model.part("nothing"), model.part("head")
        assert (method._train_newcomer(theta, empty, local) == theta).all()
        assert (method._train_newcomer(theta, head, local) == theta + 1).all()
    assert trained == [head.size]


def test_a_part_that_the_model_lacks_is_refused_before_anything_is_computed():
    with float64():
        with pytest.raises(
            ValueError, match="'head' is all of this model; the parts it has are: bias"
        ):
            train(FedPer(), least_squares(), linear_model(), 0)
        with pytest.raises(
            ValueError,
            match="'tail' is nothing of this model; the parts it has are: head, body",
        ):
            train(FedPer(part="tail"), classification(), mlp(), 0)
