"""`fedtailor check`: compare runs, exports, federations and comparisons with their
digests.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor._base.digests import (
    DIGEST_KEY,
    SUMS,
    frame_digest,
    has_valid_digest,
    sums_of,
)
from fedtailor._base.files import file_digest, reason, translate_read_errors
from fedtailor.data.federation.storage import load as load_federation
from fedtailor.engine.storage import export
from fedtailor.engine.storage.checkpoint import load_tree
from fedtailor.engine.storage.errors import Damaged
from fedtailor.engine.storage.final_models import (
    RECORD,
    read_final,
    read_threshold_rows,
)
from fedtailor.engine.storage.run_files import (
    CHECKPOINT,
    CLIENTS,
    COMPARISON_INDEX,
    DIGESTS,
    LEDGER,
    MANIFEST,
    METRICS,
    PREVIOUS_CHECKPOINT,
    SUMMARY,
    read_frame,
    read_manifest,
    read_summary,
    read_text,
    require_unchanged,
)


@dataclass(frozen=True)
class Finding:
    """The result of checking one file or directory.

    Attributes:
        path: the file or directory.
        what: a description of its content, or an error message, in one line.
        whole: whether the check has passed.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.storage import Finding
        >>> Finding(Path("run"), "a run", True).whole
        True
    """

    path: Path
    what: str
    whole: bool


def check(path: Path) -> list[Finding]:
    """Check files against their digests.

    Args:
        path: a run directory, an export, a saved federation, or a directory that
            contains some of these, such as the results of a comparison.

    Returns:
        One finding for each run, export, federation or index of a comparison.

    Raises:
        ValueError: the directory contains none of these.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.storage import check
        >>> kept = ft.run(
        ...     ft.Local(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=1,
        ...     directory="checked",
        ... )
        >>> [finding.whole for finding in check(Path("checked"))]
        [True]
    """
    if path.is_file():
        return [_finding(path, _check_federation)]
    findings = list(_check_directory(path))
    if not findings:
        raise ValueError(
            f"{path} holds no run, export or saved federation of fedtailor; check the"
            " path"
        )
    return findings


def _check_directory(path: Path) -> Iterator[Finding]:
    """Check a run or an export, or else the subdirectories, recursively."""
    if (path / COMPARISON_INDEX).exists():
        yield _finding(path / COMPARISON_INDEX, _check_comparison)
    if (path / RECORD).exists():
        yield _finding(path / RECORD, _check_final)
    if (path / MANIFEST).exists():
        yield _finding(path, _check_run)
    elif (path / export.MANIFEST).exists() or (path / export.MODELS).exists():
        yield _finding(path, _check_export)
    elif (path / SUMS).exists() or any(path.glob("*.onnx")):
        yield _finding(path, _check_onnx)
    elif path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _check_directory(entry)


def _finding(path: Path, check_path: Callable[[Path], str]) -> Finding:
    """The description that `check_path` returns, or the error that it raises."""
    try:
        return Finding(path, check_path(path), whole=True)
    except ValueError as error:
        return Finding(path, str(error), whole=False)
    # A JSON or TOML file that can be parsed, but has an unexpected structure.
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return Finding(
            path,
            f"{path} holds something else than fedtailor writes ({reason(error)})",
            whole=False,
        )


# Each of the following functions checks one kind of files. It returns a description of
# them in one line, and raises a ValueError if something is wrong.


def _check_federation(path: Path) -> str:
    # Loading a federation checks its digest.
    return f"a federation of {len(load_federation(path))} clients"


def _check_export(path: Path) -> str:
    manifest = path / export.MANIFEST
    if not manifest.exists():
        raise Damaged(f"{manifest} is missing; export the models again")
    return f"personal models of {export.check_export(path)} clients"


def _check_final(path: Path) -> str:
    record = read_final(path.parent)
    read_threshold_rows(path.parent)
    return f"final models of {len(record.clients)} clients"


def _check_onnx(path: Path) -> str:
    if not (path / SUMS).exists():
        raise Damaged(
            f"{path / SUMS} is missing: the export did not end; export the models again"
        )
    with translate_read_errors(path):
        recorded = set((path / SUMS).read_text("utf-8", errors="replace").splitlines())
        changed = recorded.symmetric_difference(sums_of(path).splitlines())
    if changed:
        names = ", ".join(sorted({line.partition("  ")[2] for line in changed}))
        raise Damaged(
            f"{path} is damaged ({names}: not what was written); export the models"
            " again"
        )
    count = sum(line.endswith(".onnx") for line in recorded)
    return f"personal models of {count} clients, as ONNX"


def _check_comparison(path: Path) -> str:
    # The runs of an index must have ended, so each has a summary.
    content = _read_json(path)
    if DIGEST_KEY not in content:
        raise Damaged(f"{path} has no digest: another version wrote it")
    cells = content["cells"]
    for cell in (*cells, *content["baselines"]):
        if not (path.parents[1] / cell["run"] / SUMMARY).exists():
            raise Damaged(
                f"{path} names the run {cell['run']}, which is missing; the same"
                " command makes it again"
            )
    return f"a comparison of {len(cells)} runs"


def _read_json(path: Path) -> Any:
    """Read a JSON file, and check its digest.

    Some files of a run have none, but one in the summary.
    """
    content = read_text(path, json.loads, "repeat the command that wrote it")
    if DIGEST_KEY in content and not has_valid_digest(content):
        raise Damaged(f"{path} is damaged (its digest is wrong)")
    return content


def _check_run(path: Path) -> str:
    read_manifest(path / MANIFEST)
    checkpoints = [
        name for name in (CHECKPOINT, PREVIOUS_CHECKPOINT) if (path / name).exists()
    ]
    if not checkpoints and not (path / SUMMARY).exists():
        return "a run that has not come to its first checkpoint"
    for name in checkpoints:
        _check_checkpoint(path, name)
    for name in (CLIENTS, METRICS, LEDGER):
        read_frame(path / name)
    for file in sorted(path.glob("*.json")):
        _read_json(file)
    if not (path / SUMMARY).exists():
        return "an unfinished run"
    summary = read_summary(path / SUMMARY)
    # A checkpoint contains its own digest. The summary has the digests of all other
    # files.
    for name in summary[DIGESTS]:
        if not (path / name).exists():
            raise Damaged(f"{path / name} is missing; repeat the run")
        require_unchanged(path / name, summary)
    outcome = (
        "that diverged"
        if "diverged" in summary
        else f"of {summary.get('rounds')} rounds"
    )
    return f"a finished run {outcome}"


def _check_checkpoint(path: Path, name: str) -> None:
    """Require that a checkpoint is not damaged and belongs to the files of its run."""
    saved = load_tree(path / name).get("saved")
    if not isinstance(saved, dict):
        raise Damaged(f"{path / name} is not a checkpoint of a run")
    digests = saved[DIGESTS]
    if file_digest(path / MANIFEST) != digests["manifest"]:
        raise Damaged(f"{path / MANIFEST} is not the one that {name} was saved with")
    for file, key in ((CLIENTS, "clients"), (METRICS, "metrics"), (LEDGER, "ledger")):
        # A resumed run may have appended rows. Compare those that existed when the
        # checkpoint was saved.
        frame = read_frame(path / file)
        rows = saved.get(key, len(frame))
        if len(frame) < rows or frame_digest(frame.head(rows)) != digests[key]:
            raise Damaged(f"{path / file} is not the one that {name} was saved with")
