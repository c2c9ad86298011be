"""Names of the files in a run directory, and functions that read them.

`fedtailor.engine.storage.run_directory` describes the content of each file.
"""

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from fedtailor._base.choice import require
from fedtailor._base.digests import has_valid_digest
from fedtailor._base.files import file_digest, reason, translate_read_errors
from fedtailor._base.parquet import read_parquet
from fedtailor.engine.storage.errors import Damaged, Unusable
from fedtailor.engine.training.asynchronous import AnswerRecord
from fedtailor.protocol import DataFacts

MANIFEST = "manifest.toml"
"""All settings of the run, and the digest of its data."""
CLIENTS = "clients.parquet"
"""The clients: name, group, whether unseen, and sizes (see `clients`)."""
METRICS = "metrics.parquet"
"""The value of each metric, by evaluated round, client and split."""
ANSWERS = "answers.parquet"
"""Of machines that may be late: whose answers each round took (see `answers`)."""
LEDGER = "ledger.parquet"
"""The ledger: messages and computation of each round, in numbers (`accounting.Ledger`)."""
ROWS = "rows.parquet"
"""Loss and prediction of each test row at the end, if the run was asked for them."""
VALIDATION = "validation.parquet"
"""Loss and prediction of each validation row at the end, stored together with `ROWS`."""
BASELINE = "baseline.parquet"
"""The metrics of a constant predictor, stored together with `ROWS`."""
CHECKPOINT = "checkpoint.safetensors"
"""The state of the training after the last saved round."""
PREVIOUS_CHECKPOINT = "checkpoint-before.safetensors"
"""The checkpoint before it, which is used if the last one is damaged."""
MODELS_MANIFEST = "models.json"
"""The manifest of the personal models (`fedtailor.engine.storage.export.write_models`)."""
SUMMARY = "summary.json"
"""The results. It is written last, so only the directory of a finished run has it."""
DIGESTS = "digests"
"""The key of the summary that holds the digests of the run's other files, by name."""
COMPARISON_INDEX = "experiment.json"
"""The index of a comparison. It is in the comparison's folder, next to its runs."""

Content = TypeVar("Content")


def clients(data: DataFacts) -> pl.DataFrame:
    """The clients of a run, as the table `clients.parquet`.

    Returns:
        The columns client (its name), group (null if the federation has no groups),
        unseen (True for clients that never train), and train, val and test (numbers of
        samples).
    """
    groups = [None] * len(data.names) if data.groups is None else data.groups.tolist()
    columns = {
        "client": list(data.names),
        "group": groups,
        "unseen": data.unseen,
        **data.sizes,
    }
    return pl.DataFrame(columns, schema_overrides={"group": pl.Int64})


def answers(record: AnswerRecord, names: Sequence[str]) -> pl.DataFrame:
    """Whose answers each round of a run took, as the table `answers.parquet`.

    Args:
        record: the answers.
        names: the names of the seen clients, in the order of their ids.

    Returns:
        The columns round (from 1), client (its name), and age (the number of rounds
        since the client began).
    """
    columns = {
        "round": [step + 1 for step in record.step],
        "client": [names[row] for row in record.client],
        "age": record.age,
    }
    types = {"round": pl.Int64, "client": pl.String, "age": pl.Int64}
    return pl.DataFrame(columns, schema=types)


def read_answers(path: Path, names: Sequence[str]) -> AnswerRecord:
    """The record of a table that `answers` made.

    Args:
        path: the file.
        names: the names of the seen clients, in the order of their ids.

    Raises:
        Unusable, Damaged: as `read_frame`.
        ValueError: it is of other clients.
    """
    frame = read_frame(path)
    row = {name: place for place, name in enumerate(names)}
    unknown = sorted(set(frame["client"]) - set(row))
    require(not unknown, f"{path} names {unknown[:1]}, and no client has that name")
    return AnswerRecord(
        (frame["round"] - 1).to_list(),
        [row[name] for name in frame["client"]],
        frame["age"].to_list(),
    )


def read_frame(
    path: Path, advice: str = "remove the directory and start again"
) -> pl.DataFrame:
    """Read a table of a run.

    Args:
        path: the file.
        advice: the end of the error message, which says what to do if the file is
            missing or damaged.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file is missing or damaged.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; {advice}")
    try:
        with translate_read_errors(path, Unusable):
            return read_parquet(path)
    except pl.exceptions.PolarsError as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(f"{path} is damaged ({message}); {advice}") from None


def read_text(path: Path, parse: Callable[[str], Content], advice: str) -> Content:
    """Read and parse a text file of a run.

    Args:
        path: the file.
        parse: `json.loads` or `tomllib.loads`.
        advice: the end of the error message, which says what to do if the file is
            missing or damaged.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file is missing, or cannot be parsed.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; {advice}")
    with translate_read_errors(path, Unusable):
        content = path.read_bytes()
    # Errors of UTF-8, JSON and TOML are all ValueErrors.
    try:
        return parse(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({reason(error)}); {advice}") from None


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a run, which holds all settings.

    Args:
        path: the manifest's file.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file is missing or damaged.
    """
    return read_text(path, tomllib.loads, "remove the directory and start again")


def read_summary(path: Path) -> dict[str, Any]:
    """Read the summary of a run.

    Args:
        path: the summary's file.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file is missing, or its digest is wrong.
    """
    summary = read_text(path, json.loads, "repeat the run")
    if not has_valid_digest(summary):
        raise Damaged(f"{path} is damaged (it is not what was written); repeat the run")
    return summary


def ended_early(summary: dict[str, Any]) -> bool:
    """Whether a run ended before the rounds for which it was started, because a callback
    stopped it (its loss had converged, for example).
    """
    rounds = summary.get("rounds", 0)
    return bool(summary.get("asked_rounds", rounds) > rounds)


def require_unchanged(path: Path, summary: dict[str, Any]) -> None:
    """Require that a file of a finished run matches its digest in the run's summary.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file has changed.
    """
    digests = summary.get(DIGESTS, {})
    # Some files, such as a privacy audit, are written after the summary.
    if path.name not in digests or not path.is_file():
        return
    with translate_read_errors(path, Unusable):
        digest = file_digest(path)
    if digest != digests[path.name]:
        raise Damaged(f"{path} is damaged (its digest is wrong); repeat the run")
