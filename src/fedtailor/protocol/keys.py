"""Counter-based randomness: every random number is a function of (seed, purpose, round, client id) alone.

So results do not depend on the order in which clients are listed, on which device trains them or on what ran before,
and methods that are equal on paper draw equal batches.
"""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def client_ids(names: Sequence[str]) -> NDArray[np.uint64]:
    """Stable 64-bit ids [m] of client names [m] (a digest of the name, so that they survive reordering and subsets).

    Raises:
        ValueError: two clients have one name.
    """
    ids = np.array(
        [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in names], np.uint64
    )
    if len(np.unique(ids)) != len(ids):
        seen: set[str] = set()
        twice = next((name for name in names if name in seen or seen.add(name)), names[0])
        raise ValueError(f"client {twice!r} is listed twice; give every client a name of its own")
    return ids


def draw_bits(seed: int, purpose: str, round: int, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits [m] for every client id [m], keyed by (seed, purpose, round, id)."""
    state = np.full(np.shape(ids), np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    with np.errstate(over="ignore"):
        for word in (np.uint64(zlib.crc32(purpose.encode())), np.uint64(round), np.asarray(ids, np.uint64)):
            state = _splitmix64(state + word)
    return state


def draw_uniform(seed: int, purpose: str, round: int, ids: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A uniform number in [0, 1) [m] for every client id [m], keyed as `draw_bits`."""
    return (draw_bits(seed, purpose, round, ids) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def client_keys(seed: int, round: int, ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Raw JAX key data [m, 2] for what clients [m] draw in a round; the purpose is folded in on the client."""
    bits = draw_bits(seed, "client", round, ids)
    return np.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def server_rng(seed: int, purpose: str, round: int) -> np.random.Generator:
    """The server's generator for one purpose in one round (FedFomo's exploration, ...)."""
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(purpose.encode()), round])


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood's finaliser: a bijection whose output passes BigCrush on counters."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
