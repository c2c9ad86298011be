"""What users give, refused in one line where it makes no sense."""

import numpy as np
import pytest

from fedtailor.data.federation.checks import (
    check_finite,
    check_integer,
    check_seed,
    plain_array,
    plain_text,
)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, np.int64(5), np.uint8(3)])
def test_seeds_of_32_bits_pass(seed):
    assert check_seed(seed) == seed and type(check_seed(seed)) is int


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "seed is -1; it must be 0 or more"),
        (2**32, r"seed is 4294967296; it must be at most 2\^32 - 1"),
        (1.0, "seed is 1.0; it must be a whole number"),
        (True, "seed is True; it must be a whole number"),
        (None, "seed is None; it must be a whole number"),
        ("3", "seed is '3'; it must be a whole number"),
    ],
)
def test_seeds_that_would_share_a_key_are_refused(seed, message):
    with pytest.raises(ValueError, match=message):
        check_seed(seed)


def test_numbers_are_finite():
    check_finite(0.5, "alpha")
    check_integer(3, "clients", 1)
    for value in (np.nan, np.inf, "1", None, True):
        with pytest.raises(
            ValueError, match=r"alpha is .*; it must be a finite number"
        ):
            check_finite(value, "alpha")
    with pytest.raises(ValueError, match="clients is 0; it must be 1 or more"):
        check_integer(0, "clients", 1)


def test_arrays_become_plain():
    for values in ([[1, 2]], np.ma.array([[1, 2]]), np.ma.array([[1, 2]], mask=False)):
        found = plain_array(values, "x")
        assert type(found) is np.ndarray and found.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            np.ma.array([1, 2, 3], mask=[False, False, True]),
            "row 2 of x is masked; fill it in or drop",
        ),
        (
            np.ma.array([[1, 2], [3, 4]], mask=[[False, False], [True, False]]),
            "row 1 of x is masked",
        ),
        ([[1, 2], [3]], "x is not an array: its rows differ in length"),
    ],
)
def test_what_is_masked_or_ragged_is_refused(values, message):
    with pytest.raises(ValueError, match=message) as raised:
        plain_array(values, "x")
    assert "\n" not in str(raised.value)


def test_text_is_text_of_any_kind():
    for values in (
        ["é", "b"],
        np.array(["é", "b"], object),
        np.array(["é".encode(), b"b"]),
        np.array([b"\xc3\xa9", "b"], object),
    ):
        assert plain_text(np.asarray(values), "client").tolist() == ["é", "b"]
    assert plain_text(np.array([3, "b"], object), "client").tolist() == ["3", "b"]


class NAType:
    """As pandas calls its missing cell."""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            np.array(["a", None], object),
            "row 1 has no client; fill it in or drop the row",
        ),
        (np.array(["a", float("nan")], object), "row 1 has no client"),
        (np.array(["a", np.float32("nan")], object), "row 1 has no client"),
        (np.array(["a", NAType()], object), "row 1 has no client"),
        (np.array(["a", ""]), "row 1 has an empty client"),
        (np.array(["", ""]), "row 0 has an empty client"),
        (np.array([b"a", b"\xff"]), "bytes that are not UTF-8"),
        (np.array(["a", b"\xff"], object), "bytes that are not UTF-8"),
    ],
)
def test_missing_and_empty_text_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        plain_text(values, "client")
