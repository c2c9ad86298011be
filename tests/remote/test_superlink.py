"""Of the SuperLink's interfaces, other machines reach the clients' one only."""

import asyncio

import pytest

from fedtailor.remote.superlink import LoopbackOnly


def ask(path, client, kind="http"):
    """Status that a request gets; 200 comes from behind the middleware."""
    sent = []

    async def behind(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    asyncio.run(
        LoopbackOnly(behind)({"type": kind, "path": path, "client": client}, None, send)
    )
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
    ):
        assert ask(path, client) == 403
    assert ask("/v1/control/stream", client, kind="websocket") == "websocket.close"


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
