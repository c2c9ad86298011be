"""Checks of what the functions of methods and transforms return, where they return it.

Without them a stream that does not exist would be read as another one, and a client's state
that changes its form would be trained by a new program in every round.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor.protocol.cohort import Cohort
from fedtailor.protocol.exchange import ClientRows
from fedtailor.protocol.messages import NOT_SENT, ClientUpdate, Downlink, Streams
from fedtailor.protocol.predictors import CombinedPredictor, Predictor
from fedtailor.protocol.state import ClientState, ServerState, state_name

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm
    from fedtailor.protocol.pipeline import Transform, Update

T = TypeVar("T")

_TABLE = see("write-an-algorithm#1-the-file")


def _class(value: "Algorithm | Transform") -> str:
    """The name of its class, as what only probes has no `about`."""
    return type(value).__name__


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
    require(
        _is_pair(returned) and isinstance(returned[1], dict),
        f"{name} must return two things, the client's new state and a dict of"
        f" what the client sends{_TABLE}",
    )
    state, update = returned
    _check_form(name, "init_client() and client()", before, state)
    return state, update


def check_probe(algorithm: "Algorithm", returned: Any) -> ClientUpdate:
    """Require that `probe` returned messages (traced).

    Raises:
        ValueError: it is something else.
    """
    require(
        isinstance(returned, dict),
        f"{_class(algorithm)}.probe() returned {type(returned).__name__}; it must return a"
        f" dict of what the client sends{_TABLE}",
    )
    return returned


def check_predictor(algorithm: "Algorithm", returned: Any) -> Predictor:
    """Require that `personal` returned what a client can predict with (traced).

    Raises:
        ValueError: it is something else.
    """
    is_combined = isinstance(returned, CombinedPredictor)
    is_known = is_combined and state_name(type(returned)) in CombinedPredictor.registry
    require(
        is_known or not is_combined,
        f"{_class(algorithm)}.personal() returned {type(returned).__name__}, which is not"
        f" decorated; write @predictor above the class{_TABLE}",
    )
    require(
        is_combined or isinstance(returned, jax.Array),
        f"{_class(algorithm)}.personal() returned {type(returned).__name__}; it must return"
        f" a model [d], or a Mixture or another combination of models{_TABLE}",
    )
    return returned


def check_encoded(
    transform: "Transform", before: PyTree, returned: Any
) -> tuple[ClientUpdate, PyTree]:
    """Require that `encode` returned messages, and the client's state of the transform in
    the form that it had (traced).

    Raises:
        ValueError: it is something else.
    """
    name = f"{_class(transform)}.encode()"
    require(
        _is_pair(returned) and isinstance(returned[0], dict),
        f"{name} must return two things, a dict of what the client sends and the client's"
        " new state of the transform",
    )
    update, state = returned
    _check_form(name, "init() and encode()", before, state)
    return update, state


def check_decoded(transform: "Transform", returned: Any) -> tuple["Update", PyTree]:
    """Require that `decode` returned updates and the server's state of the transform.

    Raises:
        ValueError: it is something else.
    """
    require(
        _is_pair(returned) and isinstance(returned[0], Mapping),
        f"{_class(transform)}.decode() must return two things, the updates by kind and the"
        " server's new state of the transform",
    )
    return returned


def check_made(
    transform: "Transform", function: str, kind: type[T], returned: Any
) -> T:
    """Require that a function of a transform returned a message again.

    Args:
        transform: the transform.
        function: its function, "send" or "receive".
        kind: the class of the message.
        returned: what it returned.

    Raises:
        ValueError: it is something else.
    """
    require(
        isinstance(returned, kind),
        f"{_class(transform)}.{function}() returned {type(returned).__name__}; it must"
        f" return {kind.__name__}",
    )
    return returned


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2


def _check_form(name: str, functions: str, before: PyTree, after: PyTree) -> None:
    """Require that a client's state keeps its arrays, with their types and shapes.

    Args:
        name: the function that returned it.
        functions: those that must return the same arrays.
        before: the state before the round.
        after: the state after it.

    Raises:
        ValueError: an array is another one.
    """
    old, new = _form(before), _form(after)
    if old != new:
        changed = next(path for path in [*old, *new] if old.get(path) != new.get(path))
        raise ValueError(
            f"{name} changes the form of the client's state: state{changed} is"
            f" {old.get(changed, 'not there')} before the round, and"
            f" {new.get(changed, 'not there')} after it; {functions} must return the same"
            " arrays"
        )


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
