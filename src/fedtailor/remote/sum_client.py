"""A client's part in secure sums: it keeps what it trained, and sends it masked, once,
in sums with enough others.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtailor.protocol import require
from fedtailor.remote.masks import (
    KEY_BYTES,
    SEALED_BYTES,
    SECRET_BYTES,
    FixedPoint,
    KeyPair,
    commitment,
    mask_of,
    seal,
    split,
    unseal,
)
from fedtailor.remote.messages import Request
from fedtailor.remote.secure_sums import (
    FEWEST,
    KEYS,
    LARGEST_SHARE,
    SHARES,
    STAGES,
    SUM,
    VECTORS,
    SecureSums,
)

Arrays = dict[str, np.ndarray]


@dataclass
class _Session:
    """One sum that is under way.

    Attributes:
        name: that the coordinator gave it.
        vector: what is added.
        done: stages that are over.
        masking, sealing: key pairs of this sum alone.
        own: the secret of this client's own mask.
        among: the neighbours, this client among them, in order.
        threshold: how many of them are needed till the end.
        keys: of each neighbour, to agree on a mask with.
        sealing_keys: of each neighbour: the key that both agreed on.
        held: of each neighbour whose vector may be in the sum: its shares of the own
            mask's and of the key's secret.
    """

    name: str
    vector: np.ndarray
    done: int = 0
    masking: KeyPair = field(default_factory=lambda: KeyPair(os.urandom(SECRET_BYTES)))
    sealing: KeyPair = field(default_factory=lambda: KeyPair(os.urandom(SECRET_BYTES)))
    own: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES))
    among: tuple[str, ...] = ()
    threshold: int = 0
    keys: dict[str, bytes] = field(default_factory=dict)
    sealing_keys: dict[str, bytes] = field(default_factory=dict)
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)


class Summand:
    """What one client adds to the sums of a round (answers the stages of
    `secure_sums`).

    Args:
        client: its name.
        settings: that the job gives.
    """

    def __init__(self, client: str, settings: SecureSums) -> None:
        self._client, self._settings = client, settings
        self._vectors: dict[tuple[str, int | None], np.ndarray] = {}
        self._round = -1
        self._session: _Session | None = None

    def keep(self, round: int, update: Mapping[str, np.ndarray]) -> None:
        """Keep what was trained in a round, by kind, until it is asked for; what was
        kept before goes.
        """
        self._round, self._session = round, None
        self._vectors = {
            (kind, None): np.asarray(vector) for kind, vector in update.items()
        }

    def __call__(self, request: Request) -> Arrays:
        """Do a stage.

        Raises:
            ValueError: the stage cannot be done, or would show more than a sum.
        """
        asked = request.algorithm.get(SUM)
        asked = asked if isinstance(asked, dict) else {}
        name, stage = str(asked.get("name")), STAGES.index(request.task)
        if request.task == KEYS:
            self._session = _Session(name, self._vector(request.round, asked))
        session = self._session
        require(
            session is not None and session.name == name and session.done == stage,
            "it was started again, and has no part in this sum",
        )
        assert session is not None
        session.done = stage + 1
        if request.task == KEYS:
            return {
                "masking": _bytes(session.masking.public),
                "sealing": _bytes(session.sealing.public),
            }
        if request.task == SHARES:
            return self._share(session, asked, request.arrays)
        if request.task == VECTORS:
            return self._masked(session, asked, request.arrays)
        # before anything is opened: a second question of which of two secrets is not
        # answered
        self._session = None
        return self._opened(session, request.arrays)

    def _vector(self, round: int, asked: Mapping[str, Any]) -> np.ndarray:
        """What a sum asks for. It stays until it has been sent."""
        kind, number = str(asked.get("kind")), asked.get("number")
        require(
            round == self._round,
            "it was started again, and does not hold what it trained in this round",
        )
        whole = self._vectors.get((kind, None))
        if number is not None and whole is not None:
            fits = (
                isinstance(number, int) and whole.ndim > 1 and 0 <= number < len(whole)
            )
            require(
                fits,
                f"it is asked for {kind!r} number {number!r}, which it does not have",
            )
            del self._vectors[kind, None]  # from now on each goes alone
            self._vectors |= {(kind, place): part for place, part in enumerate(whole)}
        key = (kind, number if isinstance(number, int) else None)
        require(
            key in self._vectors,
            f"it has sent its {kind!r} of this round in another sum, or has none",
        )
        return self._vectors[key]

    def _share(
        self,
        session: _Session,
        asked: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> Arrays:
        """Share the secrets of both masks among the neighbours."""
        names = asked.get("among")
        among = (
            tuple(names)
            if isinstance(names, list) and all(isinstance(it, str) for it in names)
            else ()
        )
        masking, sealing = (
            _rows(arrays, name, len(among), KEY_BYTES)
            for name in ("masking", "sealing")
        )
        require(
            len(among) >= FEWEST,
            f"it adds with {FEWEST} clients or more, not with {len(among)}",
        )
        distinct = len(set(among)) == len(among) and len(
            {*masking, *sealing}
        ) == 2 * len(among)
        require(
            distinct and among == tuple(sorted(among)),
            "the clients of a sum are not told apart",
        )
        mine = among.index(self._client) if self._client in among else -1
        shown = mine >= 0 and (masking[mine], sealing[mine]) == (
            session.masking.public,
            session.sealing.public,
        )
        require(shown, "its own keys in this sum are not those that it made")
        session.among, session.threshold = among, self._settings.needed(len(among))
        own, key = (
            split(it, session.threshold, len(among))
            for it in (session.own, session.masking.secret)
        )
        sealed = np.zeros((len(among), SEALED_BYTES), np.uint8)
        for place, other in enumerate(among):
            if other == self._client:
                session.held[other] = own[place], key[place]
                continue
            session.keys[other] = masking[place]
            session.sealing_keys[other] = session.sealing.agree(
                sealing[place], f"shares {session.name}"
            )
            label = _label(session.name, self._client, other)
            sealed[place] = _bytes(
                seal(session.sealing_keys[other], own[place] + key[place], label)
            )
        return {"shares": sealed, "commitment": _bytes(commitment(session.own))}

    def _masked(
        self,
        session: _Session,
        asked: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> Arrays:
        """The weighted vectors behind all masks. From here on this vector is not sent
        again.
        """
        count = len(session.among)
        sealed = _rows(arrays, "shares", count, SEALED_BYTES)
        there, weights = arrays.get("there"), arrays.get("weights")
        fits = there is not None and there.shape == (count,) and there.dtype == np.bool_
        fits = (
            fits
            and weights is not None
            and weights.ndim == 1
            and weights.dtype == np.float64
            and len(weights) > 0
        )
        require(fits, "the request for its vector is not well formed")
        assert there is not None and weights is not None
        enough = int(there.sum()) >= session.threshold
        require(
            enough,
            f"only {int(there.sum())} of {count} clients are left in this sum, and"
            f" {session.threshold} are needed",
        )
        bounded = (
            bool(np.isfinite(weights).all())
            and float(np.abs(weights).max()) <= LARGEST_SHARE
        )
        require(
            bounded,
            "it is to weigh so much in a sum that this would not hide its vector",
        )
        point = FixedPoint(self._settings.range)
        point.check(session.vector)
        for place, other in enumerate(session.among):
            if not there[place] or other == self._client:
                continue
            try:
                opened = unseal(
                    session.sealing_keys[other],
                    sealed[place],
                    _label(session.name, other, self._client),
                )
            except ValueError as error:
                raise ValueError(
                    f"the share of client {other} cannot be read: {error}"
                ) from None
            session.held[other] = opened[:SECRET_BYTES], opened[SECRET_BYTES:]
        flat = session.vector.reshape(-1)
        masked = np.stack(
            [point.encode(weight * flat.astype(np.float64)) for weight in weights]
        )
        masked += mask_of(session.own, masked.size).reshape(masked.shape)
        for other in session.held:
            if other != self._client:
                add_pair_mask(
                    masked,
                    session.masking,
                    session.keys[other],
                    session.name,
                    self._client,
                    other,
                )
        for key in [
            key for key, vector in self._vectors.items() if vector is session.vector
        ]:
            del self._vectors[key]
        return {"masked": masked}

    def _opened(self, session: _Session, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Of each neighbour one share: of its own mask if its vector arrived, of its
        key if not; never both.
        """
        arrived, count = arrays.get("arrived"), len(session.among)
        require(
            arrived is not None
            and arrived.shape == (count,)
            and arrived.dtype == np.bool_,
            "the request to unmask is not well formed",
        )
        assert arrived is not None
        known = all(
            other in session.held
            for place, other in enumerate(session.among)
            if arrived[place]
        )
        require(
            known and bool(arrived[session.among.index(self._client)]),
            "the vectors of other clients arrived than those of this sum",
        )
        left = int(arrived.sum())
        require(
            left >= session.threshold,
            f"only {left} of {count} vectors arrived, and {session.threshold} are"
            " needed",
        )
        shares = np.zeros((count, SECRET_BYTES), np.uint8)
        for place, other in enumerate(session.among):
            if other in session.held:
                shares[place] = _bytes(session.held[other][0 if arrived[place] else 1])
        return {"shares": shares}


def add_pair_mask(
    masked: np.ndarray,
    keys: KeyPair,
    other_key: bytes,
    session: str,
    client: str,
    other: str,
    *,
    off: bool = False,
) -> None:
    """Add to a client's masked vectors (in place) what it shares with another, or take
    it off.

    The client of the name that comes first adds, the other one subtracts.

    Args:
        masked: [s, n].
        keys: the pair of one of the two.
        other_key: the public key of the other of the two.
        session: name of the sum.
        client: whose vectors these are.
        other: with whom it shares the mask.
        off: take it off again.
    """
    mask = mask_of(keys.agree(other_key, f"mask {session}"), masked.size).reshape(
        masked.shape
    )
    if (client < other) != off:
        masked += mask
    else:
        masked -= mask


def _label(session: str, sender: str, recipient: str) -> str:
    return json.dumps([session, sender, recipient])


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _rows(
    arrays: Mapping[str, np.ndarray], name: str, count: int, size: int
) -> list[bytes]:
    """The rows of an array of bytes.

    Raises:
        ValueError: it has another shape or type.
    """
    array = arrays.get(name)
    fits = (
        array is not None and array.shape == (count, size) and array.dtype == np.uint8
    )
    require(fits, f"the request of a sum holds no {name!r} of {count} clients")
    assert array is not None
    return [row.tobytes() for row in array]
