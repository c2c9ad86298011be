"""Public sets: rows set aside are no longer trained on, and keep no label."""

from dataclasses import replace

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.data.federation import Rotations, load, load_shard, save, set_aside
from fedtailor.testing import classification

UNSEEN = np.array([False, True, False, False, False])


def plain(**options):
    return classification(public=0, **options)


def test_rows_are_moved_and_none_is_lost():
    before = plain()
    after = set_aside(before, 0.25)
    gone = before.train.sizes.sum() - after.train.sizes.sum()
    assert gone == len(after.public) == round(0.25 * before.train.sizes.sum())
    kept = before.x[after.train.rows]
    together = np.concatenate([kept, after.public])
    pool = before.x[before.train.rows]
    np.testing.assert_array_equal(np.unique(together, axis=0), np.unique(pool, axis=0))
    for split in ("val", "test"):
        np.testing.assert_array_equal(
            getattr(after, split).rows, getattr(before, split).rows
        )


def test_a_client_keeps_a_row_and_a_newcomer_all():
    before = plain(unseen=UNSEEN)
    after = set_aside(before, 0.999)
    seen, unseen = ~UNSEEN, UNSEEN
    assert (after.train.sizes[seen] == 1).all()
    np.testing.assert_array_equal(after.train.sizes[unseen], before.train.sizes[unseen])


def test_it_is_drawn_by_the_seed():
    one, same, other = (set_aside(plain(), 0.2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.public, same.public)
    assert not np.array_equal(one.public, other.public)


def test_a_file_keeps_it_and_the_digest_tells_it(tmp_path):
    federation = set_aside(plain(), 0.2)
    found = load(save(federation, tmp_path / "federation.safetensors"))
    np.testing.assert_array_equal(found.public, federation.public)
    assert found.digest == federation.digest
    others = (None, federation.public[::-1], federation.public[1:])
    digests = {replace(federation, public=public).digest for public in others}
    assert len(digests | {federation.digest}) == 4


def test_each_share_of_a_federation_has_it(tmp_path):
    federation = set_aside(plain(), 0.2)
    path = save(federation, tmp_path / "federation.safetensors")
    for part in (ft.federation.shard(federation, 1, of=2), load_shard(path, 1, of=2)):
        np.testing.assert_array_equal(part.own.public, federation.public)


def test_a_scenario_sets_rows_aside():
    whole, shared = (ft.scenarios.digits_rotated(public=share) for share in (0.0, 0.2))
    assert whole.public is None and "public" not in whole.describe()
    assert len(shared.public) == whole.train.sizes.sum() - shared.train.sizes.sum()
    assert f"public: {len(shared.public)} inputs" in shared.describe()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: set_aside(plain(), 1.0), "share is 1.0"),
        (lambda: set_aside(plain(), 1e-6), "less than a row"),
        (lambda: set_aside(classification(), 0.1), "has a public set already"),
        (lambda: replace(plain(), public=np.zeros((3, 5))), "public has the shape"),
        (lambda: replace(plain(), public=np.zeros((0, 4))), "a row or more"),
        (lambda: replace(plain(), public=np.zeros((3, 4), "float32")), "one type"),
        (
            lambda: Rotations()(ft.scenarios.digits_rotated(public=0.1)),
            "set rows aside after it",
        ),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message) as refused:
        wrong()
    assert "\n" not in str(refused.value)
