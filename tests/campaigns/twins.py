"""Two clients whose tables differ in numbers and in nothing else are asked the same: what
no mask hides of their answers is the same, or it would say something about these numbers.
"""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.choosing import boosting_step
from campaigns.client_process import ClientHere
from campaigns.marked import ROUNDS, TARGET, MarkedFederation, table
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.wire.boosting import SUMMED
from fedtailor.remote.wire.messages import (
    Reply,
    Request,
    decode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.secure_sums import KEYS

QUESTIONS = 20
"""Messages of one try."""

TREES = {"trees": 1, "trees-classes": 3, "trees-numbers": 1}
"""Jobs that boost, and the outputs of their models."""

TRAINED = ("sums", "passes")
"""Jobs that add what clients train."""

INPUTS = 4
"""Two numbers, and two wards."""

_DRAWN = ("masking", "sealing", "shares", "commitment", "masked")
"""Arrays that are drawn, or that masks are on."""


class Twins:
    """Tries against two clients.

    Args:
        folder: for files.

    Attributes:
        answered: steps and tasks that both have answered, and refusals by their codes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, MarkedFederation] = {}
        self.answered = Counter[str]()
        folder.mkdir(exist_ok=True)

    def twin_trees(self, rng: np.random.Generator) -> None:
        """Steps of boosting of two classes, three, or a number; most are the next ones of
        a run, with any thresholds, splits and trees.
        """
        kind = str(rng.choice(list(TREES)))
        pair = _Pair(self._folder, self._federation(kind), rng)
        steps = _Steps(rng, TREES[kind])
        try:
            step, run = 0, "0"
            for _ in range(QUESTIONS):
                kinds, plain, arrays = steps.draw()
                reply = pair.ask(boosting_step(pair.message, step, run, plain, arrays))
                if reply is None:
                    return
                self._count(reply, [*kinds])
                if reply.refusal is None:
                    steps.taken(plain)
                    step += 1
                else:  # a step that is refused may end a run
                    step, run = 0, f"{run}1"
                    steps = _Steps(rng, TREES[kind])
        finally:
            pair.stop()

    def twin_models(self, rng: np.random.Generator) -> None:
        """Models to be trained and kept, small ones and large ones."""
        pair = _Pair(self._folder, self._federation(str(rng.choice(TRAINED))), rng)
        try:
            for _ in range(QUESTIONS):
                size = pair.message.arrays["stream/model"].shape
                model = rng.normal(size=size) * float(rng.choice([0, 1, 1, 10, 1e3]))
                arrays = {"stream/model": model.astype(np.float32)}
                tasks = ["client", "client", "personal", "init_unseen"]
                message = replace(
                    pair.message,
                    round=int(rng.integers(ROUNDS + 1)),
                    task=str(rng.choice(tasks)),
                    run=str(rng.integers(1000)),
                    reply=bool(rng.random() < 0.8),
                    arrays={**pair.message.arrays, **arrays},
                )
                reply = pair.ask(message)
                if reply is None:
                    return
                self._count(reply, [message.task])
        finally:
            pair.stop()

    def _count(self, reply: Reply, names: list[str]) -> None:
        self.answered.update(names if reply.refusal is None else [reply.refusal])

    def _federation(self, kind: str) -> MarkedFederation:
        if kind not in self._made:
            self._made[kind] = MarkedFederation(kind, self._folder / kind)
        return self._made[kind]


class _Pair:
    """Two clients that have answered nothing.

    Attributes:
        message: what all messages to them have, and the initial model.
    """

    def __init__(
        self, folder: Path, federation: MarkedFederation, rng: np.random.Generator
    ) -> None:
        original = table(0)
        others = table(int(rng.integers(1, 1000)), float(rng.choice([1, 20, 300])))
        numbers = others.select("first", "second", "value")
        self._clients = []
        for name, frame in (("one", original), ("other", original)):
            kit = folder / f"kit-{name}"
            shutil.rmtree(kit, ignore_errors=True)
            shutil.copytree(federation.kit(TARGET), kit)
            data = folder / f"{name}.csv"
            if name == "other":
                frame = frame.with_columns(numbers.get_columns())
            frame.write_csv(data)
            self._clients.append(ClientHere(kit, data, folder / "log"))
        job = read_kit(federation.kit(TARGET)).job
        plan = plan_of(job)
        self.message = Request(
            *(job.identity, 0, 0, KEYS, TARGET),
            algorithm=plan.describe(0),
            arrays={
                "stream/model": plan.initial()[None],
                "index/model": np.zeros(1, np.int32),
            },
        )

    def ask(self, request: Request) -> Reply | None:
        """What both say to a request; None if one may end its part in the job.

        That a number became too large is something about the rows, and said once a job.
        """
        one, other = (
            decode_reply(client.ask(encode_request(request)))
            for client in self._clients
        )
        said = {one.refusal, other.refusal}
        if said & {Refusal.DIVERGED, Refusal.SUM_RANGE}:
            return None
        # Nobody thought of what raised it.
        assert Refusal.FAILED not in said, self._clients[0].said()[-1000:]
        assert _open(one) == _open(other), (
            f"{request.task}: {_open(one)} and {_open(other)}"
        )
        return one

    def stop(self) -> None:
        """Let others use the directories."""
        for client in self._clients:
            client.stop()


def _open(reply: Reply) -> dict[str, Any]:
    """What no mask hides of an answer."""
    shown = {name: array.tolist() for name, array in reply.arrays.items()}
    drawn = {name: reply.arrays[name].shape for name in _DRAWN if name in shown}
    return shown | drawn | {"refusal": reply.refusal, "cache": reply.cache_miss}


class _Steps:
    """Draws steps of boosting, and notes where a run is."""

    def __init__(self, rng: np.random.Generator, outputs: int) -> None:
        self._rng, self._outputs = rng, outputs
        self._done = Counter[str]()
        self._leaves: list[int] = []
        self._last = 0

    def taken(self, plain: list[dict[str, Any]]) -> None:
        """Both clients have taken these steps."""
        for step in plain:
            self._done[step["kind"]] += 1
            if step["kind"] == "gradients":
                self._leaves, self._last = [0], 0
            if step["kind"] == "tree":
                self._leaves = []
            if step["kind"] == "split":
                for node, _, _, left, _ in step["moves"]:
                    if node in self._leaves:
                        self._leaves.remove(node)
                    self._leaves += [left, left + 1]
                    self._last = left + 1

    def draw(self) -> tuple[list[str], list[dict[str, Any]], dict[str, np.ndarray]]:
        """Kinds, steps and arrays of the next message."""
        rng, done = self._rng, self._done
        if not done:
            kinds = ["start"]
        elif "bins" not in done:
            begin = ["bins", "baseline", "loss", "gradients"]
            kinds = [["counts"], begin][int(rng.integers(2))]
        elif self._leaves and rng.random() < 0.5:
            kinds = ["split"]
        else:
            is_whole = (done["tree"] + 1) % self._outputs == 0
            kinds = ["tree", "loss", "gradients"] if is_whole else ["tree", "gradients"]
        if rng.random() < 0.15:
            every = [*SUMMED, "bins", "baseline", "tree", "finish"]
            kinds = [str(it) for it in rng.choice(every, int(rng.integers(1, 4)))]
        plain, arrays = [], {}
        grown = done["tree"]
        for place, kind in enumerate(kinds):
            step: dict[str, Any] = {"kind": kind}
            own: dict[str, Any] = {}
            if kind in ("gradients", "tree"):
                step["output"] = grown % self._outputs
                grown += kind == "tree"
            if kind == "split":
                leaves = rng.permutation(self._leaves or [0])
                several = leaves[: int(rng.integers(1, 4))].tolist()
                step["moves"] = [
                    [
                        node,
                        int(rng.integers(INPUTS)),
                        int(rng.integers(7)),
                        self._last + 1 + 2 * number,
                        bool(rng.random() < 0.5),
                    ]
                    for number, node in enumerate(several)
                ]
            if kind == "counts":
                own = {"candidates": np.sort(rng.normal(size=(INPUTS, 49)) * 60)}
            if kind == "bins":
                widths = rng.integers(0, 8, INPUTS)
                ends = [np.unique(rng.normal(50, 40, width)) for width in widths]
                own = {"ends": np.concatenate(ends), "bins": widths}
            if kind == "baseline":
                size = float(rng.choice([0, 1, 50, 1e4]))
                own = {"baseline": rng.normal(size=self._outputs) * size}
            if kind == "tree":
                own = self._tree()
            plain.append(step)
            arrays |= {f"{place}/{name}": array for name, array in own.items()}
        return kinds, plain, arrays

    def _tree(self) -> dict[str, np.ndarray]:
        """A stump, or a leaf alone."""
        rng = self._rng
        size = float(rng.choice([0.1, 10, 1e3]))
        if rng.random() < 0.3:
            nodes = [(-1, 0, 0, 0)]
        else:
            inner = (int(rng.integers(INPUTS)), int(rng.integers(7)), 1, 2)
            nodes = [inner, (-1, 0, 0, 0), (-1, 0, 0, 0)]
        columns = np.array(nodes).T
        names = ("input", "bin", "left", "right")
        values = rng.normal(size=len(nodes)) * size
        return {
            **dict(zip(names, columns, strict=True)),
            "threshold": np.zeros(len(nodes)),
            "value": values,
        }
