"""Federations whose tables are marked: every cell is one number, every name one word,
so that whatever of them leaves a client is found in the bytes.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl

from fedtailor.remote.client.client import responder_of
from fedtailor.remote.client.describing import describe_clients
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.keys.kit import JOB, make_federation, read_kit
from fedtailor.remote.server.boosting import boost_clients
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.service import (
    Connection,
    agree_on_preprocessing,
    wait_for_clients,
)
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines
from fedtailor.remote.wire.transport import LoopbackTransport

NAMES = ("a", "b", "c", "d")
TARGET = "a"
"""The client that is attacked."""

ROUNDS = 3
ROWS = 40

_SGD = "sgd = {{ lr = 0.1, epochs = 1, batch_size = 8{private} }}"
_JOB = """title = "{kind}"
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "{target}"
{data}
val = 0.1
test = 0.25
[data.columns]
{columns}
[model]
use = "logistic"
[method]
{method}
[training]
rounds = {rounds}
minimum = {minimum}
deadline = 3600
[privacy]
{privacy}
"""
_LISTED = 'first = "number"\nsecond = "number"\nward = ["surgery", "medicine"]'
_POOLED = 'first = "number"\nsecond = "number"\nward = "category"\nday = "date"'
_CLASSES = 'classes = ["no", "yes"]'
_FEDAVG = 'use = "fedavg"\n' + _SGD.format(private="")
_BOOSTING = """secure_aggregation = true
[boosting]
trees = 2
leaves = 3
least_rows = 2
bins = 8
"""
_KINDS = {
    "ditto": (
        "label",
        _CLASSES,
        _LISTED,
        'use = "ditto"\n' + _SGD.format(private=""),
        "",
    ),
    "fedavg": ("label", _CLASSES, _LISTED, _FEDAVG, ""),
    "pooled": (
        "value",
        'preprocessing = "federated"',
        _POOLED.replace('ward = "category"\n', ""),
        _FEDAVG,
        "",
    ),
    "categories": (
        "label",
        f'preprocessing = "federated"\n{_CLASSES}',
        _POOLED,
        _FEDAVG,
        "",
    ),
    "ucfl": (
        "label",
        _CLASSES,
        _LISTED,
        'use = "ucfl"\nstreams = 2\n' + _SGD.format(private=""),
        "",
    ),
    "sums": ("label", _CLASSES, _LISTED, _FEDAVG, "secure_aggregation = true"),
    "trees": ("label", _CLASSES, _LISTED, _FEDAVG, _BOOSTING),
    "trees-round": (
        "label",
        _CLASSES,
        _LISTED,
        _FEDAVG,
        _BOOSTING.replace("[boosting]", 'sum_scope = "round"\n[boosting]'),
    ),
    "trees-classes": (
        "grade",
        'classes = ["low", "middle", "high"]',
        _LISTED,
        _FEDAVG,
        _BOOSTING,
    ),
    "trees-numbers": ("value", "", _LISTED, _FEDAVG, _BOOSTING),
    "trees-pooled": (
        "label",
        f'preprocessing = "job"\n{_CLASSES}',
        _LISTED,
        _FEDAVG,
        _BOOSTING,
    ),
    "passes": (
        "label",
        _CLASSES,
        _LISTED,
        'use = "fedala"\npart = "layers.1.weight"\n'
        + "sgd = { lr = 0.1, steps = 5, batch_size = 8 }",
        "secure_aggregation = true",
    ),
    "private": (
        "label",
        _CLASSES,
        _LISTED,
        'use = "fedavg"\n' + _SGD.format(private=", dp_noise = 1.0, dp_norm = 1.0"),
        "",
    ),
}
JOBS = tuple(_KINDS)
TRAINED = tuple(kind for kind in JOBS if not kind.startswith("trees"))
"""Jobs that train round by round, and boost no trees."""
_POLICY = """secure_aggregation_only = false
federated_statistics = true
measurements = true
runs = 1000000
epsilon = 1e9
"""


@dataclass
class Secrets:
    """What nobody may find in the bytes that leave a client.

    Attributes:
        words: texts, as bytes.
        numbers: the cells of number columns, and the model's inputs.
    """

    words: tuple[bytes, ...]
    numbers: np.ndarray

    def in_message(self, body: bytes, request: bytes = b"") -> list[str]:
        """What of them a message holds that its request does not.

        Two numbers of 32 bits are found by accident about once in ten million answers,
        one alone once in thousands.
        """
        found = [
            repr(word) for word in self.words if word in body and word not in request
        ]
        for start in range(8):
            doubles = np.frombuffer(body[start : start + (len(body) - start) // 8 * 8])
            with np.errstate(all="ignore"):
                known = np.isin(doubles, self.numbers)
            found += [f"{number!r} as float64" for number in doubles[known]]
        singles = np.unique(self.numbers.astype("<f4"))
        asked = set(_singles(request))
        values = [value for value in _singles(body) if value not in asked]
        known = np.isin(np.unique(np.array(values, "<f4")), singles)
        if known.sum() >= 2:
            found.append(f"{known.sum()} numbers as float32")
        return found


def _singles(body: bytes) -> Iterator[float]:
    for start in range(4):
        part = body[start : start + max(len(body) - start, 0) // 4 * 4]
        yield from np.frombuffer(part, "<f4").tolist()


@dataclass
class MarkedFederation:
    """A job with kits and marked tables for all its clients.

    Attributes:
        kind: which job.
        directory: its directory.
        files: the clients' tables.
        secrets: of the client that is attacked.
    """

    kind: str
    directory: Path
    files: dict[str, Path] = field(init=False)
    secrets: Secrets = field(init=False)

    def __post_init__(self) -> None:
        target, data, columns, method, privacy = _KINDS[self.kind]
        job = self.directory.with_suffix(".toml")
        job.write_text(
            _JOB.format(
                kind=self.kind,
                target=target,
                data=data,
                columns=columns,
                method=method,
                rounds=ROUNDS,
                minimum=len(NAMES) if "secure" in privacy else 2,
                privacy=privacy,
            )
        )
        make_federation(self.directory, NAMES, job=job)
        self.files = {}
        for number, name in enumerate(NAMES):
            kit = self.kit(name)
            shutil.copy(self.directory / JOB, kit / JOB)
            (kit / "policy.toml").write_text(_POLICY)
            (kit / "policy.toml").chmod(0o600)
            self.files[name] = self.directory / f"patients-zqfile{name}.csv"
            table(number).write_csv(self.files[name])
        frame = pl.read_csv(self.files[TARGET])
        cells = frame.select("first", "second", "value").to_numpy().ravel()
        texts = [f"{cell}".encode() for cell in cells]
        texts += [f"{abs(cell):.6g}".encode() for cell in cells]
        texts += [
            word.encode()
            for name in ("ward", "note")
            for word in frame[name].unique()
            if word.startswith("zq")
        ]
        names = (b"zqfile", b"zqextra", b"zqnote", str(self.directory).encode())
        self.secrets = Secrets((*names, *texts), cells)

    def kit(self, name: str) -> Path:
        """Directory of a client's kit."""
        return self.directory / "kits" / name

    def record(self, snapshot: Path) -> list[tuple[bytes, bytes]]:
        """Run the job with honest sides.

        Args:
            snapshot: where to copy the kit of the client that is attacked, as it is
                before its first message.

        Returns:
            The messages to that client with its answers, in their order.
        """
        kits = {name: read_kit(self.kit(name)) for name in NAMES}
        responders, recorded = {}, []
        for name, kit in kits.items():
            store = ClientStore(kit.state, kit.job.identity)
            responders[name] = responder_of(kit, store, self.files[name])
        shutil.copytree(self.kit(TARGET), snapshot)
        of_target = responders[TARGET]

        def remember(body: bytes) -> bytes:
            answer = of_target(body)
            recorded.append((body, answer))
            return answer

        transport = LoopbackTransport(responders | {TARGET: remember})
        lines: list[str] = []
        job = kits[TARGET].job
        train(job, transport, self.directory / "run", lines)
        assert not lines, lines
        return recorded


class _Clock:
    """In place of the module `time`: whoever waits for an answer need not wait long."""

    def __init__(self, step: float) -> None:
        self._passed, self._step = 0.0, step

    def time(self) -> float:
        return time.time() + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += self._step

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def quick_waits(step: float):
    """Let each pause of a coordinator between two polls take no time, and seem to take
    `step` seconds.
    """
    clock = _Clock(step)
    with ExitStack() as stack:
        for module in ("wire.transport", "service", "server.executor"):
            stack.enter_context(patch(f"fedtailor.remote.{module}.time", clock))
        yield


def train(job, transport, directory: Path, lines: list[str], **options):
    """Do what `federation serve` does with clients that are there."""
    connection = Connection(job, NAMES, transport)
    with Lines(lines.append).of(COORDINATOR_LOG):
        rows = wait_for_clients(connection, wait=600)
        if job.boosting is None:
            describe_clients(job, transport, rows, 600)
        statistics = agree_on_preprocessing(job, transport, rows, 600)
        if job.boosting is not None:
            trees = directory.with_name("boosted")
            boost_clients(job, transport, rows, trees, statistics=statistics)
            return None
        run = coordinate(
            job,
            transport,
            rows,
            directory,
            statistics=statistics,
            **options,
        )
        return run.training


def table(number: int, spread: float = 20) -> pl.DataFrame:
    """A client's table; every number in it is there once."""
    rng = np.random.default_rng(number)
    first, second = np.round(rng.normal(50, spread, (2, ROWS)), 9)
    ward = rng.choice(["surgery", "medicine"], ROWS)
    label = np.where(first + 10 * (ward == "surgery") > 55, "yes", "no")
    return pl.DataFrame(
        {
            "first": first,
            "second": second,
            "ward": ward,
            "day": [f"2024-{1 + i % 12:02}-{1 + (i * 5) % 28:02}" for i in range(ROWS)],
            "label": label,
            "grade": np.array(["low", "middle", "high"])[np.arange(ROWS) % 3],
            "value": np.round(first * 2 + rng.normal(size=ROWS), 9),
            "zqextra": np.round(rng.normal(size=ROWS), 9),
            "note": [f"zqnote{number}x{row}" for row in range(ROWS)],
        }
    )
