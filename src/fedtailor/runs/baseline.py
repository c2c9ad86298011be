"""Two checks on results: what a model that learns nothing would reach, and warnings
about test rows that prove little.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedtailor.decision import warn_repeated_rows, warn_small_tests
from fedtailor.federation import Federation
from fedtailor.metrics import Metric
from fedtailor.metrics.baselines import classification_baseline, regression_baseline
from fedtailor.metrics.metric import is_regression
from fedtailor.models import Model, cross_entropy
from fedtailor.runs.target_units import target_units
from fedtailor.training import Metrics
from fedtailor.training.metrics import Evaluation

if TYPE_CHECKING:
    import polars as pl

_MAX_COMPARED = 200_000
"""A federation with more examples is not searched for repeated ones: the copies that
the comparison makes would not fit into memory beside a run.
"""


def baseline(
    federation: Federation,
    model: Model,
    metrics: Iterable[Metric],
) -> "pl.DataFrame":
    """What predicting each client's majority class, or mean target, reaches.

    Args:
        federation: whose clients.
        model: says what is predicted; of sequences there is no such baseline.
        metrics: which ones to give; those that do not follow from labels alone are
            left out.

    Returns:
        The columns of `Metrics.frame`, with round 0.
    """
    metrics = list(metrics)
    _, scale = target_units(federation)
    # An evaluation holds one metric of many clients, so values are gathered by what
    # they measure: (unseen, split, metric) -> (client, value) of all clients.
    values: dict[tuple[bool, str, str], list[tuple[int, float]]] = {}
    for client, split, of_client in _baselines(federation, model):
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
    """Reasons to distrust results on the test rows: too few, or repeated in training.

    Returns:
        One line for each problem; empty where there is none.
    """
    labels = {client.name: client.test.y for client in federation}
    warnings = warn_small_tests(labels, classification=model.classification)
    if 0 < len(federation.x) <= _MAX_COMPARED and federation.x[0].size:
        test = {client.name: client.test.x for client in federation}
        train = {client.name: client.train.x for client in federation}
        warnings += warn_repeated_rows(test, train)
    return warnings


def _baselines(
    federation: Federation, model: Model
) -> Iterator[tuple[int, str, dict[str, float]]]:
    """(client, split, metric -> value) of val and test, where a client has rows."""
    for client in federation:
        train = client.train.y
        for split in ("val", "test"):
            y = getattr(client, split).y
            if not len(y):
                continue
            if model.classification:
                values = classification_baseline(train, y, model.outputs)
                # "loss" is what the model is trained with: comparable only if that is
                # the log loss.
                if model.loss == cross_entropy:
                    values["loss"] = values["log_loss"]
                yield client.index, split, values
            elif is_regression(model):
                yield client.index, split, regression_baseline(train, y)
