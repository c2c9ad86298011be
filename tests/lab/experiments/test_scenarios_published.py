"""The papers' scenarios have the clients, sizes, classes and groups that the papers
print.

Each is built from generated data of the published number of examples and, where they
are at hand, from the public files.
"""

import inspect
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import published
from fedtailor import models
from fedtailor.data.datasets import MissingData
from fedtailor.data.federation import Dataset, datasets
from fedtailor.lab.scenarios import SCENARIOS, find

SPLITS = ("train", "val", "test")


def generated(name, n, classes, tests=0, x=(1,), owners=None, dtype=np.uint8):
    """A data set of `n` random examples, the last `tests` of which (or, of owned ones,
    every tenth) are for testing.
    """
    rng = np.random.default_rng(len(name))
    test = (
        np.arange(n) >= n - tests if owners is None or tests else np.arange(n) % 10 == 0
    )
    inputs = rng.integers(0, 256, (n, *x)).astype(dtype)
    return Dataset(inputs, rng.integers(0, classes, n), classes, name, test, owners)


def mnist_writers():
    """539 writers of the training set, 297 others of the test set."""
    owners = np.concatenate([np.arange(60_000) % 539, 539 + np.arange(10_000) % 297])
    return generated(
        "MNIST writers",
        70_000,
        10,
        10_000,
        owners=np.array([f"writer-{i:04d}" for i in owners]),
    )


def femnist():
    """289 writers; those called f2100 to f2599 are students."""
    names = np.array([f"f{14 * number:04d}_00" for number in range(289)])
    return generated("FEMNIST", 28_900, 62, owners=names[np.arange(28_900) % 289])


def sent140(features="words", **options):
    x, dtype = ((25,), np.int32) if features == "tokens" else ((4,), np.uint8)
    owners = np.array(
        [
            f"user-{i:04d}"
            for i in np.concatenate([np.arange(1000) % 900, np.arange(4000) % 800])
        ]
    )
    return generated("Sent140", 5000, 2, x=x, dtype=dtype, owners=owners)


def with_clients(name, rows, classes, clients, x):
    """As many rows of each client."""
    owners = np.array([f"client-{i * clients // rows}" for i in range(rows)])
    return generated(name, rows, classes, x=x, dtype=np.float32, owners=owners)


def tcga_brca():
    """Times and events of patients in six regions."""
    data = with_clients("TCGA-BRCA", 1088, 2, 6, (39,))
    times = np.arange(1, 1089, dtype=np.float32)
    y = np.stack([times, np.arange(1088) % 7 == 0], axis=1).astype(np.float32)
    return Dataset(data.x, y, None, data.name, data.test, data.client)


GENERATED = {
    "tcga_brca": tcga_brca,
    "heart_disease": partial(with_clients, "Heart disease", 740, 2, 4, (13,)),
    "spoken_digits": partial(with_clients, "Spoken digits", 3000, 10, 6, (4, 4, 1)),
    "mnist": partial(generated, "MNIST", 70_000, 10, 10_000),
    "fashion_mnist": partial(generated, "Fashion-MNIST", 70_000, 10, 10_000),
    "cifar10": partial(generated, "CIFAR-10", 60_000, 10, 10_000, x=(2, 2, 1)),
    "emnist": lambda *which: generated("EMNIST", 116_323, 62, 116_323, x=(2, 2)),
    "mnist_writers": mnist_writers,
    "femnist": femnist,
    "sent140": sent140,
}
READERS = {"CIFAR-10": "cifar10", "MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}


@pytest.fixture(params=["generated", "public"])
def build(request, monkeypatch):
    """(name, seed, sizes) -> the federation of a scenario, from generated data or from
    the public files.
    """
    monkeypatch.setenv("FEDTAILOR_DATA", str(published.DATA))
    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(Path(__file__).parents[3] / ".cache")
    )  # decoded files, from test to test
    monkeypatch.setattr("fedtailor.data.datasets.store.download", _offline)
    if request.param == "generated":
        for reader, generate in GENERATED.items():
            monkeypatch.setattr(datasets, reader, generate)

    def built(name, seed=0, **sizes):
        scenario = find(name)
        if request.param == "generated" and isinstance(
            scenario.build, partial
        ):  # it holds its reader
            read = getattr(datasets, READERS[scenario.data])
            whole = "cgpfl" not in name or scenario.data == "CIFAR-10"
            chosen = read if whole else lambda: read().take(np.arange(60_000))
            return scenario.build.func(chosen, seed, **sizes)
        try:
            return scenario.sized(**sizes).build(seed)
        except MissingData as missing:
            pytest.skip(str(missing))

    return built


def _offline(*arguments):
    raise ConnectionError("no network")


def sizes_of(federation):
    """Examples of each client [m], all splits together."""
    return sum(getattr(federation, split).sizes for split in SPLITS)


def labels_of(federation, client):
    """The classes that a client holds, in any split."""
    return {
        int(label)
        for split in SPLITS
        for label in federation.y[getattr(federation, split)[client]]
    }


def leaks(federation):
    """Whether an example that anybody tests on is one that somebody trains or validates
    on.
    """
    seen = np.concatenate([federation.train.rows, federation.val.rows])
    return bool(np.isin(federation.test.rows, seen).any())


def share(federation, split):
    return getattr(federation, split).sizes.sum() / sizes_of(federation).sum()


@pytest.mark.parametrize(
    ("name", "clients", "examples", "test", "classes"),
    [
        ("emnist-label-shift", 20, 10_000, 0.2, None),
        ("mnist-two-digits", 1000, 70_000, 0.1, 2),
        ("femnist-letters", 200, None, 0.1, 5),
        ("cifar-three-classes", 20, 60_000, 0.25, 3),
        ("sent140", 772, None, None, None),
        ("sent140-words", 772, None, None, None),
        ("cgpfl-mnist", 40, None, 0.25, 3),
        ("cgpfl-fashion", 40, None, 0.25, 3),
        ("cgpfl-cifar", 40, None, 0.25, 3),
        ("pfedme-mnist", 20, 70_000, 0.25, 2),
        ("pfllib-mnist", 20, 70_000, 0.25, 2),
        ("pfllib-fashion", 20, 70_000, 0.25, 2),
        ("pfllib-cifar", 20, 60_000, 0.25, 2),
        ("fedrep-cifar", 100, 60_000, 1 / 6, 2),
    ],
)
def test_clients_sizes_and_classes_are_as_published(
    build, name, clients, examples, test, classes
):
    federation = build(name)
    assert len(federation) == clients == SCENARIOS[name].parameters["clients"]
    assert examples is None or sizes_of(federation).sum() == examples
    assert test is None or share(federation, "test") == pytest.approx(test, abs=0.01)
    assert classes is None or {
        len(labels_of(federation, client)) for client in range(clients)
    } == {classes}
    assert (
        federation.test.sizes.min() >= 1
        and not federation.unseen.any()
        and not leaks(federation)
    )
    assert not federation.val.sizes.any()


def test_pfllibs_scenarios_have_its_network_and_help_of_their_own():
    for name in ("pfllib-mnist", "pfllib-fashion", "pfllib-cifar"):
        scenario = SCENARIOS[name]
        assert scenario.model == models.cnn_5x5(hidden=512)
        assert scenario.build.__name__ == name.replace("-", "_")
        assert "PFLlib's two" in scenario.build.__doc__
        assert "read" not in inspect.signature(scenario.build).parameters


@pytest.mark.parametrize(("ways", "least", "most"), [(3, 2, 5), (5, 3, 7)])
def test_fedprotos_clients_have_as_many_images_of_each_of_their_classes(
    build, ways, least, most
):
    federation = build("fedproto-mnist", ways=ways)
    assert len(federation) == 20 and not leaks(federation)
    numbers = [len(labels_of(federation, client)) for client in range(20)]
    assert least == min(numbers) and max(numbers) == most
    for client, number in enumerate(numbers):
        shots = np.bincount(federation.client(client).train.y)
        assert len(set(shots[shots > 0])) == 1 and shots.max() in (99, 100)
        tests = np.bincount(federation.client(client).test.y)
        assert np.array_equal(tests > 0, shots > 0) and set(tests[tests > 0]) == {40}
        assert np.count_nonzero(shots) == number
    train = federation.train.rows
    assert len(np.unique(train)) == len(train)


def test_the_user_centric_groups_see_turned_characters(build):
    federation = build("emnist-rotated")
    assert (
        len(federation) == 100
        and sizes_of(federation).sum() == 100_000
        and not leaks(federation)
    )
    assert np.bincount(federation.groups).tolist() == [25] * 4
    assert share(federation, "test") == pytest.approx(0.2, abs=0.01)
    sizes = {"clients": 8, "points": 800, "alpha": 8.0}
    turned, upright = (
        build(name, **sizes) for name in ("emnist-rotated", "emnist-label-shift")
    )
    for client in range(8):
        seen, were = turned.client(client).test, upright.client(client).test
        np.testing.assert_array_equal(
            seen.x, np.rot90(were.x, turned.groups[client], axes=(1, 2))
        )
        np.testing.assert_array_equal(seen.y, were.y)


def test_the_user_centric_groups_name_the_same_test_images_differently(build):
    federation = build("cifar-permuted", val=0.1)
    assert np.bincount(federation.groups).tolist() == [5] * 4 and not leaks(federation)
    assert {*federation.train.sizes} == {2250} and {*federation.val.sizes} == {250}
    assert {*federation.test.sizes} == {1000}
    first = federation.client(0)
    names = {}
    for client in range(20):
        tested = federation.client(client).test
        np.testing.assert_array_equal(tested.x, first.test.x)
        pairs = np.unique(np.stack([first.test.y, tested.y]), axis=1)
        assert pairs.shape == (2, 10), "a permutation of the classes"
        names.setdefault(tuple(pairs[1]), []).append(federation.groups[client])
    assert sorted(names.values()) == [[group] * 5 for group in range(4)], (
        "one for each group"
    )


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_quarter_of_the_characters_writers_are_unseen(build, shuffled):
    federation = build("emnist-writers", shuffled=shuffled)
    assert (len(federation), federation.unseen.sum()) == (289, 75) and not leaks(
        federation
    )
    assert min(getattr(federation, split).sizes.min() for split in SPLITS) >= 1
    last = sorted(federation.names)[-75:]
    assert (
        set(last) == {federation.names[i] for i in np.flatnonzero(federation.unseen)}
    ) is not shuffled
    students = np.array(["f2100" <= name[:5] < "f2600" for name in federation.names])
    assert federation.unseen[students].any() == shuffled


def test_the_writers_of_mnists_test_set_are_unseen(build):
    federation, shuffled = build("mnist-writers"), build("mnist-writers", shuffled=True)
    assert (len(federation), federation.unseen.sum(), shuffled.unseen.sum()) == (
        836,
        297,
        217,
    )
    assert sizes_of(federation)[federation.unseen].sum() == 10_000 and not leaks(
        federation
    )
    assert min(getattr(federation, split).sizes.min() for split in SPLITS) >= 1


def test_chains_of_classes(build):
    """FedProx's and pFedMe's clients hold consecutive classes; no letter is held
    twice.
    """
    for name, classes in (
        ("mnist-two-digits", 2),
        ("femnist-letters", 5),
        ("pfedme-mnist", 2),
    ):
        federation = build(name)
        for client in (0, 9, 17):
            assert labels_of(federation, client) == {
                (client + step) % 10 for step in range(classes)
            }
        rows = np.concatenate([federation.train.rows, federation.test.rows])
        assert len(np.unique(rows)) == len(rows)
        assert sizes_of(federation).max() > 5 * sizes_of(federation).min()


def test_uniform_wishes_are_scaled_down_to_what_there_is(build):
    full, small = build("cgpfl-cifar"), build("cgpfl-cifar", low=200, high=1000)
    assert (
        0.97 * 60_000 < sizes_of(full).sum() <= 60_000 and sizes_of(full).max() < 5000
    )
    assert sizes_of(small).min() >= 197 and sizes_of(small).max() <= 1000, (
        "small wishes are met"
    )
    assert sizes_of(build("cgpfl-mnist")).sum() <= 60_000, "the training images alone"


def test_pfllibs_splits(build):
    blocks, drawn = build("pfllib-mnist"), build("pfllib-mnist", split="dirichlet")
    held = [frozenset(labels_of(blocks, client)) for client in range(20)]
    assert sorted(map(held.count, set(held))) == [4] * 5, (
        "all classes in common, or none"
    )
    assert sizes_of(drawn).sum() == 70_000 and drawn.test.sizes.min() >= 1
    assert sizes_of(drawn).min() >= 40
    assert (
        sizes_of(build("pfllib-mnist", split="dirichlet", points=400, alpha=0.5)).min()
        >= 10
    ), "of few, half a share"
    kinds = [len(labels_of(drawn, client)) for client in range(20)]
    assert len(set(kinds)) > 1 and min(kinds) < 5


def test_the_tasks_without_files():
    density, scalars, linear = (
        find("density").build(0),
        find("gaussian").build(0),
        find("pfedme-synthetic").build(0),
    )
    assert (len(density), {*density.train.sizes}, density.classes) == (100, {100}, 100)
    assert np.bincount(density.groups).tolist() == [25] * 4
    assert {*find("density").sized(samples=10).build(0).train.sizes} == {10}
    assert (
        len(scalars) == 20
        and scalars.train.sizes.min() >= 10
        and scalars.train.sizes.max() <= 100
    )
    assert (len(linear), linear.x.shape[1], linear.classes) == (
        100,
        60,
        10,
    ) and sizes_of(linear).min() >= 250
    assert share(linear, "test") == pytest.approx(0.1, abs=0.01)
    mixed = find("fedem-synthetic").sized(test=50).build(0)
    assert (len(mixed), mixed.x.shape[1], mixed.classes) == (300, 150, 2) and {
        *mixed.test.sizes
    } == {50}
    assert mixed.train.sizes.min() >= 50 and mixed.train.sizes.max() == 1000, (
        "as the released code draws them"
    )
    assert not any(map(leaks, (density, scalars, linear, mixed)))


SMALL = {"points": 800, "low": 20, "high": 60, "val": 0.2, "clients": 8}
ALL_CLIENTS = {"flamby-heart": 4, "flamby-tcga": 6, "spoken-wake-word": 6}
"""Scenarios that have no fewer clients."""


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "table"])
def test_every_scenario_can_be_small_and_repeats_by_its_seed(build, name):
    sizes = {
        key: value for key, value in SMALL.items() if key in SCENARIOS[name].parameters
    }
    first, again, other = (build(name, seed, **sizes) for seed in (0, 0, 1))
    assert (
        len(first) == ALL_CLIENTS.get(name, 8)
        and first.val.sizes.max() >= 1
        and not leaks(first)
    )
    for split in SPLITS:
        np.testing.assert_array_equal(
            getattr(first, split).rows, getattr(again, split).rows
        )
    np.testing.assert_array_equal(first.y, again.y)
    whole = build(name, 0, **{**sizes, "val": 0.0})
    np.testing.assert_array_equal(
        first.y[first.test.rows], whole.y[whole.test.rows], "val is none of the test's"
    )
    trained = [
        np.sort(federation.y[federation.train.rows].ravel())
        for federation in (first, other)
    ]
    same = all(
        np.array_equal(getattr(first, split).rows, getattr(other, split).rows)
        for split in SPLITS
    )
    assert not (same and np.array_equal(*trained)), "another seed is another federation"


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("emnist-label-shift", {"points": 10**6}, "cannot take 1000000 of 116323"),
        ("emnist-label-shift", {"points": 20}, "use fewer clients"),
        ("mnist-two-digits", {"points": 100}, "use fewer clients"),
        ("cifar-permuted", {"points": 50_001}, "points is 50001"),
        ("cifar-permuted", {"test": 0}, "test is 0"),
        ("emnist-writers", {"clients": 300}, "FEMNIST has 289 clients"),
        ("emnist-writers", {"unseen": 1.0}, "unseen is 1"),
        ("sent140", {"clients": 0}, "clients is 0"),
        ("cgpfl-mnist", {"low": 0}, "need 0 < low"),
        ("pfllib-cifar", {"classes": 11}, "11 classes per client is too many"),
    ],
)
def test_sizes_that_cannot_be_met_end_in_one_line(build, name, sizes, said):
    with pytest.raises(ValueError, match=said) as error:
        build(name, **sizes)
    assert "\n" not in str(error.value)


def test_who_reports_is_as_published():
    shares = {
        name: scenario.participation
        for name, scenario in SCENARIOS.items()
        if scenario.participation != 1
    }
    seen = {"emnist-writers": 214, "mnist-writers": 539}
    assert {
        name: int(shares.pop(name) * clients) for name, clients in seen.items()
    } == dict.fromkeys(seen, 20)
    assert shares == {
        **dict.fromkeys(
            (
                "mnist-two-digits",
                "femnist-letters",
                "sent140",
                "sent140-words",
                "pfedme-synthetic",
                "fedrep-cifar",
            ),
            0.1,
        ),
        **dict.fromkeys(("cifar-three-classes", "pfedme-mnist"), 0.25),
    }
