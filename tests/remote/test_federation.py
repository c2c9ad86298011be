"""Whole federations of processes: coordinator, SuperLink and clients over TLS, beside their simulations."""

import os

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")
pytest.importorskip("cryptography", reason="keys are made with `cryptography` (extra flower)")

from fedtailor.remote import demo
from fedtailor.remote.flower import require_flower
from fedtailor.remote.job import read_job
from fedtailor.remote.kit import JOB
from fedtailor.remote.plan import plan_of
from fedtailor.storage.run_directory import METRICS

require_flower()  # sets Flower's environment before its first import
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "FEDTAILOR_PROCESS_TESTS" not in os.environ,
        reason="starts servers and clients as processes for minutes: FEDTAILOR_PROCESS_TESTS=1 asks for it",
    ),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # Flower's use of pathspec
]

SGD = "sgd = { lr = 0.05, epochs = 1, batch_size = 32 }"
METHODS = {
    "fedavg": f'[method]\nuse = "fedavg"\n{SGD}\n',
    "ucfl": f'[method]\nuse = "ucfl"\nstreams = "auto"\n{SGD}\n',
    "scaffold": f'[method]\nuse = "scaffold"\n{SGD}\n',
    "self-fl": f'[method]\nuse = "self-fl"\n{SGD}\n',
    "hypcluster": f'[method]\nuse = "hypcluster"\n{SGD}\n',
    "ditto": f'[method]\nuse = "ditto"\n{SGD}\n',
}
EXACT = ("fedavg", "ucfl")


def assert_same_models(directory, simulated, exact):
    names = simulated.federation.names
    models, initial = demo.personal_models(directory, list(names)), plan_of(read_job(directory / JOB)).initial()
    for name in names:
        assert np.abs(models[name] - initial).max() > 0.01
        wanted = simulated.personal(name).theta
        if exact:
            np.testing.assert_array_equal(models[name], wanted)
        else:
            np.testing.assert_allclose(models[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_processes_give_the_models_of_the_simulation(name, tmp_path):
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS[name], rounds=2)
    simulated = demo.simulate(directory, files)
    demo.deploy(directory, files, killed=None)
    assert_same_models(directory, simulated, exact=name in EXACT)
    frame = pl.read_parquet(directory / "run" / METRICS).filter(
        (pl.col("metric") == "accuracy") & (pl.col("split") == "test") & (pl.col("round") == 2)
    )
    expected = dict(zip(simulated.federation.names, simulated.metrics.values("accuracy"), strict=True))
    assert dict(zip(frame["client"], frame["value"], strict=True)) == expected
