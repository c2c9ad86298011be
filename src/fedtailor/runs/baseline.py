"""What a model that learns nothing would reach, and what must be known of test rows
before results are believed.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedtailor.decision import warn_repeated_rows, warn_small_tests
from fedtailor.federation import Federation
from fedtailor.metrics import Metric
from fedtailor.metrics.baselines import classification_baseline, regression_baseline
from fedtailor.metrics.metric import is_classification, is_regression
from fedtailor.models import Model, cross_entropy
from fedtailor.runs.target_units import target_units
from fedtailor.training import Metrics
from fedtailor.training.metrics import Evaluation

if TYPE_CHECKING:
    import polars as pl

_MOST_COMPARED = 200_000
"""Examples that are searched for repetitions; of more, their bytes would not fit beside
a run.
"""


def baseline(
    federation: Federation,
    model: Model,
    metrics: Iterable[Metric],
    splits: tuple[str, ...] = ("val", "test"),
) -> "pl.DataFrame":
    """What each client's majority class, or the mean of its targets, reaches.

    Args:
        federation: whose clients.
        model: says what is predicted; of sequences there is no such baseline.
        metrics: which of them to give, as far as they follow from labels alone.
        splits: where.

    Returns:
        The columns of `Metrics.frame`, with round 0.
    """
    metrics = list(metrics)
    _, scale = target_units(federation)
    # (unseen, split, metric) -> (client, value) of all clients
    values: dict[tuple[bool, str, str], list[tuple[int, float]]] = {}
    for client, split, of_client in _baselines(federation, model, splits):
        for metric in metrics:
            value = of_client.get(metric.name, np.nan)
            if np.isnan(value):
                continue
            if metric.unit == "target":
                value *= scale
            key = bool(federation.unseen[client]), split, metric.name
            values.setdefault(key, []).append((client, value))
    baselines = Metrics()
    for (unseen, split, name), pairs in values.items():
        clients = np.array([client for client, _ in pairs])
        numbers = np.array([value for _, value in pairs])
        baselines.evaluations.append(
            Evaluation(0, clients, unseen, split, name, numbers)
        )
    return baselines.frame(federation.names)


def data_warnings(federation: Federation, model: Model) -> list[str]:
    """What must be known of the test rows before results on them are believed.

    Returns:
        One line for each problem; empty where there is none.
    """
    labels = {client.name: client.test.y for client in federation}
    warnings = warn_small_tests(labels, classification=is_classification(model))
    if 0 < len(federation.x) <= _MOST_COMPARED and federation.x[0].size:
        test = {client.name: client.test.x for client in federation}
        train = {client.name: client.train.x for client in federation}
        warnings += warn_repeated_rows(test, train)
    return warnings


def _baselines(
    federation: Federation, model: Model, splits: tuple[str, ...]
) -> Iterator[tuple[int, str, dict[str, float]]]:
    """(client, split, metric -> value) for all clients with rows in a split."""
    for client in federation:
        train = client.train.y
        for split in splits:
            y = getattr(client, split).y
            if not len(y):
                continue
            if is_classification(model):
                values = classification_baseline(train, y, model.outputs)
                # what the model was trained with, where that is the log loss
                loss = (
                    {"loss": values["log_loss"]} if model.loss == cross_entropy else {}
                )
                yield client.index, split, values | loss
            elif is_regression(model):
                yield client.index, split, regression_baseline(train, y)
