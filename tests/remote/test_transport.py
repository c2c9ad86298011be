"""Exchanges with clients that fail in every way: the right answers count, and each
wrong one is a line with a name.
"""

import dataclasses
import time

import numpy as np
import polars as pl
import pytest
from safetensors import SafetensorError

from fedtailor.remote.wire.messages import (
    ArraySpec,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.run_log import CLIENTS, COORDINATOR_LOG, Lines
from fedtailor.remote.wire.transport import (
    LoopbackTransport,
    Responder,
    TooFewClients,
    send_and_receive,
)

SPECS = {"up/model": ArraySpec((3,), "float32")}
NAMES = ("a", "b", "c")


def doubled(request):
    return {"up/model": request.arrays["received/model"] * 2}


def requests(seconds=30.0, round=4, names=NAMES):
    model, deadline = np.arange(3, dtype=np.float32), time.time() + seconds
    return {
        name: Request(
            "job",
            round,
            0,
            "client",
            name,
            deadline=deadline,
            arrays={"received/model": model + place},
        )
        for place, name in enumerate(names)
    }


def responders(**other):
    return {name: Responder("job", name, doubled) for name in NAMES} | other


def changed(name, **change):
    """A client that answers something else than it should."""

    def respond(body):
        reply = Reply.to(decode_request(body), {"up/model": np.zeros(3, np.float32)})
        return encode_reply(dataclasses.replace(reply, **change))

    return {name: respond}


def ask(clients, *, minimum=1, seconds=30.0, transport=LoopbackTransport, **options):
    lines = []
    with Lines(lines.append).of(COORDINATOR_LOG):
        found = send_and_receive(
            transport(clients),
            requests(seconds),
            SPECS,
            minimum=minimum,
            poll_interval=0.01,
            **options,
        )
    return found, lines


def test_all_answers_are_collected_in_the_order_of_the_requests():
    found, lines = ask(responders())
    assert (
        list(found.replies) == list(NAMES)
        and not found.refused
        and not found.missing
        and not lines
    )
    for place, reply in enumerate(found.replies.values()):
        np.testing.assert_array_equal(
            reply.arrays["up/model"], 2 * (np.arange(3) + place)
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client": "a"}, "client b: it claims to be 'a'"),
        (
            {"experiment": "x"},
            "client b: it answers another experiment; its kit's job.toml differs",
        ),
        (
            {"arrays": {"up/model": np.full(3, np.nan, np.float32)}},
            "client b: array 'up/model' holds NaN or infinity",
        ),
        ({"arrays": {}}, "client b: the array 'up/model' is missing"),
        (
            {"refusal": Refusal.FEW_ROWS},
            "client b: it refused: it has too few training rows for what the request"
            " asks for (see that client's log)",
        ),
        (
            {"round": 5},
            (
                "client b: it answers exchange (5, 0) (round, number) while (4, 0) is"
                " under way"
            ),
        ),
    ],
)
def test_a_wrong_answer_is_refused_by_name_and_the_others_count(change, said):
    found, lines = ask(responders(**changed("b", **change)))
    assert lines == [said] and found.refused == {"b": said}
    assert list(found.replies) == ["a", "c"] and not found.missing


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\x80\x04K\x01."])
def test_bytes_that_are_no_answer_are_refused_by_name(body):
    found, lines = ask(responders(b=lambda asked: body))
    assert lines == [
        "client b: it is not a message of a fedtailor federation, or it is damaged"
    ]
    assert list(found.replies) == ["a", "c"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n" * 10**5], "client b: it has an array 'nnn"),
        (["n" * 10**6], "client b: it has too many arrays"),
        (map(str, range(10**4)), "client b: it has too many arrays"),
    ],
)
def test_a_long_answer_is_a_short_line(names, said):
    """It was as long as the names of arrays that nobody asked for."""
    arrays = {name: np.zeros(0, np.float32) for name in names}
    found, lines = ask(responders(**changed("b", arrays=arrays)))
    assert len(lines) == 1 and lines[0].startswith(said) and len(lines[0]) < 1100
    assert found.refused == {"b": lines[0]} and list(found.replies) == ["a", "c"]


class Twice(LoopbackTransport):
    def send(self, client, body):
        super().send(client, body)
        super().send(client, body)


def test_a_second_answer_is_refused_and_the_first_stands():
    found, lines = ask(responders(), transport=Twice)
    assert list(found.replies) == list(NAMES) and not found.refused
    assert lines == [
        f"client {name}: it answered twice; the first answer stands" for name in NAMES
    ]


class StaleFirst(LoopbackTransport):
    def send(self, client, body):
        request = dataclasses.replace(decode_request(body), round=3, nonce="old")
        self._inbox.append(
            (
                client,
                encode_reply(
                    Reply.to(request, {"up/model": np.full(3, 9, np.float32)})
                ),
            )
        )
        super().send(client, body)


def test_a_stale_answer_is_refused_and_the_right_one_is_awaited():
    found, lines = ask(responders(), transport=StaleFirst)
    assert lines == [
        f"client {name}: it answers exchange (3, 0) (round, number) while (4, 0) is"
        " under way"
        for name in NAMES
    ]
    assert list(found.replies) == list(NAMES)
    assert all(
        float(reply.arrays["up/model"][0]) != 9 for reply in found.replies.values()
    )


class Unasked(LoopbackTransport):
    def receive(self):
        return [
            *super().receive(),
            ("z", encode_reply(Reply("job", 4, 0, "client", "z"))),
        ]


def test_an_answer_of_somebody_who_was_not_asked_is_refused():
    found, lines = ask(responders(), transport=Unasked)
    assert lines == ["client z: it was not asked"]
    assert list(found.replies) == list(NAMES)


class Silent(LoopbackTransport):
    def send(self, client, body):
        if client != "c":
            super().send(client, body)


def test_the_deadline_ends_the_wait_and_the_minimum_decides():
    found, lines = ask(responders(), transport=Silent, seconds=0.1, minimum=2)
    assert (
        found.missing == ("c",)
        and lines == ["no answer in time from c"]
        and list(found.replies) == ["a", "b"]
    )
    with pytest.raises(
        TooFewClients,
        match=r"^2 of 3 clients answered in time, and 3 are needed \(docs: errors#too-few-clients\)$",
    ):
        ask(responders(), transport=Silent, seconds=0.1, minimum=3)


class ComesBack(LoopbackTransport):
    """b takes its first message to its grave, and comes back later."""

    def __init__(self, clients):
        super().__init__(clients)
        self.looks, self.sent = 0, []

    def online(self):
        self.looks += 1
        return super().online() | {"b": "first" if self.looks < 3 else "second"}

    def send(self, client, body):
        self.sent.append(client)
        if client != "b" or self.looks >= 3:
            super().send(client, body)


def test_a_client_that_comes_back_is_asked_again_and_the_others_are_not():
    transport = ComesBack(responders())
    found = send_and_receive(transport, requests(), SPECS, poll_interval=0.01)
    assert sorted(found.replies) == list(NAMES)
    assert transport.sent == ["a", "b", "c", "b"]


def test_a_repeated_request_is_answered_from_memory_with_its_own_nonce():
    calls = []
    responder = Responder(
        "job", "a", lambda request: calls.append(1) or doubled(request)
    )
    (request,) = requests(names=("a",)).values()
    first = decode_reply(responder(_body(request, nonce="one")))
    again = decode_reply(responder(_body(request, nonce="two")))
    assert len(calls) == 1 and (first.nonce, again.nonce) == ("one", "two")
    np.testing.assert_array_equal(first.arrays["up/model"], again.arrays["up/model"])
    other = dataclasses.replace(
        request, arrays={"received/model": np.ones(3, np.float32)}
    )
    assert (
        float(decode_reply(responder(_body(other))).arrays["up/model"][0]) == 2.0
        and len(calls) == 2
    )
    responder(_body(request, round=5))
    responder(_body(request, state_round=3))
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (
            {"experiment": "x"},
            "other-job",
            "the job here differs from the coordinator's; ask for its job.toml",
        ),
        (
            {"client": "b"},
            "other-client",
            "this is 'a', and the request is for 'b'",
        ),
        ({"deadline": 1.0}, "late", "the request arrived after its deadline"),
        ({"arrays": {}}, "malformed", "no model"),
    ],
)
def test_a_client_says_why_it_does_not_work_by_a_code_and_in_its_log(
    change, code, said, client_lines
):
    def work(request):
        if not request.arrays:
            raise Refused(Refusal.MALFORMED, "no model")
        raise AssertionError("must not be called")

    (request,) = requests(names=("a",)).values()
    respond = Responder("job", "a", work)
    reply = decode_reply(respond(_body(request, **change)))
    assert reply.refusal == code and not reply.arrays
    assert client_lines == [f"refused 'client' of round 5 ({code}): {said}"]


SECRET = "row 7 of /home/vera/patients.csv is 0.942"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        OSError(28, SECRET, "/home/vera"),
        MemoryError(SECRET),
        RecursionError(SECRET),
        SafetensorError(SECRET),
        pl.exceptions.PanicException(SECRET),  # no `Exception`, as it comes from Rust
        Refused(Refusal.TABLE, SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_ends_a_client_and_no_text_of_it_leaves(error, client_lines):
    def work(request):
        if request.round == 4:
            raise error
        return doubled(request)

    respond = Responder("job", "a", work)
    (request,) = requests(names=("a",)).values()
    body = respond(_body(request))
    expected = error.code if isinstance(error, Refused) else Refusal.FAILED
    # the answer differs from the request's identity by the code alone
    assert body == encode_reply(Reply.to(request, refusal=expected))
    assert not any(word in body for word in (b"vera", b"0.942", b"row 7", b"Error"))
    assert "vera" in client_lines[0]
    assert isinstance(error, Refused) or any(
        "Traceback" in line for line in client_lines
    )
    assert decode_reply(respond(_body(request, round=5))).refusal is None


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff" * 9])
def test_what_is_no_request_is_refused_at_once_and_nobody_waits(body):
    class Damaging(LoopbackTransport):
        def send(self, client, sent):
            super().send(client, body if client == "b" else sent)

    found, lines = ask(responders(), transport=Damaging)
    assert list(found.replies) == ["a", "c"] and not found.missing
    assert lines == [
        "client b: it refused: it cannot read the request; both sides need the same"
        " release (see that client's log)"
    ]


def test_ctrl_c_still_ends_a_client():
    def work(request):
        raise KeyboardInterrupt

    (request,) = requests(names=("a",)).values()
    with pytest.raises(KeyboardInterrupt):
        Responder("job", "a", work)(_body(request))


def test_every_code_has_words():
    texts = {code.explanation for code in Refusal}
    assert len(texts) == len(Refusal) and all(texts)


def _body(request, **change):
    return encode_request(dataclasses.replace(request, **change))


def test_what_is_no_request_is_refused_in_one_line_of_the_log(client_lines):
    client = Responder("job", "a", doubled)
    for body in (b"", b"{}", b"\xff" * 100):
        assert decode_reply(client(body)).refusal == Refusal.UNREADABLE
    assert len(client_lines) == 3 and not any(
        "Traceback" in line for line in client_lines
    )


def test_a_log_that_fails_ends_no_client():
    def full(line):
        raise OSError(28, "No space left on device")

    Lines(full).listen(CLIENTS)
    client = Responder("job", "a", doubled)
    assert decode_reply(client(b"")).refusal == Refusal.UNREADABLE
