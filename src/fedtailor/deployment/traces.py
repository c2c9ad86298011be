"""Whether a directory holds anything of a client: its name, its examples, its states,
in any file's bytes or cells.
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
"""Bytes of the pieces that are searched for: any copy of twice as many holds one whole.
"""
_LONG = 4
"""Names of so many characters are found inside other text, too; shorter ones only as a
whole text.
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
        """Search for arrays, but for what others hold as well (`shared`): that is not
        this client's.
        """
        found = {piece for array in arrays for piece in pieces_of(array)}
        # one number over and over (zeros, ones) is nobody's
        self.pieces[what] = {
            piece for piece in found - shared if piece != piece[:4] * (PIECE // 4)
        }

    def found_in(self, directory: Path) -> list[dict[str, str]]:
        """All places in a directory's files: file, and what of the client it holds."""
        return [
            {"file": path.relative_to(directory).as_posix(), "what": what}
            for path in files_of(directory)
            for what in dict.fromkeys(self._in_file(path))
        ]

    def _in_file(self, path: Path) -> Iterator[str]:
        data = path.read_bytes()
        yield from (
            what for what, pieces in self.pieces.items() if _holds(data, pieces)
        )
        for name in self.names:
            encoded = (name.encode(), name.encode("utf-16-le"))
            if len(name) > _LONG and any(text in data for text in encoded):
                yield "its name"
        for text in _texts(path, data):
            if any(
                text == name or (len(name) >= _LONG and name in text)
                for name in self.names
            ):
                yield "its name"
        if path.suffix == ".parquet":
            frame = read_parquet(path)
            if "row" in frame.columns and not self.rows.isdisjoint(
                frame["row"].to_list()
            ):
                yield "numbers of its rows"


def files_of(directory: Path) -> list[Path]:
    """All files below a directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def pieces_of(given: NDArray[Any] | bytes) -> Iterator[bytes]:
    """Bytes, or those of an array, in pieces; what is left over at the end is none."""
    data = given if isinstance(given, bytes) else np.ascontiguousarray(given).tobytes()
    return (
        data[start : start + PIECE] for start in range(0, len(data) - PIECE + 1, PIECE)
    )


def _holds(data: bytes, pieces: set[bytes]) -> bool:
    """Whether a piece stands anywhere in some bytes. Their first words are looked for
    at once, at every offset.
    """
    if not pieces:
        return False
    first = np.unique(np.frombuffer(b"".join(piece[:8] for piece in pieces), _WORD))
    for offset in range(_WORD.itemsize):
        length = (len(data) - offset) // _WORD.itemsize
        if length < PIECE // _WORD.itemsize:
            continue
        words = np.frombuffer(data, _WORD, length, offset)
        for place in np.flatnonzero(np.isin(words, first)):
            start = offset + int(place) * _WORD.itemsize
            if data[start : start + PIECE] in pieces:
                return True
    return False


def _texts(path: Path, data: bytes) -> Iterator[str]:
    """The texts in a file that is understood: keys and values, cells, names of columns
    and arrays.
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
