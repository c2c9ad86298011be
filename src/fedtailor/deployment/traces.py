"""Whether a directory holds anything of a client.

Its name, its examples and its states are searched for in the bytes and the cells of all
files.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import safe_open

from fedtailor._parquet import read_parquet

PIECE = 16
"""Bytes of the pieces that are searched for.

Any copy of twice as many bytes holds a whole piece.
"""
_LONG = 4
"""Names of so many characters are found inside other text, too.

Shorter ones are found only as a whole text.
"""
_WORD = np.dtype("<u8")


@dataclass
class Traces:
    """What to search for.

    Attributes:
        names: texts that must not stand anywhere.
        pieces: pieces of arrays, `PIECE` bytes each, by what they are of.
        rows: numbers of rows that must not stand in a column `row`.
    """

    names: tuple[str, ...]
    pieces: dict[str, set[bytes]] = field(default_factory=dict)
    rows: frozenset[int] = frozenset()

    def add(
        self, what: str, arrays: Iterable[NDArray[Any]], shared: set[bytes]
    ) -> None:
        """Search for arrays, but not for what others hold as well.

        Args:
            what: the arrays are.
            arrays: of the client.
            shared: pieces that are not this client's alone.
        """
        own = {piece for array in arrays for piece in pieces_of(array)} - shared
        # One number over and over (zeros, ones) is nobody's.
        own = {piece for piece in own if piece != piece[:4] * (PIECE // 4)}
        self.pieces[what] = own

    def found_in(self, directory: Path) -> list[dict[str, str]]:
        """All places in a directory's files: file, and what of the client it holds."""
        return [
            {"file": path.relative_to(directory).as_posix(), "what": what}
            for path in files_of(directory)
            for what in dict.fromkeys(self._in_file(path))
        ]

    def _in_file(self, path: Path) -> Iterator[str]:
        """What of the client a file holds, perhaps several times."""
        data = path.read_bytes()
        for what, pieces in self.pieces.items():
            if _holds(data, pieces):
                yield what
        texts = set(_texts(path, data))
        for name in self.names:
            encoded = (name.encode(), name.encode("utf-16-le"))
            if len(name) > _LONG and any(text in data for text in encoded):
                yield "its name"
            in_texts = len(name) >= _LONG and any(name in text for text in texts)
            if name in texts or in_texts:
                yield "its name"
        if path.suffix == ".parquet":
            frame = read_parquet(path)
            numbers = frame["row"].to_list() if "row" in frame.columns else []
            if not self.rows.isdisjoint(numbers):
                yield "numbers of its rows"


def files_of(directory: Path) -> list[Path]:
    """All files below a directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def pieces_of(given: NDArray[Any] | bytes) -> Iterator[bytes]:
    """Bytes, or those of an array, in pieces; what is left over at the end is none."""
    data = given if isinstance(given, bytes) else np.ascontiguousarray(given).tobytes()
    for start in range(0, len(data) - PIECE + 1, PIECE):
        yield data[start : start + PIECE]


def _holds(data: bytes, pieces: set[bytes]) -> bool:
    """Whether a piece stands anywhere in some bytes.

    The first words of all pieces are looked for at once, at every offset.
    """
    if not pieces:
        return False
    size = _WORD.itemsize
    first_words = b"".join(piece[:size] for piece in pieces)
    first = np.unique(np.frombuffer(first_words, _WORD))
    for offset in range(size):
        length = (len(data) - offset) // size
        if length < PIECE // size:
            continue
        words = np.frombuffer(data, _WORD, length, offset)
        for place in np.flatnonzero(np.isin(words, first)):
            start = offset + int(place) * size
            if data[start : start + PIECE] in pieces:
                return True
    return False


def _texts(path: Path, data: bytes) -> Iterator[str]:
    """The texts in a file: keys and values, cells, names of columns and arrays.

    Of a file of another kind, its words.
    """
    if path.suffix == ".json":
        yield from _strings(json.loads(data))
    elif path.suffix == ".toml":
        yield from _strings(tomllib.loads(data.decode()))
    elif path.suffix == ".parquet":
        frame = read_parquet(path)
        yield from frame.columns
        for column in frame.select(pl.col(pl.String)):
            yield from column.unique().drop_nulls()
    elif path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as file:
            yield from file.keys()
            yield from (file.metadata() or {}).values()
    else:
        yield from data.decode("utf-8", "ignore").split()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value
