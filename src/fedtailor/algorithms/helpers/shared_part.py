"""A part of the model that clients share: what of theta travels and is averaged, and
what a client keeps.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

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
    require,
    server_state,
)


@server_state
class SharedPart(AveragedModels):
    """A model [1, d] of which one part is averaged; all other entries are those that
    every client began with.

    `optimizer` is of the shared part only.
    """

    initial: Float[Array, " d"]
    """theta^0, of which clients need what is outside the shared part."""
    runs: Int[np.ndarray, "runs 2"]
    """Where the shared part lies in theta: first entry, and one past the last, of every
    run.
    """

    @staticmethod
    def begin(init: Init, part: ModelPart, optimizer: ServerOptimizer) -> "SharedPart":
        """Before the first round, at the common initial model."""
        theta = init(0)[None]
        return SharedPart(
            theta, optimizer.init(part.take(theta)), theta[0], runs_of(part)
        )

    @property
    def part(self) -> Part:
        """The shared part."""
        return part_of_runs(self.runs, self.model.shape[1])

    def to_everyone(self, clients: int) -> Streams:
        """The shared part [1, d_part] to every client of a cohort."""
        return Streams.everyone(jnp.asarray(self.part.take(self.model)), clients)

    def initial_to_everyone(self, clients: int) -> Streams:
        """theta^0 [1, d], for the entries outside the part; common knowledge (the
        seed).
        """
        return Streams.everyone(self.initial, clients, already_held=True)

    def averaged(
        self,
        optimizer: ServerOptimizer,
        parts: ClientRows,
        weights: Float[np.ndarray, "1 c"],
    ) -> "SharedPart":
        """After one step of the shared part towards the average of what clients sent
        [c, d_part].
        """
        # FedAvg's step on a vector that is the part alone, put back into theta.
        part = self.part
        before = AveragedModels(part.take(self.model), self.optimizer)
        after = average_step(before, optimizer, parts, weights)
        return self.replace(
            model=part.put(self.model, after.model), optimizer=after.optimizer
        )


def runs_of(part: ModelPart) -> Int[np.ndarray, "runs 2"]:
    """Where a part lies in theta, as a checkpoint can hold it: first entry, and one
    past the last, of every run.
    """
    entries = part.indices
    # a run ends where the next entry is not the next number
    breaks = np.flatnonzero(np.diff(entries) != 1) + 1
    runs = []
    for run in np.split(entries, breaks):
        if len(run):
            runs.append((run[0], run[-1] + 1))
    return np.array(runs, np.int64).reshape(-1, 2)


def part_of_runs(runs: Int[np.ndarray, "runs 2"], d: int) -> Part:
    """The part of a theta of d entries that `runs_of` describes."""
    return Part("shared", tuple((int(start), int(end)) for start, end in runs), d)


def joined(
    own: ModelPart, state: ClientState, shared: Float[Array, " d_shared"]
) -> Float[Array, " d"]:
    """The model of a client's own part, which it keeps as `state["own"]` where there is
    one, and the shared rest.
    """
    # The two parts are complements: between them they fill every entry of a vector of
    # zeros.
    kept = state.get("own", jnp.zeros(0, shared.dtype))
    whole = own.put(jnp.zeros(len(kept) + len(shared), shared.dtype), kept)
    return own.complement.put(whole, shared)


def named(name: str, part: Float[Array, " d_part"]) -> dict[str, Array]:
    """What a client keeps or sends of a part; nothing where the part is empty."""
    return {name: part} if len(part) else {}


def model_of(population: Population, method: str) -> ModelParts:
    """The parts of the model that a population trains.

    Raises:
        ValueError: whoever made the population did not say.
    """
    require(
        population.model is not None,
        f"{method} must know the model's parts; give the population its model",
    )
    assert population.model is not None
    return population.model
