"""The outcome of every test row at the end of a run: losses and predictions of the final
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
from fedtailor.training import Training
from fedtailor.training.personal import personal_models

if TYPE_CHECKING:
    import polars as pl

_BLOCK = 128
"""The number of rows that a program scores: clients of all sizes share this program."""
_MEMORY = 1 << 28
"""The most bytes of personal models that are on the host at the same time."""


def row_outcomes(
    training: Training, executor: DeviceExecutor
) -> "Exchanges[pl.DataFrame]":
    """Score each test row of each client by its personal model in the present state of a
    training.

    Returns:
        The columns of `fedtailor.metrics.rows.rows_frame`, with the clients in the
        federation's order. `row` is the number of the example in the federation's data,
        or of the row in its table. A regression's columns are in the target's own unit.
    """
    # This many clients are served together, so that their models take `_MEMORY` bytes.
    federation, model = executor.federation, training.model
    clients_per_part = max(_MEMORY // (8 * max(model.size, 1)), 1)
    scores: dict[str, dict[str, NDArray[Any]]] = {}
    for table in (executor.seen, executor.unseen):
        for start in range(0, len(table), clients_per_part):
            rows = np.arange(start, min(start + clients_per_part, len(table)))
            predictors = yield from personal_models(training, table, rows)
            for row in rows:
                name = table.names[row]
                tested = federation.test[int(table.original_index[row])]
                scores[name] = _client_scores(
                    model, predictors[name], federation, tested
                )
    numbers = [federation.test[client] for client in range(len(federation))]
    if federation.rows is not None:
        numbers = [federation.rows[rows] for rows in numbers]
    return rows_frame(
        federation.names, numbers, [scores[name] for name in federation.names]
    )


def _client_scores(
    model: Model, predictor: Predictor, federation: Federation, rows: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """`row_scores` of one client's rows [n], in blocks of equal shape."""
    normalization = Normalization.of(
        federation.shift, federation.scale, model.precision.sums
    )
    blocks = []
    # If there are no rows, one block of padding is scored for the types of the columns.
    for start in range(0, max(len(rows), 1), _BLOCK):
        block = np.zeros(_BLOCK, np.int64)
        block_rows = rows[start : start + _BLOCK]
        block[: len(block_rows)] = block_rows
        y = federation.y[block]
        y = y.astype(np.int32 if y.dtype.kind in "iub" else model.precision.sums)
        with jax.disable_jit(model.in_python):
            is_row = np.arange(_BLOCK) < len(block_rows)
            scored = _block_scores(
                model, predictor, normalization, federation.x[block], y, is_row
            )
        blocks.append(
            {
                name: np.asarray(values)[: len(block_rows)]
                for name, values in scored.items()
            }
        )
    scores = {
        name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]
    }
    # The targets of a model are standardised; the results are in the user's own unit.
    return model.task.in_units(scores, *federation.target_units)


@partial(jax.jit, static_argnums=0)
def _block_scores(
    model: Model,
    predictor: Predictor,
    normalization: Normalization,
    x: ArrayLike,
    y: ArrayLike,
    is_row: ArrayLike,
) -> dict[str, Array]:
    """`row_scores` of a block of rows, as one program for all blocks and clients."""
    predictor = jax.tree.map(jnp.asarray, predictor)
    out = outputs(model, predictor)(normalization(jnp.asarray(x)))
    weight = jnp.asarray(is_row, model.precision.sums)
    return row_scores(model, out, jnp.asarray(y), weight)
