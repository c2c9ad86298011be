"""`from_table`: a user's file or frame becomes a federation.

The preprocessing that its models need later comes with it.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float32, Int
from numpy.typing import NDArray

from fedtailor.federation import Federation
from fedtailor.federation.splits import choose_unseen
from fedtailor.tables.checks import check_clients, check_columns
from fedtailor.tables.decorrelation import fit_decorrelation
from fedtailor.tables.encoding import ColumnEncoding, fit_column
from fedtailor.tables.kinds import Parsed, recognise
from fedtailor.tables.notes import (
    about_columns,
    about_decorrelation,
    about_dropped,
    about_splits,
)
from fedtailor.tables.options import TableOptions, make_options
from fedtailor.tables.preprocessing import Preprocessing
from fedtailor.tables.problems import Problems, listed
from fedtailor.tables.reading import RawTable, read
from fedtailor.tables.roles import (
    find_split_column,
    labelled_rows,
    rows_of_clients,
    target_of,
    with_times,
)
from fedtailor.tables.screening import screen
from fedtailor.tables.splitting import Splits, split_rows
from fedtailor.tables.target import Target, TargetEncoding


@dataclass(frozen=True)
class TableOrigin:
    """Where a table came from.

    Attributes:
        path: the file.
        digest: SHA-256 of its bytes.
        seed: of the splits.
        options: what differs from the defaults of `TableOptions`.
    """

    path: Path
    digest: str
    seed: int
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Table(Federation):
    """A federation that was read from a table.

    Its inputs are standardised numbers and indicators, float32, of a regression
    decorrelated; its targets are standardised too (`preprocessing.target_shift` and
    `target_scale` lead back to their own unit).

    Attributes:
        preprocessing: how rows of the table become inputs of the models, and
            predictions what the user calls them.
        notes: what was decided, imputed and left out, in sentences.
        rows: [N] the row of the table, counted from 0, in which each example stood.
        origin: the file and the options, by which the table can be read again; None of
            a frame.
    """

    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()
    rows: Int[NDArray, " N"] | None = None
    origin: TableOrigin | None = None


def from_table(source: Any, *, seed: int = 0, **options: Any) -> Table:
    """A federation from a table as it comes.

    It has one row for each example, and a column that names the example's client.
    Missing cells, text, booleans and dates are encoded, numbers are standardised;
    constants, duplicates, and columns that tell rows or clients apart are left out. All
    that is learned for this comes from the training rows of clients that train. In a
    real federation those statistics would be obtained by secure aggregation.

    Args:
        source: a path (.csv, .tsv, .txt, .parquet, with the extra `excel` also .xlsx),
            a polars or a pandas frame.
        seed: of the splits and of the unseen clients; with `folds` it says which part
            is the test.
        options: the fields of `TableOptions`, such as client="hospital", target="num",
            positive=">0".

    Returns:
        The federation; `.preprocessing` and `.notes` say what was done.

    Raises:
        ValueError: the file cannot be read, or all that is wrong with its columns, in
            one list.

    Example:
        >>> table = ft.tables.from_table("heart.csv", client="hospital", target="num", positive=">0")
        >>> run = ft.run(ft.Ditto(), table, ft.models.logistic(), rounds=50)
    """
    settings = make_options(options)
    table = _build(read(source, settings), settings, seed)
    return replace(table, origin=_origin(source, settings, seed))


def _origin(source: Any, options: TableOptions, seed: int) -> TableOrigin | None:
    """Where a table came from; None of a frame."""
    if not isinstance(source, str | os.PathLike):
        return None
    path, default = Path(source).expanduser(), TableOptions()
    changed = {
        name: value
        for name, value in vars(options).items()
        if value != getattr(default, name)
    }
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TableOrigin(path, digest, seed, changed)


def _build(raw: RawTable, options: TableOptions, seed: int) -> Table:
    problems = Problems(raw.where)
    options, notes = find_split_column(raw.frame, options, list(raw.notes))
    check_columns(raw.frame, options, problems)
    problems.raise_if_any()
    frame, kept_rows = rows_of_clients(raw.frame, options, problems)
    problems.raise_if_any()
    frame, kept_rows = labelled_rows(frame, kept_rows, options, notes)
    # From here on all problems are collected, so that one error lists them.
    rows = check_clients(frame, options, problems)
    target = target_of(frame, options, problems)
    columns = _recognise(frame, options, problems)
    problems.raise_if_any()
    assert rows is not None and target is not None
    rows = replace(rows, y=target.values)
    splits = split_rows(
        with_times(frame, options, problems), rows, options, problems, seed
    )
    problems.raise_if_any()
    del frame  # the parsed columns of a large table are as large again
    # Only the training rows of clients that train are learned from.
    unseen = choose_unseen(options.unseen, rows.names, seed)
    train = _training_rows(splits, unseen, len(rows.owners))
    _check_training(splits, unseen, rows.names, options, problems)
    problems.raise_if_any()
    encodings, ignored = _learn(columns, train, rows.owners, options, notes, problems)
    problems.raise_if_any()
    notes += [*target.notes, *about_splits(splits, rows, options)]
    encoding, y = _standardise_target(target, train)
    ignored = _ignored(raw.frame.columns, encodings, options, ignored)
    decimal = options.decimal
    if decimal is None:
        has_comma = any("decimal comma" in note for note in raw.notes)
        decimal = "," if has_comma else "."
    x, decorrelation = _inputs(columns, encodings), None
    if encoding.task == "regression" and not options.keep_correlated:
        decorrelation = fit_decorrelation(x, train)
        notes += about_decorrelation(decorrelation, x.shape[1])
        if decorrelation is not None:
            decorrelation.apply(x)
    preprocessing = Preprocessing(
        encodings,
        encoding,
        options.client,
        ignored,
        options.missing,
        decimal,
        decorrelation,
    )
    return Table(
        x,
        y,
        *splits,
        rows.names,
        unseen=unseen,
        classes=len(encoding.classes) or None,
        name=raw.name,
        class_names=tuple(str(label) for label in encoding.classes) or None,
        preprocessing=preprocessing,
        notes=tuple(notes),
        rows=kept_rows,
    )


def _recognise(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> dict[str, Parsed]:
    """The candidates for inputs, parsed; what cannot be parsed is a problem."""
    special = [*options.roles.values(), *options.drop]
    names = options.features or [name for name in frame.columns if name not in special]
    columns: dict[str, Parsed] = {}
    for name in _expanded(names, frame.columns):
        try:
            columns[name] = recognise(frame[name], category=name in options.categories)
        except ValueError as error:
            problems.add(str(error))
    if not columns and not problems.found:
        problems.add(
            f"there is no input column besides {listed(special)}; a model needs one at"
            " least"
        )
    return columns


def _expanded(names: Iterable[str], columns: list[str]) -> list[str]:
    """Names, a column of arrays being the columns of its entries."""
    expanded: list[str] = []
    for name in names:
        if name in columns:
            expanded.append(name)
        else:
            expanded += [column for column in columns if is_entry(column, name)]
    return expanded


def is_entry(column: str, name: str) -> bool:
    """Whether a column is `name`, or an entry of the array column `name`."""
    return column == name or (column.startswith(f"{name}[") and column.endswith("]"))


def _training_rows(
    splits: Splits, unseen: Bool[NDArray, " clients"], count: int
) -> Bool[NDArray, " rows"]:
    """The training rows of the clients that train."""
    mask = np.zeros(count, np.bool_)
    mask[splits[0].take(np.flatnonzero(~unseen)).rows] = True
    return mask


def _check_training(
    splits: Splits,
    unseen: Bool[NDArray, " clients"],
    names: tuple[str, ...],
    options: TableOptions,
    problems: Problems,
) -> None:
    """Every client that trains has a row to train on, and some client one to test on."""
    idle = [names[i] for i in np.flatnonzero((splits[0].sizes == 0) & ~unseen)]
    if idle:
        rule = "split" if options.split else "group"
        problems.add(
            f"clients {listed(idle)} have no training rows; change the {rule} column,"
            " or name them in unseen"
        )
    if not splits[2].rows.size and (options.test > 0 or options.split):
        problems.add(
            "no client has a row to test on; give clients with two rows or more, and"
            " other groups or splits"
        )


def _learn(
    columns: dict[str, Parsed],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    options: TableOptions,
    notes: list[str],
    problems: Problems,
) -> tuple[tuple[ColumnEncoding, ...], dict[str, str]]:
    """The encodings of the columns that are worth an input.

    Returns:
        The encodings, and column -> why it is left out.
    """
    asked_for = (*(options.features or ()), *options.categories)
    named = frozenset(_expanded(asked_for, list(columns)))
    screened = screen(columns, train, owners, named)
    for name, why in screened.dropped.items():
        if name in named and why.startswith("missing"):
            problems.add(
                f"column {name!r} is asked for and is missing in all training rows;"
                " fill it in or leave it out"
            )
    if not screened.kept:
        reasons = (f"{name!r} is {why}" for name, why in screened.dropped.items())
        problems.add(f"no input column is left: {'; '.join(reasons)}")
    notes += [*about_dropped(screened.dropped), *screened.warnings]
    mask = pl.Series(train)
    encodings = tuple(fit_column(name, columns[name], mask) for name in screened.kept)
    notes += about_columns(encodings, columns)
    by_user = dict.fromkeys(options.drop, "dropped by the user")
    return encodings, dict(screened.dropped) | by_user


def _standardise_target(
    target: Target, train: Bool[NDArray, " rows"]
) -> tuple[TargetEncoding, NDArray[Any]]:
    """The targets as models are trained on them.

    Class numbers stay as they are. The targets of a regression get mean 0 and deviation
    1 over the training rows.
    """
    if target.encoding.task == "classification":
        return target.encoding, target.values.astype(np.int32)
    shift = float(target.values[train].mean())
    scale = float(target.values[train].std()) or 1.0
    encoding = replace(target.encoding, shift=shift, scale=scale)
    return encoding, ((target.values - shift) / scale).astype(np.float32)


def _ignored(
    names: list[str],
    encodings: tuple[ColumnEncoding, ...],
    options: TableOptions,
    left_out: dict[str, str],
) -> dict[str, str]:
    """Every column of the table that is no input, and why.

    Rows may have it when the models are used.
    """
    inputs = {encoding.name for encoding in encodings}
    reasons = dict.fromkeys(names, "not among the features")
    for role, column in options.roles.items():
        reasons[column] = f"the {role} column"
    reasons |= left_out
    return {name: why for name, why in reasons.items() if name not in inputs}


def _inputs(
    columns: dict[str, Parsed], encodings: tuple[ColumnEncoding, ...]
) -> Float32[NDArray, "rows inputs"]:
    rows = len(columns[encodings[0].name].values)
    inputs = sum(len(encoding.inputs) for encoding in encodings)
    x = np.empty((rows, inputs), np.float32)
    start = 0
    for encoding in encodings:
        end = start + len(encoding.inputs)
        encoding.encode(columns[encoding.name].values, x[:, start:end])
        start = end
    return x
