"""How many models to send down: the loss and the communication time of clustering."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from fedtailor.accounting.wireless import Wireless
from fedtailor.aggregation.clusters import clusterings
from fedtailor.protocol import require


@dataclass(frozen=True)
class StreamClusterings:
    """Clusterings of clients into k streams, for several k.

    Attributes:
        count: [n] numbers k of streams, ascending, at most the number of distinct rows.
        silhouette: [n] silhouette of each clustering; 0 for a single stream, and for
            one stream per client.
        cost: [n] objective of k-means, sum_i |w_i - c_z(i)|^2.
        personalization_loss: [n] sum_i |w_i - c_z(i)|_1, the weight that is moved to
            other clients by clustering.
        chosen: the number of streams with the best silhouette.
    """

    count: Int[np.ndarray, " n"]
    silhouette: Float[np.ndarray, " n"]
    cost: Float[np.ndarray, " n"]
    personalization_loss: Float[np.ndarray, " n"]
    chosen: int


def compare_streams(rows: Float[np.ndarray, "m p"]) -> StreamClusterings:
    """Clusters rows of weights into 1, 2, 3, ... streams, up to one for each client.

    Above 100 streams, consecutive numbers differ by a tenth.

    Args:
        rows: a row of weights (or a model) of each client.

    Raises:
        ValueError: there are no rows, or one is not finite.
    """
    rows = np.asarray(rows, np.float64)
    require(
        len(rows) > 0,
        "there are no rows to compare streams for; give one for each client",
    )
    counts, silhouettes, costs, losses = [], [], [], []
    for labels, silhouette in clusterings(rows, len(rows)):
        cluster_sizes = np.bincount(labels)
        centroids = np.zeros((len(cluster_sizes), rows.shape[1]))
        np.add.at(centroids, labels, rows)
        centroids /= cluster_sizes[:, None]
        residuals = rows - centroids[labels]
        counts.append(len(cluster_sizes))
        silhouettes.append(silhouette)
        costs.append(float(np.square(residuals).sum()))
        losses.append(float(np.abs(residuals).sum()))
    # argmax breaks ties in favour of the smallest number.
    chosen = counts[int(np.argmax(silhouettes))]
    return StreamClusterings(
        np.array(counts, np.int64),
        np.array(silhouettes),
        np.array(costs),
        np.array(losses),
        chosen,
    )


def contexts_bound(
    costs: Float[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    clients: int,
    samples: int,
    dimension: float,
    mu: float,
    *,
    delta: float | None = 0.05,
) -> Float[np.ndarray, " n"]:
    """The objective e(K) of CGPFL (Tang et al., eq. 11), to be minimized over K.

    e(K) = sqrt(d K / N log(e N / d)) + mu cost(K). With a `delta`, 2 sqrt(m log(K /
    delta) / N) is added: theorem 4.2 omits that clients choose among K contexts, which
    costs a union bound over assignments (see theorem 2 of Mansour et al. 2020).

    Args:
        costs: distances of clients' models to their contexts, sum_i n_i / N |theta_i -
            omega_z(i)|^2, for each K.
        counts: the numbers K of contexts.
        clients: number of clients m.
        samples: number of samples N.
        dimension: VC dimension d.
        mu: weight of the cost.
        delta: the confidence, or None for the formula of the paper.

    Raises:
        ValueError: the dimension is not between 1 and N.
    """
    require(
        1 <= dimension <= samples,
        f"the dimension is {dimension:g}; the bound wants 1 to {samples}, all samples",
    )
    k = np.asarray(counts, np.float64)
    log_term = np.log(np.e * samples / dimension)
    sample_term = np.sqrt(dimension * k / samples * log_term)
    bound = sample_term + mu * np.asarray(costs, np.float64)
    if delta is None:
        return bound
    choice_term = 2 * np.sqrt(clients * np.log(k / delta) / samples)
    return bound + choice_term


def matching_stability(
    labels: Int[np.ndarray, "rounds m"],
) -> Float[np.ndarray, " steps"]:
    """How stable the groups of clients are from round to round.

    Args:
        labels: the group of each client in each round.

    Returns:
        [rounds - 1] adjusted Rand indices of consecutive rounds; 1 means unchanged.
    """
    from sklearn.metrics import adjusted_rand_score

    rounds = pairwise(labels)
    return np.array([adjusted_rand_score(before, after) for before, after in rounds])


def round_time(
    system: Wireless,
    streams: int,
    clients: int,
    *,
    passes: float = 1.0,
    uploads: int = 1,
) -> float:
    """The mean duration of a round.

    It is streams T_dl + passes (T_min + H_m / mu) + uploads rho T_dl, where H_m is the
    m-th harmonic number. With sequential uplinks the last term is multiplied by m.

    Args:
        system: the wireless system.
        streams: number of distinct models sent down.
        clients: number m of clients that the server waits for.
        passes: passes over a client's data in a round, relative to FedAvg.
        uploads: number of models that each client sends.
    """
    require(
        streams >= 0 and clients >= 1,
        f"{streams} streams and {clients} clients; give 0 or more and 1 or more",
    )
    harmonic = float((1.0 / np.arange(1, clients + 1)).sum())
    compute_time = system.t_min + system.mean_delay * harmonic
    uplinks = uploads * (clients if system.uplink == "sequential" else 1)
    return (
        streams * system.t_dl
        + passes * compute_time
        + uplinks * system.rho * system.t_dl
    )


def time_to_finish(
    system: Wireless,
    rounds: int,
    streams: int,
    clients: int,
    delivered: int,
    *,
    passes: float = 1.0,
    uploads: int = 1,
) -> float:
    """The time of `rounds` rounds and of the delivery of the final models.

    A round takes `round_time`, and the delivery `delivered` T_dl.

    Args:
        system: the wireless system.
        rounds: number of rounds until the target is reached.
        streams, clients, passes, uploads: see `round_time`.
        delivered: number of distinct models that clients receive at the end.
    """
    time_per_round = round_time(
        system, streams, clients, passes=passes, uploads=uploads
    )
    return rounds * time_per_round + delivered * system.t_dl
