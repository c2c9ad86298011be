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
    SummedRows,
    Update,
)
from fedtailor.protocol.errors import negative_variance


def explained(
    error: Diverged, algorithm: Algorithm, model: Model, downlink: Downlink
) -> Diverged:
    """The error with the cause that what was sent to the clients tells."""
    for kind, streams in downlink.streams.items():
        if is_float(streams.values) and not np.isfinite(streams.values).all():
            if error.round == 0:
                return error.with_cause(
                    "that the network's first weights are not finite"
                )
            return error.with_cause(
                f"that the server of {type(algorithm).__name__} made NaN or infinity of"
                f" finite answers ({kind}): a learning rate of the server that is too"
                " large, or a fault of server()"
            )
    sent = downlink.streams.get("model")
    if not model.has_statistics or sent is None:
        return error
    values = np.asarray(sent.values)
    if values.shape[-1] != model.size:
        return error
    path = model.negative_variance(values)
    return error if path is None else error.with_cause(negative_variance(path))


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
