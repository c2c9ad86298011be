"""Messages over HTTPS: what is lost is asked for again, and who has no certificate of the
federation is not spoken to.
"""

import asyncio
import contextlib
import datetime
import errno
import gc
import re
import resource
import shutil
import socket
import ssl
import threading
import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="keys are made with `cryptography`")
pytest.importorskip("h11", reason="machines need the extra federation")
pytest.importorskip("httpx", reason="machines need the extra federation")

import h11

from fedtailor.remote.demo import free_port
from fedtailor.remote.https import client as https_client
from fedtailor.remote.https import port as https_port
from fedtailor.remote.https import server as https_server
from fedtailor.remote.https.client import (
    Connection,
    Disconnected,
    Refused,
    answer_messages,
)
from fedtailor.remote.https.port import STRANGERS
from fedtailor.remote.https.server import serve_messages
from fedtailor.remote.keys import keys
from fedtailor.remote.keys.kit import (
    COORDINATOR,
    JOB,
    make_federation,
    read_kit,
    renew_certificate,
    renew_keys,
    revoke,
)
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines, RunLog, client_log


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("https") / "wards"
    make_federation(directory, ("a", "b"), address="127.0.0.1:9092")
    return directory


class Wards:
    """A federation with an open port, and its clients."""

    def __init__(self, directory, port):
        self.directory, self.port = directory, port
        self.lines, self.stack = [], contextlib.ExitStack()
        job = directory / JOB
        job.write_text(job.read_text().replace("9092", str(port)))
        for kit in (directory / "kits").iterdir():
            shutil.copy(job, kit)

    def open(self):
        self.stack.enter_context(Lines(self.lines.append).of(COORDINATOR_LOG))
        self.transport = self.stack.enter_context(
            serve_messages(
                self.directory / COORDINATOR,
                self.port,
                host="127.0.0.1",
            )
        )
        self.transport.expect(1000)

    def close(self):
        self.stack.close()

    def connection(self, name="a"):
        connection = Connection(read_kit(self.directory / "kits" / name))
        self.stack.callback(connection.close)
        return connection

    @contextlib.contextmanager
    def joined(self, name="a", respond=lambda body: body[::-1]):
        """A client that answers in a thread."""
        lines, stop = [], threading.Event()
        hearing = RunLog(show=lines.append).of(client_log(name))
        connection = Connection(read_kit(self.directory / "kits" / name))
        ended = []

        def run():
            try:
                with hearing:
                    answer_messages(connection, respond, stop=stop)
            except ValueError as error:
                ended.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield lines, ended
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive()

    def ask(self, client, body, seconds=20.0):
        """Send a message to a client that comes, and wait for an answer; as coordinators
        do, once more if another process of that client has come."""
        asked, end = None, time.monotonic() + seconds
        while time.monotonic() < end:
            session = self.transport.online().get(client)
            if session not in (None, asked):
                self.transport.send(client, body)
                asked = session
            for answer in self.transport.receive():
                return answer
        return None

    def answers(self, count, seconds=20.0):
        answers, end = [], time.monotonic() + seconds
        while len(answers) < count and time.monotonic() < end:
            answers += self.transport.receive()
        return answers

    def raw(self, name="a", pem=None, seconds=10.0):
        """A TLS connection, with the certificate of a client or none."""
        plain = socket.create_connection(("127.0.0.1", self.port), seconds)
        context = self.context(name, pem)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def context(self, name, pem=None):
        """TLS with the certificate of a client or none."""
        context = ssl.create_default_context(
            cafile=self.directory / COORDINATOR / "ca.crt"
        )
        if name is not None:
            kit = self.directory / "kits" / name
            context.load_cert_chain(pem or kit / "client.pem")
        return context

    def says(self, head, body=b"", name="a", seconds=10.0):
        """What the port answers to some bytes."""
        with self.raw(name, seconds=seconds) as connection:
            connection.sendall(head + body)
            answer = b""
            with contextlib.suppress(OSError):
                while part := connection.recv(2**14):
                    answer += part
                    if b"\r\n\r\n" in answer:
                        break
        return answer


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def wards(made, tmp_path, monkeypatch):
    monkeypatch.setattr(https_port, "RELOAD_S", 0.05)
    monkeypatch.setattr(https_client, "RETRY_S", (0.05, 0.1))
    monkeypatch.setattr(https_server, "RECEIVE_S", 0.05)
    wards = Wards(shutil.copytree(made, tmp_path / "wards"), free_port())
    wards.open()
    yield wards
    wards.close()


def test_each_client_gets_its_messages_in_order_and_its_answers_have_its_name(wards):
    with wards.joined("a"), wards.joined("b"):
        for name in ("a", "b"):
            assert wards.ask(name, b"hello " + name.encode()) == (
                name,
                name.encode() + b" olleh",
            )
        wards.transport.send("a", b"12")
        wards.transport.send("a", b"34")
        assert wards.answers(2) == [("a", b"21"), ("a", b"43")]


def test_a_message_that_was_lost_on_the_way_is_given_again_and_answered_once(wards):
    connection = wards.connection()
    wards.transport._boxes.clear()
    waiting = threading.Thread(target=connection.next, args=("-",))
    waiting.start()
    until(lambda: "a" in wards.transport.online())
    wards.transport.send("a", b"question")
    waiting.join()  # it has got the message, and lost it
    message = connection.next("-")
    assert message.body == b"question"
    assert connection.answer(message.number, b"answer")
    assert not connection.answer(message.number, b"another answer")
    assert list(wards.transport.receive()) == [("a", b"answer")]
    assert list(wards.transport.receive()) == []


def test_while_a_client_works_it_is_online_and_its_next_message_waits(wards):
    begun, go_on = threading.Event(), threading.Event()

    def respond(body):
        begun.set()
        go_on.wait(20)
        return body

    with wards.joined(respond=respond):
        until(lambda: "a" in wards.transport.online())
        before = wards.transport.online()
        wards.transport.send("a", b"1")
        wards.transport.send("a", b"2")
        assert begun.wait(20)
        time.sleep(0.1)
        assert wards.transport.online() == before
        go_on.set()
        assert wards.answers(2) == [("a", b"1"), ("a", b"2")]
    until(lambda: not wards.transport.online())


def test_a_client_that_comes_again_is_another_session_and_the_former_is_told(wards):
    first, second = wards.connection(), wards.connection()
    box = wards.transport._boxes
    threads = [threading.Thread(target=first.next, args=("-",))]
    failed = []

    def wait():
        try:
            first.next("-")
        except Refused as error:
            failed.append(str(error))

    threads = [threading.Thread(target=wait)]
    threads[0].start()
    until(lambda: wards.transport.online().get("a") == first.session)
    wards.transport.send("a", b"to the first")
    threads[0].join()
    threads.append(threading.Thread(target=wait))
    box["a"].messages.clear()
    threads[1].start()
    threads.append(threading.Thread(target=second.next, args=("-",)))
    threads[2].start()
    threads[1].join(20)
    assert failed and "another process" in failed[0]
    assert wards.transport.online()["a"] == second.session
    assert not box["a"].messages  # the coordinator asks again, as the number is another
    wards.transport.send("a", b"to the second")
    threads[2].join(20)
    with pytest.raises(Refused):
        first.next("-")


def test_a_coordinator_that_comes_back_finds_the_client_which_says_so_once(wards):
    def warnings():
        return [line for line in shown if "WARNING" in line]

    with wards.joined() as (shown, ended):
        assert wards.ask("a", b"ab") == ("a", b"ba")
        wards.close()
        until(warnings)
        wards.open()
        assert wards.ask("a", b"cd") == ("a", b"dc")
    assert not ended and len(warnings()) <= 2
    assert sum("connected to" in line for line in shown) == 2


def test_an_answer_to_a_coordinator_that_has_forgotten_it_is_dropped(wards):
    begun, go_on = threading.Event(), threading.Event()

    def respond(body):
        begun.set()
        go_on.wait(20)
        return body

    with wards.joined(respond=respond):
        until(lambda: "a" in wards.transport.online())
        wards.transport.send("a", b"before")
        assert begun.wait(20)
        wards.close()
        wards.open()
        go_on.set()
        assert wards.ask("a", b"after") == ("a", b"after")


def test_what_was_not_asked_for_or_is_too_large_is_not_read(wards):
    connection = wards.connection()
    with pytest.raises(Disconnected):
        connection._client.base_url = connection._client.base_url.join("/x/")
        connection.next("-")
    with wards.joined(respond=lambda body: bytes(1001)) as (lines, _):
        assert wards.ask("a", b"x", seconds=0.5) is None
        until(lambda: any("larger than was asked for" in line for line in lines))
    other = wards.connection()
    assert not other.answer("0" * 32, bytes(10**7))


def test_a_stranger_is_not_spoken_to(wards, tmp_path):
    make_federation(tmp_path / "other", ("a",), address="127.0.0.1:1")
    elsewhere = tmp_path / "other" / "kits" / "a" / "client.pem"
    server = wards.directory / COORDINATOR
    own = tmp_path / "server.pem"
    own.write_bytes(
        (server / "server.key").read_bytes() + (server / "server.crt").read_bytes()
    )
    for name, pem in ((None, None), ("a", elsewhere), ("a", own)):
        with pytest.raises(OSError), wards.raw(name, pem) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            if not connection.recv(100):
                raise OSError("closed")


def test_certificates_are_revoked_and_renewed_while_the_port_is_open(
    wards, monkeypatch
):
    monkeypatch.setattr(https_client, "MAX_REFUSAL_S", 0.3)
    with wards.joined("a") as (lines, ended):
        assert wards.ask("a", b"ab") == ("a", b"ba")
        revoke(wards.directory, "a")
        until(lambda: ended)
        assert "refuses this client" in ended[0]
        assert "does not accept this client's certificate" in "".join(lines)
    assert wards.transport.revoked == {"a"} and not wards.transport.online()
    until(lambda: "client a was revoked" in wards.lines)
    renew_keys(wards.directory, ["a"])
    until(lambda: "client a may join now" in wards.lines)
    assert wards.transport.revoked == set()
    make_federation(wards.directory, ["c"])
    shutil.copy(wards.directory / JOB, wards.directory / "kits" / "c")
    until(lambda: "client c may join now" in wards.lines)
    renew_certificate(wards.directory)
    with wards.joined("a"), wards.joined("c"):
        assert wards.ask("a", b"ab") == ("a", b"ba")
        assert wards.ask("c", b"ab") == ("c", b"ba")


@pytest.mark.parametrize("mode", ["damaged", "unreadable", "open"])
def test_a_renewed_key_is_refused_while_another_file_hinders(wards, mode):
    """Before, every certificate of a name whose file was there was let in."""
    with wards.raw("a"), wards.raw("b"):
        pass
    port, coordinator = wards.transport.port, wards.directory / COORDINATOR
    before = port._trust.names
    if mode == "damaged":
        (coordinator / "clients" / "b.crt").write_text("damaged\n")
    elif mode == "unreadable":
        (coordinator / "clients" / "c.crt").mkdir()
    else:
        (coordinator / "server.key").chmod(0o640)
        (coordinator / "server.key").touch()
    until(lambda: any("no client is let in" in line for line in wards.lines))
    assert port._trust.names == before  # the others stay, also whose file is damaged
    renew_keys(wards.directory, ["a"])
    until(lambda: port.names == {"b"})
    assert "client a: its former key is refused" in wards.lines
    if mode == "damaged":
        renew_keys(wards.directory, ["b"])
    elif mode == "unreadable":
        (coordinator / "clients" / "c.crt").rmdir()
    else:
        (coordinator / "server.key").chmod(0o600)
        (coordinator / "server.key").touch()
    until(lambda: port.names == {"a", "b"})
    assert len({*before, *port._trust.names}) == (4 if mode == "damaged" else 3)


def test_a_client_trusts_its_federations_server_only(wards, tmp_path):
    make_federation(tmp_path / "other", ("a",), address="127.0.0.1:1")
    kit = wards.directory / "kits" / "a"
    shutil.copy(tmp_path / "other" / "kits" / "a" / "ca.crt", kit)
    with wards.joined() as (_, ended):
        until(lambda: ended)
    assert "has no certificate of this federation's authority" in ended[0]


@pytest.mark.parametrize(
    ("hours", "said"), [(3, "is not valid yet"), (-(24 * 4000), "has expired")]
)
def test_a_clock_that_is_hours_wrong_is_named(wards, monkeypatch, hours, said):
    """Before, the line said that the kit was another federation's."""

    class Wrong(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(hours=hours)

    wrong = SimpleNamespace(**{**vars(datetime), "datetime": Wrong})
    monkeypatch.setattr(keys, "datetime", wrong)
    renew_certificate(wards.directory)
    monkeypatch.undo()
    wards.close()
    wards.open()
    with wards.joined() as (_, ended):
        until(lambda: ended)
    assert re.fullmatch(
        f"the certificate of .* {said} by this machine's clock .*", ended[0]
    )


def test_silent_strangers_make_place_for_clients(wards):
    with contextlib.ExitStack() as stack:
        for _ in range(2 * STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", wards.port)))
        with wards.joined():
            assert wards.ask("a", b"ab") == ("a", b"ba")
        assert len(wards.transport.port._strangers) <= STRANGERS


def test_a_port_that_ends_closes_what_has_just_come(wards):
    """What was accepted at the moment of the end, too: Python tells of a socket that
    nobody closed, and that fails a test."""
    ended = threading.Event()

    def come():
        while not ended.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", wards.port)),
            ):
                pass

    strangers = [threading.Thread(target=come) for _ in range(2)]
    for stranger in strangers:
        stranger.start()
    for _ in range(10):
        wards.close()
        wards.open()
        time.sleep(0.02)
    ended.set()
    for stranger in strangers:
        stranger.join()
    gc.collect()


def test_a_client_has_few_connections(wards):
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(wards.raw())
        tasks = wards.transport.port._tasks
        until(lambda: not wards.transport.port._strangers)
        assert len(tasks) <= https_port.OF_ONE_CLIENT
        with wards.joined("b"):
            assert wards.ask("b", b"ab") == ("b", b"ba")


def test_who_says_nothing_or_too_slowly_is_cut_off(wards, monkeypatch):
    monkeypatch.setattr(https_port, "IDLE_S", 0.3)
    monkeypatch.setattr(https_port, "HANDSHAKE_S", 0.3)
    with socket.create_connection(("127.0.0.1", wards.port), 10) as plain:
        assert plain.recv(1) == b""
    for said in (b"", b"GET /request/"):
        with wards.raw() as connection:
            connection.sendall(said)
            assert connection.recv(1) == b""


PATH = f"/answer/{'0' * 32}/{'0' * 32}"
TYPE = "content-type: application/octet-stream"
ODDITIES = {
    "GET / HTTP/1.1": 404,
    f"GET {PATH} HTTP/1.1": 404,
    "GET /request/../../etc/passwd HTTP/1.1": 404,
    f"POST {PATH} HTTP/1.1": 410,
    f"POST {PATH} HTTP/1.0": 505,
    f"POST {PATH} HTTP/1.1\r\n{TYPE}\r\ncontent-length: 1000000000": 410,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 10": 415,
    f"POST {PATH} HTTP/1.1\r\n{TYPE}\r\ncontent-encoding: gzip\r\ncontent-length: 9": 415,
    f"POST {PATH} HTTP/1.1\r\n{TYPE}\r\ntransfer-encoding: chunked": 411,
    f"POST {PATH} HTTP/1.1\r\n{TYPE}\r\nexpect: 100-continue\r\ncontent-length: 9": 417,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: -1": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 1e9": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: +5": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 1_0": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: \xb2": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 5, 6": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length : 5": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: 5\r\n 5": 400,
    f"POST {PATH} HTTP/1.1\r\ncontent-length: {'9' * 5000}": 400,
    f"POST {PATH} HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5": 411,
    f"POST {PATH} HTTP/1.1\r\ntransfer-encoding: chunked\r\nhost: x\r\n\r\nz": 411,
    f"POST {PATH} HTTP/1.2": 505,
    "PRI * HTTP/2.0": 505,
    "CONNECT x:443 HTTP/1.1": 404,
    "GET https://x/ HTTP/1.1": 404,
    "GET / HTTP/1.1\r\nx: \x00": 400,
    "\x16\x03\x01": 400,
    "GET /" + "a" * 10**5 + " HTTP/1.1": 400,
    "GET / HTTP/1.1\r\n" + "".join(f"x{n}: y\r\n" for n in range(9999)): 400,
}


@pytest.mark.parametrize(
    ("head", "status"), ODDITIES.items(), ids=[repr(head[:90]) for head in ODDITIES]
)
def test_what_is_no_request_of_a_client_is_refused(wards, head, status):
    answer = wards.says(f"{head}\r\nhost: x\r\n\r\n".encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer


def test_a_refused_client_that_says_it_ends_does_not_stop_the_port(wards):
    """curl says so. The rest of the refused request was read without end, in the loop that
    serves all clients.
    """
    with wards.raw() as connection:
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 415"
        with contextlib.suppress(OSError):
            connection.unwrap()
    assert wards.says(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 404")


def test_a_body_that_ends_too_early_is_no_answer(wards):
    with wards.joined(respond=lambda body: time.sleep(1) or b""):
        until(lambda: "a" in wards.transport.online())
        wards.transport.send("a", b"x")
        box = wards.transport._boxes["a"]
        number = box.messages[0][0]
        head = (
            f"POST /answer/{box.session}/{number} HTTP/1.1\r\nhost: x\r\n{TYPE}\r\n"
            "content-length: 100\r\n\r\n"
        )
        with wards.raw() as connection:
            connection.sendall(head.encode() + b"short")
        assert wards.answers(1) == [("a", b"")]


def test_a_proxy_of_the_environment_is_used(wards, monkeypatch):
    asked, stack = [], contextlib.ExitStack()
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def pump(source, target):
        with contextlib.suppress(OSError):
            while part := source.recv(2**16):
                target.sendall(part)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve():
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            asked.append(near.recv(4096).split(b"\r\n")[0])
            far = socket.create_connection(("127.0.0.1", wards.port))
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            stack.enter_context(near)
            stack.enter_context(far)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    with stack, wards.joined():
        assert wards.ask("a", b"ab") == ("a", b"ba")
    assert asked and set(asked) == {b"CONNECT 127.0.0.1:%d HTTP/1.1" % wards.port}


@pytest.mark.parametrize("by_proxy", [False, True])
def test_a_redirect_is_not_followed_and_said_in_a_line(wards, monkeypatch, by_proxy):
    """Of a coordinator or what stands before it, and of a proxy."""
    stack = contextlib.ExitStack()
    elsewhere, listener = (
        stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
    )
    elsewhere.settimeout(0.2)
    names = "localhost", elsewhere.getsockname()[1]
    answer = (
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: https://{}:{}/\r\n"
        "connection: close\r\ncontent-length: 0\r\n\r\n"
    ).format(*names)
    keys = wards.directory / COORDINATOR
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            with contextlib.suppress(OSError):
                near, _ = listener.accept()
                if not by_proxy:
                    near = context.wrap_socket(near, server_side=True)
                with near:
                    near.settimeout(5)
                    near.recv(4096)
                    near.sendall(answer.encode())
                    while near.recv(4096):  # until the client has closed
                        pass

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    kit = read_kit(wards.directory / "kits" / "a")
    job = replace(kit.job, host="127.0.0.1", port=1 if by_proxy else port)
    address = job.address
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    if by_proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    connection = Connection(replace(kit, job=job))
    stack.callback(connection.close)
    stack.callback(ended.set)
    said = (
        f"the proxy of HTTPS_PROXY does not lead to {address} (307 Temporary Redirect)"
        if by_proxy
        else f"the server at {address} answers with a redirect (307), which a client does"
        " not follow; check the address in job.toml, and what stands before that server"
    )
    with stack:
        for ask in (lambda: connection.next("-"), lambda: connection.answer("a", b"b")):
            with pytest.raises(Disconnected, match=f"^{re.escape(said)}$"):
                ask()
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_a_port_that_is_taken_is_said(wards):
    with (
        pytest.raises(ValueError, match=r"^cannot listen on 127\.0\.0\.1:\d+: "),
        serve_messages(wards.directory / COORDINATOR, wards.port, host="127.0.0.1"),
    ):
        pass


def test_a_file_that_is_being_written_changes_nothing(wards):
    certificate = wards.directory / COORDINATOR / "clients" / "b.crt"
    whole = certificate.read_bytes()
    certificate.write_bytes(whole[:100])
    until(lambda: wards.lines)
    assert "certificate of client b cannot be read" in wards.lines[0]
    with wards.joined("b"):
        assert wards.ask("b", b"ab") == ("b", b"ba")
        # Who is revoked meanwhile is gone.
        with wards.raw("a") as connection:
            revoke(wards.directory, "a")
            assert connection.recv(1) == b""
            until(lambda: "client a was revoked" in wards.lines)
    assert wards.transport.revoked == {"a"}
    certificate.write_bytes(whole)


class Endless:
    """A socket on which as much as is wanted has always come.

    Args:
        reads: how often it may be read.
    """

    def __init__(self, reads):
        self.reads = reads

    def recv(self, size):
        self.reads -= 1
        assert self.reads > 0, "nobody else had a turn"
        return bytes(size)


class Taken:
    """TLS that gives single bytes, or takes records without content for ever."""

    def __init__(self, is_empty):
        self.is_empty, self.most = is_empty, 0

    def wrap_bio(self, incoming, outgoing, server_side):
        self.incoming = incoming
        return self

    def read(self, size):
        self.most = max(self.most, self.incoming.pending)
        if self.is_empty or not self.incoming.pending:
            self.incoming.read()
            raise ssl.SSLWantReadError
        return self.incoming.read(1)


@pytest.mark.parametrize("is_empty", [False, True])
def test_whoever_sends_without_end_leaves_turns_to_others(is_empty):
    tls = Taken(is_empty)

    async def run():
        connection = https_port._Connection(tls, Endless(10**5))
        # Records that are empty end the connection; others are limited by time.
        with pytest.raises(ConnectionError if is_empty else TimeoutError):
            async with asyncio.timeout(None if is_empty else 0.05):
                while True:
                    await connection.read()

    asyncio.run(run())
    assert 0 < tls.most <= https_port.PART


def test_a_body_in_single_bytes_takes_the_memory_of_its_size():
    size = 10**5

    class Http:
        left = size // 2

        def next_event(self):
            self.left -= 1
            return h11.Data(data=bytes(2)) if self.left >= 0 else h11.EndOfMessage()

    tracemalloc.start()
    try:
        body = asyncio.run(https_port._body(Http(), None, size))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(body) == size and most < 10 * size


def test_the_port_may_have_a_connection_for_each_of_many_clients(made):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        with serve_messages(made / COORDINATOR, free_port(), host="127.0.0.1"):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert soft == min(https_port.OPEN_FILES, limits[1]) or limits[1] < 0


def test_strangers_have_a_quarter_of_the_files_that_may_be_open(wards, monkeypatch):
    wards.close()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    wards.open()
    with contextlib.ExitStack() as stack:
        for _ in range(3 * 8):
            stack.enter_context(socket.create_connection(("127.0.0.1", wards.port)))
        assert wards.says(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        # The oldest of eight has made place for the client.
        assert len(wards.transport.port._strangers) == 7


def test_what_a_stranger_took_is_free_as_soon_as_it_has_made_place(wards):
    gc.collect()
    gc.disable()
    try:
        for _ in range(2 * STRANGERS):
            with socket.create_connection(("127.0.0.1", wards.port)):
                pass
        with contextlib.ExitStack() as stack:
            for _ in range(2 * STRANGERS):
                stack.enter_context(socket.create_connection(("127.0.0.1", wards.port)))
            assert wards.says(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        port = wards.transport.port

        def is_kept(each):
            # `isinstance` would ask every object of the process for its `__class__`,
            # and what some libraries keep there warns.
            return type(each) is https_port._Connection and each._loop is port.loop

        until(lambda: not port._all)
        until(lambda: not any(map(is_kept, gc.get_objects())))
    finally:
        gc.enable()


class Exhausted:
    """A listening socket on which nothing is accepted while files are missing.

    Args:
        listener: the socket.
        is_full: whether they are.
    """

    def __init__(self, listener, is_full):
        self.fileno, self._accept, self._is_full = (
            listener.fileno,
            listener.accept,
            is_full,
        )

    def accept(self):
        if self._is_full():
            raise OSError(errno.EMFILE, "Too many open files")
        return self._accept()


def test_without_a_file_to_open_strangers_make_place_and_the_port_goes_on(
    wards, monkeypatch
):
    port, read = wards.transport.port, https_port._stamp
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", wards.port)))
        until(lambda: len(port._strangers) == 3)
        is_full = lambda: len(port._all) >= 3  # noqa: E731 (a line is enough)
        port._listener = Exhausted(port._listener, is_full)
        assert wards.says(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    looks = []

    def look(coordinator):
        looks.append(1)
        if len(looks) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return read(coordinator)

    monkeypatch.setattr(https_port, "_stamp", look)
    until(lambda: len(looks) > 3)
    assert [line.split(": ")[1] for line in wards.lines] == [
        "[Errno 24] Too many open files"
    ]
    revoke(wards.directory, "b")
    until(lambda: "client b was revoked" in wards.lines)


@pytest.mark.parametrize("group", ["ffdhe2048", "secp521r1"])
def test_a_stranger_does_not_choose_how_much_a_handshake_takes(wards, group):
    context = wards.context("a")
    context.set_ecdh_curve(group)
    with (
        pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"),
        socket.create_connection(("127.0.0.1", wards.port), 10) as plain,
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_an_older_tls_is_refused_and_no_session_is_resumed(wards):
    def ask(connection):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 404")
        return connection.session

    here, context = ("127.0.0.1", wards.port), wards.context("a")
    with context.wrap_socket(
        socket.create_connection(here), server_hostname="127.0.0.1"
    ) as first:
        session = ask(first)
    with context.wrap_socket(
        socket.create_connection(here), server_hostname="127.0.0.1", session=session
    ) as second:
        ask(second)
        assert not second.session_reused and not second.session.has_ticket
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
        socket.create_connection(here) as plain,
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_strangers_of_one_address_make_no_place_of_others(wards):
    here = ("127.0.0.1", wards.port)
    with contextlib.ExitStack() as stack:
        slow = socket.create_connection(here, 10, source_address=("127.0.0.2", 0))
        stack.callback(slow.close)
        for _ in range(2 * STRANGERS):
            stack.enter_context(socket.create_connection(here))
        context = wards.context("a")
        with context.wrap_socket(slow, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 404"


class Hostile:
    """A coordinator that answers everything alike.

    Args:
        wards: whose address and certificate it has; they are closed.
        answer: function from the number of a request to bytes of HTTP.
    """

    def __init__(self, wards, answer):
        wards.close()
        self.answer, self.heads = answer, []
        server = wards.directory / COORDINATOR
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(server / "server.crt", server / "server.key")
        self.listener = socket.create_server(("127.0.0.1", wards.port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                threading.Thread(target=self.talk, args=(plain,), daemon=True).start()

    def talk(self, plain):
        with (
            contextlib.suppress(OSError),
            self.context.wrap_socket(plain, server_side=True) as connection,
        ):
            while head := connection.recv(2**16):
                self.heads.append(head)
                self.respond(connection, head)

    def respond(self, connection, head):
        connection.sendall(self.answer(len(self.heads)))


def test_a_client_keeps_no_cookies_and_is_led_nowhere(wards):
    def answer(number):
        head = f"set-cookie: c{number}={'y' * 99}; path=/".encode()
        if number == 3:
            head += b"\r\nlocation: https://127.0.0.1:1/"
            return b"HTTP/1.1 302 Found\r\n" + head + b"\r\ncontent-length: 0\r\n\r\n"
        return b"HTTP/1.1 204 No Content\r\n" + head + b"\r\n\r\n"

    hostile = Hostile(wards, answer)
    connection = wards.connection()
    with hostile.listener:
        for _ in range(2):
            assert connection.next("-") is None
        with pytest.raises(Disconnected, match="redirect"):
            connection.next("-")
        assert not connection._client.cookies.jar
        assert len(hostile.heads) == 3 and b"cookie" not in b"".join(hostile.heads)


def test_a_client_that_ends_while_it_connects_leaves_no_socket_open(wards, monkeypatch):
    sockets, is_connecting, may_go_on = [], threading.Event(), threading.Event()
    real = ssl.SSLContext.wrap_socket

    def slow(*args, **options):
        made = real(*args, **options)
        sockets.append(made)
        if made is sockets[0]:
            is_connecting.set()
            may_go_on.wait(20)
        return made

    connection = wards.connection()
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", slow)

    def wait():
        with contextlib.suppress(Disconnected):
            connection.next("-")

    thread = threading.Thread(target=wait)
    thread.start()
    assert is_connecting.wait(20)
    connection.close()
    may_go_on.set()
    thread.join(20)
    assert not thread.is_alive()
    assert [socket.fileno() for socket in sockets] == [-1] * len(sockets)


def test_a_client_that_works_fetches_no_messages_without_end(wards):
    def answer(number):
        head = f"HTTP/1.1 200 OK\r\nmessage: {number:032x}\r\ncontent-length: 1"
        return head.encode() + b"\r\n\r\nx"

    hostile, go_on = Hostile(wards, answer), threading.Event()
    with hostile.listener, wards.joined(respond=lambda body: go_on.wait(20) or body):
        most = 2 + https_client.MOST_WAITING
        until(lambda: len(hostile.heads) == most)
        time.sleep(0.3)
        assert len(hostile.heads) == most
        go_on.set()


class Trickling(Hostile):
    """A coordinator that takes answers a byte at a time, without an end."""

    def respond(self, connection, head):
        if head.startswith(b"GET"):
            super().respond(connection, head)
            return
        connection.sendall(b"HTTP/1.1 204 No Content\r\nx: ")
        while True:
            connection.sendall(b"y")
            time.sleep(0.2)


def test_a_client_ends_whatever_the_coordinator_lets_wait(wards, monkeypatch):
    """Each byte let it wait once more, when it sent an answer and when it left."""
    monkeypatch.setattr(https_client, "CONNECT_S", 1.0)
    message = b"HTTP/1.1 200 OK\r\nmessage: %032x\r\ncontent-length: 2\r\n\r\nhi" % 1
    hostile = Trickling(wards, lambda number: message)
    with hostile.listener, wards.joined():
        until(lambda: any(head.startswith(b"POST /answer") for head in hostile.heads))
    until(lambda: any(head.startswith(b"POST /leave") for head in hostile.heads))
