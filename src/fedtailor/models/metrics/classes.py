"""Counts by class, from which several metrics of classifications are computed."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import one_hot


def class_counts(
    model: Model,
    outputs: Float[Array, "b classes"],
    y: Shaped[Array, " b"],
    weight: Float[Array, " b"],
) -> dict[str, Float[Array, " classes"]]:
    """How many samples of a batch, for each class, have it as label and prediction.

    Returns:
        `labelled`: samples whose label is the class; `predicted`: samples whose
        prediction is the class; `hits`: samples with both.
    """
    labels = one_hot(y, model.outputs, weight)
    predictions = one_hot(jnp.argmax(outputs, axis=-1), model.outputs, weight)
    return {
        "labelled": weight @ labels,
        "predicted": weight @ predictions,
        "hits": weight @ (labels * predictions),
    }
