"""What is said about clients whose last batch would be a single row."""

import logging
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np

from fedtailor._base.choice import require
from fedtailor.protocol import SGD, Algorithm, Population

_log = logging.getLogger("fedtailor")


def note_single_rows(methods: Sequence[Algorithm], population: Population) -> None:
    """Say which clients leave a row out of each epoch, or train on nothing, as batch
    normalisation has no variance of one row.

    Raises:
        ValueError: all batches of a method are of one row.

    Args:
        methods: those of a run.
        population: the clients of a model with batch normalisation.
    """
    sizes = population.sizes
    for method in methods:
        for sgd in _local_steps(method):
            require(
                sgd.batch_size > 1,
                f"{method.about.name} has batch_size 1, and batch normalisation has no"
                " variance of one row; take batches of 2 rows or more, or a model with"
                " another normalisation",
            )
    alone = tuple(np.array(population.names)[sizes == 1])
    for method in methods:
        for sgd in _local_steps(method):
            if sgd.drop_last:
                continue
            count = int(np.sum((sizes % sgd.batch_size == 1) & (sizes > 1)))
            if count:
                _say(
                    f"{count} of {len(sizes)} clients would have a last batch of one row,"
                    f" of which batch normalisation has no variance: with batch_size"
                    f" {sgd.batch_size} each of their epochs leaves one row out, drawn"
                    " at random"
                )
    if alone:
        _say(
            "batch normalisation has no variance of one row, so that clients with one"
            f" do not train: {', '.join(alone[:5])}{', ...' if len(alone) > 5 else ''}"
        )


def _local_steps(method: Algorithm) -> list[SGD]:
    """The settings of a method's local steps."""
    values = [getattr(method, field.name) for field in fields(method)]  # pyright: ignore[reportArgumentType] (methods are dataclasses)
    return [value for value in values if isinstance(value, SGD)]


@lru_cache(maxsize=64)
def _say(line: str) -> None:
    """Say a line once in a process, as comparisons have hundreds of runs."""
    _log.warning("fedtailor: %s", line)
