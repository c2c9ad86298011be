"""A client of a plain Flower app keeps to its policy, as one that `join` starts does."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")

from fedtailor.remote import flower_app
from fedtailor.remote.client.audit import read_audit
from fedtailor.remote.client.client import account_of
from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.demo import free_port, stop, stored_models
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import (
    COORDINATOR,
    make_federation,
    read_certificates,
    read_kit,
)
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.releases import RELEASE
from fedtailor.remote.wire.request_kind import TABLE_TASKS
from remote.jobs import JOB, Clients


@pytest.fixture(autouse=True)
def as_in_an_app(monkeypatch):
    """Flower's processes say who sends; the settings of an app's process do not reach the
    processes of later tests.
    """
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    monkeypatch.setattr(flower_app, "save_memory", lambda: None)


OPEN = "secure_aggregation_only = false\nmeasurements = true\n"
STATISTICS = 'test = 0.25\npreprocessing = "federated"\n'


def values_of(values, settings):
    from flwr.app import Context, Message, RecordDict

    message = Message(flower_app.wrap(**values), 3, flower_app.MESSAGE_TYPE)
    reply = flower_app.client(message, Context(2, 3, settings, RecordDict(), {}))
    assert not reply.has_error()
    return dict(flower_app.unwrap(reply))


class Node:
    """A SuperNode with the kit of one client, which starts a process a message."""

    def __init__(self, directory, policy, job=JOB, rounds=4):
        self.clients = clients = Clients(directory)
        clients.path.write_text(job.format(rounds=rounds, **clients.settings))
        federation = directory / "federation"
        make_federation(federation, ("a", "b", "c"), job=clients.path)
        self.directory = federation / "kits" / "a"
        shutil.copy(clients.path, self.directory)
        (self.directory / POLICY).write_text(policy)
        self.kit = read_kit(self.directory)
        self.data = directory / "a.csv"

    def ask(self, task="client", **change):
        """The reply to a coordinator's request, and that it is on Flower's way back."""
        plan = plan_of(self.kit.job) if task == "client" else None
        fields = {"experiment": self.kit.job.identity, "round": 0, "exchange": 0}
        run = "" if task in TABLE_TASKS else "aa"
        fields |= {"task": task, "client": "a", "run": run}
        if plan is not None:
            model = plan.initial()[None]
            fields["algorithm"] = plan.describe(0)
            fields["arrays"] = {
                "stream/model": model,
                "index/model": np.zeros(1, np.int32),
            }
        body = encode_request(Request(**fields | change))
        flower_app._open_responder.cache_clear()  # another process
        return decode_reply(self.values({"body": body})["body"])

    def values(self, values, settings=None):
        """What the node answers to a message of Flower with some values."""
        own = {"kit": str(self.directory), "data": str(self.data)}
        return values_of(values, own if settings is None else settings)

    def refusals(self):
        """The codes in the client's log; None for what was answered."""
        return [entry.get("refused") for entry in read_audit(self.kit.state)]


def test_a_job_that_the_policy_does_not_allow_is_refused(tmp_path):
    node = Node(tmp_path / "wards", "")  # sums only, which this job does not take
    for task in ("hello", "client", "evaluate", "personal"):
        assert node.ask(task).refusal == Refusal.POLICY
    assert node.refusals() == ["policy"] * 4


def test_statistics_leave_only_if_the_policy_says_so(tmp_path):
    job = JOB.replace("test = 0.25\n", STATISTICS)
    node = Node(tmp_path / "wards", OPEN, job)
    assert node.ask("statistics").refusal == Refusal.POLICY
    (node.directory / POLICY).write_text(OPEN + "federated_statistics = true\n")
    assert node.ask("statistics").arrays
    assert node.refusals() == ["policy", None]


def test_rounds_hours_and_repetitions_are_those_of_the_policy(tmp_path):
    node = Node(tmp_path / "wards", f"{OPEN}rounds = 2\nruns = 1\n")
    hello = node.ask("hello", algorithm={"release": RELEASE})
    assert hello.arrays["rows"].sum() == 40
    first = node.ask()
    assert first.arrays
    # The same request gets the same answer, and another one for the round none.
    np.testing.assert_array_equal(
        node.ask().arrays["update/model"], first.arrays["update/model"]
    )
    other = {"stream/model": np.ones_like(plan_of(node.kit.job).initial())[None]}
    arrays = other | {"index/model": np.zeros(1, np.int32)}
    assert node.ask(arrays=arrays).refusal == Refusal.ANSWERED
    assert node.ask(round=2).refusal == Refusal.SPENT
    assert node.ask(run="bb").refusal == Refusal.SPENT
    # It is closed from a minute before midnight or from now on, for a while.
    hour = datetime.now()
    later = [f"{hour + timedelta(hours=h):%H:%M}" for h in (2, 4)]
    (node.directory / POLICY).write_text(f'{OPEN}hours = "{later[0]}-{later[1]}"\n')
    assert node.ask().refusal == Refusal.HOURS
    assert node.refusals() == [
        *(None, None, None, "answered"),
        *("spent", "spent", "hours"),
    ]
    assert "1 round of training" in account_of(node.kit).describe()[0]


@pytest.mark.parametrize("policy", ["rounds = 0\n", "epsilon = nan\n", "roundz = 3\n"])
def test_a_policy_that_cannot_be_read_lets_nothing_leave(tmp_path, policy):
    node = Node(tmp_path / "wards", OPEN + policy)
    for task in ("hello", "client"):
        assert node.ask(task).refusal == Refusal.FAILED


def test_telemetry_update_checks_and_installations_are_off():
    assert {
        name: os.environ[name] for name in flower_app.SETTINGS
    } == flower_app.SETTINGS


@pytest.mark.parametrize("settings", [{}, {"kit": "Qzkit", "data": "Qzrows.csv"}])
def test_no_text_of_an_error_reaches_the_server(settings):
    """Flower sends the server the text of an exception that a client app raises."""
    request = encode_request(Request("job", 0, 0, "hello", "a"))
    for body in (request, b"nonsense"):
        answer = values_of({"body": body}, settings)["body"]
        # without a kit there is no place to write down what was sent
        assert decode_reply(answer).refusal == Refusal.NO_AUDIT
        assert b"Qz" not in answer and b"node-config" not in answer
    assert values_of({"challenge": b"x"}, settings) == {}


class Grid:
    """Nodes in this process, by number; some answer with an error of Flower."""

    def __init__(self, nodes):
        self.nodes, self.replies, self.fails = nodes, {}, set()

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            node, number = message.metadata.dst_node_id, f"m{len(self.replies)}"
            if node not in self.nodes:
                numbers.append(None)
                continue
            values = self.nodes[node](dict(flower_app.unwrap(message)))
            self.replies[number] = Reply(values, number, node in self.fails)
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        return [self.replies.pop(each) for each in numbers if each in self.replies]


class Reply:
    """What a transport reads of a message of Flower."""

    def __init__(self, values, number, fails):
        self.content = flower_app.wrap(**values)
        self.metadata = SimpleNamespace(reply_to_message_id=number)
        self._fails = fails

    def has_error(self):
        return self._fails

    def has_content(self):
        return not self._fails


def test_a_node_is_a_client_if_it_has_its_key(tmp_path, capsys):
    node = Node(tmp_path / "wards", OPEN)
    federation = node.directory.parent.parent
    certificates = read_certificates(federation / COORDINATOR)

    def says(values):
        """Says that it is another client than its key is of."""
        return node.values(values) | ({"name": "b"} if "challenge" in values else {})

    grid = Grid({7: node.values, 8: says, 9: lambda values: {"name": 3}})
    transport = flower_app.FlowerTransport(grid, certificates)
    assert transport.online() == {}
    assert list(transport.receive()) == []
    assert transport.online() == {"a": "7 0"}
    assert capsys.readouterr().out.count("has the key of no client") == 2
    request = Request(node.kit.job.identity, 0, 0, "hello", "a")
    transport.send("a", encode_request(request))
    ((name, body),) = transport.receive()
    assert name == "a" and decode_reply(body).task == "hello"
    # What is lost, or not taken, is asked again: the number is another one.
    grid.fails = {7}
    transport.send("a", encode_request(request))
    assert list(transport.receive()) == [] and transport.online() == {"a": "7 1"}
    del grid.nodes[7]
    transport.send("a", encode_request(request))
    assert transport.online() == {}
    grid.nodes[7], grid.fails = node.values, set()
    assert transport.online() == {"a": "7 2"}


def test_a_node_whose_challenge_is_lost_is_asked_again(tmp_path, capsys):
    """Before, it was taken for a stranger for good."""
    node = Node(tmp_path / "wards", OPEN)
    certificates = read_certificates(node.directory.parent.parent / COORDINATOR)
    grid = Grid({7: node.values})
    transport = flower_app.FlowerTransport(grid, certificates)
    grid.fails = {7}  # its process is ended meanwhile
    assert transport.online() == {} and list(transport.receive()) == []
    grid.fails = set()
    assert transport.online() == {} and list(transport.receive()) == []
    assert transport.online() == {"a": "7 0"}
    # A second node of the client comes and goes: the first one is asked.
    grid.nodes[8] = node.values
    transport.online()
    assert list(transport.receive()) == []
    assert transport.online() == {"a": "8 0"}
    del grid.nodes[8]
    assert transport.online() == {"a": "7 0"}
    request = Request(node.kit.job.identity, 0, 0, "hello", "a")
    transport.send("a", encode_request(request))
    assert [name for name, _ in transport.receive()] == ["a"]
    assert "has the key of no client" not in capsys.readouterr().out


@pytest.mark.slow
def test_over_a_grid_of_nodes_a_job_gives_the_models_of_the_simulation(tmp_path):
    node = Node(tmp_path / "wards", OPEN, rounds=2)
    federation = node.directory.parent.parent
    kits, nodes = federation / "kits", {}
    for number, name in enumerate(("a", "b", "c")):
        shutil.copy(federation / "job.toml", kits / name)
        (kits / name / POLICY).write_text(OPEN)
        own = {
            "kit": str(kits / name),
            "data": str(node.clients.directory / f"{name}.csv"),
        }
        nodes[number] = lambda values, own=own: values_of(values, own)
    settings = {"federation": str(federation), "wait": 60.0}
    flower_app.serve(Grid(nodes), SimpleNamespace(run_config=settings))
    simulated = node.clients.simulated(("a", "b", "c"), 2)
    for name, theta in stored_models(federation, ["a", "b", "c"]).items():
        np.testing.assert_array_equal(theta, simulated.personal(name).theta)


APP = """
from fedtailor.remote import flower_app

client = flower_app.client
server = flower_app.server
"""

PYPROJECT = """
[project]
name = "wards"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "wards"

[tool.flwr.app.components]
serverapp = "wards_app:server"
clientapp = "wards_app:client"

[tool.flwr.app.config]
federation = "{federation}"
wait = 300.0
"""

CONFIG = """
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    "FEDTAILOR_PROCESS_TESTS" not in os.environ,
    reason="starts Flower's own processes: FEDTAILOR_PROCESS_TESTS=1 asks for it",
)
def test_under_flowers_own_processes_the_policy_holds(tmp_path, monkeypatch):
    """`flwr run`, with a SuperLink and three SuperNodes: two rounds of training, of which
    one client's policy allows one.
    """
    scripts = Path(sys.executable).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    for name, value in flower_app.SETTINGS.items():
        monkeypatch.setenv(name, value)
    job = JOB.replace("minimum = 3", "minimum = 2")
    node = Node(tmp_path / "wards", f"{OPEN}rounds = 1\n", job, rounds=2)
    federation = node.directory.parent.parent
    for name in ("b", "c"):
        kit = federation / "kits" / name
        shutil.copy(federation / "job.toml", kit)
        (kit / POLICY).write_text(OPEN)
    app, port = tmp_path / "app", free_port()
    app.mkdir()
    (app / "wards_app.py").write_text(APP)
    (app / "pyproject.toml").write_text(PYPROJECT.format(federation=federation))
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(CONFIG.format(port=port))
    commands = [["flower-superlink", "--insecure"]]
    commands[0] += ["--port", str(port)]
    for name in ("a", "b", "c"):
        data = node.data.with_name(f"{name}.csv")
        config = f'kit="{federation / "kits" / name}" data="{data}"'
        commands.append(
            ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
        )
        commands[-1] += ["--node-config", config, "--port", str(free_port())]
    processes = []
    with (tmp_path / "log").open("wb") as log:
        try:
            for command in commands:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, start_new_session=True
                )
                processes.append(process)
            listening = wait_for(lambda: is_listening(port), 120)
            assert listening, (tmp_path / "log").read_text()
            run = ["flwr", "run", str(app), "here", "--stream"]
            subprocess.run(run, stdout=log, stderr=log, timeout=400, check=False)
            is_over = wait_for((federation / "run" / "summary.json").exists, 60)
            assert is_over, (tmp_path / "log").read_text()
        finally:
            for process in processes:
                stop(process)
                # The apps that it has started are of its group, and may stay.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    assert "spent" in node.refusals() and None in node.refusals()


def wait_for(condition, seconds):
    """Whether something is so in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.2)
    return condition()


def is_listening(port):
    """Whether a port of this machine is open."""
    with socket.socket() as plain:
        return plain.connect_ex(("127.0.0.1", port)) == 0
