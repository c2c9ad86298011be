"""Whole federations of processes: coordinator, SuperLink and clients over TLS, beside their simulations."""

import os
import random
import time

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
from fedtailor.remote.processes import stop
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


def test_random_kills_lose_nothing(tmp_path):
    """The short form of the campaign: coordinator and clients are killed at random moments, and start again."""
    directory, kills, draw = tmp_path / "digits", 4, random.Random(0)
    files = demo.prepare(directory, METHODS["ditto"], rounds=8)
    simulated = demo.simulate(directory, files)
    serve = ["serve", str(directory), "--listen", "127.0.0.1"]
    with (directory / "serve.log").open("ab") as log, demo.clients_of(directory, files) as clients:
        serving = demo.start(serve, log)
        try:
            for kill in range(kills):
                demo.wait_for_round(directory, demo.rounds_done(directory) + 1, serving)
                time.sleep(draw.uniform(0.0, 2.0))
                if kill % 2 == 0:
                    serving.kill()
                    serving.wait()
                    serving = demo.start([*serve, "--resume"], log)
                else:
                    victim = draw.choice(sorted(clients))
                    clients[victim].kill()
                    clients[victim].wait()
                    with (directory / f"{victim}.log").open("ab") as own:
                        clients[victim] = demo.start(demo.join_command(directory, victim, files), own)
            assert serving.wait(2 * demo.WAIT_S) == 0, (directory / "serve.log").read_text()[-2000:]
        finally:
            stop(serving)
    assert_same_models(directory, simulated, exact=False)
    keys = ["round", "client", "split", "metric"]
    measured, expected = (
        frame.sort(keys) for frame in (pl.read_parquet(directory / "run" / METRICS), simulated.frame())
    )
    assert len(measured) > 0 and measured.select(keys).equals(expected.select(keys))
    np.testing.assert_allclose(measured["value"], expected["value"], rtol=1e-4)
