"""Splits an exchange into parts: of clients with different networks, or because the states
of all its clients do not fit into memory at the same time.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Answers, ClientRows, ClientState, Exchange


@dataclass(frozen=True)
class PartStates:
    """The states of the clients of a cohort, by parts: `Answers.states` of an exchange that
    was answered in parts.

    Attributes:
        parts: for each part the positions of its clients in the cohort, and their states
            in the order of its program's rows.
    """

    parts: tuple[tuple[NDArray[np.int64], ClientState], ...]


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
        cohort=cohort.subset(positions),
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


def concatenate(parts: list[Answers], positions: list[NDArray[np.int64]]) -> Answers:
    """Concatenate the answers of all parts of a cohort, on the host.

    Args:
        parts: the answers.
        positions: the positions in the cohort of each part's clients.
    """
    row_of_client = np.argsort(np.concatenate(positions))

    # In the order of the parts: their programs share no rows.
    def stack(*leaves: ClientRows) -> ClientRows:
        values = np.concatenate([leaf.host() for leaf in leaves])
        return ClientRows(values, row_of_client)

    outputs = [part.output for part in parts]
    gradients, forwards = np.sum([part.work for part in parts], axis=0)
    states = tuple(
        (where, part.states) for where, part in zip(positions, parts, strict=True)
    )
    return Answers(
        reporting=np.concatenate([part.reporting for part in parts])[row_of_client],
        update={
            kind: stack(*(part.update[kind] for part in parts))
            for kind in parts[0].update
        },
        output=jax.tree.map(
            stack, *outputs, is_leaf=lambda leaf: isinstance(leaf, ClientRows)
        ),
        states=PartStates(states),
        wait=lambda: (int(gradients), int(forwards)),
    )
