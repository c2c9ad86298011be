"""The outcome of every test row, and of every validation row, at the end of a run: losses
and predictions of the final personal models.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation
from fedtailor.engine.client.losses import outputs
from fedtailor.engine.client.pool import Normalization
from fedtailor.engine.training import Training
from fedtailor.engine.training.personal import personal_models
from fedtailor.models import Model
from fedtailor.models.frozen_arrays import frozen_inputs, placed
from fedtailor.models.metrics.rows import WEIGHT, row_scores, rows_frame
from fedtailor.protocol import Exchanges, Executor, Predictor
from fedtailor.statistics.conformal import LEAST_ROWS, TEMPERATURE, fit_temperature

_BLOCK = 128
"""The number of rows that a program scores: clients of all sizes share this program."""
_MEMORY = 1 << 28
"""The most bytes of personal models that are on the host at the same time."""


OutcomeSplit = Literal["train", "val", "test"]
Scores = tuple[dict[str, NDArray[Any]], NDArray[Any]]
"""The `row_scores` of a client's rows by column, and the outputs for them."""


def row_outcomes(
    training: Training, executor: Executor, split: OutcomeSplit = "test"
) -> Exchanges[pl.DataFrame]:
    """Score each row of a split of each client by its personal model in the present state
    of a training.

    Args:
        training: the training.
        executor: its executor.
        split: "test"; or "val", which for classes has one more column: the temperature
            of the client's probabilities (`fedtailor.statistics.conformal.fit_temperature`), NaN
            where it has fewer than `LEAST_ROWS` rows.

    Returns:
        The columns of `fedtailor.models.metrics.rows.rows_frame`, with the clients in the
        federation's order. `row` is the number of the example in the federation's data,
        or of the row in its table. A regression's columns are in the target's own unit.
    """
    found = yield from outcomes_of_splits(training, executor, (split,))
    return found[split]


def outcomes_of_splits(
    training: Training,
    executor: Executor,
    splits: Sequence[OutcomeSplit] = ("test", "val"),
) -> Exchanges[dict[OutcomeSplit, pl.DataFrame]]:
    """`row_outcomes` of several splits, for which clients are served once."""
    federation, model = _data_of(executor), training.model
    found = yield from scores_of_splits(training, executor, splits)
    frames = {}
    for split in splits:
        numbers = [getattr(federation, split)[it] for it in range(len(federation))]
        if federation.rows is not None:
            numbers = [federation.rows[rows] for rows in numbers]
        in_order = [dict(found[split][name][0]) for name in federation.names]
        if federation.weights is not None:
            for client, scores in enumerate(in_order):
                of_client = federation.weights[getattr(federation, split)[client]]
                scores[WEIGHT] = of_client.astype(np.float32)
        frame = rows_frame(federation.names, numbers, in_order)
        if split == "val" and model.classification:
            of_clients = {
                name: _temperature(model, logits, federation.y[federation.val[it]])
                for it, name in enumerate(federation.names)
                for _, logits in (found[split][name],)
            }
            values = [of_clients[name] for name in frame["client"]]
            frame = frame.with_columns(pl.Series(TEMPERATURE, values, pl.Float64))
        frames[split] = frame
    return frames


def scores_of_splits(
    training: Training, executor: Executor, splits: Sequence[OutcomeSplit]
) -> Exchanges[dict[OutcomeSplit, dict[str, Scores]]]:
    """The `row_scores` and outputs of each client's rows of some splits.

    Returns:
        split -> client -> its scores by column, and the outputs [n, ...].
    """
    # This many clients are served together, so that their models take `_MEMORY` bytes.
    federation, model = _data_of(executor), training.model
    clients_per_part = max(_MEMORY // (8 * max(model.size, 1)), 1)
    found: dict[OutcomeSplit, dict[str, Scores]] = {it: {} for it in splits}
    for table in (executor.seen, executor.unseen):
        for start in range(0, len(table), clients_per_part):
            rows = np.arange(start, min(start + clients_per_part, len(table)))
            predictors = yield from personal_models(training, table, rows)
            for row, split in product(rows, splits):
                name = table.names[row]
                of_client = getattr(federation, split)[int(table.original_index[row])]
                found[split][name] = _client_scores(
                    model.of_client(name), predictors[name], federation, of_client
                )
    return found


def _data_of(executor: Executor) -> Federation:
    """The examples of an executor.

    Raises:
        ValueError: they are on the machines of its clients.
    """
    federation = executor.data
    require(
        isinstance(federation, Federation),
        "outcomes of rows need the rows of all clients in this process; measure where they"
        " are",
    )
    assert isinstance(federation, Federation)
    return federation


def _temperature(model: Model, logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """The temperature of a client's probabilities; NaN for what has none, and of fewer
    than `LEAST_ROWS` rows.
    """
    if not model.classification or logits.ndim != 2 or len(labels) < LEAST_ROWS:
        return np.nan
    return fit_temperature(logits, labels)


def _client_scores(
    model: Model, predictor: Predictor, federation: Federation, rows: NDArray[np.int32]
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """`row_scores` of one client's rows [n], and its model's outputs for them, in blocks
    of equal shape.
    """
    normalization = Normalization.of(
        federation.shift, federation.scale, model.precision.sums
    )
    blocks, logits = [], []
    # If there are no rows, one block of padding is scored for the types of the columns.
    for start in range(0, max(len(rows), 1), _BLOCK):
        block = np.zeros(_BLOCK, np.int64)
        block_rows = rows[start : start + _BLOCK]
        block[: len(block_rows)] = block_rows
        y = federation.y[block]
        y = y.astype(np.int32 if y.dtype.kind in "iub" else model.precision.sums)
        is_row = np.arange(_BLOCK) < len(block_rows)
        scored, out = _block_scores(
            model,
            predictor,
            normalization,
            federation.x[block],
            y,
            is_row,
            frozen_inputs(model),
        )
        logits.append(np.asarray(out)[: len(block_rows)])
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
    return (
        model.task.in_units(scores, *federation.target_units),
        np.concatenate(logits),
    )


@partial(jax.jit, static_argnums=0)
def _block_scores(
    model: Model,
    predictor: Predictor,
    normalization: Normalization,
    x: ArrayLike,
    y: ArrayLike,
    is_row: ArrayLike,
    frozen: tuple[Array, ...],
) -> tuple[dict[str, Array], Array]:
    """`row_scores` of a block of rows and the outputs for them, as one program for all
    blocks and clients.
    """
    predictor = jax.tree.map(jnp.asarray, predictor)
    with placed(model.frozen, frozen):
        out = outputs(model, predictor)(normalization(jnp.asarray(x)))
    weight = jnp.asarray(is_row, model.precision.sums)
    return row_scores(model, out, jnp.asarray(y), weight), out
