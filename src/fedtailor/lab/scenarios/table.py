"""A table of your own: one row for each example, a column that names its client."""

from typing import Literal

from fedtailor._base.choice import require
from fedtailor.data.tables import Table, from_table
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import linear
from fedtailor.protocol import SGD


def table(
    seed: int = 0,
    *,
    path: str = "",
    client: str = "client",
    target: str = "label",
    features: tuple[str, ...] | None = None,
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    event: str | None = None,
    hazard: Literal["discrete", "cox"] = "discrete",
    task: Literal["classification", "regression"] | None = None,
    positive: str | int | float | tuple[str | int | float, ...] = (),
    test: float = 0.2,
    val: float = 0.1,
    split: str | None = None,
    time: str | None = None,
    window: int | None = None,
    step: int | None = None,
    group: str | None = None,
    folds: int | None = None,
    unseen: int | float | tuple[str, ...] = 0,
    clients: tuple[str, ...] | None = None,
    missing: tuple[str, ...] = (),
    skip_unlabelled: bool = False,
    keep_correlated: bool = False,
    preprocessing: Literal["pooled", "federated"] = "pooled",
    separator: str | None = None,
    decimal: Literal[".", ","] | None = None,
    thousands: str | None = None,
    fold_case: bool = False,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Table:
    """The rows of a CSV, TSV, Parquet or Excel file, by client, as
    `fedtailor.data.tables.from_table` encodes them.

    Missing cells, text and dates are encoded, numbers standardised, constants,
    duplicates and ids left out; all that is learned for this comes from the training
    rows of seen clients. A client with one row only trains; one with two has no
    validation row.

    Args:
        seed: random seed of the splits; with `folds` it says which part is the test.
        path: the file (.csv, .tsv, .txt, also .gz of these; .parquet; .xlsx with the
            extra `excel`).
        client: column that names the row's client.
        target: column to predict: text and few whole numbers are classes, other numbers
            a regression.
        features: input columns; None = all others.
        drop: columns to leave out.
        categories: columns of numbers that are codes: one input for each value.
        event: column that says whether the event was seen: survival, with times in
            `target`.
        hazard: with `event`: "discrete" intervals of time, or "cox".
        task: what is predicted, where the target leaves it open.
        positive: labels that count as positive, the others being negative; or a
            comparison such as ">0".
        test, val: shares of each client's rows.
        split: column that says train, val or test; one called `split` that does is used
            without asking.
        time: column of times or dates: each client is tested on its last rows.
        window: rows of an example: each is a window of so many rows in the order of
            `time`.
        step: rows between the beginnings of two windows to train on; None = a window's.
        group: column whose rows of one value stay on one side, such as the patient of a
            visit.
        folds: cross-validation: seed s tests on part s of this many.
        unseen: clients that never train: how many, which share, or their names.
        clients: the clients to take; None = all of the table.
        missing: further words for a missing cell; COLUMN=WORD for one column's.
        skip_unlabelled: leave out rows without target or client, instead of refusing
            them.
        keep_correlated: leave the inputs of a regression correlated, as they are in the
            table.
        preprocessing: what fills missing cells and scales numbers: sums over all
            training rows, or those that clients of a federation of machines send.
        separator: what stands between cells; None = recognised.
        decimal: the decimal sign; None = recognised.
        thousands: the thousands mark; None = recognised.
        fold_case: read text in small letters, with single blanks.
        encoding: of the text; None = recognised.
        sheet: of an Excel file; None = the first that has the named columns.

    Raises:
        ValueError: the file cannot be read, or all that is wrong with its columns, in
            one list.
    """
    require(
        path != "",
        "the scenario `table` needs your file: set its parameters path, client and"
        " target",
    )
    return from_table(
        path,
        seed=seed,
        client=client,
        target=target,
        features=features,
        drop=drop,
        categories=categories,
        event=event,
        hazard=hazard,
        task=task,
        positive=positive,
        test=test,
        val=val,
        split=split,
        time=time,
        window=window,
        step=step,
        group=group,
        folds=folds,
        unseen=unseen,
        clients=clients,
        missing=missing,
        skip_unlabelled=skip_unlabelled,
        keep_correlated=keep_correlated,
        preprocessing=preprocessing,
        separator=separator,
        decimal=decimal,
        thousands=thousands,
        fold_case=fold_case,
        encoding=encoding,
        sheet=sheet,
    )


LOCAL = SGD(
    lr=0.02, momentum=0.9, steps=10, batch_size=4096, ridge=2.0, lr_halves_after=20
)
"""Few steps on all rows of a client (or 4,096 of them), so that nothing but the rate
keeps a linear model from its optimum; momentum, without which ten steps hardly move
along the directions in which rows vary little; scikit-learn's default penalty, without
which clients of few rows have no optimum; and a rate that falls, as the average of
models that took several steps each is otherwise not the model of all rows together.
"""
SCENARIOS = (
    Scenario(
        "table",
        "a file of your own, CSV, Parquet or Excel, with a column that names the"
        " client",
        table,
        linear(),
        300,
        {},
        defaults_with(LOCAL),
        source="Your own data",
        data="your file",
    ),
)
