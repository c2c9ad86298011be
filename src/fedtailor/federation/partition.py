"""Partitioners: who gets which examples of a data set.

A partitioner is a small record of its settings; called with a `Dataset` and a seed it
returns one array of rows for each client, disjoint, each with at least one row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import check_integer, check_seed, plain_text
from fedtailor.federation.dataset import Dataset, encode
from fedtailor.federation.deprecated import renamed
from fedtailor.federation.sizes import SizeLaw, allocate, client_sizes
from fedtailor.protocol import require, server_rng

Rows = NDArray[np.integer[Any]]


class Partitioner(Protocol):
    """Assigns the examples of a data set to clients."""

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        """One array of row numbers for each client."""
        ...


def rng_of(seed: int) -> np.random.Generator:
    """The random generator of a partition."""
    return server_rng(check_seed(seed), "partition", 0)


def rows_by_class(data: Dataset, rng: np.random.Generator) -> list[Rows]:
    """Shuffle the examples of every class.

    Returns:
        One array of row numbers for each class that occurs, in the order of the
        classes.

    Raises:
        ValueError: the targets are no labels.
    """
    y = data.y
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"{data.name}: y is {y.dtype} of shape {y.shape}; this partitioner needs a"
            " label per example"
        )
    # Shuffled, then sorted by class in a way that keeps the shuffled order inside each
    # class.
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    class_ends = np.flatnonzero(np.diff(y[order])) + 1
    return np.split(order, class_ends)


def require_examples(data: Dataset, clients: int) -> None:
    """Refuse more clients than examples before anything is allocated for them.

    Raises:
        ValueError: a client would have nothing.
    """
    require(
        clients <= len(data),
        f"{data.name}: {len(data)} examples are too few for {clients} clients; use"
        " fewer clients",
    )


@renamed(least="min_samples")
@dataclass(frozen=True)
class IID:
    """Every client draws from the same distribution.

    Attributes:
        clients: how many.
        sizes: law of the clients' sizes; None = equal sizes that use all data.
        use_all: scale the sizes so that all data are used.
        min_samples: every client's least size, samples.
    """

    clients: int
    sizes: SizeLaw | None = None
    use_all: bool = False
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)
        check_integer(self.min_samples, "min_samples", 1)

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
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

    It is IID without its chance.

    Attributes:
        clients: how many.
    """

    clients: int

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        require_examples(data, self.clients)
        # Sorted by class, every m-th example from another start: classes differ by at
        # most one between clients.
        by_class = np.concatenate(rows_by_class(data, rng_of(seed)))
        return [by_class[client :: self.clients] for client in range(self.clients)]


@renamed(least="min_samples")
@dataclass(frozen=True)
class ClassesPerClient:
    """Every client holds a fixed number of classes (the "pathological" split).

    Sizes follow a law. Each class is held by nearly the same number of clients. The published splits:
    FedProx's digits (Chen et al. 2022) are `ClassesPerClient(1000, 2, LogNormal(0, 2),
    each_class=True, use_all=True, min_samples=5, stride=1)`; those of Tang et al. 2021
    `ClassesPerClient(40, 3, Uniform(400, 5000))`.

    Attributes:
        clients: how many.
        classes: classes of one client.
        sizes: law of the clients' sizes, divided equally among their classes; None =
            the clients of a class share it equally, and all data are used.
        each_class: draw a size for each class of a client instead of one for the
            client.
        use_all: scale the sizes so that all data are used.
        min_samples: least number of samples of each class that a client holds.
        stride: client i holds the classes from stride * i on (modulo their number)
            instead of a random choice: 1 is the rule of FedProx and pFedMe; with stride
            = classes, clients share all their classes or none (PFLlib).
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

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        require_examples(data, self.clients)
        rng = rng_of(seed)
        stock = rows_by_class(data, rng)
        if self.classes > len(stock):
            raise ValueError(
                f"{data.name} has {len(stock)} classes; {self.classes} classes per"
                " client is too many"
            )
        held = self._held(len(stock), rng)
        wanted = self._wanted(rng)
        use_all = self.use_all or self.sizes is None
        parts: list[list[Rows]] = [[] for _ in range(self.clients)]
        for label, rows in enumerate(stock):
            # Who holds this class, and as which of its classes.
            clients, numbers = np.nonzero(held == label)
            if not len(clients):
                continue
            counts = allocate(
                len(rows),
                wanted[clients, numbers],
                min_samples=self.min_samples,
                use_all=use_all,
            )
            # What nobody gets is a last piece, which no client reads.
            pieces = np.split(rows, np.cumsum(counts))
            for client, piece in zip(clients, pieces, strict=False):
                parts[client].append(piece)
        return [np.concatenate(part) for part in parts]

    def _held(self, total: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The classes of every client [clients, classes].

        Each takes the classes that fewest others hold, ties at random.
        """
        if self.stride is not None:
            # The stride modulo the number of classes first: the product of large
            # numbers would overflow.
            first = self.stride % total * np.arange(self.clients)[:, None]
            return (first + np.arange(self.classes)) % total
        used = np.zeros(total)
        held = np.empty((self.clients, self.classes), np.int64)
        for client in range(self.clients):
            least_used_first = np.lexsort((rng.random(total), used))
            held[client] = least_used_first[: self.classes]
            used[held[client]] += 1
        return held

    def _wanted(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Samples that every client wants of each of its classes [clients, classes]."""
        shape = (self.clients, self.classes)
        if self.sizes is None:
            return np.ones(shape)
        if self.each_class:
            return self.sizes.draw(shape[0] * shape[1], rng).reshape(shape)
        of_client = self.sizes.draw(self.clients, rng)[:, None]
        return np.tile(of_client / self.classes, self.classes)


@dataclass(frozen=True)
class Shards:
    """Sort by class, cut into equal shards, give each client some.

    The split of McMahan et al. 2017, section 3.

    Attributes:
        clients: how many.
        shards: shards of one client; most clients then hold at most this many classes.
    """

    clients: int
    shards: int = 2

    def __post_init__(self) -> None:
        check_integer(self.clients, "clients", 1)
        check_integer(self.shards, "shards", 1)

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
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


@renamed(least="min_samples")
@dataclass(frozen=True)
class Natural:
    """By the data's own clients: writers, users, devices.

    Attributes:
        min_samples: clients with fewer samples are left out.
    """

    min_samples: int = 1

    def __post_init__(self) -> None:
        check_integer(self.min_samples, "min_samples", 1)

    def __call__(self, data: Dataset, seed: int) -> list[Rows]:
        return list(self.named(data).values())

    def named(self, data: Dataset) -> Mapping[str, Rows]:
        """The rows of each client, by its name.

        Raises:
            ValueError: the data have no clients of their own, or none is large enough.
        """
        if data.client is None:
            raise ValueError(
                f"{data.name} has no clients of its own; use another partitioner"
            )
        clients = data.client
        if clients.dtype.kind not in "iu":
            clients = plain_text(clients, "client")
        owners, names = encode(clients)
        # Rows sorted by owner, cut behind each owner's last one.
        sizes = np.bincount(owners, minlength=len(names))
        by_owner = np.argsort(owners, kind="stable")
        parts = np.split(by_owner, np.cumsum(sizes)[:-1])
        kept = {
            name: part
            for name, part in zip(names, parts, strict=True)
            if len(part) >= self.min_samples
        }
        if not kept:
            raise ValueError(
                f"{data.name}: no client has {self.min_samples} samples; lower"
                " min_samples"
            )
        return kept
