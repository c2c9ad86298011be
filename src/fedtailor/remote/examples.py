"""A client's rows as a federation of one, and all clients' as a simulation has them:
split alike, each by itself.
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
    """The federation of some clients: of one, at that client; of all, to simulate the
    job on one machine.
    """
    names = tuple(rows)
    sizes = [len(own.y) for own in rows.values()]
    starts = np.cumsum([0, *sizes])
    parts = [
        split_rows(size, job.schema, job.seed, name)
        for name, size in zip(names, sizes, strict=True)
    ]
    train, val, test = (
        Ragged.of(
            [start + part[split] for start, part in zip(starts, parts, strict=False)]
        )
        for split in SPLITS
    )
    classes = None if job.schema.classes is None else len(job.schema.classes)
    return Federation(
        x=np.concatenate([own.x for own in rows.values()]),
        y=np.concatenate([own.y for own in rows.values()]),
        train=train,
        val=val,
        test=test,
        names=names,
        classes=classes,
        name=job.title,
    )


def read_all(
    job: Job, files: Mapping[str, Path]
) -> tuple[Federation, Statistics | None]:
    """The federation of all clients' files, to simulate the job on one machine, and
    what they agree on.

    Raises:
        ValueError: a file does not fit the job.
    """
    if not job.schema.federated:
        return (
            federation_of(
                job, {name: read_rows(path, job.schema) for name, path in files.items()}
            ),
            None,
        )
    tables = {name: read_table(path, job.schema) for name, path in files.items()}
    train = {
        name: split_rows(len(tables[name].y), job.schema, job.seed, name)["train"]
        for name in sorted(tables)
    }
    agreed = together(tables[name].statistics(rows) for name, rows in train.items())
    if agreed.lacks_inputs(job.schema):
        agreed = agreed.with_inputs(
            [tables[name].with_inputs(rows, agreed) for name, rows in train.items()]
        )
    return (
        federation_of(
            job, {name: table.rows(agreed) for name, table in tables.items()}
        ),
        agreed,
    )


def template_of(job: Job, agreed: Statistics | None = None) -> Federation:
    """A federation of one row of zeros: the form of what clients have, for a
    coordinator that has no rows.
    """
    width = (
        job.schema.width
        if agreed is None
        else len(agreed.preprocessing(job.schema).inputs)
    )
    y = np.zeros(1, np.float32 if job.schema.classes is None else np.int32)
    return federation_of(job, {"template": Rows(np.zeros((1, width), np.float32), y)})


def split_rows(
    count: int, schema: Schema, seed: int, name: str
) -> dict[str, NDArray[np.int64]]:
    """Which of a client's rows train, validate and test: drawn from the seed and the
    client's name alone.
    """
    order = np.random.default_rng([seed, int(client_ids([name])[0])]).permutation(count)
    validation, test = (
        int(share * count + 1e-9) for share in (schema.validation, schema.test)
    )
    cut = count - validation - test
    return {
        "train": np.sort(order[:cut]),
        "val": np.sort(order[cut : cut + validation]),
        "test": np.sort(order[cut + validation :]),
    }
