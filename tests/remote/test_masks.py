"""What secure sums are made of: masks that look random, shares, seals, and numbers in
fixed point.
"""

import numpy as np
import pytest

pytest.importorskip(
    "cryptography", reason="secure sums need `cryptography` (extra federation)"
)
pytest.importorskip("Crypto", reason="secure sums need PyCryptodome (extra federation)")

from fedtailor.aggregation.secure_sums import FixedPoint
from fedtailor.remote.sums.masks import (
    KeyPair,
    combine_shares,
    commitment,
    create_shares,
    decrypt,
    encrypt,
    expand_mask,
)


def test_sums_in_fixed_point_are_off_by_half_a_step_a_client():
    point, rng, clients = FixedPoint(64.0), np.random.default_rng(0), 9
    assert point.step == pytest.approx(64 / 2**31, rel=1e-3)
    values = rng.uniform(-64, 64, (clients, 200)) / clients
    total = sum((point.encode(row) for row in values), np.zeros(200, np.uint32))
    assert (
        0
        < np.abs(point.decode(total) - values.sum(0)).max()
        <= clients / 2 * point.step
    )
    # the largest sum fits, of either sign, also where everybody rounds away from zero
    edge = sum(
        (point.encode(np.full(2, sign * 64 / 3)) for sign in (1, 1, 1)),
        np.zeros(2, np.uint32),
    )
    np.testing.assert_allclose(point.decode(edge), 64, atol=3 * point.step)
    np.testing.assert_allclose(
        point.decode(point.encode(np.array([-64.0, 64.0]))), [-64, 64], atol=point.step
    )
    for wrong in (65.0, np.nan, -np.inf):
        with pytest.raises(
            ValueError, match=r"sums hold numbers up to 64; raise sum_range"
        ):
            point.check(np.array([0.0, wrong]))


def test_masks_look_uniform_and_are_a_secrets_own():
    one, other = (
        expand_mask(bytes(16), (100_000,)),
        expand_mask(bytes(15) + b"\1", (100_000,)),
    )
    np.testing.assert_array_equal(one, expand_mask(bytes(16), (100_000,)))
    for mask in (
        one,
        other,
    ):  # 16 bins of 6250 +- 77: chi square with 15 degrees of freedom
        counts = np.bincount(mask >> 28, minlength=16)
        assert ((counts - 6250) ** 2 / 6250).sum() < 45
        low = np.bincount(mask & 15, minlength=16)
        assert ((low - 6250) ** 2 / 6250).sum() < 45
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.02


def test_two_clients_agree_on_a_key_for_each_purpose():
    one, other = KeyPair(bytes(16)), KeyPair(b"\1" * 16)
    key = one.agree_on_key(other.public, "mask")
    assert (
        key
        == other.agree_on_key(one.public, "mask")
        != one.agree_on_key(other.public, "shares")
    )
    assert (
        key != one.agree_on_key(KeyPair(b"\2" * 16).public, "mask") and len(key) == 32
    )
    with pytest.raises(ValueError, match="is not valid"):
        one.agree_on_key(
            bytes(32), "mask"
        )  # a point of small order, with which every key would be the same


def test_what_is_sealed_cannot_be_changed():
    key, sealed = bytes(32), encrypt(bytes(32), b"share", "a b")
    assert decrypt(key, sealed, "a b") == b"share"
    for wrong in (
        (key, sealed[:-1] + b"\0", "a b"),
        (key, sealed, "b a"),
        (b"\1" * 32, sealed, "a b"),
    ):
        with pytest.raises(ValueError, match="changed on the way"):
            decrypt(*wrong)


def test_a_threshold_of_shares_gives_the_secret_and_fewer_do_not():
    secret = bytes(range(16))
    shares = dict(enumerate(create_shares(secret, 3, 5)))
    for places in ((0, 1, 2), (4, 2, 0)):
        assert combine_shares({place: shares[place] for place in places}) == secret
    assert combine_shares({place: shares[place] for place in (0, 1)}) != secret
    wrong = {0: shares[0], 1: shares[1], 2: shares[3]}
    assert combine_shares(wrong) != secret and commitment(
        combine_shares(wrong)
    ) != commitment(secret)
