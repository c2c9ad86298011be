"""A client of a plain Flower app keeps to its policy, as one that `join` starts does."""

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")

from fedtailor.remote.client.audit import read_audit
from fedtailor.remote.client.client import account_of
from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.flower import common as flower
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import make_federation, read_kit
from fedtailor.remote.wire.messages import (
    ArraySpec,
    Request,
    decode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.releases import RELEASE
from fedtailor.remote.wire.request_kind import TABLE_TASKS
from fedtailor.remote.wire.wire import WORK, WORK_SPEC
from remote.jobs import JOB, Clients

flower.require_flower()  # sets Flower's environment before its first import

from fedtailor.remote import flower_app  # noqa: E402


@pytest.fixture(autouse=True)
def no_compiler_settings(monkeypatch):
    """The settings of an app's process do not reach the processes of later tests."""
    monkeypatch.setattr(flower_app, "save_memory", lambda: None)


OPEN = "secure_aggregation_only = false\nmeasurements = true\n"
STATISTICS = 'test = 0.25\npreprocessing = "federated"\n'


class Node:
    """A SuperNode with the kit of one client, which starts a process a message."""

    def __init__(self, directory, policy, job=JOB):
        clients = Clients(directory)
        clients.path.write_text(job.format(rounds=4, **clients.settings))
        federation = directory / "federation"
        make_federation(federation, ("a", "b", "c"), job=clients.path)
        self.directory = federation / "kits" / "a"
        shutil.copy(clients.path, self.directory)
        (self.directory / POLICY).write_text(policy)
        self.kit = read_kit(self.directory)
        self.data = directory / "a.csv"

    def ask(self, task="client", **change):
        """The reply to a coordinator's request, and that it is on Flower's way back."""
        from flwr.app import Context, Message, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

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
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
        body = encode_request(Request(**fields | change))
        message = Message(flower.wrap(body), 3, flower.MESSAGE_TYPE)
        settings = {"kit": str(self.directory), "data": str(self.data)}
        flower_app._open_responder.cache_clear()  # another process
        reply = flower_app.client(message, Context(2, 3, settings, RecordDict(), {}))
        assert not reply.has_error()
        return decode_reply(flower.unwrap(reply))

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


SUPERNODE = (
    "import sys; from flwr.supernode.cli import flower_supernode; flower_supernode()"
)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    "FEDTAILOR_PROCESS_TESTS" not in os.environ,
    reason="starts Flower's own processes: FEDTAILOR_PROCESS_TESTS=1 asks for it",
)
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_under_flowers_own_supernode_the_policy_holds(tmp_path, monkeypatch):
    """A process that Flower starts for each message runs the app that a server sends."""
    from fedtailor.remote.flower import server as flower_server
    from fedtailor.remote.flower.processes import free_port, running_superlink, stop
    from fedtailor.remote.flower.server import GridTransport, KeyDirectory, open_grid
    from fedtailor.remote.keys.kit import COORDINATOR
    from fedtailor.remote.wire.transport import send_and_receive

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    app = b"from fedtailor.remote.flower_app import client, server\n"
    monkeypatch.setitem(flower_server.APP, "fedtailor_federation.py", app)
    port = free_port()
    job = JOB.replace("127.0.0.1:9092", f"127.0.0.1:{port}")
    node = Node(tmp_path / "wards", f"{OPEN}rounds = 1\n", job)
    coordinator = node.directory.parent.parent / COORDINATOR
    command = [sys.executable, "-c", SUPERNODE, "--superlink", f"127.0.0.1:{port}"]
    command += ["--root-certificates", str(node.directory / "ca.crt")]
    command += ["--auth-supernode-private-key", str(node.kit.key)]
    command += ["--node-config", f'kit="{node.directory}" data="{node.data}"']
    plan = plan_of(node.kit.job)
    model = plan.initial()[None]
    lines = []

    def ask(round, model, exchange):
        arrays = {"stream/model": model, "index/model": np.zeros(1, np.int32)}
        request = Request(
            node.kit.job.identity,
            round,
            exchange,
            "client",
            "a",
            run="aa",
            algorithm=plan.describe(0),
            deadline=time.time() + 200,
            arrays=arrays,
        )
        expected = {
            "update/model": ArraySpec(model.shape[1:], "float32"),
            WORK: WORK_SPEC,
        }
        found = send_and_receive(
            transport, {"a": request}, expected, minimum=0, log=lines.append
        )
        return found.replies.get("a")

    with running_superlink(coordinator, port, host="127.0.0.1") as link:
        keys = KeyDirectory(coordinator, link.address, link.authority)
        with (
            open_grid(link.address, link.authority, link.secret) as grid,
            (tmp_path / "supernode.log").open("wb") as log,
        ):
            transport = GridTransport(grid, keys.keys, link.check)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                assert ask(0, model, 0) is not None, (lines, log.name)
                assert ask(0, model + 1, 1) is None
                assert ask(1, model, 2) is None
            finally:
                stop(process)
    assert [line.split(" (see")[0] for line in lines] == [
        f"client a: it refused: {Refusal.ANSWERED.explanation}",
        f"client a: it refused: {Refusal.SPENT.explanation}",
    ]
    assert node.refusals() == [None, "answered", "spent"]
