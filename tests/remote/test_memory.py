"""What a client's process needs of memory."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from fedtailor.cli.commands import federation
from fedtailor._base.memory import save_memory
save_memory()
from importlib.util import find_spec
from pathlib import Path
import numpy as np
import fedtailor.remote.service
if find_spec("httpx") is not None:
    import fedtailor.remote.https.client
    import httpx
from fedtailor import models
from fedtailor.algorithms import UCFL
from fedtailor.data.federation import Federation, Ragged
from fedtailor.protocol import SGD
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.client.round_requests import RoundHandler

rng = np.random.default_rng(0)
parts = {"train": slice(0, 160), "val": slice(160, 180), "test": slice(180, 200)}
own = Federation(
    x=rng.normal(size=(200, 28, 28, 1)).astype(np.float32), y=rng.integers(0, 10, 200).astype(np.int32), names=("a",),
    classes=10, **{name: Ragged.of([np.arange(200)[part]]) for name, part in parts.items()},
)
plan = Plan("experiment", UCFL(SGD(lr=0.1, batch_size=32), warm=0), models.lenet5().bind((28, 28, 1), 10))
work = RoundHandler(plan, own, ClientStore(Path(sys.argv[1]), "experiment"))
arrays = {"stream/model": plan.initial()[None], "index/model": np.zeros(1, np.int32)}
for exchange, task in enumerate(("probe", "client", "evaluate")):
    assert work(Request("experiment", 0, exchange, task, "a", algorithm=plan.describe(0), arrays=arrays))
# not ru_maxrss, which begins at what the process held that started this one
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="other systems count memory in other units",
)
def test_a_client_with_lenet_5_needs_less_than_400_mb_while_it_compiles(tmp_path):
    """UCFL, whose probe makes it the largest, and no program of an earlier run in the
    cache.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        # of the tests' flags only what saves time and no memory: the rest is the
        # client's own to choose
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) < 400 * 1024  # kB
