"""Whole federations of processes: coordinator and clients over TLS, beside
their simulations.
"""

import os
import re
import signal

import numpy as np
import polars as pl
import pytest

pytest.importorskip("httpx", reason="machines need httpx (extra federation)")
pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra federation)"
)

from fedtailor.engine.storage.diagnostics import read_diagnostics
from fedtailor.engine.storage.run_directory import LEDGER, METRICS
from fedtailor.engine.storage.run_files import ANSWERS
from fedtailor.remote import demo
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import JOB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(
        "FEDTAILOR_PROCESS_TESTS" not in os.environ,
        reason=(
            "starts servers and clients as processes for minutes:"
            " FEDTAILOR_PROCESS_TESTS=1 asks for it"
        ),
    ),
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


def assert_same_models(directory, simulated, within=0.0):
    names = simulated.federation.names
    models, initial = (
        demo.stored_models(directory, list(names)),
        plan_of(read_job(directory / JOB)).initial(),
    )
    for name in names:
        assert np.abs(models[name] - initial).max() > 0.01
        expected = simulated.personal(name).theta
        np.testing.assert_allclose(models[name], expected, rtol=0, atol=within)


SECURE = '[privacy]\nsecure_aggregation = true\nprobe = "open"\n'
STREAMS = f'[method]\nuse = "ucfl"\nstreams = 2\nsigma_batch = 0.1\nwarm = 0\n{SGD}\n'


@pytest.mark.parametrize(("method", "sums"), [(METHODS["fedavg"], 1), (STREAMS, 2)])
def test_processes_whose_coordinator_sees_sums_only_give_the_models_of_the_simulation(
    method, sums, tmp_path
):
    directory = tmp_path / "digits"
    files = demo.prepare(directory, method, rounds=2, privacy=SECURE)
    simulated = demo.simulate_demo(directory, files)
    demo.deploy(directory, files, killed=None)
    # Each client adds noise of 1.5e-5 before its numbers are added, which the training
    # of the second round makes up to 25 times as large. Without that noise the two are
    # the same to the bit (tests/remote/test_secure_aggregation.py).
    assert_same_models(directory, simulated, within=1e-3)
    entries = pl.read_parquet(directory / "run" / LEDGER).filter(
        pl.col("phase") == "round"
    )
    sent = entries.filter((pl.col("direction") == "up") & (pl.col("kind") == "model"))
    assert (
        sent["unicasts"].to_list() == [len(demo.NAMES) * sums] * 2
    )  # a masked vector for each sum
    assert "sharing" in entries["kind"].to_list()


@pytest.mark.parametrize("name", METHODS)
def test_processes_give_the_models_of_the_simulation(name, tmp_path):
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS[name], rounds=2)
    simulated = demo.simulate_demo(directory, files)
    demo.deploy(directory, files, killed=None)
    assert_same_models(directory, simulated)
    frame = pl.read_parquet(directory / "run" / METRICS).filter(
        (pl.col("metric") == "accuracy")
        & (pl.col("split") == "test")
        & (pl.col("round") == 2)
    )
    expected = dict(
        zip(
            simulated.federation.names,
            simulated.metrics.values("accuracy"),
            strict=True,
        )
    )
    assert dict(zip(frame["client"], frame["value"], strict=True)) == expected


def add_to_job(directory, text, rounds, deadline=demo.WAIT_S):
    """More settings of training, in the job of the coordinator and of all clients."""
    for path in (directory, *(directory / "kits").iterdir()):
        job = (path / JOB).read_text()
        job = re.sub("rounds = .*", f"rounds = {rounds}", job)
        settings = f"{text}\ndeadline = {deadline}"
        (path / JOB).write_text(re.sub("deadline = .*", settings, job))


def test_processes_with_a_buffer_of_all_are_a_server_that_waits(tmp_path):
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS["fedavg"])
    waits = demo.simulate_demo(directory, files)
    add_to_job(
        directory, f"asynchronous = {{ buffer = {len(demo.NAMES)} }}", demo.ROUNDS
    )
    demo.deploy(directory, files, killed=None)
    assert_same_models(directory, waits)
    answers = pl.read_parquet(directory / "run" / ANSWERS)
    assert set(answers["age"]) == {0}


def test_processes_that_are_late_give_the_models_of_a_simulation_in_their_order(
    tmp_path,
):
    """One client is halted now and then, one is killed at work and comes back, and so
    does the coordinator.
    """
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS["fedavg"])
    # One that is halted while it measures its model is waited for until the deadline.
    add_to_job(directory, "asynchronous = { buffer = 2 }", rounds=30, deadline=30)
    slow, killed = demo.NAMES[:2]
    serve = ["serve", str(directory), "--listen", "127.0.0.1"]
    with (
        demo.clients_of(directory, files) as clients,
        (directory / "serve.log").open("ab") as log,
    ):
        serving = demo.start(serve, log)
        try:
            for done in (2, 6):
                demo.wait_for_round(directory, done, serving)
                clients[slow].send_signal(signal.SIGSTOP)
                # The others go on without it.
                demo.wait_for_round(directory, done + 2, serving)
                clients[slow].send_signal(signal.SIGCONT)
            clients[killed].kill()
            clients[killed].wait()
            serving.kill()
            serving.wait()
            clients[killed] = demo.start_client(directory, killed, files)
            serving = demo.start([*serve, "--resume"], log)
            assert serving.wait(3 * demo.WAIT_S) == 0
        finally:
            clients[slow].send_signal(signal.SIGCONT)
            demo.stop(serving)
    answers = pl.read_parquet(directory / "run" / ANSWERS)
    assert len(answers) == 30 * 2 and answers["age"].max() >= 2
    began = answers.select("client", pl.col("round") - pl.col("age"))
    assert not began.is_duplicated().any()
    replayed = demo.simulate_demo(directory, files, replay=directory / "run")
    assert_same_models(directory, replayed)


def test_a_machine_that_is_away_when_the_server_asks_is_asked_with_a_later_probe(
    tmp_path,
):
    """UCFL by default: FedAvg goes on, and personal streams wait for everybody."""
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS["ucfl"], rounds=23)
    for path in (directory, *(directory / "kits").iterdir()):
        text = (path / JOB).read_text()
        text = re.sub("minimum = .*", "minimum = 3", text)
        (path / JOB).write_text(re.sub("deadline = .*", "deadline = 8", text))
    with (
        demo.clients_of(directory, files) as clients,
        (directory / "serve.log").open("wb") as log,
    ):
        serving = demo.start(["serve", str(directory), "--listen", "127.0.0.1"], log)
        try:
            away = demo.NAMES[0]
            # The first probe has all answers; those after 2 and perhaps 5 rounds lack one.
            demo.wait_for_round(directory, 1, serving)
            clients[away].kill()
            clients[away].wait()
            demo.wait_for_round(directory, 4, serving)
            clients[away] = demo.start_client(directory, away, files)
            assert serving.wait(3 * demo.WAIT_S) == 0
        finally:
            demo.stop(serving)
    found = {it.name: it for it in read_diagnostics(directory / "run")}
    silhouettes = np.asarray(found["probe"].y)
    missed = np.flatnonzero(silhouettes == 0)
    assert len(missed) and (silhouettes[missed[-1] + 1 :] > 0).sum() >= 2
    models = demo.stored_models(directory, list(demo.NAMES))
    assert len({model.tobytes() for model in models.values()}) == len(demo.NAMES)


LISTENING = """
import os, sys

def heard(event, details):
    if event == "socket.connect" or event == "socket.getaddrinfo":
        address = details[1] if event == "socket.connect" else details[:2]
        with open(os.environ["CONTACTED"], "a") as file:
            file.write(f"{event} {address!r}" + chr(10))

sys.addaudithook(heard)
"""


def test_nobody_is_contacted_but_the_coordinator(tmp_path, monkeypatch):
    """Every connection and every name that any of the processes looks up, by Python's
    audit events.
    """
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(LISTENING)
    monkeypatch.syspath_prepend(tmp_path / "hook")
    monkeypatch.setenv("CONTACTED", str(tmp_path / "contacted"))
    directory = tmp_path / "digits"
    files = demo.prepare(directory, METHODS["fedavg"], rounds=1)
    port = read_job(directory / JOB).port
    with (tmp_path / "serve.log").open("wb") as log, demo.clients_of(directory, files):
        serving = demo.start(
            ["serve", str(directory), "--listen", "127.0.0.1", "--check"], log
        )
        assert serving.wait(2 * demo.WAIT_S) == 0, (tmp_path / "serve.log").read_text()[
            -2000:
        ]
    contacted = set((tmp_path / "contacted").read_text().splitlines())
    assert f"socket.connect ('127.0.0.1', {port})" in contacted
    strange = [
        line
        for line in contacted
        if "127.0.0.1" not in line and not re.search(r"connect '|None, \d", line)
    ]
    assert not strange, strange
