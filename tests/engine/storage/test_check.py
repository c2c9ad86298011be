"""`fedtailor check`."""

import json
import shutil

import pytest

from conformance.problems import classification, softmax_model
from fedtailor._base.digests import DIGEST_KEY, SUMS, sums_of, with_digest
from fedtailor.algorithms import Local
from fedtailor.cli import main
from fedtailor.data.federation.storage import save
from fedtailor.engine.runs import run
from fedtailor.engine.storage import check, load_models
from fedtailor.engine.storage.run_files import (
    CHECKPOINT,
    CLIENTS,
    COMPARISON_INDEX,
    LEDGER,
    MANIFEST,
    METRICS,
    PREVIOUS_CHECKPOINT,
    SUMMARY,
)
from fedtailor.protocol import SGD

METHOD = Local(sgd=SGD(lr=0.1, epochs=2, batch_size=8))
FILES = (CHECKPOINT, PREVIOUS_CHECKPOINT, CLIENTS, LEDGER, MANIFEST, METRICS, SUMMARY)


def start(directory, **options):
    federation = classification(unseen=[False, False, True, False, False])
    return run(
        METHOD,
        federation,
        softmax_model("float32"),
        2,
        directory=directory,
        checkpoint_every=1,
        **options,
    )


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A run, an export and a saved federation."""
    path = tmp_path_factory.mktemp("everything")
    done = start(path / "runs" / "a")
    done.export(path / "models")
    save(done.federation, path / "federation")
    return path


def test_what_is_whole_is_said_to_be(everything, capsys):
    assert main(["check", str(everything), str(everything / "federation")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{everything / 'models'}: whole: personal models of 5 clients",
        f"{everything / 'runs' / 'a'}: whole: a finished run of 2 rounds",
        f"{everything / 'federation'}: whole: a federation of 5 clients",
        "3 of 3 whole",
    ]


@pytest.mark.parametrize("name", FILES)
def test_any_damaged_file_of_a_run_is_found(everything, tmp_path, capsys, name):
    shutil.copytree(everything / "runs" / "a", tmp_path / "run")
    path = tmp_path / "run" / name
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 8
    path.write_bytes(damaged)
    assert main(["check", str(tmp_path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert not found["whole"] and name in found["what"] and "\n" not in found["what"]


def test_the_index_of_a_comparison_is_checked_with_the_runs_that_it_names(
    everything, tmp_path
):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    index = tmp_path / "two" / COMPARISON_INDEX
    index.parent.mkdir()
    for cells, said in (
        (["runs/a"], "a comparison of 1 runs"),
        (["runs/a", "runs/gone"], "names the run runs/gone, which is missing"),
    ):
        content = with_digest(
            {
                "title": "Two",
                "cells": [{"run": run} for run in cells],
                "baselines": [],
            }
        )
        index.write_text(json.dumps(content))
        found = {finding.path: finding for finding in check(tmp_path)}
        assert said in found[index].what and found[index].whole == (len(cells) == 1)
    index.write_text(json.dumps(content).replace("Two", "Tow"))
    assert "its digest is wrong" in check(index.parent)[0].what


def test_a_damaged_audit_in_a_run_is_found(everything, tmp_path):
    shutil.copytree(everything / "runs" / "a", tmp_path / "run")
    audit = json.dumps(
        with_digest({"format": "fedtailor privacy audit 1", "rounds": 3})
    )
    for text, whole in (
        (audit, True),
        (audit.replace("rounds", "ruonds"), False),
        (audit[:-3], False),
    ):
        (tmp_path / "run" / "audit.json").write_text(text)
        (found,) = check(tmp_path)
        assert found.whole == whole


@pytest.mark.parametrize("name", [CLIENTS, LEDGER, METRICS])
def test_a_missing_file_of_a_run_is_found(everything, tmp_path, name):
    shutil.copytree(everything / "runs" / "a", tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    (found,) = check(tmp_path)
    assert not found.whole and f"{name} is missing" in found.what


def test_an_unfinished_run_is_whole(everything, tmp_path):
    shutil.copytree(everything / "runs" / "a", tmp_path / "run")
    for name, what in (
        (SUMMARY, "an unfinished run"),
        (CHECKPOINT, None),
        (PREVIOUS_CHECKPOINT, "not come to its first"),
    ):
        (tmp_path / "run" / name).unlink()
        (found,) = check(tmp_path / "run")
        assert found.whole and (what is None or what in found.what)


@pytest.mark.parametrize("name", ["models", "federation"])
def test_damaged_exports_and_federations_are_found(everything, tmp_path, name):
    copy = tmp_path / name
    (
        shutil.copytree(everything / name, copy)
        if name == "models"
        else shutil.copy(everything / name, copy)
    )
    path = copy / "models.safetensors" if name == "models" else copy
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    (found,) = check(copy)
    assert not found.whole and "digest is wrong" in found.what


def test_an_export_as_onnx_is_checked_by_its_sums(tmp_path):
    """The files need no ONNX to be checked: what they hold is only compared with the
    digests.
    """
    for name in ("a.onnx", "b.onnx", "preprocessing.json"):
        (tmp_path / name).write_bytes(name.encode() * 9)
    (found,) = check(tmp_path)
    assert not found.whole and "the export did not end" in found.what
    (tmp_path / SUMS).write_text(sums_of(tmp_path))
    (found,) = check(tmp_path)
    assert found.whole and found.what == "personal models of 2 clients, as ONNX"
    for change in (lambda path: path.write_bytes(b"other"), lambda path: path.unlink()):
        change(tmp_path / "b.onnx")
        (found,) = check(tmp_path)
        assert (
            not found.whole
            and "(b.onnx: not what was written)" in found.what
            and "a.onnx" not in found.what
        )


def test_nothing_to_check_is_one_line(tmp_path, capsys):
    for arguments in ([], [str(tmp_path)], [str(tmp_path / "nowhere")]):
        assert main(["check", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["runs/a/summary.json", "models/manifest.json"])
def test_files_without_a_digest_are_refused_in_one_line(everything, tmp_path, name):
    """As in files of another version, or written by hand."""
    shutil.copytree(everything, tmp_path / "copy")
    path = tmp_path / "copy" / name
    content = json.loads(path.read_text())
    del content[DIGEST_KEY]
    path.write_text(json.dumps(content))
    (found,) = check(path.parent)
    assert not found.whole and str(path) in found.what and "\n" not in found.what


def test_an_export_of_nobody_is_refused(everything, tmp_path):
    shutil.copytree(everything / "models", tmp_path / "models")
    path = tmp_path / "models" / "manifest.json"
    content = json.loads(path.read_text()) | {"clients": {}}
    path.write_text(json.dumps(with_digest(content)))
    with pytest.raises(ValueError, match="the export names no clients"):
        load_models(tmp_path / "models")


def test_an_export_of_another_format_is_refused(everything, tmp_path):
    shutil.copytree(everything / "models", tmp_path / "models")
    path = tmp_path / "models" / "manifest.json"
    content = json.loads(path.read_text()) | {"format": "fedtailor personal models 1"}
    path.write_text(json.dumps(with_digest(content)))
    with pytest.raises(ValueError, match=r"this version .* export them again") as told:
        load_models(tmp_path / "models")
    assert "\n" not in str(told.value)
