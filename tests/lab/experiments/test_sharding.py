"""Comparisons that several processes share."""

import json
import os
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import InUse
from fedtailor.engine.storage.run_files import METRICS
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.experiments.sharding import Shard, do_all
from lab.experiments.comparisons import FILE


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/2", "1/2/3", "-1/2"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match="1/4, 2/4, 3/4 and 4/4"):
        Shard.parse(text)


def test_processes_begin_with_different_runs_and_know_all():
    tasks = [lambda number=number: [] for number in range(7)]
    orders = [Shard.parse(f"{number}/3").order(tasks) for number in (1, 2, 3)]
    assert all(set(order) == set(tasks) for order in orders)
    assert [order[0] for order in orders] == tasks[:3]
    own = [order[: len(tasks[number::3])] for number, order in enumerate(orders)]
    numbers = [tasks.index(task) for part in own for task in part]
    assert sorted(numbers) == list(range(7))


def test_what_another_process_does_is_looked_at_again():
    done, waits = [], []

    def elsewhere():
        if len(waits) < 2:
            raise InUse("in use")
        done.append("elsewhere")
        return [later]

    def later():
        done.append("later")
        return []

    def own():
        done.append("own")
        return []

    do_all([elsewhere, own], waits.append)
    assert done == ["own", "elsewhere", "later"]
    assert len(waits) == 2


def test_a_budget_is_not_shared(tmp_path):
    (tmp_path / "e.toml").write_text(FILE)
    experiment, shard = load_experiment(tmp_path / "e.toml"), Shard(1, 2)
    for options in ({"budget": True}, {"at_once": 2}):
        with pytest.raises(ValueError, match="leave out"):
            Comparison(experiment, tmp_path, Settings(), shard=shard, **options)


def start(path, results, part):
    """A process that has a part of a comparison."""
    command = [sys.executable, "-m", "fedtailor", "compare", str(path)]
    return subprocess.Popen(
        [*command, "--out", str(results), "--shard", part],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
    )


def index_of(results):
    """What the index says of runs, without times."""
    index = json.loads((results / "e" / "experiment.json").read_text())
    return {name: index[name] for name in ("cells", "candidates", "skipped", "runs")}


@pytest.mark.slow
def test_three_processes_and_a_kill_lose_no_run(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    first = start(path, alone, "1/1")
    output, errors = first.communicate(timeout=500)
    assert first.returncode == 0, errors
    processes = [start(path, shared, f"{number}/3") for number in (1, 2, 3)]
    # The second is killed in its first run, whose directory is there by then.
    while not any(shared.glob("runs/*/*/manifest.toml")):
        assert processes[1].poll() is None
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    for process in (processes[0], processes[2]):
        output, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
        assert "FedAvg" in output
    processes[1].communicate()
    assert index_of(shared) == index_of(alone)
    cells = index_of(shared)["cells"]
    assert len(cells) == 4
    for cell in cells:
        tables = [pl.read_parquet(it / cell["run"] / METRICS) for it in (alone, shared)]
        assert tables[0].equals(tables[1])
    # The same command again finds everything done.
    again = start(path, shared, "2/3")
    output, errors = again.communicate(timeout=500)
    assert again.returncode == 0 and "run 1 of" not in errors
