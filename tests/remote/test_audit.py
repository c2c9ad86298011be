"""Every message that leaves a client is in its log, and on the disk before it leaves."""

import hashlib
import json
import os

import numpy as np
import pytest

from fedtailor.cli import main
from fedtailor.remote.client import audit
from fedtailor.remote.client.audit import AUDIT, REPEATED, AuditLog, read_audit
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.job import read_job
from fedtailor.remote.wire.messages import (
    Request,
    decode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.transport import Responder

TASKS = ("client", "hello")


def body(task="client", round=3, **change):
    return encode_request(Request("job", round, 0, task, "a", run="ab12", **change))


def handler(request):
    if request.task != "client":
        raise Refused(Refusal.POLICY, "a text that stays here")
    return {"update/model": np.arange(5, dtype=np.float32)}


def responder(directory, **options):
    return Responder("job", "a", handler, record=AuditLog(directory, TASKS, **options))


def test_every_message_is_logged_with_its_digest(tmp_path):
    respond = responder(tmp_path)
    asked = [body(), body("hello"), b"nonsense", body(nonce="x"), body("\x1b[2J")]
    sent = [respond(message) for message in asked]
    entries = list(read_audit(tmp_path))
    assert [entry["sha256"] for entry in entries] == [
        hashlib.sha256(message).hexdigest() for message in sent
    ]
    assert [entry["bytes"] for entry in entries] == list(map(len, sent))
    assert [entry["kind"] for entry in entries] == [
        *("client", "hello", "unknown", "client", "unknown")
    ]
    assert [entry.get("refused") for entry in entries] == [
        *(None, "policy", "unreadable", None, "policy")
    ]
    assert {(entry["run"], entry["round"]) for entry in entries[:2]} == {("ab12", 3)}
    text = (tmp_path / AUDIT).read_text()
    assert "stays here" not in text and "\x1b" not in text
    assert (tmp_path / AUDIT).stat().st_mode & 0o777 == 0o600


def test_the_log_goes_on_after_a_restart(tmp_path):
    for _ in range(3):
        responder(tmp_path)(body())
    assert len(list(read_audit(tmp_path))) == 3


def test_nothing_leaves_that_cannot_be_logged(tmp_path, monkeypatch):
    respond = responder(tmp_path)
    respond(body())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        reply = decode_reply(respond(body(round=4)))
    assert reply.refusal == Refusal.NO_AUDIT and not reply.arrays
    assert len(list(read_audit(tmp_path))) == 1
    assert decode_reply(respond(body(round=4))).arrays
    assert len(list(read_audit(tmp_path))) == 2


def test_a_message_is_logged_before_it_leaves(tmp_path):
    """A line that is on the disk when the answer is made is not there by chance."""
    seen = []
    log = AuditLog(tmp_path, TASKS)

    def record(request, reply, message):
        log(request, reply, message)
        seen.append(list(read_audit(tmp_path))[-1]["sha256"])

    sent = Responder("job", "a", handler, record=record)(body())
    assert seen == [hashlib.sha256(sent).hexdigest()]


def test_the_log_is_bounded(tmp_path, monkeypatch):
    respond = responder(tmp_path, max_bytes=1000)
    for round in range(100):
        respond(body(round=round))
    files = sorted(tmp_path.glob("audit*.jsonl"))
    assert len(files) == audit.MAX_FILES
    line = len((tmp_path / AUDIT).read_bytes().splitlines()[0]) + 1
    assert all(file.stat().st_size <= 1000 + line for file in files)
    rounds = [entry["round"] for entry in read_audit(tmp_path)]
    assert rounds == list(range(100 - len(rounds), 100))  # the last ones, in order


def test_answers_to_other_questions_are_not_repeated_ones(tmp_path):
    """The second step of a description, a later phase, another vector of a round."""
    tasks = ("client", "describe")
    log = AuditLog(tmp_path, tasks, before_training=("describe",))
    respond = Responder("job", "a", lambda request: {}, record=log)
    asked = [
        *(body("describe", algorithm={"step": step}) for step in ("columns", "counts")),
        *(body(algorithm={"phase": phase}) for phase in ("train", "finetune")),
        *(
            body(algorithm={"sum": {"name": name, "kind": kind, "number": 0}})
            for name, kind in (("1", "update"), ("2", "count"))
        ),
    ]
    for message in asked:
        respond(message)
    assert not (tmp_path / REPEATED).exists()
    # Of the same vector another sum is the same answer.
    respond(body(algorithm={"sum": {"name": "3", "kind": "count", "number": 0}}))
    assert len((tmp_path / REPEATED).read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "flood",
    [
        b"nonsense",
        body("hello"),
        body(nonce="again"),
    ],
)
def test_what_a_coordinator_can_repeat_pushes_out_no_record(tmp_path, flood):
    """Before, 300,000 refusals deleted the record of every answer."""
    respond = responder(tmp_path, max_bytes=1000)
    answered = [respond(body(round=round)) for round in range(3)]
    respond(body(round=3, nonce="first"))
    for _ in range(100):
        respond(flood)
    assert len(list(tmp_path.glob("audit-repeated*.jsonl"))) == audit.MAX_FILES
    entries = list(read_audit(tmp_path))
    assert [entry["sha256"] for entry in entries[:3]] == [
        hashlib.sha256(message).hexdigest() for message in answered
    ]
    times = [entry["time"] for entry in entries]
    assert times == sorted(times)
    assert (tmp_path / REPEATED).stat().st_mode & 0o777 == 0o600


def test_what_belongs_to_no_round_is_answered_once_whatever_it_names(tmp_path):
    log = AuditLog(tmp_path, TASKS, before_training=["hello"], max_bytes=1000)
    respond = Responder("job", "a", lambda request: {}, record=log)
    respond(body())
    for round in range(100):
        respond(body("hello", round))
    assert [entry["kind"] for entry in read_audit(tmp_path)][:2] == ["client", "hello"]
    assert len(list(tmp_path.glob("audit-repeated*.jsonl"))) == audit.MAX_FILES


def test_a_line_that_was_torn_by_a_power_cut_hides_no_other(tmp_path):
    respond = responder(tmp_path)
    respond(body())
    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'{"time": "20')
    respond(body(round=4))
    assert [entry["round"] for entry in read_audit(tmp_path)] == [3, 4]


def test_a_damaged_line_is_left_out(tmp_path):
    responder(tmp_path)(body())
    line = (tmp_path / AUDIT).read_text()
    for damaged in (line.replace('"round": 3', '"round": "3"'), "[1]\n", "[" * 9999):
        assert damaged != line
        (tmp_path / AUDIT).write_text(line + damaged)
        assert len(list(read_audit(tmp_path))) == 1


@pytest.fixture
def kit(tmp_path):
    pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
    from fedtailor.remote.keys.kit import make_federation

    make_federation(tmp_path / "wards", ["north", "south"], address="127.0.0.1:9092")
    kit = tmp_path / "wards" / "kits" / "north"
    job = (tmp_path / "wards" / "job.toml").read_text()
    (kit / "job.toml").write_text(job.replace("evaluate = false", "evaluate = true"))
    return kit


def run(capsys, *arguments):
    code = main(["federation", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_a_policy_that_allows_the_job_says_so_first(tmp_path, capsys):
    pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
    from fedtailor.remote.keys.kit import make_federation

    names = ["north", "south", "east", "west"]
    make_federation(tmp_path / "wards", names, address="127.0.0.1:9092")
    kit = tmp_path / "wards" / "kits" / "north"
    (kit / "job.toml").write_bytes((tmp_path / "wards" / "job.toml").read_bytes())
    code, said, _ = run(capsys, "join", kit, "--init-policy")
    assert code == 0
    made = f"Made {kit / 'policy.toml'}, which allows the job of this kit as it stands;"
    assert said.startswith(made)
    assert "the policy here does not allow" not in said


def test_commands_write_and_show_the_policy_and_the_log(kit, capsys):
    code, said, _ = run(capsys, "policy", kit)
    assert code == 0
    assert said.startswith("north has no policy.toml, and these defaults apply:\n")
    assert "As it stands, the policy here does not allow this job" in said
    assert "nothing was answered so far" in said
    code, _, error = run(capsys, "join", kit, "--data", kit / "client.toml")
    assert code == 2 and "the policy here does not allow this job" in error
    assert error.count("\n") == 1 and not (kit / "state").exists()
    code, said, _ = run(capsys, "join", kit, "--init-policy")
    assert code == 0 and said.startswith(f"Made {kit / 'policy.toml'}")
    assert "As it stands, the policy here does not allow this job" in said
    code, _, error = run(capsys, "join", kit, "--init-policy")
    assert code == 2 and "there is a policy already" in error
    code, _, error = run(capsys, "join", kit)
    assert code == 2 and "--data FILE" in error
    (kit / "policy.toml").write_text("least_clients = 1\n")
    code, _, error = run(capsys, "policy", kit)
    assert code == 2 and "policy.toml, line 1: least_clients is 1" in error
    (kit / "policy.toml").unlink()
    (kit / "state").mkdir(exist_ok=True)
    respond = responder(kit / "state")
    messages = [respond(body()), respond(body("hello"))]
    told = "This client is running, by the policy that it was started with"
    assert told not in run(capsys, "policy", kit)[1]
    with ClientStore(kit / "state", read_job(kit / "job.toml").identity):
        assert told in run(capsys, "policy", kit)[1]
    code, said, _ = run(capsys, "audit", kit)
    heading, first, second, total, *_ = said.splitlines()
    assert heading.startswith("time (UTC)") and heading.endswith("sha256  refused")
    assert first.split()[2:5] == ["ab12", "4", "client"]
    assert second.endswith(f"{hashlib.sha256(messages[1]).hexdigest()[:6]}  policy")
    assert heading.index("refused") == second.index("policy")
    count = sum(map(len, messages))
    assert total == f"2 messages with {count:,} bytes left north, 1 of them refusals"
    assert all(len(line) <= 80 for line in (heading, first, second))
    code, said, _ = run(capsys, "audit", kit, "--json")
    digests = [json.loads(line)["sha256"] for line in said.splitlines()]
    assert digests == [hashlib.sha256(each).hexdigest() for each in messages]
