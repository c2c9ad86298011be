"""Distances and similarities between all pairs of models or gradients, in float64."""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

RowMatrix = jax.Array | np.ndarray

_BLOCK_ELEMENTS = 1 << 23
"""Elements that are converted to double precision at once (64 MiB)."""


def gram(
    rows: Float[RowMatrix, "m d"], *, centred: bool = False
) -> Float[np.ndarray, "m m"]:
    """Inner products of all pairs of rows, accumulated in float64.

    Args:
        rows: models or gradients of m clients.
        centred: subtract the mean row first.

    Returns:
        <a, b> for all pairs.

    Raises:
        ValueError: a row is not finite.
    """
    rows = np.asarray(rows)
    # A few columns at a time, because a copy of all models in double precision would
    # need twice the memory of the models.
    products = np.zeros((len(rows), len(rows)))
    for block in column_blocks(rows):
        if centred:
            block -= block.mean(axis=0)
        products += block @ block.T
    # If a row is not finite, its inner product with itself on the diagonal is not.
    if not np.isfinite(products.diagonal()).all():
        is_finite = np.isfinite(rows).all(axis=1)
        raise ValueError(
            f"row {np.argmin(is_finite)} is not finite; distances to it are not defined"
        )
    return products


def squared_distances(
    rows: Float[RowMatrix, "r d"], others: Float[RowMatrix, "m d"] | None = None
) -> Float[np.ndarray, "r m"]:
    """Squared Euclidean distances between rows.

    The mean row is subtracted first. Gradients or models of similar clients are close
    to each other and far from the origin, so rounding errors of their inner products
    would exceed their differences.

    Args:
        rows: one set of rows.
        others: the other set of rows; None = `rows`.

    Returns:
        Squared distances [r, m] between the two sets, never negative, and exactly 0
        from a row to itself.
    """
    if others is not None:
        stacked = np.concatenate([np.asarray(rows), np.asarray(others)])
        return squared_distances(stacked)[: len(rows), len(rows) :]
    # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>, which rounding may make negative
    products = gram(rows, centred=True)
    squared_norms = products.diagonal()
    sums = squared_norms[:, None] + squared_norms[None]
    return np.maximum(sums - 2 * products, 0.0)


def cosine_similarity(rows: Float[RowMatrix, "m d"]) -> Float[np.ndarray, "m m"]:
    """Cosines of the angles between rows.

    Args:
        rows: models, updates or embeddings of m clients.

    Returns:
        <a, b> / (|a| |b|) for all pairs, in [-1, 1]. It is 1 for a row and itself, and
        0 for a zero row and any other row.

    Raises:
        ValueError: a row is not finite.
    """
    products = gram(rows)
    norms = np.sqrt(products.diagonal())
    scale = np.outer(norms, norms)
    similarity = np.divide(
        products, scale, out=np.zeros_like(products), where=scale > 0
    )
    similarity = np.clip(similarity, -1.0, 1.0)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def column_blocks(rows: NDArray[np.floating]) -> Iterator[NDArray[np.float64]]:
    """The columns of `rows` in float64, a few at a time."""
    width = max(_BLOCK_ELEMENTS // max(len(rows), 1), 1)
    for start in range(0, rows.shape[1], width):
        yield rows[:, start : start + width].astype(np.float64)
