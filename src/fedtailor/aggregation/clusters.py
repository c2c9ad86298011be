"""Clusters of clients: k-means on rows of weights or on models, how many of them, and splits in two.

All functions are host code with a fixed seed, single-threaded, and number clusters by their first member; for results
that do not depend on the order in which clients are listed, give the rows sorted by client id.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from fedtailor.aggregation.distances import Rows, coordinates
from fedtailor.protocol import require

Labels = NDArray[np.int64]
TradeOff = Callable[[int, float], float]
"""c(k, s): the value of k streams whose silhouette is s (Mestoukirdi et al., algorithm 2)."""

_STARTS = 10
_ALONE = threading.Lock()
"""Held while k-means runs: what limits its threads and its warnings limits those of the whole process."""
_ALL_UP_TO = 100
"""Every number of streams up to this is tried; from there on, numbers a tenth apart."""


def k_means(rows: Float[np.ndarray, "m p"], k: int, *, seed: int = 0) -> tuple[Labels, Float[np.ndarray, "k p"]]:
    """k-means++ (squared Euclidean distance, best of ten starts): labels [m] and centroids [k, p].

    Rows that differ by rounding only are one point: they stay together, and the number of distinct points bounds the
    number of clusters, which may so be less than k. Centroids of rows that sum to 1 sum to 1.

    Raises:
        ValueError: k is not in 1..m.
    """
    rows = np.asarray(rows, np.float64)
    require(1 <= k <= len(rows), f"cannot make {k} clusters of {len(rows)} rows; ask for 1 to {len(rows)}")
    with _in_one_thread():
        labels = _Points(rows).cluster(k, seed)
    return labels, _means(rows, labels)


def k_means_of_models(models: Float[Rows, "m d"], k: int, *, seed: int = 0) -> Labels:
    """`k_means` of whole models: labels [m]; in as many coordinates as there are models (through the Gram matrix)."""
    require(1 <= k <= len(models), f"cannot make {k} clusters of {len(models)} models; ask for 1 to {len(models)}")
    # models are single-precision vectors, and distances from a Gram matrix have an error of this order too
    points = _Points(coordinates(models), same=1e-7 * _longest(np.asarray(models)))
    with _in_one_thread():
        return points.cluster(k, seed)


def choose_streams(
    rows: Float[np.ndarray, "m p"], trade_off: TradeOff | None = None, *, seed: int = 0
) -> tuple[int, dict[int, float]]:
    """The number of streams with the best silhouette, and the silhouettes {k: s_k} that were compared.

    Compares k = 2..m-1 as far as there are distinct rows; from 101 on, numbers a tenth apart. k = 1, whose silhouette
    counts as 0, wins where no other is positive; the fewest streams win on ties. `trade_off` replaces s_k by
    c(k, s_k) (Mestoukirdi et al., algorithm 2).

    Raises:
        ValueError: `trade_off` returns NaN.
    """
    rows = np.asarray(rows, np.float64)
    points = _Points(rows)
    distances = points.distances()
    scores: dict[int, float] = {}
    with _in_one_thread():
        for k in candidates(min(len(rows) - 1, points.count)):
            starts = min(max(200 // k, 1), _STARTS)  # a single one costs seconds where there are hundreds of clusters
            scores[k] = _silhouette(distances, points.cluster(k, seed, starts))
    value = trade_off or (lambda k, s: s)
    best, most = 0, -np.inf
    for k, score in {1: 0.0, **scores}.items():
        worth = value(k, score)
        require(not np.isnan(worth), f"the trade-off function is NaN for k = {k} streams of silhouette {score:.3f}")
        if worth > most or best == 0:
            best, most = k, worth
    return best, scores


def silhouette(rows: Float[np.ndarray, "m p"], labels: ArrayLike) -> float:
    """Mean over the rows of (b - a) / max(a, b) (Mestoukirdi et al., section IV-C), in [-1, 1].

    a is a row's mean Euclidean distance to its own cluster, b to the nearest other one. A row alone in its cluster
    counts 0, and so does everything in one cluster.
    """
    from scipy.spatial.distance import pdist, squareform

    return _silhouette(squareform(pdist(np.asarray(rows, np.float64))), np.asarray(labels))


def match(cost: Float[np.ndarray, "new old"]) -> NDArray[np.int64]:
    """The one-to-one assignment of new clusters to old ones with the least total cost: [new] columns of `cost`.

    Raises:
        ValueError: there are more new clusters than old ones.
    """
    from scipy.optimize import linear_sum_assignment

    new, old = cost.shape
    require(new <= old, f"cannot match {new} new clusters to {old} old ones; give at most as many new ones")
    return linear_sum_assignment(cost)[1].astype(np.int64)


def bipartition(similarity: Float[np.ndarray, "m m"], linkage: Literal["complete", "single"] = "complete") -> Labels:
    """Labels 0 and 1 of a split in two by agglomerative clustering (Sattler et al. 2020).

    `single` minimises the largest similarity between the two parts, as their paper does; `complete` is what their
    released code runs. Row 0 has label 0.

    Raises:
        ValueError: fewer than two rows, or an unknown linkage.
    """
    from scipy.cluster.hierarchy import cut_tree
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import squareform

    require(len(similarity) >= 2, "a split needs at least two clients")
    require(linkage in ("complete", "single"), f"linkage is {linkage!r}; it must be 'complete' or 'single'")
    dissimilarity = 1.0 - (np.asarray(similarity, np.float64) + np.transpose(similarity)) / 2
    tree = merge(squareform(dissimilarity, checks=False), linkage)
    return _by_first_member(cut_tree(tree, n_clusters=2).ravel())


class _Points:
    """The distinct rows with their multiplicities: what k-means sees. Rows no farther apart than `same` are one."""

    def __init__(self, rows: NDArray[np.float64], same: float | None = None) -> None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components
        from scipy.spatial.distance import pdist, squareform

        near = squareform(pdist(rows)) <= (1e-9 * _longest(rows) if same is None else same)
        _, points = connected_components(csr_array(near), directed=False)
        self.of_row = _by_first_member(points)
        first = np.unique(self.of_row, return_index=True)[1]
        self.rows = rows[first]
        self.multiplicity = np.bincount(self.of_row)
        self.count = len(first)

    def distances(self) -> NDArray[np.float64]:
        """Euclidean distances [m, m] between the original rows; exactly 0 within a point."""
        from scipy.spatial.distance import pdist, squareform

        return squareform(pdist(self.rows))[np.ix_(self.of_row, self.of_row)]

    def cluster(self, k: int, seed: int, starts: int = _STARTS) -> Labels:
        """Labels of the original rows in min(k, count) clusters; call it inside of `_in_one_thread`."""
        if k == 1:
            return np.zeros(len(self.of_row), np.int64)
        if k >= self.count:
            return self.of_row
        from sklearn.cluster import KMeans

        estimator: Any = KMeans(n_clusters=k, random_state=seed)
        estimator.set_params(n_init=starts)
        labels = estimator.fit(self.rows, sample_weight=self.multiplicity).labels_
        return _by_first_member(labels[self.of_row])


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """K-means whose results do not depend on threads, which add up in the order they finish; without its warnings."""
    from sklearn.exceptions import ConvergenceWarning

    with _ALONE, _thread_pools().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of nearly equal points: fewer clusters than asked
        yield


@functools.cache
def _thread_pools() -> Any:
    import sklearn.cluster  # noqa: F401  (loads the thread pools that the controller is to find)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _silhouette(distances: NDArray[np.float64], labels: NDArray[Any]) -> float:
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(labels)) < len(labels):
        return 0.0
    return float(silhouette_score(distances, labels, metric="precomputed"))


def candidates(largest: int) -> list[int]:
    """2, 3, ... up to 100, then a tenth apart, up to `largest`."""
    tried, k = [], 2
    while k < largest:
        tried.append(k)
        k += max(k // 10, 1) if k >= _ALL_UP_TO else 1
    return [*tried, largest] if largest >= 2 else []


def _means(rows: NDArray[np.float64], labels: Labels) -> NDArray[np.float64]:
    members = labels == np.arange(labels.max() + 1)[:, None]
    return np.stack([rows[mine].mean(axis=0) for mine in members])


def _by_first_member(labels: NDArray[Any]) -> Labels:
    """The same clusters, numbered in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int64)[inverse]


def _longest(rows: NDArray[Any]) -> float:
    return float(np.sqrt(max((np.einsum("i,i->", row, row, dtype=np.float64) for row in rows), default=0.0)))
