"""An exchange in parts, where not all of its clients' states fit into memory at
once.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Answers, ClientRows, Exchange


def select_clients(exchange: Exchange, chosen: NDArray[np.int64]) -> Exchange:
    """The same exchange with some of its clients.

    Args:
        exchange: with all of them.
        chosen: positions in the cohort [n].

    Returns:
        An exchange of these clients, who are sent what they would have been sent.
    """
    cohort = exchange.cohort
    downlink = exchange.downlink

    def select(values: Any) -> Any:
        is_common = np.ndim(values) == 0
        return values if is_common else np.asarray(values)[chosen]

    return replace(
        exchange,
        cohort=replace(
            cohort, rows=cohort.rows[chosen], reporting=cohort.reporting[chosen]
        ),
        downlink=replace(
            downlink,
            streams={
                kind: replace(sent, recipients=sent.recipients[chosen])
                for kind, sent in downlink.streams.items()
            },
            scalars={name: select(value) for name, value in downlink.scalars.items()},
            reply=select(downlink.reply),
        ),
    )


def concatenate(parts: list[Answers]) -> Answers:
    """The answers of all parts of a cohort, one below the other, on the host."""

    # On the host, in the order of the cohort: parts were computed one after another and
    # share no rows.
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
