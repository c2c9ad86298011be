"""The coordinator's part in secure sums: it relays keys and sealed shares, adds masked
vectors, and unmasks the sum.
"""

import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray

from fedtailor.protocol import Sums, require
from fedtailor.remote.masks import (
    KEY_BYTES,
    SEALED_BYTES,
    SECRET_BYTES,
    FixedPoint,
    KeyPair,
    commitment,
    join,
    mask_of,
)
from fedtailor.remote.messages import ArraySpec
from fedtailor.remote.secure_sums import (
    FEWEST,
    KEYS,
    NEIGHBOURS,
    SHARES,
    UNMASK,
    VECTORS,
    SecureSums,
    lonely,
    neighbourhoods,
    rescaled,
)
from fedtailor.remote.sum_client import add_pair_mask
from fedtailor.remote.transport import TooFewClients

Arrays = Mapping[str, np.ndarray]

MASKED = "masked"
"""Of an answer: the vectors that are added [s, n]."""

TRIES = 100
"""Choices of shares that are tried at random where several are wrong."""


@dataclass(frozen=True)
class Stage:
    """What the clients of a sum are asked in one stage.

    Attributes:
        task: the stage.
        session: name of the sum.
        arrays: what each client is sent, by name.
        among: its neighbours, where it is told them.
        expected: what each answer must hold.
    """

    task: str
    session: str
    arrays: Mapping[str, Arrays]
    expected: Mapping[str, Mapping[str, ArraySpec]]
    among: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def told(self, client: str) -> dict[str, Any]:
        """What stands beside the arrays in the message to a client."""
        return {"name": self.session} | (
            {"among": list(self.among[client])} if self.among else {}
        )


Ask = Callable[[Stage], Mapping[str, Arrays]]
"""Asks clients to do a stage; returns the answers of those that did."""


class SecureSum:
    """One run of the protocol: the weighted sums of one vector of each client.

    Args:
        ask: carries the stages.
        names: of the clients that hold a vector.
        size: entries of each vector.
        settings: of the job.
        minimum: clients whose vectors must be in the sums.
        tell: is given a line for every client whose shares are wrong.
        neighbours: with how many others a client shares, where there are more.
    """

    def __init__(
        self,
        ask: Ask,
        names: Sequence[str],
        size: int,
        settings: SecureSums,
        *,
        minimum: int = 1,
        tell: Callable[[str], None] = lambda line: None,
        neighbours: int = NEIGHBOURS,
    ) -> None:
        self._ask, self._names, self._size, self._settings = (
            ask,
            tuple(names),
            size,
            settings,
        )
        self._minimum, self._tell, self._neighbours = (
            max(minimum, FEWEST),
            tell,
            neighbours,
        )
        self._session = secrets.token_hex(8)
        self._among: dict[str, tuple[str, ...]] = {}
        self._masking: dict[str, bytes] = {}
        self._commitments: dict[str, bytes] = {}

    def run(self, weights: Float[np.ndarray, "s c"]) -> Sums:
        """The sums [s, n] over the clients, and which of them there are.

        Each row of weights keeps its sum of sizes: where a client is lost, the others
        weigh more. Off the exact sum by at most half a step (`FixedPoint`) for each
        client, times that sum over the part of it that is left. A sum that would not
        hide one client's vector is left out, and said.

        Raises:
            TooFewClients: too many are lost for a sum to be had, or to hide anything;
                nothing has been unmasked.
            ValueError: no sum would hide a single client's vector.
        """
        shared = self._share(self._exchange_keys())
        there = self._are_in(shared)
        alone = lonely(weights, there, self._names)
        require(
            len(alone) < len(weights),
            "; ".join(alone.values())
            + "; use fewer streams, or weights that differ less",
        )
        for line in alone.values():
            self._tell(f"{line}; it is left out of this round")
        kept = np.array(
            [number for number in range(len(weights)) if number not in alone]
        )
        scaled = rescaled(weights[kept], there)
        masked = self._collect(shared, scaled)
        arrived = self._are_in(masked)
        self._require(masked)
        for line in lonely(scaled, arrived, self._names).values():
            raise TooFewClients(f"{line}, as others are lost; the round does not count")
        total = FixedPoint(self._settings.range).decode(self._unmask(masked, shared))
        # what is there of each row's weights is scaled up to all of it
        left = np.abs(np.where(arrived, scaled, 0.0)).sum(axis=1)
        whole = np.abs(weights[kept]).sum(axis=1)
        scale = np.divide(whole, left, out=np.zeros_like(left), where=left > 0)
        sums, found = np.zeros((len(weights), self._size)), np.zeros(len(weights), bool)
        sums[kept], found[kept] = total * scale[:, None], left > 0
        return sums, found

    # stages
    # ----------------------------------------------------------------------------------

    def _exchange_keys(self) -> Mapping[str, Arrays]:
        key = ArraySpec((KEY_BYTES,), "uint8")
        specs = {name: {"masking": key, "sealing": key} for name in self._names}
        found = self._ask(
            Stage(KEYS, self._session, {name: {} for name in self._names}, specs)
        )
        self._require(found)
        return found

    def _share(self, keys: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        self._among = neighbourhoods(tuple(keys), self._neighbours)
        self._masking = {name: own["masking"].tobytes() for name, own in keys.items()}
        arrays = {
            name: {
                kind: np.stack([keys[other][kind] for other in among])
                for kind in ("masking", "sealing")
            }
            for name, among in self._among.items()
        }
        specs = {
            name: {
                "shares": ArraySpec((len(among), SEALED_BYTES), "uint8"),
                "commitment": ArraySpec((commitment_bytes(),), "uint8"),
            }
            for name, among in self._among.items()
        }
        found = self._ask(Stage(SHARES, self._session, arrays, specs, self._among))
        self._require(found)
        self._commitments = {
            name: own["commitment"].tobytes() for name, own in found.items()
        }
        return found

    def _collect(
        self, shared: Mapping[str, Arrays], weights: Float[np.ndarray, "s c"]
    ) -> Mapping[str, Arrays]:
        nothing = np.zeros(SEALED_BYTES, np.uint8)
        arrays, specs = {}, {}
        for name in shared:
            among = self._among[name]
            sealed = [
                (
                    shared[other]["shares"][self._among[other].index(name)]
                    if other in shared
                    else nothing
                )
                for other in among
            ]
            arrays[name] = {
                "shares": np.stack(sealed),
                "there": np.array([other in shared for other in among]),
                "weights": np.ascontiguousarray(weights[:, self._names.index(name)]),
            }
            specs[name] = {MASKED: ArraySpec((len(weights), self._size), "uint32")}
        return self._ask(Stage(VECTORS, self._session, arrays, specs))

    def _unmask(
        self, masked: Mapping[str, Arrays], shared: Mapping[str, Arrays]
    ) -> UInt32[np.ndarray, "s n"]:
        """The sum of the masked vectors, without the masks."""
        arrays = {
            name: {
                "arrived": np.array([other in masked for other in self._among[name]])
            }
            for name in masked
        }
        specs = {
            name: {"shares": ArraySpec((len(self._among[name]), SECRET_BYTES), "uint8")}
            for name in masked
        }
        opened = self._ask(Stage(UNMASK, self._session, arrays, specs))
        total = sum(
            (own[MASKED] for own in masked.values()), start=np.zeros((), np.uint32)
        )
        for name in shared:
            others = [other for other in self._among[name] if other in masked]
            if name in masked:
                total -= mask_of(
                    self._recover(name, opened, arrived=True), total.size
                ).reshape(total.shape)
            elif others:
                keys = KeyPair(self._recover(name, opened, arrived=False))
                for other in others:
                    add_pair_mask(
                        total,
                        keys,
                        self._masking[other],
                        self._session,
                        other,
                        name,
                        off=True,
                    )
        return total

    # secrets
    # ----------------------------------------------------------------------------------

    def _recover(
        self, owner: str, opened: Mapping[str, Arrays], *, arrived: bool
    ) -> bytes:
        """The secret of a client's own mask, or of its key, from its neighbours'
        shares.

        Raises:
            TooFewClients: these are too few, or wrong.
        """
        among = self._among[owner]
        threshold = self._settings.needed(len(among))
        shares = {
            place: opened[other]["shares"][self._among[other].index(owner)].tobytes()
            for place, other in enumerate(among)
            if other in opened
        }
        if len(shares) < threshold:
            self._refuse(len(shares), len(among), threshold)

        def secret_of(places: Sequence[int]) -> bytes | None:
            """What follows from the shares at some places, if it is what the owner has
            shared.
            """
            secret = _joined(shares, places)
            if secret is None:
                return None
            if arrived:
                return (
                    secret if commitment(secret) == self._commitments[owner] else None
                )
            return secret if KeyPair(secret).public == self._masking[owner] else None

        for good in _choices(tuple(shares), threshold):
            secret = secret_of(good)
            if secret is not None:
                break
        else:
            raise TooFewClients(
                "the shares that clients opened do not unmask the sum with client"
                f" {owner}: some are wrong; the round does not count"
            )
        # fewer than `threshold` are left: where the secret follows from all of them,
        # none need be looked at alone
        others = tuple(place for place in shares if place not in good)
        if others and secret_of((*others, *good)[:threshold]) is None:
            for place in others:
                if secret_of((*good[1:], place)) is None:
                    self._tell(
                        f"client {among[place]}: its share of a secret of client"
                        f" {owner} is wrong; it is not used"
                    )
        return secret

    # who is there
    # ----------------------------------------------------------------------------------

    def _are_in(self, found: Mapping[str, Arrays]) -> NDArray[np.bool_]:
        return np.array([name in found for name in self._names], bool)

    def _require(self, found: Mapping[str, Arrays]) -> None:
        """Refuse to go on with too few clients, of all or of somebody's neighbours."""
        if len(found) < self._minimum:
            self._refuse(len(found), len(self._names), self._minimum)
        for name in found:
            among = self._among.get(name, ())
            left, needed = (
                sum(other in found for other in among),
                self._settings.needed(len(among)),
            )
            if among and left < needed:
                self._refuse(left, len(among), needed)

    def _refuse(self, left: int, of: int, needed: int) -> None:
        raise TooFewClients(
            f"{left} of {of} clients are left for a secure sum, and it needs {needed};"
            " the round does not count"
        )


def commitment_bytes() -> int:
    """Length of a commitment."""
    return len(commitment(b""))


def _choices(places: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Choices of `count` places: some, then some without each of them (one of which is
    wrong, say), then any.
    """
    yield tuple(places[:count])
    for wrong in places if len(places) > count else ():
        yield tuple(random.sample([place for place in places if place != wrong], count))
    for _ in range(TRIES):
        yield tuple(random.sample(places, count))


def _joined(shares: Mapping[int, bytes], places: Sequence[int]) -> bytes | None:
    try:
        return join({place: shares[place] for place in places})
    except ValueError:
        return None
