"""Vectors that a client holds already are named, by their digests, instead of being
sent again.

A client holds the initial model, which follows from the job's seed, and of every kind
of message what it received last. So an evaluation and the round after it send a model
once. What the coordinator believes a client to hold is no more than that: a client that
lacks a vector (it was started again) says so, and is sent all of them.

stream/KIND and initial    hold the rows that are new, each once
known/stream/KIND, ...     [n, 16] bytes for each of the n rows: its digest, or zeros for the next of those that are new
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


class Lacks(ValueError):
    """A client does not hold a vector that a request names."""


def digest(row: np.ndarray) -> bytes:
    """What names a vector: a fingerprint of its shape, type and bytes."""
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
            digests: of the rows of its arrays of vectors, by name.
        """
        held = self._common.union(*self._held.get(request.client, {}).values())
        arrays, sent = dict(request.arrays), set()
        for name, rows in digests.items():
            new = []
            for place, found in enumerate(rows):
                if found not in held and found not in sent:
                    new.append(place)
                    sent.add(found)
            if len(new) < len(rows):
                named = np.frombuffer(
                    b"".join(
                        _NEW if row in new else rows[row] for row in range(len(rows))
                    ),
                    np.uint8,
                )
                arrays[KNOWN + name] = named.reshape(len(rows), DIGEST_BYTES)
                arrays[name] = _as_rows(name, arrays[name])[new]
        return replace(request, arrays=arrays)

    def received(self, client: str, digests: Mapping[str, Sequence[bytes]]) -> None:
        """A client has answered a request with these vectors, so it holds them."""
        self._held.setdefault(client, {}).update(
            {name: frozenset(rows) for name, rows in digests.items()}
        )


class HeldVectors:
    """What a client holds: the vectors that it can make by itself, and of every kind
    those that it received last.

    Args:
        own: makes the former; called once, when the first request that names a vector
            arrives.
    """

    def __init__(self, own: Callable[[], Iterable[np.ndarray]] = tuple) -> None:
        self._make_own, self._own = own, None
        self._received: dict[str, dict[bytes, np.ndarray]] = {}

    def complete(self, request: Request) -> Request:
        """The request with all vectors in it.

        Raises:
            Lacks: one of them is not here.
            ValueError: the request is not well formed.
        """
        arrays = {
            name: array
            for name, array in request.arrays.items()
            if not name.startswith(KNOWN)
        }
        names = [name for name in arrays if is_vectors(name)]
        named = {
            name: request.arrays[KNOWN + name]
            for name in names
            if KNOWN + name in request.arrays
        }
        fits = len(arrays) + len(named) == len(request.arrays) and all(
            map(_is_digests, named.values())
        )
        require(fits, "the digests of a request do not fit its vectors")
        require(
            all(arrays[name].ndim for name in names),
            "a request holds a number where vectors belong",
        )
        whole = {
            name: _as_rows(name, arrays[name]) for name in names if name not in named
        }
        here = {digest(row): row for name in named for row in arrays[name]}
        here |= {digest(row): row for rows in whole.values() for row in rows}
        for name, digests in named.items():
            whole[name] = self._joined(arrays[name], digests, here)
        for name, rows in whole.items():
            self._received[name] = {digest(row): row for row in rows}
            arrays[name] = rows[0] if name == INITIAL else rows
        return replace(request, arrays=arrays)

    def _joined(
        self, new: np.ndarray, digests: np.ndarray, here: Mapping[bytes, np.ndarray]
    ) -> np.ndarray:
        """All rows of an array: the new ones in their order, the others by their
        digests.
        """
        order, found = iter(new), []
        for name in map(bytes, digests):
            row = next(order, None) if name == _NEW else self._find(name, here)
            require(row is not None, "a request names more new vectors than it holds")
            found.append(row)
        require(
            next(order, None) is None, "a request holds more new vectors than it names"
        )
        return np.stack(found)

    def _find(self, name: bytes, here: Mapping[bytes, np.ndarray]) -> np.ndarray:
        if self._own is None:
            self._own = {digest(row): row for row in self._make_own()}
        for rows in (here, self._own, *self._received.values()):
            if name in rows:
                return rows[name]
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
