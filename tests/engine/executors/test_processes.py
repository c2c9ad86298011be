"""Processes that train one federation together, over loopback, give what one process with
two devices gives, whether each has everything or its own clients only.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import Ditto
from fedtailor.data.federation import shard
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.storage.run_files import LEDGER, METRICS
from fedtailor.protocol import SGD

PROGRAM = """
import sys
import jax
address, processes, number, kind, directory = sys.argv[1:6]
jax.distributed.initialize(address, int(processes), int(number))
sys.path[:0] = sys.argv[6:]
from engine.executors.test_processes import start
start(directory, 2, kind)
start(directory, 3, kind, resume=True)
"""


def start(directory, rounds, kind="whole", resume=False):
    federation = classification(unseen=[False, False, True, False, False])
    finished = run(
        Ditto(sgd=SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)),
        shard(federation) if kind == "shard" else federation,
        softmax_model("float32"),
        rounds,
        directory=directory,
        participation=0.6,
        checkpoint_every=2,
        settings=Settings(canonical=True),
        resume=resume,
    )
    if kind == "shard" and jax.process_count() > 1:
        # Nobody holds the examples and states of others, and all can ask for a model and
        # draw from the examples of all.
        executor = finished.executor
        assert len(executor.federation) < len(federation)
        own = ~executor.federation.unseen
        assert all(len(it) == own.sum() for it in jax.tree.leaves(executor.states.rows))
        assert len(finished.personal_models()) == len(federation)
        whole = simulate(Ditto(), federation, softmax_model("float32")).executor
        draws = [it.examples(np.random.default_rng(0), 9) for it in (executor, whole)]
        np.testing.assert_array_equal(*(drawn[0] for drawn in draws))
        np.testing.assert_array_equal(*(drawn[1] for drawn in draws))


@pytest.mark.slow
@pytest.mark.skipif(
    jax.config.jax_cpu_collectives_implementation != "gloo",
    reason="this JAX has no gloo collectives",
)
@pytest.mark.parametrize(
    ("processes", "kind"), [(2, "whole"), (2, "shard"), (4, "shard")]
)
def test_processes_give_what_one_gives(tmp_path, processes, kind):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tests = Path(__file__).parents[2]
    paths = [str(tests), str(tests.parent / "src")]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                *(address, str(processes), str(number), kind),
                str(tmp_path / "several"),
                *paths,
            ],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        errors = [process.communicate(timeout=500)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), errors
    start(tmp_path / "one", 3)
    for file in (METRICS, LEDGER):
        assert (tmp_path / "several" / file).read_bytes() == (
            tmp_path / "one" / file
        ).read_bytes()
