"""Flower's SuperLink, which serves only the clients' interface to other machines.

Flower serves three interfaces on one port: fleet (for clients, which authenticate with
their keys), control (to start runs and register keys) and runtime (to execute runs).
The last two do not authenticate, so here they answer requests of this machine only.

`python -m fedtailor.remote.superlink` takes the options of `flower-superlink`, and
exits when the process that started it exits.
"""

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

PUBLIC = "/v1/fleet/"
"""Prefix of the clients' paths; Flower checks the signature of each request to them."""

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Mapping[str, Any], Any, Send], Awaitable[None]]


class LoopbackOnly:
    """ASGI middleware that serves only the clients' interface to other machines.

    Args:
        app: the application that answers allowed requests.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self, scope: Mapping[str, Any], receive: Any, send: Send
    ) -> None:
        """Pass a request on, or refuse it."""
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
    """Run the SuperLink until it is stopped, or its parent process has ended."""
    import flwr.superlink.main as superlink
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink.cli.flower_superlink import flower_superlink

    original = superlink.create_app

    def create_app(*arguments: Any) -> Any:
        app = original(*arguments)
        app.add_middleware(LoopbackOnly)
        return app

    # Flower has no option for middleware, but its command looks this name up.
    superlink.create_app = create_app
    start_parent_process_monitor(os.getppid())
    sys.argv[0] = "flower-superlink"  # the program name in its messages
    flower_superlink()


def _is_local(client: tuple[str, int] | None) -> bool:
    """Whether a peer (address, port) is on this machine; False without an address."""
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 addresses as IPv6 addresses.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


if __name__ == "__main__":
    main()
