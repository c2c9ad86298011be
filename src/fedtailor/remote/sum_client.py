"""A client's part in secure sums.

It keeps what it trained, and sends each vector masked, once, in a sum with enough
others. The coordinator is not trusted: what it asks is checked at every stage, and
refused where the answer would show more than a sum. Nothing of a sum is on the disk, so
a client that was started again has no part in the sums of that round.
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
        stages_done: stages that are over.
        masking, sealing: key pairs of this sum alone.
        self_mask: the secret of this client's self mask.
        neighbours: names of the neighbours, this client's among them, in order.
        threshold: how many of them must answer until the last stage.
        masking_keys: public key of each neighbour, to agree on a pairwise mask.
        sealing_keys: key that this client and each neighbour agreed on.
        shares: of each neighbour whose vector may be in the sum, one share of the
            secret of its self mask, and one of the secret of its masking key.
    """

    name: str
    vector: np.ndarray
    stages_done: int = 0
    masking: KeyPair = field(default_factory=lambda: KeyPair(os.urandom(SECRET_BYTES)))
    sealing: KeyPair = field(default_factory=lambda: KeyPair(os.urandom(SECRET_BYTES)))
    self_mask: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES))
    neighbours: tuple[str, ...] = ()
    threshold: int = 0
    masking_keys: dict[str, bytes] = field(default_factory=dict)
    sealing_keys: dict[str, bytes] = field(default_factory=dict)
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)


class Summand:
    """What one client adds to the sums of a round; answers the stages of `secure_sums`.

    Args:
        client: its name.
        settings: that the job gives.
    """

    def __init__(self, client: str, settings: SecureSums) -> None:
        self._client, self._settings = client, settings
        # By kind, and by number once a kind has been asked for in parts.
        self._vectors: dict[tuple[str, int | None], np.ndarray] = {}
        self._round = -1
        self._session: _Session | None = None

    def keep(self, round: int, update: Mapping[str, np.ndarray]) -> None:
        """Keep what was trained in a round until it is asked for.

        Args:
            round: what was kept of others is forgotten.
            update: vectors by kind of message.
        """
        self._round, self._session = round, None
        self._vectors = {
            (kind, None): np.asarray(vector) for kind, vector in update.items()
        }

    def __call__(self, request: Request) -> Arrays:
        """Answer a stage.

        Raises:
            ValueError: the stage cannot be done, or would show more than a sum.
        """
        asked = request.algorithm.get(SUM)
        asked = asked if isinstance(asked, dict) else {}
        name, stage = str(asked.get("name")), STAGES.index(request.task)
        if request.task == KEYS:
            self._session = _Session(name, self._vector(request.round, asked))
        session = self._session
        # Each stage is done once, and in order, whatever the coordinator asks.
        expected = (
            session is not None
            and session.name == name
            and session.stages_done == stage
        )
        require(expected, "it was started again, and has no part in this sum")
        assert session is not None
        session.stages_done = stage + 1
        if request.task == KEYS:
            return {
                "masking": _bytes(session.masking.public),
                "sealing": _bytes(session.sealing.public),
            }
        if request.task == SHARES:
            return self._share(session, asked, request.arrays)
        if request.task == VECTORS:
            return self._mask(session, request.arrays)
        # The session ends before a share is opened: a coordinator that asked twice
        # could get the shares of both secrets of a neighbour, which show its vector.
        self._session = None
        return self._open(session, request.arrays)

    def _vector(self, round: int, asked: Mapping[str, Any]) -> np.ndarray:
        """The vector that a sum asks for; it is kept until it has been sent."""
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
            # From now on each part is sent alone, and none of them with the whole.
            del self._vectors[kind, None]
            self._vectors |= {(kind, index): part for index, part in enumerate(whole)}
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
        """Share the secrets of both masks among the neighbours.

        Args:
            session: of the sum.
            asked: holds the neighbours' names ("among").
            arrays: their public keys ("masking", "sealing"), in that order.

        Returns:
            The sealed shares, a row for each neighbour, and a commitment to the secret
            of the self mask.
        """
        names = asked.get("among")
        neighbours: tuple[str, ...] = ()
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            neighbours = tuple(names)
        count = len(neighbours)
        masking = _rows(arrays, "masking", count, KEY_BYTES)
        sealing = _rows(arrays, "sealing", count, KEY_BYTES)
        require(
            count >= FEWEST,
            f"it adds with {FEWEST} clients or more, not with {count}",
        )
        # One client under several names, or with another's keys, would make the crowd
        # in which this client hides smaller than it looks.
        in_order = neighbours == tuple(sorted(set(neighbours)))
        require(
            in_order and len({*masking, *sealing}) == 2 * count,
            "the clients of a sum are not told apart",
        )
        shown = None
        if self._client in neighbours:
            me = neighbours.index(self._client)
            shown = (masking[me], sealing[me])
        require(
            shown == (session.masking.public, session.sealing.public),
            "its own keys in this sum are not those that it made",
        )
        session.neighbours = neighbours
        session.threshold = self._settings.needed(count)
        mask_shares = split(session.self_mask, session.threshold, count)
        key_shares = split(session.masking.secret, session.threshold, count)
        sealed = np.zeros((count, SEALED_BYTES), np.uint8)
        for index, other in enumerate(neighbours):
            if other == self._client:
                session.shares[other] = mask_shares[index], key_shares[index]
                continue
            key = session.sealing.agree(sealing[index], f"shares {session.name}")
            session.masking_keys[other] = masking[index]
            session.sealing_keys[other] = key
            label = _label(session.name, self._client, other)
            shares = mask_shares[index] + key_shares[index]
            sealed[index] = _bytes(seal(key, shares, label))
        return {"shares": sealed, "commitment": _bytes(commitment(session.self_mask))}

    def _mask(self, session: _Session, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The weighted vector behind all masks, once for each sum.

        Args:
            session: of the sum.
            arrays: the shares that neighbours sealed for this client ("shares"), which
                of them are left ("there"), and this client's weights ("weights" [s]).
        """
        count = len(session.neighbours)
        sealed = _rows(arrays, "shares", count, SEALED_BYTES)
        present, weights = arrays.get("there"), arrays.get("weights")
        require(
            present is not None
            and weights is not None
            and _is_mask(present, count)
            and weights.ndim == 1
            and weights.dtype == np.float64
            and len(weights) > 0,
            "the request for its vector is not well formed",
        )
        assert present is not None and weights is not None
        left = int(present.sum())
        require(
            left >= session.threshold,
            f"only {left} of {count} clients are left in this sum, and"
            f" {session.threshold} are needed",
        )
        bounded = bool((np.abs(weights) <= LARGEST_SHARE).all())  # False for NaN
        require(
            bounded,
            "it is to weigh so much in a sum that this would not hide its vector",
        )
        fixed_point = FixedPoint(self._settings.range)
        fixed_point.check(session.vector)
        for index, other in enumerate(session.neighbours):
            if not present[index] or other == self._client:
                continue
            key = session.sealing_keys[other]
            label = _label(session.name, other, self._client)
            try:
                shares = unseal(key, sealed[index], label)
            except ValueError as error:
                raise ValueError(
                    f"the share of client {other} cannot be read: {error}"
                ) from None
            session.shares[other] = shares[:SECRET_BYTES], shares[SECRET_BYTES:]
        vector = session.vector.reshape(-1).astype(np.float64)
        masked = np.stack([fixed_point.encode(weight * vector) for weight in weights])
        masked += mask_of(session.self_mask, masked.size).reshape(masked.shape)
        for other in session.shares:
            if other != self._client:
                add_pair_mask(
                    masked,
                    session.masking,
                    session.masking_keys[other],
                    session.name,
                    self._client,
                    other,
                )
        # A vector is sent once: two sums that differ in one client only would show it.
        self._vectors = {
            key: kept
            for key, kept in self._vectors.items()
            if kept is not session.vector
        }
        return {"masked": masked}

    def _open(self, session: _Session, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """One share of each neighbour, never both.

        It is a share of the neighbour's self mask if its vector arrived ("arrived"), of
        its masking key if not.
        """
        arrived, count = arrays.get("arrived"), len(session.neighbours)
        require(
            arrived is not None and _is_mask(arrived, count),
            "the request to unmask is not well formed",
        )
        assert arrived is not None
        pairs = zip(session.neighbours, arrived, strict=True)
        senders = {name for name, has_arrived in pairs if has_arrived}
        require(
            senders <= set(session.shares) and self._client in senders,
            "the vectors of other clients arrived than those of this sum",
        )
        require(
            len(senders) >= session.threshold,
            f"only {len(senders)} of {count} vectors arrived, and {session.threshold}"
            " are needed",
        )
        opened = np.zeros((count, SECRET_BYTES), np.uint8)
        for index, other in enumerate(session.neighbours):
            if other in session.shares:
                mask_share, key_share = session.shares[other]
                opened[index] = _bytes(mask_share if arrived[index] else key_share)
        return {"shares": opened}


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
    """Add the pairwise mask of two clients to the vectors of one, in place.

    Of two clients, the one whose name comes first adds the mask, and the other
    subtracts it.

    Args:
        masked: [s, n] vectors.
        keys: the key pair of one of the two.
        other_key: the public key of the other of the two.
        session: name of the sum.
        client: whose vectors these are.
        other: with whom it shares the mask.
        off: take the mask off again.
    """
    secret = keys.agree(other_key, f"mask {session}")
    mask = mask_of(secret, masked.size).reshape(masked.shape)
    if (client < other) != off:
        masked += mask
    else:
        masked -= mask


def _label(session: str, sender: str, recipient: str) -> str:
    """What sealed shares are bound to, so that they cannot be used anywhere else."""
    return json.dumps([session, sender, recipient])


def _is_mask(array: np.ndarray, count: int) -> bool:
    return array.shape == (count,) and array.dtype == np.bool_


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
