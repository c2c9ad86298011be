"""Two checks on results: the scores of a model that learns nothing, and warnings about
test rows that are not good evidence.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedtailor.data.federation import Federation
from fedtailor.engine.training import Metrics
from fedtailor.engine.training.metrics import Evaluation
from fedtailor.models import Model
from fedtailor.models.metrics import Metric
from fedtailor.statistics.decision import warn_repeated_rows, warn_small_tests

if TYPE_CHECKING:
    import polars as pl

_MAX_COMPARED = 200_000
"""Federations with more examples are not searched for repeated ones: the search copies the
examples, and the copies might not fit into memory.
"""


def baseline(
    federation: Federation,
    model: Model,
    metrics: Iterable[Metric],
) -> "pl.DataFrame":
    """The scores of predicting each client's majority class, or its mean target.

    A density has no inputs that could be ignored: its clients' frequencies of symbols
    are all that there is to learn, and what has learned nothing is uniform. Where rows
    have weights there is no such baseline: its scores would count all rows the same.

    Args:
        federation: the clients and their data.
        model: tells what is predicted; there is no such baseline for sequences.
        metrics: the metrics to compute; those that need more than labels are left out.

    Returns:
        The columns of `Metrics.frame`, with round 0.
    """
    metrics = list(metrics)
    _, scale = federation.target_units
    # An evaluation holds one metric of many clients, so values are collected by metric:
    # (unseen, split, metric) -> (client, value) of all clients.
    values: dict[tuple[bool, str, str], list[tuple[int, float]]] = {}
    for client, split, scores in _client_baselines(federation, model):
        for metric in metrics:
            value = scores.get(metric.name, np.nan)
            if np.isnan(value):
                continue
            if metric.unit == "target":
                value *= scale
            key = bool(federation.unseen[client]), split, metric.name
            values.setdefault(key, []).append((client, value))
    result = Metrics()
    for (unseen, split, name), pairs in values.items():
        clients = np.array([client for client, _ in pairs])
        numbers = np.array([value for _, value in pairs])
        result.evaluations.append(Evaluation(0, clients, unseen, split, name, numbers))
    return result.frame(federation.names)


def data_warnings(federation: Federation, model: Model) -> list[str]:
    """Reasons to distrust results: too few test rows, rows that are repeated in
    training, and what a table's content gives cause for.

    Returns:
        One line for each problem; empty where there is none.
    """
    labels = {client.name: client.test.y for client in federation}
    warnings = warn_small_tests(labels, classification=model.classification)
    if federation.warnings is not None:
        # A table has been searched before its columns were encoded.
        return [*federation.warnings, *warnings]
    if 0 < len(federation.x) <= _MAX_COMPARED and federation.x[0].size:
        test = {client.name: (client.test.x, client.test.y) for client in federation}
        train = {client.name: (client.train.x, client.train.y) for client in federation}
        warnings += warn_repeated_rows(test, train)
    return warnings


def _client_baselines(
    federation: Federation, model: Model
) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Yields (client, split, metric -> value) for val and test, if the client has rows."""
    if federation.weights is not None:
        return
    has_inputs = math.prod(federation.x.shape[1:]) > 0
    for client in federation:
        train = client.train.y if has_inputs else client.train.y[:0]
        for split in ("val", "test"):
            y = getattr(client, split).y
            if not len(y):
                continue
            yield client.index, split, model.task.baseline(train, y, model.outputs)
