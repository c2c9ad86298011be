"""Properties that every registered method must have. A new method is tested here as
soon as it is registered.
"""

import pytest

from conformance.examples import ALONE_IS_LOCAL, OPT_OUTS, example
from fedtailor.algorithms import Local
from fedtailor.protocol import Algorithm
from fedtailor.testing import CHECKS, predictors, softmax_model, train
from fedtailor.testing.conformance import assert_same
from fedtailor.testing.problems import classification, float64

NAMES = sorted(Algorithm.registry)
PAIRS = [
    (name, check) for name in NAMES for check in CHECKS if (check, name) not in OPT_OUTS
]
AS_SHIPPED = {
    (name, check)
    for name in ("fedavg", "ditto", "ucfl", "scaffold")
    for check in ("order", "resume")
}


def case(name, check):
    """A pair of `PAIRS` as a case of a test."""
    marks = [pytest.mark.as_shipped] if (name, check) in AS_SHIPPED else []
    return pytest.param(name, check, id=f"{name}-{check}", marks=marks)


@pytest.mark.parametrize(("name", "check"), [case(*pair) for pair in PAIRS])
def test_conformance(name, check):
    CHECKS[check](example(name, clients=1 if check == "one client" else 5))


@pytest.mark.parametrize("name", sorted(ALONE_IS_LOCAL))
def test_alone_a_client_trains_as_local_does(name):
    with float64():
        single = classification(clients=1, sizes=[20], groups=[0])
        algorithm = example(name, clients=1)
        expected = predictors(
            train(Local(sgd=algorithm.sgd), single, softmax_model(), 2)
        )
        assert_same(predictors(train(algorithm, single, softmax_model(), 2)), expected)
