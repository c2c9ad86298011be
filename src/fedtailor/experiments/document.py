"""Experiment files as nested dicts.

Inheritance, the quick size, and the line on which a setting stands.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.protocol import require

KeyPath = tuple[str, ...]
"""Where a setting stands: the keys on the way to it."""

QUICK = "quick"

_PART = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\s*({_KEYS})\s*\]")
_SETTING = re.compile(rf"\s*({_KEYS})\s*=")


class ConfigError(ValueError):
    """A setting that cannot stand where it does; `place` says where."""

    def __init__(self, place: Sequence[Any], message: str) -> None:
        self.place = tuple(map(str, place))
        super().__init__(message)


@dataclass(frozen=True)
class Document:
    """The settings of an experiment, and where each came from.

    Attributes:
        content: the merged tables.
        sources: (name, text, prefix), the most special one first: what stands in it
            under `prefix` came from there.
    """

    content: dict[str, Any]
    sources: tuple[tuple[str, str, KeyPath], ...]

    def explain(self, error: ConfigError) -> str:
        """The error with file and line.

        The line is that of the setting, or of the table that should hold it.
        """
        for length in range(len(error.place), 0, -1):
            for name, text, prefix in self.sources:
                line = line_of(text, (*prefix, *error.place[:length]))
                if line is not None:
                    return f"{name}, line {line}: {error}"
        return f"{self.sources[0][0]}: {error}"


def read(path: Path, *, quick: bool = False) -> Document:
    """An experiment file, laid over its `base` (a file beside it).

    `quick` lays the table [quick] over all. A table is laid over a table key by key;
    everything else replaces what was there, and `false` removes a table.

    Raises:
        ValueError: a file cannot be read, is no TOML, is its own base, or has no quick
            size.
    """
    layers: list[tuple[str, str, dict[str, Any]]] = []
    # The file, its base, the base of that, ...
    seen: list[Path] = []
    file: Path | None = path
    while file is not None:
        require(
            file.resolve() not in seen,
            f"{file} is its own base; remove `base` from one of the files",
        )
        seen.append(file.resolve())
        text, content = _parse(file)
        base = content.pop("base", None)
        require(
            base is None or isinstance(base, str),
            f"{file}: base is {base!r}; it must be the name of a file",
        )
        layers.append((file.name, text, content))
        file = None if base is None else file.parent / base
    # From the last base on, each is laid over what is below it.
    content: dict[str, Any] = {}
    sources: list[tuple[str, str, KeyPath]] = [
        (name, text, ()) for name, text, _ in layers
    ]
    sizes = []
    for name, text, layer in reversed(layers):
        size = layer.pop(QUICK, None)
        if size is not None:
            require(
                isinstance(size, dict), f"{name}: {QUICK} must be a table, [{QUICK}]"
            )
            sizes.append(size)
            sources.insert(0, (name, text, (QUICK,)))
        content = overlay(content, layer)
    if not quick:
        return Document(content, tuple(source for source in sources if not source[2]))
    require(
        bool(sizes),
        f"{path} has no quick size (no table [{QUICK}]); run it without --quick",
    )
    for size in sizes:
        content = overlay(content, size)
    return Document(content, tuple(sources))


def overlay(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `under`.

    Tables are laid over each other key by key, `false` over a table removes it, and all
    else replaces.
    """
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if value is False and isinstance(below, dict):
            del merged[key]
        elif isinstance(value, dict):
            merged[key] = overlay(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def line_of(text: str, place: KeyPath) -> int | None:
    """The line (from 1) of a TOML text that sets `place` or opens its table.

    None if no line does.
    """
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := _HEADER.match(line):
            table = _split(found[1])
            here = table
        elif found := _SETTING.match(line):
            here = (*table, *_split(found[1]))
        else:
            continue
        if here[: len(place)] == place or _inside(line, here, place):
            return number
    return None


def _inside(line: str, here: KeyPath, place: KeyPath) -> bool:
    """Whether a setting of this line is an inline table that holds `place`."""
    if here != place[: len(here)] or "{" not in line:
        return False
    rest = place[len(here) :]
    return all(re.search(rf"\b{re.escape(key)}\b", line) for key in rest)


def _split(keys: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))


def _parse(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is no TOML file: it is nested too deeply") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None
