"""Makes federations of clients' rows: one client on its machine, all in a simulation.

A client's rows are split by the same rule in both, independently of other clients.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation import SPLITS, Federation, Ragged
from fedtailor.federation.splits import draw_splits
from fedtailor.remote.job import Job, Schema
from fedtailor.remote.statistics import Statistics, add_statistics, read_table
from fedtailor.remote.table import ClientExamples, read_rows


def federation_from_rows(job: Job, rows: Mapping[str, ClientExamples]) -> Federation:
    """Make the federation of some clients, from their rows by name."""
    splits: dict[str, list[NDArray[np.int64]]] = {split: [] for split in SPLITS}
    first = 0  # index of the client's first row among all rows
    for name, client_rows in rows.items():
        parts = split_client_rows(client_rows.y, job.schema, job.seed, name)
        for split in SPLITS:
            splits[split].append(first + parts[split])
        first += len(client_rows.y)
    classes = job.schema.classes
    return Federation(
        x=np.concatenate([client_rows.x for client_rows in rows.values()]),
        y=np.concatenate([client_rows.y for client_rows in rows.values()]),
        train=Ragged.of(splits["train"]),
        val=Ragged.of(splits["val"]),
        test=Ragged.of(splits["test"]),
        names=tuple(rows),
        classes=None if classes is None else len(classes),
        name=job.title,
    )


def read_all(
    job: Job, files: Mapping[str, Path]
) -> tuple[Federation, Statistics | None]:
    """Read all clients' files, to simulate the job on one machine.

    Args:
        job: the job.
        files: the file of each client, by name.

    Returns:
        The federation of all clients, and the pooled statistics of their tables (None
        without federated preprocessing).

    Raises:
        ValueError: a file does not fit the job.
    """
    schema = job.schema
    if not schema.federated:
        rows = {name: read_rows(path, schema) for name, path in files.items()}
        return federation_from_rows(job, rows), None
    tables = {name: read_table(path, schema) for name, path in files.items()}
    # Add statistics in the coordinator's order, as floating-point sums depend on it.
    train = {
        name: split_client_rows(tables[name].y, schema, job.seed, name)["train"]
        for name in sorted(tables)
    }
    statistics = add_statistics(
        tables[name].statistics(rows) for name, rows in train.items()
    )
    if statistics.needs_input_sums(schema):
        statistics = statistics.with_inputs(
            [tables[name].with_inputs(rows, statistics) for name, rows in train.items()]
        )
    rows = {name: table.rows(statistics) for name, table in tables.items()}
    return federation_from_rows(job, rows), statistics


def template_of(job: Job, statistics: Statistics | None = None) -> Federation:
    """Make a federation of one client with one row of zeros.

    It stands for the clients' examples where only their shapes matter.
    """
    width = job.schema.width
    if statistics is not None:
        width = len(statistics.preprocessing(job.schema).inputs)
    x = np.zeros((1, width), np.float32)
    y = np.zeros(1, np.float32 if job.schema.classes is None else np.int32)
    return federation_from_rows(job, {"template": ClientExamples(x, y)})


def split_client_rows(
    y: NDArray[np.generic], schema: Schema, seed: int, name: str
) -> dict[str, NDArray[np.int64]]:
    """Split a client's rows at random into training, validation and test rows.

    A table of all clients on one machine is split by the same rule. It depends on the
    seed and the client's name and classes only, so every machine can follow it.

    Args:
        y: the client's classes or targets.
        schema: columns of the job.
        seed: seed of the job.
        name: name of the client.

    Returns:
        Row indices in ascending order, by name of the split.
    """
    rows = Ragged.of([np.arange(len(y))])
    splits = draw_splits(
        rows, y, (name,), test=schema.test, val=schema.validation, seed=seed
    )
    return {
        split: part[0].astype(np.int64)
        for split, part in zip(SPLITS, splits, strict=True)
    }
