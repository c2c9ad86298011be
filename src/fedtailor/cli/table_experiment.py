"""Sets up a comparison of methods on the user's table, from command-line options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.printable import one_line
from fedtailor.algorithms.find import find_algorithm
from fedtailor.data.tables import ENDINGS, Table, TableOptions, from_table, stable_rate
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import default_baselines
from fedtailor.lab.experiments.experiment import Experiment, resolve
from fedtailor.lab.experiments.option_text import AUTO, model_of_text
from fedtailor.lab.results.words import DEFAULT_METHODS
from fedtailor.models.metrics import find_metrics
from fedtailor.protocol import Algorithm
from fedtailor.protocol.document import Document

HIDDEN = 32
"""The width of the small network."""
MAX_ROUNDS = 300
"""Rounds after which a training ends even if it has not converged."""
EVALUATE_EVERY = 5
"""Rounds between two evaluations, which show when training has converged."""
LINEAR, SERIES = "linear", "conv1d"
"""The models of tables and of windows, unless another one is named."""

ORACLE = "oracle"
"""The method that is only for simulations."""

NETWORK_RATE = 0.1
"""The first learning rate of a network, whose largest stable one is not known."""

NETWORK_SGD: dict[str, Any] = {
    "ridge": None,
    "steps": None,
    "epochs": 2,
    "batch_size": 16,
    "momentum": 0.9,
}
"""The local training of networks: two passes in a round, and no penalty of linear models."""

RATE_FACTOR = 3
"""The factor between learning rates that are tried."""

SMALL_ROWS = 5_000
"""The most rows of a small table, whose rows are all tested."""
FOLDS = 5
"""So many folds divide a small table unless the user says how to split it. A second
division would narrow intervals by a tenth, for twice the time."""


@dataclass(frozen=True)
class TableComparisonOptions(TableOptions):
    """How the table is read, and what is compared on it."""

    algorithms: tuple[str, ...] = DEFAULT_METHODS
    """The methods to compare."""
    baselines: tuple[str, ...] = default_baselines()
    """What to train in addition to the methods, on the same rows: boosted trees and linear models of
    each client alone, personal trees (shared ones, then own), for numbers a mixed model,
    all of which can be chosen; trees and linear models of all rows together, which need
    pooled rows; and for times to an event Cox's model. On request trees-federated, which
    can be boosted over machines. Nothing after the option: none of them."""
    deployable: bool = False
    """Choose only among what can be trained over machines (`fedtailor federation`): mixed
    models, personal trees and Cox's model from sums are left out."""
    model: str = "linear"
    """What is trained: linear; mlp, a small network (its width: --hidden); auto, which
    chooses one of the two for each method, on validation data; periodic_mlp, for targets
    that rise and fall with a number; or as for `fedtailor run`, mlp:hidden=64 or
    net.py:Net."""
    hidden: int | None = None
    """The width of the hidden layer of mlp and auto (default: 32)."""
    rounds: int | None = None
    """Communication rounds (default: until the validation loss has converged, 300 at
    most)."""
    seeds: tuple[int, ...] | None = None
    """Seeds of splits, initial models and batches (default: 0 1 2; with folds, one for
    each part; up to 5,000 rows are cross-validated with 5 folds).
    """
    metrics: tuple[str, ...] = ()
    """What to measure in addition to loss and accuracy (roc_auc, balanced_accuracy, ...; of a
    regression rmse, mae, r2); the first is what methods are judged by."""
    lr: tuple[float, ...] | None = None
    """Learning rates to choose from, on validation data, for each method (default: the
    largest rate at which no client's steps overshoot, computed from the training inputs,
    a third of it, and further ones until the best has neighbours on both sides)."""

    def models(self) -> list[dict[str, Any]]:
        """The models to choose from, as an experiment file has them.

        Raises:
            ValueError: a width is given for a model that has none.
        """
        if self.window is not None and self.model == LINEAR:
            return [{"use": SERIES}]
        names = ["linear", "mlp"] if self.model == AUTO else [self.model]
        require(
            self.hidden is None or "mlp" in names,
            f"--hidden is the width of mlp and auto, and --model is {self.model}; leave"
            " one out",
        )
        network = {"use": "mlp", "hidden": self.hidden or HIDDEN}
        return [network if name == "mlp" else model_of_text(name) for name in names]

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
    """The first candidate learning rates of a table, rounded to two digits."""
    largest = stable_rate(table)
    return tuple(float(f"{rate:.1e}") for rate in (largest, largest / RATE_FACTOR))


def ridge_of(table: Table) -> float:
    """The penalty of linear models, in the unit of `SGD.ridge`.

    It is scikit-learn's default: alpha = 1 for squared errors, whose curvature is twice
    that of ridge regression's, and C = 1 for the logarithms of classes. The two classes
    of a binary target have weights of opposite signs, which share the penalty.
    """
    return 1.0 if table.classes is not None and table.classes > 2 else 2.0


def penalties(
    methods: Sequence[str], ridge: float, clients: int
) -> dict[str, dict[str, float]]:
    """The penalty of each method, as settings of local training.

    A penalty belongs to a model. Where clients train one model together and keep none,
    each of them adds its share of the penalty, so that their model is the one for all
    rows together.

    Args:
        methods: names of methods.
        ridge: the penalty of a model.
        clients: number of clients that train.
    """
    return {
        name: {"ridge": ridge / (clients if trains_together(name) else 1)}
        for name in methods
    }


def trains_together(name: str) -> bool:
    """Whether clients train one model together by a method, and no other one.

    Clients that keep nothing have no model of their own. What they keep (a control, or
    the model that they sent last) is none either if they predict with the model that
    they receive.
    """
    method = find_algorithm(name, own_files=True)
    keeps_something = (
        method.init_client is not Algorithm.init_client
        or method.init_state is not Algorithm.init_state
    )
    predicts_with_another = method.personal is not Algorithm.personal
    return method.about.models_received == "one model" and not (
        keeps_something and predicts_with_another
    )


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
    # Placeholder rates, small because methods reject large ones.
    rates = options.lr or (1e-3, 1e-3 / RATE_FACTOR)
    require(
        options.val != 0 or len(rates) == 1,
        "--val is 0, and learning rates are chosen on validation data; name one rate"
        " with --lr, or leave rows for validation",
    )
    require(
        not options.deployable or ORACLE not in options.algorithms,
        f"{ORACLE} needs to know who belongs together, and cannot be trained over"
        " machines; leave it out, or --deployable",
    )
    left_out = ""
    if options.weight is not None or options.class_weights is not None:
        counting = [
            method
            for method in options.algorithms
            if not find_algorithm(method, own_files=True)().takes_weights
        ]
        # Only methods that the user has named are an error.
        require(
            not counting or options.algorithms == DEFAULT_METHODS,
            f"methods that count rows take no weights: {', '.join(counting)}; leave them"
            " out, or --weight and --class-weights",
        )
        if counting:
            others = tuple(it for it in options.algorithms if it not in counting)
            options = replace(options, algorithms=others)
            left_out = f"  Left out: {', '.join(counting)}, as it takes no weights.\n"
    # Check the options before a large file is read.
    experiment = table_experiment(path, options, rates)
    table = from_table(path, seed=options.all_seeds()[0], **changed_options(options))
    if _is_small(table, options):
        seeds = tuple(range(FOLDS))
        options = replace(options, folds=FOLDS, seeds=seeds)
        table = from_table(path, seed=seeds[0], **changed_options(options))
    find_metrics(options.metrics, bind(experiment.scenarios[0].definition.model, table))
    if options.window is None:
        rates = options.lr or default_rates(table)
    else:
        rates = options.lr or (NETWORK_RATE, NETWORK_RATE / RATE_FACTOR)
    experiment = table_experiment(
        path, options, rates, ridge_of(table), len(table.seen)
    )
    return experiment, f"{table_description(table)}\n{left_out}"


def is_cross_validated(options: TableComparisonOptions, experiment: Experiment) -> bool:
    """Whether a table is cross-validated without having been asked for it."""
    return (
        options.seeds is None
        and options.folds is None
        and len(experiment.file.seeds) == FOLDS
    )


def _is_small(table: Table, options: TableComparisonOptions) -> bool:
    """Whether a table is small, and nothing says how it is split."""
    small = len(table.y) <= SMALL_ROWS
    default = TableComparisonOptions()
    names = ("seeds", "folds", "split", "time", "window", "test")
    is_open = all(getattr(options, name) == getattr(default, name) for name in names)
    assert table.preprocessing is not None
    # A column called `split` is used without being named.
    has_column = "the split column" in table.preprocessing.ignored.values()
    return small and is_open and not has_column


def table_description(table: Table) -> str:
    """The sizes of a table, the notes on it and the warnings, one on each line."""
    notes = [one_line(f"  {note}") for note in table.notes]
    notes += [one_line(f"  Warning: {warning}.") for warning in table.warnings or ()]
    return "\n".join([table.describe(), *notes])


def table_experiment(
    path: Path,
    options: TableComparisonOptions,
    rates: tuple[float, ...],
    ridge: float = 2.0,
    clients: int = 1,
) -> Experiment:
    """The comparison of methods on a user's table, each with its best learning rate.

    Args:
        path: the file.
        options: how to read it, and what to compare.
        rates: learning rates to choose from.
        ridge: the penalty of a linear model, see `ridge_of`.
        clients: number of clients that train.

    Raises:
        ValueError: a method does not exist, or a value is wrong.
    """
    name = path.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    scenario: dict[str, Any] = {"use": "table", "path": str(path)}
    scenario |= changed_options(options)
    models = options.models()
    # A single model is not a choice, and the usual one is the scenario's.
    if len(models) > 1:
        scenario["models"] = models
    elif models != [{"use": "linear"}]:
        scenario["model"] = models[0]
    settings = penalties(options.algorithms, ridge, clients)
    if options.window is not None:
        settings = {name: NETWORK_SGD for name in options.algorithms}
    grid = {"sgd": {"lr": list(rates)}}
    until_converged = options.rounds is None
    content = {
        "title": f"{path.name}: which model for each {options.client}",
        "rounds": MAX_ROUNDS if options.rounds is None else options.rounds,
        "until_converged": until_converged,
        **({"evaluate_every": EVALUATE_EVERY} if until_converged else {}),
        # Rates that the user names are the ones to choose from.
        "bracket": ["sgd.lr"] if options.lr is None else [],
        "seeds": list(options.all_seeds()),
        "measured": list(options.metrics),
        # Baselines take rows, no windows of them.
        "baselines": [] if options.window else list(options.baselines),
        **({"deployable": True} if options.deployable else {}),
        "metrics": ["mean", "worst", "worst10"],
        "scenarios": {name: scenario},
        "algorithms": {
            method: {"grid": grid, "sgd": sgd} for method, sgd in settings.items()
        },
    }
    return resolve(Document(content, (("the command line", "", ()),)), name)
