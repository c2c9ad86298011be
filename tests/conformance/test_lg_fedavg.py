"""LG-FedAvg: the mirror image of FedPer, against NumPy."""

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
from fedtailor.algorithms import FedPer, LGFedAvg
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])


def test_it_is_fedper_of_the_complement():
    with float64():
        model, federation = (
            models.mlp(5).bind((4,), 3, dtype="float64"),
            classification(unseen=UNSEEN),
        )
        ours, expected = (
            predictors(train(it, federation, model, 3))
            for it in (
                LGFedAvg(sgd=TRAINED, part="head"),
                FedPer(sgd=TRAINED, part="body"),
            )
        )
        np.testing.assert_array_equal(ours, expected)


def test_the_head_is_shared_and_the_representation_is_not():
    """The trap of public code that shares the first layer and keeps the head."""
    with float64():
        model = models.mlp(5).bind((4,), 3, dtype="float64")
        training = train(LGFedAvg(sgd=TRAINED), classification(), model, 2)
        found = personal(training)
        heads, bodies = model.part("head").take(found), model.part("body").take(found)
        np.testing.assert_array_equal(heads, np.tile(heads[:1], (5, 1)))
        assert (bodies[1:] != bodies[0]).any(axis=1).all()
        assert training.ledger.totals().bytes_up == 2 * 5 * 8 * heads.shape[1]


def test_three_rounds_are_those_of_numpy():
    with float64():
        training, by_hand = trained(LGFedAvg(sgd=FULL, part="bias"))
        shared, own, bias = by_hand.start, [by_hand.start] * 4, by_hand.bias
        for _ in range(3):
            own = [by_hand.descend(i, np.where(bias, shared, own[i])) for i in range(4)]
            shared = by_hand.weights @ np.array(own)
        np.testing.assert_allclose(
            personal(training), [np.where(bias, shared, it) for it in own], **EXACT
        )
