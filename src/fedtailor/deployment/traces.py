"""Searches the files of a directory for traces of a client.

The traces are its name, its examples and its states. They are searched for in the bytes
and in the cells of all files.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import safe_open

from fedtailor._parquet import read_parquet

CHUNK_BYTES = 16
"""Length of the chunks of data that are searched for.

Any copy of at least twice as many bytes contains a complete chunk.
"""
MIN_SUBSTRING = 4
"""Minimum length of a name that is searched for everywhere, also within other texts.

Shorter names, and numbers, are looked for where files name clients (`_OF_CLIENTS`): a "14"
may also be the number of an array, a category, or a part of a digest.
"""
_NUMBER = re.compile(r"[\d.,+-]+")
_OF_CLIENTS = ("client", "clients", "unseen", "names")
"""Columns, and keys of JSON and TOML, whose texts are names of clients."""
_WORD = np.dtype("<u8")


@dataclass
class Traces:
    """The traces of a client to search for.

    Attributes:
        names: texts.
        chunks: chunks of arrays, `CHUNK_BYTES` long, by a description of the arrays.
        rows: row numbers, to search for in columns with the name `row`.
    """

    names: tuple[str, ...]
    chunks: dict[str, set[bytes]]
    rows: frozenset[int]

    def found_in(self, directory: Path) -> list[dict[str, str]]:
        """Search all files of a directory: the "file" and "what" was found in it."""
        return [
            {"file": path.relative_to(directory).as_posix(), "what": what}
            for path in files_of(directory)
            for what in dict.fromkeys(self._in_file(path))
        ]

    def _in_file(self, path: Path) -> Iterator[str]:
        """Search one file; the same trace may be yielded several times."""
        data = path.read_bytes()
        for what, chunks in self.chunks.items():
            if _contains(data, chunks):
                yield what
        texts = set(_texts_of(path, data))
        of_clients = set(_texts_of(path, data, of_clients=True))
        for name in self.names:
            if len(name) < MIN_SUBSTRING or _NUMBER.fullmatch(name):
                if name in of_clients:
                    yield "its name"
                continue
            encoded = (name.encode(), name.encode("utf-16-le"))
            if len(name) > MIN_SUBSTRING and any(text in data for text in encoded):
                yield "its name"
            if any(name in text for text in texts):
                yield "its name"
        if path.suffix == ".parquet":
            frame = read_parquet(path)
            numbers = frame["row"].to_list() if "row" in frame.columns else []
            if not self.rows.isdisjoint(numbers):
                yield "numbers of its rows"


def files_of(directory: Path) -> list[Path]:
    """All files in a directory and its subdirectories, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def chunks_of(content: NDArray[Any] | bytes) -> Iterator[bytes]:
    """Split bytes, or the bytes of an array, into chunks; a shorter rest is dropped."""
    data = (
        content
        if isinstance(content, bytes)
        else np.ascontiguousarray(content).tobytes()
    )
    for start in range(0, len(data) - CHUNK_BYTES + 1, CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def identifying_chunks(
    arrays: Iterable[NDArray[Any]], shared: Set[bytes]
) -> set[bytes]:
    """The chunks of a client's arrays that identify it.

    Args:
        arrays: arrays of the client.
        shared: chunks that others have as well.
    """
    chunks = {chunk for array in arrays for chunk in chunks_of(array)} - shared
    # A chunk that repeats one number, such as zeros, identifies no client.
    return {chunk for chunk in chunks if chunk != chunk[:4] * (CHUNK_BYTES // 4)}


def _contains(data: bytes, chunks: set[bytes]) -> bool:
    """Whether data contain one of the chunks at any offset.

    The first words of all chunks are searched for together.
    """
    if not chunks:
        return False
    size = _WORD.itemsize
    first_words = b"".join(chunk[:size] for chunk in chunks)
    first = np.unique(np.frombuffer(first_words, _WORD))
    for offset in range(size):
        length = (len(data) - offset) // size
        if length < CHUNK_BYTES // size:
            continue
        words = np.frombuffer(data, _WORD, length, offset)
        for index in np.flatnonzero(np.isin(words, first)):
            start = offset + int(index) * size
            if data[start : start + CHUNK_BYTES] in chunks:
                return True
    return False


def _texts_of(path: Path, data: bytes, *, of_clients: bool = False) -> Iterator[str]:
    """The texts in a file: keys and values, cells, names of columns and arrays.

    Files of other formats give their words.

    Args:
        path: the file.
        data: its content.
        of_clients: only texts where files name clients.
    """
    if path.suffix == ".json":
        yield from _strings(json.loads(data), all_of_them=not of_clients)
    elif path.suffix == ".toml":
        yield from _strings(tomllib.loads(data.decode()), all_of_them=not of_clients)
    elif path.suffix == ".parquet":
        frame = read_parquet(path)
        yield from () if of_clients else frame.columns
        for column in frame.select(pl.col(pl.String)):
            if not of_clients or column.name in _OF_CLIENTS:
                yield from column.unique().drop_nulls()
    elif path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as file:
            yield from () if of_clients else file.keys()
            yield from () if of_clients else (file.metadata() or {}).values()
    elif not of_clients:
        yield from data.decode("utf-8", "ignore").split()


def _strings(value: Any, *, all_of_them: bool = True) -> Iterator[str]:
    """Strings in a JSON value, including keys: all, or those that name clients.

    These are the keys and the texts directly below a key of `_OF_CLIENTS`.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if all_of_them:
                yield str(key)
            elif key in _OF_CLIENTS:
                texts = inner if isinstance(inner, Mapping | list) else [inner]
                yield from (text for text in texts if isinstance(text, str))
            yield from _strings(inner, all_of_them=all_of_them)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, all_of_them=all_of_them)
    elif isinstance(value, str) and all_of_them:
        yield value
