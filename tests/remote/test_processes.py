"""A federation of real processes on this machine: SuperLink, coordinator and clients,
killed and brought back.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")
pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra flower)"
)

import httpx

from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.demo import OPEN_POLICY
from fedtailor.remote.flower import server as flower_server
from fedtailor.remote.flower.client import FleetConnection, KeyRefused
from fedtailor.remote.flower.common import require_flower
from fedtailor.remote.flower.processes import free_port, running_superlink, stop
from fedtailor.remote.flower.server import KeyDirectory
from fedtailor.remote.job.job import read_job
from fedtailor.remote.keys.keys import make_authority, make_client_key
from fedtailor.remote.keys.kit import make_federation, read_kit, revoke
from fedtailor.remote.service import connected, wait_for_clients
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.transport import TooFewClients, send_and_receive

require_flower()  # sets Flower's environment before its first import
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
    pytest.mark.filterwarnings(
        "ignore:GitWildMatchPattern:DeprecationWarning"
    ),  # Flower's use of pathspec
]

NAMES = ("a", "b")
SPECS = {"echo": ArraySpec((1000,), "float32"), "calls": ArraySpec((), "int64")}
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "PYTHONUNBUFFERED": "1",
}

CLIENT = """
import sys, time
from pathlib import Path
import numpy as np
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.service import join

def make_handler(kit, rows, store):
    def work(request):
        state = store.load(request.state_round)
        calls = (0 if state is None else int(state["calls"])) + 1
        time.sleep(float(request.arrays["seconds"]))
        store.prune(request.state_round, request.durable_state_round)
        store.save(request.round, {"calls": np.int64(calls)})
        return {"echo": request.arrays["model"] + 1, "calls": np.int64(calls)}
    return work

join(read_kit(Path(sys.argv[1])), Path(sys.argv[2]), make_handler=make_handler)
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
    (directory / "data.csv").write_text(
        "age,ward,label\n30,surgery,no\n41,medicine,yes\n50,medicine,no\n"
    )
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
        (directory / "kits" / name / POLICY).write_text(OPEN_POLICY)


@contextlib.contextmanager
def clients(directory, names=NAMES):
    """Clients as processes, by name; what they say is in NAME.log."""
    processes = {}

    def start(name):
        with (directory / f"{name}.log").open("ab") as log:
            command = [
                sys.executable,
                "-c",
                CLIENT,
                str(directory / "kits" / name),
                str(directory / "data.csv"),
            ]
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


@pytest.fixture(scope="module", autouse=True)
def found():
    """The SuperLink's process imports the fedtailor that is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation with its coordinator in this process, and two clients."""
    directory = tmp_path_factory.mktemp("federation") / "wards"
    make(directory)
    with (
        clients(directory) as others,
        connected(directory, log=lambda line: None) as connection,
    ):
        wait_for_clients(connection, wait=120, log=lambda line: None)
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
    log = (lambda line: None) if lines is None else lines.append
    return send_and_receive(
        connection.transport, requests, SPECS, minimum=minimum, log=log
    )


def test_each_client_gets_its_own_message_and_answers(running):
    _, connection, _ = running
    for round in range(3):
        found = ask(connection, round, state=round - 1)
        for place, name in enumerate(NAMES):
            np.testing.assert_array_equal(
                found.replies[name].arrays["echo"], np.full(1000, place + 1, np.float32)
            )
            assert int(found.replies[name].arrays["calls"]) == round + 1


def test_a_client_says_how_many_rows_it_has(running):
    found = wait_for_clients(running[1], wait=60)
    assert {name: int(rows.sum()) for name, rows in found.items()} == {"a": 3, "b": 3}


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
    assert set(connection.transport.online()) == {"b"}
    others.start("a")
    assert list(ask(connection, 30).replies) == list(NAMES)


def connect(directory, *, authority=None, key=None):
    kit = read_kit(directory / "kits" / "a")
    connection = FleetConnection(
        kit.job.address, authority or kit.authority, key or kit.key.read_bytes()
    )
    try:
        return connection.activate()
    finally:
        connection._client.close()


def test_a_key_that_is_not_registered_is_refused(running):
    with pytest.raises(KeyRefused, match="does not accept this client's key"):
        connect(running[0], key=make_client_key().private)


def test_a_client_without_a_registered_key_cannot_register_one_itself(running):
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest

    kit = read_kit(running[0] / "kits" / "a")
    connection = FleetConnection(
        kit.job.address, kit.authority, make_client_key().private
    )
    with pytest.raises(KeyRefused):
        connection._call(
            connection._client.RegisterNode,
            RegisterNodeFleetRequest(public_key=connection._public),
        )
    connection._client.close()


def test_clients_are_let_in_and_revoked_without_a_restart(tmp_path):
    directory = tmp_path / "wards"
    make(directory)
    coordinator, port = directory / "coordinator", read_job(directory / "job.toml").port
    with running_superlink(coordinator, port, host="127.0.0.1") as link:
        keys = KeyDirectory(coordinator, link.address, link.authority)
        assert keys.reload() is None
        make_federation(directory, ("c",))
        kit = directory / "kits" / "c"
        if not (kit / "job.toml").exists():
            shutil.copy(directory / "job.toml", kit)
        kit = read_kit(kit)
        connection = FleetConnection(
            kit.job.address, kit.authority, kit.key.read_bytes()
        )
        with pytest.raises(KeyRefused):
            connection.activate()
        assert set(keys.reload()) == {"a", "b", "c"}
        connection.activate()
        connection.heartbeat()
        revoke(directory, "c")
        assert set(keys.reload()) == {"a", "b"}
        for action in (connection.heartbeat, connection.pull, connection.activate):
            with pytest.raises(KeyRefused):
                action()
        connection._client.close()


def test_a_request_without_a_key_is_refused(running):
    kit = read_kit(running[0] / "kits" / "a")
    with open_client(kit) as client:
        for path in (
            "pull-messages",
            "activate-node",
            "register-node",
            "push-messages",
        ):
            headers = {"content-type": "application/protobuf"}
            answer = client.post(
                f"https://{kit.job.address}/v1/fleet/{path}",
                content=b"",
                headers=headers,
            )
            assert answer.status_code in (401, 403)


def memory_of(pid):
    """Bytes of memory that a process holds."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_a_large_body_without_a_key_costs_no_memory(running):
    """200 MB, as one body and in parts whose length is not told."""
    directory, connection, _ = running
    kit = read_kit(directory / "kits" / "a")
    # The SuperLink is the child of this process that the coordinator started.
    pid = connection.transport.check.__self__.process.pid
    before = memory_of(pid)

    def parts():
        for _ in range(200):
            yield b"x" * 2**20

    headers = {"content-type": "application/protobuf"}
    for content in (b"x" * 200 * 2**20, parts()):
        with (
            open_client(kit) as client,
            contextlib.suppress(httpx.TransportError),  # it hangs up
        ):
            answer = client.post(
                f"https://{kit.job.address}/v1/fleet/push-object",
                content=content,
                headers=headers,
            )
            assert answer.status_code == 413
    assert memory_of(pid) - before < 30 * 2**20
    # Clients are served as before.
    assert list(ask(connection, 50).replies) == list(NAMES)


def test_a_server_of_another_authority_is_not_trusted(running):
    with pytest.raises(
        ValueError, match=r"has no certificate of this federation's authority"
    ):
        connect(running[0], authority=make_authority("wards").public)


def test_plain_http_is_refused(running):
    address = read_kit(running[0] / "kits" / "a").job.address
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}/v1/fleet/pull-messages", timeout=10)


def test_other_machines_cannot_reach_the_control_interface(running):
    _, connection, _ = running
    host = own_address()
    if host is None:
        pytest.skip("this machine has no address but loopback")
    with httpx.Client(verify=False, timeout=10) as client:
        base = f"https://{host}:{connection.job.port}"
        assert client.post(f"{base}/v1/control/start-run").status_code == 403
        assert client.post(f"{base}/v1/runtime/acquire-task").status_code == 403
        assert client.get(f"{base}/docs").status_code == 403
        assert (
            client.post(f"{base}/v1/fleet/pull-messages", content=b"").status_code
            != 403
        )


def test_a_run_that_somebody_else_starts_never_begins(running):
    directory, connection, _ = running
    authority = (directory / "coordinator" / "ca.crt").read_bytes()
    address = connection.job.address
    run_id = flower_server._start_run(address, authority)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        flower_server._acquire(address, authority, b"guessed", run_id)
    assert list(ask(connection, 40).replies) == list(NAMES)


def test_the_coordinator_is_killed_and_goes_on(tmp_path):
    directory = tmp_path / "wards"
    make(directory)
    command = [sys.executable, "-c", COORDINATOR, str(directory)]
    links = set()
    with clients(directory), (directory / "coordinator.log").open("ab") as log:
        for wanted in (1, 3):
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT
            )
            wait_for(lambda wanted=wanted: progress(directory) >= wanted)
            links |= children(process.pid)
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
    assert len(links) >= 2
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in links))


def test_a_superlink_that_ends_is_said_in_one_line(tmp_path):
    directory = tmp_path / "wards"
    make(directory)
    with (
        pytest.raises(
            RuntimeError,
            match=r"^the SuperLink ended: .* \(all of it in .*superlink.log\)$",
        ),
        connected(directory, host="127.0.0.1") as connection,
    ):
        (link,) = (
            pid for pid in children(os.getpid()) if str(directory) in command_of(pid)
        )
        os.kill(link, signal.SIGKILL)
        wait_for(lambda: not listening(connection.job.port))
        connection.transport.online()


def command_of(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_is_taken_is_said(tmp_path, monkeypatch):
    directory = tmp_path / "wards"
    make(directory)
    monkeypatch.setattr("fedtailor.remote.flower.processes.STOP_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        said = (
            rf"^cannot listen on 127.0.0.1:{port}: Address already in use; is another"
            r" coordinator running\?$"
        )
        with (
            pytest.raises(ValueError, match=said),
            running_superlink(directory / "coordinator", port, host="127.0.0.1"),
        ):
            pass


def progress(directory):
    path = directory / "progress"
    return int(path.read_text()) if path.exists() else -1


def children(pid):
    """Processes that a process has started, by Linux's list."""
    found = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found |= {int(child) for child in file.read().split()}
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def own_address():
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            host = probe.getsockname()[0]
        except OSError:
            return None
    return None if host.startswith("127.") else host


@contextlib.contextmanager
def open_client(kit):
    import ssl

    context = ssl.create_default_context(cadata=kit.authority.decode())
    with httpx.Client(verify=context, timeout=10) as client:
        yield client
