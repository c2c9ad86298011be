"""Which methods are recommended, on evidence whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from fedtailor.statistics.diagnosis import (
    Evidence,
    are_clear,
    diagnose,
    recommend_race,
    starting_point,
    starting_strength,
    streams_of,
)

SIZE = 4_000
BATCHES = 20


def population(rng, centres, n=200, deviation=1.0):
    """Clients whose gradients are means of n samples around their own centre."""
    gradients, sigma2 = [], []
    for centre in centres:
        samples = centre + deviation * rng.normal(size=(n, len(centre)))
        parts = samples.reshape(BATCHES, -1, len(centre)).mean(axis=1)
        gradients.append(samples.mean(axis=0))
        sigma2.append(np.square(parts - gradients[-1]).sum(axis=1).mean())
    names = [f"c{i}" for i in range(len(centres))]
    sizes = np.full(len(centres), n)
    return diagnose(
        Evidence(names, sizes, np.array(gradients), np.array(sigma2), sizes // BATCHES)
    )


def methods(race):
    return [entry.method for entry in race.entries]


def test_one_population_gets_one_model():
    found = population(np.random.default_rng(0), np.zeros((6, 200)))
    race = recommend_race(found, SIZE)
    assert methods(race) == ["fedavg", "ditto", "local"] and race.doubt == ""
    assert (
        streams_of(found) is None
        and race.entries[0].because == "no pair of clients is told apart"
    )
    assert [(entry.bytes_down, entry.bytes_up) for entry in race.entries] == [
        (SIZE, 6 * SIZE)
    ] * 2 + [(0, 0)]


def test_groups_get_a_model_each():
    centres = 4 * np.eye(10)[[0, 1, 2] * 3]
    race = recommend_race(population(np.random.default_rng(1), centres), SIZE)
    assert methods(race) == ["ucfl", "ifca", "local"] and race.doubt == ""
    ucfl, ifca, local = race.entries
    assert ucfl.settings == {"streams": 3} and ifca.settings == {
        "clusters": 3,
        "start": "farthest",
    }
    assert (ucfl.bytes_down, ucfl.bytes_down_unicast) == (3 * SIZE, 9 * SIZE)
    assert (ifca.bytes_down, ifca.bytes_down_unicast) == (
        3 * SIZE,
        27 * SIZE,
    )  # everybody looks at all three
    assert (local.bytes_down, local.bytes_up) == (0, 0)
    assert race.sentence == "Train ucfl, ifca, local and let validation data choose."


def test_clients_that_have_nothing_in_common_are_no_groups():
    found = population(np.random.default_rng(2), 4 * np.eye(10)[:6])
    assert len(np.unique(found.groups)) == 6 and streams_of(found) is None
    race = recommend_race(found, SIZE)
    assert (
        methods(race) == ["fedavg", "ditto", "local"]
        and race.entries[0].because == "one model for all"
    )
    assert race.doubt == ""


def test_one_pair_of_many_makes_no_groups():
    """One client of 20 is told apart from a single other one."""
    rng = np.random.default_rng(0)
    found = population(rng, np.zeros((20, 3)))
    p_holm = np.ones((20, 20))
    p_holm[3, 7] = p_holm[7, 3] = 0.01
    one = replace(found, gradients=replace(found.gradients, p_holm=p_holm))
    one = replace(one, groups=one.gradients.groups())
    assert len(np.unique(one.groups)) == 2
    assert streams_of(one) is None
    assert methods(recommend_race(one, SIZE)) == ["fedavg", "ditto", "local"]


def test_groups_that_shade_into_each_other_are_raced_against_ditto():
    centres = np.linspace(0, 1.1, 12)[:, None] * np.ones((12, 3))
    found = population(np.random.default_rng(1), centres)
    assert streams_of(found) is not None and not are_clear(found)
    race = recommend_race(found, SIZE)
    assert methods(race) == ["ucfl", "ditto", "local"]
    assert "by degrees" in race.entries[1].because


def test_too_few_samples_are_said_to_be_too_few():
    # twice as far apart as sampling explains, everywhere: too little for a test that
    # knows no covariance
    centres = np.eye(200)[
        :6
    ]  # traces are 200, and so is n: expected distances are 2, and these 2 more
    found = population(np.random.default_rng(3), centres)
    race = recommend_race(replace_overall(found, 0.2), SIZE)
    assert race.doubt.startswith("These samples cannot tell whether clients differ")
    # Where all together differ, these samples can tell.
    assert recommend_race(replace_overall(found, 1e-6), SIZE).doubt == ""
    assert methods(race) == ["fedavg", "ditto", "local"]


def replace_overall(diagnosis, p):
    """A diagnosis with another p-value of the test of all clients together."""
    return replace(diagnosis, gradients=replace(diagnosis.gradients, overall_p=p))


def test_the_pull_grows_with_the_noise_within_what_is_usual():
    rng = np.random.default_rng(4)
    own = [
        starting_strength(population(rng, rng.normal(size=(8, 200)), deviation=s))
        for s in (0.1, 20, 1e4)
    ]
    assert own[0] == 0.1 and 0.1 < own[1] < 2 and own[2] == 2


def test_without_groups_the_clustering_methods_start_from_their_own_choice():
    found = population(np.random.default_rng(2), 4 * np.eye(10)[:6])
    assert starting_point("ucfl", found) == {"streams": "auto"}
    assert starting_point("ifca", found) == {"clusters": 2, "start": "farthest"}


def test_an_unknown_method_has_no_starting_point():
    found = population(np.random.default_rng(5), np.zeros((3, 10)))
    with pytest.raises(
        ValueError, match="nothing is known about 'afl'; the methods are local, fedavg"
    ):
        starting_point("afl", found)
