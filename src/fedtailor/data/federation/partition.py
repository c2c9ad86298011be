"""Partitioners, which assign the examples of a data set to clients.

A partitioner is a frozen dataclass of settings. Calling it with a `Dataset` and a seed
returns a list with one array of row numbers per client. No row belongs to two clients,
and every client has at least one row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import check_integer, check_seed, plain_text
from fedtailor.data.federation.dataset import Dataset, encode_labels
from fedtailor.data.federation.sizes import SizeLaw, allocate, client_sizes
from fedtailor.protocol import server_rng

RowNumbers = NDArray[np.integer[Any]]


class Partitioner(Protocol):
    """Assigns the examples of a data set to clients.

    Example:
        >>> from fedtailor.data.federation import IID  # a partitioner
        >>> len(IID(clients=3)(data, seed=0))
        3
    """

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        """Return one array of row numbers per client."""
        ...


def rng_of(seed: int) -> np.random.Generator:
    """The random generator of a partition."""
    return server_rng(check_seed(seed), "partition", 0)


def rows_by_class(data: Dataset, rng: np.random.Generator) -> list[RowNumbers]:
    """Shuffle the examples of every class.

    Returns:
        One array of row numbers per class that occurs, in the order of the classes.

    Raises:
        ValueError: the targets are not labels.
    """
    y = data.y
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"{data.name}: y is {y.dtype} of shape {y.shape}; this partitioner needs a"
            " label per example"
        )
    shuffled = rng.permutation(len(y))
    # A stable sort by class keeps the shuffled order within each class.
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    labels = y[by_class]
    # The label changes at the start of every class except the first.
    class_starts = np.flatnonzero(np.diff(labels)) + 1
    return np.split(by_class, class_starts)


def require_examples(data: Dataset, clients: int) -> None:
    """Require at least one example per client, before arrays are allocated.

    Raises:
        ValueError: there are more clients than examples.
    """
    require(
        clients <= len(data),
        f"{data.name}: {len(data)} examples are too few for {clients} clients; use"
        " fewer clients",
    )


# `least` is the old name of `min_samples` and still works, with a warning.
@dataclass(frozen=True)
class IID:
    """Every client draws from the same distribution.

    Attributes:
        clients: number of clients.
        sizes: distribution of the clients' sizes; None = equal sizes that use all data.
        use_all: scale the sizes so that all data are used.
        min_samples: smallest number of samples of a client.

    Example:
        >>> from fedtailor.data.federation import IID
        >>> [len(rows) for rows in IID(clients=3)(data, seed=0)]
        [20, 20, 20]
    """

    clients: int
    sizes: SizeLaw | None = None
    use_all: bool = False
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)
        check_integer(self.min_samples, "min_samples", 1)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        counts = client_sizes(
            len(data), self.clients, self.sizes, self.min_samples, self.use_all, rng
        )
        shuffled = rng.permutation(len(data))[: counts.sum()]
        return np.split(shuffled, np.cumsum(counts)[:-1])


@dataclass(frozen=True)
class Stratified:
    """Every client holds nearly the same number of examples of every class.

    The class frequencies are those that `IID` has on average.

    Attributes:
        clients: number of clients.

    Example:
        >>> from fedtailor.data.federation import Stratified
        >>> owned = Stratified(clients=3)(data, seed=0)
        >>> [np.bincount(data.y[rows]).tolist() for rows in owned]
        [[7, 7, 6], [7, 6, 7], [6, 7, 7]]
    """

    clients: int

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        require_examples(data, self.clients)
        # The examples are sorted by class and dealt to the clients like cards, so the
        # clients' counts of a class differ by at most one.
        by_class = np.concatenate(rows_by_class(data, rng_of(seed)))
        return [by_class[client :: self.clients] for client in range(self.clients)]


# `least` is the old name of `min_samples` and still works, with a warning.
@dataclass(frozen=True)
class ClassesPerClient:
    """Every client holds a fixed number of classes (the "pathological" split).

    Which classes a client holds:

    * without `stride`: a random choice, in which each class is held by nearly the same
      number of clients;
    * with `stride`: client i holds the `classes` consecutive classes from stride * i
    on,
      modulo the number of classes. 1 is the rule of FedProx and pFedMe; with stride =
      classes, two clients have all their classes in common or none (PFLlib).

    How many samples of each class it asks for:

    * without `sizes`: all clients that hold a class ask for the same number, and all
      data are used, whatever `use_all` says;
    * with `sizes`: a size is drawn for each client and divided equally among its
      classes or, with `each_class`, drawn for each class of each client. A class that
      is too small for what is asked is divided in proportion.

    Examples:
        FedProx's digits (Chen et al. 2022)::

            ClassesPerClient(
                1000, 2, LogNormal(0, 2), each_class=True, use_all=True,
                min_samples=5, stride=1,
            )

        The digits of Tang et al. 2021::

            ClassesPerClient(40, 3, Uniform(400, 5000))

    Attributes:
        clients: number of clients.
        classes: number of classes of one client.
        sizes: distribution of the clients' sizes; None = equal sizes.
        each_class: draw a size for each class of a client, not one for the client.
        use_all: scale the sizes so that all data are used.
        min_samples: smallest number of samples of each class that a client holds.
        stride: distance between the first classes of successive clients; None = a
            random choice of classes.

    Example:
        >>> from fedtailor.data.federation import ClassesPerClient
        >>> owned = ClassesPerClient(clients=3, classes=1)(data, seed=0)
        >>> [sorted(set(data.y[rows].tolist())) for rows in owned]
        [[1], [0], [2]]
    """

    clients: int
    classes: int = 2
    sizes: SizeLaw | None = None
    each_class: bool = False
    use_all: bool = False
    min_samples: int = 1
    stride: int | None = None

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)
        check_integer(self.classes, "classes", 1)
        if self.stride is not None:
            check_integer(self.stride, "stride", 1)
        check_integer(self.min_samples, "min_samples", 1)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        rows_of_classes = rows_by_class(data, rng)
        if self.classes > len(rows_of_classes):
            raise ValueError(
                f"{data.name} has {len(rows_of_classes)} classes; {self.classes} classes"
                " per client is too many"
            )
        # Each client has `classes` slots [clients, classes]: the class in each slot,
        # and how many samples of it the client asks for.
        classes = self._assign_classes(len(rows_of_classes), rng)
        requested = self._draw_sizes(rng)
        use_all = self.use_all or self.sizes is None
        parts: list[list[RowNumbers]] = [[] for _ in range(self.clients)]
        for label, rows in enumerate(rows_of_classes):
            clients, slots = np.nonzero(classes == label)
            if not len(clients):
                continue
            counts = allocate(
                len(rows),
                requested[clients, slots],
                min_samples=self.min_samples,
                use_all=use_all,
            )
            ends = np.cumsum(counts)
            for client, start, end in zip(clients, ends - counts, ends, strict=True):
                parts[client].append(rows[start:end])
        return [np.concatenate(part) for part in parts]

    def _assign_classes(
        self, total: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """The classes of every client [clients, classes], of `total` classes."""
        if self.stride is not None:
            # The stride is reduced modulo `total` first: the product of large numbers
            # would overflow.
            first = self.stride % total * np.arange(self.clients)[:, None]
            return (first + np.arange(self.classes)) % total
        # One client after another takes the classes that the fewest clients have so
        # far, ties at random.
        holders = np.zeros(total)
        assigned = np.empty((self.clients, self.classes), np.int64)
        for client in range(self.clients):
            ties = rng.random(total)
            # lexsort sorts by its last key first.
            fewest_holders_first = np.lexsort((ties, holders))
            assigned[client] = fewest_holders_first[: self.classes]
            holders[assigned[client]] += 1
        return assigned

    def _draw_sizes(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Samples that every client asks for of each of its classes [clients, classes].

        Without `sizes` they are equal weights: all samples of a class are shared out.
        """
        shape = (self.clients, self.classes)
        if self.sizes is None:
            return np.ones(shape)
        if self.each_class:
            return self.sizes.draw(shape[0] * shape[1], rng).reshape(shape)
        size_of_client = self.sizes.draw(self.clients, rng)[:, None]
        return np.tile(size_of_client / self.classes, self.classes)


@dataclass(frozen=True)
class Shards:
    """Sort the examples by class, cut them into equal shards, and deal the shards.

    This is the split of McMahan et al. 2017, section 3.

    Attributes:
        clients: number of clients.
        shards: number of shards per client. Most clients then have at most this many
            classes.

    Example:
        >>> from fedtailor.data.federation import Shards
        >>> [len(rows) for rows in Shards(clients=3, shards=2)(data, seed=0)]
        [20, 20, 20]
    """

    clients: int
    shards: int = 2

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)
        check_integer(self.shards, "shards", 1)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        rng = rng_of(seed)
        total = self.clients * self.shards
        if total > len(data):
            raise ValueError(
                f"{data.name}: {len(data)} samples cannot be cut into {total} shards;"
                " use fewer clients"
            )
        by_class = np.concatenate(rows_by_class(data, rng))
        shards = np.array_split(by_class, total)
        shards_of_client = rng.permutation(total).reshape(self.clients, self.shards)
        return [
            np.concatenate([shards[number] for number in numbers])
            for numbers in shards_of_client
        ]


# `least` is the old name of `min_samples` and still works, with a warning.
@dataclass(frozen=True)
class Natural:
    """Use the natural clients of the data set, such as writers, users or devices.

    Attributes:
        min_samples: clients with fewer samples are left out.

    Example:
        >>> from fedtailor.data.federation import Dataset, Natural
        >>> own = Dataset(
        ...     np.zeros((4, 2)),
        ...     np.array([0, 1, 0, 1]),
        ...     client=np.array(["a", "a", "b", "b"]),
        ... )
        >>> [rows.tolist() for rows in Natural()(own, seed=0)]
        [[0, 1], [2, 3]]
    """

    min_samples: int = 1

    def __post_init__(self) -> None:
        check_integer(self.min_samples, "min_samples", 1)

    def __call__(self, data: Dataset, seed: int) -> list[RowNumbers]:
        return list(self.named(data).values())

    def named(self, data: Dataset) -> Mapping[str, RowNumbers]:
        """The rows of each client, by the client's name.

        Raises:
            ValueError: the data set has no natural clients, or none is large enough.
        """
        if data.client is None:
            raise ValueError(
                f"{data.name} has no clients of its own; use another partitioner"
            )
        clients = data.client
        if clients.dtype.kind not in "iu":
            clients = plain_text(clients, "client")
        client_of_row, names = encode_labels(clients)
        # Sort the rows by client, and split them after each client's last row.
        sizes = np.bincount(client_of_row, minlength=len(names))
        by_client = np.argsort(client_of_row, kind="stable")
        parts = np.split(by_client, np.cumsum(sizes)[:-1])
        large_enough = {
            name: part
            for name, part in zip(names, parts, strict=True)
            if len(part) >= self.min_samples
        }
        if not large_enough:
            raise ValueError(
                f"{data.name}: no client has {self.min_samples} samples; lower"
                " min_samples"
            )
        return large_enough
