"""Checks of what a method's functions return, where they return it.

Without them a stream that does not exist would be read as another one, and a client's state
that changes its form would be trained by a new program in every round.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor.protocol.cohort import Cohort
from fedtailor.protocol.exchange import ClientRows
from fedtailor.protocol.messages import NOT_SENT, ClientUpdate, Downlink, Streams
from fedtailor.protocol.state import ClientState, ServerState, state_name

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm

_TABLE = see("write-an-algorithm#1-the-file")


def _class(algorithm: "Algorithm") -> str:
    """The name of its class, as what only probes has no `about`."""
    return type(algorithm).__name__


def check_downlink(algorithm: "Algorithm", cohort: Cohort, downlink: Downlink) -> None:
    """Require that a downlink says for every client of a cohort what it receives.

    Raises:
        ValueError: it does not.
    """
    sends = f"what the server of {_class(algorithm)} sends"
    require(
        isinstance(downlink, Downlink),
        f"{sends} is {type(downlink).__name__}; it must be a Downlink{_TABLE}",
    )
    for kind, streams in downlink.streams.items():
        _check_streams(f"{sends} as {kind!r}", streams, len(cohort))
    per_client = {"reply": downlink.reply, **downlink.scalars}
    for name, values in per_client.items():
        shape = np.shape(values)
        require(
            shape in ((), (len(cohort),)),
            f"{sends} as {name!r} has shape {shape}; it must be one number, or one for each"
            f" of the cohort's {len(cohort)} clients",
        )


def _check_streams(what: str, streams: Streams, clients: int) -> None:
    require(
        isinstance(streams, Streams),
        f"{what} is {type(streams).__name__}; it must be Streams{_TABLE}",
    )
    recipients, count = np.asarray(streams.recipients), len(streams.values)
    is_table = recipients.ndim == 2 and np.issubdtype(recipients.dtype, np.integer)
    require(
        is_table and len(recipients) == clients,
        f"{what} has recipients of shape {recipients.shape} and type {recipients.dtype};"
        f" there must be a row of whole numbers for each of the cohort's {clients} clients",
    )
    unknown = recipients[(recipients < NOT_SENT) | (recipients >= count)]
    if len(unknown):
        raise ValueError(
            f"{what} has {count} streams, numbered from 0, and recipients of number"
            f" {unknown[0]}; {NOT_SENT} is none"
        )


def check_client(
    algorithm: "Algorithm", before: ClientState, returned: Any
) -> tuple[ClientState, ClientUpdate]:
    """Require that `client` returned the client's state, in the form that it had, and the
    messages that the client sends (traced).

    Args:
        algorithm: the method.
        before: the client's state before the round.
        returned: what `client` returned.

    Returns:
        The new state, and the messages.

    Raises:
        ValueError: it is something else.
    """
    name = f"{_class(algorithm)}.client()"
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    require(
        is_pair and isinstance(returned[1], dict),
        f"{name} must return two things, the client's new state and a dict of"
        f" what the client sends{_TABLE}",
    )
    state, update = returned
    old, new = _form(before), _form(state)
    if old != new:
        changed = next(path for path in [*old, *new] if old.get(path) != new.get(path))
        raise ValueError(
            f"{name} changes the form of the client's state: state{changed} is"
            f" {old.get(changed, 'not there')} before the round, and"
            f" {new.get(changed, 'not there')} after it; init_client() and client()"
            " must return the same arrays"
        )
    return state, update


def _form(state: ClientState) -> dict[str, str]:
    """Where each array of a state is -> its type and shape, such as "float32[650]"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    form = {}
    for path, leaf in leaves:
        shape = ",".join(map(str, np.shape(leaf)))
        form[jax.tree_util.keystr(path)] = f"{jax.numpy.result_type(leaf)}[{shape}]"
    return form


def check_server(
    algorithm: "Algorithm", before: Any, after: Any, function: str = "server"
) -> None:
    """Require that a function of the server returned a state again, without answers of
    single clients in it. Its class may be another.

    Args:
        algorithm: the method.
        before: the server's state.
        after: what the function returned.
        function: its name.

    Raises:
        ValueError: it is something else.
    """
    name = f"{_class(algorithm)}.{function}()"
    require(
        isinstance(after, ServerState) or not isinstance(before, ServerState),
        f"{name} returned {type(after).__name__}; it must return the server's new state,"
        f" such as {type(before).__name__}{_TABLE}",
    )
    require(
        not isinstance(after, ServerState)
        or state_name(type(after)) in ServerState.registry,
        f"{name} returned {type(after).__name__}, which is not decorated; write"
        f" @server_state above the class{_TABLE}",
    )
    leaves = jax.tree.leaves(after, is_leaf=lambda leaf: isinstance(leaf, ClientRows))
    require(
        not any(isinstance(leaf, ClientRows) for leaf in leaves),
        f"{name} keeps an answer as it came; average it with"
        " fedtailor.aggregation.mix, or take the array answers.host(KIND)",
    )
