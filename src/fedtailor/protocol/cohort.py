"""Tables of clients, the population that a run trains, and the cohort of one exchange.

A client has a row in a table of clients (`Cohort.rows`) and a position in a cohort, from 0
to c - 1. Both orders are by id, so that no result depends on the order in which the user
has listed the clients.
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
    """Draws examples from the seen clients' training data, as a server could that had
    them all (in a simulation).

    It is for methods whose server sends examples to clients, as DAPPER's does.
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
            clients: rows in the population of the clients from whose data to draw; None
                = all.

        Returns:
            Inputs x [n, ...] and targets y [n, ...], as stored.
        """
        ...


@dataclass(frozen=True)
class Clients:
    """A table of clients, sorted by id.

    Attributes:
        ids: stable 64-bit ids [m], ascending.
        names: their names [m].
        sizes: training samples [m].
        groups: true group of each client [m] where the data have groups, else None.
        original_index: [m] where each client stands in the user's own order, in which
            tables for people are sorted.
    """

    ids: NDArray[np.uint64]
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    original_index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Population(Clients):
    """The seen clients, and what a method may know of the run before it begins.

    Attributes:
        reporters_per_round: how many clients report in a round (m under full
            participation).
        seed: the run's seed.
        examples: draws from the clients' training data, if the server has them (in a
            simulation); else None.
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
        clients: the table that they are in: of the seen clients, or of those that never
            took part.
        rows: [c] their rows in that table, ascending.
        seen: whether they take part in training.
        reporting: [c] whether each client reports. Before an exchange these are the
            clients that participation chose; in `server`, those of them that were asked
            to reply and did.
        round: 0, 1, ...; after training, the number of rounds done.
        seed: the run's seed.
        probes: answers to the probe, for unseen clients of methods that have a probe;
            else None.
        examples: as in `Population`.
        capacity: a number of clients, c or more, that programs are compiled for where the
            size of cohorts varies, so that few programs serve all sizes; else 0.
    """

    clients: Clients
    rows: NDArray[np.int64]
    seen: bool
    reporting: NDArray[np.bool_]
    round: int
    seed: int
    probes: "Answers | None" = None
    examples: Examples | None = field(default=None, repr=False)
    capacity: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def position(self) -> NDArray[np.int64]:
        """The rows of these clients in the population.

        Returns:
            [c] rows, ascending.

        Raises:
            ValueError: the clients are not of the population: they never took part.
        """
        if not self.seen:
            raise ValueError(
                "clients that never took part have no position in the population; look"
                " at cohort.seen"
            )
        return self.rows

    @property
    def reporters(self) -> NDArray[np.int64]:
        """[r] the rows in the population of the clients that report, ascending."""
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
