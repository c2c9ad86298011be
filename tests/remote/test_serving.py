"""`serve` and `join` from Python: in threads, with handles, equal to the simulation."""

import shutil
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
pytest.importorskip("h11", reason="machines need the extra federation")
pytest.importorskip("httpx", reason="machines need the extra federation")

from fedtailor.engine.storage.export import load_models
from fedtailor.engine.storage.interrupts import Interrupted
from fedtailor.remote import Handle, join, serve
from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.demo import OPEN_POLICY, free_port
from fedtailor.remote.keys.kit import JOB, make_federation, read_kit
from fedtailor.remote.wire.run_log import RunLog
from remote.jobs import JOB as JOB_TEXT
from remote.jobs import NAMES, Clients


class Federation:
    """A job of four clients, its simulation, and the directory of its federation."""

    def __init__(self, directory, **settings):
        self.clients = Clients(directory / "rows", **settings)
        address = f"127.0.0.1:{free_port()}"
        job = directory / "job.toml"
        text = self.clients.path.read_text()
        assert "127.0.0.1:9092" in JOB_TEXT
        job.write_text(text.replace("127.0.0.1:9092", address))
        self.directory = directory / "wards"
        make_federation(self.directory, NAMES, job=job)
        for name in NAMES:
            kit = self.directory / "kits" / name
            shutil.copy(self.directory / JOB, kit)
            (kit / POLICY).write_text(OPEN_POLICY)

    def start(self, function, *arguments, **options):
        """Run a function in a thread; its handle, the thread and what it raised."""
        handle, raised = Handle(), []

        def run():
            try:
                function(*arguments, handle=handle, **options)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return handle, thread, raised

    def join(self, name, lines):
        kit, data = self.directory / "kits" / name, self.clients.directory
        return self.start(
            join, kit, data / f"{name}.csv", log=RunLog(show=lines.append)
        )

    def serve(self, lines, **options):
        log = RunLog(show=lines.append)
        return self.start(
            serve,
            self.directory,
            listen="127.0.0.1",
            log=log,
            tell=lines.append,
            **options,
        )

    def personal(self, name):
        kit = read_kit(self.directory / "kits" / name)
        path = ClientStore(kit.state, kit.job.identity).directory / PERSONAL
        return load_models(path)[name].theta


@pytest.mark.slow
def test_served_and_joined_from_python_it_is_the_simulation_and_can_be_stopped(
    tmp_path,
):
    federation, lines = Federation(tmp_path, rounds=6, method="fedavg"), []
    clients = {name: federation.join(name, lines) for name in NAMES}
    coordinator, thread, raised = federation.serve(lines)
    try:
        end = time.monotonic() + 100
        while coordinator.status is None or coordinator.status.round < 1:
            assert time.monotonic() < end and thread.is_alive(), (lines, raised)
            time.sleep(0.01)
        coordinator.stop()
        thread.join(60)
        stopped_at = coordinator.status.round
        assert isinstance(raised[0], Interrupted) and 1 <= stopped_at < 6
        coordinator, thread, raised = federation.serve(lines, resume=True)
        thread.join(100)
        assert not thread.is_alive() and not raised, (lines, raised)
        assert coordinator.status.state == "done" and coordinator.status.round == 6
        status = clients["a"][0].status
        assert status.name == "a" and status.answers > 6
    finally:
        for handle, client, _ in clients.values():
            handle.stop()
            client.join(30)
            assert not client.is_alive()
    assert not any(error for _, _, raised in clients.values() for error in raised)
    simulated = federation.clients.simulated(NAMES, 6)
    for name in NAMES:
        np.testing.assert_array_equal(
            federation.personal(name), simulated.personal(name).theta
        )


def test_a_coordinator_that_waits_can_be_stopped(tmp_path):
    federation, lines = Federation(tmp_path), []
    coordinator, thread, raised = federation.serve(lines)
    time.sleep(0.5)
    coordinator.stop()
    thread.join(30)
    assert not thread.is_alive() and isinstance(raised[0], Interrupted)
    assert coordinator.status.state == "stopped"
