"""Clients' rows as federations: of one at a client, of all in a simulation of the job.

A client's rows are split by the same rule in both, without a look at other clients'.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation import SPLITS, Federation, Ragged
from fedtailor.protocol import client_ids
from fedtailor.remote.job import Job, Schema
from fedtailor.remote.statistics import Statistics, read_table, together
from fedtailor.remote.table import Rows, read_rows


def federation_of(job: Job, rows: Mapping[str, Rows]) -> Federation:
    """The federation of some clients, from their rows by name."""
    splits: dict[str, list[NDArray[np.int64]]] = {split: [] for split in SPLITS}
    first = 0  # of this client's rows among all
    for name, client_rows in rows.items():
        size = len(client_rows.y)
        parts = split_rows(size, job.schema, job.seed, name)
        for split in SPLITS:
            splits[split].append(first + parts[split])
        first += size
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
        job: of the federation.
        files: of the clients, by name.

    Returns:
        The federation of all clients, and the statistics that machines would agree on;
        None where the job takes tables as they stand.

    Raises:
        ValueError: a file does not fit the job.
    """
    schema = job.schema
    if not schema.federated:
        rows = {name: read_rows(path, schema) for name, path in files.items()}
        return federation_of(job, rows), None
    tables = {name: read_table(path, schema) for name, path in files.items()}
    # In the order in which the coordinator adds what clients send: floating-point sums
    # depend on it.
    train = {
        name: split_rows(len(tables[name].y), schema, job.seed, name)["train"]
        for name in sorted(tables)
    }
    agreed = together(tables[name].statistics(rows) for name, rows in train.items())
    if agreed.lacks_inputs(schema):
        agreed = agreed.with_inputs(
            [tables[name].with_inputs(rows, agreed) for name, rows in train.items()]
        )
    rows = {name: table.rows(agreed) for name, table in tables.items()}
    return federation_of(job, rows), agreed


def template_of(job: Job, agreed: Statistics | None = None) -> Federation:
    """A federation of one client with one row of zeros.

    It has the form of the clients' examples, for a coordinator that has none.
    """
    width = job.schema.width
    if agreed is not None:
        width = len(agreed.preprocessing(job.schema).inputs)
    x = np.zeros((1, width), np.float32)
    y = np.zeros(1, np.float32 if job.schema.classes is None else np.int32)
    return federation_of(job, {"template": Rows(x, y)})


def split_rows(
    count: int, schema: Schema, seed: int, name: str
) -> dict[str, NDArray[np.int64]]:
    """Draw which of a client's rows train, validate and test.

    The draw depends on the seed and the client's name alone, so every machine can make
    it by itself.
    """
    client_id = int(client_ids([name])[0])
    order = np.random.default_rng([seed, client_id]).permutation(count)
    # 1e-9: a share of 0.1 of 30 rows is 3 rows, also in floating point
    validation = int(schema.validation * count + 1e-9)
    test = int(schema.test * count + 1e-9)
    train = count - validation - test
    return {
        "train": np.sort(order[:train]),
        "val": np.sort(order[train : train + validation]),
        "test": np.sort(order[train + validation :]),
    }
