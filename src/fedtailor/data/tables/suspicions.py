"""Warnings about a table's content: what makes results wrong, or too good.

Each function returns sentences. Values, rows and columns are looked at in the training
rows of clients that train; only repetitions, and numbers that are far off, are looked for in
all rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Float32, Int
from numpy.typing import NDArray

from fedtailor._base.printable import join_names
from fedtailor.data.federation.repetitions import repeated_rows
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.kinds import ParsedColumn
from fedtailor.data.tables.options import TableOptions, folded
from fedtailor.data.tables.splitting import Rows, Splits

MAX_SEARCHED_ROWS = 200_000
"""Larger tables are not searched for repeated rows, which would take long."""
MAX_SEARCHED_INPUTS = 200
"""With more inputs no column is compared with all others."""

# codes for missing cells
MIN_REPETITIONS = 3
MIN_DISTINCT = 10
MIN_GAP = 3.0
"""A code stands this many times as far from its neighbour as other values from theirs."""
MIN_EXCESS = 5.0
"""A code occurs this many times as often as other values do."""
FAR = 2.0
"""This many times as far away as all others are from each other, a value need not occur
more often than they do.
"""
USUAL_CODES = {
    float(digit * ones) for digit in (7, 8, 9) for ones in (1, 11, 111, 1111, 11111)
}
"""Codes that questionnaires have, such as 9, 99 and -999, are looked for among few values,
too.
"""
MAX_CODES = 6
FAR_OFF = 1000.0
"""A number this many times as far from the median as nine tenths of all are from each other
is named.
"""
MAX_FAR_OFF = 0.01
"""If more than this share of the rows is so far off, the column is spread so."""

# columns that give the target away
MIN_EXPLAINED = 0.75
"""The share of the target that a suspicious column explains alone."""
MAX_REMAINING = 0.5
"""What it leaves unexplained, as a share of what all other columns together leave."""
MAX_LEAKS = 2
"""More columns than these are named in one sentence."""
MIN_ROWS_TO_JUDGE = 40
_BINS = 20

# several rows of one patient
MIN_SUBJECTS = 20
MAX_VISITS = 20
"""How many times as many rows as usual one patient may have."""
_SUBJECT_NAME = re.compile(
    r"(?i)(^|[_ .-])(id|pid|mrn|patient|subject|person|case|pat|subj)(s|[_ .-]?(id|nr|no))?$"
)

_WEIGHT_NAME = re.compile(
    r"(?i)^((case|sample|sampling|survey|row|design|inverse|ip)[_ .-]?)?(weights?|wgt|wt)$"
)
"""Names of columns that say how much a row counts."""

RARE = 0.9
"""If a larger share of the rows has one class, the accuracy says little."""


def code_warnings(
    columns: Mapping[str, ParsedColumn],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    names: Sequence[str],
) -> list[str]:
    """Values that may stand for missing cells, such as -999, or 0 for a cholesterol.

    Such a value is the smallest or largest of a column of numbers (or one of the two or
    three outermost), occurs repeatedly, and lies far from its neighbour.
    """
    warnings = []
    for name, column in columns.items():
        if column.kind == "number":
            values = column.values.to_numpy()
            warnings += _code_warnings(name, values, train, owners, names)
    return warnings


def target_code_warnings(
    name: str,
    values: Float[NDArray, " rows"],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    names: Sequence[str],
) -> list[str]:
    """The same of the target of a regression, whose rows have to be left out then."""
    return [
        f"{warning} --skip-unlabelled" if "--missing" in warning else warning
        for warning in _code_warnings(name, values, train, owners, names)
    ]


def _code_warnings(
    name: str,
    values: Float[NDArray, " rows"],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    names: Sequence[str],
) -> list[str]:
    """One sentence for each code of a column."""
    cells = values[train]
    cells = cells[np.isfinite(cells)]
    codes = _missing_codes(cells)
    others = cells[~np.isin(cells, codes)]
    warnings = []
    for code in codes:
        count = int((cells == code).sum())
        where = _clients_of_code(values == code, owners, names)
        warnings.append(
            f"{name!r} is {code:g} in {count:,} of {int(train.sum()):,} training"
            f" rows{where}, and {others.min():g} to {others.max():g} in all other rows; if"
            f" {code:g} means that the cell is missing, say --missing {_quoted(f'{name}={code:g}')}"
        )
    return warnings + far_off_warnings(name, values[~np.isin(values, codes)])


def far_off_warnings(name: str, values: Float[NDArray, " rows"]) -> list[str]:
    """A sentence if a few numbers are so large that they decide alone what is learned, or,
    in a test row, how good it looks.
    """
    cells = values[np.isfinite(values)]
    if len(cells) < MIN_ROWS_TO_JUDGE:
        return []
    low, middle, high = np.quantile(cells, [0.05, 0.5, 0.95])
    is_far = np.abs(cells - middle) > FAR_OFF * (high - low)
    if high == low or not 0 < is_far.sum() <= MAX_FAR_OFF * len(cells):
        return []
    far, usual = cells[is_far], cells[~is_far]
    return [
        f"{name!r} is {far[0]:g} in {len(far):,} of {len(values):,} rows, and"
        f" {usual.min():g} to {usual.max():g} in all others: such a number decides alone"
        " what is learned, or how good it looks; mend it, or leave its row out"
    ]


def _missing_codes(cells: Float[NDArray, " rows"]) -> list[float]:
    """The smallest and largest values of a column that look like codes."""
    codes: list[float] = []
    # One code may hide another on the other side.
    while len(codes) < MAX_CODES and (found := _outer_codes(cells)):
        codes += found
        cells = cells[~np.isin(cells, found)]
    return codes


def _outer_codes(cells: Float[NDArray, " rows"]) -> list[float]:
    """The codes at one end of a column: its outermost value, or two or three."""
    values, counts = np.unique(cells, return_counts=True)
    for number in (1, 2, 3):
        for codes, rest in (
            (slice(None, number), slice(number, None)),
            (slice(-number, None), slice(None, -number)),
        ):
            if _look_like_codes(
                values[codes], counts[codes], values[rest], counts[rest]
            ):
                return values[codes].tolist()
    return []


def _look_like_codes(
    codes: Float[NDArray, " k"],
    times: Int[NDArray, " k"],
    others: Float[NDArray, " n"],
    repeated: Int[NDArray, " n"],
) -> bool:
    """Whether the outermost values of a column look like codes.

    Args:
        codes: these values.
        times: how often each occurs.
        others: the other values.
        repeated: how often each occurs.
    """
    if len(others) < 2:
        return False
    gap = max(others[0] - codes[-1], codes[0] - others[-1])
    if codes[-1] - codes[0] > gap / MIN_GAP:
        return False
    if times.min() >= 2 and gap > FAR * (others[-1] - others[0]):
        return len(others) >= MIN_DISTINCT or {*np.abs(codes)} <= USUAL_CODES
    least_times = max(MIN_REPETITIONS, MIN_EXCESS * np.median(repeated))
    if len(others) < MIN_DISTINCT or times.min() < least_times:
        return False
    # Gaps between the middle nine tenths of the other rows' values.
    low, high = np.quantile(np.repeat(others, repeated), [0.05, 0.95])
    central = others[(others >= low) & (others <= high)]
    usual = np.diff(central).max() if len(central) > 1 else high - low
    return bool(gap > MIN_GAP * usual and gap > (high - low) / 8)


def _clients_of_code(
    is_code: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    names: Sequence[str],
) -> str:
    """Names the clients all of whose cells are a code."""
    clients = np.unique(owners)
    whole = [names[client] for client in clients if is_code[owners == client].all()]
    return f" (all rows of {join_names(whole)})" if whole else ""


def leak_warnings(
    encodings: Sequence[ColumnEncoding],
    x: Float32[NDArray, "rows inputs"],
    y: NDArray,
    train: Bool[NDArray, " rows"],
    classes: int,
) -> list[str]:
    """Columns that predict the target alone, far better than all others together.

    A column is judged by the mean target in each of its values (or in twenty ranges of
    numbers), or by a straight line if that predicts better: these are learned from one
    half of the training rows and tested on the other half. All others together are
    judged by ridge regression, likewise.

    Args:
        encodings: the columns.
        x: their inputs, before any decorrelation.
        y: class numbers, or targets.
        train: mask of the training rows.
        classes: number of classes; 0 for a regression.
    """
    rows = np.flatnonzero(train)
    if len(rows) < MIN_ROWS_TO_JUDGE or x.shape[1] > MAX_SEARCHED_INPUTS:
        return []
    rows = np.random.default_rng(0).permutation(rows)[:50_000]
    inputs = x[rows].astype(np.float64)
    targets = np.eye(classes)[y[rows]] if classes else y[rows, None].astype(np.float64)
    half = len(rows) // 2

    parts: dict[str, slice] = {}
    start = 0
    for encoding in encodings:
        parts[encoding.name] = slice(start, start + len(encoding.inputs))
        start += len(encoding.inputs)
    alone = {
        name: max(
            _explained(targets[half:], fit(inputs[:, part], targets, half))
            for fit in (_mean_by_value, _ridge)
        )
        for name, part in parts.items()
    }
    suspects = [name for name, share in alone.items() if share >= MIN_EXPLAINED]
    if not suspects:
        return []
    others = np.ones(x.shape[1], np.bool_)
    for name in suspects:
        others[parts[name]] = False
    together = _explained(targets[half:], _ridge(inputs[:, others], targets, half))
    leaks = [
        name for name in suspects if 1 - alone[name] <= MAX_REMAINING * (1 - together)
    ]
    rest = _percent(max(together, 0.0))
    what = "tells the classes apart" if classes else "predicts the target"
    if len(leaks) > MAX_LEAKS:
        # Many columns that grow with the target, such as sizes, are hardly all leaks.
        least = _percent(min(alone[name] for name in leaks))
        return [
            f"each of the columns {join_names(leaks)} alone {what} (it explains {least}"
            f" or more; all columns besides these together {rest}): if one was made from"
            " the target, or is not known before it, results are too good; leave it out"
            " with --drop"
        ]
    return [
        f"column {name!r} alone {what} (it explains {_percent(alone[name])}; all other"
        f" columns together {rest}): if it was made from the target, or is not known"
        f" before it, results are too good; leave it out with --drop {_quoted(name)}"
        for name in leaks
    ]


def _mean_by_value(
    inputs: Float[NDArray, "rows inputs"], targets: Float[NDArray, "rows k"], half: int
) -> Float[NDArray, "tested k"]:
    """The mean target of the first half's rows with equal values (or in equal ranges)."""
    groups = np.zeros(len(inputs), np.int64)
    for column in inputs.T:
        values = np.unique(column)
        if len(values) > _BINS:
            edges = np.unique(np.quantile(column[:half], np.linspace(0, 1, _BINS + 1)))
            codes = np.searchsorted(edges[1:-1], column, side="right")
        else:
            codes = np.searchsorted(values, column)
        _, groups = np.unique(groups * (_BINS + 2) + codes, return_inverse=True)
    count = int(groups.max()) + 1
    sizes = np.bincount(groups[:half], minlength=count)[:, None]
    mean = targets[:half].mean(axis=0)
    sums = np.stack(
        [np.bincount(groups[:half], column, count) for column in targets[:half].T], 1
    )
    # A prior of one row of the mean.
    return ((sums + mean) / (sizes + 1))[groups[half:]]


def _ridge(
    inputs: Float[NDArray, "rows inputs"], targets: Float[NDArray, "rows k"], half: int
) -> Float[NDArray, "tested k"]:
    """Predictions of the second half by ridge regression on the first."""
    design = np.column_stack([inputs, np.ones(len(inputs))])
    first = design[:half]
    penalty = np.eye(design.shape[1])
    weights = np.linalg.solve(first.T @ first + penalty, first.T @ targets[:half])
    return design[half:] @ weights


def _explained(
    targets: Float[NDArray, "tested k"], predictions: Float[NDArray, "tested k"]
) -> float:
    """The share of the targets' variance that predictions explain."""
    total = np.square(targets - targets.mean(axis=0)).sum()
    return float(1 - np.square(targets - predictions).sum() / total) if total else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _quoted(name: str) -> str:
    return f"'{name}'" if " " in name else name


def repetition_warnings(
    columns: Iterable[pl.Series],
    target: NDArray,
    owners: Int[NDArray, " rows"],
    splits: Splits,
) -> list[str]:
    """Rows that occur again in the data of the same client, with the same target."""
    if len(owners) > MAX_SEARCHED_ROWS:
        return []
    arrays = [target]
    for series in columns:
        # Missing cells are a value of their own.
        arrays.append(series.rank("dense").fill_null(0).to_numpy())
    groups = repeated_rows(arrays, owners)
    if groups is None:
        return []
    sizes = np.bincount(groups)
    repeated = int((sizes[groups] > 1).sum())
    trained = np.isin(groups[splits[2].rows], groups[splits[0].rows])
    text = (
        f"{repeated:,} of {len(owners):,} rows occur more than once, with the same"
        " client, inputs and target"
    )
    if trained.any():
        text += (
            f"; {int(trained.sum()):,} of {len(trained):,} test rows are in the training"
            " data, too, and results are too good by them"
        )
    return [f"{text}. Leave out all but one, or keep them together with --group"]


def class_warnings(y: NDArray, labels: Sequence[object]) -> list[str]:
    """A warning if nearly all rows have one class."""
    counts = np.bincount(y, minlength=len(labels))
    share = counts.max() / counts.sum()
    if share < RARE:
        return []
    percent = f"{100 * share:.1f}"
    return [
        f"{percent} % of the rows have the class {labels[int(counts.argmax())]}: always"
        f" answering it has an accuracy of {percent}; judge by --metrics roc_auc"
        " (or balanced_accuracy)"
    ]


def group_warnings(
    columns: Mapping[str, ParsedColumn],
    owners: Int[NDArray, " rows"],
    options: TableOptions,
) -> list[str]:
    """A warning if a column looks like the number of a patient with several rows.

    It is text or whole numbers, of many values, most of which occur repeatedly, and never
    at two clients; or its name says so.
    """
    if options.group is not None or options.window is not None:
        return []
    clients, found = pl.Series("owner", owners), []
    for name, column in columns.items():
        values = column.values.alias("value")
        if column.kind != "category" and not column.is_integer:
            continue
        counts = values.drop_nulls().value_counts()["count"].to_numpy()
        if len(counts) < MIN_SUBJECTS or counts.sum() < len(values):
            continue
        repeated = counts[counts > 1].sum() / counts.sum()
        if repeated < 0.5 or counts.max() > MAX_VISITS * np.median(counts):
            continue
        is_named = _SUBJECT_NAME.search(name) is not None
        is_nested = pl.DataFrame([values, clients]).n_unique() == len(counts)
        if is_named or (is_nested and len(counts) > 2 * clients.n_unique()):
            found.append(
                f"{name!r} has {len(counts):,} values in {len(values):,} rows: if rows of"
                " one value are of one patient, or the like, keep them together with"
                f" --group {_quoted(name)}, as results are too good otherwise"
            )
    return found[:1]


def spelling_warnings(columns: Iterable[pl.Series]) -> list[str]:
    """A warning if values of text differ in capitals or blanks only."""
    found = []
    for series in columns:
        if series.dtype != pl.String:
            continue
        values = series.drop_nulls().unique().sort()
        spellings: dict[str, list[str]] = {}
        for value in values.to_list():
            spellings.setdefault(folded(value), []).append(value)
        alike = [group for group in spellings.values() if len(group) > 1]
        if alike:
            more = f" and {len(alike) - 2} more" if len(alike) > 2 else ""
            shown = "; ".join(" / ".join(group[:3]) for group in alike[:2])
            found.append(f"{series.name!r} ({shown}{more})")
    if not found:
        return []
    return [
        "values that differ in capitals or blanks only are different ones, in"
        f" {', '.join(found)}; say --fold-case if they are the same"
    ]


def weight_warnings(names: Iterable[str]) -> list[str]:
    """A warning if inputs are named like the weight of a row."""
    found = [name for name in names if _WEIGHT_NAME.search(name)]
    if not found:
        return []
    drop = " ".join(map(_quoted, found))
    return [
        f"{join_names(found)} {'is an input' if len(found) == 1 else 'are inputs'} like any"
        " other, and every row counts the same; if it says how much a row counts, and is"
        f" not the weight of a person or thing, name it (--weight {_quoted(found[0])}), or"
        f" leave it out (--drop {drop})"
    ]


def client_warnings(rows: Rows, options: TableOptions) -> list[str]:
    """A warning if most clients have a single row."""
    names = np.array(rows.names, object)[rows.of_client.sizes == 1]
    if 2 * len(names) <= len(rows.names):
        return []
    examples = ", ".join(names[:3])
    return [
        f"{len(names):,} of {len(rows.names):,} clients have a single row, such as"
        f" {examples}: is {options.client!r} the column that says who"
        " holds the row? Name another with --client"
    ]
