"""Schedules of methods."""

import numpy as np
import pytest

from conformance.problems import (
    BATCH,
    classification,
    float64,
    personal,
    softmax_model,
    train,
)
from fedtailor.algorithms import FedAvg, FineTune, Local
from fedtailor.algorithms.then import Then
from fedtailor.protocol import SGD, Algorithm

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=BATCH)


def test_phases_are_flat_and_limited_by_their_rounds():
    one, two, three = FedAvg(), FineTune(), FedAvg(weights="uniform")
    assert Then(one, rounds=5, next=two).phases() == [(one, 5), (two, None)]
    assert Then(one, rounds=0, next=two).phases() == [(two, None)]
    nested = Then(Then(one, rounds=5, next=two), rounds=20, next=three)
    assert nested.phases() == [(one, 5), (two, 15), (three, None)]
    assert Then(Then(one, rounds=5, next=two), rounds=4, next=three).phases() == [
        (one, 4),
        (three, None),
    ]
    assert Then(one, rounds=3, next=Then(two, rounds=2, next=three)).phases() == [
        (one, 3),
        (two, 2),
        (three, None),
    ]


def test_a_method_after_itself_is_that_method():
    with float64():
        federation, model = classification(), softmax_model()
        method = FedAvg(sgd=TRAINED)
        twice = train(Then(method, rounds=2, next=method), federation, model, 4)
        np.testing.assert_array_equal(
            personal(twice), personal(train(method, federation, model, 4))
        )


def test_the_second_method_starts_from_the_model_of_the_first():
    with float64():
        federation, model = classification(), softmax_model()
        first = FedAvg(sgd=TRAINED)
        second = FedAvg(sgd=TRAINED, weights="uniform")
        schedule = train(Then(first, rounds=1, next=second), federation, model, 3)
        assert schedule.algorithm is second
        alone = [train(method, federation, model, 3) for method in (first, second)]
        assert all(
            np.abs(personal(schedule) - personal(other)).max() > 1e-3 for other in alone
        )
        head = train(first, federation, model, 1)
        start = Then(first, rounds=1, next=second)
        again = train(start, federation, model, 1)
        np.testing.assert_array_equal(personal(again), personal(head))


def test_it_has_no_name_and_refuses_negative_rounds():
    assert Then not in Algorithm.registry.values()
    with pytest.raises(ValueError, match="rounds is -1"):
        Then(FedAvg(), rounds=-1, next=FedAvg())


def test_a_method_without_a_global_model_cannot_come_first():
    with float64(), pytest.raises(ValueError, match="local has no global model"):
        train(
            Then(Local(), rounds=1, next=FedAvg()), classification(), softmax_model(), 2
        )
