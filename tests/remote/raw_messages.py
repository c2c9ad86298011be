"""Messages as an attacker writes them: taken apart, changed in any way, and put together
again, without the checks of the package.
"""

import json
from dataclasses import dataclass, field

import numpy as np

from fedtailor.remote.wire.request_kind import TABLE_TASKS, TASKS

NUMBERS = [-(10**300), -2, -1, 0, 1, 3, 10**6, 2**31 - 1, 2**31, 2**60, 10**300]
TEXTS = ["", "x" * 64, "../../etc/passwd", "\x1b[2J\nclient a: forged", "\ud800", "é"]
FACTORS = [0.0, -1.0, 1e-39, 1e-300, 1e30, 1e38, 1e300, float("nan"), float("inf")]


@dataclass
class Raw:
    """The parts of a message.

    Attributes:
        envelope: the fields that are JSON.
        arrays: the type, shape and bytes of each array, by name.
    """

    envelope: dict
    arrays: dict = field(default_factory=dict)

    @staticmethod
    def of(body):
        """Take a message apart."""
        length = int.from_bytes(body[:8], "little")
        header, data = json.loads(body[8 : 8 + length]), body[8 + length :]
        envelope = json.loads(header.pop("__metadata__")["fedtailor"])
        arrays = {
            name: [entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]]
            for name, entry in header.items()
        }
        return Raw(envelope, arrays)

    def __bytes__(self):
        header, data = {"__metadata__": {"fedtailor": json.dumps(self.envelope)}}, b""
        for name, (dtype, shape, content) in self.arrays.items():
            offsets = [len(data), len(data) + len(content)]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            data += content
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data

    def numbers(self, name):
        """An array of float32 numbers; None if it is none."""
        dtype, shape, content = self.arrays[name]
        return np.frombuffer(content, "<f4").reshape(shape) if dtype == "F32" else None

    def set(self, name, array):
        """Put an array of a type that its bytes tell in place of another."""
        kinds = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8"}
        kind = kinds[f"{array.dtype.kind}{array.dtype.itemsize}"]
        self.arrays[name] = [kind, list(array.shape), array.tobytes()]


def hostile(rng, body):
    """A message of the coordinator, changed in one to three ways.

    Args:
        rng: draws the changes.
        body: a message that the coordinator sends.
    """
    message = Raw.of(body)
    for _ in range(rng.integers(1, 4)):
        changes = (_change_number, _change_text, _change_algorithm, _change_array)
        if "statistics" in message.arrays:
            changes = (*changes[:2], *3 * [_change_statistics])
        pick(rng, changes)(rng, message)
    out = bytes(message)
    if rng.random() < 0.1:
        return _damaged(rng, out)
    return out


def pick(rng, options):
    """One of some values, of any types."""
    options = list(options)
    return options[rng.integers(len(options))]


def _change_number(rng, message):
    names = ("round", "exchange", "state_round", "durable_state_round", "format")
    message.envelope[pick(rng, names)] = pick(rng, NUMBERS)


def _change_text(rng, message):
    envelope = message.envelope
    name = pick(rng, ("task", "task", "task", "client", "experiment", "run", "reply"))
    if name == "task":
        envelope[name] = pick(rng, (*TASKS, *TABLE_TASKS, *TEXTS))
    elif name == "reply":
        envelope["reply"] = not envelope["reply"]
        envelope["deadline"] = pick(rng, (None, 0.0, 1e308, -1.0))
    else:
        envelope[name] = pick(rng, TEXTS)


def _change_algorithm(rng, message):
    algorithm = message.envelope["algorithm"]
    key = pick(rng, (*algorithm, "phase", "newcomer", "sum", "seed", "uplink"))
    old = algorithm.get(key)
    if isinstance(old, dict) and old and rng.random() < 0.8:
        old[pick(rng, old)] = pick(rng, (*NUMBERS, *TEXTS, None, True, {}))
    else:
        algorithm[key] = pick(rng, (*NUMBERS, *TEXTS, None, True, {}, [[[[]]]]))
    if rng.random() < 0.1:
        algorithm.clear()


def _change_array(rng, message):
    arrays = message.arrays
    names = list(arrays)
    kind = rng.integers(9)
    if not names or kind == 0:
        digests = rng.integers(0, 256, (int(rng.integers(1, 9)), 16), np.uint8)
        message.set(pick(rng, ("known/stream/model", "known/initial", "x")), digests)
        return
    name = pick(rng, names)
    dtype, shape, content = arrays[name]
    numbers = message.numbers(name)
    if kind == 1:
        del arrays[name]
    elif kind == 2:
        arrays.clear()
    elif kind == 3:  # an array of no bytes that stands for many
        big = [0, 2**34] if rng.random() < 0.7 else [2**40, 0]
        arrays[name] = [dtype, big, b""]
    elif kind == 4:
        arrays[pick(rng, ("initial", "scalar/rounds", "stream/x", "index/model"))] = (
            arrays.pop(name)
        )
    elif kind == 5:
        count = int(rng.integers(-2, 3))
        message.set("index/model", np.arange(count, count + 3, dtype="<i4"))
    elif kind == 6 and numbers is not None:
        message.set(name, (numbers * np.float32(pick(rng, FACTORS))).astype("<f4"))
    elif kind == 7 and numbers is not None:
        message.set(name, numbers.astype("<f8"))
    else:
        arrays[name] = [dtype, [1, *shape], content]


def _change_statistics(rng, message):
    content = bytes(message.arrays["statistics"][2])
    try:
        statistics = json.loads(content)
        parts = [statistics, *statistics["columns"].values()]
    except (ValueError, KeyError, AttributeError):
        return  # as an earlier change has left them
    parts += [part] if (part := statistics.get("target")) else []
    part = pick(rng, [part for part in parts if isinstance(part, dict)])
    key = pick(rng, (*part, "squares", "mean", "count"))
    old = part.get(key)
    if isinstance(old, int | float) and rng.random() < 0.7:
        value = old * pick(rng, (0, 0.5, 1e-39, 1e-80, 1e-80, 0.999999, 1.5, 1e12))
        part[key] = int(value) if isinstance(old, int) else value
    elif isinstance(old, dict) and rng.random() < 0.7:
        old[pick(rng, ("Ms Jones", *old, *TEXTS))] = pick(rng, NUMBERS)
    else:
        part[key] = pick(rng, (*NUMBERS, *TEXTS, None, [], {}, 1e-39, 1e300))
    text = json.dumps(statistics).encode("utf-8", "surrogatepass")
    message.arrays["statistics"] = ["U8", [len(text)], text]


def _damaged(rng, body):
    """Bytes of which some are lost, changed or new."""
    whole, at = bytearray(body), int(rng.integers(len(body)))
    kind = rng.integers(3)
    if kind == 0:
        del whole[at:]
    elif kind == 1:
        whole[at] = int(rng.integers(256))
    else:
        whole[at:at] = rng.bytes(int(rng.integers(1, 30)))
    return bytes(whole)
