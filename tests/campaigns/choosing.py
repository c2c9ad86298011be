"""A coordinator whose messages are well formed, and that chooses what it asks: questions
of boosting, models to be measured, descriptions, and sums over fewer clients.
"""

import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.client_process import ClientHere
from campaigns.marked import NAMES, ROUNDS, TARGET, MarkedFederation
from fedtailor.remote.client.boosting import MOST_COUNTS
from fedtailor.remote.client.client import responder_of
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import DESCRIBE
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.server.boosting import boost_clients
from fedtailor.remote.wire.boosting import BOOST, SUMMED
from fedtailor.remote.wire.messages import Reply, Request, decode_reply, encode_request
from fedtailor.remote.wire.request_kind import CLIENTS
from fedtailor.remote.wire.secure_sums import KEYS, SUM
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients

MORE_MEMORY = 2**26
"""Bytes that a message to a client with forty rows may cost."""

SLOWER = 500
"""How many times as long as an honest first step a message may take."""

QUESTIONS = 15
"""Messages of one try."""


class Choosing:
    """Tries against a client of a marked federation.

    Args:
        folder: for files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, MarkedFederation] = {}
        self.answered = Counter[str]()
        folder.mkdir(exist_ok=True)

    def chosen_trees(self, rng: np.random.Generator) -> None:
        """Questions of boosting, some of them as an honest coordinator asks them: none
        is answered twice, or costs more than the job's trees do.
        """
        client, request = self._client("trees")
        try:
            run = f"{int(rng.integers(2**62)):016x}"
            asked = Counter[str]()
            step, slowest = 0, 0.0
            for _ in range(QUESTIONS):
                plain, arrays, kinds = self._steps(rng, request.inputs, asked)
                message = boosting_step(request.message, step, run, plain, arrays)
                before, began = client.peak_memory(), time.process_time()
                reply, size = _ask(client, message)
                took = time.process_time() - began
                more = client.peak_memory() - before
                assert more < MORE_MEMORY + 16 * size, f"{more / 1e6:.0f} MB more"
                if reply.refusal is not None:
                    continue
                slowest = slowest or max(took, 1e-3)
                assert took < SLOWER * slowest, f"{kinds[:5]} took {took:.1f} s"
                assert sum(kind in SUMMED for kind in kinds) <= 2, kinds
                step += 1
                asked.update(kinds)
                self.answered.update(kinds)
                for kind, most in {
                    "start": 1,
                    "counts": MOST_COUNTS,
                    "bins": 1,
                }.items():
                    assert asked[kind] <= most, (
                        f"{kind} was answered {asked[kind]} times"
                    )
                assert asked["loss"] <= asked["tree"] + 1, asked
                assert asked["gradients"] <= asked["tree"] + 1, asked
        finally:
            client.stop()

    def chosen_models(self, rng: np.random.Generator) -> None:
        """Models to be measured: one for each round of a run, whatever else it says."""
        client, request = self._client("fedavg")
        try:
            run = f"{int(rng.integers(2**62)):016x}"
            said: dict[int, set[bytes]] = {}
            for _ in range(QUESTIONS):
                round = int(rng.integers(ROUNDS + 2))
                model = rng.normal(size=request.model.shape).astype(np.float32)
                model *= float(rng.choice([0.0, 1.0, 100.0]))
                settings = dict(request.message.algorithm)
                if rng.random() < 0.3:
                    key = str(rng.choice(["newcomer", "mode", "boost", "sum", "x"]))
                    settings[key] = [True, None, "", {}][int(rng.integers(4))]
                if rng.random() < 0.2:
                    settings["phase"] = [True, 0.0, 1][int(rng.integers(3))]
                message = replace(
                    request.message,
                    round=round,
                    task="evaluate",
                    run=run,
                    algorithm=settings,
                    arrays={
                        "stream/model": model[None],
                        "index/model": np.zeros(1, np.int32),
                    },
                )
                reply, _ = _ask(client, message)
                if reply.refusal is None and not reply.cache_miss:
                    arrays = sorted(reply.arrays.items())  # in no order on the way
                    answer = b"".join(array.tobytes() for _, array in arrays)
                    said.setdefault(round, set()).add(answer)
                    self.answered["evaluate"] += 1
            assert all(len(answers) == 1 for answers in said.values()), list(said)
            assert max(said, default=0) <= ROUNDS, list(said)
        finally:
            client.stop()

    def chosen_descriptions(self, rng: np.random.Generator) -> None:
        """Descriptions, with noise or without: what was answered stays the answer."""
        client, request = self._client("categories")
        try:
            said: dict[str, set[bytes]] = {}
            for _ in range(QUESTIONS):
                step = str(rng.choice(["columns", "counts", "noisy"]))
                question: dict[str, Any] = {"step": step}
                if rng.random() < 0.6:
                    question |= {"epsilon": float(rng.choice([0.5, 1, 5]))}
                    question |= {"delta": float(rng.choice([1e-5, 1e-3]))}
                if rng.random() < 0.3:
                    question["ranges"] = {"first": [0.0, float(rng.uniform(1, 99))]}
                if rng.random() < 0.1:
                    question["epsilon"] = None
                message = replace(
                    request.message, round=0, task=DESCRIBE, run="", algorithm=question
                )
                reply, _ = _ask(client, message)
                if reply.refusal is None:
                    answer = b"".join(it.tobytes() for it in reply.arrays.values())
                    said.setdefault(step, set()).add(answer)
                    self.answered[step] += 1
            assert all(len(answers) == 1 for answers in said.values()), said
            assert len(said) <= 1 or "noisy" not in said, list(said)
        finally:
            client.stop()

    def without_one(self, rng: np.random.Generator) -> None:
        """Trees of all clients, and then of all but one: the difference of two sums would
        be that one's.
        """
        kind = str(rng.choice(["trees", "trees-round"]))
        federation = self._federation(kind)
        folder = self._folder / f"{kind}-{int(rng.integers(2**62))}"
        responders, rows = {}, {}
        for name in NAMES:
            shutil.copytree(federation.kit(name), folder / name)
            kit = read_kit(folder / name)
            store = ClientStore(kit.state, kit.job.identity)
            responder = responder_of(kit, store, federation.files[name])
            responders[name], rows[name] = responder, np.array([26, 4, 10])
        job = read_kit(folder / TARGET).job
        transport = LoopbackTransport(responders)
        boost_clients(job, transport, rows, folder / "one")
        left_out = NAMES[int(rng.integers(len(NAMES)))]
        fewer = {name: counts for name, counts in rows.items() if name != left_out}
        try:
            boost_clients(job, transport, fewer, folder / "other", patience=0.0)
        except TooFewClients:
            self.answered["without_one"] += 1
        else:
            raise AssertionError(f"{kind}: the same was answered without {left_out}")
        finally:
            shutil.rmtree(folder)

    def stop(self) -> None:
        """Nothing is kept."""

    def _federation(self, kind: str) -> MarkedFederation:
        if kind not in self._made:
            self._made[kind] = MarkedFederation(kind, self._folder / kind)
        return self._made[kind]

    def _client(self, kind: str) -> tuple[ClientHere, "_Honest"]:
        """A client that has answered nothing, and the beginning of a message to it."""
        federation = self._federation(kind)
        kit = self._folder / "kit"
        shutil.rmtree(kit, ignore_errors=True)
        shutil.copytree(federation.kit(TARGET), kit)
        job = read_kit(kit).job
        client = ClientHere(kit, federation.files[TARGET], self._folder / "log")
        return client, _Honest(job)

    def _steps(
        self, rng: np.random.Generator, inputs: int, asked: Counter[str]
    ) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]:
        """The steps of a message: the ones that an honest run goes on with, or any."""
        honest = ["start"] if not asked else ["counts"]
        if asked["counts"] > 1:
            honest = ["bins", "baseline", "loss", "gradients"]
        if asked["gradients"]:
            honest = ["tree", "loss", "gradients"]
        kinds = honest
        if rng.random() < 0.5:
            every = ["start", "counts", "bins", "baseline", "gradients"]
            every += ["split", "tree", "loss", "finish"]
            count = int(rng.choice([1, 1, 2, 3, 30, 3000]))
            kinds = [str(kind) for kind in rng.choice(every, count)]
        plain: list[dict[str, Any]] = []
        arrays: dict[str, np.ndarray] = {}
        for place, kind in enumerate(kinds):
            step: dict[str, Any] = {"kind": kind}
            own: dict[str, Any] = {}
            if kind == "split":
                count = int(rng.choice([1, 2, 30]))
                moves = rng.integers(0, [3, inputs, 2, 9], (count, 4)).tolist()
                if rng.random() < 0.5:  # the root, as an honest run asks
                    moves = [[0, int(rng.integers(inputs)), 1, 1]]
                step["moves"] = [[*move, True] for move in moves]
            if kind == "counts":
                width = int(rng.choice([1, 49, 50, 2000]))
                own = {"candidates": np.sort(rng.normal(size=(inputs, width)))}
            if kind == "bins":
                width = int(rng.choice([1, 7, 8, 255]))
                ends = np.tile(np.arange(width, dtype=float), inputs)
                own = {"ends": ends, "bins": np.full(inputs, width)}
            if kind == "baseline":
                own = {"baseline": np.zeros(1)}
            if kind == "tree":
                own = _leaf()
            plain.append(step)
            arrays |= {f"{place}/{name}": array for name, array in own.items()}
        return plain, arrays, kinds


class _Honest:
    """What all messages to a client of a job have."""

    def __init__(self, job: Any) -> None:
        is_pooled = job.schema.federated
        described = {} if is_pooled else plan_of(job).describe(0)
        self.model = np.zeros(0) if is_pooled else plan_of(job).initial()
        self.inputs = 4  # two numbers, and two wards
        self.message = Request(job.identity, 0, 0, KEYS, TARGET, algorithm=described)


def boosting_step(
    message: Request,
    step: int,
    run: str,
    plain: list[dict[str, Any]],
    arrays: dict[str, np.ndarray],
) -> Request:
    """The first message of a step of boosting.

    Args:
        message: what all messages of the job have.
        step: its number in its run.
        run: identity of the run.
        plain: what it asks, one after another.
        arrays: of the message.
    """
    algorithm = {
        **message.algorithm,
        BOOST: {"steps": plain, CLIENTS: len(NAMES)},
        SUM: {"name": f"s{step}", "kind": BOOST},
    }
    return replace(
        message, round=step, task=KEYS, run=run, algorithm=algorithm, arrays=arrays
    )


def _leaf() -> dict[str, np.ndarray]:
    """A tree of one leaf."""
    whole = {"input": -1, "bin": 0, "left": 0, "right": 0}
    arrays = {name: np.array([value]) for name, value in whole.items()}
    return arrays | {"threshold": np.zeros(1), "value": np.zeros(1)}


def _ask(client: ClientHere, request: Request) -> tuple[Reply, int]:
    """The answer to a request, and the bytes of the request."""
    body = encode_request(request)
    return decode_reply(client.ask(body)), len(body)
