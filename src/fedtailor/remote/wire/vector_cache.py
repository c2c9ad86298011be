"""A cache of vectors at each client, so that a vector is not sent to it twice.

A client can compute the initial model from the job's seed, and caches the vectors of
each array that it received last. The coordinator keeps track of the caches, and sends
digests instead of cached vectors. For example, an evaluation and the round after it
send a model once. The coordinator may be wrong, as a client that was restarted has lost
its cache: the client then reports a cache miss, and is sent the full request.

stream/KIND, initial    the rows that are not cached, each once
known/stream/KIND,      [n, 16] bytes, for each of the n rows: its digest, or zeros for
known/initial           the next of the rows that are not cached
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless
from fedtailor.remote.wire.request_size import MAX_INBOX, check_size, most_cached

DIGEST_BYTES = 16
KNOWN = "known/"
"""Prefix of the name of an array: the digests of its rows."""

INITIAL, STREAM = "initial", "stream/"
"""Arrays of vectors: the model that a state starts from [d], and streams [n, ...]."""


def is_vector(name: str) -> bool:
    """Whether an array of a request holds vectors."""
    return name == INITIAL or name.startswith(STREAM)


_OF_ROUNDS = ("stream", "scalar", "index")
MAX_KINDS, MAX_KIND_LENGTH = 64, 100
"""The most kinds of what a job's rounds send, and the most characters of one. A client keeps
vectors by their kinds.
"""
MAX_SHAPES = 32
"""Requests of so many shapes are answered before compiled programs are forgotten: there is
one for each, of some 10 MB.
"""

_NEW = bytes(DIGEST_BYTES)
"""Instead of a digest: the row is the next of those that the request holds."""


def _kinds_of(names: Iterable[str]) -> set[str]:
    """The kinds of vectors and numbers that arrays of these names hold."""
    parts = [name.partition("/") for name in names]
    return {kind for part, _, kind in parts if part in _OF_ROUNDS}


class CacheMiss(ValueError):
    """A client's cache lacks a vector whose digest a request holds."""


def vector_digest(row: np.ndarray) -> bytes:
    """Compute the digest of a vector's shape, type and bytes."""
    row = np.ascontiguousarray(row)
    key = f"{row.dtype.str}{row.shape}".encode()[:64]
    return hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES, key=key).digest()


class ClientCaches:
    """The coordinator's record of the clients' caches.

    Args:
        common: vectors that all clients can compute.
    """

    def __init__(self, common: Iterable[np.ndarray]) -> None:
        self._common = frozenset(vector_digest(row) for row in common)
        # By client, and by name of the array: digests of the rows received last.
        self._cached: dict[str, dict[str, frozenset[bytes]]] = {}

    def drop_cached(
        self, request: Request, digests: Mapping[str, Sequence[bytes]]
    ) -> Request:
        """Replace the vectors in the client's cache by their digests.

        Args:
            request: a request with all vectors.
            digests: the digests of the rows of its arrays of vectors, by name.
        """
        cached = self._common.union(*self._cached.get(request.client, {}).values())
        arrays, sent = dict(request.arrays), set()
        for name, rows in digests.items():
            new, known = [], []  # indices of new rows; a digest or _NEW for every row
            for index, row_digest in enumerate(rows):
                if row_digest in cached or row_digest in sent:
                    known.append(row_digest)
                else:
                    known.append(_NEW)
                    new.append(index)
                    sent.add(row_digest)
            if len(new) < len(rows):
                known_bytes = np.frombuffer(b"".join(known), np.uint8)
                arrays[KNOWN + name] = known_bytes.reshape(len(rows), DIGEST_BYTES)
                arrays[name] = _as_rows(name, arrays[name])[new]
        return replace(request, arrays=arrays)

    def record(self, client: str, digests: Mapping[str, Sequence[bytes]]) -> None:
        """Record that a client has answered a request with these vectors."""
        cached = self._cached.setdefault(client, {})
        for name, rows in digests.items():
            cached[name] = frozenset(rows)


class VectorCache:
    """A client's cache: vectors that it can compute, and those received last.

    Args:
        common: computes the vectors that all clients can compute; called once, when the
            first request with a digest arrives.
    """

    def __init__(self, common: Callable[[], Iterable[np.ndarray]] = tuple) -> None:
        self._compute_common, self._common = common, None
        # By name of the array, and by digest; what was received last is the last one.
        self._received: dict[str, dict[bytes, np.ndarray]] = {}
        self._kinds = set[str]()  # of all requests that were answered
        self._shapes = set[tuple[Any, ...]]()

    def fill_in(self, request: Request) -> Request:
        """Replace the digests of a request by the vectors.

        Raises:
            CacheMiss: the cache lacks a vector.
            Refused: the request is not well formed.
        """
        arrays, known = {}, {}
        for name, array in request.arrays.items():
            if name.startswith(KNOWN):
                known[name.removeprefix(KNOWN)] = array
            else:
                arrays[name] = array
        self._check_kinds(arrays)
        names = list(filter(is_vector, arrays))
        fits = set(known) <= set(names) and all(map(_is_digests, known.values()))
        refuse_unless(
            fits,
            Refusal.MALFORMED,
            "the digests of a request do not fit its vectors",
        )
        refuse_unless(
            all(arrays[name].ndim for name in names),
            Refusal.MALFORMED,
            "a request holds a number where vectors belong",
        )
        # Short vectors take fifty times their bytes as rows with digests.
        vectors = sum(len(_as_rows(name, arrays[name])) for name in names)
        refuse_unless(
            vectors <= MAX_INBOX,
            Refusal.MALFORMED,
            f"a request holds {vectors} vectors; a client takes {MAX_INBOX} at most",
        )
        # There can be any number of vectors of length 0 in no bytes.
        refuse_unless(
            all(arrays[name].size or not len(arrays[name]) for name in names),
            Refusal.MALFORMED,
            "a request holds vectors of length 0",
        )
        # The digests of one array may refer to rows of another one.
        new: dict[bytes, np.ndarray] = {}
        for name in names:
            rows = arrays[name] if name in known else _as_rows(name, arrays[name])
            new |= {vector_digest(row): row for row in rows}
        size = 0
        for name in names:
            rows = _as_rows(name, arrays[name])
            if name in known:
                found = self._rows_of(arrays[name], known[name], new)
                # All arrays together, as a few bytes name any number of vectors.
                size += sum(row.nbytes for row in found)
                check_size(size)
                rows = np.stack(found)
            arrays[name] = rows[0] if name == INITIAL else rows
        # A vector that is named has another shape than what was sent may say.
        self._bound_programs(request.task, arrays)
        return replace(request, arrays=arrays)

    def remember(self, request: Request) -> None:
        """Cache the vectors of a request that was answered.

        Names that were received longest ago are forgotten if all vectors are too many,
        so that no messages can fill the memory.

        Args:
            request: as `fill_in` returned it.
        """
        self._kinds |= _kinds_of(request.arrays)
        for name, array in request.arrays.items():
            if not is_vector(name):
                continue
            rows = {vector_digest(row): row for row in _as_rows(name, array)}
            if len(rows) < len(_as_rows(name, array)):
                # A row is a view, which would keep all of the array.
                rows = {digest: row.copy() for digest, row in rows.items()}
            self._received.pop(name, None)
            self._received[name] = rows
        while self._size > most_cached() and len(self._received) > 1:
            del self._received[next(iter(self._received))]

    def _check_kinds(self, names: Iterable[str]) -> None:
        """Check that requests of a job do not name more and more kinds.

        Raises:
            Refused: they do, or a kind is too long.
        """
        kinds = _kinds_of(names)
        refuse_unless(
            all(len(kind) <= MAX_KIND_LENGTH for kind in kinds)
            and len(self._kinds | kinds) <= MAX_KINDS,
            Refusal.MALFORMED,
            f"a job sends {MAX_KINDS} kinds of vectors and numbers at most, with names of"
            f" up to {MAX_KIND_LENGTH} characters",
        )

    def _bound_programs(self, task: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Forget compiled programs if requests have more and more shapes."""
        of_arrays = ((name, it.shape, it.dtype.str) for name, it in arrays.items())
        self._shapes.add((task, *sorted(of_arrays)))
        if len(self._shapes) > MAX_SHAPES:
            self._shapes.clear()
            jax.clear_caches()

    @property
    def _size(self) -> int:
        """Bytes of the vectors that were received."""
        kept = self._received.values()
        return sum(row.nbytes for rows in kept for row in rows.values())

    def _rows_of(
        self,
        new: np.ndarray,
        digests: np.ndarray,
        in_request: Mapping[bytes, np.ndarray],
    ) -> list[np.ndarray]:
        """All rows of an array.

        Args:
            new: [m, ...] the rows that the request holds.
            digests: [n, 16] for each row its digest, or `_NEW` for the next of `new`.
            in_request: all rows that the request holds, by digest.
        """
        remaining, rows = iter(new), list[np.ndarray]()
        for row_digest in map(bytes, digests):
            if row_digest != _NEW:
                rows.append(self._look_up(row_digest, in_request))
                continue
            row = next(remaining, None)
            refuse_unless(
                row is not None,
                Refusal.MALFORMED,
                "a request names more new vectors than it holds",
            )
            assert row is not None
            rows.append(row)
        refuse_unless(
            next(remaining, None) is None,
            Refusal.MALFORMED,
            "a request holds more new vectors than it names",
        )
        return rows

    def _look_up(
        self, row_digest: bytes, in_request: Mapping[bytes, np.ndarray]
    ) -> np.ndarray:
        if self._common is None:
            self._common = {vector_digest(row): row for row in self._compute_common()}
        for rows in (in_request, self._common, *self._received.values()):
            if row_digest in rows:
                return rows[row_digest]
        raise CacheMiss("it does not hold a vector that the request names")


def _as_rows(name: str, array: np.ndarray) -> np.ndarray:
    return array[None] if name == INITIAL else array


def _is_digests(array: np.ndarray) -> bool:
    return (
        array.dtype == np.uint8
        and array.ndim == 2
        and array.shape[0] > 0
        and array.shape[1] == DIGEST_BYTES
    )
