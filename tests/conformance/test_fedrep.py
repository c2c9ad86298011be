"""FedRep: head, then body, against NumPy; the number of epochs of each."""

import numpy as np

from conformance.least_squares import FULL, trained
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedRep
from fedtailor.protocol import SGD

HEAD = SGD(lr=0.1, steps=3, batch_size=64)
UNSEEN = np.array([False, True, False, False, False])


def test_three_rounds_are_those_of_numpy():
    with float64():
        training, by_hand = trained(FedRep(sgd=FULL, head=HEAD, part="bias"))
        body, own, bias = by_hand.start, [by_hand.start] * 4, by_hand.bias
        for _ in range(3):
            own = [
                by_hand.descend(i, np.where(bias, own[i], body), bias, steps=3, lr=0.1)
                for i in range(4)
            ]
            own = [by_hand.descend(i, own[i], ~bias) for i in range(4)]
            body = by_hand.weights @ np.array(own)
        np.testing.assert_allclose(
            personal(training), [np.where(bias, it, body) for it in own], **EXACT
        )


def test_epochs_of_head_and_body_are_counted_apart():
    sizes = classification().train.sizes
    with float64():
        algorithm = FedRep(
            sgd=SGD(epochs=2, batch_size=8), head=SGD(epochs=5, batch_size=8)
        )
        training = train(
            algorithm, classification(), models.mlp(5).bind((4,), 3, dtype="float64"), 1
        )
        assert training.ledger.totals().gradients == 7 * sizes.sum()


def test_a_newcomer_trains_its_head_as_long_as_a_head_is_trained():
    with float64():
        model, federation = (
            models.mlp(5).bind((4,), 3, dtype="float64"),
            classification(unseen=UNSEEN),
        )
        body = model.part("body")
        training = train(FedRep(head=SGD(epochs=4, batch_size=8)), federation, model, 2)
        (found,) = predictors(training)
        np.testing.assert_array_equal(body.take(found[1]), body.take(found[0]))
        idle = train(FedRep(head=SGD(epochs=0, batch_size=8)), federation, model, 2)
        (untrained,) = predictors(idle)
        head = model.part("head")
        np.testing.assert_array_equal(
            head.take(untrained[1]), head.take(np.asarray(idle.initial(0)))
        )
        assert (head.take(found[1]) != head.take(untrained[1])).any()
