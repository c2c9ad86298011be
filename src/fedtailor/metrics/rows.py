"""Losses and predictions of single test rows, for comparing methods on the same rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.metrics.metric import is_regression
from fedtailor.metrics.targets import predictions_and_targets
from fedtailor.models import Model
from fedtailor.protocol import require

if TYPE_CHECKING:
    import polars as pl


def row_scores(
    model: Model, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
) -> dict[str, Shaped[Array, "b ..."]]:
    """The scores of each example of a batch (traced).

    Returns:
        `loss` [b] float32 for all models. For classifications also `correct` [b] bool,
        `prediction` [b] int32, the predicted class, and `confidence` [b] float32, its
        probability. For regressions also `squared_error` [b] float32, summed over
        targets, and `prediction` and `target` [b] (or [b, targets]) float32.
    """
    losses = model.losses(outputs, y)
    columns: dict[str, Array] = {"loss": losses.astype(jnp.float32)}
    if model.classification:
        confidence = jnp.exp(model.log_probabilities(outputs).max(axis=-1))
        columns["correct"] = model.correct(outputs, y)
        columns["prediction"] = jnp.argmax(outputs, axis=-1).astype(jnp.int32)
        columns["confidence"] = confidence.astype(jnp.float32)
    elif is_regression(model):
        predicted, target = predictions_and_targets(outputs, y)
        squared_error = jnp.square(predicted - target).sum(axis=-1)
        columns["squared_error"] = squared_error.astype(jnp.float32)
        for name, values in (("prediction", predicted), ("target", target)):
            single = values[:, 0] if values.shape[1] == 1 else values
            columns[name] = single.astype(jnp.float32)
    return columns


def rows_schema(model: Model) -> "dict[str, pl.DataType | type[pl.DataType]]":
    """Columns of `rows_frame` and their types."""
    import polars as pl

    types: dict[str, pl.DataType | type[pl.DataType]] = {
        "client": pl.String,
        "row": pl.Int32,
        "loss": pl.Float32,
    }
    if model.classification:
        return types | {
            "correct": pl.Boolean,
            "prediction": pl.Int32,
            "confidence": pl.Float32,
        }
    if is_regression(model):
        values = pl.List(pl.Float32) if model.outputs > 1 else pl.Float32
        return types | {
            "squared_error": pl.Float32,
            "prediction": values,
            "target": values,
        }
    return types


def rows_frame(
    model: Model,
    names: Sequence[str],
    rows: Sequence[NDArray[np.integer]],
    scores: Sequence[Mapping[str, NDArray[Any] | Array]],
) -> "pl.DataFrame":
    """A table with a line for each test row of each client, and the columns `client`,
    `row` and those of `row_scores`.

    Args:
        model: what was trained.
        names: the clients' names [c].
        rows: for each client the indices [n_c] of its examples in the data set. Runs on
            the same data are compared row by row, so that these must not depend on the
            split or the method.
        scores: for each client the `row_scores` of these examples, without padding.

    Returns:
        The columns of `rows_schema`, clients in the order of `names`.

    Raises:
        ValueError: the columns of a client differ in length, or a list does not have one
            entry for each client.
    """
    import polars as pl

    require(
        len(names) == len(rows) == len(scores),
        f"{len(names)} clients, rows of {len(rows)} and scores of {len(scores)}; give"
        " one of each for every client",
    )
    schema = rows_schema(model)
    parts = []
    for name, indices, columns in zip(names, rows, scores, strict=True):
        lengths = {len(indices), *(len(values) for values in columns.values())}
        require(
            len(lengths) == 1,
            f"the columns of client {name!r} have lengths {sorted(lengths)};"
            " expected one",
        )
        # in the order of the schema, which is the same for all clients
        content = {"client": [name] * len(indices), "row": indices, **columns}
        parts.append(
            pl.DataFrame(
                {key: _column(content[key]) for key in schema},
                schema=schema,
                strict=False,
            )
        )
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _column(values: list[str] | NDArray[Any] | Array) -> Sequence[object]:
    """A column for polars, in which several targets of an example are a list."""
    return values if isinstance(values, list) else np.asarray(values).tolist()
