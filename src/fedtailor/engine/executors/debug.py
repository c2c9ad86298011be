"""The executor for debugging: one client at a time without compilation, a check after
every step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.engine.client.tasks import Outputs
from fedtailor.engine.client.trainer import DeviceTrainer
from fedtailor.engine.executors.device_executor import DeviceExecutor
from fedtailor.engine.executors.devices import ExchangeRequest
from fedtailor.engine.executors.map_clients import Pipelines, SharedInputs, run_client
from fedtailor.protocol import Cohort, Diverged


class DebugTrainer(DeviceTrainer):
    """`DeviceTrainer` whose loops run step by step. The first NaN or infinity raises an
    error that names client, round and step.
    """

    def __init__(self, *arguments: Any, name: str) -> None:
        super().__init__(*arguments)
        self.name = name

    def repeat(self, times: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        for step in range(int(times)):
            carry = body(jnp.int32(step), carry)
            self._check(carry, step)
        return carry

    def _check(self, carry: Any, step: int) -> None:
        """Refuse NaN and infinity after every step, so that the error names the step
        that caused them.
        """
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(carry)):
            raise Diverged(self.name, int(self.round), step=step)


class DebugExecutor(DeviceExecutor):
    """`DeviceExecutor` that runs the same functions in plain Python: slow, with errors
    that name client and step.

    Example:
        >>> from fedtailor.engine.executors import executor_kind
        >>> executor_kind(ft.Settings(debug=True)).__name__
        'DebugExecutor'
    """

    @property
    def adds_up(self) -> bool:
        return False

    def _order(self, cohort: Cohort) -> NDArray[np.int64]:
        # There are no devices to balance: the first error is that of the first client.
        return np.arange(len(cohort))

    def _trainer(self, name: str) -> Callable[..., DeviceTrainer]:
        """The function that makes the trainer of a client."""
        return partial(DebugTrainer, name=name)

    def _run(self, request: ExchangeRequest) -> Outputs:
        exchange = request.exchange
        # These are the inputs of compiled programs. The same function is run on them, row
        # by row.
        streams, (clients,) = self.devices.inputs([request])
        pipelines = Pipelines(exchange.uplink, exchange.received_through)
        shared = SharedInputs(
            exchange.algorithm,
            pipelines,
            self.devices.pool,
            streams,
            self.devices.frozen(request.model),
        )
        outputs = []
        for row, client in enumerate(request.clients):
            client_inputs = jax.tree.map(
                lambda leaf, row=row: jnp.asarray(leaf[row]), clients
            )
            with jax.disable_jit():
                outputs.append(
                    run_client(
                        exchange.task,
                        request.model,
                        shared,
                        client_inputs,
                        self._trainer(self.federation.names[client]),
                        exchange.metrics,
                        exchange.downlink.mode,
                    )
                )
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
