"""Sets up a comparison of methods on the user's table, from command-line options."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedtailor._printable import one_line
from fedtailor.experiments.document import Document
from fedtailor.experiments.experiment import Experiment, resolve
from fedtailor.metrics import find_metrics
from fedtailor.protocol import require
from fedtailor.runs.binding import bind
from fedtailor.tables import ENDINGS, Table, TableOptions, from_table, stable_rate

METHODS = ("local", "fedavg", "finetune", "ditto", "ucfl", "self-fl")
CLASSIFICATION_RATES = (0.1, 0.01)
"""Candidate learning rates for classification, the larger one first.

Of rates with the same validation result the first one is chosen, and the larger rate
has made more progress.
"""


@dataclass(frozen=True)
class TableComparisonOptions(TableOptions):
    """How the table is read, and what is compared on it."""

    algorithms: tuple[str, ...] = METHODS
    """The methods to compare."""
    rounds: int = 50
    """Communication rounds."""
    seeds: tuple[int, ...] | None = None
    """Seeds of splits, initial models and batches (default: 0 1 2; with folds, one for
    each part).
    """
    metrics: tuple[str, ...] = ()
    """What to measure beside loss and accuracy (roc_auc, balanced_accuracy, ...; of a
    regression rmse, mae, r2); the first is what methods are judged by."""
    lr: tuple[float, ...] | None = None
    """Learning rates to choose from, on validation data, for each method (default: 0.1
    and 0.01 for classes; for a regression the largest rate at which no client should
    diverge, computed from the training inputs, and a fifth)."""

    def all_seeds(self) -> tuple[int, ...]:
        """The seeds, or the default seeds if none are given."""
        if self.seeds is not None:
            return self.seeds
        return (0, 1, 2) if self.folds is None else tuple(range(self.folds))


def changed_options(options: TableOptions) -> dict[str, Any]:
    """The table's options that differ from their defaults.

    Returns:
        Keyword arguments of `from_table`, which are also the keys of an experiment
        file.
    """
    default = TableOptions()
    changed = {}
    for field in fields(TableOptions):
        value = getattr(options, field.name)
        if value != getattr(default, field.name):
            changed[field.name] = list(value) if isinstance(value, tuple) else value
    return changed


def default_rates(table: Table) -> tuple[float, ...]:
    """The default candidate learning rates of a table, rounded to two digits."""
    if table.classes is not None:
        return CLASSIFICATION_RATES
    largest = stable_rate(table)
    return tuple(float(f"{rate:.1e}") for rate in (largest, largest / 5))


def prepare_table_experiment(
    path: Path, options: TableComparisonOptions
) -> tuple[Experiment, str]:
    """Makes the comparison and checks the options and the table.

    All errors are found here, before anything is trained or written.

    Returns:
        The comparison, and a description of the table with the first seed: its sizes,
        and what was imputed and left out.

    Raises:
        ValueError: a method does not exist, the file cannot be read, or columns are
            wrong; the message lists all problems of the columns.
    """
    rates = options.lr or CLASSIFICATION_RATES
    require(
        options.val != 0 or len(rates) == 1,
        "--val is 0, and learning rates are chosen on validation data; name one rate"
        " with --lr, or leave rows for validation",
    )
    # Check the options before a large file is read.
    experiment = table_experiment(path, options, rates)
    table = from_table(path, seed=options.all_seeds()[0], **changed_options(options))
    find_metrics(options.metrics, bind(experiment.columns[0].scenario.model, table))
    if options.lr is None:
        experiment = table_experiment(path, options, default_rates(table))
        if table.classes is None:
            # Above the largest rate training may diverge.
            experiment = replace(experiment, limited=("sgd.lr",))
    return experiment, f"{describe_table(table)}\n"


def describe_table(table: Table) -> str:
    """The sizes of a table, and the notes on what was imputed and left out."""
    notes = [one_line(f"  {note}") for note in table.notes]
    return "\n".join([table.describe(), *notes])


def table_experiment(
    path: Path, options: TableComparisonOptions, rates: tuple[float, ...]
) -> Experiment:
    """The comparison of methods on a user's table, each with its best learning rate.

    Raises:
        ValueError: a method does not exist, or a value is wrong.
    """
    name = path.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    scenario = {"use": "table", "path": str(path), **changed_options(options)}
    grid = {"sgd": {"lr": list(rates)}}
    content = {
        "title": f"{path.name}: one model per {options.client}",
        "rounds": options.rounds,
        "seeds": list(options.all_seeds()),
        "measured": list(options.metrics),
        "metrics": ["mean", "worst", "worst10"],
        "scenarios": {name: scenario},
        "algorithms": {method: {"grid": grid} for method in options.algorithms},
    }
    return resolve(Document(content, (("the command line", "", ()),)), name)
