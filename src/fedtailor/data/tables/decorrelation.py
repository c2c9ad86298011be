"""`Decorrelation`: a linear map to uncorrelated inputs of about equal variance.

Gradient descent converges slowly in directions of small variance: with nearly collinear
columns, a linear regression takes thousands of rounds. Least squares does not have this
problem, and after decorrelation gradient descent does not have it either. Each
decorrelated input stays close to its column.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Float64
from numpy.typing import NDArray

MAX_DECORRELATED_INPUTS = 100
"""Wider tables are not decorrelated, as the matrix is saved with every model."""
_FLOOR = 3e-3
"""Directions of less variance (relative to the mean variance of the inputs) are damped as
noise.
"""
_DIGITS = 9
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Decorrelation:
    """The map x -> (x - mean) @ matrix.

    Attributes:
        mean: [inputs] mean of the training rows.
        matrix: [inputs][inputs] symmetric matrix.
    """

    mean: tuple[float, ...]
    matrix: tuple[tuple[float, ...], ...]

    @property
    def inverse(self) -> Float64[NDArray, "inputs inputs"]:
        """What leads back from deviations of the inputs to those of the columns.

        A direction in which no training row varied stays without variance.
        """
        return np.linalg.pinv(np.array(self.matrix), hermitian=True)

    def apply(self, x: Float32[NDArray, "rows inputs"]) -> None:
        """Decorrelate inputs in place.

        This adds up one input after the other. A product of matrices would give results
        whose last bits depend on the number of rows.
        """
        matrix = np.array(self.matrix)
        for chunk, centered in _centered_chunks(x, np.array(self.mean)):
            out = np.zeros_like(centered)
            for values, weights in zip(centered.T, matrix, strict=True):
                out += values[:, None] * weights
            chunk[:] = out


def fit_decorrelation(x: Float32[NDArray, "rows inputs"]) -> Decorrelation | None:
    """Fit a decorrelation to the encoded inputs of the training rows.

    Symmetric whitening changes the inputs less than any other whitening (Kessy, Lewin
    and Strimmer 2018, Optimal Whitening and Decorrelation, section 3). For a covariance
    V diag(v) V' its matrix is V diag(v^-1/2) V'. Here v^-1/2 is replaced by
    v^1/2 / (v + floor), so that directions of little variance are not amplified.

    Returns:
        The decorrelation; None if there is one input, there are more than
        `MAX_DECORRELATED_INPUTS`, or all rows are equal.
    """
    if not 1 < x.shape[1] <= MAX_DECORRELATED_INPUTS:
        return None
    mean, products = centered_products(x)
    variances, eigenvectors = np.linalg.eigh(products / len(x))
    variances = np.maximum(variances, 0.0)
    floor = _FLOOR * float(variances.mean())
    if not floor > 0:
        return None
    scales = np.sqrt(variances) / (variances + floor)
    matrix = (eigenvectors * scales) @ eigenvectors.T
    symmetric = (matrix + matrix.T) / 2
    return Decorrelation(_rounded(mean), tuple(_rounded(row) for row in symmetric))


def centered_products(
    rows: Float[NDArray, "rows inputs"],
) -> tuple[Float64[NDArray, " inputs"], Float64[NDArray, "inputs inputs"]]:
    """The mean of rows, and the sum of outer products of deviations from it."""
    mean = rows.mean(axis=0, dtype=np.float64)
    products = np.zeros((len(mean), len(mean)))
    # In chunks, as a float64 copy of all rows would be twice as large as the table.
    for _, centered in _centered_chunks(rows, mean):
        products += centered.T @ centered
    return mean, products


def _centered_chunks(
    x: Float[NDArray, "rows inputs"], mean: Float[NDArray, " inputs"]
) -> Iterator[tuple[Float[NDArray, "chunk inputs"], Float[NDArray, "chunk inputs"]]]:
    """Views of consecutive rows, and these rows minus the mean in float64."""
    for start in range(0, len(x), _CHUNK_ROWS):
        chunk = x[start : start + _CHUNK_ROWS]
        yield chunk, chunk.astype(np.float64) - mean


def _rounded(values: Float[NDArray, " inputs"]) -> tuple[float, ...]:
    """Round to nine digits.

    These are more digits than float32 has, and they do not depend on the machine on
    which the eigenvectors were computed.
    """
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
