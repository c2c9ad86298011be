"""Requests and replies as bytes, and back with nothing taken on trust.

A message is a safetensors file: arrays as raw little-endian bytes behind a header of
names, types and shapes. The rest (who, which round, which method) is JSON in the file's
metadata. Nothing in a message can run code, and whatever is wrong with one ends in a
`ValueError` of one line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from fedtailor.protocol import require

FORMAT = 1
"""Version of this wire format; other versions are refused."""

DTYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
"""Types of the arrays in messages, by their names in safetensors."""

MAX_TEXT = 2**22
"""The most entries of an array whose length the sender chooses."""

_ENVELOPE = "fedtailor"

TracedInt = Annotated[int, Field(ge=0, lt=2**31)]
E = TypeVar("E", bound="_Envelope")


@dataclass(frozen=True)
class ArraySpec:
    """What an array in a message must look like.

    Attributes:
        shape: its exact shape; (None,) for an array of one dimension, of at most
            `MAX_TEXT` entries.
        dtype: its exact type, such as "float32"; NaN and infinity are refused.
    """

    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Request:
    """What the coordinator asks of one client.

    Attributes:
        experiment: identity of the job (`Job.identity`); both sides must have the same.
        round: number of the round, from 0.
        exchange: number of this exchange within the round, from 0 (a round may probe,
            train and evaluate).
        task: what to do: "client", "probe", ...
        client: whom this is for.
        state_round: round after which the coordinator last accepted an answer of the
            client, -1 for none; what the client does now starts from its state then.
        durable_state_round: the same, as the coordinator has it on its disk; the client
            may delete older states.
        deadline: seconds since the epoch after which an answer is of no use.
        reply: whether the client is asked to report what it trained.
        nonce: a secret between the coordinator and this client, which the answer
            repeats: nobody else can answer.
        algorithm: the method's name and hyper-parameters, as plain values.
        arrays: what the method sends, by name.
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
    nonce: str = ""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a client answers.

    Attributes:
        experiment, round, exchange, task, client, nonce: of the request.
        arrays: what the method reports, by name.
        problem: in one line, why the client could not do what it was asked; empty if it
            could.
        lacks: whether the client must be asked again with all vectors, as it does not
            hold one that the request only named.
    """

    experiment: str
    round: int
    exchange: int
    task: str
    client: str
    nonce: str = ""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    problem: str = ""
    lacks: bool = False

    @classmethod
    def to(
        cls,
        request: Request,
        arrays: Mapping[str, np.ndarray] | None = None,
        problem: str = "",
        *,
        lacks: bool = False,
    ) -> "Reply":
        """The answer to a request.

        Args:
            request: that is answered.
            arrays: what the method reports, by name.
            problem: what went wrong; cut to one line of at most 300 characters.
            lacks: see above.
        """
        return cls(
            **_identity(request),
            arrays=arrays or {},
            problem=" ".join(problem.split())[:300],
            lacks=lacks,
        )


class _Envelope(BaseModel):
    """All of a message but its arrays; checked when a message is decoded."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    experiment: Annotated[str, Field(max_length=128)]
    round: TracedInt
    exchange: TracedInt
    task: Annotated[str, Field(max_length=64)]
    client: Annotated[str, Field(max_length=128)]
    nonce: Annotated[str, Field(max_length=64)]


class _RequestEnvelope(_Envelope):
    kind: Literal["request"]
    state_round: Annotated[int, Field(ge=-1)]
    durable_state_round: Annotated[int, Field(ge=-1)]
    deadline: float | None
    reply: bool
    algorithm: dict[str, Any]


class _ReplyEnvelope(_Envelope):
    kind: Literal["reply"]
    problem: Annotated[str, Field(max_length=400)]
    lacks: bool


def encode_request(request: Request) -> bytes:
    """A request as bytes. An infinite deadline, which JSON cannot say, is null."""
    envelope = _common(request) | {
        "kind": "request",
        "state_round": request.state_round,
        "durable_state_round": request.durable_state_round,
        "deadline": None if request.deadline == float("inf") else request.deadline,
        "reply": request.reply,
        "algorithm": dict(request.algorithm),
    }
    return _pack(envelope, request.arrays)


def decode_request(data: bytes) -> Request:
    """A request from bytes.

    Raises:
        ValueError: it is no request.
    """
    envelope, arrays = _unpack(data, _RequestEnvelope)
    return Request(
        **_identity(envelope),
        state_round=envelope.state_round,
        durable_state_round=envelope.durable_state_round,
        deadline=float("inf") if envelope.deadline is None else envelope.deadline,
        reply=envelope.reply,
        algorithm=envelope.algorithm,
        arrays=arrays,
    )


def encode_reply(reply: Reply) -> bytes:
    """A reply as bytes."""
    envelope = _common(reply) | {
        "kind": "reply",
        "problem": reply.problem,
        "lacks": reply.lacks,
    }
    return _pack(envelope, reply.arrays)


def decode_reply(data: bytes) -> Reply:
    """A reply from bytes.

    Whether it answers what was asked, `check_identity` and `check_content` say.

    Raises:
        ValueError: it is no reply.
    """
    envelope, arrays = _unpack(data, _ReplyEnvelope)
    return Reply(
        **_identity(envelope),
        arrays=arrays,
        problem=envelope.problem,
        lacks=envelope.lacks,
    )


def check_identity(reply: Reply, request: Request) -> None:
    """Refuse a reply to another request.

    Raises:
        ValueError: it is of another experiment, client, round, exchange, request or
            task.
    """
    require(
        reply.experiment == request.experiment,
        "it answers another experiment; its kit's job.toml differs",
    )
    require(reply.client == request.client, f"it claims to be {reply.client!r}")
    asked, answered = (request.round, request.exchange), (reply.round, reply.exchange)
    require(
        answered == asked,
        f"it answers exchange {answered} (round, number) while {asked} is under way",
    )
    require(reply.nonce == request.nonce, "it answers a request that is no longer open")
    require(
        reply.task == request.task,
        f"it answers the task {reply.task!r} instead of {request.task!r}",
    )


def check_content(reply: Reply, expected: Mapping[str, ArraySpec]) -> None:
    """Refuse a reply that reports a problem, or whose arrays are not the expected ones.

    Raises:
        ValueError: what is wrong with it.
    """
    require(not reply.problem, f"it could not take part: {reply.problem}")
    check_arrays(reply.arrays, expected)


def check_arrays(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, ArraySpec]
) -> None:
    """Refuse arrays of other names, shapes or types than expected, NaN and infinity.

    Raises:
        ValueError: what is wrong with the first such array.
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
        fits = array.size <= MAX_TEXT if any_length else array.shape == spec.shape
        require(
            fits, f"array {name!r} has shape {array.shape}; it must be {spec.shape}"
        )
        if array.dtype.kind == "f":
            finite = bool(np.isfinite(array).all())
            require(finite, f"array {name!r} holds NaN or infinity")


def _common(message: Request | Reply) -> dict[str, Any]:
    """The part of an envelope that requests and replies share."""
    return {"format": FORMAT, **_identity(message)}


def _identity(message: Request | Reply | _Envelope) -> dict[str, Any]:
    """The fields by which a reply belongs to its request."""
    names = ("experiment", "round", "exchange", "task", "client", "nonce")
    return {name: getattr(message, name) for name in names}


def _pack(envelope: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A message from its envelope and its arrays.

    Raises:
        ValueError: an array is of a type that no message may hold.
    """
    tensors = {}
    for name, array in arrays.items():
        contiguous = np.ascontiguousarray(array)
        dtype = contiguous.dtype
        # safetensors writes little-endian bytes, whatever the order here
        sent_as = dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
        require(
            sent_as in DTYPES.values(),
            f"array {name!r} is {dtype}, a type that cannot cross the wire",
        )
        # `ascontiguousarray` makes vectors of scalars
        tensors[name] = contiguous.reshape(np.shape(array))
    text = json.dumps(envelope, separators=(",", ":"), allow_nan=False)
    return save(tensors, {_ENVELOPE: text})


def _unpack(data: bytes, kind: type[E]) -> tuple[E, dict[str, np.ndarray]]:
    """The envelope and the arrays of a message.

    Raises:
        ValueError: it is no message, or not of this kind.
    """
    try:
        entries = deserialize(data)
        # safetensors has checked the header, but returns the metadata of files only,
        # so those are read by hand: 8 bytes of length, then JSON.
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        text = metadata[_ENVELOPE]
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
            "it is no message of a fedtailor federation, or it is damaged"
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
    return envelope, {name: _array(name, entry) for name, entry in entries}


def _array(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """An array from its entry in a safetensors file: type, shape and bytes."""
    require(
        entry["dtype"] in DTYPES,
        f"array {name!r} is of the type {entry['dtype']}, which no message may hold",
    )
    array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
    if array.dtype == np.dtype(bool):
        require(
            bool((array.view(np.uint8) <= 1).all()),
            f"array {name!r} holds bytes that are no booleans",
        )
    return array.reshape(entry["shape"])
