"""A coordinator that asks whatever it likes; the client is a real process."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from campaigns.client_process import NO_ANSWER, ClientHere, ClientProcess
from campaigns.grammar import Grammar, Message
from campaigns.marked import JOBS, ROUNDS, TARGET, MarkedFederation
from fedtailor._base.memory import total_memory
from fedtailor.remote.wire.fingerprints import DIGITS
from fedtailor.remote.wire.messages import decode_reply, decode_request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.request_kind import TABLE_TASKS, TASKS
from fedtailor.remote.wire.request_size import MAX_SHARE
from fedtailor.remote.wire.secure_sums import STAGES

Client = ClientHere | ClientProcess

MORE_MEMORY = int(3 * MAX_SHARE * total_memory())
"""Bytes that hostile messages may cost a client at most."""

MESSAGES = 12
"""Hostile messages of one try."""


class _Target:
    """A client of one job, and the conversation that an honest coordinator has with it.

    The conversation is had once with honest sides. A client that begins where it began
    answers each of its messages with the same bits.
    """

    def __init__(
        self, kind: str, folder: Path, make: Callable[[Path, Path, Path], Client]
    ) -> None:
        self.kind, self._folder, self._make = kind, folder, make
        shutil.rmtree(folder, ignore_errors=True)  # of a try that could not begin
        folder.mkdir()
        self.federation = MarkedFederation(kind, folder / kind)
        self._snapshot, self._kit = folder / "snapshot", self.federation.kit(TARGET)
        recorded = self.federation.record(self._snapshot)
        self.talk = [(_without_deadline(body), answer) for body, answer in recorded]
        # Keys of sums are drawn in each process, so that what follows them differs.
        tasks = [decode_request(body).task for body, _ in self.talk]
        self.end = next(
            (i for i, task in enumerate(tasks) if task in STAGES), len(tasks)
        )
        self._starts = 0
        self.process: Client | None = None
        self.place = 0

    def start(self, place: int) -> Client:
        """A client that has answered the first messages, and nothing else."""
        self.stop()
        shutil.rmtree(self._kit, ignore_errors=True)
        shutil.copytree(self._snapshot, self._kit)
        self._starts += 1
        log = self._folder / f"log-{self._starts}"
        data = self.federation.files[TARGET]
        self.process, self.place = self._make(self._kit, data, log), 0
        while self.place < place:
            self.go_on()
        self.memory = self.process.peak_memory()
        return self.process

    def go_on(self) -> None:
        """The next honest message, whose answer must be the one it was."""
        assert self.process is not None
        body, expected = self.talk[self.place]
        answer = self.process.ask(body)
        assert _same(answer, expected), (
            f"{self.kind}: honest message {self.place} ({decode_request(body).task})"
            f" is answered by {_shown(answer)} instead of {_shown(expected)}"
        )
        self.place += 1

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
        self.process = None

    def another(self) -> None:
        """Start a second client with the same kit."""
        log = self._folder / "log-of-another"
        self._make(self._kit, self.federation.files[TARGET], log).stop()

    def restart_with_other_rows(self) -> None:
        """Start the client again, with the rows of another one."""
        assert self.process is not None
        self.process.stop()
        log = self._folder / "log-of-other-rows"
        self.process = self._make(self._kit, self.federation.files["b"], log)

    @property
    def states(self) -> set[str]:
        """Files of states in the client's directory."""
        return {path.name for path in self._kit.rglob("round-*.safetensors")}


class HostileCoordinator:
    """Tries against clients of several jobs.

    Args:
        folder: for their files.
        jobs: kinds of jobs.
        make: `ClientHere` for speed, `ClientProcess` for a process that may die.
    """

    def __init__(
        self,
        folder: Path,
        jobs: tuple[str, ...] = JOBS,
        make: Callable[[Path, Path, Path], Client] = ClientHere,
    ) -> None:
        self._folder, self._jobs, self._make = folder, jobs, make
        self._targets: dict[str, _Target] = {}
        self.counts = {"answered": 0, "refused": 0}
        folder.mkdir(exist_ok=True)

    def hostile_coordinator(self, rng: np.random.Generator) -> None:
        """Some hostile messages between two honest ones."""
        target = self._target(self._jobs[int(rng.integers(len(self._jobs)))])
        grammar = self._grammar(rng, target)
        process = target.process
        if process is None or target.place >= target.end - 1:
            process = target.start(int(rng.integers(target.end)))
        changed = False
        sent: list[Message] = []
        try:
            for _ in range(MESSAGES):
                # Half of them begin with what an honest coordinator would ask now.
                now = target.talk[target.place][0] if rng.random() < 0.5 else None
                message = grammar.message(now)
                sent.append(message)
                changed |= self._ask(target, process, message)
            if not changed:
                target.go_on()
        except AssertionError as error:
            target.stop()
            drawn = [message.drawn for message in sent[-4:]]
            raise AssertionError(
                f"{target.kind}: {error}; last drawn {drawn}"
            ) from None
        if changed:
            target.stop()  # it was led on: what it answers next depends on that

    def client_process(self, rng: np.random.Generator) -> None:
        """The same of a real process, and a disk that is full for one message."""
        self.hostile_coordinator(rng)
        self._full_disk(rng)

    def doubled(self, rng: np.random.Generator) -> None:
        """A second client with the same kit: it is refused in one line, and the first
        one goes on.
        """
        target = self._begun(rng)
        try:
            target.another()
        except ValueError as error:
            assert "another process works in" in str(error) and "\n" not in str(error)
        else:
            raise AssertionError(f"{target.kind}: two clients work with one kit")
        target.go_on()

    def other_rows(self, rng: np.random.Generator) -> None:
        """A client that is started again with other rows says so in its log."""
        target = self._begun(rng)
        target.restart_with_other_rows()
        assert target.process is not None
        body, _ = target.talk[target.place]
        answer = target.process.ask(body)
        said = target.process.said()
        told = re.search(
            r"other rows|rows.*(changed|differ)|(changed|differ).*rows", said
        )
        target.stop()
        assert told or decode_reply(answer).refusal, (
            f"{target.kind}: other rows are taken without a word: {said[-600:]}"
        )

    def _begun(self, rng: np.random.Generator) -> _Target:
        """A client that has answered some messages, and is to answer more."""
        target = self._target(self._jobs[int(rng.integers(len(self._jobs)))])
        if target.process is None or target.place >= target.end - 1:
            target.start(int(rng.integers(target.end)))
        return target

    def _full_disk(self, rng: np.random.Generator) -> None:
        """An honest message while no file can grow; then there is room again."""
        target = self._target(self._jobs[int(rng.integers(len(self._jobs)))])
        process = target.process
        if process is None or target.place >= target.end - 1:
            process = target.start(int(rng.integers(target.end)))
        try:
            assert isinstance(process, ClientProcess)
            process.fill_disk(int(rng.choice([0, 0, 1, 100, 1000])))
            body, expected = target.talk[target.place]
            answer = process.ask(body)
            process.fill_disk(None)
            assert _same(answer, expected) or decode_reply(answer).refusal
            assert not target.federation.secrets.in_message(answer, body)
            target.go_on()
        except AssertionError as error:
            target.stop()
            raise AssertionError(f"{target.kind}: {error}") from None

    def stop(self) -> None:
        """End all processes."""
        for target in self._targets.values():
            target.stop()

    def _target(self, kind: str) -> _Target:
        if kind not in self._targets:
            self._targets[kind] = _Target(kind, self._folder / kind, self._make)
        return self._targets[kind]

    def _grammar(self, rng: np.random.Generator, target: _Target) -> Grammar:
        others = {
            decode_request(other.talk[0][0]).experiment
            for other in self._targets.values()
        }
        return Grammar(
            rng,
            [body for body, _ in target.talk],
            (*TABLE_TASKS, *TASKS),
            tuple(others),
        )

    def _ask(self, target: _Target, process: Client, message: Message) -> bool:
        """Send a hostile message.

        Returns:
            Whether it was answered, and so may change what the client answers next.
        """
        try:
            body = message.encode()
        except (ValueError, TypeError, OverflowError):
            return False  # no message could say this
        states = target.states
        answer = process.ask(body)
        grown = process.peak_memory() - target.memory
        assert grown < MORE_MEMORY + 8 * len(body), f"{grown / 1e6:.0f} MB more"
        found = target.federation.secrets.in_message(answer, body)
        assert not found, f"the answer holds {found[:3]}: {answer[:300]!r}"
        if answer == NO_ANSWER:
            return False
        reply = decode_reply(answer)
        if reply.refusal:
            self.counts["refused"] += 1
            # Nobody thought of what raised it; the client's log has its traceback.
            assert reply.refusal != Refusal.FAILED, _last_refusal(process.said())
            missing = states - target.states
            assert not missing, f"a refusal has deleted {missing}"
            # That a model diverges says something about the rows: it is the one answer
            # of this round.
            return reply.refusal is Refusal.DIVERGED
        self.counts["answered"] += 1
        request = decode_request(body)
        if not reply.cache_miss:
            wrong = _may_not_be_answered(request)
            assert not wrong, f"{request.task} was answered: {wrong}"
        honest = any(body == one or answer == expected for one, expected in target.talk)
        return not (honest and body in [one for one, _ in target.talk[: target.place]])


def _may_not_be_answered(request) -> str:
    """Why no client should answer a request; "" if it may."""
    in_rounds = request.task not in TABLE_TASKS
    if in_rounds and request.round > ROUNDS:
        return f"round {request.round} of {ROUNDS}"
    if in_rounds and request.state_round > request.round:
        return f"state {request.state_round} before round {request.round}"
    if in_rounds and request.durable_state_round > request.round:
        return f"durable state {request.durable_state_round} in round {request.round}"
    for name, array in request.arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} holds NaN or infinity"
    return ""


def _without_deadline(body: bytes) -> bytes:
    message = Message.of(body)
    message.envelope["deadline"] = None
    return message.encode()


def _last_refusal(said: str) -> str:
    lines = said.rsplit("refused ", 1)[-1].splitlines()
    frames = [line.strip() for line in lines if "fedtailor/" in line]
    return f"{lines[0]} at {frames[-1:]}"


def _same(answer: bytes, expected: bytes) -> bool:
    """Whether two answers are equal, but for the order of their arrays, and for the
    place from which they come: the client's directory is made anew.
    """
    if NO_ANSWER in (answer, expected):
        return answer == expected
    one, other = Message.of(answer), Message.of(expected)
    for message in (one, other):
        message.envelope["origin"] = message.envelope["origin"][DIGITS:]
    return one.envelope == other.envelope and one.arrays == other.arrays


def _shown(answer: bytes) -> str:
    if answer == NO_ANSWER:
        return "nothing"
    reply = decode_reply(answer)
    arrays = {name: array.shape for name, array in reply.arrays.items()}
    return f"{reply.refusal or arrays or reply.cache_miss}"
