"""What must hold of a federation.

Every failure is one line that names the client and the remedy.
"""

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import MAX_CLASSES, SPLITS, check_integer
from fedtailor.protocol import client_ids

if TYPE_CHECKING:
    from fedtailor.federation.federation import Federation

_MAX_INT32 = np.iinfo(np.int32).max


def validate(federation: "Federation") -> None:
    """Check everything, cheap and frequent mistakes first.

    Raises:
        ValueError: what is wrong, with which client, and what to do.
    """
    _lengths(federation)
    _types(federation)
    _rows(federation)
    _sizes(federation)
    _inputs(federation)
    _targets(federation)
    _overlaps(federation)
    _normalisation(federation)


def _require(condition: Any, message: str) -> None:
    """`protocol.require` for whatever is true or false."""
    if not condition:
        raise ValueError(message)


def _lengths(federation: "Federation") -> None:
    """Everything with an entry for each client, or each example, has as many."""
    x, y, m = federation.x, federation.y, len(federation.names)
    _require(m, "there are no clients; give at least one")
    _names(federation.names)
    client_ids(federation.names)
    _require(x.ndim >= 1 and len(x), "there are no examples; x is empty")
    _require(
        y.ndim >= 1, "y is a single number; it must hold one target for each row of x"
    )
    _require(
        len(x) == len(y),
        f"x has {len(x)} rows and y has {len(y)}; they must have one row for each"
        " example",
    )
    for split in SPLITS:
        clients = len(getattr(federation, split))
        _require(
            clients == m,
            f"{split} lists {clients} clients, and there are {m} names; give one entry"
            " for each",
        )
    _require(
        len(federation.unseen) == m,
        f"unseen has {len(federation.unseen)} entries for {m} clients",
    )
    if federation.groups is not None:
        shape = federation.groups.shape
        _require(
            shape == (m,),
            f"groups has shape {shape} for {m} clients; give one group number for each"
            " client",
        )


def _names(names: tuple[str, ...]) -> None:
    """Every client has a name that can be written and hashed."""
    for number, name in enumerate(names):
        _require(
            name.strip(),
            f"client {number} (counted from 0) has an empty name; give every client a"
            " name",
        )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"client {name!r} has a name that is no Unicode text; rename it"
            ) from None


def _types(federation: "Federation") -> None:
    """Inputs, targets and groups are of types that models take."""
    x, y, groups = federation.x, federation.y, federation.groups
    _require(
        x.dtype in (np.uint8, np.int32, np.float32, np.float64),
        f"x is {x.dtype}; convert it to uint8 (pixels), float32 or float64 (features),"
        " or int32 (token ids)",
    )
    integer = y.dtype.kind in "iu"  # NumPy counts spans of time among the integers
    _require(
        integer or np.issubdtype(y.dtype, np.floating),
        f"y is {y.dtype}; convert it to integer labels or floating-point targets",
    )
    _require(
        groups is None or np.issubdtype(groups.dtype, np.integer),
        "groups must be integers; number the groups 0, 1, ...",
    )
    if federation.classes is not None:
        check_integer(federation.classes, "classes", 1)
        _require(
            federation.classes <= MAX_CLASSES,
            f"classes is {federation.classes}; a model has an output for each, and at"
            f" most {MAX_CLASSES} are possible: check whether y holds numbers to"
            " predict (classes=None, as floats), or merge rare classes",
        )
        _require(
            integer,
            f"y is {y.dtype}, and labels of {federation.classes} classes are integers:"
            " convert it",
        )
    if federation.class_names is not None:
        given = len(federation.class_names)
        _require(
            given == federation.classes,
            f"{given} class names for {federation.classes} classes; give one for each",
        )


def _rows(federation: "Federation") -> None:
    """All row numbers are of examples that there are.

    They are few enough to be counted in 32 bits on devices.
    """
    total = sum(len(getattr(federation, split).rows) for split in SPLITS)
    _require(
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


def _sizes(federation: "Federation") -> None:
    """Somebody trains, and whoever trains has samples."""
    _require(
        len(federation.seen),
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


def _inputs(federation: "Federation") -> None:
    """Inputs are finite, and token ids are numbers that count from 0."""
    bad = _not_finite(federation.x)
    if bad is not None:
        raise ValueError(
            f"{_owner(federation, bad)}: row {bad} of x holds NaN or inf; drop or"
            " impute it"
        )
    x = federation.x
    if x.dtype == np.int32 and x.size and x.min() < 0:
        row = int(np.argwhere(x < 0)[0][0])
        raise ValueError(
            f"{_owner(federation, row)}: row {row} of x holds token id {x[row].min()},"
            " and token ids count from 0; if they are features, convert x to float32"
        )


def _targets(federation: "Federation") -> None:
    """Targets are finite, and labels are classes."""
    y, classes = federation.y, federation.classes
    bad = _not_finite(y)
    if bad is not None:
        raise ValueError(
            f"{_owner(federation, bad)}: row {bad} of y is NaN or inf; drop it"
        )
    if classes is None and np.issubdtype(y.dtype, np.integer) and y.size:
        wrong = (y > _MAX_INT32) | (y < -_MAX_INT32 - 1)
        row = int(np.argwhere(wrong)[0][0]) if wrong.any() else 0
        _require(
            not wrong.any(),
            f"{_owner(federation, row)}: row {row} of y is beyond 32 bits; convert y to"
            " floats",
        )
    if classes is not None and y.size and (y.min() < 0 or y.max() >= classes):
        wrong = (y < 0) | (y >= classes)
        row = int(np.argmax(wrong.reshape(len(y), -1).any(axis=1)))
        label = np.atleast_1d(y[row])[np.atleast_1d(wrong[row])][0]
        raise ValueError(
            f"{_owner(federation, row)}: row {row} has label {label}, outside the"
            f" {classes} classes 0..{classes - 1}; recode the labels or set classes"
        )


def _overlaps(federation: "Federation") -> None:
    """No client tests or validates on what it trains on."""
    for first, second in combinations(SPLITS, 2):
        row = _in_both(federation, first, second)
        if row is not None:
            client, row = divmod(row, len(federation.x))
            raise ValueError(
                f"client {federation.names[client]!r}: row {row} is in both its {first}"
                f" and its {second} split; keep it in one of them"
            )


def _in_both(federation: "Federation", first: str, second: str) -> int | None:
    """One `client * N + row` that is in two splits of the client."""
    size = len(federation.x)
    parts = (getattr(federation, first), getattr(federation, second))
    # Rows in both splits of whatever clients are few or none (nobody trains on a common
    # test set): only these are sorted.
    used = [np.bincount(part.rows, minlength=size) > 0 for part in parts]
    shared = used[0] & used[1]
    if not shared.any():
        return None
    keys = [(part.owners * size + part.rows)[shared[part.rows]] for part in parts]
    # Look each key of the second split up among the sorted ones of the first.
    in_first = np.sort(keys[0])
    nearest = np.minimum(np.searchsorted(in_first, keys[1]), len(in_first) - 1)
    both = keys[1][in_first[nearest] == keys[1]]
    return int(both[0]) if len(both) else None


def _normalisation(federation: "Federation") -> None:
    """Shift and scale are finite numbers that fit the inputs' last axis."""
    for what in ("shift", "scale"):
        value = np.asarray(getattr(federation, what))
        _require(
            np.isfinite(value).all(),
            f"{what} is {getattr(federation, what)}; it must be finite",
        )
        _require(
            value.ndim == 0 or value.shape == federation.x.shape[-1:],
            f"{what} has {value.size} numbers, and the last axis of x has"
            f" {federation.x.shape[-1]}; give one number or one for each channel",
        )
        if federation.x.dtype == np.int32:
            neutral = 0.0 if what == "shift" else 1.0
            _require(
                (value == neutral).all(),
                f"x holds token ids (int32), which no {what} applies to; leave it out",
            )
    _require(
        np.all(np.asarray(federation.scale) != 0),
        "scale is 0, which would erase the inputs; leave it out",
    )


def _not_finite(array: NDArray[Any]) -> int | None:
    """The first row with NaN or inf; None where there is none."""
    if not np.issubdtype(array.dtype, np.floating) or not array.size:
        return None
    # Minimum and maximum tell whether there is one without a temporary array.
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return None
    finite_rows = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return int(np.argmin(finite_rows))


def _owner(federation: "Federation", row: int) -> str:
    """The first client that uses a row, for messages."""
    for split in SPLITS:
        part = getattr(federation, split)
        users = part.owners[part.rows == row]
        if len(users):
            return f"client {federation.names[int(users[0])]!r}"
    return "no client's example"
