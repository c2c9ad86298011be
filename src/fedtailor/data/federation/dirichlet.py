"""Label shift by Dirichlet draws.

The literature has two conventions, which give different federations:
`DirichletByClass` and `DirichletByClient`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import check_choice, require
from fedtailor._base.documentation import see
from fedtailor.data.federation.checks import check_finite, check_integer
from fedtailor.data.federation.dataset import Dataset
from fedtailor.data.federation.partition import (
    RowNumbers,
    require_examples,
    rng_of,
    rows_by_class,
)
from fedtailor.data.federation.sizes import SizeLaw, client_sizes

_MAX_DRAWS = 100
_MAX_ALPHA = 1e9


def _check(clients: int, alpha: float, min_samples: int) -> None:
    check_integer(clients, "clients", 1)
    check_finite(alpha, "alpha")
    require(
        0 < alpha <= _MAX_ALPHA,
        f"alpha is {alpha}; it must be above 0, up to {_MAX_ALPHA:g} (small: few classes"
        " a client; large: nearly equal)",
    )
    check_integer(min_samples, "min_samples", 1)


@dataclass(frozen=True)
class DirichletByClass:
    """Divide each CLASS among the clients in proportions from Dirichlet(alpha, ...).

    The clients' sizes follow from these draws. This is the convention of Yurochkin et
    al. 2019, of Mestoukirdi et al. (section V: alpha 0.4 for 20 clients, 8 for 100)
    and, with `capped`, of NIID-Bench and PFLlib (alpha 0.1).

    Attributes:
        clients: number of clients.
        alpha: concentration parameter.
        capped: a client that already has an equal share of all data gets no samples of
            the following classes.
        min_samples: repeat the draws until every client has this many samples.

    Example:
        >>> from fedtailor.data.federation import DirichletByClass
        >>> owned = DirichletByClass(clients=3, alpha=1.0)(data, seed=0)
        >>> sum(len(rows) for rows in owned)
        60
    """

    clients: int
    alpha: float
    capped: bool = False
    min_samples: int = 2

    def __post_init__(self) -> None:
        _check(self.clients, self.alpha, self.min_samples)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        class_rows = rows_by_class(data, rng)
        # Rejection sampling, as in the released codes: with a small alpha, many draws
        # leave clients without samples.
        for _ in range(_MAX_DRAWS):
            counts = self._draw_counts([len(rows) for rows in class_rows], rng)
            if counts.sum(axis=0).min() >= self.min_samples:
                return _deal_rows(class_rows, counts)
        raise ValueError(
            f"{data.name}: in {_MAX_DRAWS} draws of Dirichlet({self.alpha:g}) some of"
            f" {self.clients} clients always had fewer than {self.min_samples} samples;"
            f" use fewer clients, a larger alpha or more data{see('errors#too-few-samples-in-every-draw')}"
        )

    def _draw_counts(
        self, class_sizes: list[int], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw the number of samples of each class and client [classes, clients]."""
        counts = np.zeros((len(class_sizes), self.clients), np.int64)
        share = sum(class_sizes) / self.clients
        for label, size in enumerate(class_sizes):
            proportions = rng.dirichlet(np.full(self.clients, self.alpha))
            if self.capped:
                proportions = np.where(counts.sum(axis=0) < share, proportions, 0.0)
            total = proportions.sum()
            # The proportions of all clients below their share may underflow to 0.
            if total == 0:
                proportions, total = np.ones(self.clients), float(self.clients)
            # Round the cumulative sums down, so that the counts sum to `size`. 1e-9: a
            # rounding error may leave a cumulative sum just below an integer.
            cumulative = np.cumsum(proportions / total)
            ends = np.floor(cumulative * size + 1e-9).astype(np.int64)
            ends[-1] = size
            counts[label] = np.diff(np.minimum(ends, size), prepend=0)
        return counts


@dataclass(frozen=True)
class DirichletByClient:
    """Each CLIENT draws its label distribution from Dirichlet(alpha * classes * prior).

    The clients' sizes are independent of these draws. This is the convention of Hsu et
    al. 2019. Samples are drawn without replacement. When a class is exhausted, the
    remaining clients (in a random order) get samples of other classes.

    Attributes:
        clients: number of clients.
        alpha: concentration parameter per class; Hsu et al.'s concentration is alpha
            times the number of classes.
        sizes: distribution of the clients' sizes; None = equal sizes that use all data.
        prior: mean of the label distributions: "uniform", or "data" for the class
            frequencies of the data set.
        use_all: scale the sizes so that all data are used.
        min_samples: smallest number of samples of a client.

    Example:
        >>> from fedtailor.data.federation import DirichletByClient
        >>> owned = DirichletByClient(clients=3, alpha=0.5)(data, seed=0)
        >>> len(owned)
        3
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

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        class_rows = rows_by_class(data, rng)
        remaining = np.array([len(rows) for rows in class_rows])
        classes = len(class_rows)
        prior = remaining / remaining.sum()
        if self.prior == "uniform":
            prior = np.full(classes, 1 / classes)
        sizes = client_sizes(
            len(data), self.clients, self.sizes, self.min_samples, self.use_all, rng
        )
        # The label distribution of each client [clients, classes].
        label_probs = rng.dirichlet(self.alpha * classes * prior, self.clients)
        counts = np.zeros((classes, self.clients), np.int64)
        # In a random order, as the last clients may not get what they draw.
        for client in rng.permutation(self.clients):
            counts[:, client] = _draw_available(
                int(sizes[client]), label_probs[client], remaining, rng
            )
            remaining = remaining - counts[:, client]
        return _deal_rows(class_rows, counts)


def _draw_available(
    size: int,
    probs: NDArray[np.float64],
    available: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw from a multinomial distribution, limited to the available samples.

    Args:
        size: number of samples to draw.
        probs: [classes] probabilities of the classes.
        available: [classes] number of available samples of each class.
        rng: random generator.

    Returns:
        [classes] number of samples of each class; they sum to `size`.
    """
    counts = np.zeros_like(available)
    missing = size
    while missing > 0:
        weights = np.where(counts < available, probs, 0.0)
        if weights.sum() < 1e-12:
            # The client's classes are exhausted: draw from the other classes, in
            # proportion to their available samples.
            weights = (available - counts).astype(np.float64)
        more = rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts + more, available)
        missing = size - counts.sum()
    return counts


def _deal_rows(
    class_rows: list[RowNumbers], counts: NDArray[np.int64]
) -> list[RowNumbers]:
    """Divide the rows of each class among the clients.

    Args:
        class_rows: the shuffled rows of each class.
        counts: [classes, clients] number of rows that each client gets of each class.

    Returns:
        The rows of each client, sorted by class.
    """
    # One part per client, and a last part with the rows that no client gets.
    parts_by_class = [
        np.split(rows, np.cumsum(client_counts))
        for rows, client_counts in zip(class_rows, counts, strict=True)
    ]
    return [
        np.concatenate([parts[client] for parts in parts_by_class])
        for client in range(counts.shape[1])
    ]
