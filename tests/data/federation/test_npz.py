"""Damaged and hostile .npz files."""

import os
from contextlib import suppress

import numpy as np
import pytest

from fedtailor.data.federation import from_npz


def test_flipped_bits_of_an_npz_end_in_one_line_or_not_at_all(tmp_path):
    path = tmp_path / "own.npz"
    for kind in (np.savez, np.savez_compressed):
        kind(
            path,
            x=np.arange(40.0).reshape(20, 2),
            y=np.arange(20) % 2,
            client=np.array(list("abcd") * 5),
        )
        whole, bits = path.read_bytes(), np.random.default_rng(0)
        refused = 0
        for bit in bits.integers(0, 8 * len(whole), 150):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with suppress(ValueError):
                refused += 1
                np.testing.assert_array_equal(
                    from_npz(path).x, np.arange(40.0).reshape(20, 2)
                )
        assert refused == 150


def bomb(path, size):
    """An .npz of a few kilobytes that says that x has `size` bytes."""
    np.savez_compressed(
        path, x=np.zeros((9, 1)), y=np.zeros(9), client=np.zeros(9, int)
    )
    content = path.read_bytes()
    at = (
        content.index(b"PK\1\2") + 24
    )  # the uncompressed size of the first member, in the directory at the end
    path.write_bytes(content[:at] + size.to_bytes(4, "little") + content[at + 4 :])


def test_an_npz_that_says_it_is_larger_than_the_memory_is_refused_at_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fedtailor._base.memory.total_memory", lambda: 2**30)
    bomb(tmp_path / "own.npz", 2**32 - 2)
    with pytest.raises(
        ValueError, match=r"own.npz needs 4 GiB of memory, and this machine has 1"
    ):
        from_npz(tmp_path / "own.npz")


@pytest.mark.parametrize(
    ("make", "message"),
    [(os.mkfifo, "is not a regular file"), (os.mkdir, "is a folder")],
)
def test_what_is_no_npz_file_is_not_waited_for(tmp_path, make, message):
    make(tmp_path / "own.npz")
    with pytest.raises(ValueError, match=message):
        from_npz(tmp_path / "own.npz")
