"""A federation over its real port through many kills of both sides: the models are those
of one that nobody killed, to the bit.
"""

import shutil
import threading

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
pytest.importorskip("h11", reason="machines need the extra federation")
pytest.importorskip("httpx", reason="machines need the extra federation")

from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.remote.demo import free_port
from fedtailor.remote.https import client as https_client
from fedtailor.remote.https.client import Connection, answer_messages
from fedtailor.remote.https.server import serve_messages
from fedtailor.remote.keys.kit import COORDINATOR, JOB, make_federation, read_kit
from fedtailor.remote.server.coordinate import coordinate
from remote.jobs import NAMES, Clients

ROUNDS = 15
COORDINATOR_KILLS = 7


class Killed(BaseException):
    """Ends a process, whatever it does."""


class Abrupt(Connection):
    """A connection of a process that is killed, which takes no leave."""

    def close(self):
        self._close()


class Machines:
    """Clients that are killed now and then, and started again."""

    def __init__(self, directory, method, seed):
        self.clients = Clients(directory / "rows", ROUNDS, method=method)
        self.port, self.directory = free_port(), directory / "wards"
        job = directory / "job.toml"
        text = self.clients.path.read_text()
        job.write_text(text.replace("127.0.0.1:9092", f"127.0.0.1:{self.port}"))
        make_federation(self.directory, NAMES, job=job)
        for name in NAMES:
            shutil.copy(job, self.directory / "kits" / name / JOB)
        self.rng, self.kills, self.over = np.random.default_rng(seed), 0, False
        self.stops, self.threads, self.failure = {}, [], None
        for name in NAMES:
            self.threads.append(threading.Thread(target=self.live, args=(name,)))
            self.threads[-1].start()

    def live(self, name):
        """A client, as many times as it is killed."""
        while not self.over:
            try:
                self.live_once(name)
            except Killed:
                self.kills += 1
            except BaseException as error:
                # Without this client each round would wait for its deadline.
                self.failure = error
                raise

    def live_once(self, name):
        """A client until it is killed."""
        # What a process has in memory goes with it: cache, last answer, session.
        responder = self.clients.client(name)

        def respond(body):
            draw = self.rng.random()
            if draw < 0.05:
                raise Killed  # with a message that it has not answered
            answer = responder(body)
            if draw < 0.1:
                raise Killed  # with an answer that nobody has got
            return answer

        self.stops[name] = threading.Event()
        kit = read_kit(self.directory / "kits" / name)
        answer_messages(Abrupt(kit), respond, stop=self.stops[name])

    def train(self, dies_after):
        """A coordinator, killed after it has looked for answers a number of times."""
        run = self.directory / "run"
        with serve_messages(
            self.directory / COORDINATOR,
            self.port,
            host="127.0.0.1",
        ) as transport:
            receive, looks = transport.receive, []

            def mortal():
                looks.append(1)
                if self.failure is not None:
                    raise self.failure
                if len(looks) == dies_after:
                    raise Killed
                return receive()

            transport.receive = mortal
            return coordinate(
                self.clients.job,
                transport,
                self.clients.sizes(NAMES),
                run,
                resume=(run / MANIFEST).exists(),
            )

    def stop(self):
        self.over = True
        for stop in self.stops.values():
            stop.set()
        for thread in self.threads:
            thread.join(60)


# `ssl.SSLSocket._create` does not close a socket that is reset before its handshake, which
# is said when the socket is collected. Such a one has no address of a peer.
NEVER_CONNECTED = (
    r"ignore:unclosed <ssl.SSLSocket fd=\d+, family=2, type=1, proto=6,"
    r" laddr=\('127.0.0.1', \d+\)>:ResourceWarning"
)


@pytest.mark.slow
@pytest.mark.filterwarnings(NEVER_CONNECTED)
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_twenty_kills_change_no_bit(method, tmp_path, monkeypatch):
    monkeypatch.setattr(https_client, "RETRY_S", (0.02, 0.05))
    machines = Machines(tmp_path, method, seed=0)
    try:
        for _ in range(COORDINATOR_KILLS):
            with pytest.raises(Killed):
                machines.train(int(machines.rng.integers(2, 25)))
        training = machines.train(None).training
    finally:
        machines.stop()
    assert training.round == ROUNDS
    assert machines.kills + COORDINATOR_KILLS >= 20, machines.kills
    calm = Clients(tmp_path / "calm", ROUNDS, method=method)
    calm.train(NAMES)
    simulated = calm.simulated(NAMES, ROUNDS)
    for name in NAMES:
        trained = machines.clients.personal(name).theta
        for other in (calm, simulated):
            np.testing.assert_array_equal(trained, other.personal(name).theta)
