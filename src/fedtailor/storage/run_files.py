"""The files of a run directory: their names, and how they are read.

`fedtailor.storage.run_directory` says what each of them holds.
"""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from fedtailor._files import reading, reason
from fedtailor._parquet import read_parquet
from fedtailor.federation import SPLITS, Federation
from fedtailor.storage.digests import file_digest, is_sealed
from fedtailor.storage.errors import Damaged, Unusable

MANIFEST, CLIENTS, METRICS, LEDGER = (
    "manifest.toml",
    "clients.parquet",
    "metrics.parquet",
    "ledger.parquet",
)
CHECKPOINT, CHECKPOINT_BEFORE = (
    "checkpoint.safetensors",
    "checkpoint-before.safetensors",
)
SUMMARY, DIGESTS = "summary.json", "digests"
INDEX = "experiment.json"
"""What a comparison says of its runs, in a folder of its own beside them."""
ROWS, BASELINE = "rows.parquet", "baseline.parquet"
KEPT = "models.json"
"""The manifest of the personal models that a run keeps
(`fedtailor.storage.export.write_models`).
"""

Content = TypeVar("Content")


def clients(federation: Federation) -> pl.DataFrame:
    """Who takes part, as the table `clients.parquet`.

    Returns:
        The columns client (name), group (null where there are none), unseen, and the
        samples in train, val and test.
    """
    groups = (
        [None] * len(federation)
        if federation.groups is None
        else federation.groups.tolist()
    )
    sizes = {name: getattr(federation, name).sizes for name in SPLITS}
    columns = {
        "client": list(federation.names),
        "group": groups,
        "unseen": federation.unseen,
        **sizes,
    }
    return pl.DataFrame(columns, schema_overrides={"group": pl.Int64})


def read_frame(path: Path) -> pl.DataFrame:
    """A table of a run.

    Raises:
        Unusable: it cannot be read.
        Damaged: it is missing, or no table.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; remove the directory and start again")
    try:
        with reading(path, Unusable):
            return read_parquet(path)
    except pl.exceptions.PolarsError as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(
            f"{path} is damaged ({why}); remove the directory and start again"
        ) from None


def read_text(path: Path, parse: Callable[[str], Content], advice: str) -> Content:
    """The content of a text file of a run.

    Args:
        path: the file.
        parse: `json.loads` or `tomllib.loads`.
        advice: what to do where it is missing or damaged.

    Raises:
        Unusable: it cannot be read.
        Damaged: it is missing, or no such text.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; {advice}")
    with reading(path, Unusable):
        content = path.read_bytes()
    # The errors of decoding, JSON and TOML are all ValueErrors.
    try:
        return parse(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({reason(error)}); {advice}") from None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run, which has every setting (`path` is its file).

    Raises:
        Unusable: it cannot be read.
        Damaged: it is missing, or not what was written.
    """
    return read_text(path, tomllib.loads, "remove the directory and start again")


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a run (`path` is its file).

    Raises:
        Unusable: it cannot be read.
        Damaged: it is missing, or not what was written.
    """
    summary = read_text(path, json.loads, "repeat the run")
    if not isinstance(summary, dict) or not is_sealed(summary):
        raise Damaged(f"{path} is damaged (it is not what was written); repeat the run")
    return summary


def require_unchanged(path: Path, summary: dict[str, Any]) -> None:
    """Refuse a file of a finished run that was changed since, by the digest in its
    summary (0.1 kept none).

    Raises:
        Unusable: it cannot be read.
        Damaged: it was changed.
    """
    digests = summary.get(DIGESTS)
    if not isinstance(digests, dict) or path.name not in digests or not path.is_file():
        return
    with reading(path, Unusable):
        digest = file_digest(path)
    if digest != digests[path.name]:
        raise Damaged(f"{path} is damaged (its digest is wrong); repeat the run")
