"""Distances and similarities between the models or gradients of all pairs of clients,
in double precision.
"""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Rows = jax.Array | np.ndarray

_BLOCK_ELEMENTS = 1 << 23
"""Elements that are held in double precision at once (64 MiB)."""


def gram(
    rows: Float[Rows, "m d"], *, centred: bool = False
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
    # A few columns at a time: models are long, and all of them in double precision
    # would be twice as large again.
    products = np.zeros((len(rows), len(rows)))
    for block in _columns(rows):
        if centred:
            block -= block.mean(axis=0)
        products += block @ block.T
    # One entry that is not finite makes its row's product with itself not finite: a
    # look at m numbers is enough.
    broken = ~np.isfinite(products.diagonal())
    if broken.any():
        rows_finite = np.isfinite(rows).all(axis=1)
        raise ValueError(
            f"row {np.argmin(rows_finite)} is not finite; distances to it are not"
            " defined"
        )
    return products


def squared_distances(
    rows: Float[Rows, "r d"], others: Float[Rows, "m d"] | None = None
) -> Float[np.ndarray, "r m"]:
    """Squared Euclidean distances between rows.

    The mean row is subtracted first: gradients or models of similar clients are close
    vectors far from the origin, and their inner products alone would lose the
    differences in rounding.

    Args:
        rows: where distances start from.
        others: where they lead to; None = to `rows` themselves.

    Returns:
        The squared distance from every row to every other one, never negative; a row's
        to itself is exactly 0.
    """
    count = len(rows)
    all_rows = (
        rows
        if others is None
        else np.concatenate([np.asarray(rows), np.asarray(others)])
    )
    # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>, which rounding may have made negative
    products = gram(all_rows, centred=True)
    norms = products.diagonal()
    distances = np.maximum(norms[:, None] + norms[None] - 2 * products, 0.0)
    return distances if others is None else distances[:count, count:]


def cosine_similarity(rows: Float[Rows, "m d"]) -> Float[np.ndarray, "m m"]:
    """Cosines of the angles between rows.

    Args:
        rows: models, updates or embeddings of m clients.

    Returns:
        <a, b> / (|a| |b|) for all pairs, in [-1, 1]; 0 between a zero row and any
        other, 1 of every row with itself.

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


def _columns(rows: NDArray[np.floating]) -> Iterator[NDArray[np.float64]]:
    """The columns of `rows` in float64, a few at a time."""
    width = max(_BLOCK_ELEMENTS // max(len(rows), 1), 1)
    for start in range(0, rows.shape[1], width):
        yield rows[:, start : start + width].astype(np.float64)
