"""Bounds what a client reads from its coordinator, over the connection that Flower makes.

The coordinator is not trusted. Flower's connection would follow it to any other address,
without TLS too, and read and unpack an answer of any size. This one does neither.
"""

import threading
from collections.abc import Callable, Iterator

import httpx

from fedtailor._base.memory import total_memory

LARGEST_SHARE = 0.125
"""The largest share of this machine's memory that the parts of one message may take.

There are several copies of a message while it is read.
"""


class TooLarge(httpx.ReadError):
    """The coordinator sends more than this machine takes."""


class Budget:
    """The bytes that may still be read.

    Args:
        largest: bytes of one message, with all of its parts.
    """

    def __init__(self, largest: int) -> None:
        self._largest = self._left = largest
        self._lock = threading.Lock()  # heartbeats have a thread of their own

    def renew(self) -> None:
        """Begin to count the bytes of a message."""
        with self._lock:
            self._left = self._largest

    def spend(self, size: int) -> None:
        """Count bytes.

        Raises:
            TooLarge: they are more than a message may have.
        """
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise TooLarge("it is larger than what this machine takes")


class BoundedTransport(httpx.BaseTransport):
    """Reads no more bytes than there are in a budget, and none that have to be unpacked.

    Args:
        transport: what reads them.
        budget: what may be read.
    """

    def __init__(self, transport: httpx.BaseTransport, budget: Budget) -> None:
        self._transport, self._budget = transport, budget

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its answer is bounded while it is read."""
        request.headers["accept-encoding"] = "identity"
        response = self._transport.handle_request(request)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            response.close()
            raise httpx.RemoteProtocolError("the answer is packed", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream, self._budget.spend),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, count: Callable[[int], None]
    ) -> None:
        self._stream, self._count = stream, count

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._count(len(part))
            yield part

    def close(self) -> None:
        self._stream.close()


def bound_connection(client: httpx.Client) -> Budget:
    """Let a connection read from its own address only, and no more than is bounded.

    Args:
        client: the connection; changed in place.

    Returns:
        What may be read, to be renewed before each message.
    """
    client.follow_redirects = False
    budget = Budget(int(LARGEST_SHARE * total_memory()))
    client._transport = BoundedTransport(client._transport, budget)
    # A proxy that the environment names has a transport of its own.
    for pattern, transport in client._mounts.items():
        if transport is not None:
            client._mounts[pattern] = BoundedTransport(transport, budget)
    return budget
