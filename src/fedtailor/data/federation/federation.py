"""`Federation`: a pool of examples, and the rows of each client."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.notebook import html_paragraphs, html_table
from fedtailor._base.printable import one_line
from fedtailor.data.federation.checks import SPLITS, plain_array, short_repr
from fedtailor.data.federation.validation import validate
from fedtailor.models.inputs import Inputs
from fedtailor.models.tasks import LossFunction, Task, default_loss, plain_loss, task_of
from fedtailor.protocol import PreprocessingFacts, client_ids


@dataclass(frozen=True, eq=False)
class Ragged:
    """Row numbers of m clients, concatenated (compressed sparse rows).

    Attributes:
        rows: [total] row numbers; those of client i are `rows[offsets[i]:offsets[i +
            1]]`.
        offsets: [m + 1], from 0 to total, never decreasing.

    Raises:
        ValueError: the offsets do not fit the rows.

    Example:
        >>> from fedtailor.data.federation import Ragged
        >>> ragged = Ragged.of([np.array([0, 2]), np.array([1])])
        >>> ragged.rows.tolist(), ragged.offsets.tolist()
        ([0, 2, 1], [0, 2, 3])
    """

    rows: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        rows, offsets = np.asarray(self.rows), np.asarray(self.offsets)
        if rows.ndim != 1 or offsets.ndim != 1 or not len(offsets):
            raise ValueError(
                f"rows and offsets must be vectors, not of shapes {rows.shape} and"
                f" {offsets.shape}"
            )
        for name, numbers in (("row numbers", rows), ("offsets", offsets)):
            if len(numbers) and not np.issubdtype(numbers.dtype, np.integer):
                raise ValueError(f"{name} are {numbers.dtype}; they must be integers")
        covers_rows = offsets[0] == 0 and offsets[-1] == len(rows)
        if not covers_rows or np.any(np.diff(offsets) < 0):
            raise ValueError(
                f"offsets must rise from 0 to the number of rows, {len(rows)}; build"
                " with Ragged.of"
            )
        if len(rows) and (rows.min() < 0 or rows.max() > np.iinfo(np.int32).max):
            raise ValueError(
                f"row numbers run from {rows.min()} to {rows.max()}; they must be in"
                " 0..2^31 - 1"
            )
        object.__setattr__(self, "rows", rows.astype(np.int32, copy=False))
        object.__setattr__(self, "offsets", offsets.astype(np.int64, copy=False))

    @classmethod
    def of(cls, parts: Sequence[ArrayLike]) -> "Ragged":
        """Build from one array of row numbers per client."""
        arrays = [np.asarray(part).reshape(-1) for part in parts]
        filled = [array for array in arrays if len(array)]
        rows = np.concatenate(filled) if filled else np.zeros(0, np.int32)
        sizes = np.array([len(array) for array in arrays], np.int64)
        return cls.cut(rows, sizes)

    @classmethod
    def cut(cls, rows: NDArray[Any], sizes: NDArray[np.integer[Any]]) -> "Ragged":
        """Cut an array of row numbers into consecutive parts, one per client.

        Args:
            rows: [total] row numbers.
            sizes: [m] number of rows of each client.
        """
        ends = np.cumsum(np.asarray(sizes, np.int64))
        return cls(rows, np.concatenate([[0], ends]))

    @classmethod
    def from_owners(cls, owners: NDArray[np.integer], clients: int) -> "Ragged":
        """Build from the client number of each row [N], in 0..clients-1."""
        sizes = np.bincount(owners, minlength=clients)
        return cls.cut(np.argsort(owners, kind="stable"), sizes)

    @classmethod
    def empty(cls, clients: int) -> "Ragged":
        """No rows for each of some clients."""
        return cls(np.zeros(0, np.int32), np.zeros(clients + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> NDArray[np.int32]:
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each client [m]."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> NDArray[np.int64]:
        """The client number of each entry of `rows` [total]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each entry of `rows` among its client's rows [total]."""
        return np.arange(len(self.rows)) - np.repeat(self.offsets[:-1], self.sizes)

    def take(self, clients: NDArray[np.integer]) -> "Ragged":
        """Select clients, in the order of their numbers in `clients`."""
        sizes = self.sizes[clients]
        new_offsets = np.cumsum(sizes) - sizes
        # All rows of a client are shifted by the same distance.
        shifts = np.repeat(self.offsets[clients] - new_offsets, sizes)
        return Ragged.cut(self.rows[np.arange(sizes.sum()) + shifts], sizes)

    def where(self, mask: NDArray[np.bool_]) -> "Ragged":
        """Select the entries of `rows` for which the mask [total] is True."""
        sizes = np.bincount(self.owners[mask], minlength=len(self))
        return Ragged.cut(self.rows[mask], sizes)

    def renumber(self, rows: NDArray[np.integer[Any]]) -> "Ragged":
        """Replace the row numbers by others [total], for clients of the same sizes."""
        return Ragged.cut(rows, self.sizes)


class Split(NamedTuple):
    """The examples of a client's split, not normalized: x [n, ...] and y [n, ...].

    Example:
        >>> train = federation.client(0).train
        >>> len(train.y) == len(train.x)
        True
    """

    x: NDArray[Any]
    y: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Client:
    """A client of a federation. Each access to a split copies it from the pool.

    Example:
        >>> client = federation.client(0)
        >>> client.name, client.train.x.shape
        ('client-00', (72, 8, 8))
    """

    federation: "Federation"
    index: int

    @property
    def name(self) -> str:
        return self.federation.names[self.index]

    @property
    def group(self) -> int | None:
        """The true group; None if the federation has no groups."""
        groups = self.federation.groups
        return None if groups is None else int(groups[self.index])

    @property
    def unseen(self) -> bool:
        """Whether the client never trains."""
        return bool(self.federation.unseen[self.index])

    @property
    def train(self) -> Split:
        return self._split(self.federation.train)

    @property
    def val(self) -> Split:
        return self._split(self.federation.val)

    @property
    def test(self) -> Split:
        return self._split(self.federation.test)

    def _split(self, split: Ragged) -> Split:
        rows = split[self.index]
        return Split(self.federation.x[rows], self.federation.y[rows])

    def __repr__(self) -> str:
        sizes = []
        for split in SPLITS:
            count = getattr(self.federation, split).sizes[self.index]
            sizes.append(f"{count} {split}")
        return f"Client({self.name!r}: {', '.join(sizes)})"


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """A pool of examples, and the training and test rows of each of m clients.

    Clients may share examples, such as a common test set, but the splits of a client
    are disjoint. Transforms of clients or groups, such as rotations or permuted labels,
    have already been applied to the pool.

    Attributes:
        x: [N, ...] inputs: uint8, float32 or float64, or int32 for token ids. The shape
            is [N, 0] for a model without inputs.
        y: [N] integer class labels, or [N, ...] targets.
        train, val, test: rows of each client. `val` and `test` may be empty, and so may
            `train` of unseen clients.
        names: [m] unique names of the clients. Every random choice about a client is
            keyed by its name.
        groups: [m] true group of each client, or None.
        unseen: [m] True for clients that do not take part in training, and get a model
            afterwards. By default there are none.
        classes: number of classes; None for regression and other targets.
        shift, scale: the model's input is (x - shift) * scale, computed on the device.
            Each is one number, or one per position of the last axis (channel). Token
            ids (int32) are not normalized.
        name: name of the data in tables.
        class_names: [classes] names of the classes, or None.
        preprocessing: how rows of a table became inputs and targets, and how others do;
            None if the examples are not rows of a table.
        rows: [N] the number of each example in the user's table, counted from 0; None =
            examples are numbered as they are in the pool.
        loss: what models of these data minimise, as `fedtailor.models.tasks` has it; None = the
            cross-entropy of the classes, or the squared error of other targets.
        public: [p, ...] inputs without labels that server and clients all have, for
            methods that distil over them (FedMD); None = there are none. `set_aside`
            takes some from the clients' training rows.
        inputs: what the columns of x are, if an example has several inputs;
            `federation.inputs.unpack(x)` has them by name.
        warnings: what makes results wrong or too good, one sentence each; None = nobody
            has looked.
        weights: [N] how much each example counts, in training and in metrics; None =
            all count the same.
        class_weights: [classes] how much an example of each class counts in training,
            in addition; never in metrics.

    Raises:
        ValueError: the arguments are inconsistent. The message is one line that names
            the client and says what to do.

    Example:
        >>> len(federation), federation.classes
        (20, 10)
        >>> federation.client(3).train.x.shape
        (72, 8, 8)
    """

    x: NDArray[Any]
    y: NDArray[Any]
    train: Ragged
    val: Ragged
    test: Ragged
    names: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    unseen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    classes: int | None = None
    shift: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0
    name: str = "federation"
    class_names: tuple[str, ...] | None = None
    preprocessing: PreprocessingFacts | None = None
    rows: NDArray[np.integer[Any]] | None = None
    warnings: tuple[str, ...] | None = None
    loss: LossFunction | None = None
    public: NDArray[Any] | None = None
    inputs: Inputs | None = None
    weights: NDArray[np.float64] | None = None
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.names)
        unseen = np.asarray(self.unseen).astype(np.bool_)
        converted: dict[str, Any] = {
            "x": plain_array(self.x, "x"),
            "y": plain_array(self.y, "y"),
            "names": names,
            "unseen": unseen if len(unseen) else np.zeros(len(names), np.bool_),
            "shift": _numbers(self.shift, "shift"),
            "scale": _numbers(self.scale, "scale"),
        }
        if self.groups is not None:
            converted["groups"] = plain_array(self.groups, "groups")
        if self.public is not None:
            converted["public"] = plain_array(self.public, "public")
        if self.weights is not None:
            converted["weights"] = plain_array(self.weights, "weights")
        if self.class_names is not None:
            converted["class_names"] = tuple(str(name) for name in self.class_names)
        for key, value in converted.items():
            object.__setattr__(self, key, value)
        validate(self)
        # Convert after validation, which requires integers.
        if self.groups is not None:
            object.__setattr__(self, "groups", self.groups.astype(np.int64))
        if self.weights is not None:
            object.__setattr__(self, "weights", self.weights.astype(np.float64))

    def __len__(self) -> int:
        """Number of clients, seen and unseen."""
        return len(self.names)

    def __iter__(self) -> Iterator[Client]:
        return (Client(self, index) for index in range(len(self)))

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """Ids of the clients [m], which are digests of their names."""
        return client_ids(self.names)

    @property
    def seen(self) -> NDArray[np.int64]:
        """Numbers of the clients that train."""
        return np.flatnonzero(~self.unseen)

    @property
    def untested(self) -> NDArray[np.int64]:
        """Numbers of the clients without test rows, which result tables leave out."""
        return np.flatnonzero(self.test.sizes == 0)

    @property
    def sizes(self) -> dict[str, NDArray[np.int64]]:
        """Numbers of rows of the clients [m], by split."""
        return {split: getattr(self, split).sizes for split in SPLITS}

    def weights_of(self, split: str) -> NDArray[np.float64] | None:
        """How much each entry of a split's `rows` counts [total], in training ("train")
        or in metrics; None = all count the same.
        """
        if self.weights is None and (self.class_weights is None or split != "train"):
            return None
        rows = getattr(self, split).rows
        weights = np.ones(len(rows)) if self.weights is None else self.weights[rows]
        if self.class_weights is not None and split == "train":
            weights = weights * np.asarray(self.class_weights)[self.y[rows]]
        return weights

    @property
    def training_weights(self) -> NDArray[np.float64] | None:
        """The sums of the weights of the clients' training rows [m]; None = no weights."""
        weights = self.weights_of("train")
        if weights is None:
            return None
        sums = np.bincount(self.train.owners, weights, minlength=len(self))
        return sums.astype(np.float64)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.x.shape[1:]

    @property
    def digest(self) -> str:
        """A digest of clients and examples, which must be equal when a run is resumed."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        header = repr((self.names, self.classes, self.shift, self.scale))
        if self.loss is not None:
            header += repr(plain_loss(self.loss))
        sha256 = hashlib.sha256(header.encode())
        groups = self.unseen if self.groups is None else self.groups
        splits = (self.train, self.val, self.test)
        parts = [part for split in splits for part in (split.rows, split.offsets)]
        for array in (self.x, self.y, groups, self.unseen, *parts):
            sha256.update(f"{array.dtype} {array.shape}".encode())
            sha256.update(np.ascontiguousarray(array).data)
        # Federations without either keep the digest that they have always had.
        if self.inputs is not None:
            sha256.update(repr(self.inputs).encode())
        if self.public is not None:
            sha256.update(f"public {self.public.dtype} {self.public.shape}".encode())
            sha256.update(np.ascontiguousarray(self.public).data)
        if self.weights is not None:
            sha256.update(b"weights")
            sha256.update(np.ascontiguousarray(self.weights).data)
        if self.class_weights is not None:
            sha256.update(repr(("class weights", *self.class_weights)).encode())
        return sha256.hexdigest()[:16]

    @property
    def description(self) -> dict[str, Any]:
        """What the manifest of a run says about its data."""
        return {"name": self.name, "clients": len(self), "digest": self.digest}

    def origin_in(self, directory: Path) -> Mapping[str, Any] | None:
        """Where the data can be found again, for the manifest of a run.

        Args:
            directory: the run directory, relative to which files are named, so that the
                manifest holds no absolute path.

        Returns:
            A scenario's name, seed and parameters (see
            `fedtailor.lab.scenarios.scenario.Scenario.origin`); None if the federation was
            made in Python.
        """
        return None

    @property
    def file(self) -> Path | None:
        """The file whose rows are the examples; None if there is none."""
        return None

    @property
    def target_units(self) -> tuple[float, float]:
        """The transformation from a model's targets y to the user's own targets.

        Returns:
            (shift, scale): the user's target is y * scale + shift.
        """
        # Only a table's preprocessing standardises targets, and only those of regressions.
        if self.preprocessing is None or self.classes is not None:
            return 0.0, 1.0
        return self.preprocessing.target_shift, self.preprocessing.target_scale

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """The metrics of a run whose user requests none.

        Returns:
            Those of the task for tables, such as errors in the unit of a regression's
            target, because the loss is in the unit of standardised targets. Otherwise
            nothing: the run is judged by the metric of its model.
        """
        return () if self.preprocessing is None else self.task.metrics_of_tables

    @property
    def task(self) -> Task:
        """What models of these data are to predict."""
        return task_of(default_loss(self.classes) if self.loss is None else self.loss)

    def client(self, which: int | str) -> Client:
        """One client, by number or by name.

        Raises:
            ValueError: there is no such client.
        """
        if isinstance(which, str):
            if which not in self.names:
                raise ValueError(
                    f"no client is called {which!r}; the first one is {self.names[0]!r}"
                )
            return Client(self, self.names.index(which))
        if not isinstance(which, Integral) or not -len(self) <= int(which) < len(self):
            raise ValueError(
                f"there is no client {which}; the federation has {len(self)}, counted"
                " from 0"
            )
        return Client(self, int(which) % len(self))

    def only(self, names: Sequence[str]) -> "Federation":
        """The federation of some clients, which holds nothing of the others.

        Raises:
            ValueError: there is no such client, or none of them trains.
        """
        indices = np.array([self.client(str(name)).index for name in names])
        splits = {split: getattr(self, split).take(indices) for split in SPLITS}
        rows = np.unique(np.concatenate([split.rows for split in splits.values()]))
        renumbered = {
            name: split.renumber(np.searchsorted(rows, split.rows))
            for name, split in splits.items()
        }
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            **renumbered,
            names=tuple(self.names[index] for index in indices),
            groups=None if self.groups is None else self.groups[indices],
            unseen=self.unseen[indices],
            rows=None if self.rows is None else self.rows[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def _repr_html_(self) -> str:
        """The federation in a notebook: its sizes, and those of each client."""
        rows = zip(
            self.names, *(getattr(self, split).sizes for split in SPLITS), strict=True
        )
        return html_paragraphs(self.describe().split("\n")) + html_table(
            ("client", *SPLITS), rows, "samples of each client"
        )

    def describe(self) -> str:
        """Describe the federation, with the sizes of the splits, in a few lines."""
        targets = f"{self.classes} classes"
        if self.classes is None:
            targets = f"targets of shape {self.y.shape[1:]}"
        kinds = f"{int(self.unseen.sum())} unseen"
        if self.groups is not None:
            kinds += f", {len(np.unique(self.groups))} groups"
        lines = [
            f"{self.name}: {len(self)} clients ({kinds}), {targets}",
            f"  examples: {len(self.x)} of shape {self.input_shape}, {self.x.dtype}",
        ]
        for split in SPLITS:
            sizes = getattr(self, split).sizes
            low, high, median = sizes.min(), sizes.max(), np.median(sizes)
            spread = f"{low} to {high} a client, median {median:g}"
            lines.append(f"  {split}: {sizes.sum()} samples, {spread}")
        if self.public is not None:
            lines.append(f"  public: {len(self.public)} inputs without labels")
        count = len(self.untested)
        if count:
            names = ", ".join(repr(self.names[client]) for client in self.untested[:5])
            if count > 5:
                names += f" and {count - 5} more"
            lines.append(
                f"  without test samples: {names}; no test result can name them"
            )
        return "\n".join(map(one_line, lines))

    def __repr__(self) -> str:
        return (
            f"Federation({self.name!r}: {len(self)} clients, {len(self.x)} examples of"
            f" shape {self.input_shape})"
        )


def weight_scale(weights: NDArray[np.float64]) -> float:
    """The power of two for which the smallest of the weights [n] above 0 is in [1, 2)."""
    positive = weights[weights > 0]
    return 2.0 ** -np.floor(np.log2(positive.min())) if len(positive) else 1.0


def _numbers(value: Any, name: str) -> float | tuple[float, ...]:
    """Convert shift or scale to one Python float or a tuple of floats.

    Raises:
        ValueError: it is something else. The message calls it `name`.
    """
    try:
        if np.ndim(value) == 0:
            return float(value)
        return tuple(float(entry) for entry in value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} is {short_repr(value)}; give one number, or one for each channel"
        ) from None
