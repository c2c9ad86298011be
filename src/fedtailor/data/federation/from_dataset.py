"""Federations of data sets as other libraries hold them: PyTorch's and Hugging Face's.

Both are read by what they can do (a length, an example by its number), so that neither
library is needed here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.build import from_arrays
from fedtailor.data.federation.checks import plain_array
from fedtailor.data.federation.federation import Federation

LABELS = ("label", "labels", "target", "y")
"""The columns that hold targets, if none is named."""


def from_dataset(
    data: Any,
    client: ArrayLike | str | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    **options: Any,
) -> Federation:
    """Build a federation from map-style data sets of PyTorch, whose examples are pairs
    (input, target), or of Hugging Face, whose examples have columns.

    All examples are read once, as the data set gives them: a transform that draws at
    random is applied once, too.

    Args:
        data: a data set, or client -> data set.
        client: of a single data set, the client of each example [N], or the column that
            has it.
        x: the column of inputs: numbers or images of one shape. By default the one that is
            neither the target nor the client.
        y: the column of targets; by default label, labels, target or y.
        options: further arguments of `from_arrays`.

    Returns:
        The federation.

    Raises:
        ValueError: a data set has no length, a column is missing or none is obvious, or
            inputs are texts or differ in shape.

    Example:
        >>> pairs = [(np.array([float(n)]), n % 2) for n in range(12)]
        >>> ft.federation.from_dataset({"a": pairs, "b": pairs}).names
        ('a', 'b')
    """
    if isinstance(data, Mapping) and not hasattr(data, "column_names"):
        require(
            client is None,
            "client is given and each client has a data set of its own; leave it out",
        )
        require(len(data) > 0, "there is no data set; give client -> data set")
        parts = {str(name): _examples(one, x, y, None) for name, one in data.items()}
        shapes = {inputs.shape[1:] for inputs, _ in parts.values()}
        require(
            len(shapes) == 1,
            f"inputs of the clients have the shapes {sorted(shapes)}; give all one shape",
        )
        owners = np.repeat(list(parts), [len(inputs) for inputs, _ in parts.values()])
        inputs = np.concatenate([inputs for inputs, _ in parts.values()])
        targets = np.concatenate([targets for _, targets in parts.values()])
        return from_arrays(inputs, targets, owners, **options)
    require(
        client is not None,
        "a single data set does not say whose its examples are; name the column of the"
        " client, or give the client of each example, or client -> data set",
    )
    assert client is not None
    column = client if isinstance(client, str) else None
    inputs, targets = _examples(data, x, y, column)
    owners = _column(data, column) if column is not None else client
    return from_arrays(inputs, targets, owners, **options)


def _examples(
    data: Any, x: str | None, y: str | None, client: str | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The inputs and the targets of a data set."""
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"{type(data).__name__} has no length or no examples by number; give a map-style"
        " data set, such as a list of the examples",
    )
    require(len(data) > 0, "a data set has no examples; leave its client out")
    first = data[0]
    if isinstance(first, Mapping):
        target = _name_of_target(first, y)
        others = [name for name in first if name not in (target, client)]
        require(
            x is not None or len(others) == 1,
            f"the columns {', '.join(others)} could all be inputs; name one with x",
        )
        inputs = _column(data, others[0] if x is None else x)
        targets = _column(data, target)
    else:
        require(
            isinstance(first, tuple | list) and len(first) == 2,
            "an example is not a pair (input, target) and has no columns; give a data set"
            " whose examples are one of them",
        )
        require(
            x is None and y is None and client is None,
            "the examples are pairs (input, target) and have no columns; leave the names of"
            " columns out",
        )
        pairs = [data[number] for number in range(len(data))]
        inputs = _stacked([pair[0] for pair in pairs], "inputs")
        targets = _stacked([pair[1] for pair in pairs], "targets")
    require(
        inputs.dtype.kind in "fiub",
        "inputs are not numbers; turn texts into tokens of one length first",
    )
    return inputs, targets


def _name_of_target(example: Mapping[str, Any], y: str | None) -> str:
    found = [name for name in LABELS if name in example]
    require(
        y is not None or len(found) == 1,
        f"no single column of {', '.join(example)} is {', '.join(LABELS)}; name that of"
        " the target with y",
    )
    return found[0] if y is None else y


def _column(data: Any, name: str) -> NDArray[Any]:
    """A column of a data set whose examples have columns."""
    first = data[0]
    require(
        isinstance(first, Mapping) and name in first,
        f"there is no column {name!r}; the data set has"
        f" {', '.join(first) if isinstance(first, Mapping) else 'no columns'}",
    )
    return _stacked([data[number][name] for number in range(len(data))], name)


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    # `np.asarray` reads a tensor or an image of PIL; of a list of them it reads none.
    return plain_array([np.asarray(value) for value in values], name)
