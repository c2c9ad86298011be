"""Counter-based randomness: every random number is a function of (seed, purpose, round,
client id) alone.

Results therefore do not depend on the order in which clients are listed, on the device
that trains them, or on what ran before; and methods that are equal on paper draw equal
batches.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

UINT64_MAX = 0xFFFFFFFFFFFFFFFF


def client_ids(names: Sequence[str]) -> NDArray[np.uint64]:
    """Stable ids of clients: digests of their names, which do not depend on the other
    clients or on their order.

    Args:
        names: the clients' names [m].

    Returns:
        64-bit ids [m], in the order of the names.

    Raises:
        ValueError: two clients have one name.
    """
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    ids = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
    if len(np.unique(ids)) != len(ids):
        repeated = [name for name, times in Counter(names).items() if times > 1]
        name = repeated[0] if repeated else names[0]
        raise ValueError(
            f"client {name!r} is listed twice; give every client a name of its own"
        )
    return ids


def draw_bits(
    seed: int, purpose: str, round: int, ids: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Random bits keyed by (seed, purpose, round, client id).

    Returns:
        64 random bits [m] for every client id [m].
    """
    # Hash the four numbers one after another: each is added to the state, which is then
    # mixed. The first three are the same for all clients.
    state = seed & UINT64_MAX
    for word in (zlib.crc32(purpose.encode()), int(round)):
        state = _splitmix64(state + word)
    return _splitmix64(state + np.asarray(ids, np.uint64))


def draw_uniform(
    seed: int, purpose: str, round: int, ids: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Uniform random numbers keyed as `draw_bits`.

    Returns:
        A number in [0, 1) for every client id [m].
    """
    # the 53 bits that the mantissa of a double holds
    bits = draw_bits(seed, purpose, round, ids) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def client_keys(seed: int, round: int, ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Random keys of clients [m] in a round. Each client folds in the purpose itself.

    Returns:
        JAX key data [m, 2] (for threefry: the high and the low word of 64 bits).
    """
    bits = draw_bits(seed, "client", round, ids)
    high = bits >> np.uint64(32)
    low = bits & np.uint64(0xFFFFFFFF)
    return np.stack([high, low], axis=-1).astype(np.uint32)


def server_rng(
    seed: int, purpose: str, round: int, ids: Iterable[np.uint64] = ()
) -> np.random.Generator:
    """The server's random generator for one purpose in one round (FedFomo's
    exploration, ...), and for some clients if their ids are given.
    """
    words = [seed & UINT64_MAX, zlib.crc32(purpose.encode()), round]
    return np.random.default_rng([*words, *(int(number) for number in ids)])


def _splitmix64(x: Any) -> Any:
    """Steele, Lea and Flood's finaliser: a bijection whose output passes BigCrush on
    counters.

    Args:
        x: a whole number, or an array of 64-bit ones; all arithmetic is modulo 2^64.
    """
    x = (x + 0x9E3779B97F4A7C15) & UINT64_MAX
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & UINT64_MAX
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & UINT64_MAX
    return x ^ (x >> 31)
