"""Kills at a message: whoever dies loses its memory, and keeps what is on its disk."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from fedtailor.engine.storage.run_directory import MANIFEST, METRICS
from fedtailor.remote.wire.transport import LoopbackTransport
from remote.jobs import NAMES, Clients

ROUNDS = 4
KINDS = ("coordinator", "client, before it works", "client, before it answers", "both")


class Killed(BaseException):
    """The coordinator's process is gone; nothing that handles errors sees it."""


class Mortal(LoopbackTransport):
    """Messages at one of which somebody is killed.

    Args:
        clients: of the job.
        moment: the number of the message (counted from 0), of all that are sent.
        kind: who dies.
    """

    def __init__(self, clients, moment, kind):
        super().__init__({name: clients.client(name) for name in NAMES})
        self.of_job, self.moment, self.kind = clients, moment, kind
        self.sent, self.starts, self.killed = 0, Counter(), False

    def online(self):
        """A client that was started again has another mark."""
        return {name: str(self.starts[name]) for name in NAMES}

    def send(self, client, body):
        number, self.sent = self.sent, self.sent + 1
        if number != self.moment:
            return super().send(client, body)
        self.killed = True
        if self.kind == "coordinator":
            raise Killed
        if self.kind != "client, before it works":
            self._clients[client](body)  # its state is on its disk; its answer is lost
        self._clients[client] = self.of_job.client(client)
        self.starts[client] += 1
        if self.kind == "both":
            raise Killed
        return None

    def restart(self):
        """The coordinator's process starts again; it knows of no answers."""
        self._inbox = []


class Trials:
    """A job, what it gives undisturbed, and as many disturbed trainings of it as
    wanted.
    """

    def __init__(self, folder):
        self.folder = folder
        undisturbed = Clients(folder / "undisturbed", ROUNDS)
        transport = Mortal(undisturbed, -1, "")
        self._train(undisturbed, transport)
        self.messages = transport.sent
        self.expected = self._result(undisturbed)

    def kill(self, random, kind=None):
        """Kill somebody at a random message, go on, and compare; raises
        `AssertionError` if anything was lost.
        """
        kind = KINDS[random.integers(len(KINDS))] if kind is None else kind
        moment = int(random.integers(self.messages))
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            clients = Clients(Path(name) / "wards", ROUNDS)
            transport = Mortal(clients, moment, kind)
            self._train(clients, transport)
            assert transport.killed, "nobody was killed"
            models, measured = self._result(clients)
        where = f"{kind}, at message {moment} of {self.messages}"
        for client, model in self.expected[0].items():
            np.testing.assert_array_equal(models[client], model, err_msg=where)
        assert measured == self.expected[1], (
            f"other measurements after a kill of {where}"
        )
        return where

    def _train(self, clients, transport):
        run = clients.directory / "run"
        while True:
            try:
                return clients.train_over(
                    transport, NAMES, resume=(run / MANIFEST).exists()
                )
            except Killed:
                transport.restart()

    def _result(self, clients):
        return {name: clients.personal(name).theta for name in NAMES}, (
            clients.directory / "run" / METRICS
        ).read_bytes()
