"""Federations from arrays with the client of every row, and from partitioned data."""

from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor.federation.checks import MAX_CLASSES, check_seed, plain_array, plain_text
from fedtailor.federation.dataset import Dataset, encode
from fedtailor.federation.federation import Federation, Ragged
from fedtailor.federation.partition import Natural, Partitioner
from fedtailor.federation.splits import (
    Unseen,
    choose_unseen,
    draw_splits,
    follow_splits,
)
from fedtailor.protocol import check_choice, require


def from_arrays(
    x: ArrayLike,
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
    name: str = "own data",
    seed: int = 0,
) -> Federation:
    """A federation from arrays with the client of every row.

    Args:
        x: [N, ...] inputs: uint8, float32 or float64, or int32 token ids.
        y: [N] integer labels, labels of text (encoded in sorted order; the names are
            kept), or [N, ...] float targets.
        client: [N] who holds the row: integers or text.
        test, val: fractions of each client's rows, stratified by class; see
            `draw_splits`.
        split: [N] "train", "val" or "test" for every row, instead of drawing the test
            rows; where it marks no validation rows, `val` takes them from the training
            rows.
        group: [N] the true group of the row's client, the same in all its rows.
        unseen: clients that never train: a count, a fraction or names.
        classes: number of classes; by default one more than the largest label for
            integers, of which then every one from 0 on must occur; None for floats.
        shift, scale: the model's input is (x - shift) * scale.
        name: what tables call the data.
        seed: of the splits and of the unseen clients.

    Returns:
        The federation; clients stand in the sorted order of their names.

    Raises:
        ValueError: the data do not fit together; the message names the client and the
            remedy.
    """
    columns = {"x": x, "y": y, "client": client, "split": split, "group": group}
    missing = [what for what in ("x", "y", "client") if columns[what] is None]
    require(
        not missing,
        f"{missing[0] if missing else 'x'} is None; give one entry for each example",
    )
    arrays = {
        what: plain_array(column, what)
        for what, column in columns.items()
        if column is not None
    }
    _check_shapes(arrays)
    # Labels and clients become numbers 0, 1, ...; what they stand for is kept as names.
    y, label_count, class_names = _labels(arrays["y"])
    owners, names = _clients(arrays["client"])
    if classes == "infer":
        classes = _number_of_classes(y, label_count, class_names)
    rows = _by_owner(owners, len(names))
    if split is None:
        splits = draw_splits(rows, y, names, test=test, val=val, seed=seed)
    else:
        splits = follow_splits(rows, arrays["split"], y, names, val=val, seed=seed)
    return Federation(
        arrays["x"],
        y,
        *splits,
        names,
        groups=None if group is None else _groups(arrays["group"], rows, names),
        unseen=choose_unseen(unseen, names, seed),
        classes=classes,
        shift=shift,
        scale=scale,
        name=name,
        class_names=class_names,
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
    """A federation from a data set and a rule that assigns its examples to clients.

    Args:
        data: the examples. What nobody gets is left out of the federation's pool.
        partitioner: IID, ClassesPerClient, Shards, DirichletByClass, DirichletByClient,
            Natural, or a function of the data set and a seed that returns one array of
            rows for each client.
        test: a fraction of each client's rows, drawn from all examples of the data set,
            stratified by class; "published": a client tests on those of its rows that
            the publishers hold out;
            "common": only the other examples are assigned, and every client tests on
                all that the publishers hold out.
        val: fraction of each client's rows (with "published" and "common", of its
            training rows).
        unseen: clients that never train: a count, a fraction or names.
        name: what tables call the federation; by default the data set's name.
        seed: of the partition, the splits and the unseen clients.

    Returns:
        The federation; clients stand in the partitioner's order.

    Raises:
        ValueError: the rule cannot be followed with these data; the message names the
            remedy.
    """
    if isinstance(test, str):
        check_choice(test, ("published", "common"), "kind of test set")
        names, splits = _published_splits(data, partitioner, test, val, seed)
    else:
        names, parts = _parts(data, partitioner, seed)
        splits = draw_splits(
            Ragged.of(parts), data.y, names, test=test, val=val, seed=seed
        )
    x, y, (train, vals, tests) = _compact(data, *splits)
    return Federation(
        x,
        y,
        train,
        vals,
        tests,
        names,
        unseen=choose_unseen(unseen, names, seed),
        classes=data.classes,
        shift=data.shift,
        scale=data.scale,
        name=data.name if name is None else name,
        class_names=data.class_names,
    )


def _labels(y: NDArray[Any]) -> tuple[NDArray[Any], int | None, tuple[str, ...] | None]:
    """What a column of targets is.

    Returns:
        Targets, the number of classes and the names of the classes; None where there
        are no classes, or no names.
    """
    # Data frames may hold numbers as objects.
    if y.dtype.kind == "O" and all(isinstance(value, Real) for value in y.flat):
        y = np.array(y.tolist())
    if y.dtype.kind in "USO":
        codes, names = encode(plain_text(y, "label"))
        return codes, len(names), names
    if y.dtype.kind == "b":
        return y.astype(np.int64), 2, ("False", "True")
    if y.dtype.kind in "iu":
        return y, int(y.max(initial=0)) + 1, None
    return y, None, None


def _number_of_classes(
    y: NDArray[Any], count: int | None, names: tuple[str, ...] | None
) -> int | None:
    """The number of classes, checked.

    Args:
        y: labels or targets.
        count: one more than the largest label; None where the targets are no labels.
        names: of the classes, where labels were text.

    Returns:
        `count`.

    Raises:
        ValueError: one class only, labels below 0, or a label that no row has: most
            often a mistyped one, which would make a model with an output for every
            number below it.
    """
    if count is None or not y.size:
        return count
    if names is None:
        least = int(y.min())
        if least < 0:
            signs = set(y.flat[:1000]) == {-1, 1}
            advice = "recode -1 as 0" if signs else "recode the labels as 0, 1, ..."
            row = int(np.argwhere(y == least)[0][0])
            raise ValueError(
                f"row {row} has label {least}, and labels count from 0; {advice}, or"
                " give them as text"
            )
        # In sequences a symbol of the alphabet may well be missing.
        if y.ndim == 1:
            _refuse_gaps(y, count)
    if count == 1:
        what = repr(names[0]) if names else 0
        raise ValueError(
            f"every row has the label {what}; with one class there is nothing to learn:"
            " check the labels"
        )
    return count


def _refuse_gaps(y: NDArray[Any], count: int) -> None:
    """Refuse labels of which one in 0..count-1 does not occur."""
    labels = np.unique(y)
    if len(labels) == count:
        return
    if int(labels[-1] - labels[0]) + 1 == len(labels):
        raise ValueError(
            f"the labels are {labels[0]} to {labels[-1]}; labels count from 0: subtract"
            f" {labels[0]}"
        )
    # The first gap (-1 before all labels, so that a missing 0 is one); the label behind
    # it is the one that may be mistyped.
    present = np.concatenate([[-1], labels])
    gap = int(np.argmax(np.diff(present) > 1))
    missing = int(present[gap]) + 1
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
    """Refuse columns that are not of the length of x.

    All but x and y must have a single axis.
    """
    x = arrays["x"]
    require(x.ndim >= 1, "x has no rows; give one for each example")
    for what, column in arrays.items():
        is_column = what in ("x", "y") or column.ndim == 1
        fits = is_column and column.shape[:1] == x.shape[:1]
        require(
            fits,
            f"x has {len(x)} rows and {what} has shape {column.shape}; give one entry"
            " for each row of x",
        )


def _clients(client: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The position of each row's client among the sorted clients, and their names."""
    if client.ndim != 1 or client.dtype.kind not in "iuUSO":
        raise ValueError(
            f"client is {client.dtype} of shape {client.shape}; give one integer or"
            " text for each row"
        )
    is_text = client.dtype.kind not in "iu"
    return encode(plain_text(client, "client") if is_text else client)


def _by_owner(owners: NDArray[np.int64], clients: int) -> Ragged:
    """The rows of each client, from the client of each row [N]."""
    sizes = np.bincount(owners, minlength=clients)
    return Ragged.cut(np.argsort(owners, kind="stable"), sizes)


def _groups(
    group: NDArray[Any], rows: Ragged, names: tuple[str, ...]
) -> NDArray[np.int64]:
    """The group of each client, from that of each row.

    Args:
        group: [N] of any kind.
        rows: of each client.
        names: of the clients, for messages.

    Returns:
        [m] numbers 0, 1, ... in the sorted order of the groups.

    Raises:
        ValueError: rows of one client are in different groups.
    """
    if group.dtype.kind not in "iubUSO":
        raise ValueError(
            f"group is {group.dtype}; give an integer or text for each row"
        )
    is_text = group.dtype.kind not in "iub"
    codes, values = encode(plain_text(group, "group") if is_text else group)
    # The group of each client's first row, which all its other rows must have.
    first = codes[rows.rows[rows.offsets[:-1]]]
    differs = codes[rows.rows] != first[rows.owners]
    if differs.any():
        entry = int(np.argmax(differs))
        client, row = int(rows.owners[entry]), rows.rows[entry]
        raise ValueError(
            f"client {names[client]!r} is in group {values[first[client]]!r} and, in"
            f" row {row}, in {values[codes[row]]!r}; a client has one group"
        )
    return first


def _parts(
    data: Dataset, partitioner: Partitioner, seed: int
) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """Who gets what.

    Returns:
        The clients' names, and one array of rows for each.
    """
    if isinstance(partitioner, Natural):
        named = partitioner.named(data)
        return tuple(named), list(named.values())
    parts = partitioner(data, check_seed(seed))
    _check_parts(data, parts)
    # Numbers of one width, so that names sort as numbers do.
    digits = len(str(max(len(parts) - 1, 0)))
    names = tuple(f"client-{number:0{digits}d}" for number in range(len(parts)))
    return names, parts


def _check_parts(data: Dataset, parts: list[NDArray[Any]]) -> None:
    """Refuse what a partitioner returned where it names no rows, or one row twice."""
    rows = Ragged.of(parts).rows
    require(
        not len(rows) or rows.max() < len(data),
        f"the partitioner gives row {rows.max(initial=0)}, and {data.name} has"
        f" {len(data)} examples, counted from 0",
    )
    twice = np.flatnonzero(np.bincount(rows, minlength=1) > 1)
    require(
        not len(twice),
        f"the partitioner gives row {twice[0] if len(twice) else 0} twice; deal every"
        " row once",
    )


def _published_splits(
    data: Dataset, partitioner: Partitioner, test: str, val: float, seed: int
) -> tuple[tuple[str, ...], tuple[Ragged, Ragged, Ragged]]:
    """Each client's rows, where the publishers have chosen the test examples.

    Returns:
        Names of the clients, and their (train, val, test) rows.
    """
    if data.test is None:
        raise ValueError(
            f"{data.name} has no published test examples; give test as a fraction"
        )
    if test == "common":
        # The partitioner sees training examples only; its row numbers count these.
        training = np.flatnonzero(~data.test)
        names, parts = _parts(data.take(training), partitioner, seed)
        rows = Ragged.of([training[part] for part in parts])
    else:
        names, parts = _parts(data, partitioner, seed)
        rows = Ragged.of(parts)
    split = np.where(data.test, "test", "train")
    train, vals, tests = follow_splits(rows, split, data.y, names, val=val, seed=seed)
    if test == "common":
        tests = Ragged.of([np.flatnonzero(data.test)] * len(names))
    return names, (train, vals, tests)


def _compact(
    data: Dataset, *splits: Ragged
) -> tuple[NDArray[Any], NDArray[Any], list[Ragged]]:
    """The pool without the examples that no client has.

    Returns:
        x, y, and the splits with the rows' new numbers.
    """
    used = np.zeros(len(data), np.bool_)
    for part in splits:
        used[part.rows] = True
    if used.all():
        return data.x, data.y, list(splits)
    # How many used rows stand before each one.
    new_number = np.cumsum(used) - 1
    renumbered = [part.renumber(new_number[part.rows]) for part in splits]
    return data.x[used], data.y[used], renumbered
