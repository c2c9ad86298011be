"""Functions that several scenarios share."""

import numpy as np

from fedtailor._base.choice import require
from fedtailor.data.federation import Dataset, LogNormal, Natural
from fedtailor.protocol import server_rng

PFEDME_SIZES = LogNormal(0, 2, offset=3)
"""Relative number of images of each class of a client in pFedMe's federations.

The script of Dinh et al. 2020 for CIFAR-10 uses 2 (share * U{1..10} + U{10..200} + 200)
images, where share is log-normal. The offset is about three times the median share.
"""


def subsample(data: Dataset, points: int | None, seed: int) -> Dataset:
    """Select `points` random examples, or all examples if it is None.

    Raises:
        ValueError: the data set has fewer examples.
    """
    return data if points is None else data.sample(points, seed)


def sample_clients(data: Dataset, clients: int | None, seed: int) -> Dataset:
    """Select the examples of random natural clients of a data set.

    Args:
        data: the data set.
        clients: number of clients; None = all.
        seed: random seed.

    Raises:
        ValueError: the data set has fewer clients.
    """
    if clients is None:
        return data
    rows = Natural().named(data)
    require(
        1 <= clients <= len(rows),
        f"{data.name} has {len(rows)} clients; clients is {clients}",
    )
    names = server_rng(seed, "some clients", 0).permutation(list(rows))[:clients]
    return data.take(np.concatenate([rows[name] for name in names]))
