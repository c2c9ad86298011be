"""What is said where a training diverged: a model or message became NaN or infinite."""

import numpy as np

from fedtailor._base.tensors import is_float
from fedtailor.models import Model
from fedtailor.protocol import (
    Algorithm,
    Cohort,
    Diverged,
    Downlink,
    HiddenRows,
    Streams,
    SummedRows,
    Update,
)
from fedtailor.protocol.errors import negative_variance


def explained(
    error: Diverged,
    algorithm: Algorithm,
    model: Model,
    sent: Downlink,
    downlink: Downlink | None = None,
) -> Diverged:
    """The error with the cause that what was sent to the clients tells.

    Args:
        error: a client's model or message is not finite.
        algorithm: the method.
        model: the network.
        sent: what was sent to the clients.
        downlink: what the method's server wanted to send, before the transforms of the
            downlink; None = not known any more.
    """
    made = {} if downlink is None else downlink.streams
    for kind, streams in sent.streams.items():
        if not _is_finite(streams):
            if kind in made and _is_finite(made[kind]):
                return error.with_cause(
                    "that a transform of the downlink made NaN or infinity of finite"
                    f" numbers ({kind})"
                )
            if error.round == 0:
                return error.with_cause(
                    "that the network's first weights are not finite"
                )
            return error.with_cause(
                f"that the server of {type(algorithm).__name__} made NaN or infinity of"
                f" finite answers ({kind}): a learning rate of the server that is too"
                " large, or a fault of server()"
            )
    models = sent.streams.get("model")
    if not model.has_statistics or models is None:
        return error
    values = np.asarray(models.values)
    if values.shape[-1] != model.size:
        return error
    path = model.negative_variance(values)
    return error if path is None else error.with_cause(negative_variance(path))


def _is_finite(streams: Streams) -> bool:
    return not is_float(streams.values) or bool(np.isfinite(streams.values).all())


def require_finite_update(update: Update, cohort: Cohort) -> None:
    """Require that what clients sent is finite, after all transforms.

    Raises:
        Diverged: a client's message is NaN or infinite; it names the first such client.
    """
    for rows in update.values():
        if isinstance(rows, HiddenRows | SummedRows) or not is_float(rows):
            continue
        sent = rows.host().reshape(len(cohort), -1)
        wrong = cohort.reporting & ~np.isfinite(sent).all(axis=1)
        if wrong.any():
            name = cohort.clients.names[cohort.rows[np.argmax(wrong)]]
            raise Diverged(name, cohort.round)
