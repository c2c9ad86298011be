"""FedBABU: a head that is never trained, against NumPy; fine-tuning that leaves no
trace.
"""

import numpy as np
import pytest

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
from fedtailor.algorithms import FedBABU
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=2, batch_size=8)
TUNE = SGD(lr=0.1, steps=3, batch_size=64)
UNSEEN = np.array([False, True, False, False, False])


@pytest.mark.parametrize("tune_part", ["everything", "bias"])
def test_three_rounds_and_fine_tuning_are_those_of_numpy(tune_part):
    with float64():
        training, by_hand = trained(
            FedBABU(sgd=FULL, tune=TUNE, part="bias", tune_part=tune_part)
        )
        shared, bias = by_hand.start, by_hand.bias
        for _ in range(3):
            shared = by_hand.weights @ np.array(
                [by_hand.descend(i, shared, ~bias) for i in range(4)]
            )
        np.testing.assert_allclose(training.server.model[0], shared, **EXACT)
        mask = bias if tune_part == "bias" else True
        tuned = [by_hand.descend(i, shared, mask, steps=3, lr=0.1) for i in range(4)]
        np.testing.assert_allclose(personal(training), tuned, **EXACT)


def test_the_head_stays_as_it_was_drawn_and_only_the_body_travels():
    with float64():
        model = models.mlp(5).bind((4,), 3, dtype="float64")
        training = train(FedBABU(sgd=TRAINED), classification(), model, 3)
        head, body = model.part("head"), model.part("body")
        np.testing.assert_array_equal(
            head.take(training.server.model[0]), head.take(training.initial(0))
        )
        assert (
            body.take(training.server.model[0]) != body.take(training.initial(0))
        ).all()
        totals = training.ledger.totals()
        assert (totals.bytes_down, totals.bytes_up) == (
            3 * 8 * body.size,
            3 * 5 * 8 * body.size,
        )


def test_everybody_is_fine_tuned_whenever_it_is_served():
    """The trap of public code that fine-tunes only before the last evaluation;
    newcomers do as the others.
    """
    with float64():
        model, twins = (
            models.mlp(5).bind((4,), 3, dtype="float64"),
            np.array([0, 0, 2, 3, 4]),
        )
        federation = classification(sizes=[8] * 5, unseen=UNSEEN)
        federation = type(federation)(
            **{**vars(federation), "train": federation.train.take(twins)}
        )
        training = train(FedBABU(sgd=TRAINED, tune=TUNE), federation, model, 1)
        (first,), before = predictors(training), np.asarray(training.server.model[0])
        assert (first != before).any(axis=1).all()
        np.testing.assert_allclose(first[1], first[0], **EXACT)
        training.evaluate()
        np.testing.assert_array_equal(training.server.model[0], before)
