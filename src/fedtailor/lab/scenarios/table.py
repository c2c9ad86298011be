"""A table of your own: one row for each example, a column that names its client."""

from dataclasses import dataclass
from typing import Any

from fedtailor._base.choice import require
from fedtailor.data.tables import Table, TableOptions, from_table
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import linear
from fedtailor.protocol import SGD


@dataclass(frozen=True)
class FileOptions(TableOptions):
    """The options of a table, as an experiment file may write them."""

    # A file may name one label, or labels that are numbers.
    positive: str | int | float | tuple[str | int | float, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]


def table(seed: int = 0, *, path: str = "", **options: Any) -> Table:
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
        options: the fields of `TableOptions`.

    Raises:
        ValueError: the file cannot be read, or all that is wrong with its columns, in
            one list.
    """
    require(
        path != "",
        "the scenario `table` needs your file: set its parameters path, client and"
        " target",
    )
    return from_table(path, seed=seed, **options)


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
        options=FileOptions,
    ),
)
