"""`from_table`: build a federation from a user's file or data frame."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float32, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import file_digest
from fedtailor._base.groups import MIN_ROWS
from fedtailor._base.printable import join_names
from fedtailor.data.federation import Federation, Ragged
from fedtailor.data.federation.splits import choose_unseen
from fedtailor.data.tables.checks import check_clients, check_columns
from fedtailor.data.tables.decorrelation import fit_decorrelation
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.kinds import Kind, ParsedColumn, parse_column
from fedtailor.data.tables.notes import (
    class_weight_note,
    column_notes,
    decorrelation_notes,
    dropped_notes,
    empty_notes,
    role_notes,
    split_notes,
)
from fedtailor.data.tables.numerals import code_note, has_leading_zeros
from fedtailor.data.tables.options import TableOptions, make_options
from fedtailor.data.tables.preprocessing import Preprocessing, role_reason
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.reading import RawTable, read
from fedtailor.data.tables.roles import (
    balanced_weights,
    find_split_column,
    labelled_rows,
    rows_of_clients,
    target_of,
    weights_of,
    with_times,
)
from fedtailor.data.tables.screening import screen
from fedtailor.data.tables.splitting import Rows, Splits, everything_trains, split_rows
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.data.tables.survival import survival_loss
from fedtailor.data.tables.suspicions import (
    class_warnings,
    client_warnings,
    code_warnings,
    group_warnings,
    leak_warnings,
    repetition_warnings,
    spelling_warnings,
    target_code_warnings,
    weight_warnings,
)
from fedtailor.data.tables.target import Target, TargetEncoding
from fedtailor.data.tables.windows import Windowing, usual_gap, windows_in_splits

ALL_ROWS = "all_rows"
"""The option of an origin whose rows all train."""


@dataclass(frozen=True)
class TableOrigin:
    """The file and the options from which a table was read.

    Attributes:
        path: the file.
        digest: SHA-256 of the file.
        seed: random seed of the splits.
        options: the options that differ from the defaults of `TableOptions`.

    Example:
        >>> frame.write_csv("own.csv")
        >>> table = ft.tables.from_table("own.csv", client="hospital", target="ill")
        >>> table.origin.path.name, table.origin.seed
        ('own.csv', 0)
    """

    path: Path
    digest: str
    seed: int
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Table(Federation):
    """A federation that was read from a table.

    Inputs are float32: standardized numbers, and indicators. For a regression they are
    also decorrelated, and the targets are standardized (`preprocessing.target_shift`
    and `preprocessing.target_scale` convert them back).

    Its warnings name codes for missing cells, columns that give the target away,
    repeated rows, a rare class, and clients with one row.

    Attributes:
        preprocessing: converts rows of the table to inputs, and predictions to labels.
        notes: what was detected, imputed and left out, in sentences.
        origin: the file and the options, with which the table can be read again; None
            if it was read from a frame.

    Example:
        >>> table = ft.tables.from_table(frame, client="hospital", target="ill")
        >>> table.names
        ('north', 'south')
        >>> table.preprocessing.target.classes
        (False, True)
    """

    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()
    origin: TableOrigin | None = None

    @property
    def file(self) -> Path | None:
        return None if self.origin is None else self.origin.path

    def only(self, names: Sequence[str]) -> "Table":
        """The table of some clients, which holds nothing of the others.

        It is read again, and its preprocessing is fitted to these clients. The unseen
        ones among them, which never train, stay unseen.

        Raises:
            ValueError: there is no such client, none of them trains, or the table was
                read from a frame, so that it cannot be read again.
        """
        if self.origin is None:
            raise ValueError(
                "the table was read from a data frame, and its preprocessing was fitted"
                " to all of its clients; read it from a file"
            )
        unseen = tuple(
            name
            for name, is_unseen in zip(self.names, self.unseen, strict=True)
            if is_unseen and name in names
        )
        options = {
            **self.origin.options,
            "clients": tuple(names),
            # Without unseen clients it is the default, which the manifest does not list.
            "unseen": unseen or 0,
        }
        table = from_table(self.origin.path, seed=self.origin.seed, **options)
        return replace(table, name=self.name)

    def origin_in(self, directory: Path) -> dict[str, Any] | None:
        origin = self.origin
        if origin is None:
            return None
        path = os.path.relpath(origin.path.resolve(), directory.resolve())
        return {
            "scenario": "table",
            "seed": origin.seed,
            "file": origin.digest,
            "parameters": {"path": Path(path).as_posix(), **origin.options},
        }


def from_table(
    source: Any, *, seed: int = 0, all_rows: bool = False, **options: Any
) -> Table:
    """Build a federation from a table with one row per example and a client column.

    Missing cells, text, booleans and dates are encoded, and numbers are standardized.
    Constants, duplicates, and columns that identify rows or clients are left out. All
    statistics are those of the training rows of seen clients. With
    `preprocessing="federated"` they are added up as a federation of machines does,
    which then trains on the same inputs.

    Args:
        source: a path (.csv, .tsv, .txt, .parquet, and .xlsx with the extra `excel`),
            or a polars or pandas frame.
        seed: random seed of the splits and of the choice of unseen clients; with
            `folds` it selects the fold of the test rows.
        all_rows: train on every row, whatever the options say about splits: nothing is
            left to choose or to judge by.
        options: the fields of `TableOptions`, such as client="hospital", target="num",
            positive=">0".

    Returns:
        The federation, with the attributes `preprocessing` and `notes`.

    Raises:
        ValueError: the file cannot be read, or its columns have problems, which the
            message lists.

    Example:
        >>> table = ft.tables.from_table(frame, client="hospital", target="ill")
        >>> own = ft.run(ft.Ditto(), table, ft.models.logistic(), rounds=2)
        >>> own.personal("north").predict_rows(frame.head(3)).shape
        (3,)
    """
    settings = make_options(options)
    table = _build(read(source, settings), settings, seed, all_rows)
    return replace(table, origin=_origin(source, settings, seed, all_rows))


def _origin(
    source: Any, options: TableOptions, seed: int, all_rows: bool
) -> TableOrigin | None:
    """The origin of a table; None if it was read from a frame."""
    if not isinstance(source, str | os.PathLike):
        return None
    path, default = Path(source).expanduser(), TableOptions()
    changed = {
        name: value
        for name, value in vars(options).items()
        if value != getattr(default, name)
    }
    if all_rows:
        changed[ALL_ROWS] = True
    return TableOrigin(path, file_digest(path), seed, changed)


def _build(raw: RawTable, options: TableOptions, seed: int, all_rows: bool) -> Table:
    problems = Problems(raw.where)
    options, notes = find_split_column(raw.frame, options, list(raw.notes))
    check_columns(raw.frame, options, problems)
    problems.raise_if_any()
    frame, row_numbers = rows_of_clients(raw.frame, options, problems)
    problems.raise_if_any()
    frame, row_numbers = labelled_rows(frame, row_numbers, options, notes)
    # Collect the problems of all columns, so that one error lists them.
    rows = check_clients(frame, options, problems)
    target = target_of(frame, options, problems)
    weights = weights_of(frame, options, problems)
    columns = _parse_columns(frame, options, problems)
    problems.raise_if_any()
    assert rows is not None and target is not None
    # A split has events and censored rows in the same shares, as it has classes.
    is_survival = target.encoding.task == "survival"
    strata = target.values[:, 1].astype(np.int64) if is_survival else target.values
    rows = replace(rows, y=strata)
    timed = with_times(frame, options, problems)
    problems.raise_if_any()
    splits = split_rows(timed, rows, options, problems, seed)
    times = None if options.time is None else timed[options.time].to_numpy()
    problems.raise_if_any()
    if all_rows:
        splits = everything_trains(rows)
    texts = [frame[options.client], frame[options.target]]
    texts += [column.values for column in columns.values() if column.kind == "category"]
    spellings = spelling_warnings(texts)
    del frame, timed  # saves memory, as the parsed columns are copies
    # Statistics are computed from the training rows of seen clients.
    unseen = choose_unseen(options.unseen, rows.names, seed)
    train = _training_rows(splits, unseen, len(rows.owners))
    _check_training(splits, unseen, rows.names, options, problems, all_rows)
    problems.raise_if_any()
    parts = _parts(splits, unseen, rows.names, train, options)
    encodings, dropped = _fit_columns(
        columns, train, parts, rows.owners, options, notes, problems
    )
    problems.raise_if_any()
    kept = {encoding.name: columns[encoding.name] for encoding in encodings}
    notes += empty_notes(kept, rows.owners, rows.names)
    notes += role_notes(options)
    notes += target.notes
    if not all_rows:
        notes += split_notes(splits, rows, options)
    encoding, y = _standardize_target(target, parts)
    loss = None
    if is_survival:
        loss, of_loss = survival_loss(y[train], options)
        notes += of_loss
    ignored = _ignored_columns(raw.frame.columns, encodings, options, dropped)
    x, decorrelation = _encode(columns, encodings), None
    warnings = [
        *client_warnings(rows, options),
        *spellings,
        *group_warnings(columns, rows.owners, options),
        *weight_warnings(kept),
        *(class_warnings(y[train], encoding.classes) if encoding.classes else ()),
        *code_warnings(kept, train, rows.owners, rows.names),
        *_target_codes(target, options.target, train, rows),
        *leak_warnings(
            encodings, x, strata if is_survival else y, train, len(encoding.classes)
        ),
        *repetition_warnings(
            [column.values for column in kept.values()], rows.y, rows.owners, splits
        ),
    ]
    is_linear = encoding.task != "classification" and options.window is None
    if is_linear and not options.keep_correlated:
        if options.preprocessing == "pooled":
            decorrelation = fit_decorrelation(x[parts.rows[0]])
        notes += decorrelation_notes(decorrelation, x.shape[1], options.preprocessing)
        if decorrelation is not None:
            decorrelation.apply(x)
    preprocessing = Preprocessing(
        columns=encodings,
        target=encoding,
        client=options.client,
        ignored=ignored,
        missing=options.missing,
        decimal=raw.decimal,
        thousands=options.thousands,
        fold_case=options.fold_case,
        decorrelation=decorrelation,
    )
    if options.window is not None:
        assert times is not None
        made = _make_windows(x, y, times, rows, splits, row_numbers, options)
        x, y, splits, row_numbers = made.x, made.y, made.splits, made.row_numbers
        notes += made.notes
        preprocessing = replace(preprocessing, windowing=made.windowing)
        _check_windows(
            splits, unseen, rows.names, options, problems, is_tested=not all_rows
        )
        problems.raise_if_any()
    of_classes = None
    if options.class_weights is not None:
        require(
            bool(encoding.classes),
            f"class_weights are for classes, and {options.target!r} holds numbers; leave"
            " them out",
        )
        counted = np.ones(len(y)) if weights is None else weights
        of_classes = balanced_weights(y[train], counted[train], len(encoding.classes))
        notes.append(class_weight_note(of_classes, encoding.classes))
    return Table(
        x,
        y,
        *splits,
        rows.names,
        unseen=unseen,
        classes=len(encoding.classes) or None,
        name=raw.name,
        loss=loss,
        class_names=tuple(str(label) for label in encoding.classes) or None,
        preprocessing=preprocessing,
        notes=tuple(notes),
        warnings=tuple(warnings),
        rows=row_numbers,
        weights=weights,
        class_weights=of_classes,
    )


@dataclass(frozen=True)
class _Windows:
    """The examples that windows make of rows.

    Attributes:
        x: [windows, window, inputs].
        y: class or target of each window, that of its last row.
        splits: the windows of each client.
        row_numbers: the first row of each window.
        windowing: how they were made.
        notes: what was made, in sentences.
    """

    x: Float32[NDArray, "windows window inputs"]
    y: NDArray[Any]
    splits: Splits
    row_numbers: Int[NDArray, " windows"]
    windowing: Windowing
    notes: tuple[str, ...]


def _make_windows(
    x: Float32[NDArray, "rows inputs"],
    y: NDArray[Any],
    times: NDArray[np.float64],
    rows: Rows,
    splits: Splits,
    row_numbers: Int[NDArray, " rows"],
    options: TableOptions,
) -> _Windows:
    """Make windows of rows, none across two clients, splits or classes, or a gap."""
    assert options.window is not None and options.time is not None
    step = options.step or options.window
    gap = usual_gap(rows.owners, times)
    windowing = Windowing(options.window, step, options.time, gap)
    split_of_row = np.zeros(len(y), np.int64)
    for number, split in enumerate(splits):
        split_of_row[split.rows] = number
    index = windows_in_splits(rows.owners, times, split_of_row, y, windowing)
    last = index[:, -1]
    owners, split_of_window = rows.owners[last], split_of_row[last]
    of_split = []
    for number in range(len(splits)):
        chosen = np.flatnonzero(split_of_window == number)
        of_client = Ragged.from_owners(owners[chosen], len(rows.names))
        of_split.append(Ragged.cut(chosen[of_client.rows], of_client.sizes))
    used = len(np.unique(index))
    note = (
        f"Examples are {len(index):,} windows of {options.window} rows, {step} apart in"
        " training and without common rows in validation and test; none crosses a gap in"
        f" {options.time!r} of more than {gap:g}, or a change of client, class or split."
        f" {len(x) - used:,} of {len(x):,} rows are in no window."
    )
    return _Windows(
        x[index],
        y[last],
        (of_split[0], of_split[1], of_split[2]),
        row_numbers[index[:, 0]],
        windowing,
        (note,),
    )


def _check_windows(
    splits: Splits,
    unseen: Bool[NDArray, " clients"],
    names: tuple[str, ...],
    options: TableOptions,
    problems: Problems,
    *,
    is_tested: bool,
) -> None:
    """Check that all seen clients have a window to train on, and some one to test on."""
    empty = [names[i] for i in np.flatnonzero((splits[0].sizes == 0) & ~unseen)]
    if empty:
        problems.add(
            f"clients {join_names(empty)} have no {options.window} training rows that"
            " follow each other without a gap or another class; take a smaller window, or"
            " name them in unseen"
        )
    if is_tested and not splits[2].rows.size and options.test > 0:
        problems.add(
            f"no client has {options.window} test rows that follow each other; take a"
            " smaller window, or a larger share of rows with test"
        )


def _target_codes(
    target: Target, name: str, train: Bool[NDArray, " rows"], rows: Rows
) -> list[str]:
    """Warnings about codes for missing cells in the target of a regression."""
    if target.encoding.task != "regression":
        return []
    values = np.asarray(target.values, np.float64)
    return target_code_warnings(name, values, train, rows.owners, rows.names)


def _parse_columns(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> dict[str, ParsedColumn]:
    """Parse the candidates for inputs."""
    special = [*options.roles.values(), *options.drop]
    names = options.features or [name for name in frame.columns if name not in special]
    columns: dict[str, ParsedColumn] = {}
    for name in _expand_names(names, frame.columns):
        try:
            is_category = name in options.categories
            columns[name] = parse_column(frame[name], category=is_category)
        except ValueError as error:
            problems.add(str(error))
    if not columns and not problems.found:
        problems.add(
            f"there is no input column besides {join_names(special)}; a model needs one at"
            " least"
        )
    return columns


def _expand_names(names: Iterable[str], columns: list[str]) -> list[str]:
    """Replace names of columns of arrays by the names of their entries' columns."""
    expanded: list[str] = []
    for name in names:
        if name in columns:
            expanded.append(name)
        else:
            expanded += [column for column in columns if is_entry(column, name)]
    return expanded


def is_entry(column: str, name: str) -> bool:
    """Whether a column is `name`, or an entry of the column of arrays `name`."""
    return column == name or (column.startswith(f"{name}[") and column.endswith("]"))


@dataclass(frozen=True)
class _Parts:
    """The training rows of seen clients, in parts whose sums are added up.

    Attributes:
        rows: the rows of each part.
        least: the smallest number of rows that is counted (see `ColumnSums.of`).
    """

    rows: Sequence[Int[NDArray, " n"]]
    least: int

    def sums(self, values: pl.Series, kind: Kind) -> ColumnSums:
        """The sums of a column over all parts."""
        sums = (
            ColumnSums.of(values[rows], kind, least=self.least) for rows in self.rows
        )
        return reduce(add, sums)


def _parts(
    splits: Splits,
    unseen: Bool[NDArray, " clients"],
    names: tuple[str, ...],
    train: Bool[NDArray, " rows"],
    options: TableOptions,
) -> _Parts:
    """One part, or one for each client in the order in which a coordinator adds them."""
    if options.preprocessing == "pooled":
        return _Parts([np.flatnonzero(train)], 1)
    in_order = sorted(np.flatnonzero(~unseen).tolist(), key=names.__getitem__)
    return _Parts([splits[0][client] for client in in_order], MIN_ROWS)


def _training_rows(
    splits: Splits, unseen: Bool[NDArray, " clients"], count: int
) -> Bool[NDArray, " rows"]:
    """A mask of the training rows of seen clients."""
    mask = np.zeros(count, np.bool_)
    mask[splits[0].take(np.flatnonzero(~unseen)).rows] = True
    return mask


def _check_training(
    splits: Splits,
    unseen: Bool[NDArray, " clients"],
    names: tuple[str, ...],
    options: TableOptions,
    problems: Problems,
    all_rows: bool,
) -> None:
    """Check that all seen clients have training rows, and that there are test rows."""
    empty = [names[i] for i in np.flatnonzero((splits[0].sizes == 0) & ~unseen)]
    if empty:
        rule = "split" if options.split else "group"
        problems.add(
            f"clients {join_names(empty)} have no training rows; change the {rule} column,"
            " or name them in unseen"
        )
    is_tested = (options.test > 0 or options.split) and not all_rows
    if not splits[2].rows.size and is_tested:
        problems.add(
            "no client has a row to test on; give clients with two rows or more, fewer"
            " folds, or other groups or splits"
        )


def _fit_columns(
    columns: dict[str, ParsedColumn],
    train: Bool[NDArray, " rows"],
    parts: _Parts,
    owners: Int[NDArray, " rows"],
    options: TableOptions,
    notes: list[str],
    problems: Problems,
) -> tuple[tuple[ColumnEncoding, ...], dict[str, str]]:
    """Screen the columns, and fit the encodings of the remaining ones.

    Returns:
        The encodings, and the reason for each column that is left out.
    """
    names = (*(options.features or ()), *options.categories)
    requested = frozenset(_expand_names(names, list(columns)))
    screening = screen(columns, train, owners, requested)
    for name, reason in screening.dropped.items():
        if name in requested and reason.startswith("missing"):
            problems.add(
                f"column {name!r} is asked for and is missing in all training rows;"
                " fill it in or leave it out"
            )
    dropped = dict(screening.dropped)
    encodings: list[ColumnEncoding] = []
    for name in screening.kept:
        column = columns[name]
        try:
            encoding = parts.sums(column.values, column.kind).encoding(
                name, column.kind
            )
        except ValueError as error:
            problems.add(str(error))
            continue
        if column.kind == "category" and not encoding.categories:
            dropped[name] = f"no value is in {MIN_ROWS} training rows"
            if name in requested:
                problems.add(
                    f"column {name!r} is asked for, and {dropped[name]}; leave it out"
                )
            continue
        encodings.append(
            replace(encoding, date_format=column.date_format, unit=column.unit)
        )
    if not encodings and not problems.found:
        reasons = (f"{name!r} is {text}" for name, text in dropped.items())
        problems.add(f"no input column is left: {'; '.join(reasons)}")
    notes += [*dropped_notes(dropped), *screening.warnings]
    zeros = [
        encoding.name
        for encoding in encodings
        if encoding.kind == "category"
        and encoding.name not in options.categories
        and has_leading_zeros(columns[encoding.name].values)
    ]
    notes += [code_note(zeros)] if zeros else []
    notes += column_notes(tuple(encodings), columns)
    by_user = dict.fromkeys(options.drop, "dropped by the user")
    return tuple(encodings), dropped | by_user


def _standardize_target(
    target: Target, parts: _Parts
) -> tuple[TargetEncoding, NDArray[Any]]:
    """Standardize the targets of a regression by the training rows.

    Class numbers are unchanged.
    """
    if target.encoding.task == "classification":
        return target.encoding, target.values.astype(np.int32)
    if target.encoding.task == "survival":
        return target.encoding, target.values.astype(np.float32)
    sums = parts.sums(pl.Series(target.values), "number")
    # Of sums that clients send the smallest number does not follow.
    is_known = len(parts.rows) == 1 and parts.least == 1
    encoding = replace(
        target.encoding,
        shift=sums.mean,
        scale=sums.deviation,
        never_negative=is_known and bool((target.values[parts.rows[0]] >= 0).all()),
    )
    return encoding, ((target.values - sums.mean) / sums.deviation).astype(np.float32)


def _ignored_columns(
    names: list[str],
    encodings: tuple[ColumnEncoding, ...],
    options: TableOptions,
    dropped: dict[str, str],
) -> dict[str, str]:
    """The reason for each column of the table that is not an input."""
    inputs = {encoding.name for encoding in encodings}
    reasons = dict.fromkeys(names, "not among the features")
    for role, column in options.roles.items():
        reasons[column] = role_reason(role)
    reasons |= dropped
    return {name: text for name, text in reasons.items() if name not in inputs}


def _encode(
    columns: dict[str, ParsedColumn], encodings: tuple[ColumnEncoding, ...]
) -> Float32[NDArray, "rows inputs"]:
    """Encode the columns as the model's inputs."""
    rows = len(columns[encodings[0].name].values)
    inputs = sum(len(encoding.inputs) for encoding in encodings)
    x = np.empty((rows, inputs), np.float32)
    start = 0
    for encoding in encodings:
        end = start + len(encoding.inputs)
        encoding.encode(columns[encoding.name].values, x[:, start:end])
        start = end
    return x
