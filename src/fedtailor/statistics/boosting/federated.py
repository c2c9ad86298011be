"""Boosting on a `Federation`: shared trees, and each client's own after them."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation, Split
from fedtailor.statistics.boosting.boost import (
    BoostedModel,
    BoostingSettings,
    boost,
    boost_alone,
    sum_over,
)
from fedtailor.statistics.boosting.rows import BoostingRows


@dataclass(frozen=True)
class BoostedFederation:
    """Boosted trees of all clients.

    Attributes:
        shared: the trees of all clients together; also of clients that never trained.
        models: by client, the shared trees or those that it chose on its validation
            rows. Inputs are normalised as `normalised` does.
    """

    shared: BoostedModel
    models: dict[str, BoostedModel]

    def outputs(self, federation: Federation, client: str, split: str) -> NDArray:
        """What a client's model predicts for one of its splits: logarithms of
        probabilities [n, classes], or targets [n].
        """
        rows: Split = getattr(federation.client(client), split)
        return self.models[client].outputs(normalised(federation, rows.x))


def normalised(federation: Federation, x: NDArray) -> NDArray[np.float64]:
    """Inputs [n, inputs] as models take them."""
    x = np.asarray(x, np.float64)
    x = (x - np.asarray(federation.shift)) * np.asarray(federation.scale)
    return x.reshape(len(x), int(np.prod(x.shape[1:], dtype=int)))


def boosting_rows(
    federation: Federation, client: int, *, on_grid: bool = False
) -> BoostingRows:
    """One client's part of boosting; see `BoostingRows`."""
    data = federation.client(client)
    return BoostingRows(
        normalised(federation, data.train.x),
        data.train.y,
        federation.classes,
        normalised(federation, data.val.x),
        data.val.y,
        on_grid=on_grid,
    )


def boost_federation(
    federation: Federation,
    settings: BoostingSettings = BoostingSettings(),  # noqa: B008 (frozen)
    *,
    personal: bool = True,
    on_grid: bool = False,
) -> BoostedFederation:
    """Boost trees on all clients that train, in this process.

    Args:
        federation: clients whose targets are classes or one number.
        settings: how trees are grown, and how many at most.
        personal: whether each client may add trees of its own, or take its own
            only, if that is better on its validation rows.
        on_grid: whether sums are those of machines: of rows that are rounded to whole
            multiples of 2^-40, and added exactly.

    Raises:
        ValueError: the targets are something else, or no client has rows.
    """
    require(
        federation.classes is not None
        or federation.y.reshape(len(federation.y), -1).shape[1] == 1,
        "trees are boosted for classes or one number, and these targets are several",
    )
    seen = np.flatnonzero(~federation.unseen)
    clients = {
        int(index): boosting_rows(federation, int(index), on_grid=on_grid)
        for index in seen
    }
    inputs = int(np.prod(federation.input_shape, dtype=int))
    ask = sum_over(list(clients.values()))
    shared = boost(ask, inputs, federation.classes, settings)
    models = {}
    for index, name in enumerate(federation.names):
        rows = clients.get(index)
        if rows is None or not personal:
            models[name] = replace(shared, own=0)
        else:
            models[name] = boost_alone(rows, shared, settings)
    return BoostedFederation(replace(shared, own=0), models)
