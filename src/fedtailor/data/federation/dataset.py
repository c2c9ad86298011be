"""`Dataset`: examples that are not yet assigned to clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as _replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import check_integer, check_seed, plain_array
from fedtailor.models.inputs import Inputs
from fedtailor.protocol import server_rng


@dataclass(frozen=True, eq=False)
class Dataset:
    """A pool of examples that a partitioner assigns to clients.

    Attributes:
        x: [N, ...] inputs, as in `Federation`; or a mapping of names to arrays, if an
            example has several.
        y: [N] integer labels, or [N, ...] targets.
        classes: number of classes; None for regression and other targets.
        name: name of the data in tables.
        test: [N] True for examples of the published test set; None if there is none.
        client: [N] the natural client of each example (writer, user); None if there are
            none.
        shift, scale: the model's input is (x - shift) * scale; each is one number, or
            one per channel.
        class_names: [classes] names of the classes, or None.
        inputs: what the columns of x are, if an example has several inputs.

    Raises:
        ValueError: the arrays differ in length or are masked, or a label is not in
            0..classes-1.

    Example:
        >>> from fedtailor.data.federation import Dataset
        >>> data = Dataset(np.zeros((60, 2)), np.arange(60) % 3)
        >>> len(data), data.classes
        (60, None)
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None = None
    name: str = "data"
    test: NDArray[np.bool_] | None = None
    client: NDArray[Any] | None = None
    shift: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0
    class_names: tuple[str, ...] | None = None
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x, Mapping):
            inputs = Inputs.of(self.x)
            object.__setattr__(self, "x", inputs.pack(self.x))
            object.__setattr__(self, "inputs", inputs)
        for field in ("x", "y", "test", "client"):
            if getattr(self, field) is None:
                continue
            array = plain_array(getattr(self, field), f"{field} of {self.name}")
            require(
                array.ndim >= 1,
                f"{self.name}: {field} is {array.dtype} without rows; it holds one entry"
                " for each row",
            )
            require(
                field == "x" or len(array) == len(self.x),
                f"{self.name}: x has {len(self.x)} rows and {field} has {len(array)};"
                " they must agree",
            )
            object.__setattr__(self, field, array)
        if self.test is not None:
            require(
                self.test.dtype == np.bool_,
                f"{self.name}: test is {self.test.dtype}; give True or False for"
                " each row",
            )
        if self.classes is not None:
            self._check_labels(self.classes)

    def _check_labels(self, classes: int) -> None:
        check_integer(classes, "classes", 1)
        y = self.y
        require(
            np.issubdtype(y.dtype, np.integer),
            f"{self.name}: y is {y.dtype}; labels of classes are integers",
        )
        if y.size and (y.min() < 0 or y.max() >= classes):
            row = int(np.argwhere((y < 0) | (y >= classes))[0][0])
            raise ValueError(
                f"{self.name}: row {row} has a label outside the {classes} classes"
                f" 0..{classes - 1}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "Dataset":
        """Select examples.

        Args:
            rows: row numbers [n], or a mask [N].

        Returns:
            A data set of the selected examples, in the order of `rows`, with the same
            classes and normalization.
        """
        arrays = {}
        for field in ("x", "y", "test", "client"):
            array = getattr(self, field)
            arrays[field] = None if array is None else array[rows]
        return _replace(self, **arrays)

    def sample(self, size: int, seed: int = 0) -> "Dataset":
        """Select `size` examples at random without replacement, and keep their order.

        Raises:
            ValueError: the data set has fewer examples.
        """
        check_integer(size, "size", 1)
        check_seed(seed)
        if not 1 <= size <= len(self):
            raise ValueError(f"{self.name}: cannot take {size} of {len(self)} examples")
        shuffled = server_rng(seed, "sample", 0).permutation(len(self))
        return self.take(np.sort(shuffled[:size]))

    def only(self, labels: Sequence[int]) -> "Dataset":
        """Select the examples of some classes.

        Args:
            labels: the classes, which are renumbered 0, 1, ... in this order.

        Returns:
            A data set with `len(labels)` classes.

        Raises:
            ValueError: a label is not a class, or occurs twice.
        """
        if self.classes is None:
            raise ValueError(f"{self.name} has no classes to choose from")
        repeated = len(set(labels)) < len(labels)
        if repeated or not all(0 <= label < self.classes for label in labels):
            raise ValueError(
                f"labels {list(labels)} are not different classes of"
                f" 0..{self.classes - 1}"
            )
        # new_label[old label]; -1 for classes that are left out.
        new_label = np.full(self.classes, -1)
        new_label[list(labels)] = np.arange(len(labels))
        selected = self.take(new_label[self.y] >= 0)
        names = None
        if self.class_names is not None:
            names = tuple(self.class_names[label] for label in labels)
        return _replace(
            selected, y=new_label[selected.y], classes=len(labels), class_names=names
        )

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self)} examples of shape {self.x.shape[1:]})"
        )


def encode_labels(labels: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Encode labels of any kind as integers.

    Returns:
        The codes 0, 1, ..., of the same shape as the labels, and the label of each code
        as text. Codes are in the sorted order of the labels.
    """
    values, codes = np.unique(labels, return_inverse=True)
    names = tuple(str(value) for value in values)
    return codes.reshape(np.shape(labels)).astype(np.int64), names


def numbered_names(clients: int) -> tuple[str, ...]:
    """Client names "client-00", "client-01", ...

    All numbers have the same width, so that names sort like numbers.
    """
    digits = len(str(max(clients - 1, 0)))
    return tuple(f"client-{number:0{digits}d}" for number in range(clients))
