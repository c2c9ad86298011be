"""Validation of federations.

Every error message is one line that names the client and says what to do.
"""

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import (
    MAX_CLASSES,
    SPLITS,
    check_integer,
    short_repr,
)
from fedtailor.models.tasks import Survival, TokenCrossEntropy
from fedtailor.protocol import client_ids

if TYPE_CHECKING:
    from fedtailor.data.federation.federation import Federation

MOST_WEIGHT = 1_000_000
"""The largest ratio of two weights, whose sums have seven digits."""
_MAX_INT32 = np.iinfo(np.int32).max


def validate(federation: "Federation") -> None:
    """Check the arguments of a federation, cheap checks and frequent mistakes first.

    Raises:
        ValueError: an argument is wrong.
    """
    _check_lengths(federation)
    _check_types(federation)
    _check_rows(federation)
    _check_sizes(federation)
    _check_inputs(federation)
    _check_targets(federation)
    _check_disjoint(federation)
    _check_normalization(federation)
    _check_weights(federation)


def _check_lengths(federation: "Federation") -> None:
    """Arrays have one entry per client or per example."""
    x, y, m = federation.x, federation.y, len(federation.names)
    require(m > 0, "there are no clients; give at least one")
    _check_names(federation.names)
    client_ids(federation.names)
    require(x.ndim >= 1 and len(x) > 0, "there are no examples; x is empty")
    require(
        y.ndim >= 1, "y is a single number; it must hold one target for each row of x"
    )
    require(
        len(x) == len(y),
        f"x has {len(x)} rows and y has {len(y)}; they must have one row for each"
        " example",
    )
    for split in SPLITS:
        clients = len(getattr(federation, split))
        require(
            clients == m,
            f"{split} lists {clients} clients, and there are {m} names; give one entry"
            " for each",
        )
    require(
        len(federation.unseen) == m,
        f"unseen has {len(federation.unseen)} entries for {m} clients",
    )
    if federation.groups is not None:
        shape = federation.groups.shape
        require(
            shape == (m,),
            f"groups has shape {shape} for {m} clients; give one group number for each"
            " client",
        )
    public = federation.public
    require(
        public is None or (len(public) > 0 and public.shape[1:] == x.shape[1:]),
        f"public has the shape {getattr(public, 'shape', None)}; it must have a row or"
        f" more, each of the shape {x.shape[1:]} of the clients' inputs",
    )
    require(
        public is None or public.dtype == x.dtype,
        f"public is {getattr(public, 'dtype', None)} and x is {x.dtype}; they must have"
        " one type",
    )


def _check_names(names: tuple[str, ...]) -> None:
    """Names are not empty, and can be encoded."""
    for number, name in enumerate(names):
        require(
            name.strip() != "",
            f"client {number} (counted from 0) has an empty name; give every client a"
            " name",
        )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"client {name!r} has a name that is not Unicode; rename it"
            ) from None


def _check_types(federation: "Federation") -> None:
    """Inputs, targets and groups have supported dtypes, and the loss is a function."""
    x, y, groups, loss = (
        federation.x,
        federation.y,
        federation.groups,
        federation.loss,
    )
    require(
        loss is None or callable(loss),
        f"loss is {loss!r}; give a function, such as fedtailor.models.squared_error",
    )
    require(
        x.dtype in (np.uint8, np.int32, np.float32, np.float64),
        f"x is {x.dtype}; convert it to uint8 (pixels), float32 or float64 (features),"
        " or int32 (token ids)",
    )
    is_integer = y.dtype.kind in "iu"  # np.integer would include np.timedelta64
    require(
        is_integer or np.issubdtype(y.dtype, np.floating),
        f"y is {y.dtype}; convert it to integer labels or floating-point targets",
    )
    require(
        groups is None or np.issubdtype(groups.dtype, np.integer),
        "groups must be integers; number the groups 0, 1, ...",
    )
    if federation.classes is not None:
        check_integer(federation.classes, "classes", 1)
        require(
            federation.classes <= MAX_CLASSES,
            f"classes is {federation.classes}; a model has an output for each, and at"
            f" most {MAX_CLASSES} are possible: check whether y holds numbers to"
            " predict (classes=None, as floats), or merge rare classes",
        )
        require(
            is_integer,
            f"y is {y.dtype}, and labels of {federation.classes} classes are integers:"
            " convert it",
        )
        # A sequence of one token has such a label, an example with features has not.
        require(
            y.shape[1:] != (1,) or x.dtype == np.int32,
            f"y has shape {y.shape}: labels are one number for each example; give"
            " y[:, 0]",
        )
    if federation.class_names is not None:
        count = len(federation.class_names)
        require(
            count == federation.classes,
            f"{count} class names for {federation.classes} classes; give one for each",
        )


def _check_rows(federation: "Federation") -> None:
    """Row numbers are in range, and positions in the splits fit into 32 bits."""
    total = sum(len(getattr(federation, split).rows) for split in SPLITS)
    require(
        total <= _MAX_INT32,
        f"the clients' splits list {total} rows in sum, and at most 2^31 - 1 can be"
        " addressed; use fewer clients or samples",
    )
    for split in SPLITS:
        ragged = getattr(federation, split)
        if len(ragged.rows) and ragged.rows.max() >= len(federation.x):
            entry = int(np.argmax(ragged.rows))
            client = federation.names[int(ragged.owners[entry])]
            raise ValueError(
                f"client {client!r}: {split} row {ragged.rows[entry]} is outside the"
                f" {len(federation.x)} examples; row numbers count from 0"
            )


def _check_sizes(federation: "Federation") -> None:
    """There is a seen client, and every seen client has training samples."""
    require(
        len(federation.seen) > 0,
        "every client is unseen, so nobody trains; keep at least one seen client",
    )
    empty = (federation.train.sizes == 0) & ~federation.unseen
    if empty.any():
        client = repr(federation.names[int(np.argmax(empty))])
        others = int(empty.sum()) - 1
        if others:
            client += f" (and {others} more)"
        raise ValueError(
            f"client {client} has no training samples; leave it out or mark it as"
            " unseen"
        )


def _check_inputs(federation: "Federation") -> None:
    """Inputs are finite, and token ids are not negative."""
    row = _first_nonfinite_row(federation.x)
    if row is not None:
        raise ValueError(
            f"{_client_of_row(federation, row)}: row {row} of x holds NaN or inf; drop or"
            " impute it"
        )
    x = federation.x
    if x.dtype == np.int32 and x.size and x.min() < 0:
        row = int(np.argwhere(x < 0)[0][0])
        raise ValueError(
            f"{_client_of_row(federation, row)}: row {row} of x holds token id {x[row].min()},"
            " and token ids count from 0; if they are features, convert x to float32"
        )


def _check_targets(federation: "Federation") -> None:
    """Targets are finite, and labels are in 0..classes-1."""
    y, classes = federation.y, federation.classes
    row = _first_nonfinite_row(y)
    if row is not None:
        raise ValueError(
            f"{_client_of_row(federation, row)}: row {row} of y is NaN or inf; drop it"
        )
    if classes is None and np.issubdtype(y.dtype, np.integer) and y.size:
        wrong = (y > _MAX_INT32) | (y < -_MAX_INT32 - 1)
        row = int(np.argwhere(wrong)[0][0]) if wrong.any() else 0
        require(
            not wrong.any(),
            f"{_client_of_row(federation, row)}: row {row} of y is beyond 32 bits; convert y to"
            " floats",
        )
    if classes is not None and y.size and (y.min() < 0 or y.max() >= classes):
        wrong = (y < 0) | (y >= classes)
        if isinstance(federation.loss, TokenCrossEntropy):
            wrong &= y != federation.loss.ignore  # padding
        if not wrong.any():
            return
        row = int(np.argmax(wrong.reshape(len(y), -1).any(axis=1)))
        label = np.atleast_1d(y[row])[np.atleast_1d(wrong[row])][0]
        raise ValueError(
            f"{_client_of_row(federation, row)}: row {row} has label {label}, outside the"
            f" {classes} classes 0..{classes - 1}; recode the labels or set classes"
        )


def _check_disjoint(federation: "Federation") -> None:
    """The splits of a client are disjoint."""
    for first, second in combinations(SPLITS, 2):
        key = _shared_row(federation, first, second)
        if key is not None:
            client, row = divmod(key, len(federation.x))
            raise ValueError(
                f"client {federation.names[client]!r}: row {row} is in both its {first}"
                f" and its {second} split; keep it in one of them"
            )


def _shared_row(federation: "Federation", first: str, second: str) -> int | None:
    """A row that is in two splits of a client, as `client * N + row`; None if there is
    none.
    """
    size = len(federation.x)
    parts = (getattr(federation, first), getattr(federation, second))
    # Only rows that are in both splits, of any clients, need to be compared. They are
    # usually few.
    used = [np.bincount(part.rows, minlength=size) > 0 for part in parts]
    shared = used[0] & used[1]
    if not shared.any():
        return None
    keys = [(part.owners * size + part.rows)[shared[part.rows]] for part in parts]
    # Look up each key of the second split among the sorted keys of the first split.
    in_first = np.sort(keys[0])
    nearest = np.minimum(np.searchsorted(in_first, keys[1]), len(in_first) - 1)
    both = keys[1][in_first[nearest] == keys[1]]
    return int(both[0]) if len(both) else None


def _check_weights(federation: "Federation") -> None:
    """Weights are numbers, 0 or more, of examples whose losses are added up."""
    weights, of_classes = federation.weights, federation.class_weights
    if weights is None and of_classes is None:
        return
    require(
        not isinstance(federation.task, Survival),
        "times to an event take no weights; leave weights and class_weights out",
    )
    if of_classes is not None:
        require(
            federation.classes == len(of_classes)
            and bool(np.isfinite(of_classes).all())
            and min(of_classes) > 0,
            f"class_weights is {short_repr(of_classes)}; give a number above 0 for each"
            f" of the classes ({federation.classes})",
        )
    if weights is not None:
        require(
            weights.shape == (len(federation.x),) and weights.dtype.kind in "iuf",
            f"weights are {weights.dtype} of shape {weights.shape}; give a number for each"
            f" of the {len(federation.x)} examples",
        )
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"{_client_of_row(federation, row)}: the weight of row {row} is"
                f" {weights[row]}; a weight is 0 or more"
            )
        used = weights[weights > 0]
        require(len(used) > 0, "all weights are 0; no example would count")
        require(
            used.max() <= MOST_WEIGHT * used.min(),
            f"weights run from {used.min():g} to {used.max():g}; the largest may be"
            f" {MOST_WEIGHT:,} times the smallest above 0",
        )
    for client in federation.seen:
        of_client = federation.train[client]
        require(
            weights is None or bool(weights[of_client].any()),
            f"client {federation.names[client]!r}: all training rows have weight 0; make it"
            " an unseen client, or leave it out",
        )


def _check_normalization(federation: "Federation") -> None:
    """Shift and scale are finite, and are single numbers or fit the last axis of x."""
    for name in ("shift", "scale"):
        value = np.asarray(getattr(federation, name))
        require(
            bool(np.isfinite(value).all()),
            f"{name} is {getattr(federation, name)}; it must be finite",
        )
        require(
            value.ndim == 0 or value.shape == federation.x.shape[-1:],
            f"{name} has {value.size} numbers, and the last axis of x has"
            f" {federation.x.shape[-1]}; give one number or one for each channel",
        )
        if federation.x.dtype == np.int32:
            neutral = 0.0 if name == "shift" else 1.0
            require(
                bool((value == neutral).all()),
                f"x holds token ids (int32), which no {name} applies to; leave it out",
            )
        several = federation.inputs
        if several is not None and several.is_mixed:
            neutral = 0.0 if name == "shift" else 1.0
            require(
                bool((value == neutral).all()),
                f"inputs have whole numbers beside others, and {name} would change both;"
                " apply it to the others before",
            )
    require(
        0 not in np.atleast_1d(federation.scale),
        "scale is 0, which would erase the inputs; leave it out",
    )


def _first_nonfinite_row(array: NDArray[Any]) -> int | None:
    """The first row that contains NaN or inf; None if there is none."""
    if not np.issubdtype(array.dtype, np.floating) or not array.size:
        return None
    # Minimum and maximum show whether there is one, without a temporary array.
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return None
    finite_rows = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return int(np.argmin(finite_rows))


def _client_of_row(federation: "Federation", row: int) -> str:
    """The name of the first client that has a row, for messages."""
    for split in SPLITS:
        part = getattr(federation, split)
        owners = part.owners[part.rows == row]
        if len(owners):
            return f"client {federation.names[int(owners[0])]!r}"
    return "no client's example"
