"""Requests that name the vectors which their client holds, instead of sending them.

A vector is named by its digest. A client holds the initial model, which follows from
the job's seed, and of every kind of message what it received last. So an evaluation and
the round after it send a model once. The coordinator may be wrong about what a client
holds: one that lacks a vector (as it was started again) says so, and is sent all.

stream/KIND, initial    the rows that are new, each once
known/stream/KIND,      [n, 16] bytes for each of the n rows: its digest, or zeros for
known/initial           the next of those that are new
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedtailor.protocol import require
from fedtailor.remote.messages import Request

DIGEST_BYTES = 16
KNOWN = "known/"
"""Before the name of an array: the digests of its rows."""

INITIAL, STREAM = "initial", "stream/"
"""Arrays of vectors: the model that a state starts from [d], and streams [n, ...]."""

_NEW = bytes(DIGEST_BYTES)
"""In the place of a digest: the next of the new rows."""


class Lacks(ValueError):
    """A client does not hold a vector that a request names."""


def digest(row: np.ndarray) -> bytes:
    """The name of a vector: a fingerprint of its shape, type and bytes."""
    row = np.ascontiguousarray(row)
    form = f"{row.dtype.str}{row.shape}".encode()
    return hashlib.blake2b(
        row.tobytes(), digest_size=DIGEST_BYTES, key=form[:64]
    ).digest()


class Holdings:
    """What the coordinator believes that clients hold.

    Args:
        common: vectors that all clients can make by themselves.
    """

    def __init__(self, common: Iterable[np.ndarray]) -> None:
        self._common = frozenset(digest(row) for row in common)
        self._held: dict[str, dict[str, frozenset[bytes]]] = {}

    def shorten(
        self, request: Request, digests: Mapping[str, Sequence[bytes]]
    ) -> Request:
        """The request without the vectors that its client holds.

        Args:
            request: with all vectors.
            digests: of the rows of its arrays of vectors, by the arrays' names.
        """
        held = self._common.union(*self._held.get(request.client, {}).values())
        arrays, sent = dict(request.arrays), set()
        for name, rows in digests.items():
            new, named = [], []  # positions of new rows; a digest or _NEW for every row
            for index, row_digest in enumerate(rows):
                if row_digest in held or row_digest in sent:
                    named.append(row_digest)
                else:
                    named.append(_NEW)
                    new.append(index)
                    sent.add(row_digest)
            if len(new) < len(rows):
                known = np.frombuffer(b"".join(named), np.uint8)
                arrays[KNOWN + name] = known.reshape(len(rows), DIGEST_BYTES)
                arrays[name] = _as_rows(name, arrays[name])[new]
        return replace(request, arrays=arrays)

    def received(self, client: str, digests: Mapping[str, Sequence[bytes]]) -> None:
        """Note that a client has answered a request with these vectors."""
        held = self._held.setdefault(client, {})
        for name, rows in digests.items():
            held[name] = frozenset(rows)


class HeldVectors:
    """What a client holds: its own vectors, and of every kind those received last.

    Args:
        own: makes the vectors that the client can make by itself; called once, when the
            first request that names a vector arrives.
    """

    def __init__(self, own: Callable[[], Iterable[np.ndarray]] = tuple) -> None:
        self._make_own, self._own = own, None
        self._received: dict[str, dict[bytes, np.ndarray]] = {}

    def complete(self, request: Request) -> Request:
        """The request with all vectors in it.

        Raises:
            Lacks: the client does not hold one of them.
            ValueError: the request is not well formed.
        """
        arrays, known = {}, {}
        for name, array in request.arrays.items():
            if name.startswith(KNOWN):
                known[name.removeprefix(KNOWN)] = array
            else:
                arrays[name] = array
        names = [name for name in arrays if is_vectors(name)]
        fits = set(known) <= set(names) and all(map(_is_digests, known.values()))
        require(fits, "the digests of a request do not fit its vectors")
        require(
            all(arrays[name].ndim for name in names),
            "a request holds a number where vectors belong",
        )
        # A vector that travels in one array may be named in another.
        travelled: dict[bytes, np.ndarray] = {}
        for name in names:
            rows = arrays[name] if name in known else _as_rows(name, arrays[name])
            travelled |= {digest(row): row for row in rows}
        complete = {}
        for name in names:
            if name in known:
                complete[name] = self._join(arrays[name], known[name], travelled)
            else:
                complete[name] = _as_rows(name, arrays[name])
        # Only now, as an array may name what another one held before this request.
        for name, rows in complete.items():
            self._received[name] = {digest(row): row for row in rows}
            arrays[name] = rows[0] if name == INITIAL else rows
        return replace(request, arrays=arrays)

    def _join(
        self,
        new: np.ndarray,
        digests: np.ndarray,
        travelled: Mapping[bytes, np.ndarray],
    ) -> np.ndarray:
        """All rows of an array: the new ones in their order, the others by digest."""
        remaining, rows = iter(new), []
        for row_digest in map(bytes, digests):
            if row_digest != _NEW:
                rows.append(self._find(row_digest, travelled))
                continue
            row = next(remaining, None)
            require(row is not None, "a request names more new vectors than it holds")
            rows.append(row)
        require(
            next(remaining, None) is None,
            "a request holds more new vectors than it names",
        )
        return np.stack(rows)

    def _find(
        self, row_digest: bytes, travelled: Mapping[bytes, np.ndarray]
    ) -> np.ndarray:
        if self._own is None:
            self._own = {digest(row): row for row in self._make_own()}
        for rows in (travelled, self._own, *self._received.values()):
            if row_digest in rows:
                return rows[row_digest]
        raise Lacks("it does not hold a vector that the request names")


def is_vectors(name: str) -> bool:
    """Whether an array of a request holds vectors."""
    return name == INITIAL or name.startswith(STREAM)


def _as_rows(name: str, array: np.ndarray) -> np.ndarray:
    return array[None] if name == INITIAL else array


def _is_digests(array: np.ndarray) -> bool:
    return (
        array.dtype == np.uint8
        and array.ndim == 2
        and array.shape[0] > 0
        and array.shape[1] == DIGEST_BYTES
    )
