"""A federation of real processes on this machine: coordinator and clients, killed and
brought back.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
pytest.importorskip("h11", reason="machines need the extra federation")
pytest.importorskip("httpx", reason="machines need the extra federation")

from fedtailor.remote.demo import free_port, stop
from fedtailor.remote.keys.kit import make_federation
from fedtailor.remote.service import connected, wait_for_clients
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines
from fedtailor.remote.wire.transport import TooFewClients, send_and_receive

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

NAMES = ("a", "b")
SPECS = {"echo": ArraySpec((1000,), "float32"), "calls": ArraySpec((), "int64")}
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "PYTHONUNBUFFERED": "1",
}

CLIENT = """
import signal, sys, threading, time
from pathlib import Path
import numpy as np
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.https.client import Connection, answer_messages
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.wire.releases import RELEASE
from fedtailor.remote.wire.transport import Responder

kit, stop = read_kit(Path(sys.argv[1])), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with ClientStore(kit.state, kit.job.identity) as store:
    def work(request):
        if request.task == "hello":
            release = np.frombuffer(RELEASE.encode(), np.uint8)
            return {"rows": np.array([3, 0, 0]), "release": release}
        state = store.load(request.state_round)
        calls = (0 if state is None else int(state["calls"])) + 1
        time.sleep(float(request.arrays["seconds"]))
        store.prune(request.state_round, request.durable_state_round)
        store.save(request.round, {"calls": np.int64(calls)})
        return {"echo": request.arrays["model"] + 1, "calls": np.int64(calls)}

    respond = Responder(kit.job.identity, kit.name, work)
    answer_messages(Connection(kit), respond, stop=stop)
"""

COORDINATOR = """
import sys, time
from pathlib import Path
import numpy as np
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.service import connected
from fedtailor.remote.wire.transport import send_and_receive

directory, specs = Path(sys.argv[1]), {"echo": ArraySpec((1000,), "float32"), "calls": ArraySpec((), "int64")}
progress = directory / "progress"
with connected(directory, host="127.0.0.1") as connection:
    while True:
        done = int(progress.read_text()) if progress.exists() else -1
        if done == 5:
            break
        requests = {
            name: Request(connection.job.identity, done + 1, 0, "echo", name, done, done, time.time() + 120,
                          arrays={"model": np.full(1000, done, np.float32), "seconds": np.float32(0.3)})
            for name in connection.clients
        }
        found = send_and_receive(connection.transport, requests, specs, minimum=2)
        calls = [int(reply.arrays["calls"]) for reply in found.replies.values()]
        print("round", done + 1, calls, flush=True)
        (directory / "part").write_text(str(done + 1))
        (directory / "part").rename(progress)
"""


def make(directory, clients=NAMES):
    make_federation(directory, clients, address=f"127.0.0.1:{free_port()}")
    job = directory / "job.toml"
    text = job.read_text()
    for old, new in (
        ('"federated"', '"none"'),
        ("minimum = 3", "minimum = 1"),
        ("secure_aggregation = true", "secure_aggregation = false"),
    ):
        assert old in text
        text = text.replace(old, new)
    job.write_text(text)
    for name in clients:
        shutil.copy(directory / "job.toml", directory / "kits" / name)


@contextlib.contextmanager
def clients(directory, names=NAMES):
    """Clients as processes, by name; what they say is in NAME.log."""
    processes = {}

    def start(name):
        with (directory / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-c", CLIENT, str(directory / "kits" / name)]
            processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT
            )

    for name in names:
        start(name)
    processes_of = type(
        "Clients", (), {"start": staticmethod(start), "by_name": processes}
    )
    try:
        yield processes_of
    finally:
        for process in processes.values():
            stop(process)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation with its coordinator in this process, and two clients."""
    directory = tmp_path_factory.mktemp("federation") / "wards"
    make(directory)
    with (
        clients(directory) as others,
        connected(directory) as connection,
    ):
        wait_for_clients(connection, wait=120)
        yield directory, connection, others


def ask(
    connection,
    round,
    *,
    state=-1,
    seconds=0.0,
    wait=120.0,
    minimum=2,
    lines=None,
    names=NAMES,
):
    requests = {
        name: Request(
            connection.job.identity,
            round,
            0,
            "echo",
            name,
            state,
            state,
            time.time() + wait,
            arrays={
                "model": np.full(1000, place, np.float32),
                "seconds": np.float32(seconds),
            },
        )
        for place, name in enumerate(names)
    }
    with Lines(([] if lines is None else lines).append).of(COORDINATOR_LOG):
        return send_and_receive(connection.transport, requests, SPECS, minimum=minimum)


def test_each_client_gets_its_own_message_and_answers(running):
    _, connection, _ = running
    for round in range(3):
        found = ask(connection, round, state=round - 1)
        for place, name in enumerate(NAMES):
            np.testing.assert_array_equal(
                found.replies[name].arrays["echo"], np.full(1000, place + 1, np.float32)
            )
            assert int(found.replies[name].arrays["calls"]) == round + 1


def test_a_client_that_is_killed_in_a_round_comes_back_and_repeats_it(running):
    _, connection, others = running
    ask(connection, 10)

    def kill():
        others.by_name["b"].kill()
        others.by_name["b"].wait()
        others.start("b")

    timer = threading.Timer(2.0, kill)
    timer.start()
    found = ask(connection, 11, state=10, seconds=4.0)
    timer.join()
    # it starts from the state of round 10 again, so its answer is that of a client that
    # was never killed
    assert {
        name: int(reply.arrays["calls"]) for name, reply in found.replies.items()
    } == {"a": 2, "b": 2}


def test_a_client_that_stays_away_misses_the_round_and_the_others_go_on(running):
    _, connection, others = running
    others.by_name["b"].send_signal(signal.SIGSTOP)
    try:
        lines = []
        found = ask(connection, 20, wait=15.0, minimum=1, lines=lines)
        assert (
            list(found.replies) == ["a"]
            and found.missing == ("b",)
            and lines == ["no answer in time from b"]
        )
        with pytest.raises(
            TooFewClients,
            match=r"^1 of 2 clients answered in time, and 2 are needed \(docs: errors#too-few-clients\)$",
        ):
            ask(connection, 21, wait=15.0)
    finally:
        others.by_name["b"].send_signal(signal.SIGCONT)
    lines = []
    found = ask(connection, 22, lines=lines)
    assert list(found.replies) == list(
        NAMES
    )  # what b answers late, to rounds 20 and 21, does not count
    for line in lines:
        assert line.startswith("client b: it answers exchange (2")


def test_a_client_that_ends_on_its_own_leaves_at_once_and_returns(running):
    _, connection, others = running
    stop(others.by_name["a"])
    wait_for(lambda: set(connection.transport.online()) == {"b"}, 5)
    others.start("a")
    assert list(ask(connection, 30).replies) == list(NAMES)


def test_the_coordinator_is_killed_and_goes_on(tmp_path):
    directory = tmp_path / "wards"
    make(directory)
    command = [sys.executable, "-c", COORDINATOR, str(directory)]
    with clients(directory), (directory / "coordinator.log").open("ab") as log:
        for wanted in (1, 3):
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT
            )
            wait_for(lambda wanted=wanted: progress(directory) >= wanted)
            process.kill()
            process.wait()
        process = subprocess.run(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            timeout=120,
            check=True,
        )
    said = (directory / "coordinator.log").read_text().split("\n")
    rounds = [line for line in said if line.startswith("round")]
    # a round may be done twice, as it is repeated if its end was not written; each ends
    # as if it were done once
    assert set(rounds) == {
        f"round {round} [{round + 1}, {round + 1}]" for round in range(6)
    }


def progress(directory):
    path = directory / "progress"
    return int(path.read_text()) if path.exists() else -1


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
