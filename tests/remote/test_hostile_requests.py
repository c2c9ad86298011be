"""Requests that no honest coordinator sends: each is refused by a code, the client's
states stay, and it answers the next one.
"""

import errno
from dataclasses import replace

import numpy as np
import pytest
from safetensors import SafetensorError

from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.sums.client import SecureSumClient
from fedtailor.remote.wire import request_size
from fedtailor.remote.wire.messages import Request, decode_reply
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.request_size import check_size
from fedtailor.remote.wire.secure_sums import KEYS, MAX_NEIGHBOURS, SHARES, SUM
from fedtailor.remote.wire.vector_cache import vector_digest
from remote.marked import ROUNDS, MarkedClients
from remote.raw_messages import Raw


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Clients of a method with states, after training."""
    clients = MarkedClients(tmp_path_factory.mktemp("hostile"), "ditto", rows=30)
    clients.train()
    return clients


@pytest.fixture
def request_of(trained):
    """A request for client a that it would answer; each call has another run."""
    bodies = [body for name, body in trained.tap.requests if name == "a"]
    last = [body for body in bodies if Raw.of(body).envelope["task"] == "client"][-1]

    def make():
        message = Raw.of(last)
        number = np.random.default_rng().integers(2**62)
        message.envelope |= {"run": f"{number:016x}", "state_round": -1}
        message.envelope["durable_state_round"] = -1
        return message

    return make


def answer(trained, message):
    return decode_reply(trained.tap.ask("a", bytes(message)))


def without_model(message):
    message.arrays.clear()


def empty_rows(message):
    message.arrays["stream/model"] = ["F32", [0, 2**34], b""]
    message.set("index/model", np.full(1, -1, "<i4"))


def endless_rows(message):
    message.arrays["stream/model"] = ["F32", [2**40, 0], b""]


def endless_digests(message):
    message.set("known/stream/x", np.zeros((3, 0), "u1"))


def field(name, value):
    def change(message):
        message.envelope[name] = value

    change.__name__ = f"{name} {value:.0e}" if isinstance(value, int) else name
    return change


def other_seed(message):
    message.envelope["algorithm"]["seed"] = 1


def other_phase(message):
    message.envelope["algorithm"]["phase"] = 10**300


def other_mode(message):
    message.envelope["algorithm"]["mode"] = "trial"


def no_mode(message):
    message.envelope["algorithm"]["mode"] = ["trial"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (field("task", "probe"), Refusal.NOT_IN_JOB),
        (field("task", KEYS), Refusal.MALFORMED),
        (field("task", "inputs"), Refusal.UNKNOWN_TASK),
        (field("task", "../../etc/passwd\n"), Refusal.UNKNOWN_TASK),
        (without_model, Refusal.MALFORMED),
        (empty_rows, Refusal.MALFORMED),
        (endless_rows, Refusal.MALFORMED),
        (endless_digests, Refusal.MALFORMED),
        (field("round", ROUNDS), Refusal.ROUND),
        (field("round", 10**6), Refusal.ROUND),
        (field("round", -1), Refusal.UNREADABLE),
        (field("round", 10**300), Refusal.UNREADABLE),
        (field("state_round", 10**300), Refusal.UNREADABLE),
        (field("state_round", 0), Refusal.NO_STATE),
        (field("durable_state_round", 2**60), Refusal.UNREADABLE),
        (field("durable_state_round", -2), Refusal.UNREADABLE),
        (field("experiment", "x"), Refusal.OTHER_JOB),
        (field("client", "b"), Refusal.OTHER_CLIENT),
        (other_seed, Refusal.OTHER_METHOD),
        (other_phase, Refusal.OTHER_METHOD),
        (other_mode, Refusal.OTHER_METHOD),
        (no_mode, Refusal.MALFORMED),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_hostile_request_is_refused_and_nothing_is_lost(
    trained, request_of, change, code
):
    states = sorted(trained.store("a").directory.rglob("*"))
    trained.logs["a"].clear()
    message = request_of()
    change(message)
    reply = answer(trained, message)
    assert reply.refusal == code and not reply.arrays
    assert f"({code}):" in trained.logs["a"][0]
    assert sorted(trained.store("a").directory.rglob("*")) == states
    assert answer(trained, request_of()).refusal is None


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "no space"), SafetensorError("I/O error: no space left")],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_ends_no_client_and_loses_no_state(
    trained, request_of, monkeypatch, error
):
    stored = sorted(trained.store("a").directory.rglob("*"))

    def full(*arguments):
        raise error

    message = request_of()
    with monkeypatch.context() as patch:
        patch.setattr(ClientStore, "save", full)
        assert answer(trained, message).refusal == Refusal.FAILED
    assert sorted(trained.store("a").directory.rglob("*")) == stored
    assert answer(trained, message).refusal is None


def test_states_are_deleted_only_by_a_number_that_is_stored(tmp_path):
    store = ClientStore(tmp_path, "experiment")
    for round in (1, 2, 4):
        store.save(round, [np.zeros(2)])
    for durable in (3, 5, 2**60):
        store.prune(state_round=4, durable_state_round=durable)
        assert store.rounds() == [1, 2, 4]
    store.prune(state_round=4, durable_state_round=2)
    assert store.rounds() == [2, 4]


def test_arrays_are_measured_by_the_memory_of_the_machine(monkeypatch):
    monkeypatch.setattr(request_size, "total_memory", lambda: 4000)
    check_size(1000)
    with pytest.raises(Refused, match=r"asks for arrays of 0\.0 GB"):
        check_size(1001)


def test_one_vector_that_is_named_often_is_measured_before_it_is_copied(
    trained, request_of, monkeypatch
):
    message = request_of()
    vector = message.numbers("stream/model")
    if vector is None or not len(vector):
        vector = np.zeros((1, 8), "<f4")
    message.set("stream/model", vector[:1])
    digests = np.zeros((10_000, 16), "u1")
    message.set("known/stream/model", digests)
    message.set("index/model", np.zeros(10_000, "<i4"))
    assert answer(trained, message).refusal == Refusal.MALFORMED  # not so many are new
    digests[:] = np.frombuffer(vector_digest(vector[0]), "u1")
    message.arrays["stream/model"] = ["F32", [0, vector.shape[1]], b""]
    message.set("known/stream/model", digests)
    monkeypatch.setattr(request_size, "total_memory", lambda: 2**20)
    assert answer(trained, message).refusal == Refusal.MALFORMED


def test_a_sum_of_any_number_of_clients_is_refused_at_once():
    """Shares for c clients take c^2 steps."""
    client = SecureSumClient("a", SecureSums())
    client.hold(0, {"model": np.zeros(3, np.float32)})
    names = [f"c{place:06d}" for place in range(10**5)]

    settings = {"name": "s", "kind": "model"}
    asked = Request("job", 0, 0, KEYS, "a", algorithm={SUM: settings})
    client(asked)
    with pytest.raises(Refused, match=f"with up to {MAX_NEIGHBOURS} other clients"):
        settings = {SUM: {**settings, "among": names}}
        client(replace(asked, task=SHARES, algorithm=settings))


def test_a_personal_model_of_another_length_is_refused_in_a_line(tmp_path):
    clients = MarkedClients(tmp_path, "fedavg", rows=30)
    clients.train()
    requests = [Raw.of(body) for name, body in clients.tap.requests if name == "a"]
    message = [it for it in requests if it.envelope["task"] == "personal"][-1]
    message.envelope["run"] = "0" * 16
    for name in [name for name in message.arrays if name.startswith("known/")]:
        del message.arrays[name]
    message.set("stream/model", np.zeros((1, 5), "<f4"))
    message.set("index/model", np.zeros(1, "<i4"))
    clients.logs["a"].clear()
    assert answer(clients, message).refusal == Refusal.MALFORMED
    assert len(clients.logs["a"]) == 1
