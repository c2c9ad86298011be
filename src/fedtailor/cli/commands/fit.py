"""`fedtailor fit TABLE`: coefficients of a regression over all clients, with standard
errors, intervals and p values.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedtailor._base.choice import require
from fedtailor._base.printable import say
from fedtailor.cli.options import parse
from fedtailor.cli.output import check_not_input, write_text
from fedtailor.data.tables import ENDINGS

if TYPE_CHECKING:
    from fedtailor.statistics.regression import Regression


@dataclass(frozen=True)
class Options:
    """Fit a regression to the rows of all clients, from sums over clients."""

    table: Annotated[Path, tyro.conf.Positional]
    """The table."""
    client: str
    """The column that names the client of a row."""
    target: str
    """The column to explain; for cox, the time."""
    model: Literal["linear", "logistic", "poisson", "cox"]
    """The model; cox has a baseline hazard for each client."""
    event: str | None = None
    """For cox, the column that says whether the event was seen (1, yes, true)."""
    intercept: Literal["common", "fixed", "random"] = "common"
    """One intercept; one for each client; or normally distributed ones (a linear mixed
    model).
    """
    errors: Literal["model", "CR0", "CR1"] = "model"
    """Standard errors of the model; or robust to dependence within clients, without
    (CR0) and with (CR1) a correction for few clients.
    """
    features: tuple[str, ...] | None = None
    """The input columns (default: all that have no other role)."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that are codes."""
    positive: tuple[str, ...] = ()
    """The labels that count as positive (logistic) or as the event (cox), or a
    comparison, such as ">0".
    """
    missing: tuple[str, ...] = ()
    """Further words for a missing cell; COLUMN=WORD for a word of one column."""
    level: float = 0.95
    """The level of confidence intervals."""
    format: Literal["text", "csv", "latex", "json"] = "text"
    """What is printed; csv has ten digits, json all, with the covariance."""
    out: Path | None = None
    """Write a file instead."""

    def __post_init__(self) -> None:
        check_output(self.level, self.format, self.out)
        require(
            (self.model == "cox") == (self.event is not None),
            "--event names the column of events for --model cox; give both or neither",
        )
        require(
            not self.positive or self.model in ("logistic", "cox"),
            f"--positive is for logistic and cox; leave it out for {self.model}",
        )


def check_output(level: float, format: str, out: Path | None) -> None:
    """Check how a regression is printed.

    Raises:
        ValueError: not so.
    """
    require(0 < level < 1, f"--level is {level}; it must be between 0 and 1")
    require(out is None or format != "text", "--out needs --format csv, latex or json")


def fit(arguments: list[str]) -> int:
    """Prints the table of a regression."""
    from fedtailor.cli.advice import as_typed
    from fedtailor.statistics.regression import fit_table

    options = parse(Options, arguments, "fedtailor fit")
    require(
        options.table.name.lower().endswith(ENDINGS),
        f"{options.table} is not a table ({', '.join(ENDINGS)})",
    )
    check_not_input(options.out, options.table)
    with as_typed():
        fitted, notes = fit_table(
            options.table,
            options.model,
            intercept=options.intercept,
            errors=options.errors,
            client=options.client,
            target=options.target,
            event=options.event,
            features=options.features,
            drop=options.drop,
            categories=options.categories,
            positive=options.positive,
            missing=options.missing,
        )
    write_regression(
        fitted, notes, options.target, options.level, options.format, options.out
    )
    return 0


def write_regression(
    fitted: "Regression",
    notes: Sequence[str],
    target: str,
    level: float,
    format: str,
    out: Path | None,
) -> None:
    """Print a regression, or write it to a file.

    Args:
        fitted: the regression.
        notes: what was left out, in sentences.
        target: the column.
        level, format, out: see `Options`.
    """
    from fedtailor._base.digests import finite
    from fedtailor.cli.advice import as_typed_text
    from fedtailor.lab.report.regression import regression_notes, regression_table

    table = regression_table(fitted, target, level)
    notes = [*map(as_typed_text, notes), *regression_notes(fitted)]
    if format == "text":
        table.show()
        for note in notes:
            say(note)
        return
    if format == "csv":
        text = table.csv()
    elif format == "latex":
        text = replace(table, note=" ".join(notes)).latex()
    else:
        content = fitted.as_dict(level) | {"notes": notes}
        text = json.dumps(finite(content), allow_nan=False, indent=1) + "\n"
    write_text(text, out)
    if out is not None:
        say(f"Written: {out}")
