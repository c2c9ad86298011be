"""Changes of vectors: the model that a client started from, on the client and on the
server.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.protocol import (
    MODEL_KINDS,
    ClientUpdate,
    Downlink,
    Inbox,
    Update,
    along_axis,
)

Message = TypeVar("Message")


def replace_vectors(
    messages: Mapping[str, Message],
    replacement: Callable[[str, Message], Mapping[str, Message]],
) -> dict[str, Message]:
    """Replace each vector of a model's length; other messages stay as they are.

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
    """An update without some of the messages that accompany its vectors.

    Args:
        update: the vectors and what accompanies them.
        names: `places_kind` and the like: a vector's kind -> the message's.
    """
    dropped = {name(kind) for name in names for kind in update}
    return {kind: rows for kind, rows in update.items() if kind not in dropped}


def start_kind(kind: str) -> str:
    """The message that says which of several received models a vector is a change
    of.
    """
    return f"{kind} start"


def places_kind(kind: str) -> str:
    """The message with the places of the entries of a vector that travel (`TopK`)."""
    return f"{kind} places"


def scale_kind(kind: str) -> str:
    """The message with the factors of a vector that travels as small integers
    (`Quantize`).
    """
    return f"{kind} scale"


def nearest(value: Float[Array, "*k d"], inbox: Inbox) -> Int[Array, "*k"]:
    """Which of the received models is nearest to a vector; 0 where none was received."""
    differences = value[..., None, :] - inbox["model"]
    distances = jnp.square(differences).sum(axis=-1)
    distances = jnp.where(inbox.received["model"], distances, jnp.inf)
    return distances.argmin(axis=-1).astype(jnp.int32)


def reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> Float[Array, "*k d"]:
    """The vector that a client's change is measured from, on the client.

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
    start = inbox["model"][nearest(value, inbox)]
    return jnp.where(inbox.received["model"].any(), start, 0)


def which_reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> dict[str, Array]:
    """The message that tells the server which received model a vector is a change of;
    none where it can be one only.
    """
    if kind != "model" or "model" not in inbox.values or len(inbox["model"]) == 1:
        return {}
    return {start_kind(kind): nearest(value, inbox)}


def change_of(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> tuple[Float[Array, "*k d"], ClientUpdate]:
    """A client's change of the model that it received, and the message that tells the
    server which model this was.
    """
    return value - reference(kind, value, inbox), which_reference(kind, value, inbox)


def received_rows(
    kind: str, update: Update, downlink: Downlink
) -> Float[Any, "r *k d"] | float:
    """The `reference` of each client, on the server.

    Args:
        kind: of message.
        update: the clients' messages, with those of `which_reference`.
        downlink: what the clients had been sent.

    Returns:
        The references in the rows of the answer; 0 where all are zero.
    """
    rows = update[kind]
    if kind != "model" or "model" not in downlink.streams:
        return 0.0
    sent = downlink.streams["model"]
    # Streams by row of the answer, which has the executor's order; -1 for padding, which
    # received nothing.
    recipients = np.full((len(rows.values), sent.recipients.shape[1]), -1, np.int32)
    recipients[rows.row] = sent.recipients
    models = jnp.asarray(np.asarray(sent.values)).astype(jnp.result_type(float))
    several = update.get(start_kind(kind))
    if several is None:
        # Each client received one model, which is the reference of all of its vectors.
        # After `TopK` the rows are shorter than the vectors, with as many axes.
        stream = along_axis(recipients[:, 0], 0, rows.values.ndim - 1)
    else:
        # Each vector comes with the number of its model among those of its client.
        number = np.asarray(several.values)
        flat = number.reshape(len(number), -1)
        stream = np.take_along_axis(recipients, flat, axis=1).reshape(number.shape)
    return jnp.where(stream[..., None] >= 0, models[np.maximum(stream, 0)], 0)
