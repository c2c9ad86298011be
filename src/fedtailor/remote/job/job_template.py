"""The `job.toml` that `federation init` writes, to be edited."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.groups import MIN_ROWS
from fedtailor._base.printable import join_names
from fedtailor.aggregation.secure_sums import MIN_CLIENTS
from fedtailor.data.tables.hiding import MAX_NAME_LENGTH, MAX_NAMES, counts_of
from fedtailor.data.tables.kinds import ParsedColumn, category_text, parse_column
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.reading import clean, read
from fedtailor.data.tables.roles import target_of, with_times
from fedtailor.data.tables.screening import screen
from fedtailor.data.tables.survival import interval_ends
from fedtailor.data.tables.target import label_text
from fedtailor.data.tables.windows import Windowing, usual_gap

TEMPLATE = """\
# What this federation trains. Every machine has a copy of this file; a client takes part in no other job.

title = "{title}"

[coordinator]
address = "{address}"       # host name or IP address of the coordinator, and its port

[data]                            # one row for each example; files with more columns are welcome, these are read
{target}val = 0.1                         # shares of each client's rows that do not train
test = 0.2
preprocessing = "job"             # gaps filled, numbers scaled as said here; "federated": by clients' sums; "none"
[data.columns]                    # inputs: mean and sd of numbers and dates, a list of categories, or "boolean"
{inputs}
[model]
{model}

[method]
use = "finetune"                  # any of `fedtailor algorithms`, with its hyper-parameters; --by sees: what serves it
sgd = {{ lr = 0.05, epochs = 1, batch_size = 32 }}

[training]
rounds = 50                       # at most, with until_converged = true, or until_score = 0.9 (validation rows)
seed = 0
minimum = {minimum}                       # clients without which a round does not count (behind masks: see `serve`)
deadline = 300                    # seconds that a round waits; asynchronous = {{ buffer = 3 }}: only for 3 answers
participation = 1.0               # who trains in a round: a share of the clients (up to 1), or a number (from 2)
sampling = "uniform"              # or "samples": by training rows; "poisson": each independently (for noise)

[privacy]
evaluate = false                  # true: clients send sums of losses, if their policies let measurements be sent
uplink = []                       # what happens to an update before it leaves, {{ use = "gaussian-noise", ... }}
secure_aggregation = true         # the coordinator sees sums over clients, and no client's own update

# [boosting]                      # instead of training: boosted trees, by fedtailor federation boost
# trees = 100

# [regression]                    # instead of training: coefficients and errors, by fedtailor federation fit
# model = "logistic"              # or linear, poisson, cox
"""


@dataclass(frozen=True)
class Columns:
    """The columns of a job.

    Attributes:
        target: column to predict.
        classes: what the target can be; None = it is a number.
        inputs: each input by name, as the job file has it: its kind, mean and deviation,
            or a list of categories.
        scale: mean and deviation of a target that is a number, as the job file has them.
        event: of survival, the column that says whether the event was seen.
        intervals: of survival, ascending ends of intervals of time.
        windowing: how rows become windows; None = rows are the examples.
    """

    target: str
    classes: tuple[str, ...] | None
    inputs: dict[str, str]
    event: str | None = None
    intervals: tuple[float, ...] = ()
    windowing: Windowing | None = None
    scale: str | None = None


EXAMPLE = Columns(
    "label",
    ("no", "yes"),
    {"age": "{ mean = 50, sd = 20 }", "ward": '["surgery", "medicine"]'},
)
"""Columns for who has given none."""


def columns_of(
    path: Path,
    target: str,
    *,
    clients: Sequence[str] = (),
    event: str | None = None,
    time: str | None = None,
    window: int | None = None,
    step: int | None = None,
) -> tuple[Columns, list[str]]:
    """Fill in the columns of a job from a table such as clients have.

    Taken is what every client needs to know: the labels of the target; of survival the
    ends of intervals, rounded; of windows the usual gap between two rows; of numbers and
    dates mean and deviation, to two digits; categories of `MIN_ROWS` rows or more.

    Args:
        path: the table.
        target: name of the column to predict, or of the times to an event.
        clients: names of the federation's clients; a column of them is left out.
        event: of survival, the column that says whether the event was seen.
        time: of windows, the column that orders rows.
        window, step: rows of a window, and between the beginnings of two.

    Returns:
        The columns, and lines for the user about what was left out.

    Raises:
        ValueError: the table cannot be read, has no such column or no input, or a
            column holds several kinds of cells.
    """
    options = TableOptions(
        client="", target=target, event=event, time=time, window=window, step=step
    )
    frame = clean(read(path, options).frame)
    roles = [name for name in options.roles.values() if name]
    for name in roles:
        require(
            name in frame.columns,
            f"{path.name} has no column {name!r}; its columns are"
            f" {join_names(frame.columns)}",
        )
    frame = frame.filter(frame[target].is_not_null())
    require(frame.height > 0, f"the target {target!r} is missing in all rows")
    problems = Problems(str(path))
    found = target_of(frame, options, problems)
    timed = with_times(frame, options, problems)
    problems.raise_if_any()
    assert found is not None
    classes, said = None, []
    if found.encoding.task == "classification":
        classes = tuple(label_text(label) for label in found.encoding.classes)
    intervals: tuple[float, ...] = ()
    if event is not None:
        intervals = _rounded_ends(found.values)
        said.append(
            f"intervals of time end at {', '.join(f'{end:g}' for end in intervals)}, which"
            f" follows from the events of {path.name}: edit them if clients must not know"
        )
    windowing = None
    if window is not None and time is not None:
        gap = usual_gap(_owners(timed), timed[time].to_numpy())
        require(np.isfinite(gap), f"the times in {time!r} are all equal")
        windowing = Windowing(window, step or window, time, gap)
    parsed: dict[str, ParsedColumn] = {}
    notes: list[str] = []
    for name in frame.columns:
        if name in roles:
            continue
        if _is_within(frame[name], clients):
            notes.append(f"{name!r} is left out: its cells are names of clients")
        else:
            parsed[name] = column = parse_column(frame[name])
            require(
                not column.unit,
                f"{path.name}: numbers of {name!r} have the unit {column.unit!r}; write"
                " plain numbers, as clients of a federation of machines must",
            )
    rows = frame.height
    screened = screen(
        parsed, np.ones(rows, bool), np.zeros(rows, np.int64), frozenset()
    )
    require(bool(screened.kept), f"{path.name} has no column that can be an input")
    for name, reason in screened.dropped.items():
        notes.append(f"{name!r} is left out: it is {reason}")
    inputs = dict[str, str]()
    for name in screened.kept:
        text, note = _input(name, parsed[name])
        if text is not None:
            inputs[name] = text
        if note is not None:
            notes.append(note)
    require(bool(inputs), f"{path.name} has no column that can be an input")
    said.append(
        f"means and deviations, to two digits, and categories are those of {path.name}: edit"
        " them if clients must not know, or have others"
    )
    scale = None
    if classes is None and event is None:
        scale = _scale(pl.Series(np.asarray(found.values, np.float64)))
    columns = Columns(target, classes, inputs, event, intervals, windowing, scale)
    return columns, said + notes


def _is_within(column: pl.Series, names: Sequence[str]) -> bool:
    """Whether all cells of a column of text or of whole numbers are among some names."""
    present = column.drop_nulls()
    is_name = present.dtype == pl.String or present.dtype.is_integer()
    return (
        is_name
        and not present.is_empty()
        and bool(category_text(present).is_in(list(names)).all())
    )


def _input(name: str, column: ParsedColumn) -> tuple[str | None, str | None]:
    """An input as the job file has it, None if it can be none; and a note on it, or None."""
    cells = column.values.drop_nulls()
    if len(cells) < MIN_ROWS:
        return None, f"{name!r} is left out: fewer than {MIN_ROWS} rows have a value"
    if column.kind == "boolean":
        return '"boolean"', None
    if column.kind != "category":
        return _scale(cells, is_date=column.kind == "date"), None
    names, rows = counts_of(cells)
    listed = sorted(names[rows >= MIN_ROWS].tolist())
    if len(listed) < 2:
        return None, (
            f"{name!r} is left out: fewer than two of its categories have {MIN_ROWS} rows"
        )
    if len(listed) > MAX_NAMES or max(map(len, listed)) > MAX_NAME_LENGTH:
        return None, (
            f"{name!r} is left out: more than {MAX_NAMES:,} categories, or {MAX_NAME_LENGTH}"
            " characters"
        )
    rare = int((rows < MIN_ROWS).sum())
    note = (
        f"{rare} of the categories of {name!r} not listed, as fewer than {MIN_ROWS} rows have"
        " one: a client with such rows does not start; list them, or write another word there"
    )
    return f"[{', '.join(map(_text, listed))}]", note if rare else None


def _scale(cells: pl.Series, *, is_date: bool = False) -> str:
    """Mean and deviation of numbers, or of dates in days, to two digits of the deviation.

    The few smallest and largest ones count as the next ones: a typo, or a code for "not
    measured", would be most of both.
    """
    numbers = np.sort(cells.to_numpy())
    few = min(MIN_ROWS - 1, len(numbers) // 4)
    numbers = numbers.clip(numbers[few], numbers[len(numbers) - few - 1])
    deviation = float(numbers.std())
    deviation = deviation if deviation > 1e-100 else 1.0  # all the same
    digits = 1 - math.floor(math.log10(deviation))
    mean = round(float(numbers.mean()), digits)
    shown = (
        str(date(1970, 1, 1) + timedelta(round(mean))) if is_date else f"{mean:.15g}"
    )
    return f"{{ mean = {shown}, sd = {float(f'{deviation:.2g}'):.15g} }}"


def _rounded_ends(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Ends of intervals of about equally many events, to two digits.

    Args:
        values: [rows, 2] times and events.
    """
    ends = interval_ends(values[values[:, 1] > 0, 0])
    rounded = sorted({float(f"{end:.2g}") for end in ends} - {0.0})
    return tuple(rounded) or (1.0,)


def _owners(frame: pl.DataFrame) -> NDArray[np.int64]:
    """The owner of each row: one for all, as a client's table has rows of one."""
    return np.zeros(frame.height, np.int64)


def template(title: str, address: str, clients: int, columns: Columns = EXAMPLE) -> str:
    """Fill in the template of a job file.

    Args:
        title: name of the federation; characters that TOML would escape are replaced.
        address: "host:port" of the coordinator.
        clients: number of clients with a kit; a round needs half of them, and as many
            as secure aggregation does.
        columns: the columns of the clients' tables.
    """
    target = _line(f"target = {_text(columns.target)}", "column to predict")
    if columns.event is not None:
        target += _line(f"event = {_text(columns.event)}", "whether the event was seen")
        ends = ", ".join(f"{end:g}" for end in columns.intervals)
        target += _line(f"intervals = [{ends}]", "where intervals of time end")
    if columns.windowing is not None:
        target += _window_lines(columns.windowing)
    if columns.scale is not None:
        target += _line(f"scale = {columns.scale}", "of the target")
    if columns.classes is not None:
        listed = ", ".join(_text(label) for label in columns.classes)
        target += _line(
            f"classes = [{listed}]",
            "what the target can be; leave this out to predict a number",
        )
    use = 'use = "mlp"' if columns.windowing is None else 'use = "conv1d"'
    model = f"{use:<33} # any model of `fedtailor scenarios`, with its arguments"
    if columns.windowing is None:
        model += "\nhidden = 32"
    inputs = "".join(
        f"{_key(name)} = {kind}\n" for name, kind in columns.inputs.items()
    )
    return TEMPLATE.format(
        title=title.replace("\\", "/").replace('"', "'"),
        address=address,
        minimum=max(MIN_CLIENTS, clients // 2),
        target=target,
        inputs=inputs,
        model=model,
    )


def _window_lines(windowing: Windowing) -> str:
    return "".join(
        (
            _line(f"time = {_text(windowing.time)}", "orders the rows of a window"),
            _line(f"window = {windowing.window}", "rows of an example"),
            _line(f"step = {windowing.step}", "between two windows to train on"),
            _line(f"gap = {windowing.gap:g}", "no window crosses a longer one"),
        )
    )


def _line(setting: str, comment: str) -> str:
    return f"{setting:<33} # {comment}\n"


def _text(text: str) -> str:
    """A text as TOML has it, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    """A key as TOML has it."""
    is_bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if is_bare else _text(name)
