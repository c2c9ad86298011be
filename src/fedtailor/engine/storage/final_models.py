"""The directory of models that were refitted on all rows, and its record.

final.json        which client uses which run, and what a comparison says of it
calibration.json  scores of test rows, which sets and intervals are from
thresholds.parquet  of two classes: the log-odds of the comparison's validation rows, which
                  thresholds are from, and of the test rows that measure them
runs/<method>/    the run directories, one for each method that is used
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from fedtailor._base.digests import has_valid_digest, with_digest
from fedtailor._base.parquet import write_parquet
from fedtailor.engine.storage.errors import Damaged
from fedtailor.engine.storage.run_files import SUMMARY, read_frame, read_text
from fedtailor.protocol.plain import ConfigError, parse

RECORD = "final.json"
RUNS = "runs"
THRESHOLDS = "thresholds.parquet"
FORMAT = "fedtailor final models 1"
DEFAULT_FOLDER = "model"
"""The folder of an experiment's results in which its final models are."""
_ADVICE = "run `fedtailor finalize` again"


@dataclass(frozen=True)
class Expectation:
    """What a comparison says about the method that a client uses.

    Attributes:
        run: folder of the run below `RUNS`.
        method: label of the method in the comparison.
        value: metric on test rows, the mean over splits; None if it is not known.
        low, high: ends of its 95 % interval.
    """

    run: str
    method: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class FinalModels:
    """The record of final models.

    Attributes:
        run: folder of the run of the method for all, which serves newcomers.
        clients: client -> what it uses.
        metric: metric of the expectations.
        splits: number of splits of the comparison.
        rows: number of rows that were trained on.
        digest_of: digest of the comparison's index.
        kept: number of test rows that were not trained on, from which sets and intervals
            are; 0 = all rows were trained on, and sets are from the comparison's test
            rows.
    """

    run: str
    clients: dict[str, Expectation]
    metric: str
    splits: int
    rows: int
    digest_of: str
    kept: int = 0
    format: str = FORMAT

    def write(self, directory: Path) -> None:
        """Write the record.

        Raises:
            OSError: it cannot be written.
        """
        content = json.dumps(with_digest(asdict(self)), indent=1)
        (directory / RECORD).write_text(content, "utf-8")


def write_threshold_rows(rows: pl.DataFrame, directory: Path) -> None:
    """Write the rows that thresholds of final models are from.

    Args:
        rows: the columns client, split ("val" or "test"), log_odds, is_positive and
            perhaps weight.
        directory: of the final models.

    Raises:
        OSError: they cannot be written.
    """
    # Sorted, so that their places do not say which rows of the table they are.
    write_parquet(rows.sort(pl.all()), directory / THRESHOLDS)


def read_threshold_rows(directory: Path) -> pl.DataFrame | None:
    """Read what `write_threshold_rows` wrote; None if there is none.

    Raises:
        Unusable: the file cannot be read.
        Damaged: the file is damaged.
    """
    path = directory / THRESHOLDS
    return read_frame(path, _ADVICE) if path.exists() else None


def read_final(directory: Path) -> FinalModels:
    """Read the record of final models.

    Raises:
        Damaged: it is missing or damaged, or a run is missing.
    """
    path = directory / RECORD
    content = read_text(path, json.loads, _ADVICE)
    if not has_valid_digest(content) or content.get("format") != FORMAT:
        raise Damaged(f"{path} is damaged (its digest is wrong); {_ADVICE}")
    try:
        record: FinalModels = parse(FinalModels, content)
    except ConfigError:
        raise Damaged(f"{path} is not a record of final models; {_ADVICE}") from None
    for run in dict.fromkeys([record.run, *(it.run for it in record.clients.values())]):
        is_folder_name = Path(run).name == run and run not in ("", ".", "..")
        if not is_folder_name or not (directory / RUNS / run / SUMMARY).is_file():
            raise Damaged(f"{directory} lacks the run {run!r}; {_ADVICE}")
    return record
