"""Changes: the difference between a vector that a client sends and its reference.

The reference of a model is the received model that is nearest to it (where data must not
decide it, `fixed_reference`). Gradients and controls are changes themselves, so that their
reference is zero. The client subtracts the reference
(`change_of`), and the server adds it again (`received_rows`). Accompanying messages, such
as "model start", hold what else the server needs for this.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.protocol import (
    MODEL_KINDS,
    NOT_SENT,
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
    """Replace the messages that are vectors of the model's size. Other messages do not
    change.

    Args:
        messages: kind -> message.
        replacement: (kind, vector) -> the messages that replace it, by kind.

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
        update: the vectors and the messages that accompany them.
        names: which messages to drop: `start_kind`, `indices_kind` or `scale_kind`.
    """
    dropped = {name(kind) for name in names for kind in update}
    return {kind: rows for kind, rows in update.items() if kind not in dropped}


def start_kind(kind: str) -> str:
    """The message with the index of the received model that is a vector's reference."""
    return f"{kind} start"


def indices_kind(kind: str) -> str:
    """The message with the indices of the entries of a vector that are sent (`TopK`)."""
    return f"{kind} places"


def scale_kind(kind: str) -> str:
    """The message with the scales of a vector that is sent as integers (`Quantize`)."""
    return f"{kind} scale"


def nearest(value: Float[Array, "*k d"], inbox: Inbox) -> Int[Array, "*k"]:
    """The index of the received model that is nearest to each vector; 0 if none was
    received.
    """
    differences = value[..., None, :] - inbox["model"]
    distances = jnp.square(differences).sum(axis=-1)
    distances = jnp.where(inbox.received["model"], distances, jnp.inf)
    return distances.argmin(axis=-1).astype(jnp.int32)


def change_reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> Float[Array, "*k d"]:
    """The vector that a client's change is measured from, on the client.

    Args:
        kind: "model", "gradient" or "control".
        value: one vector of this kind, or several.
        inbox: what the client received.

    Returns:
        For each model the received model that is nearest to it; zero for gradients and
        controls, and if no model was received.
    """
    if kind != "model" or "model" not in inbox.values:
        return jnp.zeros_like(value)
    start = inbox["model"][nearest(value, inbox)]
    return jnp.where(inbox.received["model"].any(), start, 0)


def fixed_reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> Float[Array, "*k d"]:
    """A vector that a client's change is measured from, whatever its data.

    Which `change_reference` is nearest to what the client sends depends on the client's data. A bound
    on the change from it bounds no difference between two data sets.

    Args:
        kind: "model", "gradient" or "control".
        value: one vector of this kind, or several.
        inbox: what the client received.

    Returns:
        The only model received; or, if as many were received as are sent, the one with
        the same index. Zero for gradients and controls, and where no model was received.

    Raises:
        ValueError: several models were received, and not as many are sent.
    """
    if kind != "model" or "model" not in inbox.values:
        return jnp.zeros_like(value)
    models, received = inbox["model"], inbox.received["model"][:, None]
    if len(models) == 1:
        models, received = models[0], received[0]
    require(
        models.shape == value.shape or models.ndim == 1,
        f"clients are sent {len(models)} models and send one of another shape: which of"
        " them their change is measured from would depend on their data, which noise"
        " does not cover; choose a method whose clients are sent one model",
    )
    return jnp.broadcast_to(jnp.where(received, models, 0), value.shape)


def which_reference(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> dict[str, Array]:
    """The message with the index of each vector's reference among the received models;
    no message if the client can receive only one model.
    """
    if kind != "model" or "model" not in inbox.values or len(inbox["model"]) == 1:
        return {}
    return {start_kind(kind): nearest(value, inbox)}


def change_of(
    kind: str, value: Float[Array, "*k d"], inbox: Inbox
) -> tuple[Float[Array, "*k d"], ClientUpdate]:
    """A client's change, and the message of `which_reference`."""
    return value - change_reference(kind, value, inbox), which_reference(
        kind, value, inbox
    )


def received_rows(
    kind: str, update: Update, downlink: Downlink
) -> Float[Any, "r *k d"] | float:
    """The `change_reference` of each client, on the server.

    Args:
        kind: "model", "gradient" or "control".
        update: the clients' messages, with those of `which_reference`.
        downlink: what the clients received.

    Returns:
        The references, in the order of the rows of `update[kind]`; 0.0 if all of them
        are zero.
    """
    rows = update[kind]
    if kind != "model" or "model" not in downlink.streams:
        return 0.0
    models = downlink.streams["model"]
    # The streams that the client of each row received. The rows are in the order of the
    # executor. Rows of padding received nothing, and get `NOT_SENT`.
    recipients = np.full(
        (len(rows.values), models.recipients.shape[1]), NOT_SENT, np.int32
    )
    recipients[rows.row] = models.recipients
    thetas = jnp.asarray(np.asarray(models.values)).astype(jnp.result_type(float))
    start = update.get(start_kind(kind))
    if start is None:
        # Each client received one model, the reference of all of its vectors. After
        # `TopK` the rows are shorter than the vectors, but have as many axes.
        stream = along_axis(recipients[:, 0], 0, rows.values.ndim - 1)
    else:
        # `start` holds, for each vector, an index into the models that its client
        # received.
        index = np.asarray(start.values)
        flat = index.reshape(len(index), -1)
        stream = np.take_along_axis(recipients, flat, axis=1).reshape(index.shape)
    is_received = stream[..., None] >= 0
    return jnp.where(is_received, thetas[np.maximum(stream, 0)], 0)


def common_start(kind: str, downlink: Downlink, what: str) -> Any:
    """The vector that every client's change is measured from: the only model sent, or
    zero for gradients and controls.

    Args:
        kind: "model", "gradient" or "control".
        downlink: what the clients received.
        what: needs the common vector, for the message.

    Raises:
        ValueError: clients were sent different models, or none.
    """
    if kind != "model":
        return 0.0
    model = only_model_sent(downlink)
    require(model is not None, f"{what} needs clients that all start from one model")
    return jnp.asarray(model)


def only_model_sent(downlink: Downlink) -> np.ndarray | None:
    """The model that all clients received; None if they received none, or several."""
    sent = downlink.streams.get("model")
    if sent is None:
        return None
    # The streams that were sent to any client, perhaps with `NOT_SENT`
    streams = np.unique(sent.recipients)
    if len(streams) != 1 or streams[0] == NOT_SENT:
        return None
    return np.asarray(sent.values)[streams[0]]
