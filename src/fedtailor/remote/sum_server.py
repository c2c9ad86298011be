"""The coordinator's part in secure sums.

It relays keys and sealed shares between clients, adds masked vectors, and unmasks the
sum. Clients may be lost at every stage. Until the last one nothing has been unmasked,
and whoever is missing from a stage is left out of the next; if too few remain, the
round fails, and all that was sent stays random numbers.
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
    neighbourhoods,
    normalized,
    revealing_sums,
)
from fedtailor.remote.sum_client import add_pair_mask
from fedtailor.remote.transport import TooFewClients

Arrays = Mapping[str, np.ndarray]

COMMITMENT_BYTES = len(commitment(b""))

MASKED = "masked"
"""Name of the array in an answer that holds the masked vectors [s, n]."""

TRIES = 100
"""Subsets of shares that are drawn at random where several shares are wrong."""


@dataclass(frozen=True)
class Stage:
    """What the clients of a sum are asked in one stage.

    Attributes:
        task: the stage.
        session: name of the sum.
        arrays: what each client is sent, by the client's name.
        expected: what each client's answer must hold.
        neighbours: of each client, in the stage in which it must know them.
    """

    task: str
    session: str
    arrays: Mapping[str, Arrays]
    expected: Mapping[str, Mapping[str, ArraySpec]]
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def told(self, client: str) -> dict[str, Any]:
        """The plain values beside the arrays in the message to a client."""
        told: dict[str, Any] = {"name": self.session}
        if self.neighbours:
            told["among"] = list(self.neighbours[client])
        return told


Ask = Callable[[Stage], Mapping[str, Arrays]]
"""Asks clients to do a stage; returns the answers of those that did, by name."""


class SecureSum:
    """One run of the protocol: the weighted sums of one vector of each client.

    Args:
        ask: carries the stages.
        names: of the clients that hold a vector.
        size: entries of each vector.
        settings: of the job.
        minimum: the fewest clients whose vectors must be in the sums.
        tell: is given a line for every sum that is left out, and for every client whose
            shares are wrong.
        neighbours: with how many others a client shares, if there are more than that.
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
        self._ask, self._names = ask, tuple(names)
        self._size, self._settings = size, settings
        self._minimum, self._tell = max(minimum, FEWEST), tell
        self._most_neighbours = neighbours
        self._session = secrets.token_hex(8)
        # Who shares with whom, and what clients sent in the first two stages.
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._masking_keys: dict[str, bytes] = {}
        self._commitments: dict[str, bytes] = {}

    def run(self, weights: Float[np.ndarray, "s c"]) -> Sums:
        """Add the clients' vectors.

        The sizes of each row of weights keep their sum: where a client is lost, the
        others weigh more. A sum that would not hide one client's vector is left out.

        Args:
            weights: of each client in each sum.

        Returns:
            The sums [s, n], and which of them there are [s]. Each is off by at most
            half a step (`FixedPoint`) for each client, times the sum of its weights'
            sizes over the part of that which is left.

        Raises:
            TooFewClients: too many are lost for a sum to be had, or to hide anything;
                nothing has been unmasked.
            ValueError: no sum would hide a single client's vector.
        """
        shared = self._share(self._exchange_keys())
        present = self._present(shared)
        revealing = revealing_sums(weights, present, self._names)
        require(
            len(revealing) < len(weights),
            "; ".join(revealing.values())
            + "; use fewer streams, or weights that differ less",
        )
        for line in revealing.values():
            self._tell(f"{line}; it is left out of this round")
        hiding = np.array([row not in revealing for row in range(len(weights))])
        scaled = normalized(weights[hiding], present)
        masked = self._collect(shared, scaled)
        # The last check before anything is unmasked: which vectors arrived is known.
        arrived = self._present(masked)
        self._check_enough(masked)
        for line in revealing_sums(scaled, arrived, self._names).values():
            raise TooFewClients(f"{line}, as others are lost; the round does not count")
        total = FixedPoint(self._settings.range).decode(self._unmask(masked, shared))
        # Each sum is scaled from the weights that are left to what it was asked for.
        left = np.abs(np.where(arrived, scaled, 0.0)).sum(axis=1)
        whole = np.abs(weights[hiding]).sum(axis=1)
        scale = np.divide(whole, left, out=np.zeros_like(left), where=left > 0)
        sums = np.zeros((len(weights), self._size))
        sums[hiding] = total * scale[:, None]
        available = np.zeros(len(weights), bool)
        available[hiding] = left > 0
        return sums, available

    # stages
    # ----------------------------------------------------------------------------------

    def _exchange_keys(self) -> Mapping[str, Arrays]:
        """Ask each client for the public keys of two pairs."""
        key = ArraySpec((KEY_BYTES,), "uint8")
        arrays: dict[str, Arrays] = {name: {} for name in self._names}
        specs = {name: {"masking": key, "sealing": key} for name in self._names}
        answers = self._ask(Stage(KEYS, self._session, arrays, specs))
        self._check_enough(answers)
        return answers

    def _share(self, keys: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        """Send each client its neighbours' keys, and ask for sealed shares for them."""
        self._neighbours = neighbourhoods(tuple(keys), self._most_neighbours)
        self._masking_keys = {
            name: pair["masking"].tobytes() for name, pair in keys.items()
        }
        arrays, specs = {}, {}
        for name, neighbours in self._neighbours.items():
            arrays[name] = {
                kind: np.stack([keys[other][kind] for other in neighbours])
                for kind in ("masking", "sealing")
            }
            specs[name] = {
                "shares": ArraySpec((len(neighbours), SEALED_BYTES), "uint8"),
                "commitment": ArraySpec((COMMITMENT_BYTES,), "uint8"),
            }
        answers = self._ask(
            Stage(SHARES, self._session, arrays, specs, self._neighbours)
        )
        self._check_enough(answers)
        self._commitments = {
            name: answer["commitment"].tobytes() for name, answer in answers.items()
        }
        return answers

    def _collect(
        self, shared: Mapping[str, Arrays], weights: Float[np.ndarray, "s c"]
    ) -> Mapping[str, Arrays]:
        """Send each client the shares sealed for it, and ask for its masked vector."""
        nothing = np.zeros(SEALED_BYTES, np.uint8)
        arrays, specs = {}, {}
        for name in shared:
            neighbours = self._neighbours[name]
            sealed = []
            for other in neighbours:
                if other in shared:
                    row = self._neighbours[other].index(name)
                    sealed.append(shared[other]["shares"][row])
                else:
                    sealed.append(nothing)
            arrays[name] = {
                "shares": np.stack(sealed),
                "there": np.array([other in shared for other in neighbours]),
                "weights": np.ascontiguousarray(weights[:, self._names.index(name)]),
            }
            specs[name] = {MASKED: ArraySpec((len(weights), self._size), "uint32")}
        return self._ask(Stage(VECTORS, self._session, arrays, specs))

    def _unmask(
        self, masked: Mapping[str, Arrays], shared: Mapping[str, Arrays]
    ) -> UInt32[np.ndarray, "s n"]:
        """Ask for shares of the masks' secrets, and remove the masks from the sum."""
        arrays, specs = {}, {}
        for name in masked:
            neighbours = self._neighbours[name]
            arrived = np.array([other in masked for other in neighbours])
            arrays[name] = {"arrived": arrived}
            shares = ArraySpec((len(neighbours), SECRET_BYTES), "uint8")
            specs[name] = {"shares": shares}
        opened = self._ask(Stage(UNMASK, self._session, arrays, specs))
        vectors = [answer[MASKED] for answer in masked.values()]
        total = sum(vectors, start=np.zeros((), np.uint32))
        for name in shared:
            if name in masked:
                # Its pairwise masks cancel with its neighbours'; its self mask is left.
                secret = self._recover(name, opened, arrived=True)
                total -= mask_of(secret, total.size).reshape(total.shape)
                continue
            # Lost between two stages: its neighbours' masks for it are left.
            others = [other for other in self._neighbours[name] if other in masked]
            if not others:
                continue
            keys = KeyPair(self._recover(name, opened, arrived=False))
            for other in others:
                add_pair_mask(
                    total,
                    keys,
                    self._masking_keys[other],
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
        """Recover a client's secret from the shares that its neighbours opened.

        Args:
            owner: of the secret.
            opened: the neighbours' answers.
            arrived: whether the owner's vector arrived, so that the secret is that of
                its self mask; else it is that of its masking key.

        Raises:
            TooFewClients: the shares are too few, or wrong.
        """
        neighbours = self._neighbours[owner]
        threshold = self._settings.needed(len(neighbours))
        shares = {}  # by position of their holder among the neighbours
        for position, other in enumerate(neighbours):
            if other in opened:
                row = self._neighbours[other].index(owner)
                shares[position] = opened[other]["shares"][row].tobytes()
        if len(shares) < threshold:
            self._refuse(len(shares), len(neighbours), threshold)

        def join_checked(positions: Sequence[int]) -> bytes | None:
            """The secret from some shares, or None if that is not what was shared."""
            try:
                secret = join({position: shares[position] for position in positions})
            except ValueError:
                return None
            if arrived:
                right = commitment(secret) == self._commitments[owner]
            else:
                right = KeyPair(secret).public == self._masking_keys[owner]
            return secret if right else None

        for good in _subsets(tuple(shares), threshold):
            secret = join_checked(good)
            if secret is not None:
                break
        else:
            raise TooFewClients(
                "the shares that clients opened do not unmask the sum with client"
                f" {owner}: some are wrong; the round does not count"
            )
        # Say whose shares are wrong. Fewer than `threshold` shares are left: where the
        # secret follows from all of them, none need be tried alone.
        others = tuple(position for position in shares if position not in good)
        if others and join_checked((*others, *good)[:threshold]) is None:
            for position in others:
                if join_checked((*good[1:], position)) is None:
                    self._tell(
                        f"client {neighbours[position]}: its share of a secret of"
                        f" client {owner} is wrong; it is not used"
                    )
        return secret

    # who is left
    # ----------------------------------------------------------------------------------

    def _present(self, answers: Mapping[str, Arrays]) -> NDArray[np.bool_]:
        return np.array([name in answers for name in self._names], bool)

    def _check_enough(self, answers: Mapping[str, Arrays]) -> None:
        """Refuse to go on with too few clients, of all or of a client's neighbours."""
        if len(answers) < self._minimum:
            self._refuse(len(answers), len(self._names), self._minimum)
        for name in answers:
            neighbours = self._neighbours.get(name, ())
            left = sum(other in answers for other in neighbours)
            needed = self._settings.needed(len(neighbours))
            if neighbours and left < needed:
                self._refuse(left, len(neighbours), needed)

    def _refuse(self, left: int, of: int, needed: int) -> None:
        raise TooFewClients(
            f"{left} of {of} clients are left for a secure sum, and it needs {needed};"
            " the round does not count"
        )


def _subsets(positions: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Subsets of shares to try, until one of them gives the secret.

    The first subset is enough where all shares are right. Then each position is left
    out once, which is enough where one share is wrong. The rest is drawn at random.
    """
    yield tuple(positions[:size])
    if len(positions) > size:
        for wrong in positions:
            others = [position for position in positions if position != wrong]
            yield tuple(random.sample(others, size))
    for _ in range(TRIES):
        yield tuple(random.sample(positions, size))
