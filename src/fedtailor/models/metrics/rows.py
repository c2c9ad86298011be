"""Losses and predictions of single test rows, for comparing methods on the same rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.models import Model

if TYPE_CHECKING:
    import polars as pl


WEIGHT = "weight"
"""The column of stored rows that says how much each counts, where they do not count the
same."""


def row_scores(
    model: Model,
    outputs: Float[Array, "b ..."],
    y: Shaped[Array, "b ..."],
    weight: Float[Array, " b"] | None = None,
) -> dict[str, Shaped[Array, "b ..."]]:
    """The scores of each example of a batch (traced).

    Args:
        model: what was trained.
        outputs: its outputs.
        y: targets.
        weight: 0 for padding, whose scores are not used; None = there is none.

    Returns:
        `loss` [b] float32, and the columns of the model's task (`Task.row_scores`).
    """
    losses = model.losses(outputs, y, weight)
    return {"loss": losses.astype(jnp.float32), **model.task.row_scores(outputs, y)}


def rows_frame(
    names: Sequence[str],
    rows: Sequence[NDArray[np.integer]],
    scores: Sequence[Mapping[str, NDArray[Any] | Array]],
) -> "pl.DataFrame":
    """A table with a line for each test row of each client, and the columns `client`,
    `row` and those of `row_scores`.

    Args:
        names: the clients' names [c], at least one.
        rows: for each client the indices [n_c] of its examples in the data set. Runs on
            the same data are compared row by row, so that these must not depend on the
            split or the method.
        scores: for each client the `row_scores` of these examples, without padding.

    Returns:
        The clients in the order of `names`. Several targets of a row are a list.

    Raises:
        ValueError: the columns of a client differ in length, or a list does not have one
            entry for each client.
    """
    import polars as pl

    require(
        len(names) == len(rows) == len(scores) > 0,
        f"{len(names)} clients, rows of {len(rows)} and scores of {len(scores)}; give"
        " one of each for every client",
    )
    schema = {"client": pl.String, "row": pl.Int32}
    schema |= {name: _type(values) for name, values in scores[0].items()}
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
    return pl.concat(parts)


def _type(values: NDArray[Any] | Array) -> Any:
    """The type of a column for polars, in which several targets of an example are a
    list.
    """
    import polars as pl

    types = {"b": pl.Boolean, "i": pl.Int32, "f": pl.Float32}
    kind = types[values.dtype.kind]
    return kind if values.ndim == 1 else pl.List(kind)


def _column(values: list[str] | NDArray[Any] | Array) -> Sequence[object]:
    return values if isinstance(values, list) else np.asarray(values).tolist()
