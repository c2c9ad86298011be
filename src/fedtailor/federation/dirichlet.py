"""Label shift by Dirichlet draws, in the two conventions of the literature.

They differ: name the one you mean.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import check_finite, check_integer
from fedtailor.federation.dataset import Dataset
from fedtailor.federation.deprecated import renamed
from fedtailor.federation.partition import Rows, require_examples, rng_of, rows_by_class
from fedtailor.federation.sizes import SizeLaw, client_sizes
from fedtailor.protocol import check_choice, require

_TRIES = 100
_MAX_ALPHA = 1e9


def _check(clients: int, alpha: float, min_samples: int) -> None:
    check_integer(clients, "clients", 1)
    check_finite(alpha, "alpha")
    wanted = (
        f"it must be above 0, up to {_MAX_ALPHA:g} (small: few classes a client; large:"
        " nearly equal)"
    )
    require(0 < alpha <= _MAX_ALPHA, f"alpha is {alpha}; {wanted}")
    check_integer(min_samples, "min_samples", 1)


@renamed(least="min_samples")
@dataclass(frozen=True)
class DirichletByClass:
    """Each CLASS is spread over the clients by a draw from Dirichlet(alpha, ...).

    Sizes follow from the draws. The convention of Yurochkin et al. 2019, of Mestoukirdi
    et al. (section V: alpha 0.4 for 20 clients, 8 for 100) and, with `capped`, of
    NIID-Bench and PFLlib (alpha 0.1).

    Attributes:
        clients: how many.
        alpha: concentration.
        capped: a client that already holds its equal share of all data gets nothing of
            the following classes.
        min_samples: draw again until every client has this many samples.
    """

    clients: int
    alpha: float
    capped: bool = False
    min_samples: int = 2

    def __post_init__(self) -> None:
        _check(self.clients, self.alpha, self.min_samples)

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        stock = rows_by_class(data, rng)
        # Rejection, as in the released codes: small alphas leave clients empty in many
        # draws.
        for _ in range(_TRIES):
            counts = self._counts([len(rows) for rows in stock], rng)
            if counts.sum(axis=0).min() >= self.min_samples:
                return _rows_of_clients(stock, counts)
        raise ValueError(
            f"{data.name}: in {_TRIES} draws of Dirichlet({self.alpha:g}) some of"
            f" {self.clients} clients always had fewer than {self.min_samples} samples;"
            " use fewer clients, a larger alpha or more data"
        )

    def _counts(self, stock: list[int], rng: np.random.Generator) -> NDArray[np.int64]:
        """Samples of each class on each client [classes, clients]."""
        counts = np.zeros((len(stock), self.clients), np.int64)
        share = sum(stock) / self.clients
        for label, size in enumerate(stock):
            proportions = rng.dirichlet(np.full(self.clients, self.alpha))
            if self.capped:
                proportions = np.where(counts.sum(axis=0) < share, proportions, 0.0)
            total = proportions.sum()
            # Every client that is below its share may have drawn (numerically) nothing.
            if total == 0:
                proportions, total = np.ones(self.clients), float(self.clients)
            # Cumulative shares rounded down, so that parts sum to the whole; 1e-9
            # against sums just below an integer.
            cumulative = np.cumsum(proportions / total)
            ends = np.floor(cumulative * size + 1e-9).astype(np.int64)
            ends[-1] = size
            counts[label] = np.diff(np.minimum(ends, size), prepend=0)
        return counts


@renamed(least="min_samples")
@dataclass(frozen=True)
class DirichletByClient:
    """Each CLIENT draws its label distribution from Dirichlet(alpha * classes * prior).

    Sizes are given, not drawn. The convention of Hsu et al. 2019. Samples are drawn
    without replacement, so where a class is exhausted the clients served last (a random
    few) take what is left.

    Attributes:
        clients: how many.
        alpha: concentration for each class (times the number of classes = Hsu et al.'s
            concentration).
        sizes: law of the clients' sizes; None = equal sizes that use all data.
        prior: mean of the label distributions: "uniform", or "data" = the frequencies
            in the data set.
        use_all: scale the sizes so that all data are used.
        min_samples: every client's least size, samples.
    """

    clients: int
    alpha: float
    sizes: SizeLaw | None = None
    prior: Literal["uniform", "data"] = "uniform"
    use_all: bool = False
    min_samples: int = 2

    def __post_init__(self) -> None:
        _check(self.clients, self.alpha, self.min_samples)
        check_choice(self.prior, ("uniform", "data"), "prior")

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        stock = rows_by_class(data, rng)
        left = np.array([len(rows) for rows in stock])
        classes = len(stock)
        prior = left / left.sum()
        if self.prior == "uniform":
            prior = np.full(classes, 1 / classes)
        sizes = client_sizes(
            len(data), self.clients, self.sizes, self.min_samples, self.use_all, rng
        )
        # [clients, classes]: each client's own distribution over labels.
        labels = rng.dirichlet(self.alpha * classes * prior, self.clients)
        counts = np.zeros((classes, self.clients), np.int64)
        # In random order, since those that are served last take what is left.
        for client in rng.permutation(self.clients):
            counts[:, client] = _draw(int(sizes[client]), labels[client], left, rng)
            left = left - counts[:, client]
        return _rows_of_clients(stock, counts)


def _draw(
    size: int,
    labels: NDArray[np.float64],
    left: NDArray[np.int64],
    rng: np.random.Generator,
) -> Rows:
    """A multinomial draw that never takes more than is left.

    Args:
        size: samples to draw.
        labels: the client's distribution over classes.
        left: samples left of each class.

    Returns:
        How many of each class.
    """
    counts = np.zeros_like(left)
    missing = size
    while missing > 0:
        weights = np.where(counts < left, labels, 0.0)
        if weights.sum() < 1e-12:
            # The client's classes are used up: take from the others in proportion to
            # what is left.
            weights = (left - counts).astype(np.float64)
        drawn = rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts + drawn, left)
        missing = size - counts.sum()
    return counts


def _rows_of_clients(stock: list[Rows], counts: NDArray[np.int64]) -> list[Rows]:
    """Deal shuffled rows.

    Args:
        stock: the rows of each class.
        counts: [classes, clients] how many of each class every client gets.

    Returns:
        The rows of each client, class after class.
    """
    # Cut behind every client's part; what nobody gets is a last piece, which no client
    # reads.
    by_class = [
        np.split(rows, np.cumsum(taken))
        for rows, taken in zip(stock, counts, strict=True)
    ]
    clients = range(counts.shape[1])
    return [np.concatenate([parts[client] for parts in by_class]) for client in clients]
