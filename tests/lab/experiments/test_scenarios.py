"""The digits scenarios: groups are found, orderings hold, every method learns on
them.
"""

import numpy as np
import pytest

from conformance.examples import without_adapters
from conformance.normal import Normal
from fedtailor.algorithms import UCFL
from fedtailor.algorithms.helpers.warm_up import WarmUp
from fedtailor.data.federation import byzantine_clients
from fedtailor.engine.runs import run, simulate
from fedtailor.lab.scenarios import digits, find
from fedtailor.protocol import Algorithm

CHANCE = 0.1


@pytest.mark.parametrize("name", [scenario.name for scenario in digits.SCENARIOS])
def test_federations_are_as_described(name):
    federation = find(name).build(0)
    assert len(federation) == 20
    assert federation.train.sizes.sum() + federation.test.sizes.sum() == 1797
    if federation.groups is None:
        assert name in ("digits-label-shift", "digits-byzantine")
    else:
        np.testing.assert_array_equal(np.bincount(federation.groups), [5, 5, 5, 5])
        assert set(federation.train.sizes) <= {70, 71, 72, 73, 74}


@pytest.mark.parametrize(
    "attack", ["flip-labels", "random-labels", "back-door", "none"]
)
def test_a_fifth_of_the_clients_train_on_the_attack_that_was_asked_for(attack):
    honest = find("digits-label-shift").build(0, alpha=1.0)
    given = find("digits-byzantine").build(0, attack=attack)
    is_byzantine = byzantine_clients(honest.ids, 0.2, seed=0)
    assert is_byzantine.sum() == 4
    for client, (true, told) in enumerate(zip(honest, given, strict=True)):
        for found, expected in zip(told.test, true.test, strict=True):
            np.testing.assert_array_equal(found, expected)
        same_x = (told.train.x == true.train.x).all(axis=(1, 2))
        same_y = told.train.y == true.train.y
        if attack == "none" or not is_byzantine[client]:
            assert same_x.all() and same_y.all()
        elif attack == "back-door":
            # Half of all Byzantine clients' examples together.
            assert 0.3 < same_x.mean() < 0.7
            assert (told.train.y[~same_x] == 0).all() and same_y[same_x].all()
        elif attack == "flip-labels":
            assert same_x.all()
            np.testing.assert_array_equal(told.train.y, 9 - true.train.y)
        else:
            assert same_x.all() and same_y.mean() < 0.4


def test_an_unknown_attack_is_refused():
    with pytest.raises(ValueError, match="attack"):
        find("digits-byzantine").build(0, attack="flip")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["digits-rotated", "digits-permuted"])
def test_auto_finds_the_four_groups(name, seed):
    scenario = find(name)
    algorithm, federation = scenario.algorithm("ucfl"), scenario.build(seed)
    assert isinstance(algorithm, UCFL) and algorithm.streams == "auto"
    model = scenario.model.bind(federation.input_shape, 10)
    training = simulate(algorithm, federation, model, seed=seed)
    # The server decides after a few rounds of FedAvg.
    while isinstance(training.server, WarmUp):
        training.advance()
    stream = training.server.stream
    groups = federation.groups[np.argsort(federation.ids)]
    assert len(set(zip(stream, groups, strict=True))) == 4 == stream.max() + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits-rotated", "digits-permuted"])
def test_orderings_over_three_seeds(name):
    """Means over seeds 0-2 after half the rounds: Oracle > UCFL > FedAvg for rotated
    digits. Under permuted labels UCFL finds the groups and is the Oracle to a point, and
    Local > FedAvg.
    """
    scenario = find(name)
    rounds = scenario.rounds // 2

    def mean(method):
        runs = [
            run(
                scenario.algorithm(method),
                scenario.build(seed),
                scenario.model,
                rounds,
                seed=seed,
                evaluate_every=rounds,
            )
            for seed in range(3)
        ]
        return np.mean([result.summary().mean for result in runs])

    local, fedavg, ucfl, oracle = (
        mean(method) for method in ("local", "fedavg", "ucfl", "oracle")
    )
    if name == "digits-permuted":
        assert abs(oracle - ucfl) < 0.01
        assert min(oracle, ucfl) > local > fedavg
    else:
        assert oracle > ucfl > fedavg


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_every_method_learns_the_rotated_digits(name):
    """In twelve rounds: CFL splits from the eleventh on."""
    scenario = find("digits-rotated")
    if name == "fedmd":
        scenario = scenario.sized(public=0.1)
    result = run(
        without_adapters(scenario.algorithm(name)),
        scenario.build(0),
        scenario.model,
        12,
        evaluate_every=12,
    )
    assert result.summary().mean > 5 * CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbn", "moon", "fedrod", "feddbe"])
def test_methods_that_look_at_parts_learn_with_batch_normalisation(name):
    """FedBN on a model without normalisation layers, as above, is FedAvg."""
    scenario = find("digits-rotated")
    federation, model = scenario.build(0), Normal(32)
    result = run(scenario.algorithm(name), federation, model, 12, evaluate_every=12)
    assert result.summary().mean > 5 * CHANCE
    if name == "fedbn":
        norm = model.bind(federation.input_shape, 10).part("norm")
        found = np.stack(
            [norm.take(one.theta) for one in result.personal_models().values()]
        )
        assert len(np.unique(found, axis=0)) == len(found)
