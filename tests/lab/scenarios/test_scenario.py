"""`Scenario`: its parameters, other sizes, and what is wrong with a size in one
line.
"""

from dataclasses import asdict, replace
from typing import Literal

import numpy as np
import pytest

from fedtailor.algorithms import FedAvg
from fedtailor.data.federation import from_arrays
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import logistic, lora, mlp
from fedtailor.protocol import SGD


def build(
    seed: int = 0,
    *,
    clients: int = 4,
    test: float = 0.5,
    split: Literal["even", "odd"] = "even",
    features: tuple[str, ...] | None = None,
    points: int | None = None,
    shuffled: bool = False,
):
    rng = np.random.default_rng(seed)
    assert split in ("even", "odd") and not shuffled and points is None
    assert features is None or isinstance(features, tuple)
    owners = np.repeat(np.arange(clients), 8)
    return from_arrays(
        rng.normal(size=(len(owners), 3)),
        np.arange(len(owners)) % 2,
        owners,
        test=test,
        seed=seed,
    )


SCENARIO = Scenario("toy", "a toy", build, logistic(), 3)


def test_parameters_are_the_builders_keywords():
    assert SCENARIO.parameters == {
        "clients": 4,
        "test": 0.5,
        "split": "even",
        "features": None,
        "points": None,
        "shuffled": False,
    }
    assert (SCENARIO.participation, SCENARIO.source, SCENARIO.data) == (1.0, "", "")


def test_a_sized_scenario_builds_with_its_own_defaults():
    sized = SCENARIO.sized(clients=6, split="odd").sized(test=0.25, features=["a", "b"])
    assert sized.parameters == {
        **SCENARIO.parameters,
        "clients": 6,
        "split": "odd",
        "test": 0.25,
        "features": ("a", "b"),
    }
    federation = sized.build(3)
    assert len(federation) == 6 and set(federation.test.sizes) == {2}
    np.testing.assert_array_equal(federation.x, build(3, clients=6).x)
    assert len(SCENARIO.build(3)) == 4, "the first scenario is as before"
    assert (sized.name, sized.rounds) == ("toy", 3)


def test_whole_numbers_serve_as_floats_and_none_where_it_is_meant():
    found = SCENARIO.sized(test=0, points=None, features=None).parameters
    assert found == {**SCENARIO.parameters, "test": 0.0} and isinstance(
        found["test"], float
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"client": 3},
            (
                "no parameter 'client'; its parameters are: clients, test, split,"
                " features, points, shuffled"
            ),
        ),
        ({"clients": True}, "toy: clients is True; it must be a whole number"),
        ({"clients": 2.0}, "clients is 2.0"),
        ({"clients": "3"}, "clients is '3'"),
        ({"clients": None}, "clients is None"),
        ({"test": False}, "test is False"),
        ({"test": "0.2"}, "test is '0.2'"),
        ({"split": "both"}, "split is 'both'; it must be 'even' or 'odd'"),
        ({"features": "ab"}, "features is 'ab'"),
        ({"features": [1]}, r"features is \[1\]"),
        ({"points": 1.5}, "points is 1.5"),
        ({"shuffled": 1}, "shuffled is 1"),
    ],
)
def test_wrong_sizes_end_in_one_line(arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        SCENARIO.sized(**arguments)
    assert "\n" not in str(error.value)


def test_methods_train_as_the_scenario_says():
    scenario = Scenario(
        "toy",
        "a toy",
        build,
        logistic(),
        3,
        default=defaults_with(SGD(lr=0.3, epochs=7)),
    )
    assert (
        scenario.algorithm("fedavg").sgd.lr,
        scenario.algorithm("ucfl").sgd.epochs,
    ) == (0.3, 7)


def test_adapters_train_at_half_of_the_rate():
    whole = Scenario(
        "toy",
        "a toy",
        build,
        mlp(4),
        3,
        default=defaults_with(SGD(lr=0.3, momentum=0.9)),
    )
    for network in (lora(mlp(4), 2), lora(mlp(4), 2).in_precision("bfloat16")):
        adapted = replace(whole, model=network)
        for name in ("fedavg", "flexlora", "pfedme"):
            ours, theirs = adapted.algorithm(name).sgd, whole.algorithm(name).sgd
            assert asdict(ours) == {**asdict(theirs), "lr": 0.5 * theirs.lr}
    # The rate of a method that recommends its own, too.
    own = replace(
        whole, settings={"fedavg": FedAvg(sgd=SGD(lr=0.8))}, model=lora(mlp(4))
    )
    assert own.algorithm("fedavg").sgd.lr == 0.4
