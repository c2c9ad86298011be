"""Averages of clients' vectors that a few wrong ones cannot move far.

Each function takes the vectors x_i of n clients as rows [n, d], of which up to f may be
anything finite, and returns one vector [d] in double precision. No result depends on the
order of the rows, except for `bucket_means`, which takes an order. None weighs clients:
a Byzantine client could claim any weight.

All of them follow a shift of the vectors, so it makes no difference whether the rows are
models or changes of one model. The two exceptions, `norm_bounded_mean` and
`centred_clipping`, measure changes from a given vector.
"""

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.aggregation.distances import column_blocks, gram

Vectors = Float[np.ndarray, "n d"]
Vector = Float[np.ndarray, " d"]

_MAX_STEPS = 1000
"""The most steps of Weiszfeld's iteration."""
_STEP_TOLERANCE = 1e-13
"""Weiszfeld's iteration ends when no weight changes by more than this."""


def trimmed_mean(x: Vectors, cut: int) -> Vector:
    """The mean of each coordinate without its `cut` smallest and largest values (Yin et
    al. 2018, definition 2).

    Args:
        x: the vectors.
        cut: f; the mean stays within the range of the honest values for up to as many
            wrong vectors. Below n / 2.
    """
    rows = len(x)
    trimmed = np.empty(x.shape[1])
    end = 0
    for block in column_blocks(x):
        start, end = end, end + block.shape[1]
        if cut:
            # A copy with coordinates as rows is sorted several times faster.
            block = np.sort(np.ascontiguousarray(block.T), axis=1).T[cut : rows - cut]
        trimmed[start:end] = block.mean(axis=0)
    return trimmed


def coordinate_median(x: Vectors) -> Vector:
    """The median of each coordinate (Yin et al. 2018, definition 1): the mean of the one
    or two values in the middle.
    """
    return trimmed_mean(x, (len(x) - 1) // 2)


def krum(x: Vectors, byzantine: int, keep: int = 1) -> Vector:
    """Krum and multi-Krum (Blanchard et al. 2017, section 4): the mean of the vectors that
    are nearest to others.

    The score of a vector is the sum of its squared distances to its n - f - 2 nearest
    other vectors.

    Args:
        x: the vectors.
        byzantine: f; 2 f + 2 < n is what the paper needs.
        keep: how many vectors of least score to average; 1 is Krum.
    """
    scores = krum_scores(_squared_distances(x), byzantine)
    # Vectors of equal scores are chosen by their values, not by their order.
    best = np.lexsort((x.astype(np.float64).sum(axis=1), scores))[:keep]
    return trimmed_mean(x[np.sort(best)], 0)


def krum_scores(
    squared: Float[np.ndarray, "n n"], byzantine: int
) -> Float[np.ndarray, " n"]:
    """For each vector, the sum of squared distances to its nearest n - f - 2 others (to
    its nearest one, if that is none).
    """
    neighbours = max(len(squared) - byzantine - 2, 1)
    ascending = np.sort(squared, axis=1)
    # The smallest distance of a vector is that to itself.
    return ascending[:, 1 : neighbours + 1].sum(axis=1)


def geometric_median(x: Vectors) -> Vector:
    """The vector with the least sum of distances to all, by Weiszfeld's iteration (Pillutla
    et al. 2022, Robust Aggregation for Federated Learning).

    A step at a vector of the data is that of Vardi and Zhang (2000), at which Weiszfeld's
    own is not defined.
    """
    # Every iterate is a mean of the vectors with weights w, so that distances follow from
    # inner products. They are measured from the vector with the least sum of distances:
    # it is as good as honest, and the products of honest vectors do then not drown in
    # those of vectors far away.
    centre = _least_sum_of_distances(x)
    products = gram(x - x[centre])
    norms = products.diagonal()
    # Vectors that are equal up to rounding count as one point.
    tolerance = 1e-14 * np.median(norms)
    w = np.zeros(len(x))
    w[centre] = 1.0
    for _ in range(_MAX_STEPS):
        along = products @ w
        squared = np.maximum(norms - 2 * along + w @ along, 0.0)
        here = squared <= tolerance
        closeness = np.where(here, 0.0, 1 / np.sqrt(np.where(here, 1.0, squared)))
        total = closeness.sum()
        if not total:
            break
        step = closeness / total
        if here.any():
            # The pull of all other vectors, of which `here` vectors resist as many units.
            towards = step - w
            pull = total * math.sqrt(max(float(towards @ products @ towards), 0.0))
            stay = min(1.0, float(here.sum()) / pull) if pull else 1.0
            step = (1 - stay) * step + stay * w
        moved = float(np.abs(step - w).max())
        w = step
        if moved <= _STEP_TOLERANCE:
            break
    return _weighted_sum(x, w)


def norm_bounded_mean(x: Vectors, radius: float | None = None) -> Vector:
    """The mean of changes whose norms are bounded (Sun et al. 2019, section 4).

    Args:
        x: changes, measured from the model that all clients received.
        radius: the largest norm; None = the median of the norms. Longer ones are scaled
            to it.
    """
    return _clipped_mean(x, np.zeros(x.shape[1]), radius)


def centred_clipping(
    x: Vectors, centre: Vector, radius: float | None = None, steps: int = 1
) -> Vector:
    """Centred clipping (Karimireddy et al. 2021, algorithm 2):

        v <- v + mean_i (x_i - v) min(1, radius / |x_i - v|)

    A vector moves v by at most radius / n in a step, however far it is: f Byzantine vectors of n move
    it by at most f radius / n. Where the honest vectors are further from v than the
    radius, several steps are needed to arrive at them.

    Args:
        x: the vectors.
        centre: v before the first step, such as the result of the round before.
        radius: None = in each step the median of the distances from v.
        steps: the number of steps.
    """
    for _ in range(steps):
        centre = _clipped_mean(x, centre, radius)
    return centre


def bucket_means(
    x: Vectors, size: int, order: NDArray[np.integer]
) -> Float[np.ndarray, "buckets d"]:
    """Means of vectors in buckets (Karimireddy et al. 2022, algorithm 1), which differ less
    than the vectors of clients with different data.

    Args:
        x: the vectors.
        size: of a bucket; the last one may have fewer vectors.
        order: a random permutation of the rows.

    Returns:
        [ceil(n / size), d] in double precision.
    """
    starts = range(0, len(x), size)
    return np.stack(
        [trimmed_mean(x[order[start : start + size]], 0) for start in starts]
    )


def _clipped_mean(x: Vectors, centre: Vector, radius: float | None) -> Vector:
    """centre + mean_i (x_i - centre) min(1, radius / |x_i - centre|)."""
    distances = np.array([_norm(row - centre) for row in x])
    if radius is None:
        radius = float(np.median(distances))
    scale = radius / np.maximum(distances, radius) if radius else distances == 0
    moved = np.array(centre, np.float64)
    for row, factor in zip(x, scale, strict=True):
        moved += factor / len(x) * (row - centre)
    return moved


def _norm(vector: NDArray[np.floating]) -> float:
    # Sums of squares in double precision: 1e30 has none in single precision.
    return math.sqrt(np.einsum("i,i->", vector, vector, dtype=np.float64))


def _squared_distances(x: Vectors) -> Float[np.ndarray, "n n"]:
    """|x_i - x_j|^2 of all pairs.

    `distances.squared_distances` subtracts the mean, which one vector far away would make
    so large that the distances between all others were lost by rounding.
    """
    products = gram(x)
    norms = products.diagonal()
    squared = np.maximum(norms[:, None] + norms[None] - 2 * products, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared


def _least_sum_of_distances(x: Vectors) -> int:
    """The row with the least sum of distances to all rows."""
    return int(np.sqrt(_squared_distances(x)).sum(axis=1).argmin())


def _weighted_sum(x: Vectors, weights: Float[np.ndarray, " n"]) -> Vector:
    return np.concatenate([weights @ block for block in column_blocks(x)])
