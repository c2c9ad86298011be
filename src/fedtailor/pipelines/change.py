"""Vectors as changes: what a client's vector is a change of, on the client and on the
server.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.protocol import (
    MODEL_KINDS,
    ClientRows,
    ClientUpdate,
    Downlink,
    Inbox,
    Update,
)

Message = TypeVar("Message")


def replace_vectors(
    messages: Mapping[str, Message],
    replacement: Callable[[str, Message], Mapping[str, Message]],
) -> dict[str, Message]:
    """Messages with other ones in place of each vector of a model's length; all that
    are none stay as they are.

    Args:
        messages: kind -> message.
        replacement: (kind, vector) -> the messages in its place.

    Returns:
        kind -> message, in the order of `messages`.
    """
    replaced: dict[str, Message] = {}
    for kind, message in messages.items():
        replaced |= (
            replacement(kind, message) if kind in MODEL_KINDS else {kind: message}
        )
    return replaced


def without(update: Update, *names: Callable[[str], str]) -> Update:
    """An update without the messages that accompany its vectors under such names
    (`places_kind`, ...).
    """
    dropped = {name(kind) for name in names for kind in update}
    return {kind: rows for kind, rows in update.items() if kind not in dropped}


def start_kind(kind: str) -> str:
    """The message that says which of several received models a vector is a change
    of.
    """
    return f"{kind} start"


def places_kind(kind: str) -> str:
    """The message that says at which places the entries of a vector belong that travel
    (`TopK`).
    """
    return f"{kind} places"


def scale_kind(kind: str) -> str:
    """The message with the factors of a vector that travels as small integers
    (`Quantize`).
    """
    return f"{kind} scale"


def nearest(value: Float[Array, "*k d"], inbox: Inbox) -> Int[Array, "*k"]:
    """The place of the received model that is nearest to a vector; 0 where nothing was
    received.
    """
    distances = jnp.square(value[..., None, :] - inbox["model"]).sum(axis=-1)
    return (
        jnp.where(inbox.received["model"], distances, jnp.inf)
        .argmin(axis=-1)
        .astype(jnp.int32)
    )


def reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> Float[Array, "*k d"]:
    """What a vector that a client sends is a change of, on the client.

    Args:
        kind: of message.
        value: one vector [d] of it, or several [k, d].
        inbox: what the client received.

    Returns:
        For each vector the received model that is nearest to it; zero for kinds that
        are changes themselves (gradients, controls), and where no model was received.
    """
    if kind != "model" or "model" not in inbox.values:
        return jnp.zeros_like(value)
    return jnp.where(
        inbox.received["model"].any(), inbox["model"][nearest(value, inbox)], 0
    )


def which_reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> dict[str, Array]:
    """What tells the server of which received model a vector is a change; nothing where
    there is one only.
    """
    if kind != "model" or "model" not in inbox.values or len(inbox["model"]) == 1:
        return {}
    return {start_kind(kind): nearest(value, inbox)}


def change_of(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> tuple[Float[Array, "*k d"], ClientUpdate]:
    """What a client changed of the model that it received, and the messages that tell
    the server which one it was.
    """
    return value - reference(kind, value, inbox), which_reference(kind, value, inbox)


def received_rows(
    kind: str, update: Update, downlink: Downlink
) -> Float[Any, "r *k d"] | float:
    """On the server, what `reference` is on each client.

    Args:
        kind: of message.
        update: what the clients sent, with the messages that say which model was meant.
        downlink: what they had been sent.

    Returns:
        The references in the rows of the answer; 0 where all are zero.
    """
    rows = update[kind]
    if kind != "model" or "model" not in downlink.streams:
        return 0.0
    sent = downlink.streams["model"]
    # Answers stand in the executor's rows; whom a stream was sent to is known by
    # clients. Padding received nothing.
    recipients = np.full((len(rows.values), sent.recipients.shape[1]), -1, np.int32)
    recipients[rows.row] = sent.recipients
    models = jnp.asarray(np.asarray(sent.values)).astype(jnp.result_type(float))
    several = update.get(start_kind(kind))
    if several is None:
        # one model each: the same reference for all vectors of a client, whatever axes
        # they have between c and d
        between = [1] * (_axes(rows, update, kind) - 2)
        row = recipients[:, :1].reshape(-1, *between)
    else:
        # each vector names the one of its client's models that it is a change of
        index = np.asarray(several.values)
        row = np.take_along_axis(
            recipients, index.reshape(len(index), -1), axis=1
        ).reshape(index.shape)
    return jnp.where(row[..., None] >= 0, models[np.maximum(row, 0)], 0)


def _axes(rows: ClientRows, update: Update, kind: str) -> int:
    """Axes of a kind's vectors, stacked over clients."""
    return len(update.get(places_kind(kind), rows).values.shape)
