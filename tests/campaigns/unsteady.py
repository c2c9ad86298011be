"""Clients that are stopped, killed, or copied in the middle of a federation's rounds."""

import gc
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np

from campaigns.client_process import ClientHere, ClientProcess, Ended
from campaigns.faults import Killed
from campaigns.file_events import Steps, watching
from campaigns.marked import NAMES, TRAINED, MarkedFederation, quick_waits, train
from fedtailor.engine.storage import check, load_models
from fedtailor.engine.storage.run_directory import METRICS
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.keys.kit import read_kit
from fedtailor.remote.server.rounds import RemoteTraining
from fedtailor.remote.wire.fingerprints import ORIGIN, Origin, Origins
from fedtailor.remote.wire.messages import decode_request
from fedtailor.remote.wire.transport import LoopbackTransport

Make = Callable[[Path, Path, Path], ClientHere | ClientProcess]
Result = tuple[dict[str, np.ndarray], bytes]

MOST_EVENTS = 12
"""Events of one training at most: a secure sum needs all its clients for a while."""

MOST_POLLS = 5
"""Polls of the coordinator for which a client is away at most."""

MOST_CHANGES = 12
"""Changes of files of which one may be the last."""

WAYS = ("stopped", "before it works", "at a file", "unheard", "at its start")
"""What may happen to a client at a message."""

TOLD_HERE = "this kit was used on another machine or in another directory before"
TOLD_LATER = "has answered in this client's name"
TOLD_COORDINATOR = "it answers from another machine or directory than before"


class _Machine:
    """A machine with a kit; the client there may be stopped, killed and started.

    Args:
        kit: directory of the kit.
        data: the client's file.
        make: starts the client.
    """

    def __init__(self, kit: Path, data: Path, make: Make = ClientHere) -> None:
        self.kit, self._data, self._make = kit, data, make
        self._lines = ""
        self.connections = self.polls_away = 0
        self.client: ClientHere | ClientProcess | None = None
        self.start()

    def start(self) -> None:
        """Start the client."""
        log = self.kit.with_name(f"log-{self.kit.name}-{self.connections}")
        self.client = self._make(self.kit, self._data, log)
        self.connections += 1

    def ask(self, body: bytes) -> bytes:
        """Have the client answer a message."""
        assert self.client is not None
        return self.client.ask(body)

    def kill(self, polls: int = 0) -> None:
        """End the client, and start it again after some polls."""
        self.stop()
        self.polls_away = polls

    def stop(self) -> None:
        """End the client."""
        if self.client is not None:
            self._lines += self.client.said() + "\n"
            self.client.stop()
        self.client = None
        gc.collect()  # the locks of a process go with it

    def said(self) -> str:
        """What its clients have logged."""
        return self._lines + ("" if self.client is None else self.client.said())


class _Network(LoopbackTransport):
    """Messages to machines, to whose clients something may happen at each of them.

    Args:
        machines: the clients' machines, by client; may be changed.
        happen: called with a client and a message to it; returns the answer, or None if
            it is lost.
    """

    def __init__(
        self,
        machines: dict[str, _Machine],
        happen: Callable[["_Network", str, bytes], bytes | None],
    ) -> None:
        super().__init__({name: machine.ask for name, machine in machines.items()})
        self.machines, self._happen = machines, happen
        self.sent, self._held = 0, dict[str, list]()

    def online(self) -> Mapping[str, str]:
        """The clients that run, each with a mark of its connection."""
        return {
            name: f"{machine.kit} {machine.connections}"
            for name, machine in self.machines.items()
            if machine.client is not None
        }

    def send(self, client: str, body: bytes) -> None:
        """Send a message, to which something may happen."""
        self.sent += 1
        if client in self._held:
            self._held[client][1].append(body)  # after what it has not read yet
            return
        answer = self._happen(self, client, body)
        if answer is not None:
            self._inbox.append((client, answer))

    def hold(self, client: str, body: bytes, polls: int) -> None:
        """Stop a client for some polls; then it reads what it was sent meanwhile."""
        self._held[client] = [polls, [body]]

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """The answers; whoever was away for long enough is back."""
        for client, held in list(self._held.items()):
            held[0] -= 1
            if held[0] < 0:
                del self._held[client]
                for body in held[1]:
                    self._inbox.append((client, self.machines[client].ask(body)))
        for machine in self.machines.values():
            if machine.client is None:
                machine.polls_away -= 1
                if machine.polls_away < 0:
                    machine.start()
        return super().receive()

    def stop(self) -> None:
        for machine in self.machines.values():
            machine.stop()


class _Origins(Origins):
    """Notes whose place has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def hear(self, client: str, text: str) -> None:
        before, now = Origin.of(self.of(client)), Origin.of(text)
        if before is not None and now is not None and before.place != now.place:
            self.changes.append(client)
        super().hear(client, text)


def _send(pid: int, signals: list[int], pauses: tuple[float, ...]) -> None:
    """Send signals to a process, each after a pause."""
    for number, pause in zip(signals, pauses, strict=False):
        time.sleep(pause)
        os.kill(pid, number)


def _job_files(machine: _Machine) -> Path:
    """The part of a client's directory that is for its job."""
    kit = read_kit(machine.kit)
    return ClientStore(kit.state, kit.job.identity).directory


def _place(machine: _Machine) -> str:
    """Where a machine's answers come from."""
    origin = Origin.of((_job_files(machine) / ORIGIN).read_text("ascii"))
    assert origin is not None
    return origin.place


def _undisturbed(network: _Network, client: str, body: bytes) -> bytes:
    return network.machines[client].ask(body)


class Unsteady:
    """Tries of whole trainings with honest sides, whose clients do not stay.

    Args:
        folder: for their files.
        jobs: kinds of jobs.
    """

    def __init__(self, folder: Path, jobs: tuple[str, ...] = TRAINED) -> None:
        self._folder, self._jobs = folder, jobs
        self._federations: dict[str, MarkedFederation] = {}
        self._expected: dict[str, Result] = {}
        self._messages: dict[str, int] = {}
        self.happened: list[str] = []
        folder.mkdir(exist_ok=True)

    def stopped(self, rng: np.random.Generator) -> None:
        """Clients are stopped and continued, or killed and started again, at random
        messages: the training ends as if nobody had been.
        """
        kind, share = self._kind(rng), float(rng.choice([0.02, 0.1, 0.3]))

        def happen(network: _Network, client: str, body: bytes) -> bytes | None:
            machine = network.machines[client]
            if rng.random() >= share or len(self.happened) >= MOST_EVENTS:
                return machine.ask(body)
            polls = int(rng.integers(MOST_POLLS))
            what = str(rng.choice(WAYS))
            self.happened.append(f"{client}, message {network.sent}: {what}")
            if what == "stopped":
                # Its connection may be lost meanwhile, so that it is sent all again.
                machine.connections += int(rng.integers(2))
                network.hold(client, body, polls)
                return None
            if what == "at a file":
                dies = Steps(Killed, first=int(rng.integers(1, MOST_CHANGES)))
                try:
                    with watching(machine.kit, dies):
                        return machine.ask(body)
                except Ended as error:
                    if not isinstance(error.__cause__, Killed):
                        raise
            elif what == "unheard":
                machine.ask(body)
            machine.kill(polls)
            if what == "at its start":
                dies = Steps(Killed, first=int(rng.integers(1, MOST_CHANGES)))
                with watching(machine.kit, dies), suppress(Killed):
                    machine.start()
            return None

        self._disturb(kind, happen)

    def stopped_process(self, rng: np.random.Generator) -> None:
        """The same of one real process: two signals at random times."""
        kind = str(rng.choice([kind for kind in self._jobs if kind != "sums"]))
        self._federation(kind)
        messages = self._messages[kind] // len(NAMES)
        moments = {
            int(moment): what
            for moment, what in zip(
                rng.integers(messages, size=2), ("stopped", "killed"), strict=True
            )
        }
        asked = 0

        def happen(network: _Network, client: str, body: bytes) -> bytes | None:
            nonlocal asked
            machine = network.machines[client]
            process = machine.client
            if not isinstance(process, ClientProcess):
                return machine.ask(body)
            asked, what = asked + 1, moments.get(asked)
            if what is None:
                return machine.ask(body)
            self.happened.append(f"{client}, its message {asked}: {what}")
            stops = [signal.SIGKILL]
            if what == "stopped":
                stops = [signal.SIGSTOP, signal.SIGCONT]
            pauses = (float(rng.uniform(0.0, 0.05)), float(rng.uniform(0.05, 0.5)))
            sender = threading.Thread(target=_send, args=(process.pid, stops, pauses))
            sender.start()
            answer = None
            try:
                answer = machine.ask(body)
            except Ended:
                if what == "stopped":
                    raise
            finally:
                sender.join()
            if what == "killed":
                machine.kill()
            return answer

        self._disturb(kind, happen, ClientProcess)

    def cloned(self, rng: np.random.Generator) -> None:
        """A kit is copied with its state in the middle of the training, and answers
        after the original or beside it: both sides are told. After it, the training
        ends as if it had not been; beside it, the others lose nothing.
        """
        kind, beside = self._kind(rng), bool(rng.integers(2))
        federation = self._federation(kind)
        victim = str(rng.choice(NAMES))
        moment = int(rng.integers(self._messages[kind] * 3 // 4))
        original: _Machine | None = None
        copy: _Machine | None = None
        heard_of_copy = False  # the original, from the coordinator
        was_heard = False  # the original, by the coordinator

        def happen(network: _Network, client: str, body: bytes) -> bytes | None:
            nonlocal original, copy, heard_of_copy, was_heard
            machine = network.machines[client]
            if client != victim:
                return machine.ask(body)
            if copy is None or original is None:
                if network.sent <= moment:
                    was_heard = True
                    return machine.ask(body)
                kit = machine.kit.with_name(f"copy-of-{client}")
                shutil.copytree(machine.kit, kit)
                original, copy = machine, _Machine(kit, federation.files[client])
                self.happened.append(f"{client}, message {network.sent}: copied")
                network.machines[client] = copy
                return None  # on another connection, it is sent again
            if beside and rng.random() < 0.3:
                # They take the connection from each other.
                other = original if machine is copy else copy
                other.connections += 1
                network.machines[client] = other
                if rng.random() < 0.5:
                    return None  # else the message was on its way
            if machine is original:
                place = Origin.of(decode_request(body).origin)
                heard_of_copy |= place is not None and place.place == _place(copy)
            return machine.ask(body)

        lines, network = self._train(kind, happen)
        where = f"{kind}, {'beside' if beside else 'after'}: {self.happened}"
        assert original is not None and copy is not None, f"{where}: nothing was copied"
        try:
            kits = {name: [machine] for name, machine in network.machines.items()}
            result = self._result(federation, kits | {victim: [copy, original]})
        finally:
            for machine in (original, copy):
                machine.stop()
            network.stop()
        assert TOLD_HERE in copy.said(), f"{where}; the copy is not told"
        told = [line for line in lines if TOLD_COORDINATOR in line]
        changes = network.origins.changes
        assert len(told) == len(changes) and {victim} >= set(changes), (
            f"{where}; the coordinator is told {told} of {changes}"
        )
        if heard_of_copy:
            assert TOLD_LATER in original.said(), f"{where}; the original is not told"
        for name in NAMES:
            assert name == victim or f"client {name}:" not in "".join(lines), (
                f"{where}; {name} is blamed: {lines}"
            )
        if not beside:
            # A copy of a kit that has not answered yet is like the kit itself.
            assert told or not was_heard, f"{where}; the coordinator is not told"
            self._compare(kind, result, where)
        refused = [line for line in lines if "it refused" in line]
        assert victim in result[0] or refused, f"{where}; its model is lost"
        assert all(np.isfinite(model).all() for model in result[0].values()), where

    def _kind(self, rng: np.random.Generator) -> str:
        return self._jobs[int(rng.integers(len(self._jobs)))]

    def _disturb(self, kind: str, happen: Callable, make: Make = ClientHere) -> None:
        """Train while something happens, and compare."""
        federation = self._federation(kind)
        _, network = self._train(kind, happen, make)
        try:
            kits = {name: [machine] for name, machine in network.machines.items()}
            result = self._result(federation, kits)
        finally:
            network.stop()
        self._compare(kind, result, f"{kind}: {self.happened}")

    def _train(
        self, kind: str, happen: Callable, make: Make = ClientHere
    ) -> tuple[list[str], _Network]:
        """Train; what the coordinator says, and the machines, whose clients still run.

        The first client is one that `make` starts, the others are in this process.
        """
        federation, folder = self._federations[kind], self._folder / "try"
        shutil.rmtree(folder, ignore_errors=True)
        self.happened = []
        machines: dict[str, _Machine] = {}
        lines: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(quick_waits(0.1))
            stack.enter_context(patch.object(RemoteTraining, "pause", 0.0))
            # Noise is another one in each run and at each client, unless it is told.
            stack.enter_context(
                patch(
                    "fedtailor.remote.server.coordinate.run_identity",
                    lambda folder: "1",
                )
            )
            for name in NAMES:
                kit = shutil.copytree(federation.kit(name), folder / name)
                machines[name] = _Machine(
                    kit,
                    federation.files[name],
                    make if name == NAMES[0] else ClientHere,
                )
            network = _Network(machines, happen)
            network.origins = _Origins()
            try:
                job = read_kit(machines[NAMES[0]].kit).job
                train(job, network, folder / "run", lines, patience=20.0)
            except BaseException as error:
                network.stop()
                if isinstance(error, Exception):
                    raise AssertionError(
                        f"{kind}: {self.happened}; {type(error).__name__}: {error};"
                        f" {lines[-4:]}"
                    ) from error
                raise
        return lines, network

    def _result(
        self, federation: MarkedFederation, kits: dict[str, list[_Machine]]
    ) -> Result:
        run = self._folder / "try" / "run"
        damaged = [finding for finding in check(run) if not finding.whole]
        assert not damaged, f"{federation.kind}: {self.happened}; {damaged}"
        models = {}
        for name, places in kits.items():
            exports = [_job_files(machine) / PERSONAL for machine in places]
            there = [export for export in exports if export.exists()]
            if there or len(places) == 1:
                found = load_models((there or exports)[0])
                models[name] = np.asarray(found[name].theta)
        return models, (run / METRICS).read_bytes()

    def _compare(self, kind: str, result: Result, where: str) -> None:
        """Whether a result is the undisturbed one."""
        models, measured = self._expected[kind]
        for name, model in models.items():
            assert np.array_equal(result[0][name], model), f"{where}; {name}'s model"
        assert result[1] == measured, f"{where}; other measurements"

    def _federation(self, kind: str) -> MarkedFederation:
        if kind not in self._federations:
            shutil.rmtree(self._folder / kind, ignore_errors=True)
            federation = MarkedFederation(kind, self._folder / kind)
            for name in NAMES:  # draws the client's keys
                kit = federation.kit(name)
                machine = _Machine(kit, federation.files[name])
                machine.stop()
                (_job_files(machine) / ORIGIN).unlink()  # a copy is the first there
            self._federations[kind] = federation
            lines, network = self._train(kind, _undisturbed)
            self._messages[kind] = network.sent
            kits = {name: [machine] for name, machine in network.machines.items()}
            self._expected[kind] = self._result(federation, kits)
            network.stop()
            assert not lines, lines
        return self._federations[kind]
