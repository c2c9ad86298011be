"""All bytes that leave a client, whatever the coordinator asks: no cell, no name and no
path of its machine is in them; and no message ends it.
"""

import numpy as np
import pytest

from fedtailor.remote.wire.messages import Reply, decode_reply
from remote.marked import NAMES, MarkedClients
from remote.raw_messages import Raw, hostile

SECURE = "secure_aggregation = true"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "privacy"),
    [
        ("fedavg", ""),
        pytest.param("ditto", "", marks=pytest.mark.nightly),
        pytest.param("ucfl", "", marks=pytest.mark.nightly),
        pytest.param("fedavg", SECURE, marks=pytest.mark.nightly),
        ("ucfl", f'{SECURE}\nprobe = "open"'),
    ],
)
def test_nothing_of_a_marked_table_leaves_whatever_is_asked(method, privacy, tmp_path):
    clients = MarkedClients(tmp_path, method, privacy)
    clients.train()
    asked = {Raw.of(body).envelope["task"] for _, body in clients.tap.requests}
    expected = {"hello", "client", "evaluate", "personal"}
    expected |= set() if privacy else {"statistics", "agreed"}
    assert expected <= asked
    assert not any(clients.logs.values()) and not clients.leaks()

    rng, answers = np.random.default_rng(7), 0
    requests = clients.tap.requests.copy()
    hello = dict(requests[: len(NAMES)])
    for _ in range(150):
        client, body = requests[rng.integers(len(requests))]
        answer = clients.tap.ask(client, hostile(rng, body))
        assert not clients.marks.found_in(answer)
        reply = decode_reply(answer)
        assert isinstance(reply, Reply)
        answers += reply.refusal is None
        assert decode_reply(clients.tap.ask(client, hello[client])).refusal is None
    assert answers < 150
    # what a client is asked before it has agreed to anything
    early = b"hello" if privacy else b"statistics"
    before = [it for it in requests if early in it[1]]
    for number in range(100):
        client, body = before[rng.integers(len(before))]
        fresh = clients.client(client, f"state{number}")
        for changed in (hostile(rng, body), body):
            clients.tap.sent.append((client, fresh(changed)))
            assert not clients.marks.found_in(clients.tap.sent[-1][1])
    assert not clients.leaks()


def test_the_search_finds_what_leaves(tmp_path):
    """The test above could not fail if this did."""
    clients = MarkedClients(tmp_path, rows=20)
    table = clients.handlers["a"]._table.frame
    value = float(table["age"][3])
    for body in (
        f"column 'age' is {value:.6g}".encode(),
        repr(value).encode(),
        np.array([1, value], ">f4").tobytes(),
        np.array([value, 2], "<f8").tobytes(),
        str(clients.files["a"]).encode(),
        b"unexpected column Qzcolumn0",
        table["ward"][15].encode(),
    ):
        clients.tap.sent = [("a", b"x" + body)]
        assert clients.leaks(), body
    clients.tap.sent = [("a", np.arange(999.0).tobytes() + b"age, ward, surgery")]
    assert not clients.leaks()
