"""Flower's SuperLink, of which other machines reach the clients' interface only.

Flower serves three interfaces on one port: fleet (clients, each known by its key),
control (start runs, register keys) and runtime (carry out runs). The last two obey
whoever reaches them, so here only this machine does.

`python -m fedtailor.remote.superlink` takes the options of `flower-superlink`, and ends
when the process that started it ends.
"""

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

PUBLIC = "/v1/fleet/"
"""Paths under this prefix are for clients; Flower checks each request's signature."""

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Mapping[str, Any], Any, Send], Awaitable[None]]


class LoopbackOnly:
    """ASGI middleware that lets other machines reach the clients' interface only.

    Args:
        app: what answers the requests that are let through.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self, scope: Mapping[str, Any], receive: Any, send: Send
    ) -> None:
        """Hand a request on, or refuse it."""
        allowed = (
            scope["type"] == "lifespan"
            or scope["path"].startswith(PUBLIC)
            or _is_local(scope.get("client"))
        )
        if allowed:
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"text/plain")]
        body = b"only the coordinator's own machine may ask this\n"
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Run the SuperLink until it is told to stop, or its parent is gone."""
    import flwr.superlink.main as superlink
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink.cli.flower_superlink import flower_superlink

    original = superlink.create_app

    def create_app(*arguments: Any) -> Any:
        app = original(*arguments)
        app.add_middleware(LoopbackOnly)
        return app

    # Flower has no option for middleware; its command looks this name up when it
    # starts.
    superlink.create_app = create_app
    start_parent_process_monitor(os.getppid())
    sys.argv[0] = "flower-superlink"  # for its messages
    flower_superlink()


def _is_local(client: tuple[str, int] | None) -> bool:
    """Whether a peer (address, port) is this machine; one without an address is not."""
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    # On a socket for both versions, IPv4 addresses are written as IPv6.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


if __name__ == "__main__":
    main()
