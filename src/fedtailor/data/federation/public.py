"""Public inputs, which server and clients all have."""

from dataclasses import replace

import numpy as np

from fedtailor._base.choice import require
from fedtailor.data.federation.federation import Federation
from fedtailor.protocol import server_rng


def set_aside(federation: Federation, share: float, *, seed: int = 0) -> Federation:
    """Take some of the clients' training rows as a public set, without their labels.

    The public set is for methods that distil over one (`FedMD`). Clients no longer train on
    these rows.

    Args:
        federation: the federation, which is not modified.
        share: of the seen clients' training rows together, drawn at random, above 0 and
            below 1. A client always keeps one row.
        seed: of the draw.

    Raises:
        ValueError: the share is out of range, is less than one row, or there is a public
            set already.

    Example:
        >>> from fedtailor.data.federation import set_aside
        >>> shared = set_aside(federation, 0.1)
        >>> taken = int(federation.train.sizes.sum() - shared.train.sizes.sum())
        >>> len(shared.public) == taken
        True
    """
    require(0 < share < 1, f"share is {share}; it must be above 0 and below 1")
    require(
        federation.public is None,
        f"{federation.name} has a public set already; use it, or leave it out",
    )
    rng = server_rng(seed, "public set", 0)
    train = federation.train
    # Each client's first row in a random order is kept, and those of newcomers are.
    order = rng.permutation(len(train.rows))
    owners = train.owners[order]
    _, kept = np.unique(owners, return_index=True)
    may_go = ~federation.unseen[owners]
    may_go[kept] = False
    seen = int(train.sizes[federation.seen].sum())
    gone = order[may_go][: round(share * seen)]
    require(
        len(gone) > 0,
        f"a share of {share} of {seen} training rows is less than a row; set more aside",
    )
    stays = np.ones(len(train.rows), np.bool_)
    stays[gone] = False
    return replace(
        federation,
        train=train.where(stays),
        public=federation.x[train.rows[gone]],
    )
