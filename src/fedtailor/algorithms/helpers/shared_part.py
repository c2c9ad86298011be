"""Methods that average a part of the model, while clients keep the rest."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
from fedtailor.models import Part
from fedtailor.protocol import (
    ClientRows,
    ClientState,
    Init,
    ModelPart,
    ModelParts,
    Population,
    Streams,
    server_state,
)


@server_state
class SharedPart(AveragedModels):
    """A model [1, d]; one part of it is averaged.

    All other entries are those of the initial model. `optimizer` is the state for the
    shared part only.
    """

    initial: Float[Array, " d"]
    """theta^0, whose entries outside of the shared part clients start from."""
    runs: Int[np.ndarray, "runs 2"]
    """The entries of the shared part (see `runs_of`)."""

    @staticmethod
    def begin(init: Init, part: ModelPart, optimizer: ServerOptimizer) -> "SharedPart":
        """The state before the first round, with the common initial model."""
        theta = init(0)[None]  # [1, d]: the server holds one model
        state = optimizer.init(part.take(theta))
        return SharedPart(theta, state, theta[0], runs_of(part))

    @property
    def part(self) -> Part:
        """The shared part."""
        return part_of_runs(self.runs, self.model.shape[1])

    def part_stream(self, clients: int) -> Streams:
        """The message with the shared part [1, d_part], for all clients of a cohort."""
        return Streams.everyone(jnp.asarray(self.part.take(self.model)), clients)

    def initial_stream(self, clients: int) -> Streams:
        """The message with theta^0 [1, d], for the entries outside of the shared part.

        Clients can compute theta^0 from the run's seed, so the ledger does not count
        it.
        """
        return Streams.everyone(self.initial, clients, already_held=True)

    def update_part(
        self,
        optimizer: ServerOptimizer,
        parts: ClientRows,
        weights: Float[np.ndarray, "1 c"],
        is_statistic: NDArray[np.bool_] | None,
    ) -> "SharedPart":
        """The state after FedAvg's server step on the shared part.

        Args:
            optimizer: the server's.
            parts: what the clients sent [c, d_part].
            weights: of the average.
            is_statistic: `Cohort.is_statistic`.
        """
        part = self.part
        if is_statistic is not None:
            is_statistic = part.take(is_statistic)
        before = AveragedModels(part.take(self.model), self.optimizer)
        after = average_step(before, optimizer, parts, weights, is_statistic)
        model = part.put(self.model, after.model)
        return self.replace(model=model, optimizer=after.optimizer)


def runs_of(part: ModelPart) -> Int[np.ndarray, "runs 2"]:
    """The entries of a part in theta, as runs of consecutive entries.

    Returns:
        The first entry, and one past the last entry, of each run. Checkpoints can hold
        this array.
    """
    entries = part.indices
    # A run ends where the next entry is not the next number.
    breaks = np.flatnonzero(np.diff(entries) != 1) + 1
    runs = []
    for run in np.split(entries, breaks):
        if len(run):
            runs.append((run[0], run[-1] + 1))
    return np.array(runs, np.int64).reshape(-1, 2)


def part_of_runs(runs: Int[np.ndarray, "runs 2"], d: int) -> Part:
    """The inverse of `runs_of`, for a model with d entries."""
    return Part("shared", tuple((int(start), int(end)) for start, end in runs), d)


def join_parts(
    own: ModelPart, state: ClientState, shared: Float[Array, " d_shared"]
) -> Float[Array, " d"]:
    """The whole model, from a client's own part and the shared part.

    Args:
        own: the client's own part.
        state: the client's state, with the entries of its own part as `state["own"]`,
            unless that part is empty.
        shared: the entries of the shared part.
    """
    # The two parts are complements, so every entry is set.
    own_entries = state.get("own", jnp.zeros(0, shared.dtype))
    zeros = jnp.zeros(len(own_entries) + len(shared), shared.dtype)
    theta = own.put(zeros, own_entries)
    return own.complement.put(theta, shared)


def entry_of_part(name: str, part: Float[Array, " d_part"]) -> dict[str, Array]:
    """A part as an entry of a client's state or message; no entry if it is empty."""
    return {name: part} if len(part) else {}


def model_parts_of(population: Population, method: str) -> ModelParts:
    """The parts of the model that a population trains.

    Raises:
        ValueError: the population was made without a model.
    """
    require(
        population.model is not None,
        f"{method} must know the model's parts; give the population its model",
    )
    assert population.model is not None
    return population.model
