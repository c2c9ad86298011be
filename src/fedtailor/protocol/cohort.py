"""Tables of clients, the population that a run trains, and the cohort of one exchange.

A client has a row in a table of clients (`Cohort.rows`) and an index in a cohort, from 0
to c - 1. Both are sorted by id, so that no result depends on the order in which the user
lists the clients.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol.keys import server_rng
from fedtailor.protocol.parts import ModelParts

if TYPE_CHECKING:
    from fedtailor.protocol.exchange import Answers


class Examples(Protocol):
    """Draws examples from the training data of all seen clients, which the server has in
    a simulation only.

    It is for methods whose server sends examples to clients, such as DAPPER.
    """

    def __call__(
        self,
        rng: np.random.Generator,
        count: int,
        clients: NDArray[np.integer[Any]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw with replacement from the union of the clients' training data.

        Args:
            rng: the random generator.
            count: the number of examples, n.
            clients: the rows in the population of the clients whose data to draw from;
                None = all.

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
        groups: the true group of each client [m]; None if the data have no groups.
        original_index: [m] the index of each client in the user's own order, which
            reports keep in their tables.
        weights: [m] sums of the weights of training samples; None = all count the same.
    """

    ids: NDArray[np.uint64]
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    original_index: NDArray[np.int64]
    weights: NDArray[np.float64] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shares(self) -> NDArray[np.int64] | NDArray[np.float64]:
        """What clients count in proportion to, where they count by samples [m]: the sums
        of their samples' weights, which are numbers of samples if all count the same.
        """
        return self.sizes if self.weights is None else self.weights


@dataclass(frozen=True)
class Population(Clients):
    """The seen clients, and what a method may know about the run before it begins.

    Attributes:
        reporters_per_round: how many clients report in a round (m under full
            participation).
        seed: the run's seed.
        examples: draws from the clients' training data; None if the server does not have
            them, as it does in a simulation.
        model: the parts of the model that is trained.
        public: [p, ...] inputs without labels that server and clients all have; None =
            there are none.
    """

    reporters_per_round: int
    seed: int
    examples: Examples | None = None
    model: ModelParts | None = None
    public: NDArray[Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Cohort:
    """The clients of one exchange, sorted by id.

    Attributes:
        clients: the table of all seen clients, or of all clients that never took part.
        rows: [c] the rows of the cohort's clients in that table, ascending.
        seen: whether they take part in training.
        reporting: [c] whether each client reports. Before an exchange these are the
            clients that participation chose; in `server`, those of them that were asked
            to reply and did reply.
        round: 0, 1, ...; after training, the number of rounds done.
        seed: the run's seed.
        draw_seed: the seed of what clients draw in this exchange; None = `seed`. What
            they draw once for all rounds follows from `seed`.
        probes: answers to the probe, for unseen clients of methods that have a probe;
            else None.
        examples, public: as in `Population`.
        capacity: the number of clients, c or more, for which programs are compiled if the
            size of cohorts varies, so that a few programs serve all sizes; else 0.
        age: [c] how many rounds ago each client received what it answers, where clients
            may be late; None = all answer to this round's message.
        is_statistic: [d] which entries of theta are running statistics (batch
            normalisation), which a server averages and never optimises: a step beyond
            the average would make variances negative. None = there are none.
    """

    clients: Clients
    rows: NDArray[np.int64]
    seen: bool
    reporting: NDArray[np.bool_]
    round: int
    seed: int
    draw_seed: int | None = None
    probes: "Answers | None" = None
    examples: Examples | None = field(default=None, repr=False)
    capacity: int = 0
    age: NDArray[np.int64] | None = None
    public: NDArray[Any] | None = field(default=None, repr=False)
    is_statistic: NDArray[np.bool_] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, clients: NDArray[Any]) -> "Cohort":
        """Some clients of the cohort, by a mask [c] or by ascending indices."""
        return replace(
            self,
            rows=self.rows[clients],
            reporting=self.reporting[clients],
            age=None if self.age is None else self.age[clients],
        )

    @property
    def began(self) -> NDArray[np.int64]:
        """[c] the round in which each client began, whose random numbers it draws."""
        age = np.zeros(len(self), np.int64) if self.age is None else self.age
        return self.round - age

    @property
    def position(self) -> NDArray[np.int64]:
        """The rows of these clients in the population.

        Returns:
            [c] rows, ascending.

        Raises:
            ValueError: the clients never took part, and are not in the population.
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
    def shares(self) -> NDArray[np.int64] | NDArray[np.float64]:
        """[c] as in `Clients`."""
        return self.clients.shares[self.rows]

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """[c] true groups, or None."""
        return None if self.clients.groups is None else self.clients.groups[self.rows]

    def rng(
        self, purpose: str, *, among_reporters: bool = False
    ) -> np.random.Generator:
        """The server's random generator for one purpose in this round.

        Args:
            purpose: what is drawn.
            among_reporters: whether other numbers are drawn if other clients report.
        """
        ids = self.ids[self.reporting] if among_reporters else ()
        return server_rng(self.seed, purpose, self.round, ids)
