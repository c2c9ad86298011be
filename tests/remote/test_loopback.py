"""Many clients through real messages in one process: what a simulated federation costs
and does.
"""

import time

import numpy as np
import pytest

from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.transport import (
    LoopbackTransport,
    Responder,
    send_and_receive,
)

MODEL = 44_426
SPECS = {"model": ArraySpec((MODEL,), "float32")}


@pytest.mark.parametrize("clients", [1, 30])
def test_rounds_of_many_clients_are_those_of_plain_functions(clients):
    names = [f"c{number}" for number in range(clients)]
    targets = np.random.default_rng(0).normal(size=(clients, MODEL)).astype(np.float32)

    def step(model, client):
        return model + np.float32(0.5) * (targets[client] - model)

    responders = {
        name: Responder(
            "job",
            name,
            lambda request, client=client: {
                "model": step(request.arrays["model"], client)
            },
        )
        for client, name in enumerate(names)
    }
    transport = LoopbackTransport(responders)
    over_bytes = plain = np.zeros(MODEL, np.float32)
    for round in range(3):
        requests = {
            name: Request(
                "job",
                round,
                0,
                "client",
                name,
                deadline=time.time() + 60,
                arrays={"model": over_bytes},
            )
            for name in names
        }
        found = send_and_receive(transport, requests, SPECS, minimum=clients)
        over_bytes = np.mean(
            [reply.arrays["model"] for reply in found.replies.values()], axis=0
        )
        plain = np.mean([step(plain, client) for client in range(clients)], axis=0)
    np.testing.assert_array_equal(over_bytes, plain)
