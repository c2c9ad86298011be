"""What became of every test row when a run is over: losses and predictions of the final
personal models.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor.client.losses import outputs
from fedtailor.client.pool import Normalization
from fedtailor.executors import DeviceExecutor
from fedtailor.federation import Federation
from fedtailor.metrics.rows import row_scores, rows_frame
from fedtailor.models import Model
from fedtailor.protocol import Exchanges, Predictor
from fedtailor.runs.target_units import target_units
from fedtailor.tables import Table
from fedtailor.training import Training
from fedtailor.training.personal import personal_models

if TYPE_CHECKING:
    import polars as pl

_BLOCK = 128
"""Rows that a program scores at a time: clients of all sizes share it."""
_MEMORY = 1 << 28
"""Bytes of personal models that are on the host at a time."""


def row_outcomes(
    training: Training, executor: DeviceExecutor
) -> "Exchanges[pl.DataFrame]":
    """One line for each test row of each client, by its personal model in the present
    state of a training.

    Returns:
        The columns of `fedtailor.metrics.rows.rows_frame`, clients in the federation's
        order. `row` is the number of the example in the federation's data, or of the
        row in its table; a regression's columns are in the target's own unit.
    """
    # As many clients at a time as their models fit into the memory that is set apart
    # for them.
    federation, model = executor.federation, training.model
    at_once = max(_MEMORY // (8 * max(model.size, 1)), 1)
    scores: dict[str, dict[str, NDArray[Any]]] = {}
    for table in (executor.seen, executor.unseen):
        for start in range(0, len(table), at_once):
            rows = np.arange(start, min(start + at_once, len(table)))
            predictors = yield from personal_models(training, table, rows)
            for row in rows:
                name = table.names[row]
                tested = federation.test[int(table.original_index[row])]
                scores[name] = _client_scores(
                    model, predictors[name], federation, tested
                )
    numbers = [federation.test[client] for client in range(len(federation))]
    if isinstance(federation, Table) and federation.rows is not None:
        numbers = [federation.rows[rows] for rows in numbers]
    return rows_frame(
        model, federation.names, numbers, [scores[name] for name in federation.names]
    )


def _client_scores(
    model: Model, predictor: Predictor, federation: Federation, rows: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """`row_scores` of one client's rows [n], in blocks of equal shape."""
    normalization = Normalization.of(federation.shift, federation.scale, model.dtype)
    blocks = []
    # Without any row one block of padding is scored all the same, for the types of the
    # columns.
    for start in range(0, max(len(rows), 1), _BLOCK):
        block = np.zeros(_BLOCK, np.int64)
        chosen = rows[start : start + _BLOCK]
        block[: len(chosen)] = chosen
        y = federation.y[block]
        y = y.astype(np.int32 if y.dtype.kind in "iub" else model.dtype)
        with jax.disable_jit(model.in_python):
            scored = _block_scores(
                model, predictor, normalization, federation.x[block], y
            )
        blocks.append(
            {name: np.asarray(values)[: len(chosen)] for name, values in scored.items()}
        )
    scores = {
        name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]
    }
    # A model's targets are standardised; tables are in the user's own unit, squared
    # where errors are.
    if "squared_error" in scores:
        target_shift, target_scale = target_units(federation)
        scores["squared_error"] = scores["squared_error"] * target_scale**2
        scores["prediction"] = scores["prediction"] * target_scale + target_shift
    return scores


@partial(jax.jit, static_argnums=0)
def _block_scores(
    model: Model,
    predictor: Predictor,
    normalization: Normalization,
    x: ArrayLike,
    y: ArrayLike,
) -> dict[str, Array]:
    """`row_scores` of a block of rows, as one program for all blocks and clients."""
    predictor = jax.tree.map(jnp.asarray, predictor)
    out = outputs(model, predictor)(normalization(jnp.asarray(x)))
    return row_scores(model, out, jnp.asarray(y))
