"""How many models to send down: clusters of rows of weights or of models.

What they cost, and what they take to send.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from fedtailor.accounting.wireless import Wireless
from fedtailor.aggregation.clusters import clusterings
from fedtailor.protocol import require


@dataclass(frozen=True)
class Streams:
    """What is lost and sent with k streams instead of one for each client.

    Attributes:
        count: [n] numbers of streams, ascending, up to the number of distinct rows.
        silhouette: [n] silhouette of the clustering (0 for one stream, and for one a
            client).
        cost: [n] what k-means leaves, sum_i |w_i - c_z(i)|^2.
        personalization_loss: [n] sum_i |w_i - c_z(i)|_1: how much weight comes from
            other clients than asked.
        chosen: the number with the best silhouette.
    """

    count: Int[np.ndarray, " n"]
    silhouette: Float[np.ndarray, " n"]
    cost: Float[np.ndarray, " n"]
    personalization_loss: Float[np.ndarray, " n"]
    chosen: int


def compare_streams(rows: Float[np.ndarray, "m p"]) -> Streams:
    """Numbers of streams for rows of weights: 1, 2, 3, ... up to one for each client.

    From 101 on they are a tenth apart.

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
        members = np.bincount(labels)
        centroids = np.zeros((len(members), rows.shape[1]))
        np.add.at(centroids, labels, rows)
        centroids /= members[:, None]
        differences = rows - centroids[labels]
        counts.append(len(members))
        silhouettes.append(silhouette)
        costs.append(float(np.square(differences).sum()))
        losses.append(float(np.abs(differences).sum()))
    # The fewest of equally good ones.
    chosen = counts[int(np.argmax(silhouettes))]
    return Streams(
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
    """e(K) of CGPFL (Tang et al., eq. 11), to be minimal over K.

    e(K) = sqrt(d K / N log(e N / d)) + mu cost(K). With `delta` also 2 sqrt(m log(K /
    delta) / N): theorem 4.2 leaves out that clients choose among K contexts, which
    costs a union over assignments (as in theorem 2 of Mansour et al. 2020). None = as
    printed.

    Args:
        costs: what is left of clients' models by K contexts, sum_i n_i / N |theta_i -
            omega_z(i)|^2.
        counts: the numbers K.
        clients, samples: m and N.
        dimension: d.
        mu: weight of the cost.
        delta: the confidence, or None.

    Raises:
        ValueError: the dimension is not between 1 and N.
    """
    require(
        1 <= dimension <= samples,
        f"the dimension is {dimension:g}; the bound wants 1 to {samples}, all samples",
    )
    k = np.asarray(counts, np.float64)
    log_term = np.log(np.e * samples / dimension)
    of_few_samples = np.sqrt(dimension * k / samples * log_term)
    bound = of_few_samples + mu * np.asarray(costs, np.float64)
    if delta is None:
        return bound
    of_the_choice = 2 * np.sqrt(clients * np.log(k / delta) / samples)
    return bound + of_the_choice


def matching_stability(
    labels: Int[np.ndarray, "rounds m"],
) -> Float[np.ndarray, " steps"]:
    """How alike the groups of clients are from round to round.

    Returns:
        [rounds - 1] adjusted Rand indices, 1 = unchanged.
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
    """Mean time of a round.

    streams T_dl + passes (T_min + H_m / mu) + uploads rho T_dl, where H_m is the m-th
    harmonic number.

    Args:
        system: the network.
        streams: distinct models sent down.
        clients: m that the server waits for.
        passes: how often a method goes through a client's data in a round, relative to
            FedAvg.
        uploads: models that a client sends; in a system of sequential uplinks, of all
            clients.
    """
    require(
        streams >= 0 and clients >= 1,
        f"{streams} streams and {clients} clients; give 0 or more and 1 or more",
    )
    harmonic = float((1.0 / np.arange(1, clients + 1)).sum())
    computing = system.t_min + system.mean_delay * harmonic
    sent = uploads * (clients if system.uplink == "sequential" else 1)
    return streams * system.t_dl + passes * computing + sent * system.rho * system.t_dl


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
    """Time of `rounds` rounds, and of the delivery of the final models.

    A round takes `round_time`; the delivery takes `delivered` T_dl more.

    Args:
        system: the network.
        rounds: until the target is reached.
        streams, clients, passes, uploads: as in `round_time`.
        delivered: distinct models that clients are sent at the end.
    """
    each = round_time(system, streams, clients, passes=passes, uploads=uploads)
    return rounds * each + delivered * system.t_dl
