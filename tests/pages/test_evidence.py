"""benchmarks/evidence.py: a queue of experiments that may be killed and started again."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock

from fedtailor.engine.storage import DirectoryLock
from fedtailor.engine.storage.run_files import CHECKPOINT, METRICS, SUMMARY

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "evidence.py"
ROUNDS = 300
EXPERIMENT = f"""title = "A grid"
seeds = [0, 1]
rounds = {ROUNDS}
evaluate_every = 5
scenarios.digits = {{ use = "digits-rotated", clients = 4, val = 0.2 }}
algorithms.FedAvg = {{ use = "fedavg", grid.sgd.lr = [0.05, 0.1] }}
"""
MISSING_DATA = """title = "Data that are not there"
scenarios.school = { use = "school" }
algorithms.FedAvg = { use = "fedavg" }
"""
SMALL = """title = "One run"
seeds = [0]
rounds = 2
scenarios.digits = { use = "digits-rotated", clients = 4 }
algorithms.FedAvg = { use = "fedavg" }
"""
WORKERS = """import os, sys
from pathlib import Path

arguments = " ".join(sys.orig_argv)
if "queued.py" in arguments and "crash.toml" in arguments:
    os.abort()
if "queued.py" in arguments and "good.toml" in arguments:
    Path("good").write_text(f"{os.nice(0)} {len(os.sched_getaffinity(0))}")
"""
ITEM = '[[experiment]]\nname = "{}"\nfile = "{}.toml"\nfills = "a table"\ncore_hours = 2\nby = "plan"'

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists(), reason="benchmarks are in the repository only"
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("evidence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        # Dataclasses look their module up.
        patch.setitem(sys.modules, "evidence", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def folder(tmp_path):
    """A folder with a queue of one experiment."""
    return make_folder(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder whose queue has run to its end without a stop."""
    folder = make_folder(tmp_path_factory.mktemp("finished"))
    code, output = run(folder)
    assert code == 0 and "grid: done" in output
    return folder


def make_folder(folder):
    (folder / "grid.toml").write_text(EXPERIMENT)
    add(folder, ITEM.format("grid", "grid"))
    return folder


def add(folder, item):
    """Add an entry to the queue."""
    with (folder / "queue.toml").open("a") as queue:
        print(item, file=queue)


def start(folder, *options, state="state"):
    """Start the queue."""
    arguments = ["--queue", "queue.toml", "--directory", state, "--results", "results"]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FEDTAILOR_OFFLINE": "1", "FEDTAILOR_DATA": str(folder)},
    )


def run(folder, *options, state="state"):
    """Run the queue to its end.

    Returns:
        Its exit code and its output.
    """
    queue = start(folder, *options, state=state)
    output, _ = queue.communicate(timeout=900)
    return queue.returncode, output


def metrics(folder):
    """The metrics of all runs, by the name of the run."""
    paths = (folder / "state" / "runs").glob(f"*/*/{METRICS}")
    return {path.parent.name: pl.read_parquet(path) for path in paths}


def wait_for(condition, process):
    """Wait until a condition holds while a process runs."""
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    raise AssertionError("it took too long")


@pytest.mark.slow
def test_the_tables_of_a_finished_experiment_are_written(finished):
    results = finished / "results" / "grid"
    assert "FedAvg" in (results / "tables.csv").read_text()
    assert (results / "report.md").exists() and not (results / "tables").exists()
    record = json.loads((results / "evidence.json").read_text())
    assert "cores" in record["machine"]
    summaries = (finished / "state" / "runs").glob(f"*/*/{SUMMARY}")
    used = sum(json.loads(path.read_text())["core_seconds"] for path in summaries)
    assert record["core_hours"] == pytest.approx(used / 3600, rel=0.05)
    assert f"{record['core_hours']:g} core hours" in (results / "report.md").read_text()
    listed = run(finished, "--list")[1]
    assert "done" in listed and "3 of 3" in listed and "about 0.0 core hours" in listed


@pytest.mark.slow
def test_what_is_in_results_is_not_run_again_but_for_other_settings(finished, tmp_path):
    copy = make_folder(tmp_path)
    (finished / "results").rename(copy / "results")
    try:
        assert run(copy) == (0, "")
        assert not (copy / "state" / "runs").exists()
        (copy / "grid.toml").write_text(EXPERIMENT.replace(str(ROUNDS), "301"))
        listed = run(copy, "--list")[1]
        assert "missing" in listed and "0 of 3" in listed
    finally:
        (copy / "results").rename(finished / "results")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_queue_that_is_killed_goes_on_to_the_same_results(folder, finished, number):
    queue, state = start(folder), folder / "state"
    wait_for(lambda: any(state.glob(f"runs/*/*/{CHECKPOINT}")), queue)
    queue.send_signal(number)
    output, _ = queue.communicate(timeout=900)
    if number == signal.SIGTERM:
        assert queue.returncode == 0 and "stopped" in output
    # A queue that is killed takes its experiment along.
    with FileLock(state / "worker.lock", timeout=900):
        assert len(list(state.glob(f"runs/*/*/{SUMMARY}"))) < 3
    assert not (folder / "results").exists()
    code, output = run(folder)
    assert code == 0 and "grid: done" in output
    expected, found = metrics(finished), metrics(folder)
    assert len(expected) == 3 and found.keys() == expected.keys()
    for name, frame in expected.items():
        assert found[name].equals(frame)


@pytest.mark.slow
def test_what_fails_is_recorded_and_the_queue_goes_on(tmp_path, monkeypatch):
    # Python runs this file first in every process.
    (tmp_path / "sitecustomize.py").write_text(WORKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "data.toml").write_text(MISSING_DATA)
    names = ("crash", "good")
    for name in names:
        (tmp_path / f"{name}.toml").write_text(SMALL)
    for name in ("absent", "data", *names):
        add(tmp_path, ITEM.format(name, name))
    code, output = run(tmp_path, "--cores", "1")
    assert code == 1
    assert "absent: failed: cannot read" in output
    assert "data: failed: fedtailor:" in output and "school.csv.gz" in output
    assert f"crash: failed: ended by signal {signal.SIGABRT.value}" in output
    assert "good: done" in output
    niceness, cores = (tmp_path / "good").read_text().split()
    assert int(niceness) >= 10 and cores == "1"
    listed = run(tmp_path, "--list")[1].splitlines()
    # Below each name stands what it fills.
    states = {line.split()[0]: line.split()[1] for line in listed[1:9:2]}
    assert states == {
        "absent": "wrong",
        "data": "failed",
        "crash": "failed",
        "good": "done",
    }
    assert any("school.csv.gz" in line for line in listed)

    # What has been mended is done when the queue is started again.
    (tmp_path / "sitecustomize.py").unlink()
    assert "crash: done" in run(tmp_path, "--only", "crash")[1]
    assert "failed" not in run(tmp_path, "--list", "--only", "crash")[1]


@pytest.mark.slow
def test_a_second_queue_does_not_start(folder):
    state = folder / "state"
    state.mkdir()
    with DirectoryLock(state):
        code, output = run(folder)
        (state / "running").write_text("grid")
        assert "running" in run(folder, "--list")[1]
    assert "missing" in run(folder, "--list")[1]
    assert code == 2 and f"in use by process {os.getpid()}" in output
    assert not (state / "runs").exists()


@pytest.mark.slow
def test_it_stops_after_some_minutes(folder):
    code, output = run(folder, "--minutes", "0.001")
    assert code == 0 and "stopped; started again" in output
    assert not (folder / "results").exists()


@pytest.mark.parametrize("program", ["compare", "report"])
def test_what_is_stopped_is_not_done(script, folder, monkeypatch, program):
    items = script.read_queue(folder / "queue.toml")
    queue = script.Queue(items, folder / "state", folder / "results")
    queue.directory.mkdir()
    (queue.results / "grid").mkdir(parents=True)

    def work(queue, item, arguments):
        if program in arguments:
            queue.stopping.set()
        return ""

    monkeypatch.setattr(script.Queue, "_work", work)
    assert queue.run([]) == 0
    assert not (folder / "results" / "grid" / "evidence.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1", "is not a queue"),
        ("x", "is not a queue"),
        ('[[experiment]]\nname = "a"', "a lacks 'fills'"),
        ('[[experiment]]\nfills = ""\ncore_hours = 1\nby = "guess"', "without a name"),
        (f"{ITEM.format('a', 'b')}", "a is not the name of b.toml"),
        (f"{ITEM.format('a', 'a')}\nhours = 3", "unknown keys: hours"),
        (f"{ITEM.format('a', 'a')}\n{ITEM.format('a', 'a')}", "a stands there twice"),
        (ITEM.format("a", "a").replace("= 2", '= "two"'), "core_hours is 'two'"),
        (
            ITEM.format("a", "a").replace('by = "plan"', ""),
            "both 'core_hours' and 'by'",
        ),
    ],
)
def test_a_wrong_queue_is_one_line(script, tmp_path, text, message):
    path = tmp_path / "queue.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as raised:
        script.read_queue(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_the_queue_has_experiments_that_exist(script):
    for item in script.read_queue(SCRIPT.parent / "evidence.toml"):
        assert item.file.exists(), item.name


def test_only_experiments_without_results_have_an_estimate(script):
    for item in script.read_queue(SCRIPT.parent / "evidence.toml"):
        record = script.ROOT / "results" / item.name / script.RECORD
        assert (item.core_hours is None) == record.exists(), item.name


def test_an_experiment_with_other_settings_takes_what_its_results_took(script, folder):
    queue = script.Queue(
        script.read_queue(folder / "queue.toml"), folder / "state", folder / "results"
    )
    item = replace(queue.items[0], core_hours=None)
    unknown = queue.progress(item, None)
    assert unknown.state == "wrong" and "lacks 'core_hours'" in unknown.error
    record = folder / "results" / "grid" / "evidence.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"digest": "of other settings", "core_hours": 7.5}')
    assert queue.progress(item, None) == script.Progress("missing", "0 of 3", 7.5)


def test_committed_results_are_of_the_settings_of_today(script, tmp_path):
    # A setting that a method got later, with its old behaviour as default, changes the
    # digest: compare the settings with those of the results' commit, and write the new
    # digest into evidence.json.
    compared = 0
    for item in script.read_queue(SCRIPT.parent / "evidence.toml"):
        record = script.ROOT / "results" / item.name / script.RECORD
        if record.exists():
            digest = json.loads(record.read_text("utf-8"))["digest"]
            assert digest == item.digest(tmp_path), item.name
            compared += 1
    assert compared
