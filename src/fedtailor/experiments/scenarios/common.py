"""What several scenarios share.

Smaller versions of a data set, and the sizes of pFedMe's clients.
"""

import numpy as np

from fedtailor.federation import Dataset, LogNormal, Natural
from fedtailor.protocol import require, server_rng

PFEDME_SIZES = LogNormal(0, 2, offset=3)
"""What a client wants of each of its classes, in proportion.

The script of Dinh et al. 2020 for CIFAR-10 gives it 2 (share * U{1..10} + U{10..200} +
200) images where share is log-normal: about three times the median share, and more.
"""


def subsample(data: Dataset, points: int | None, seed: int) -> Dataset:
    """`points` examples at random; all where it is None.

    Raises:
        ValueError: there are fewer.
    """
    return data if points is None else data.sample(points, seed)


def sample_clients(data: Dataset, clients: int | None, seed: int) -> Dataset:
    """The examples of some of the data's own clients, at random.

    Args:
        data: all examples.
        clients: how many; None = all.
        seed: of the choice.

    Raises:
        ValueError: there are fewer.
    """
    if clients is None:
        return data
    rows = Natural().named(data)
    require(
        1 <= clients <= len(rows),
        f"{data.name} has {len(rows)} clients; clients is {clients}",
    )
    chosen = server_rng(seed, "some clients", 0).permutation(list(rows))[:clients]
    return data.take(np.concatenate([rows[name] for name in chosen]))
