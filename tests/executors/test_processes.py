"""Two processes that train one federation together, over loopback, give what one
process with two devices gives.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import Ditto
from fedtailor.executors import Settings
from fedtailor.protocol import SGD
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS

PROGRAM = """
import sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
sys.path[:0] = sys.argv[4:]
from executors.test_processes import start
start(sys.argv[3], 2)
start(sys.argv[3], 3, resume=True)
"""


def start(directory, rounds, resume=False):
    run(
        Ditto(sgd=SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)),
        classification(unseen=[False, False, True, False, False]),
        softmax_model("float32"),
        rounds,
        directory=directory,
        participation=0.6,
        checkpoint_every=2,
        settings=Settings(canonical=True),
        resume=resume,
    )


@pytest.mark.slow
@pytest.mark.skipif(
    jax.config.jax_cpu_collectives_implementation != "gloo",
    reason="this JAX has no gloo collectives",
)
def test_two_processes_give_what_one_gives(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent / "src")]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                address,
                str(number),
                str(tmp_path / "two"),
                *paths,
            ],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        errors = [process.communicate(timeout=500)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    start(tmp_path / "one", 3)
    for file in (METRICS, LEDGER):
        assert (tmp_path / "two" / file).read_bytes() == (
            tmp_path / "one" / file
        ).read_bytes()
