"""Encodes requests and replies as bytes, and decodes and checks them.

A message is a safetensors file: a header of names, types and shapes, followed by the
arrays as little-endian bytes. The other fields (client, round, method, ...) are JSON in
the file's metadata. Decoding runs no code of the sender, and raises a `ValueError` of
one line for every invalid message.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from fedtailor._base.choice import require
from fedtailor._base.tensors import DTYPES, is_float, metadata, tensor
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.request_size import check_text

FORMAT = 2
"""Version of this wire format; other versions are refused."""

MAX_TEXT = 2**22
"""Maximum number of entries of an array whose length the sender chooses."""

MAX_ENVELOPE = 2**16
"""Bytes that are enough for all of a reply but its arrays."""

MAX_HEADER = 2**18
"""Bytes of the longest header of a reply, which names each of its arrays."""

_ENVELOPE = "fedtailor"

_Origin = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
MessageInt = Annotated[int, Field(ge=0, lt=2**31)]
E = TypeVar("E", bound="_Envelope")


@dataclass(frozen=True)
class ArraySpec:
    """The shape and type that an array in a message must have.

    Attributes:
        shape: the exact shape; (None,) stands for an array of one dimension with at
            most `most` entries.
        dtype: the exact type, such as "float32"; NaN and infinity are refused.
        low, high: the smallest and the largest number that it may hold; None = any.
        most: the largest number of entries where the sender chooses it.
    """

    shape: tuple[int | None, ...]
    dtype: str
    low: int | None = None
    high: int | None = None
    most: int = MAX_TEXT


@dataclass(frozen=True)
class Request:
    """A message of the coordinator to one client.

    Attributes:
        experiment: identity of the job (`Job.identity`); both sides must have the same.
        round: number of the round, from 0.
        exchange: number of this exchange within the round, from 0 (a round may probe,
            train and evaluate).
        task: what the client has to do: "client", "probe", ...
        client: name of the client.
        state_round: round in which the coordinator last accepted an answer of the
            client, or -1. The client starts from its state after that round.
        durable_state_round: the value of `state_round` in the coordinator's last
            checkpoint. The client may delete older states.
        deadline: time, in seconds since the epoch, after which answers are ignored.
        reply: whether the client has to report its update.
        run: identity of the coordinator's run (`run_identity`), in which each round
            has one request for each task; empty before a run begins.
        origin: the origin (see `origin`) of the client's answers that the coordinator
            has heard last; empty if none.
        nonce: a secret that only the coordinator and this client know. The answer
            repeats it, so that nobody else can forge one.
        algorithm: the method's name and hyper-parameters, as plain values.
        arrays: the arrays of the method's downlink, by name (see `wire`).
    """

    experiment: str
    round: int
    exchange: int
    task: str
    client: str
    state_round: int = -1
    durable_state_round: int = -1
    deadline: float = float("inf")
    reply: bool = True
    run: str = ""
    origin: str = ""
    nonce: str = ""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """A client's answer to a request.

    Attributes:
        experiment, round, exchange, task, client, nonce: copied from the request.
        arrays: the arrays of the method's answer, by name (see `wire`).
        refusal: why the client did not do its task; None if it did.
        cache_miss: whether the client's cache lacks a vector whose digest the request
            holds, so that it must be sent the full request.
        origin: where the answer comes from (see `origin`); empty if it does not say.
    """

    experiment: str
    round: int
    exchange: int
    task: str
    client: str
    nonce: str = ""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    refusal: Refusal | None = None
    cache_miss: bool = False
    origin: str = ""

    @classmethod
    def to(
        cls,
        request: Request,
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        refusal: Refusal | None = None,
        cache_miss: bool = False,
    ) -> "Reply":
        """Make the answer to a request.

        Args:
            request: the request.
            arrays: the arrays of the method's answer, by name.
            refusal: see `Reply`.
            cache_miss: see `Reply`.
        """
        return cls(
            **_identity(request),
            arrays=arrays or {},
            refusal=refusal,
            cache_miss=cache_miss,
        )


def _finite(description: dict[str, Any]) -> dict[str, Any]:
    """Check that a description holds no NaN or infinity, which JSON does not have."""
    try:
        json.dumps(description, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return description


class _Envelope(BaseModel):
    """All fields of a message except its arrays; checked when a message is decoded."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    experiment: Annotated[str, Field(max_length=128)]
    round: MessageInt
    exchange: MessageInt
    task: Annotated[str, Field(max_length=64)]
    client: Annotated[str, Field(max_length=128)]
    nonce: Annotated[str, Field(max_length=64)]


class _RequestEnvelope(_Envelope):
    kind: Literal["request"]
    state_round: Annotated[int, Field(ge=-1, lt=2**31)]
    durable_state_round: Annotated[int, Field(ge=-1, lt=2**31)]
    deadline: float | None
    reply: bool
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{0,32}$")]
    origin: _Origin
    algorithm: Annotated[dict[str, Any], AfterValidator(_finite)]


class _ReplyEnvelope(_Envelope):
    kind: Literal["reply"]
    # In strict mode JSON's strings are still converted to members of the enumeration.
    refusal: Refusal | None
    lacks: bool
    origin: _Origin


def encode_request(request: Request) -> bytes:
    """Encode a request; an infinite deadline becomes null, as JSON has no infinity."""
    envelope = _common(request) | {
        "kind": "request",
        "state_round": request.state_round,
        "durable_state_round": request.durable_state_round,
        "deadline": None if request.deadline == float("inf") else request.deadline,
        "reply": request.reply,
        "run": request.run,
        "origin": request.origin,
        "algorithm": dict(request.algorithm),
    }
    return _pack(envelope, request.arrays)


def decode_request(data: bytes) -> Request:
    """Decode a request.

    Raises:
        ValueError: the bytes are not a request.
    """
    envelope, arrays = _unpack(data, _RequestEnvelope)
    return Request(
        **_identity(envelope),
        state_round=envelope.state_round,
        durable_state_round=envelope.durable_state_round,
        deadline=float("inf") if envelope.deadline is None else envelope.deadline,
        reply=envelope.reply,
        run=envelope.run,
        origin=envelope.origin,
        algorithm=envelope.algorithm,
        arrays=arrays,
    )


def encode_reply(reply: Reply) -> bytes:
    """Encode a reply."""
    envelope = _common(reply) | {
        "kind": "reply",
        "refusal": reply.refusal,
        "lacks": reply.cache_miss,
        "origin": reply.origin,
    }
    return _pack(envelope, reply.arrays)


def decode_reply(data: bytes) -> Reply:
    """Decode a reply; `check_identity` and `check_content` compare it with the request.

    Raises:
        ValueError: the bytes are not a reply, or one of too many arrays.
    """
    header = int.from_bytes(data[:8], "little")
    require(header <= MAX_HEADER or header > len(data), "it has too many arrays")
    envelope, arrays = _unpack(data, _ReplyEnvelope)
    return Reply(
        **_identity(envelope),
        arrays=arrays,
        refusal=envelope.refusal,
        cache_miss=envelope.lacks,
        origin=envelope.origin,
    )


def check_identity(reply: Reply, request: Request) -> None:
    """Check that a reply answers a request.

    Raises:
        ValueError: it is a reply to another request, or of another client.
    """
    require(
        reply.experiment == request.experiment,
        "it answers another experiment; its kit's job.toml differs",
    )
    require(reply.client == request.client, f"it claims to be {reply.client!r}")
    expected, actual = (request.round, request.exchange), (reply.round, reply.exchange)
    require(
        actual == expected,
        f"it answers exchange {actual} (round, number) while {expected} is under way",
    )
    require(reply.nonce == request.nonce, "it answers a request that is no longer open")
    require(
        reply.task == request.task,
        f"it answers the task {reply.task!r} instead of {request.task!r}",
    )


def check_content(reply: Reply, expected: Mapping[str, ArraySpec]) -> None:
    """Check that a reply is not a refusal, and holds the expected arrays.

    Raises:
        ValueError: why the client refused, or what is wrong with the arrays.
    """
    check_not_refused(reply)
    check_arrays(reply.arrays, expected)


def check_not_refused(reply: Reply) -> None:
    """Check that a reply is not a refusal.

    Raises:
        ValueError: why the client refused, in words of this machine.
    """
    if reply.refusal is not None:
        raise ValueError(
            f"it refused: {reply.refusal.explanation} (see that client's log)"
        )


def check_arrays(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, ArraySpec]
) -> None:
    """Check names, shapes and types of arrays, and that all numbers are finite.

    Raises:
        ValueError: what is wrong with the first invalid array.
    """
    extra = sorted(set(arrays) - set(expected))
    if extra:
        raise ValueError(f"it has an array {extra[0]!r} that nobody asked for")
    for name, spec in expected.items():
        require(name in arrays, f"the array {name!r} is missing")
        array = arrays[name]
        require(
            array.dtype == np.dtype(spec.dtype),
            f"array {name!r} is {array.dtype}; it must be {spec.dtype}",
        )
        any_length = spec.shape == (None,) and array.ndim == 1
        fits = array.size <= spec.most if any_length else array.shape == spec.shape
        require(
            fits, f"array {name!r} has shape {array.shape}; it must be {spec.shape}"
        )
        if is_float(array):
            finite = bool(np.isfinite(array).all())
            require(finite, f"array {name!r} holds NaN or infinity")
        if array.size and (spec.low is not None or spec.high is not None):
            low = -math.inf if spec.low is None else spec.low
            high = math.inf if spec.high is None else spec.high
            smallest, largest = array.min().item(), array.max().item()
            require(
                low <= smallest and largest <= high,
                f"array {name!r} holds {smallest if smallest < low else largest}, which"
                f" is not between {low} and {high}",
            )


def largest_reply(expected: Mapping[str, ArraySpec]) -> int:
    """The size in bytes of the largest reply that holds the expected arrays."""
    size = 0
    for spec in expected.values():
        lengths = [spec.most if length is None else length for length in spec.shape]
        entries = math.prod(lengths)
        size += entries * np.dtype(spec.dtype).itemsize
    return size + MAX_ENVELOPE


def _common(message: Request | Reply) -> dict[str, Any]:
    """The part of an envelope that requests and replies share."""
    return {"format": FORMAT, **_identity(message)}


def _identity(message: Request | Reply | _Envelope) -> dict[str, Any]:
    """The fields that a reply copies from its request."""
    names = ("experiment", "round", "exchange", "task", "client", "nonce")
    return {name: getattr(message, name) for name in names}


def _pack(envelope: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode a message.

    Raises:
        ValueError: an array has a type that messages do not support.
    """
    tensors = {}
    for name, array in arrays.items():
        contiguous = np.ascontiguousarray(array)
        dtype = contiguous.dtype
        # safetensors writes little-endian bytes, whatever the array's byte order.
        encoded = dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
        require(
            encoded in DTYPES.values(),
            f"array {name!r} is {dtype}, a type that cannot cross the wire",
        )
        # `ascontiguousarray` turns scalars into vectors.
        tensors[name] = contiguous.reshape(np.shape(array))
    text = json.dumps(envelope, separators=(",", ":"), allow_nan=False)
    return save(tensors, {_ENVELOPE: text})


def _unpack(data: bytes, kind: type[E]) -> tuple[E, dict[str, np.ndarray]]:
    """Decode a message into its envelope and its arrays.

    Raises:
        ValueError: the bytes are not a message of this kind.
    """
    # The header, of which arrays are no part. One that is longer than all is refused below.
    header = int.from_bytes(data[:8], "little")
    check_text(header if header <= len(data) else 0)
    try:
        entries = deserialize(data)
        # safetensors has checked the header, but returns texts only for files on disk.
        text = metadata(data)[_ENVELOPE]
    except (
        SafetensorError,
        ValueError,
        RecursionError,
        KeyError,
        AttributeError,
        TypeError,
        OverflowError,
    ):
        raise ValueError(
            "it is not a message of a fedtailor federation, or it is damaged"
        ) from None
    try:
        envelope = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise ValueError(
            f"its {where} is not valid ({first['msg'].lower()}); both sides need the"
            " same release"
        ) from None
    return envelope, {name: tensor(name, entry) for name, entry in entries}
