"""Who is there: tables of clients, the population that a run trains, and the cohort of
one exchange.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol.keys import server_rng
from fedtailor.protocol.parts import ModelParts

if TYPE_CHECKING:
    from fedtailor.protocol.exchange import Answers


class Examples(Protocol):
    """Draws examples from the seen clients' training data, as a server that held them
    all could (in a simulation).

    It is for methods whose server sends out examples, as DAPPER's does.
    """

    def __call__(
        self,
        rng: np.random.Generator,
        count: int,
        clients: NDArray[np.integer[Any]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw with replacement from the union of the clients' training data.

        Args:
            rng: the source of randomness.
            count: how many examples, n.
            clients: positions in the population of those whose data to draw from; None
                = all.

        Returns:
            Inputs x [n, ...] and targets y [n, ...], as stored.
        """
        ...


@dataclass(frozen=True)
class Clients:
    """A table of clients, sorted by id, so that nothing depends on the order in which
    they are listed.

    Attributes:
        ids: stable 64-bit ids [m], ascending.
        names: their names [m].
        sizes: training samples [m].
        groups: true group of each client [m] where the data have groups, else None.
        listed: [m] their positions in the list that the user gave, for tables that
            people read.
    """

    ids: NDArray[np.uint64]
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    listed: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Population(Clients):
    """The seen clients, and what a method may know of the run before it begins.

    Attributes:
        reporters_per_round: how many clients report in a round (m under full
            participation).
        seed: the run's seed.
        examples: the clients' data on the server, where it has them (in a simulation);
            else None.
        model: the parts of the model that is trained.
    """

    reporters_per_round: int
    seed: int
    examples: Examples | None = None
    model: ModelParts | None = None


@dataclass(frozen=True)
class Cohort:
    """The clients of one exchange, sorted by id.

    Attributes:
        clients: the table they stand in: of the seen clients, or of those that never
            took part.
        rows: [c] their rows in that table, ascending.
        seen: whether they take part in training.
        reporting: [c] who reports: participation's choice and, in `server`, those who
            were asked and did answer.
        round: 0, 1, ...; after training, the number of rounds done.
        seed: the run's seed.
        probes: answers to the probe, for unseen clients of methods that have a probe;
            else None.
        examples: as in `Population`.
        room: rows that programs make room for, where cohorts differ in size: so that
            not each size compiles anew.
    """

    clients: Clients
    rows: NDArray[np.int64]
    seen: bool
    reporting: NDArray[np.bool_]
    round: int
    seed: int
    probes: "Answers | None" = None
    examples: Examples | None = field(default=None, repr=False)
    room: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def position(self) -> NDArray[np.int64]:
        """The rows of these clients in any table over the population.

        Returns:
            [c] positions, ascending.

        Raises:
            ValueError: the clients never took part, so that they have no such row.
        """
        if not self.seen:
            raise ValueError(
                "clients that never took part have no position in the population; look"
                " at cohort.seen"
            )
        return self.rows

    @property
    def reporters(self) -> NDArray[np.int64]:
        """[r] positions in the population of the clients that report, ascending."""
        return self.position[self.reporting]

    @property
    def ids(self) -> NDArray[np.uint64]:
        """[c] stable ids."""
        return self.clients.ids[self.rows]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[c] training samples."""
        return self.clients.sizes[self.rows]

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """[c] true groups, or None."""
        return None if self.clients.groups is None else self.clients.groups[self.rows]

    def rng(self, purpose: str) -> np.random.Generator:
        """The server's random generator for one purpose in this round."""
        return server_rng(self.seed, purpose, self.round)
