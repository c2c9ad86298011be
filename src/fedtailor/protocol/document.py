"""Read experiment files: base files, the quick size, and line numbers for errors."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor.protocol.plain import ConfigError, KeyPath

QUICK = "quick"

MOST_DOTS = 1000
"""The most dots in a line."""

MOST_DEPTH = 50
"""The deepest nesting of tables and lists in a file."""

_PART = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\s*({_KEYS})\s*\]")
_SETTING = re.compile(rf"\s*({_KEYS})\s*=")


@dataclass(frozen=True)
class Document:
    """The settings of an experiment, and the files from which they were read.

    Attributes:
        content: the merged tables.
        sources: (file name, text, prefix), in order of precedence: the settings below
            the key path `prefix` of the text were merged.
    """

    content: dict[str, Any]
    sources: tuple[tuple[str, str, KeyPath], ...]

    def explain(self, error: ConfigError) -> str:
        """The error message with the file and line of the setting, or of its table."""
        for length in range(len(error.place), 0, -1):
            for name, text, prefix in self.sources:
                line = line_of(text, (*prefix, *error.place[:length]))
                if line is not None:
                    return f"{name}, line {line}: {error}"
        return f"{self.sources[0][0]}: {error}"


def read_document(path: Path, *, quick: bool = False, alone: bool = False) -> Document:
    """Read an experiment file, and merge it with its `base` (see `overlay`).

    Args:
        path: the file. Its setting `base` is the path of another file, relative to it.
        quick: also merge the table [quick].
        alone: whether a base is refused: a file of others would choose which of this
            machine's files are read. The table [quick] then is one like others.

    Raises:
        ValueError: a file cannot be read, is not TOML, has a base that it may not have, is
            its own base, or has no table [quick].
    """
    layers: list[tuple[str, str, dict[str, Any]]] = []
    # Read the file, its base, the base of the base, and so on.
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
        require(
            base is None or not alone,
            f"{file}: only experiment files have a base; write all settings here",
        )
        layers.append((file.name, text, content))
        file = None if base is None else file.parent / base
    # Merge the files, beginning with the last base.
    content: dict[str, Any] = {}
    sources: list[tuple[str, str, KeyPath]] = [
        (name, text, ()) for name, text, _ in layers
    ]
    sizes = []
    for name, text, layer in reversed(layers):
        size = None if alone else layer.pop(QUICK, None)
        if size is not None:
            require(
                isinstance(size, dict), f"{name}: {QUICK} must be a table, [{QUICK}]"
            )
            sizes.append(size)
            sources.insert(0, (name, text, (QUICK,)))
        content = overlay(content, layer)
    if not quick:
        sources = [source for source in sources if not source[2]]
        return Document(_without_removed(content), tuple(sources))
    require(
        bool(sizes),
        f"{path} has no quick size (no table [{QUICK}]); run it without --quick",
    )
    for size in sizes:
        content = overlay(content, size)
    return Document(_without_removed(content), tuple(sources))


def _without_removed(content: dict[str, Any]) -> dict[str, Any]:
    """The content without what is `false` where that is not a value: a published figure
    that a base has, or a table that a quick size removes once more.
    """
    result = dict(content)
    for name in ("scenarios", "algorithms"):
        table = result.get(name)
        if isinstance(table, dict):
            result[name] = {key: it for key, it in table.items() if it is not False}
    if "published" in result:
        result["published"] = _without_false(result["published"])
    return result


def _without_false(value: Any) -> Any:
    """A table without all that is `false` in it."""
    if not isinstance(value, dict):
        return value
    return {key: _without_false(it) for key, it in value.items() if it is not False}


def overlay(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables, recursively.

    Values in `override` replace those in `base`. If a table is replaced by a table,
    both are merged; if it is replaced by `false`, it is removed.
    """
    merged = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        if value is False and isinstance(old, dict):
            del merged[key]
        elif isinstance(value, dict):
            merged[key] = overlay(old if isinstance(old, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def line_of(text: str, place: KeyPath) -> int | None:
    """The line (from 1) that sets `place` or opens its table; None if there is none."""
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            table = _split_keys(match[1])
            line_path = table
        elif match := _SETTING.match(line):
            line_path = (*table, *_split_keys(match[1]))
        else:
            continue
        if line_path[: len(place)] == place or _has_inline(line, line_path, place):
            return number
    return None


def _has_inline(line: str, line_path: KeyPath, place: KeyPath) -> bool:
    """Whether the line sets `line_path` to an inline table that contains `place`."""
    if line_path != place[: len(line_path)] or "{" not in line:
        return False
    rest = place[len(line_path) :]
    return all(re.search(rf"\b{re.escape(key)}\b", line) for key in rest)


def _split_keys(keys: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))


def _depth(content: Any) -> int:
    """How deeply tables and lists are nested."""
    depth, level = 0, [content]
    while level:
        depth += 1
        inner = []
        for value in level:
            values = value.values() if isinstance(value, dict) else value
            inner += [each for each in values if isinstance(each, dict | list)]
        level = inner
    return depth


def _parse(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        # As bytes: a carriage return by itself ends no line of TOML.
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        # The parser's time grows with the square of the dots in a name.
        if max(line.count(".") for line in text.split("\n")) > MOST_DOTS:
            raise RecursionError
        content = tomllib.loads(text)
        # Names with dots are read in a loop, and what they make is not.
        if _depth(content) > MOST_DEPTH:
            raise RecursionError
        return text, content
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(
            f"{path} is not a TOML file: it is nested too deeply"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a TOML file: byte {error.start} is not UTF-8; save it in that"
            " encoding"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
