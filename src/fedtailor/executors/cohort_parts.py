"""Splits an exchange into parts, if the states of all its clients do not fit into
memory at the same time.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Answers, ClientRows, Exchange


def select_clients(exchange: Exchange, positions: NDArray[np.int64]) -> Exchange:
    """Reduce an exchange to some of its clients.

    Args:
        exchange: an exchange with all clients of the cohort.
        positions: [n] the positions of the selected clients in the cohort.

    Returns:
        An exchange that sends each of these clients the same as before.
    """
    cohort = exchange.cohort
    downlink = exchange.downlink

    def select(values: Any) -> Any:
        is_common = np.ndim(values) == 0
        return values if is_common else np.asarray(values)[positions]

    return replace(
        exchange,
        cohort=replace(
            cohort, rows=cohort.rows[positions], reporting=cohort.reporting[positions]
        ),
        downlink=replace(
            downlink,
            streams={
                kind: replace(sent, recipients=sent.recipients[positions])
                for kind, sent in downlink.streams.items()
            },
            scalars={name: select(value) for name, value in downlink.scalars.items()},
            reply=select(downlink.reply),
        ),
    )


def concatenate(parts: list[Answers]) -> Answers:
    """Concatenate the answers of all parts of a cohort, on the host."""

    # In the order of the cohort: the programs of different parts share no rows.
    def stack(*leaves: ClientRows) -> ClientRows:
        values = np.concatenate([leaf.host() for leaf in leaves])
        return ClientRows(values, np.arange(len(values)))

    outputs = [part.output for part in parts]
    gradients, forwards = np.sum([part.work for part in parts], axis=0)
    return Answers(
        reporting=np.concatenate([part.reporting for part in parts]),
        output=jax.tree.map(
            stack, *outputs, is_leaf=lambda leaf: isinstance(leaf, ClientRows)
        ),
        wait=lambda: (int(gradients), int(forwards)),
    )
