"""Coordinators between clients in this process that keep, lose or change messages."""

import dataclasses

from fedtailor.remote.job.statistics import as_array, statistics_from_arrays
from fedtailor.remote.wire.messages import decode_request, encode_request
from fedtailor.remote.wire.request_kind import AGREED, STATISTICS
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


class TellingOthers(Tap):
    """Sends all clients but one pooled sums by which their numbers are nearly alike."""

    def __init__(self, clients, schema, favoured):
        super().__init__(clients)
        self._schema, self._favoured, self._inputs = schema, favoured, {}

    def send(self, client, body):
        request = decode_request(body)
        if request.task == AGREED and client != self._favoured:
            pooled = statistics_from_arrays(request.arrays, self._schema)
            far = {
                name: sums.model_copy(
                    update={"count": sums.count + 10**9, "squares": 1e20}
                )
                for name, sums in pooled.columns.items()
                if self._schema.kinds[name] == "number"
            }
            pooled = pooled.model_copy(update={"columns": pooled.columns | far})
            self._inputs[client] = pooled.fingerprint
            sent = {STATISTICS: as_array(pooled)}
            body = encode_request(dataclasses.replace(request, arrays=sent))
        elif client in self._inputs:
            said = {**request.algorithm, "inputs": self._inputs[client]}
            body = encode_request(dataclasses.replace(request, algorithm=said))
        super().send(client, body)
