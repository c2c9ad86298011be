"""A client whose own files are damaged says so in a line, and goes on."""

import contextlib

import pytest

from fedtailor.remote.client.account import ACCOUNT
from fedtailor.remote.client.describing import describe_clients
from fedtailor.remote.client.round_requests import SUMS as SUMS_FILE
from fedtailor.remote.wire.messages import decode_reply
from fedtailor.remote.wire.refusals import Refusal
from remote.marked import SEEN, MarkedClients

SUMS = 'secure_aggregation = true\nsum_scope = "round"\nevaluate = false'
DAMAGES = {
    "empty": b"",
    "bytes": b"\xff\xfe\x00",
    "other": b"[1]",
    "nested": b"[" * 9999,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A job with a description, its clients, and what client "a" was asked."""
    clients = MarkedClients(tmp_path_factory.mktemp("told"))
    describe_clients(clients.job, clients.tap, SEEN, 60)
    clients.train()
    return clients, [body for name, body in clients.tap.requests if name == "a"]


@pytest.fixture(scope="module")
def summed(tmp_path_factory):
    """The same of a job with sums."""
    clients = MarkedClients(tmp_path_factory.mktemp("summed"), privacy=SUMS)
    clients.train()
    return clients, [body for name, body in clients.tap.requests if name == "a"]


@contextlib.contextmanager
def replaced(path, damaged):
    """A file with another content, or without one (None), until the end of the block."""
    content = path.read_bytes()
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(content)


def answers_of(client, bodies):
    """The refusals of some requests, which are None where one is answered."""
    return [decode_reply(client(body)).refusal for body in bodies]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("told", "description.json"),
        ("told", "own-statistics.json"),
        ("told", "statistics.json"),
        ("summed", "sums.json"),
        ("summed", "summed-rows"),
    ],
)
def test_a_damaged_file_is_named_in_a_line(job, name, damage, request):
    clients, bodies = request.getfixturevalue(job)
    path = clients.store("a").directory / name
    clients.logs["a"].clear()
    try:
        with replaced(path, DAMAGES[damage]):
            refusals = answers_of(clients.client("a"), bodies)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert Refusal.FAILED not in refusals
        assert Refusal.NO_STATE in refusals or Refusal.UNSAFE_SUM in refusals
        assert not any("Traceback" in line for line in clients.logs["a"])


@pytest.mark.parametrize("left", [None, b""])
def test_a_client_whose_account_is_lost_does_not_start(summed, left):
    """It would answer every round of its job again, and count no epsilon of before."""
    clients, _ = summed
    path = clients.store("a").client_directory / ACCOUNT
    said = r"account\.jsonl is lost or damaged: it"
    with replaced(path, left), pytest.raises(ValueError, match=said):
        clients.client("a")
    clients.client("a")


def test_a_client_whose_sums_are_lost_adds_none(summed):
    """It would forget which sums were added up, and add others to them."""
    clients, bodies = summed
    path = clients.store("a").directory / SUMS_FILE
    with replaced(path, None), pytest.raises(ValueError, match=r"sums\.json is lost"):
        clients.client("a")
    assert not any(answers_of(clients.client("a"), bodies[:1]))
