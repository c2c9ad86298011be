"""`fit_table`: fit a regression to a user's file or data frame."""

from typing import Any

from fedtailor._base.choice import check_choice, require
from fedtailor._base.printable import join_names
from fedtailor.data.tables.design import read_design
from fedtailor.data.tables.options import make_options
from fedtailor.statistics.regression.fit import Errors, Intercept, fit_regression
from fedtailor.statistics.regression.result import Regression
from fedtailor.statistics.regression.sums import MODELS, ClientRows, Model


def fit_table(
    source: Any,
    model: Model,
    *,
    intercept: Intercept = "common",
    errors: Errors = "model",
    **options: Any,
) -> tuple[Regression, tuple[str, ...]]:
    """Fit a regression to the rows of a table.

    Args:
        source: what `from_table` takes.
        model, intercept, errors: see `fit_regression`.
        options: of `TableOptions`: `client`, `target`, `event`, `features`, `drop`,
            `categories`, `positive`, ...

    Returns:
        The regression, and notes on what was left out, in sentences.

    Raises:
        ValueError: the file cannot be read, or the model cannot be fitted to it.

    Example:
        >>> import polars as pl
        >>> from fedtailor.statistics.regression import fit_table
        >>> rows = {"site": ["a", "a", "b", "b"], "x": [0, 1, 2, 3], "y": [1, 3, 6, 6]}
        >>> fitted, notes = fit_table(
        ...     pl.DataFrame(rows), "linear", client="site", target="y"
        ... )
        >>> fitted.coefficients.round(2).tolist()
        [1.3, 1.8]
    """
    check_choice(model, MODELS, "model")
    require(
        (model == "cox") == (options.get("event") is not None),
        "event names the column of events for cox, and only for cox",
    )
    if model != "cox":
        options["task"] = "classification" if model == "logistic" else "regression"
    design = read_design(source, make_options(options))
    clients = []
    for number in range(len(design.clients)):
        mine = design.owner == number
        seen = None if design.seen is None else design.seen[mine]
        clients.append(ClientRows(design.x[mine], design.y[mine], seen))
    fitted = fit_regression(
        clients, design.names, model, intercept=intercept, errors=errors
    )
    notes = design.notes
    if fitted.left_out:
        names = join_names([design.clients[number] for number in fitted.left_out])
        notes += (
            "Clients whose rows say nothing about the coefficients, as their outcomes or"
            f" inputs are all alike, are left out: {names}.",
        )
    return fitted, notes
