"""What clients remember of sums, a coordinator that was killed remembers, too."""

import pytest

from fedtailor.remote.server.coordinate import SUMS
from fedtailor.remote.server.rounds import RemoteTraining
from fedtailor.remote.wire.messages import decode_request
from fedtailor.remote.wire.secure_sums import KEYS, STAGES, UNMASK, VECTORS
from remote.jobs import NAMES, Clients
from remote.taps import Tap

REST = """[privacy]
secure_aggregation = true
sum_scope = "round"
"""


class Killed(Exception):
    """The coordinator's process ends."""


class Hiccup(Tap):
    """In the second round b is lost from a stage on, and the coordinator is killed once
    the sum of the others was opened.
    """

    def __init__(self, clients, stage):
        super().__init__(clients, self.is_lost)
        self.late = STAGES[STAGES.index(stage) :]
        self.opened, self.is_over = 0, False

    def is_lost(self, client, request):
        is_late = request.round == 1 and request.task in self.late
        return client == "b" and is_late and not self.is_over

    def send(self, client, body):
        super().send(client, body)
        request = decode_request(body)
        if not self.is_over and (request.task, request.round) == (UNMASK, 1):
            self.opened += 1
            if self.opened == len(NAMES) - 1:
                self.is_over = True
                raise Killed


@pytest.mark.parametrize("stage", [KEYS, VECTORS])
def test_a_round_goes_on_after_a_restart_without_who_was_lost_from_it(
    tmp_path, monkeypatch, stage
):
    """Before, the coordinator asked b again, and all others refused for ever."""
    monkeypatch.setattr(RemoteTraining, "pause", 0.05)
    clients = Clients(tmp_path / "job", rounds=3, method="fedavg", rest=REST)
    object.__setattr__(clients.job, "deadline", 0.3)
    transport = Hiccup(clients.start(NAMES)[0]._clients, stage)
    with pytest.raises(Killed):
        clients.train_over(transport, NAMES, patience=20.0)
    assert (clients.directory / "run" / SUMS).exists()
    training = clients.train_over(transport, NAMES, patience=5.0, resume=True)
    assert training.round == 3
