"""Training over machines: a round that too few clients answer is retried."""

import time
from typing import Any

from numpy.typing import NDArray

from fedtailor.aggregation.accounting import Ledger
from fedtailor.engine.storage.interrupts import Interrupted
from fedtailor.engine.training import Training
from fedtailor.protocol import Answers, Downlink, Exchange, Exchanges
from fedtailor.remote.server.executor import RemoteExecutor
from fedtailor.remote.server.update_check import require_finite_server
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.transport import TooFewClients

PATIENCE_S = 3600.0
"""How many seconds to retry a round, unless the coordinator says otherwise."""

COMPILE_S = 300.0
"""Seconds that clients may take to compile a task, in addition to the deadline."""

PAUSE_S = 10.0
"""Seconds between two attempts of a round. All clients may refuse at once, so that an
attempt takes no time.
"""


class RemoteTraining(Training[RemoteExecutor]):
    """The training of a coordinator, which lasts longer than its connections.

    Attributes:
        patience: how many seconds to retry a round with too few clients; 0 = it
            ends the training.
        pause: seconds between two attempts.
    """

    patience: float = PATIENCE_S
    pause: float = PAUSE_S

    def next_round(self, reporting: NDArray[Any] | None = None) -> Exchanges[None]:
        """Do one round; see `Rounds.next_round`.

        An attempt that too few clients answer changes nothing. The next one asks the
        same clients the same, so the models do not depend on the number of attempts.

        Raises:
            TooFewClients: there were too few for `patience` seconds.
        """
        end: float | None = None
        while True:
            try:
                yield from super().next_round(reporting)
                return
            except TooFewClients as error:
                now = time.monotonic()
                end = now + self.patience if end is None else end
                if now + self.pause > end:
                    raise
                COORDINATOR_LOG.warning(
                    f"round {self.round + 1}: {error}; asking again for"
                    f" {_duration(end - now)}"
                )
                self.executor.repeat_exchanges()
            if self.executor.stop.wait(self.pause):
                raise Interrupted

    def _aggregate_finite(
        self, downlink: Downlink, exchange: Exchange, answers: Answers
    ) -> tuple[Any, list[Any]]:
        server, uplink_state = super()._aggregate_finite(downlink, exchange, answers)
        require_finite_server(server, self.round)
        return server, uplink_state

    def deliver(self, ledger: Ledger) -> Exchanges[None]:
        """Send all clients their final models; see `Training.deliver`."""
        self.executor.deliver()
        yield from super().deliver(ledger)


def _duration(seconds: float) -> str:
    """A time for people, in its largest suitable unit."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
