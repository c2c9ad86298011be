"""Settings of methods: what is no finite number is refused with its name, unless it
says that it may be infinite.
"""

import pytest

from fedtailor.algorithms import CFL, MOON, FedALA, FedAvg
from fedtailor.pipelines import Clip
from fedtailor.protocol import SGD


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SGD, "lr"),
        (SGD, "weight_decay"),
        (SGD, "dp_norm"),
        (MOON, "mu"),
        (FedALA, "eta"),
        (Clip, "norm"),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_infinite_and_undefined_settings_are_refused(kind, name, value):
    others = {"dp_noise": 1.0} if name == "dp_norm" else {}
    with pytest.raises(
        ValueError, match=rf"^(\w+: )?{name} is -?(inf|nan); it must be "
    ):
        kind(**{name: value}, **others)


def test_thresholds_that_nothing_reaches_are_infinite():
    assert CFL(eps2=float("inf")).eps2 == float("inf")
    assert FedAvg(sgd=SGD(lr=1)).sgd.lr == 1.0, "a whole number is a float, as before"
