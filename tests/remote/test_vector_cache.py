"""Vectors that a client holds are named, not sent; what it lacks it is sent, and
nothing wrong is ever put together.
"""

import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from fedtailor.remote.wire import request_size
from fedtailor.remote.wire.messages import (
    ArraySpec,
    Reply,
    Request,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.transport import (
    LoopbackTransport,
    Responder,
    TooFewClients,
    send_and_receive,
)
from fedtailor.remote.wire.vector_cache import (
    KNOWN,
    MAX_KINDS,
    MAX_SHAPES,
    CacheMiss,
    ClientCaches,
    VectorCache,
    vector_digest,
)
from fedtailor.remote.wire.wire import read_downlink

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
INITIAL = np.full(3, 7, np.float32)
SPECS = {"sum": ArraySpec((3,), "float32")}


def request(rows, round=0, **other):
    arrays = {
        "stream/model": rows,
        "index/model": np.arange(len(rows), dtype=np.int32),
        **other,
    }
    return Request(
        "job", round, 0, "client", "a", deadline=time.time() + 30, arrays=arrays
    )


def digests(asked):
    found = {
        "stream/model": [vector_digest(row) for row in asked.arrays["stream/model"]]
    }
    return found | (
        {"initial": [vector_digest(asked.arrays["initial"])]}
        if "initial" in asked.arrays
        else {}
    )


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name])


def test_what_was_received_last_what_follows_from_the_seed_and_what_comes_twice_is_not_sent():
    server, client = ClientCaches([INITIAL]), VectorCache(lambda: [INITIAL])
    steps = [
        (request(ROWS[:2]), 2),
        (request(np.stack([ROWS[1], INITIAL, ROWS[2], ROWS[0]])), 1),
        (request(ROWS[[2, 3]], initial=ROWS[3]), 1),
        (
            request(ROWS[[0, 3]], initial=INITIAL),
            1,
        ),  # the row 0 was not among those received last
        (request(np.zeros((0, 3), np.float32)), 0),
    ]
    for whole, sent in steps:
        short = server.drop_cached(whole, digests(whole))
        assert (
            len(short.arrays["stream/model"]) == sent
            and short.arrays.get("initial", ROWS[:0]).size == 0
        )
        filled = client.fill_in(short)
        same(filled.arrays, whole.arrays)
        client.remember(filled)
        server.record("a", digests(whole))


def test_vectors_of_other_types_and_shapes_have_other_digests():
    forms = [
        ROWS,
        ROWS.reshape(-1),
        ROWS.astype(np.float64),
        ROWS.view(np.int32),
        ROWS + 1,
    ]
    assert len({vector_digest(form) for form in forms}) == len(forms)


def test_a_client_that_lacks_a_vector_says_so_and_is_sent_everything(lines):
    whole = request(ROWS[:2])
    server = ClientCaches([])
    server.record("a", digests(whole))
    short = server.drop_cached(whole, digests(whole))
    with pytest.raises(CacheMiss):
        VectorCache().fill_in(short)
    sizes, responder = (
        [],
        Responder(
            "job", "a", lambda asked: {"sum": asked.arrays["stream/model"].sum(0)}
        ),
    )

    def respond(body):
        sizes.append(decode_request(body).arrays["stream/model"].shape[0])
        return responder(body)

    found = send_and_receive(
        LoopbackTransport({"a": respond}),
        {"a": whole},
        SPECS,
        cached={"a": short},
    )
    np.testing.assert_array_equal(found.replies["a"].arrays["sum"], ROWS[:2].sum(0))
    assert sizes == [0, 2] and not lines


class Returns(LoopbackTransport):
    """A client that leaves and comes back before it answers; then both messages reach
    it.
    """

    def __init__(self, clients):
        super().__init__(clients)
        self.waiting, self.looks = [], 0

    def online(self):
        self.looks += 1
        return {"a": "first" if self.looks == 1 else "second"}

    def send(self, client, body):
        self.waiting.append(body)
        if len(self.waiting) == 2:
            for each in self.waiting:
                super().send(client, each)


def test_a_client_that_comes_back_and_finds_the_cached_request_first_is_not_refused(
    lines,
):
    whole = request(ROWS[:2])
    server = ClientCaches([])
    server.record("a", digests(whole))
    short = {"a": server.drop_cached(whole, digests(whole))}
    responder = Responder(
        "job", "a", lambda asked: {"sum": asked.arrays["stream/model"].sum(0)}
    )
    found = send_and_receive(
        Returns({"a": responder}),
        {"a": whole},
        SPECS,
        cached=short,
        poll_interval=0.01,
    )
    assert list(found.replies) == ["a"] and not lines


def test_a_client_that_lacks_what_nobody_left_out_is_refused(lines):
    def respond(body):
        return encode_reply(Reply.to(decode_request(body), cache_miss=True))

    with pytest.raises(TooFewClients):
        send_and_receive(
            LoopbackTransport({"a": respond}),
            {"a": request(ROWS)},
            SPECS,
        )
    assert lines == ["client a: it says that it lacks what it was sent"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {KNOWN + "stream/model": np.zeros((2, 15), np.uint8)},
            "the digests of a request do not fit its vectors",
        ),
        (
            {KNOWN + "stream/other": np.zeros((1, 16), np.uint8)},
            "the digests of a request do not fit its vectors",
        ),
        (
            {KNOWN + "index/model": np.zeros((1, 16), np.uint8)},
            "the digests of a request do not fit its vectors",
        ),
        (
            {KNOWN + "stream/model": np.zeros((5, 16), np.uint8)},
            "a request names more new vectors than it holds",
        ),
        (
            {KNOWN + "stream/model": np.zeros((1, 16), np.uint8)},
            "a request holds more new vectors than it names",
        ),
        (
            {"stream/model": np.float32(1)},
            "a request holds a number where vectors belong",
        ),
    ],
)
def test_a_request_that_does_not_add_up_is_refused(change, said):
    asked = request(ROWS)
    with pytest.raises(ValueError, match=f"^{said}$"):
        VectorCache().fill_in(replace(asked, arrays={**asked.arrays, **change}))


def test_a_message_that_is_refused_leaves_nothing_in_the_cache():
    """Before, each message of a new name stayed in memory, also if it was refused."""

    def refuse(asked):
        raise Refused(Refusal.ROUND, "not this one")

    responder = Responder("job", "a", refuse)
    for name in ("stream/model", "stream/other", "stream/third"):
        asked = replace(request(ROWS), arrays={name: ROWS})
        with pytest.raises(Refused):
            responder.answer(asked)
    assert not responder._cache._received


def test_the_cache_has_a_size(monkeypatch):
    monkeypatch.setattr(request_size, "total_memory", lambda: 8 * 4 * ROWS.nbytes)
    cache = VectorCache()
    for number in range(20):
        arrays = {f"stream/{number}": ROWS + number}
        cache.remember(replace(request(ROWS), arrays=arrays))
    assert list(cache._received) == [f"stream/{number}" for number in range(16, 20)]
    # One vector that stands many times keeps no more than itself.
    often = np.repeat(ROWS[:1], 1000, axis=0)
    cache.remember(replace(request(ROWS), arrays={"stream/often": often}))
    (row,) = cache._received["stream/often"].values()
    assert row.base is None and len(cache._received) > 1


def test_all_arrays_of_a_message_are_measured_together(monkeypatch):
    """Each alone is allowed; ten together took ten times as much."""
    monkeypatch.setattr(request_size, "total_memory", lambda: 4 * 100 * ROWS[0].nbytes)
    cache = VectorCache()
    cache.remember(request(ROWS))
    named = np.frombuffer(vector_digest(ROWS[0]), np.uint8)[None].repeat(60, axis=0)

    def asked(kinds):
        arrays = {}
        for kind in kinds:
            arrays[f"stream/{kind}"] = ROWS[:0]
            arrays[f"{KNOWN}stream/{kind}"] = named
        return replace(request(ROWS), arrays=arrays)

    # Vectors of no bytes are refused unless digests name them.
    cache.fill_in(asked("a"))
    with pytest.raises(Refused, match="asks for arrays of"):
        cache.fill_in(asked("ab"))


def test_streams_are_padded_within_one_size(monkeypatch):
    monkeypatch.setattr(request_size, "total_memory", lambda: 4 * 100 * ROWS[0].nbytes)
    place = np.full(60, -1, np.int32)
    arrays = {"stream/a": ROWS[:1], "index/a": place}
    read_downlink(arrays)
    with pytest.raises(Refused, match="asks for arrays of"):
        read_downlink(arrays | {"stream/b": ROWS[:1], "index/b": place})


def test_no_more_streams_are_read_than_a_method_can_have(monkeypatch):
    """A message of 121 kB that named one model 30,000 times took three minutes."""
    many = np.zeros(request_size.MAX_INBOX // 2, np.int32)
    arrays = {"stream/a": ROWS[:1], "index/a": many, "stream/b": ROWS[:1]}
    read_downlink(arrays | {"index/b": many})
    with pytest.raises(Refused, match="names 1025 streams"):
        read_downlink(arrays | {"index/b": np.append(many, many[:1])})


def test_a_text_is_measured_before_it_is_parsed(monkeypatch):
    """JSON takes thirty times its bytes."""
    monkeypatch.setattr(request_size, "total_memory", lambda: 256 * 4096)
    usual = encode_request(request(ROWS))
    decode_request(usual)
    long = encode_request(replace(request(ROWS), algorithm={"x": [[]] * 2000}))
    with pytest.raises(ValueError, match=r"a text of 0\.0 MB is too long"):
        decode_request(long)


def test_short_vectors_are_counted_before_they_are_rows():
    """20 MB of vectors of one number took a gigabyte."""
    short = np.zeros((request_size.MAX_INBOX + 1, 1), np.float32)
    asked = replace(request(ROWS), arrays={"stream/model": short})
    with pytest.raises(Refused, match="holds 1025 vectors"):
        VectorCache().fill_in(asked)


def test_a_job_names_no_more_and_more_kinds():
    """Names of 1 MB, new ones in each message, took 16 MB each for good."""
    cache = VectorCache()
    for number in range(2 * MAX_KINDS):
        asked = replace(request(ROWS), arrays={f"stream/{number % MAX_KINDS}": ROWS})
        cache.remember(cache.fill_in(asked))
    other = replace(request(ROWS), arrays={"stream/other": ROWS})
    with pytest.raises(Refused, match="64 kinds of vectors and numbers at most"):
        cache.fill_in(other)
    with pytest.raises(Refused, match="names of up to 100 characters"):
        VectorCache().fill_in(
            replace(request(ROWS), arrays={"scalar/" + "x" * 101: ROWS[0, 0]})
        )
    # A request that is refused later on says nothing about the next ones.
    fresh = VectorCache()
    many = {f"scalar/{number}": ROWS[0, 0] for number in range(MAX_KINDS)}
    fresh.fill_in(replace(request(ROWS), arrays=many))
    fresh.fill_in(other)


def test_programs_of_more_and_more_shapes_are_forgotten(monkeypatch):
    """Each took 9 MB for good."""
    cache, forgotten = VectorCache(), []
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(True))
    for length in [*range(1, MAX_SHAPES + 1), *range(1, MAX_SHAPES + 1)]:
        rows = np.ones((1, length), np.float32)
        cache.fill_in(replace(request(ROWS), arrays={"stream/model": rows}))
    assert not forgotten
    cache.fill_in(replace(request(ROWS), arrays={"stream/a": ROWS}))
    assert forgotten
