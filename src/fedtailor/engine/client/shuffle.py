"""Random permutations of {0, ..., n-1} without sorting or padding, for an n that is known
at run time only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from fedtailor.models.no_fuse import no_fuse

ROUNDS = 16
"""Rounds of the shuffle. Each moves an element with probability 1/2, so that one in
65,536 elements is never moved.
"""


# Compiled by itself, so that its 350 operations are traced once for each batch size, not
# in every loop of every program.
@jax.jit
def shuffled(
    positions: Int[Array, " b"],
    n: Int[Array, ""],
    bits: UInt32[Array, " 2"],
    epoch: Int[Array, ""],
) -> Int[Array, " b"]:
    """Apply a random permutation of {0..n-1} to some of its elements.

    The swap-or-not shuffle (Hoang, Morris and Rogaway, CRYPTO 2012): in each round a
    random k pairs x with (k - x) mod n, and one random bit a pair says whether the two
    are swapped. There is no table, sort or rejection: the cost is proportional to the
    number of positions.

    Args:
        positions: each below n.
        n: the number of elements.
        bits: random bits, which determine the permutations of all epochs.
        epoch: selects one of these permutations.

    Returns:
        The positions after the permutation.
    """
    size = jnp.maximum(n, 1).astype(jnp.uint32)
    salts, pairings = _schedule(bits, epoch, size)
    x = positions.astype(jnp.uint32)
    # A swap is its own inverse, so every round is a permutation, and so are all of them
    # together.
    for salt, k in zip(salts, pairings, strict=True):
        # (k - x) mod n in unsigned arithmetic
        partner = jnp.where(k >= x, k - x, k + size - x)
        # Both elements of a pair get the same bit, which is a hash of the larger one.
        swap = _hash(jnp.maximum(x, partner) ^ salt) & 1
        x = jnp.where(swap == 1, partner, x)
    return x.astype(jnp.int32)


@no_fuse  # otherwise XLA would recompute it for every position
def _schedule(
    bits: UInt32[Array, " 2"], epoch: Int[Array, ""], size: UInt32[Array, ""]
) -> tuple[UInt32[Array, " rounds"], UInt32[Array, " rounds"]]:
    """Each round's salt of the random bits, and its k below `size`."""
    # The salts depend on the first word of the bits, the pairings on the salts and on the
    # second word.
    epoch_hash = _hash(epoch.astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    left = bits[0] ^ epoch_hash
    right = bits[1]
    salts = _hash(left + jnp.arange(ROUNDS, dtype=jnp.uint32) * jnp.uint32(0x85EBCA6B))
    return salts, _scaled(_hash(salts ^ right), size)


def _hash(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Wellons' lowbias32: a bijection on 32-bit words with near-ideal avalanche."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _scaled(
    bits: UInt32[Array, "..."], size: UInt32[Array, ""]
) -> UInt32[Array, "..."]:
    """floor(bits * size / 2^32): random bits as numbers from 0 to size - 1, without a
    division, which XLA would not fuse.
    """
    # The upper half of a 64-bit product from 16-bit halves, as JAX has no 64-bit
    # integers by default.
    high, low = bits >> 16, bits & 0xFFFF
    size_high, size_low = size >> 16, size & 0xFFFF
    middle = high * size_low + (low * size_low >> 16)
    carry = (middle & 0xFFFF) + low * size_high
    return high * size_high + (middle >> 16) + (carry >> 16)
