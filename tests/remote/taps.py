"""Coordinators between clients in this process that keep, lose or change messages."""

from fedtailor.remote.wire.messages import decode_request
from fedtailor.remote.wire.transport import LoopbackTransport


class Tap(LoopbackTransport):
    """Keeps the messages, and loses some.

    Attributes:
        requests, sent: (client, message) of both directions.
        lose: function of a request that says whether its answer is lost.
    """

    def __init__(self, clients, lose=lambda client, request: False):
        super().__init__(clients)
        self.requests, self.sent, self.lose = [], [], lose

    def send(self, client, body):
        """Have the client answer."""
        self.requests.append((client, body))
        super().send(client, body)
        self.sent.append(self._inbox[-1])
        if self.lose(client, decode_request(body)):
            self._inbox.pop()
