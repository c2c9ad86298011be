"""Personal trees, and the file of boosted trees."""

import numpy as np
import pytest

from fedtailor.data.federation import Federation, Ragged
from fedtailor.statistics.boosting import (
    BoostingSettings,
    boost_federation,
    load_boosted,
    save_boosted,
)

SETTINGS = BoostingSettings(trees=15, least_rows=5, most_leaves=8)


def federation(seed=0):
    """Two clients of one law, one of the opposite law, one without validation rows, and
    one that never trains.
    """
    rng = np.random.default_rng(seed)
    sizes, signs = (200, 200, 200, 60, 60), (1, 1, -1, 1, 1)
    x = rng.normal(size=(sum(sizes), 3)).astype(np.float32)
    starts = np.cumsum((0, *sizes))
    owners = np.repeat(np.arange(5), sizes)
    law = np.sin(2 * x[:, 0]) + x[:, 1] ** 2
    y = np.array(signs)[owners] * law + 0.1 * rng.normal(size=len(x))
    train, val, test = [], [], []
    for client, size in enumerate(sizes):
        rows = np.arange(starts[client], starts[client] + size)
        third = size // 3
        train.append(rows[: size - third])
        val.append(rows[size - third : size - third // 2])
        test.append(rows[size - third // 2 :])
    val[3] = rows[:0]
    unseen = np.array([False, False, False, False, True])
    names = ("a", "b", "opposite", "without", "new")
    parts = [Ragged.of(it) for it in (train, val, test)]
    return Federation(x, y.astype(np.float32), *parts, names, unseen=unseen)


@pytest.fixture(scope="module")
def boosted():
    return boost_federation(federation(), SETTINGS)


def test_a_client_of_its_own_law_takes_its_own_trees(boosted):
    data = federation()
    errors = {}
    for name in data.names:
        target = data.client(name).test.y
        shared = boosted.shared.outputs(data.client(name).test.x)
        own = boosted.outputs(data, name, "test")
        errors[name] = [np.mean((it - target) ** 2) for it in (shared, own)]
    assert errors["opposite"][1] < 0.5 * errors["opposite"][0]
    assert boosted.models["opposite"].own > 0
    for name in ("without", "new"):
        assert boosted.models[name].own == 0
        assert errors[name][0] == errors[name][1]


def test_without_personal_trees_all_have_the_shared_ones():
    data = federation()
    found = boost_federation(data, SETTINGS, personal=False)
    for model in found.models.values():
        assert model.trees == found.shared.trees


def test_files_hold_the_same_model(boosted, tmp_path):
    data = federation()
    for name in ("opposite", "new"):
        model = boosted.models[name]
        read = load_boosted(save_boosted(model, tmp_path / f"{name}.safetensors"))
        np.testing.assert_array_equal(read.outputs(data.x), model.outputs(data.x))
        assert (read.own, read.classes) == (model.own, model.classes)


def test_damaged_files_are_told(boosted, tmp_path):
    path = save_boosted(boosted.shared, tmp_path / "trees.safetensors")
    content = path.read_bytes()
    expected = boosted.shared.outputs(federation().x)
    rng = np.random.default_rng(0)
    for _ in range(60):
        changed = bytearray(content)
        place = int(rng.integers(len(changed)))
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        try:
            found = load_boosted(path)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found.outputs(federation().x), expected)
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match="is damaged"):
        load_boosted(path)
    with pytest.raises(ValueError, match="there is no file"):
        load_boosted(tmp_path / "no")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trees": 0}, "trees is 0"),
        ({"most_bins": 256}, "most_bins is 256"),
        ({"rate": 0}, "rate is 0"),
        ({"penalty": -1}, "penalty is -1"),
        ({"least_rows": 0}, "least_rows is 0"),
        ({"most_leaves": 1}, "most_leaves is 1"),
        ({"most_depth": 0, "most_leaves": 3}, "most_depth is 0"),
        ({"most_leaves": None}, "bounds a tree"),
    ],
)
def test_settings_are_checked(settings, problem):
    with pytest.raises(ValueError, match=problem):
        BoostingSettings(**settings)
