"""What an operator and a monitor see of a coordinator and its clients."""

import json
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from fedtailor._base.choice import MachineFailed
from fedtailor.cli import main
from fedtailor.remote.server import monitor as monitor_module
from fedtailor.remote.server.monitor import (
    CONNECTIONS,
    STATUS,
    Monitor,
    Status,
    monitor_server,
    read_status,
)
from fedtailor.remote.wire.run_log import (
    ASKED_FOR,
    COORDINATOR_LOG,
    MOST_ASKED_FOR,
    RunLog,
    client_log,
)
from remote.jobs import NAMES, Clients

# lines of a log
# --------------------------------------------------------------------------------------


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}"


def test_lines_have_times_and_levels(tmp_path):
    lines = []
    with RunLog(file=tmp_path / "log", show=lines.append).of(COORDINATOR_LOG):
        COORDINATOR_LOG.info("begins")
        COORDINATOR_LOG.debug("too fine")
        COORDINATOR_LOG.warning("client a: is late")
        COORDINATOR_LOG.info("only there", extra={"shown": False})
        client_log("a").warning("another's")
    COORDINATOR_LOG.warning("it is over")
    said = [re.fullmatch(rf"{TIME} (.*)", line)[1] for line in lines]
    assert said == ["INFO    begins", "WARNING client a: is late"]
    text = (tmp_path / "log").read_text().splitlines()
    assert text[:2] == lines and text[2].endswith(" INFO    only there")
    with RunLog(file=tmp_path / "log", show=lines.append).of(COORDINATOR_LOG):
        COORDINATOR_LOG.info("again")  # appended
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_the_other_end_does_not_fill_the_disk(monkeypatch):
    """A coordinator that sent small messages had a client log 14 GB a day."""
    lines, minute = [], [6e9]
    monkeypatch.setattr(time, "time", lambda: minute[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(minute[0] * 1e9))
    with RunLog(show=lines.append).of(COORDINATOR_LOG):
        for _ in range(3 * MOST_ASKED_FOR):
            COORDINATOR_LOG.warning("refused", extra=ASKED_FOR)
        COORDINATOR_LOG.warning("goes on")
        minute[0] += 60
        COORDINATOR_LOG.warning("refused", extra=ASKED_FOR)
    assert len(lines) == MOST_ASKED_FOR + 2
    assert lines[-3].endswith("further messages of this minute are not logged")
    assert lines[-2].endswith("goes on") and lines[-1].endswith("refused")


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 3), ("info", 2), ("warning", 1)]
)
def test_levels(level, count):
    lines = []
    with RunLog(level, show=lines.append).of(COORDINATOR_LOG):
        COORDINATOR_LOG.debug("a")
        COORDINATOR_LOG.info("b")
        COORDINATOR_LOG.warning("c")
    assert len(lines) == count


def test_a_wrong_level_or_file_is_said_in_a_line(tmp_path):
    with pytest.raises(ValueError, match="the levels are debug, info, warning"):
        RunLog("loud")
    with pytest.raises(ValueError, match="cannot write"):
        RunLog(file=tmp_path / "no" / "log")


def test_a_full_disk_does_not_end_a_training():
    lines = []
    log = RunLog(show=lines.append)

    class Full:
        def open(self, *arguments, **options):
            raise OSError(28, "No space left on device")

    log._file = Full()
    with log.of(COORDINATOR_LOG):
        COORDINATOR_LOG.info("one")
        COORDINATOR_LOG.info("two")
    assert len(lines) == 3 and "the log file is given up" in lines[1]


# status and metrics
# --------------------------------------------------------------------------------------


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_a_run_is_seen_from_outside(tmp_path):
    clients = Clients(tmp_path / "wards", rounds=3)
    path, lines, seen = tmp_path / STATUS, [], []
    monitor = Monitor(
        Status(title="wards", registered=4),
        path,
        clients=lambda: (4, 4),
        say=lambda line: (lines.append(line), seen.append(read_status(path))),
    )
    assert read_status(path).state == "waiting"
    for damaged in ('{"round": "3"}', "[1]", "[" * 9999, ""):
        (tmp_path / "damaged.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"^cannot read .*damaged\.json"):
            read_status(tmp_path / "damaged.json")
    with monitor_server(monitor, "0") as address:
        assert address.startswith("127.0.0.1:")
        assert get(address, "/health") == "waiting\n"
        transport, _ = clients.start(NAMES)
        transport._clients["b"] = lambda body: b"nonsense"
        clients.train_over(transport, NAMES, callbacks=(monitor,))
        metrics = get(address, "/metrics")
        assert get(address, "/health") == "delivering\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as answer:
            get(address, "/job")
        answer.value.close()
    assert [status.round for status in seen] == [1, 2, 3]
    last = seen[-1]
    assert (last.asked, last.answered, last.online, last.rounds) == (4, 3, 4, 3)
    assert len(lines) == 3 and lines[0].startswith("round 1 of 3 done in ")
    values = dict(
        line.split(" ") for line in metrics.splitlines() if not line.startswith("#")
    )
    assert values["fedtailor_rounds_done"] == "3"
    assert values["fedtailor_clients_answered"] == "3"
    assert values['fedtailor_state{state="delivering"}'] == "1"
    assert (
        abs(float(values["fedtailor_last_round_timestamp_seconds"]) - time.time()) < 1e4
    )
    for name in NAMES:  # of clients nothing but numbers of them
        assert f'"{name}"' not in metrics and f"client {name}" not in metrics
    # Each metric is described once, as the format asks for.
    described = [
        line.split(" ")[2] for line in metrics.splitlines() if "# HELP" in line
    ]
    assert len(described) == len(set(described)) == metrics.count("# TYPE")


def test_a_port_that_is_not_served_is_not_healthy():
    def check():
        raise RuntimeError("it ended")

    with monitor_server(Monitor(Status(), check=check), "0") as address:
        with pytest.raises(urllib.error.HTTPError) as answer:
            get(address, "/health")
        assert answer.value.code == 503
        answer.value.close()


def test_a_port_that_is_not_served_leaves_the_last_numbers():
    """`/metrics` printed a traceback, and the last state was not written."""

    def gone():
        raise MachineFailed("the port is not served any more")

    monitor = Monitor(Status(registered=4), clients=gone)
    monitor.refresh()
    assert monitor.status.registered == 4


def test_a_connection_that_is_reset_prints_nothing(capfd):
    """Health checks of load balancers end so; each printed a traceback."""
    with monitor_server(Monitor(Status()), "0") as address:
        host, _, port = address.rpartition(":")
        for _ in range(5):
            connection = socket.create_connection((host, int(port)))
            linger = struct.pack("ii", 1, 0)  # close by a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(b"GET /heal")
            connection.close()
        for _ in range(2):  # those before are served
            get(address, "/metrics")
    assert capfd.readouterr() == ("", "")


def test_slow_connections_take_few_threads_and_end(monkeypatch):
    """Each had a thread until it was closed, and 3,300 of them stopped the training."""
    monkeypatch.setattr(monitor_module, "REQUEST_S", 0.5)
    threads = threading.active_count()
    with monitor_server(Monitor(Status()), "0") as address:
        host, port = address.rsplit(":", 1)
        slow = []
        for _ in range(3 * CONNECTIONS):
            slow.append(socket.create_connection((host, int(port)), timeout=5))
            slow[-1].sendall(b"GET /hea")
        deadline = time.monotonic() + 30
        while True:
            # The server's own thread, and one beside each that ends it.
            assert threading.active_count() <= threads + 1 + 2 * CONNECTIONS
            try:
                text = get(address, "/health")
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                break
        assert text == "waiting\n"
        for connection in slow:  # none waits any more
            assert connection.recv(1) == b""
            connection.close()


def test_an_address_of_a_monitor_that_is_none_or_in_use_is_said(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for address in ("x", "80000", "host:", f"127.0.0.1:{port}"):
            with (
                pytest.raises(ValueError, match="monitor"),
                monitor_server(Monitor(Status()), address),
            ):
                pass


def test_status_says_what_was_done_when_the_coordinator_ended(tmp_path, capsys):
    coordinator = tmp_path / "wards" / "coordinator"
    coordinator.mkdir(parents=True)
    assert main(["federation", "status", str(tmp_path / "wards")]) == 2
    assert "no training has begun here" in capsys.readouterr().err
    status = Status(title="wards", state="training", round=3, rounds=9, registered=2)
    Monitor(status, coordinator / STATUS)
    assert main(["federation", "status", str(tmp_path / "wards")]) == 0
    said = capsys.readouterr().out
    assert "wards: stopped, no coordinator runs" in said and "3 of 9" in said
    assert main(["federation", "status", str(tmp_path / "wards"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["running"], found["round"]) == ("stopped", False, 3)
    (coordinator / STATUS).write_text("[")
    assert main(["federation", "status", str(tmp_path / "wards")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_second_coordinator_in_a_directory_is_refused(tmp_path):
    from fedtailor.remote.service import _only_one, is_served

    assert not is_served(tmp_path)
    with _only_one(tmp_path):
        assert is_served(tmp_path)
        with (
            pytest.raises(ValueError, match="another coordinator"),
            _only_one(tmp_path),
        ):
            pass
    assert not is_served(tmp_path)
