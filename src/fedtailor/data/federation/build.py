"""Build federations from arrays, or from a data set and a partitioner."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import check_choice, require
from fedtailor.data.federation.checks import (
    MAX_CLASSES,
    check_seed,
    plain_array,
    plain_text,
)
from fedtailor.data.federation.dataset import Dataset, encode_labels, numbered_names
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.data.federation.partition import Natural, Partitioner
from fedtailor.data.federation.splits import (
    Splits,
    Unseen,
    choose_unseen,
    draw_splits,
    follow_splits,
)
from fedtailor.models.inputs import Inputs
from fedtailor.models.tasks import LossFunction


def from_arrays(
    x: ArrayLike | Mapping[str, ArrayLike],
    y: ArrayLike,
    client: ArrayLike,
    *,
    test: float = 0.2,
    val: float = 0.0,
    split: ArrayLike | None = None,
    group: ArrayLike | None = None,
    unseen: Unseen = 0,
    classes: int | Literal["infer"] | None = "infer",
    shift: float | tuple[float, ...] = 0.0,
    scale: float | tuple[float, ...] = 1.0,
    loss: LossFunction | None = None,
    name: str = "own data",
    seed: int = 0,
) -> Federation:
    """Build a federation from arrays with one entry per example.

    Args:
        x: [N, ...] inputs: uint8, float32 or float64, or int32 token ids. Several inputs of
            an example are a mapping of names to arrays, {"ids": ids, "mask": mask}
            (`fedtailor.models.Inputs`).
        y: [N] integer labels, or text labels (encoded in sorted order, and kept as
            class names), or [N, ...] float targets.
        client: [N] the client of each row, as integers or text.
        test, val: fractions of each client's rows, stratified by class; see
            `draw_splits`.
        split: [N] "train", "val" or "test" for each row. By default test rows are drawn
            at random. If no row is marked "val", validation rows are drawn from the
            training rows.
        group: [N] the true group of each row's client, equal in all rows of a client.
        unseen: clients that never train: a count, a fraction or names.
        classes: number of classes; None for regression. By default it is inferred: None
            for float targets; for integer labels the largest label plus 1, and every
            label must occur.
        shift, scale: the model's input is (x - shift) * scale.
        loss: what models minimise, such as `fedtailor.models.token_cross_entropy`; None =
            the cross-entropy of the classes, or the squared error of other targets.
        name: name of the data in tables.
        seed: random seed of the splits and of the choice of unseen clients.

    Returns:
        The federation, with clients sorted by name.

    Raises:
        ValueError: the arrays are inconsistent. The message names the client and says
            what to do.

    Example:
        >>> x, y = np.arange(12.0).reshape(12, 1), np.arange(12) % 2
        >>> ft.federation.from_arrays(x, y, ["a", "b"] * 6).names
        ('a', 'b')
    """
    inputs = None
    if isinstance(x, Mapping):
        inputs = Inputs.of(x)
        x = inputs.pack(x)
    columns = {"x": x, "y": y, "client": client, "split": split, "group": group}
    for key in ("x", "y", "client"):
        require(
            columns[key] is not None, f"{key} is None; give one entry for each example"
        )
    arrays = {
        key: plain_array(column, key)
        for key, column in columns.items()
        if column is not None
    }
    _check_shapes(arrays)
    # Labels and clients are encoded as 0, 1, ..., and their names are kept.
    y, label_count, class_names = _encode_labels(arrays["y"])
    client_of_row, names = _encode_clients(arrays["client"])
    if classes == "infer":
        classes = _checked_class_count(y, label_count, class_names)
    rows = Ragged.from_owners(client_of_row, len(names))
    if split is None:
        splits = draw_splits(rows, y, names, test=test, val=val, seed=seed)
    else:
        splits = follow_splits(rows, arrays["split"], y, names, val=val, seed=seed)
    return Federation(
        arrays["x"],
        y,
        *splits,
        names,
        groups=None if group is None else _client_groups(arrays["group"], rows, names),
        unseen=choose_unseen(unseen, names, seed),
        classes=classes,
        shift=shift,
        scale=scale,
        name=name,
        class_names=class_names,
        loss=loss,
        inputs=inputs,
    )


def from_partition(
    data: Dataset,
    partitioner: Partitioner,
    *,
    test: float | Literal["published", "common"] = 0.2,
    val: float = 0.0,
    unseen: Unseen = 0,
    name: str | None = None,
    seed: int = 0,
) -> Federation:
    """Build a federation from a data set and a partitioner.

    Args:
        data: the data set. Examples that no client gets are not part of the federation.
        partitioner: IID, ClassesPerClient, Shards, DirichletByClass, DirichletByClient,
            Natural, or a function of the data set and a seed that returns one array of
            row numbers per client.
        test: a fraction: test rows are drawn from each client's rows, stratified by
            class. "published": a client's test rows are those of its rows that belong
            to the published test set. "common": only the training examples are
            partitioned, and every client tests on the whole published test set.
        val: fraction of each client's rows, or, with "published" and "common", of its
            training rows.
        unseen: clients that never train: a count, a fraction or names.
        name: name of the federation in tables; by default the data set's name.
        seed: random seed of the partition, the splits and the choice of unseen clients.

    Returns:
        The federation, with clients in the partitioner's order.

    Raises:
        ValueError: the partitioner cannot be applied to the data. The message says what
            to do.

    Example:
        >>> from fedtailor.data.federation import IID
        >>> made = ft.federation.from_partition(data, IID(clients=3), test=0.2)
        >>> made.names
        ('client-0', 'client-1', 'client-2')
    """
    if isinstance(test, str):
        check_choice(test, ("published", "common"), "kind of test set")
        names, splits = _published_splits(data, partitioner, test, val, seed)
    else:
        names, parts = _partition(data, partitioner, seed)
        splits = draw_splits(
            Ragged.of(parts), data.y, names, test=test, val=val, seed=seed
        )
    x, y, splits = _remove_unused(data, splits)
    return Federation(
        x,
        y,
        *splits,
        names,
        unseen=choose_unseen(unseen, names, seed),
        classes=data.classes,
        shift=data.shift,
        scale=data.scale,
        name=data.name if name is None else name,
        class_names=data.class_names,
        inputs=data.inputs,
    )


def _encode_labels(
    y: NDArray[Any],
) -> tuple[NDArray[Any], int | None, tuple[str, ...] | None]:
    """Encode labels as integers; float targets are unchanged.

    Returns:
        The labels or targets, the number of classes (None for float targets), and the
        class names (None unless the labels were text or booleans).
    """
    # Data frames may have numbers in columns of dtype object.
    if y.dtype.kind == "O" and all(isinstance(value, Real) for value in y.flat):
        y = np.array(y.tolist())
    if y.dtype.kind in "USO":
        codes, names = encode_labels(plain_text(y, "label"))
        return codes, len(names), names
    if y.dtype.kind == "b":
        return y.astype(np.int64), 2, ("False", "True")
    if y.dtype.kind in "iu":
        return y, int(y.max(initial=0)) + 1, None
    return y, None, None


def _checked_class_count(
    y: NDArray[Any], count: int | None, names: tuple[str, ...] | None
) -> int | None:
    """Check labels, and return the number of classes.

    A label between 0 and the largest one that does not occur is an error: most often
    the largest label is mistyped, and the model would get an output for every number
    below it.

    Args:
        y: labels or targets.
        count: the largest label plus 1; None for float targets.
        names: the class names, if labels were text.

    Returns:
        `count`.

    Raises:
        ValueError: there is only one class, or a label is negative or does not occur.
    """
    if count is None or not y.size:
        return count
    if names is None:
        smallest = int(y.min())
        if smallest < 0:
            are_signs = set(y.flat[:1000]) == {-1, 1}
            advice = "recode -1 as 0" if are_signs else "recode the labels as 0, 1, ..."
            row = int(np.argwhere(y == smallest)[0][0])
            raise ValueError(
                f"row {row} has label {smallest}, and labels count from 0; {advice}, or"
                " give them as text"
            )
        # Sequences (ndim > 1) need not contain every symbol of the alphabet.
        if y.ndim == 1:
            _require_all_labels(y, count)
    if count == 1:
        label = repr(names[0]) if names else 0
        raise ValueError(
            f"every row has the label {label}; with one class there is nothing to learn:"
            " check the labels"
        )
    return count


def _require_all_labels(y: NDArray[Any], count: int) -> None:
    """Require that every label in 0..count-1 occurs."""
    labels = np.unique(y)
    if len(labels) == count:
        return
    if int(labels[-1] - labels[0]) + 1 == len(labels):
        raise ValueError(
            f"the labels are {labels[0]} to {labels[-1]}; labels count from 0: subtract"
            f" {labels[0]}"
        )
    # Find the first gap. -1 is prepended so that a missing label 0 is a gap as well.
    # The label after the gap may be mistyped.
    gap = int(np.argmax(np.diff(labels, prepend=-1) > 1))
    missing = int(labels[gap - 1]) + 1 if gap else 0
    after = labels[gap]
    row = int(np.argmax(y == after))
    advice = (
        "If labels are numbers to predict, convert y to floats; if they are names, to"
        " text"
    )
    if count <= MAX_CLASSES:
        advice += f"; if {missing} is only rare, give classes={count}"
    raise ValueError(
        f"no row has label {missing}, and row {row} has {after}: is it mistyped?"
        f" {advice}"
    )


def _check_shapes(arrays: dict[str, NDArray[Any]]) -> None:
    """Require columns of equal length, with a single axis except for x and y."""
    x = arrays["x"]
    require(x.ndim >= 1, "x has no rows; give one for each example")
    for key, column in arrays.items():
        is_column = key in ("x", "y") or column.ndim == 1
        require(
            is_column and column.shape[:1] == x.shape[:1],
            f"x has {len(x)} rows and {key} has shape {column.shape}; give one entry"
            " for each row of x",
        )


def _encode_clients(client: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number the clients in sorted order.

    Returns:
        The client number of each row [N], and the clients' names.
    """
    if client.ndim != 1 or client.dtype.kind not in "iuUSO":
        raise ValueError(
            f"client is {client.dtype} of shape {client.shape}; give one integer or"
            " text for each row"
        )
    is_text = client.dtype.kind not in "iu"
    numbers, names = encode_labels(plain_text(client, "client") if is_text else client)
    if client.dtype.kind == "O":
        values = len(set(client.tolist()))
        require(
            values == len(names),
            f"client has {values} different values and {len(names)} names, as 1 and '1'"
            " have one; write every client in one way",
        )
    return numbers, names


def _client_groups(
    group: NDArray[Any], rows: Ragged, names: tuple[str, ...]
) -> NDArray[np.int64]:
    """The group of each client, from the group of each row.

    Args:
        group: [N] integers, booleans or text.
        rows: the rows of each client.
        names: the clients' names, for messages.

    Returns:
        [m] group numbers 0, 1, ... in the sorted order of the groups.

    Raises:
        ValueError: a client's rows are in different groups.
    """
    if group.dtype.kind not in "iubUSO":
        raise ValueError(
            f"group is {group.dtype}; give an integer or text for each row"
        )
    is_text = group.dtype.kind not in "iub"
    codes, values = encode_labels(plain_text(group, "group") if is_text else group)
    # All rows of a client must have the group of its first row.
    first = codes[rows.rows[rows.offsets[:-1]]]
    is_different = codes[rows.rows] != first[rows.owners]
    if is_different.any():
        entry = int(np.argmax(is_different))
        client, row = int(rows.owners[entry]), rows.rows[entry]
        raise ValueError(
            f"client {names[client]!r} is in group {values[first[client]]!r} and, in"
            f" row {row}, in {values[codes[row]]!r}; a client has one group"
        )
    return first


def _partition(
    data: Dataset, partitioner: Partitioner, seed: int
) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """Partition a data set.

    Returns:
        The clients' names, and one array of row numbers per client.
    """
    if isinstance(partitioner, Natural):
        rows_of_client = partitioner.named(data)
        return tuple(rows_of_client), list(rows_of_client.values())
    parts = partitioner(data, check_seed(seed))
    _check_parts(data, parts)
    return numbered_names(len(parts)), parts


def _check_parts(data: Dataset, parts: list[NDArray[Any]]) -> None:
    """Require row numbers that exist and are assigned at most once."""
    # A flat array would be one client for each row.
    are_lists = isinstance(parts, Iterable) and all(
        np.ndim(part) == 1 for part in parts
    )
    require(
        are_lists, "the partitioner must give one array of row numbers for each client"
    )
    rows = Ragged.of(parts).rows
    require(
        not len(rows) or rows.max() < len(data),
        f"the partitioner gives row {rows.max(initial=0)}, and {data.name} has"
        f" {len(data)} examples, counted from 0",
    )
    counts = np.bincount(rows, minlength=1)
    require(
        counts.max() <= 1,
        f"the partitioner gives row {np.argmax(counts > 1)} twice; deal every row once",
    )


def _published_splits(
    data: Dataset, partitioner: Partitioner, test: str, val: float, seed: int
) -> tuple[tuple[str, ...], Splits]:
    """Partition a data set that has a published test set.

    Args:
        data: the data set.
        partitioner: the partitioner.
        test: "published" or "common", as for `from_partition`.
        val: fraction of each client's training rows.
        seed: random seed.

    Returns:
        The clients' names, and their (train, val, test) rows.
    """
    if data.test is None:
        raise ValueError(
            f"{data.name} has no published test examples; give test as a fraction"
        )
    if test == "common":
        # Partition the training examples only, and map to row numbers of all examples.
        training = np.flatnonzero(~data.test)
        names, parts = _partition(data.take(training), partitioner, seed)
        rows = Ragged.of([training[part] for part in parts])
    else:
        names, parts = _partition(data, partitioner, seed)
        rows = Ragged.of(parts)
    split = np.where(data.test, "test", "train")
    train, vals, tests = follow_splits(rows, split, data.y, names, val=val, seed=seed)
    if test == "common":
        tests = Ragged.of([np.flatnonzero(data.test)] * len(names))
    return names, (train, vals, tests)


def _remove_unused(
    data: Dataset, splits: Splits
) -> tuple[NDArray[Any], NDArray[Any], Splits]:
    """Remove the examples that no client has.

    Returns:
        The remaining x and y, and the splits with new row numbers.
    """
    is_used = np.zeros(len(data), np.bool_)
    for split in splits:
        is_used[split.rows] = True
    if is_used.all():
        return data.x, data.y, splits
    # The new number of a row is the number of used rows before it.
    new_row = np.cumsum(is_used) - 1
    train, val, test = (split.renumber(new_row[split.rows]) for split in splits)
    return data.x[is_used], data.y[is_used], (train, val, test)
