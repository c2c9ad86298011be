"""The wire format: what is sent arrives, and whatever else arrives is refused in one
line.
"""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from fedtailor.remote.wire.messages import (
    ArraySpec,
    Reply,
    Request,
    check_content,
    check_identity,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal

MODEL = np.arange(12, dtype=np.float32)
REQUEST = Request(
    experiment="0123456789abcdef" * 2,
    round=7,
    exchange=1,
    task="client",
    client="north",
    state_round=5,
    durable_state_round=4,
    deadline=1.5e9,
    reply=False,
    nonce="ab" * 12,
    algorithm={"name": "ucfl", "sgd": {"lr": 0.1, "epochs": 2}, "streams": "auto"},
    arrays={
        "received/model": MODEL.reshape(2, 6),
        "scalar/round": np.int32(7),
        "mask": np.array([True, False]),
    },
)
REPLY = Reply.to(REQUEST, {"up/model": MODEL})
SPECS = {"up/model": ArraySpec((12,), "float32")}

dtypes = st.sampled_from(
    [
        "bool",
        "uint8",
        "int8",
        "int32",
        "int64",
        "uint32",
        "float16",
        "float32",
        "float64",
    ]
)
arrays = dtypes.flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_side=4))
)


def same(one, other):
    assert {
        name: (array.dtype, array.shape, array.tobytes()) for name, array in one.items()
    } == {
        name: (array.dtype, np.shape(array), np.asarray(array).tobytes())
        for name, array in other.items()
    }


def plain(message):
    return {
        field.name: getattr(message, field.name)
        for field in dataclasses.fields(message)
        if field.name != "arrays"
    }


def test_a_request_arrives_as_it_was_sent():
    got = decode_request(encode_request(REQUEST))
    assert plain(got) == plain(REQUEST)
    same(got.arrays, REQUEST.arrays)


def test_no_deadline_arrives_as_none():
    assert decode_request(
        encode_request(dataclasses.replace(REQUEST, deadline=float("inf")))
    ).deadline == float("inf")


@given(
    st.dictionaries(
        st.text(max_size=20).filter(lambda name: name != "__metadata__"),
        arrays,
        max_size=4,
    )
)
def test_arrays_of_all_types_and_shapes_arrive(sent):
    same(decode_reply(encode_reply(Reply.to(REQUEST, sent))).arrays, sent)


def test_big_endian_arrays_arrive_with_their_values():
    got = decode_reply(
        encode_reply(Reply.to(REQUEST, {"up/model": MODEL.astype(">f4")}))
    )
    np.testing.assert_array_equal(got.arrays["up/model"], MODEL)


def test_a_small_model_costs_at_most_two_percent_more_than_its_bytes():
    model = np.zeros(10_000, np.float32)
    asked = dataclasses.replace(REQUEST, arrays={"received/model": model})
    assert model.nbytes < len(encode_request(asked)) <= 1.02 * model.nbytes
    assert (
        len(encode_reply(Reply.to(REQUEST, {"up/model": model}))) <= 1.02 * model.nbytes
    )


def test_types_that_no_message_may_hold_are_not_sent():
    with pytest.raises(
        ValueError, match=r"^array 'z' is complex64, a type that cannot cross the wire$"
    ):
        encode_reply(Reply.to(REQUEST, {"z": np.zeros(2, np.complex64)}))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data):
    for decode in (decode_request, decode_reply):
        with pytest.raises(ValueError) as refused:
            decode(data)
        assert "\n" not in str(refused.value)


@given(st.data())
def test_changed_messages_are_refused_or_decoded_but_nothing_else(data):
    whole = bytearray(encode_request(REQUEST))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = data.draw(st.integers(0, len(whole) - 1)) if whole else 0
        if kind == "flip" and whole:
            whole[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del whole[at : at + data.draw(st.integers(1, 40))]
        else:
            whole[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    try:
        got = decode_request(bytes(whole))
    except ValueError as refused:
        assert "\n" not in str(refused)
    else:
        assert isinstance(got, Request)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner),
    )
)
def test_an_envelope_of_other_values_is_refused(value):
    for key in ("round", "client", "nonce", "kind", "format", "refusal"):
        envelope = json.loads(_envelope(encode_reply(REPLY)))
        if (type(value), value) == (type(envelope[key]), envelope[key]):
            continue
        if key in ("client", "nonce") and isinstance(value, str):
            continue
        if (
            key == "round"
            and isinstance(value, int)
            and not isinstance(value, bool)
            and 0 <= value < 2**31
        ):
            continue
        with pytest.raises(ValueError, match=r"both sides need the same release"):
            decode_reply(save({}, {"fedtailor": json.dumps(envelope | {key: value})}))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '{"a":' * 5000,
        "",
        "null",
        "NaN",
        json.dumps({"format": 1}),
        json.dumps(json.loads('{"format": 2}')),
    ],
)
def test_deep_or_foreign_envelopes_are_refused(text):
    with pytest.raises(ValueError) as refused:
        decode_request(save({}, {"fedtailor": text}))
    assert "\n" not in str(refused.value)


def test_unknown_keys_are_refused():
    envelope = json.loads(_envelope(encode_reply(REPLY))) | {"admin": True}
    with pytest.raises(ValueError, match=r"^its admin is not valid"):
        decode_reply(save({}, {"fedtailor": json.dumps(envelope)}))


def test_a_request_is_no_reply():
    with pytest.raises(ValueError, match="both sides need the same release"):
        decode_reply(encode_request(REQUEST))


def test_pickles_are_refused():
    import pickle

    with pytest.raises(
        ValueError,
        match=r"^it is not a message of a fedtailor federation, or it is damaged$",
    ):
        decode_reply(pickle.dumps(REPLY))


def test_booleans_must_be_booleans():
    body = encode_reply(Reply.to(REQUEST, {"m": np.array([True])}))
    with pytest.raises(
        ValueError, match=r"^array 'm' holds bytes that are not booleans$"
    ):
        decode_reply(body[:-8] + body[-8:].replace(b"\x01", b"\x02"))


def test_the_right_answer_is_accepted():
    check_reply(REPLY)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"experiment": "other"},
            "it answers another experiment; its kit's job.toml differs",
        ),
        ({"client": "south"}, "it claims to be 'south'"),
        (
            {"round": 6},
            "it answers exchange (6, 1) (round, number) while (7, 1) is under way",
        ),
        (
            {"exchange": 0},
            "it answers exchange (7, 0) (round, number) while (7, 1) is under way",
        ),
        ({"nonce": "cd"}, "it answers a request that is no longer open"),
        ({"task": "probe"}, "it answers the task 'probe' instead of 'client'"),
        (
            {"refusal": Refusal.FAILED},
            "it refused: it failed (see that client's log)",
        ),
        ({"arrays": {}}, "the array 'up/model' is missing"),
        (
            {"arrays": {"up/model": MODEL, "x": MODEL}},
            "it has an array 'x' that nobody asked for",
        ),
        (
            {"arrays": {"up/model": MODEL.astype("f8")}},
            "array 'up/model' is float64; it must be float32",
        ),
        (
            {"arrays": {"up/model": MODEL[:3]}},
            "array 'up/model' has shape (3,); it must be (12,)",
        ),
        (
            {"arrays": {"up/model": MODEL * np.nan}},
            "array 'up/model' holds NaN or infinity",
        ),
        (
            {"arrays": {"up/model": MODEL + np.inf}},
            "array 'up/model' holds NaN or infinity",
        ),
    ],
)
def test_wrong_answers_are_refused_in_a_line_that_says_why(change, said):
    with pytest.raises(ValueError) as refused:
        check_reply(dataclasses.replace(REPLY, **change))
    assert str(refused.value) == said


def check_reply(reply):
    check_identity(reply, REQUEST)
    check_content(reply, SPECS)


def _envelope(body):
    length = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + length])["__metadata__"]["fedtailor"]


def test_a_description_of_the_method_is_json():
    """NaN is not, though many readers take it; nobody could encode the request again."""
    body = encode_request(Request("job", 0, 0, "client", "a", algorithm={"lr": 0.5}))
    damaged = body.replace(b"0.5", b"NaN")
    assert decode_request(body).algorithm == {"lr": 0.5} and damaged != body
    with pytest.raises(ValueError, match="its algorithm is not valid"):
        decode_request(damaged)
