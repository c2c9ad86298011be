"""Messages that no honest side sends, drawn field by field from honest ones.

A message is taken apart into its envelope and its arrays, some of its fields are drawn
anew, and it is put together again, so that neither need be valid: shapes that are
larger than the bytes, types that do not exist, numbers that no integer holds.
"""

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtailor._base.tensors import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""The name of a type in safetensors."""


@dataclass
class Message:
    """A message in pieces.

    Attributes:
        envelope: its fields; any JSON.
        arrays: type, shape and bytes of its arrays, by name.
        raw: the bytes to send instead of the pieces, if any.
        drawn: what was drawn anew, for reports.
    """

    envelope: Any
    arrays: dict[str, tuple[str, Any, bytes]]
    raw: bytes | None = None
    drawn: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, body: bytes) -> "Message":
        """Take a message apart."""
        length = int.from_bytes(body[:8], "little")
        header, data = json.loads(body[8 : 8 + length]), body[8 + length :]
        envelope = json.loads(header.pop("__metadata__")["fedtailor"])
        arrays = {
            name: (
                entry["dtype"],
                entry["shape"],
                data[slice(*entry["data_offsets"])],
            )
            for name, entry in header.items()
        }
        return cls(envelope, arrays)

    def encode(self) -> bytes:
        """Put the pieces together."""
        if self.raw is not None:
            return self.raw
        header: dict[str, Any] = {
            "__metadata__": {"fedtailor": json.dumps(self.envelope)}
        }
        data = b""
        for name, (dtype, shape, content) in self.arrays.items():
            ends = [len(data), len(data) + len(content)]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": ends}
            data += content
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data

    def set(self, name: str, value: Any) -> None:
        """Draw a field of the envelope anew."""
        if isinstance(self.envelope, dict):
            self.envelope[name] = value
        self.drawn.append(f"{name} = {value!r:.80}")


NUMBERS = (
    *(
        0,
        1,
        -1,
        2,
        3,
        7,
        19,
        20,
        10**6,
        2**31 - 1,
        2**31,
        2**53,
        2**60,
        2**63,
        -(2**63),
    ),
    *(2**64, 10**300, 0.5, -0.5, 1e-39, 1e30, 1e308, 5e-324, math.nan, math.inf),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "../x",
        "/etc/passwd",
        "\x00",
        "\x1b[2J",
        "a\nb",
        "\u202e",
        "\udc80",
    ),
    *("x" * 65, "x" * 10**5, "true", "null", "__metadata__", "%s%n", "{}", "model"),
)
JUNK = (*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], {"a": {"a": {"a": 1}}})
TYPES = (*DTYPES, "BF16", "F8_E4M3", "F4", "I128", "", "f4")


class Grammar:
    """Draws messages.

    Args:
        rng: what draws them.
        honest: messages to begin with.
        tasks: names of tasks.
        experiments: identities of jobs, for messages that belong to another one.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        honest: Sequence[bytes],
        tasks: Sequence[str] = (),
        experiments: Sequence[str] = (),
    ) -> None:
        self._rng, self._honest, self._tasks = rng, honest, tuple(tasks)
        self._experiments = tuple(experiments)

    def message(self, start: bytes | None = None, most: int = 3) -> Message:
        """Draw a message, some of whose fields are another message's, or junk.

        Args:
            start: the honest message to begin with; any by default.
            most: largest number of changes.
        """
        message = Message.of(self._pick(self._honest) if start is None else start)
        for _ in range(int(self._rng.integers(0, most + 1))):
            change = self._pick(
                [
                    *[self._envelope_field] * 4,
                    *[self._array_values] * 4,
                    self._array_form,
                    self._array_set,
                    self._algorithm,
                    self._text_in_array,
                    self._splice,
                ]
            )
            change(message)
        if self._rng.random() < 0.15:
            self._encoding(message)
        return message

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _envelope_field(self, message: Message) -> None:
        if not isinstance(message.envelope, dict):
            return
        name = self._pick([*message.envelope, "more"])
        old = message.envelope.get(name)
        if name == "task" and self._tasks:
            value = self._pick([*self._tasks, *TEXTS])
        elif name == "experiment" and self._experiments:
            value = self._pick([*self._experiments, *TEXTS])
        elif name == "algorithm":
            return self._algorithm(message)
        elif isinstance(old, int | float) and not isinstance(old, bool):
            near = [old - 1, old + 1, old + 2, 0, -1]
            value = self._pick([*near, *near, *NUMBERS])
        elif isinstance(old, bool):
            value = self._pick([not old, not old, *JUNK])
        else:
            value = self._pick(JUNK)
        if self._rng.random() < 0.05:
            message.envelope.pop(name, None)
            message.drawn.append(f"no {name}")
        else:
            message.set(name, value)
        return None

    def _algorithm(self, message: Message) -> None:
        """Some value in the description of the method."""
        if not isinstance(message.envelope, dict):
            return
        place = message.envelope.get("algorithm")
        if not isinstance(place, dict) or not place or self._rng.random() < 0.1:
            message.set("algorithm", self._pick(JUNK))
            return
        place = message.envelope["algorithm"] = copy.deepcopy(place)
        if self._rng.random() < 0.3:
            name = self._pick(["newcomer", "sum", "phase", "lr", "x"])
            place[name] = self._pick([*JUNK, place])
            message.drawn.append(f"algorithm.{name}")
            return
        message.drawn.append(f"algorithm {self._replace_inside(place)}")

    def _replace_inside(self, place: Any) -> str:
        """Replace one value somewhere in a JSON value; returns where."""
        path: list[str] = []
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = self._pick(keys)
            path.append(str(key))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and self._rng.random() < 0.9:
                place = inner
                continue
            choices = [*JUNK]
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                choices = [inner + 1, inner * 2, inner / 3, -inner, *NUMBERS]
            place[key] = self._pick(choices)
            return f"{'.'.join(path)} = {place[key]!r:.60}"

    def _array_values(self, message: Message) -> None:
        """Numbers in an array: NaN, infinity, huge ones, noise, zeros."""
        if not message.arrays:
            return
        name = self._pick(list(message.arrays))
        dtype, shape, content = message.arrays[name]
        if dtype not in DTYPES:
            return
        array = np.frombuffer(content[: len(content) // 8 * 8], np.uint8).copy()
        size = DTYPES[dtype].itemsize
        values = array[: len(array) // size * size].view(DTYPES[dtype])
        if not len(values):
            return
        kind = self._pick(["one", "all", "scale", "noise", "bits"])
        with np.errstate(all="ignore"):
            if kind in ("one", "all"):
                number = self._pick([x for x in NUMBERS if abs(x) < 2**63 or x != x])
                where = (
                    slice(None)
                    if kind == "all"
                    else int(self._rng.integers(len(values)))
                )
                try:
                    values[where] = number
                except (OverflowError, ValueError):
                    values[where] = 1
                message.drawn.append(f"{name}: {kind} {number!r}")
            elif kind == "scale" and dtype.startswith("F"):
                factor = self._pick([-1.0, 0.0, 2.0, 10.0, 1e3, 1e10, 1e30])
                values *= values.dtype.type(factor)
                message.drawn.append(f"{name} times {factor}")
            elif kind == "noise" and dtype.startswith("F"):
                values += self._rng.normal(size=len(values)).astype(values.dtype)
                message.drawn.append(f"{name} with noise")
            else:
                place = int(self._rng.integers(8 * len(array)))
                array[place // 8] ^= 1 << (place % 8)
                message.drawn.append(f"{name}: bit {place}")
        message.arrays[name] = (
            dtype,
            shape,
            array.tobytes() + content[len(array) :],
        )

    def _array_form(self, message: Message) -> None:
        """The type or the shape of an array, with the bytes that it needs or others."""
        if not message.arrays:
            return
        name = self._pick(list(message.arrays))
        dtype, shape, content = message.arrays[name]
        if self._rng.random() < 0.3:
            dtype = self._pick(TYPES)
        shape = self._pick(
            [
                *([], [0], [1], [1, 1], [2, 0], [0, 2**34], [2**34, 0], [2**31, 2**31]),
                *([2**34], [-1], [0.5], ["1"], [10**30], [1] * 70, None, "x"),
                *([len(content) // 4], [1, len(content) // 4], [len(content) // 4, 1]),
                *(list(shape or [])[::-1], [*(shape or []), 1]),
            ]
        )
        if self._rng.random() < 0.7 and dtype in DTYPES and isinstance(shape, list):
            # As many bytes as the shape says, where that is few.
            try:
                count = math.prod(shape)
                if isinstance(count, int) and 0 <= count <= 2**16:
                    content = (content * (count + 1))[: count * DTYPES[dtype].itemsize]
                    content = content.ljust(count * DTYPES[dtype].itemsize, b"\0")
            except TypeError:
                pass
        message.arrays[name] = (dtype, shape, content)
        message.drawn.append(f"{name}: {dtype} {shape!r:.40}")

    def _array_set(self, message: Message) -> None:
        """An array less, more, or under another name."""
        names = list(message.arrays)
        kind = self._pick(["less", "more", "renamed", "many", "swapped"])
        if kind in ("less", "renamed", "swapped") and not names:
            return
        if kind == "less":
            message.arrays.pop(self._pick(names))
        elif kind == "renamed":
            old = self._pick(names)
            message.arrays[self._name()] = message.arrays.pop(old)
        elif kind == "swapped":
            one, other = self._pick(names), self._pick(names)
            message.arrays[one], message.arrays[other] = (
                message.arrays[other],
                message.arrays[one],
            )
        elif kind == "many":
            index = np.zeros(int(self._pick([10**3, 10**6])), "<i8").tobytes()
            message.arrays["index/model"] = ("I64", [len(index) // 8], index)
        else:
            content = self._rng.bytes(4 * int(self._rng.integers(0, 20)))
            message.arrays[self._name()] = ("F32", [len(content) // 4], content)
        message.drawn.append(f"array {kind}")

    def _name(self) -> str:
        others = [
            name for body in self._honest[:20] for name in Message.of(body).arrays
        ]
        known = ("stream/model", "index/model", "scalar/lr", "initial", "known/stream")
        return self._pick([*known, *others, *TEXTS])

    def _text_in_array(self, message: Message) -> None:
        """A value in an array that is JSON, such as pooled statistics."""
        for name, (dtype, _, content) in message.arrays.items():
            if dtype != "U8":
                continue
            try:
                inside = json.loads(content)
            except (ValueError, RecursionError):
                continue
            if not isinstance(inside, dict) or not inside:
                continue
            where = self._replace_inside(inside)
            text = json.dumps(inside).encode()
            message.arrays[name] = ("U8", [len(text)], text)
            message.drawn.append(f"{name}: {where}")
            return

    def _splice(self, message: Message) -> None:
        """The arrays of another message, or its place in the conversation."""
        other = Message.of(self._pick(self._honest))
        if self._rng.random() < 0.5:
            message.arrays = other.arrays
            message.drawn.append("arrays of another message")
        elif isinstance(message.envelope, dict):
            names = ("task", "round", "exchange", "algorithm", "run", "state_round")
            name = self._pick([name for name in names if name in other.envelope])
            message.set(name, other.envelope[name])

    def _encoding(self, message: Message) -> None:
        """The bytes: cut, flipped, extended, or of another format."""
        try:
            body = bytearray(message.encode())
        except (ValueError, TypeError, OverflowError):
            return
        kind = self._pick(["cut", "flip", "more", "length", "deep", "other", "twice"])
        at = int(self._rng.integers(len(body)))
        if kind == "cut":
            raw = bytes(body[:at])
        elif kind == "flip":
            for _ in range(int(self._rng.integers(1, 8))):
                place = int(self._rng.integers(8 * len(body)))
                body[place // 8] ^= 1 << (place % 8)
            raw = bytes(body)
        elif kind == "more":
            raw = bytes(body) + self._rng.bytes(at)
        elif kind == "length":
            size = int(self._pick([0, 1, 2**32, 2**63, 2**64 - 1, len(body)]))
            raw = size.to_bytes(8, "little") + bytes(body[8:])
        elif kind == "deep":
            text = b'{"__metadata__":' + b"[" * 10**5
            raw = len(text).to_bytes(8, "little") + text
        elif kind == "twice":
            raw = bytes(body) * 2
        else:
            raw = self._pick(
                [b"", b"{}", b"\x80\x04K\x01.", b"PK\x03\x04", b"\0" * 1000]
            )
        message.raw = raw
        message.drawn.append(f"bytes: {kind}")
