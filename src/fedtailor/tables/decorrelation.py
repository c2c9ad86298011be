"""`Decorrelation`: correlated inputs become uncorrelated ones of about equal spread.

Each stays close to its column. Gradient steps fit the directions in which inputs vary,
and hardly those in which they do not: where columns say nearly the same, a linear
regression takes thousands of rounds. Least squares does not care; after decorrelation,
nor do they.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64
from numpy.typing import NDArray

MOST_INPUTS = 100
"""Wider tables stay as they are: the matrix of each is saved with every model."""
_FLOOR = 3e-3
"""In units of the inputs' mean variance.

Directions that vary less than this are noise, and fade out.
"""
_DIGITS = 9
_ROWS = 8192


@dataclass(frozen=True)
class Decorrelation:
    """x -> (x - mean) @ matrix.

    Attributes:
        mean: [inputs] of the training rows.
        matrix: [inputs][inputs] symmetric.
    """

    mean: tuple[float, ...]
    matrix: tuple[tuple[float, ...], ...]

    def apply(self, x: Float32[NDArray, "rows inputs"]) -> None:
        """Decorrelate inputs in place.

        One input after the other, not by a product of matrices: the sum for a row is
        then the same to the bit, however many rows come with it.
        """
        matrix = np.array(self.matrix)
        for part, centred in _parts(x, np.array(self.mean)):
            out = np.zeros_like(centred)
            for value, weights in zip(centred.T, matrix, strict=True):
                out += value[:, None] * weights
            part[:] = out


def fit_decorrelation(
    x: Float32[NDArray, "rows inputs"], train: Bool[NDArray, " rows"] | None = None
) -> Decorrelation | None:
    """Learn from training rows how to decorrelate.

    Args:
        x: encoded inputs.
        train: which rows to learn from; None = all.

    Returns:
        None where `can_decorrelate` says no, and where all rows are equal.
    """
    if not can_decorrelate(x.shape[1]):
        return None
    rows = x if train is None else x[train]
    mean, products = centred_products(rows)
    return decorrelation_of(mean, products / len(rows))


def can_decorrelate(inputs: int) -> bool:
    """Whether a table of so many inputs is decorrelated.

    A single one is not, nor are more than `MOST_INPUTS`.
    """
    return 1 < inputs <= MOST_INPUTS


def centred_products(
    rows: Float32[NDArray, "rows inputs"],
) -> tuple[Float64[NDArray, " inputs"], Float64[NDArray, "inputs inputs"]]:
    """The mean of some rows, and the sum of outer products of deviations from it."""
    mean = rows.mean(axis=0, dtype=np.float64)
    products = np.zeros((len(mean), len(mean)))
    # Not one product of all rows: a copy in float64 would be twice as large as the
    # table.
    for _, centred in _parts(rows, mean):
        products += centred.T @ centred
    return mean, products


def decorrelation_of(
    mean: Float64[NDArray, " inputs"], covariance: Float64[NDArray, "inputs inputs"]
) -> Decorrelation | None:
    """What decorrelates rows of a mean and a covariance; None where they do not vary.

    Of all whitenings the symmetric one changes the inputs least (Kessy, Lewin and
    Strimmer 2018, Optimal Whitening and Decorrelation, section 3): with the covariance
    V diag(v) V', it is V diag(v^-1/2) V'. Here v^-1/2 is v^1/2 / (v + floor), so that
    nothing is blown up in which training rows hardly differ.
    """
    variances, directions = np.linalg.eigh(covariance)
    variances = np.maximum(variances, 0.0)
    floor = _FLOOR * float(variances.mean())
    if not floor > 0:
        return None
    scales = np.sqrt(variances) / (variances + floor)
    matrix = (directions * scales) @ directions.T
    symmetric = (matrix + matrix.T) / 2
    return Decorrelation(_rounded(mean), tuple(_rounded(row) for row in symmetric))


def _parts(
    x: Float32[NDArray, "rows inputs"], mean: Float[NDArray, " inputs"]
) -> Iterator[tuple[Float32[NDArray, "some inputs"], Float[NDArray, "some inputs"]]]:
    """Views of some rows at a time, and these rows minus the mean in float64."""
    for start in range(0, len(x), _ROWS):
        part = x[start : start + _ROWS]
        yield part, part.astype(np.float64) - mean


def _rounded(values: Float[NDArray, " inputs"]) -> tuple[float, ...]:
    """To nine digits.

    They are more than float32 has, and the same wherever the eigenvectors were
    computed.
    """
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
