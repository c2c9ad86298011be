"""Of the SuperLink's interfaces, other machines reach the clients' one only; what they
send is bounded before it is read.
"""

import asyncio
import base64
import datetime
import socket
import subprocess
import sys
import threading
import time

import pytest

from fedtailor._base.choice import MachineFailed
from fedtailor.cli import main
from fedtailor.cli.commands import federation
from fedtailor.remote.flower import processes, superlink
from fedtailor.remote.flower.superlink import (
    DEFAULT_LARGEST_BODY,
    LARGEST_BODY,
    AnswerBytes,
    BoundedBodies,
    Directory,
    HeldPolls,
    Limits,
    LoopbackOnly,
    guarded_protocol,
)
from fedtailor.remote.keys.keys import make_authority


def test_a_superlink_that_lives_is_waited_for(monkeypatch, tmp_path):
    """One that took a minute under load ended `serve` as if the input were wrong."""
    pytest.importorskip("cryptography", reason="certificates need the extra flower")
    authority = make_authority("wards").public
    monkeypatch.setattr(processes, "READY_S", 0.2)
    monkeypatch.setattr(processes, "GIVE_UP_S", 0.6)
    log = tmp_path / "superlink.log"
    log.write_bytes(b"")
    lines = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        link = processes.SuperLink("h:1", authority, b"", process, log)
        port = processes.free_port()
        with pytest.raises(MachineFailed, match="did not answer within"):
            processes._wait_until_ready(link, "127.0.0.1", port, lines.append)
        process.kill()
        process.wait()
        with pytest.raises(
            MachineFailed, match=r"^the SuperLink ended: it said nothing"
        ):
            processes._wait_until_ready(link, "127.0.0.1", port, lines.append)
    assert len(lines) == 1 and "its process lives" in lines[0]


def test_a_failure_of_the_machine_is_no_wrong_input(monkeypatch, tmp_path, capsys):
    def fails(options):
        raise MachineFailed("the SuperLink ended: it said nothing")

    options, _ = federation.COMMANDS["serve"]
    monkeypatch.setitem(federation.COMMANDS, "serve", (options, fails))
    assert main(["federation", "serve", str(tmp_path)]) == 1
    assert "the SuperLink ended: it said nothing\n" in capsys.readouterr().err


FLEET, RUNTIME = superlink.HELD_S


def ask(path, client, kind="http", headers=()):
    """Status that a request gets; 200 comes from behind the middleware."""
    sent = []

    async def behind(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "headers": headers}
    asyncio.run(LoopbackOnly(behind)(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize(
    "host",
    [
        "192.0.2.1",
        "10.0.0.1",
        "2001:db8::1",
        "::ffff:192.0.2.1",
        "0.0.0.0",
        "localhost",
        "",
    ],
)
def test_other_machines_reach_the_clients_interface_only(host):
    client = (host, 4321)
    assert ask("/v1/fleet/pull-messages", client) == 200
    for path in (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/docs",
        "/",
        "/v1/fleetx",
        "//v1/fleet/x",
        "/v1/control/../fleet/",
        superlink.WAKE,
        RUNTIME,
    ):
        assert ask(path, client) == 403
    assert ask("/v1/control/stream", client, kind="websocket") == "websocket.close"


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "x-forwarded-proto", "Forwarded", "Via", "X-Real-IP"]
)
def test_a_proxy_on_the_machine_does_not_make_others_local(header):
    headers = [(b"host", b"a"), (header.encode(), b"127.0.0.1")]
    for host in ("127.0.0.1", "::1"):
        assert ask(RUNTIME, (host, 1), headers=headers) == 403
        assert ask(FLEET, (host, 1), headers=headers) == 200
        assert ask(RUNTIME, (host, 1), headers=headers[:1]) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_the_machine_itself_reaches_all(host):
    for path in (
        "/v1/fleet/pull-messages",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
    ):
        assert ask(path, (host, 4321)) == 200


def test_a_peer_without_an_address_is_another_machine():
    assert ask("/v1/control/start-run", None) == 403


# bodies and connections
# --------------------------------------------------------------------------------------


class Behind:
    """The application behind the middleware, which remembers what reached it."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.bodies.append(message["body"])
        assert not message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})


def post(body, *, largest=10**6, known=False, declared=None, path="push-object"):
    """Status of a request, what reached the application, and how much was read.

    Args:
        body: parts of the body, as they arrive.
        largest: bytes of the largest body that is asked for.
        known: whether a registered key has signed the request.
        declared: its length in the head; None = it is not declared.
        path: of the clients' interface.
    """
    sent, parts, behind, read = [], list(body), Behind(), [0]

    async def receive():
        part = parts.pop(0)
        read[0] += len(part)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    headers = []
    if declared is not None:
        headers.append((b"content-length", str(declared).encode()))
    scope = {"type": "http", "path": f"/v1/fleet/{path}", "headers": headers}
    app = BoundedBodies(behind, lambda: largest, lambda headers: known)
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(behind.bodies), read[0]


KB64 = b"x" * 2**16


@pytest.mark.parametrize("declare", [True, False])
def test_a_large_body_without_a_key_is_not_read(declare):
    parts = [KB64] * 100
    length = len(KB64) * 100 if declare else None
    status, reached, read = post(parts, declared=length, largest=10**9)
    assert (status, reached) == (413, b"")
    assert read <= (0 if declare else 2 * len(KB64))


def test_a_small_body_needs_no_key():
    assert post([b"ab", b"c"], declared=3) == (200, b"abc", 3)
    assert post([KB64], declared=2**16)[0] == 200
    assert post([KB64, b"x"], declared=2**16 + 1)[0] == 413


def test_a_registered_key_may_send_what_was_asked_for():
    pytest.importorskip("flwr", reason="needs Flower (extra flower)")
    parts = [KB64] * 10
    size = 10 * 2**16
    assert post(parts, declared=size, known=True, largest=size)[:2] == (
        200,
        b"".join(parts),
    )
    assert post(parts, declared=size, known=True, largest=size - 1) == (413, b"", 0)
    # A client that declares less, or nothing, gains nothing.
    assert post(parts, known=True, largest=2 * 2**16)[::2] == (413, 3 * 2**16)
    assert post(parts, declared=5, known=True)[::2] == (413, 2 * 2**16)
    for wrong in ("1e9", "-5", "9" * 30, "", "5, 5"):
        assert post(parts, declared=wrong)[::2] == (413, 2 * 2**16)


def test_what_a_client_leaves_is_bounded_by_what_was_asked_of_it():
    """Before, a client could announce any number of parts of an answer, each as large as
    an answer may be: 400 MB to a request for 1 MB, all of which the server kept.
    """
    answers, behind, statuses = AnswerBytes(lambda: 10**5), Behind(), []
    known, checked = {b"client a", b"client b"}, []

    def is_known(headers):
        checked.append(headers)
        return base64.b64decode(headers[public_key_header()]) in known

    app = BoundedBodies(behind, lambda: 10**5, is_known, answers)

    async def push(key, size, path="push-object"):
        async def receive():
            return {"type": "http.request", "body": b"x" * size, "more_body": False}

        async def send(message):
            if "status" in message:
                statuses.append(message["status"])

        headers = [(public_key_header(), base64.b64encode(key))]
        headers.append((b"content-length", str(size).encode()))
        scope = {"type": "http", "path": f"/v1/fleet/{path}", "headers": headers}
        await app(scope, receive, send)
        return statuses[-1]

    async def scene():
        sent = [await push(b"client a", 9 * 10**4) for _ in range(5)]
        assert sent == [200] * 3 + [413] * 2
        assert len(checked) == len(sent)  # each signature once
        assert [await push(b"client a", 100) for _ in range(400)].count(200) == 300
        assert await push(b"client a", 50, "push-messages") == 413
        # Others, and other requests, go on; a stranger spends nothing of a client's.
        assert await push(b"client b", 10**5) == 200
        assert await push(b"client a", 10**4, "pull-messages") == 200
        known.remove(b"client b")
        assert await push(b"client b", 2**16) == 200
        known.add(b"client b")
        assert [await push(b"client b", 10**5) for _ in range(3)] == [200, 200, 413]
        # Who is asked again may answer again.
        polls = HeldPolls(app, is_known, answers.asked)

        async def keys():
            return {"type": "http.request", "body": b"client a", "more_body": False}

        async def ignore(message):
            pass

        await polls({"type": "http", "path": superlink.WAKE}, keys, ignore)
        assert await push(b"client a", 10**5) == 200
        assert await push(b"client b", 10**5) == 413

    asyncio.run(scene())


def test_the_environment_lets_nobody_say_where_a_request_comes_from(
    monkeypatch, tmp_path
):
    """Before, FORWARDED_ALLOW_IPS=*, as containers have it, opened the interface that
    starts runs to whoever wrote that a request was forwarded for 127.0.0.1.
    """
    pytest.importorskip("flwr", reason="needs Flower (extra flower)")
    import flwr.superlink.main as original
    import uvicorn
    from flwr.supercore import app_utils
    from flwr.superlink.cli.flower_superlink import flower_superlink

    (tmp_path / "clients").mkdir()
    configs = []
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv(superlink.COORDINATOR, str(tmp_path))
    monkeypatch.setattr(
        uvicorn, "run", lambda app, **more: configs.append(uvicorn.Config(app, **more))
    )
    monkeypatch.setattr(app_utils, "start_parent_process_monitor", lambda parent: None)
    monkeypatch.setattr(sys, "argv", ["superlink"])
    monkeypatch.setattr(original, "create_app", original.create_app)  # put back
    monkeypatch.setattr(
        sys.modules[flower_superlink.__module__],
        "flower_superlink",
        lambda: uvicorn.run(Behind(), log_config=None),
    )
    superlink.main()
    assert configs[0].forwarded_allow_ips == "127.0.0.1"


def test_a_body_that_never_comes_is_given_up(monkeypatch):
    monkeypatch.setattr(superlink, "HEAD_S", 0.2)
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    app = BoundedBodies(Behind(), lambda: 10, lambda headers: False)
    headers = [(b"content-length", b"5")]
    scope = {"type": "http", "path": "/v1/fleet/x", "headers": headers}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 10))
    assert sent[0]["status"] == 408 and app._reserved == 0


# polls that wait
# --------------------------------------------------------------------------------------


class Polls:
    """The middleware, and which requests have reached the application behind it."""

    def __init__(self, known=True):
        self.reached, self.statuses = [], []
        self.app = HeldPolls(self._behind, lambda headers: known)

    async def _behind(self, scope, receive, send):
        body = (await receive())["body"]
        self.reached.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def ask(self, path, *, key=None, body=b"body", gone=None):
        """Send a request; the task ends when it is answered.

        Args:
            key: the key of the client that sends it.
            gone: an event that is set when the peer disconnects.
        """
        bodies = [{"type": "http.request", "body": body, "more_body": False}]
        headers = []
        if key is not None:
            headers.append((public_key_header(), base64.b64encode(key)))

        async def receive():
            if bodies:
                return bodies.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            self.statuses.append(message.get("status"))

        scope = {"type": "http", "path": path, "headers": headers}
        return asyncio.ensure_future(self.app(scope, receive, send))


def public_key_header():
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    return FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()


async def settle():
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_clients_poll_waits_for_a_message_to_it(monkeypatch):
    monkeypatch.setitem(superlink.HELD_S, FLEET, 60.0)

    async def scene():
        polls = Polls()
        polls.ask(FLEET, key=b"of a", body=b"a")
        polls.ask(FLEET, key=b"of b", body=b"b")
        await settle()
        assert polls.reached == []
        await polls.ask(superlink.WAKE, body=b"of b\0of c")
        await settle()
        assert polls.reached == [(FLEET, b"b")]
        # What is sent while a client does not poll is there when it does.
        await polls.ask(superlink.WAKE, body=b"of b")
        await polls.ask(FLEET, key=b"of b", body=b"b again")
        assert polls.reached == [(FLEET, b"b"), (FLEET, b"b again")]
        # And the next poll waits again.
        polls.ask(FLEET, key=b"of b", body=b"b once more")
        await settle()
        assert len(polls.reached) == 2

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_the_coordinators_poll_waits_for_a_whole_answer(monkeypatch):
    monkeypatch.setitem(superlink.HELD_S, FLEET, 60.0)
    monkeypatch.setitem(superlink.HELD_S, RUNTIME, 60.0)

    async def scene():
        polls = Polls()
        first = polls.ask(FLEET, key=b"of a")
        await settle()
        await polls.ask(superlink.WAKE, body=b"of a")
        await first
        coordinator = polls.ask(RUNTIME, body=b"coordinator")
        for _ in range(3):
            await polls.ask(superlink.ANSWER, key=b"of a")
        await settle()
        assert not coordinator.done()
        polls.ask(FLEET, key=b"of a")  # so the answer is complete
        await coordinator
        assert polls.reached[-1] == (RUNTIME, b"coordinator")
        # The parts of an answer end one wait only.
        polls.ask(FLEET, key=b"of a")
        again = polls.ask(RUNTIME)
        await settle()
        assert not again.done()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_poll_ends_without_a_message_after_a_while(monkeypatch):
    monkeypatch.setitem(superlink.HELD_S, FLEET, 0.05)
    polls = Polls()

    async def scene():
        await polls.ask(FLEET, key=b"of a")

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert polls.reached == [(FLEET, b"body")]


def test_polls_of_strangers_do_not_wait(monkeypatch):
    monkeypatch.setitem(superlink.HELD_S, FLEET, 60.0)
    polls = Polls(known=False)

    async def scene():
        for number in range(100):
            await polls.ask(FLEET, key=str(number).encode())
            await polls.ask(superlink.ANSWER, key=str(number).encode())

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert len(polls.reached) == 200
    # And leave nothing behind.
    assert not polls.app._sent_to and not polls.app._sending


def test_a_message_is_not_handed_to_a_client_that_has_gone(monkeypatch):
    monkeypatch.setitem(superlink.HELD_S, FLEET, 60.0)

    async def scene():
        polls, gone = Polls(), asyncio.Event()
        lost = polls.ask(FLEET, key=b"of a", gone=gone)
        await settle()
        gone.set()
        await lost
        await polls.ask(superlink.WAKE, body=b"of a")
        assert polls.reached == []
        await polls.ask(FLEET, key=b"of a", body=b"back")
        assert polls.reached == [(FLEET, b"back")]

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_poll_has_a_largest_body(monkeypatch):
    monkeypatch.setattr(superlink, "MAX_POLL_BODY", 10)
    polls = Polls()

    async def scene():
        await polls.ask(RUNTIME, body=bytes(11))

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert (polls.statuses[0], polls.reached) == (413, [])


def test_all_bodies_together_are_bounded(monkeypatch):
    monkeypatch.setattr(superlink, "TOGETHER", 0)
    size = 2**17
    sent = []

    async def main():
        release = asyncio.Event()
        app = BoundedBodies(Behind(), lambda: size, lambda headers: True)

        async def receive():
            await release.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if "status" in message:
                sent.append(message["status"])

        headers = [(b"content-length", str(size).encode())]
        scope = {"type": "http", "path": "/v1/fleet/x", "headers": headers}
        calls = [asyncio.create_task(app(scope, receive, send)) for _ in range(20)]
        await asyncio.sleep(0.05)
        release.set()
        await asyncio.gather(*calls)
        assert app._reserved == 0

    asyncio.run(main())
    assert sorted(sent) == [200] * 8 + [503] * 12


def test_the_keys_of_large_bodies_are_those_in_the_directory(tmp_path):
    pytest.importorskip("flwr", reason="needs Flower (extra flower)")
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import sign_message

    from fedtailor.remote.keys.keys import make_client_key, registered_form

    (tmp_path / "clients").mkdir()
    known, other = make_client_key(), make_client_key()
    (tmp_path / "clients" / "a.pub").write_bytes(known.public)
    directory = Directory(tmp_path)

    def headers(signer=known, claimed=known, moment=None, **change):
        text = (moment or now()).isoformat()
        key = load_ssh_private_key(signer.private, None)
        public = registered_form(claimed.public)
        found = {
            b"flwr-public-key": base64.b64encode(public),
            b"flwr-timestamp": text.encode(),
            b"flwr-signature": base64.b64encode(sign_message(key, text.encode())),
        }
        return found | {name.encode(): value for name, value in change.items()}

    assert directory.is_known(headers())
    assert not directory.is_known(headers(other, other))  # not registered
    assert not directory.is_known(headers(other, known))  # of another's key
    old = now() - datetime.timedelta(minutes=5)
    assert not directory.is_known(headers(moment=old))
    assert not directory.is_known(headers(moment=now() + datetime.timedelta(minutes=5)))
    assert not directory.is_known({})
    for name in headers():
        for nonsense in (b"", b"\xff", b"!!", b"2026"):
            assert not directory.is_known(headers() | {name: nonsense})
    # A key that is taken away counts at once, and so does one that is added.
    time.sleep(0.02)
    (tmp_path / "clients" / "a.pub").rename(tmp_path / "clients" / "a.old")
    (tmp_path / "clients" / "b.pub").write_bytes(other.public)
    assert not directory.is_known(headers())
    assert directory.is_known(headers(other, other))
    assert directory.largest_body() == DEFAULT_LARGEST_BODY
    (tmp_path / LARGEST_BODY).write_text("123")
    assert directory.largest_body() == 123


@pytest.fixture
def server(monkeypatch):
    """A server with limits, in a thread; its port."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs Flower (extra flower)")
    pytest.importorskip("httptools", reason="without it uvicorn's h11 has the limits")
    monkeypatch.setattr(superlink, "HEAD_S", 4.0)
    app = BoundedBodies(Behind(), lambda: 10**6, lambda headers: False)
    protocol = guarded_protocol(Limits(connections=6, of_one_peer=4))
    config = uvicorn.Config(
        app, port=0, http=protocol, ws="none", lifespan="off", log_level="error"
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield running.servers[0].sockets[0].getsockname()[1]
    running.should_exit = True
    thread.join(10)


def is_open(connection):
    """Whether the server keeps a connection on which nothing was sent."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_connections_of_one_peer_are_limited_and_silent_ones_are_closed(server):
    opened = [socket.create_connection(("127.0.0.1", server)) for _ in range(6)]
    try:
        time.sleep(0.2)
        assert [is_open(each) for each in opened] == [True] * 4 + [False] * 2
        end = time.monotonic() + 60
        while any(is_open(each) for each in opened):
            assert time.monotonic() < end
    finally:
        for each in opened:
            each.close()
    with socket.create_connection(("127.0.0.1", server)) as again:
        again.sendall(
            b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
        )
        assert b"200" in again.recv(100)


def test_an_endless_head_is_cut_off(server):
    with socket.create_connection(("127.0.0.1", server)) as peer:
        peer.sendall(b"POST /v1/fleet/x HTTP/1.1\r\n")
        sent = 0
        with pytest.raises(OSError):
            while sent < 100 * 2**20:
                peer.sendall(b"a: " + b"b" * 1000 + b"\r\n")
                sent += 1005
        assert sent < 20 * 2**20  # what buffers of the system hold
