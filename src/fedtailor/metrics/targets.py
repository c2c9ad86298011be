"""Predictions and targets of a regression, in one shape."""

from jaxtyping import Array, Float, Shaped


def predictions_and_targets(
    outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
) -> tuple[Float[Array, "b targets"], Float[Array, "b targets"]]:
    """Both as [b, targets], in the precision of the outputs.

    Raises:
        ValueError: an example's outputs and targets differ in number.
    """
    if outputs.size != y.size:
        raise ValueError(
            f"outputs {outputs.shape} do not match targets {y.shape}; bind the model"
            " with matching outputs"
        )
    predictions = outputs.reshape(len(outputs), -1)
    targets = y.astype(outputs.dtype)
    return predictions, targets.reshape(len(outputs), -1)
