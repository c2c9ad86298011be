"""`fedtailor check`: whether files are what was written, by their digests: run
directories, exports, saved federations, comparisons.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor._files import reading, reason
from fedtailor.federation.storage import load as load_federation
from fedtailor.storage import export
from fedtailor.storage.checkpoint import OLD_FORMAT, checkpoint_format, load_tree
from fedtailor.storage.digests import (
    SUMS,
    file_digest,
    frame_digest,
    is_sealed,
    sums_of,
)
from fedtailor.storage.errors import Damaged
from fedtailor.storage.run_files import (
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    CLIENTS,
    DIGESTS,
    INDEX,
    LEDGER,
    MANIFEST,
    METRICS,
    SUMMARY,
    read_frame,
    read_manifest,
    read_summary,
    read_text,
    require_unchanged,
)

WITHOUT_DIGESTS = (
    ", of fedtailor 0.1, which kept no digests: nothing but that it can be read is"
    " known"
)


@dataclass(frozen=True)
class Finding:
    """The result of the check of one file or directory.

    Attributes:
        path: which.
        what: what it is, or what is wrong with it, in one line.
        whole: whether nothing is wrong.
    """

    path: Path
    what: str
    whole: bool


def check(path: Path) -> list[Finding]:
    """Check files against their digests.

    Args:
        path: a run directory, an export, a saved federation, or a directory that holds
            some of these (the results of a comparison).

    Returns:
        One finding for each run, export, federation or index of a comparison.

    Raises:
        ValueError: there is nothing of fedtailor's.
    """
    if path.is_file():
        return [_finding(path, _federation)]
    findings = list(_below(path))
    if not findings:
        raise ValueError(
            f"{path} holds no run, export or saved federation of fedtailor; check the"
            " path"
        )
    return findings


def _below(path: Path) -> Iterator[Finding]:
    """The findings about a directory, or about those in it where it is none of
    fedtailor's.
    """
    if (path / INDEX).exists():
        yield _finding(path / INDEX, _comparison)
    if (path / MANIFEST).exists():
        yield _finding(path, _run)
    elif (path / export.MANIFEST).exists() or (path / export.MODELS).exists():
        yield _finding(path, _export)
    elif (path / SUMS).exists() or any(path.glob("*.onnx")):
        yield _finding(path, _graphs)
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _below(inner)


def _finding(path: Path, describe: Callable[[Path], str]) -> Finding:
    """What `describe` says of a path, or the error that it raises."""
    try:
        return Finding(path, describe(path), whole=True)
    except ValueError as error:
        return Finding(path, str(error), whole=False)
    # A JSON or TOML file that can be parsed, but has another shape.
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return Finding(
            path,
            f"{path} holds something else than fedtailor writes ({reason(error)})",
            whole=False,
        )


def _federation(path: Path) -> str:
    """Check a saved federation; loading it does."""
    return f"a federation of {len(load_federation(path))} clients"


def _export(path: Path) -> str:
    """Check exported models."""
    manifest = path / export.MANIFEST
    if not manifest.exists():
        raise Damaged(f"{manifest} is missing; export the models again")
    clients, digests = export.check_export(path)
    return f"personal models of {clients} clients{'' if digests else WITHOUT_DIGESTS}"


def _graphs(path: Path) -> str:
    """Check an export as ONNX."""
    if not (path / SUMS).exists():
        raise Damaged(
            f"{path / SUMS} is missing: the export did not end; export the models again"
        )
    with reading(path):
        written = set((path / SUMS).read_text("utf-8", errors="replace").splitlines())
        changed = written.symmetric_difference(sums_of(path).splitlines())
    if changed:
        names = ", ".join(sorted({line.partition("  ")[2] for line in changed}))
        raise Damaged(
            f"{path} is damaged ({names}: not what was written); export the models"
            " again"
        )
    count = sum(line.endswith(".onnx") for line in written)
    return f"personal models of {count} clients, as ONNX"


def _comparison(path: Path) -> str:
    """Check the index of a comparison, and that the runs that it names have ended."""
    cells = _sealed(path)["cells"]
    for cell in cells:
        if not (path.parents[1] / cell["run"] / SUMMARY).exists():
            raise Damaged(
                f"{path} names the run {cell['run']}, which is not there; the same"
                " command makes it again"
            )
    return f"a comparison of {len(cells)} runs"


def _sealed(path: Path) -> Any:
    """The content of a JSON file; one whose digest is wrong is refused.

    Not all of them carry a digest.
    """
    content = read_text(path, json.loads, "repeat the command that wrote it")
    if isinstance(content, dict) and not is_sealed(content):
        raise Damaged(f"{path} is damaged (its digest is wrong)")
    return content


def _run(path: Path) -> str:
    """Check a run directory.

    Returns:
        What it is, in words.

    Raises:
        Unusable: something is missing, cannot be read or is not what was written.
    """
    read_manifest(path / MANIFEST)
    checkpoints = [
        name for name in (CHECKPOINT, CHECKPOINT_BEFORE) if (path / name).exists()
    ]
    if not checkpoints and not (path / SUMMARY).exists():
        return "a run that has not come to its first checkpoint"
    is_old = any(checkpoint_format(path / name) == OLD_FORMAT for name in checkpoints)
    if not is_old:
        for name in checkpoints:
            _check_checkpoint(path, name)
    for name in (CLIENTS, METRICS, LEDGER):
        read_frame(path / name)
    for file in sorted(path.glob("*.json")):
        _sealed(file)
    if not (path / SUMMARY).exists():
        return f"an unfinished run{WITHOUT_DIGESTS if is_old else ''}"
    summary = read_summary(path / SUMMARY)
    # The digests of the checkpoints are in these themselves; the summary has those of
    # all other files.
    for name in summary.get(DIGESTS, {}):
        if not (path / name).exists():
            raise Damaged(f"{path / name} is missing; repeat the run")
        require_unchanged(path / name, summary)
    end = (
        "that diverged"
        if "diverged" in summary
        else f"of {summary.get('rounds')} rounds"
    )
    return f"a finished run {end}{'' if DIGESTS in summary else WITHOUT_DIGESTS}"


def _check_checkpoint(path: Path, name: str) -> None:
    """Refuse a checkpoint that is damaged, or that belongs to other files than those
    beside it.
    """
    saved = load_tree(path / name).get("saved")
    if not isinstance(saved, dict):
        raise Damaged(f"{path / name} is no checkpoint of a run")
    digests = saved[DIGESTS]
    if file_digest(path / MANIFEST) != digests["manifest"]:
        raise Damaged(f"{path / MANIFEST} is not the one that {name} was saved with")
    for file, key in ((CLIENTS, "clients"), (METRICS, "metrics"), (LEDGER, "ledger")):
        # A run that went on has added rows since: only those of the checkpoint's time
        # are compared.
        frame = read_frame(path / file)
        rows = saved.get(key, len(frame))
        if len(frame) < rows or frame_digest(frame.head(rows)) != digests[key]:
            raise Damaged(f"{path / file} is not the one that {name} was saved with")
