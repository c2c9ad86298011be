"""Which method to take, and which clients are better off with another one.

Everything here follows from validation data. What the choice is worth is then measured
on test data, which had no part in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from jaxtyping import Float

from fedtailor.statistics.decision.gains import between_variance
from fedtailor.statistics.decision.intervals import (
    MIN_SEEDS,
    Splits,
    resampled_variance,
    two_way_variance,
)
from fedtailor.statistics.decision.winner import dense_values

ERRORS = 2.0
"""A client gets a method of its own if that is expected to be better by this many
standard errors."""


@dataclass(frozen=True)
class Recommendation:
    """Methods that were chosen on validation data.

    Attributes:
        method: the method for all clients: the simplest of `close`.
        best: the method with the best mean over clients and seeds.
        close: the methods that are at most one standard error worse than `best`,
            simplest first.
        of_client: client -> another method for it alone; empty where nothing shows that
            a client needs one.

    Example:
        >>> from fedtailor.statistics.decision import Recommendation
        >>> Recommendation(
        ...     "fedavg", "ditto", ("fedavg", "ditto"), {"a": "local"}
        ... ).for_client("a")
        'local'
    """

    method: str
    best: str
    close: tuple[str, ...]
    of_client: Mapping[str, str] = field(default_factory=dict)

    def for_client(self, client: str) -> str:
        """The method for a client."""
        return self.of_client.get(client, self.method)


def recommend(
    values: pl.DataFrame,
    order: Sequence[str],
    rows: Mapping[str, tuple[int, int]],
    *,
    higher_is_better: bool,
    splits: Splits | None = None,
) -> Recommendation | None:
    """Chooses a method for all clients, and other ones for clients that need them.

    For all: the simplest method that is at most one standard error worse than the best
    one (Breiman et al. 1984). The error is that of the mean difference for these clients
    where each seed splits their rows differently, and else for clients like these.

    For one client: a method whose expected difference to the one for all is above two
    standard errors. The differences of all clients are shrunk towards their mean, the
    more uncertain, the more (see `shrink`), as one client's few validation rows say
    little. With fewer than three seeds or three clients nothing tells how uncertain
    they are, and all clients get the same.

    Args:
        values: validation values, one row for each method, seed and client, with the
            columns `method`, `seed`, `client` and `value`.
        order: the methods, simplest first.
        rows: client -> its numbers of validation and of training rows.
        higher_is_better: direction of the metric.
        splits: how each seed splits the rows, if they do.

    Returns:
        None without any method that has values of all clients.

    Example:
        >>> from fedtailor.statistics.decision import recommend
        >>> counts = {name: (40, 10) for name in ("a", "b", "c")}
        >>> recommend(values, ["local", "fedavg"], counts, higher_is_better=True).method
        'fedavg'
    """
    finite = values.filter(
        pl.col("value").is_not_nan() & pl.col("value").is_not_null()
    ).sort("method", "seed", "client")
    if finite.is_empty():
        return None
    names, table = dense_values(finite)
    clients = sorted(finite["client"].unique().to_list())
    # A method that diverged with a seed is compared with the others nowhere.
    is_measured = ~np.isnan(table)
    complete = (is_measured == is_measured.any(axis=0)).all(axis=(1, 2))
    sign = 1 if higher_is_better else -1
    scores = {
        name: sign * table[index] for index, name in enumerate(names) if complete[index]
    }
    simplest = [name for name in order if name in scores]
    if not simplest:
        return None
    means = {name: _mean(scores[name]) for name in simplest}
    best = max(simplest, key=lambda name: means[name])
    close = tuple(
        name
        for name in simplest
        if name == best or _is_close(scores[best] - scores[name], splits)
    )
    method = close[0]
    of_client: dict[str, tuple[float, str]] = {}
    for name in simplest:
        if name == method:
            continue
        gains = _surplus(scores[name] - scores[method], [rows[one] for one in clients])
        for client, gain in zip(clients, gains, strict=True):
            if gain > of_client.get(client, (0.0, ""))[0]:
                of_client[client] = gain, name
    return Recommendation(
        method, best, close, {client: name for client, (_, name) in of_client.items()}
    )


def _mean(values: Float[np.ndarray, "seeds clients"]) -> float:
    """The mean over clients of their means over seeds."""
    clients = (~np.isnan(values)).any(axis=0)
    return float(np.nanmean(values[:, clients], axis=0).mean())


def _is_close(
    differences: Float[np.ndarray, "seeds clients"], splits: Splits | None
) -> bool:
    """Whether a mean difference, of 0 or more, is at most its standard error."""
    if splits is None or len(differences) < MIN_SEEDS:
        variance = two_way_variance(differences)
    else:
        variance = resampled_variance(differences, splits)
    return _mean(differences) <= float(np.sqrt(variance))


def _surplus(
    differences: Float[np.ndarray, "seeds clients"],
    rows: Sequence[tuple[int, int]],
) -> Float[np.ndarray, " clients"]:
    """By how much each client is expected to gain beyond `ERRORS` standard errors.

    Args:
        differences: of a method to the one for all, on validation data.
        rows: each client's numbers of validation and of training rows.

    Returns:
        Negative where a client should keep the method for all.
    """
    seeds, clients = differences.shape
    nothing = np.full(clients, -np.inf)
    measured = ~np.isnan(differences).any(axis=0)
    if seeds < MIN_SEEDS or measured.sum() < MIN_SEEDS:
        return nothing
    values = differences[:, measured]
    counts = np.maximum(np.array(rows, float)[measured], 1.0)
    # The variance of a single row's difference, which all clients share.
    of_row = float((values.var(axis=0, ddof=1) * counts[:, 0]).mean())
    if of_row == 0:
        return nothing
    # Trainings of different seeds share rows (Nadeau and Bengio 2003).
    variances = of_row / counts[:, 0] * (1 / seeds + counts[:, 0] / counts[:, 1])
    estimates = values.mean(axis=0)
    between = between_variance(estimates, variances)
    weights = 1 / (variances + between)
    mean = float(weights @ estimates / weights.sum())
    kept = between / (between + variances)
    expected = mean + kept * (estimates - mean)
    errors = np.sqrt(kept * variances + np.square(1 - kept) / weights.sum())
    result = nothing
    result[measured] = expected - ERRORS * errors
    return result
