"""Secure aggregation: the server learns weighted sums of clients' vectors only.

The protocol is SecAgg+ (Bell et al. 2020, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead), which extends SecAgg (Bonawitz et al. 2017). The
coordinator is its server. Any two neighbours agree on a pairwise mask, which one adds
to its vector and the other subtracts. In addition every client adds a self mask. A
masked vector looks random. In the sum over all clients the pairwise masks cancel, and
the server removes the self masks. Clients share the seeds of both kinds of masks among
their neighbours (Shamir secret sharing), so the server can unmask the sum although some
clients drop out. Each stage is one exchange with all clients that have not dropped out:

sum-keys     (AdvertiseKeys) each client makes two key pairs, one for pairwise masks and
             one for encryption, and sends the public keys
sum-shares   (ShareKeys) each client sends shares of its two seeds, encrypted for its
             neighbours, by way of the server
sum-vectors  (MaskedInputCollection) each client sends its weighted and masked vector,
             once for each sum
sum-unmask   (Unmasking) each client reveals one share for every neighbour: of the self
             mask if the neighbour's vector arrived, else of the pairwise masks' key

The threat model is an honest-but-curious server, which may collude with fewer clients
than the threshold. An active server that invents clients, and answers for them, can
unmask vectors: clients learn each other's public keys from the server alone.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor.algorithms import UCFL
from fedtailor.pipelines import Clip, GaussianNoise
from fedtailor.protocol import PRIVATE_STEPS, Algorithm, Pipeline, require
from fedtailor.remote.sum_shares import ReleasedSums

KEYS, SHARES, VECTORS, UNMASK = "sum-keys", "sum-shares", "sum-vectors", "sum-unmask"
STAGES = (KEYS, SHARES, VECTORS, UNMASK)

SUM = "sum"
"""Key in a request's description of the method: the sum that a stage belongs to."""

MIN_CLIENTS = 3
"""Minimum number of clients in a sum; with two, each learns the other's vector."""

MAX_NEIGHBOURS = 50
"""Maximum number of other clients with which a client shares masks and secrets."""

MAX_SHARE = 0.9
"""Maximum share of a client in a combination of sums (see `sum_shares`).

A combination in which one client has a larger share is nearly that client's vector.
"""

SCOPES = ("run", "round")
"""The sums of which no combination may show a client's vector: those of all rounds, or
those of each round by itself.
"""


@dataclass(frozen=True)
class SecureSums:
    """Settings of secure aggregation.

    Attributes:
        threshold: reconstruction threshold, as a fraction of a client's neighbours
            (including the client); above 0.5, and at most 1.
        range: the largest absolute value of a number that a client can send.
        open_probe: whether clients answer a method's probe without masks.
        scope: the sums of which no combination may show a client's vector, one of
            `SCOPES`. A client's vectors are alike from round to round. So the sums of
            two rounds show a client that has a part in one of them only: in the scope
            "run" all clients have a part in every sum.
    """

    threshold: float = 2 / 3
    range: float = 64.0
    open_probe: bool = False
    scope: Literal["run", "round"] = "run"

    def __post_init__(self) -> None:
        require(
            self.scope in SCOPES,
            f"sum_scope is {self.scope!r}; it must be 'run' or 'round'",
        )
        require(
            0.5 < self.threshold <= 1,
            f"sum_threshold is {self.threshold:g}; it must be above 0.5, and at most 1",
        )
        # A sum is rounded to multiples of range / 2^31. With a larger range too few
        # digits of a model would remain.
        require(
            1e-3 <= self.range <= 1e6,
            f"sum_range is {self.range:g}; it must be at least 0.001, and at most"
            " 1000000",
        )

    def minimum(self, minimum: int, asked: int) -> int:
        """The number of clients that must answer in a round.

        Args:
            minimum: the number that the job asks for.
            asked: the number of clients that are asked.
        """
        return asked if self.scope == "run" else min(minimum, asked)

    def reconstruction_threshold(self, neighbours: int) -> int:
        """The number of shares that reconstruct a secret.

        Args:
            neighbours: number of shares that were made.
        """
        # 1e-9 makes 2/3 of 3 equal to 2 in floating point.
        return max(MIN_CLIENTS, math.ceil(self.threshold * neighbours - 1e-9))

    def check(self, algorithm: Algorithm, uplink: Pipeline) -> None:
        """Check that a method needs no more than sums.

        Args:
            algorithm: the method, or a schedule of several.
            uplink: the transforms that clients apply to their updates.

        Raises:
            ValueError: a method's server or probe needs the vectors of single clients,
                or a transform of the uplink gives something that cannot be added.
        """
        for method, _ in algorithm.phases():
            name = method.about.name
            if _is_ucfl(method):
                needs_updates = (
                    method.kernel != "bound" and method.sigma_batch == "auto"
                )
                require(
                    isinstance(method.streams, int) and not needs_updates,
                    f"secure_aggregation shows the server sums only; {name}'s needs no"
                    " more if streams is a number, and sigma_batch not 'auto'",
                )
            else:
                require(
                    method.about.server_sees in ("sums", "nothing"),
                    f"secure_aggregation shows the server sums only, and {name}'s needs"
                    " more of each client; `fedtailor algorithms --by sees` lists"
                    " methods that do not",
                )
            require(
                self.open_probe or not method.probes,
                f"{name}'s server needs each client's answer to the probe, which no sum"
                " hides; leave out secure_aggregation, or have clients answer it"
                ' openly: probe = "open" in [privacy]',
            )
        for transform in uplink:
            by_client = (
                isinstance(transform, GaussianNoise) and transform.by == "client"
            )
            require(
                isinstance(transform, Clip) or by_client,
                "secure_aggregation adds what clients send, and"
                f" {type(transform).__name__} makes it something else; of the uplink,"
                " only clip and gaussian-noise by = 'client' go with it",
            )

    def check_client_count(
        self, algorithm: Algorithm, clients: int, population: int
    ) -> None:
        """Check that a round has enough clients to hide the vector of each.

        Args:
            algorithm: the method, or a schedule of several.
            clients: number of clients that report in a round.
            population: number of clients that take part in training.

        Raises:
            ValueError: there are fewer than three clients, or fewer than two for each
                stream of UCFL; or other clients report in each round, and the scope is
                that of the run.
        """
        require(
            self.scope == "round" or clients == population,
            f"{clients} of {population} clients report in a round, and the differences"
            " of such sums show single clients: have all of them report (participation"
            ' = 1.0), or set sum_scope = "round" in [privacy], which hides a client in'
            " each round by itself only",
        )
        require(
            clients >= MIN_CLIENTS,
            f"secure_aggregation needs {MIN_CLIENTS} clients or more in a round, not"
            f" {clients}: of two, each knows the other's update",
        )
        for method, _ in algorithm.phases():
            if _is_ucfl(method):
                assert isinstance(method.streams, int)
                require(
                    2 * method.streams <= clients,
                    f"{method.streams} sums over {clients} clients hide little;"
                    " secure_aggregation needs two clients or more in a round for each"
                    f" of {method.about.name}'s streams",
                )


def _is_ucfl(method: Algorithm) -> TypeGuard[UCFL]:
    """Whether a method has UCFL's server, which needs sums only."""
    # A subclass may have another server, which may need more.
    return type(method).server is UCFL.server


def hidden_kinds(update: Mapping[str, Any]) -> list[str]:
    """The kinds of an update's messages that are summed behind masks.

    These are all kinds but the number of private steps.

    Args:
        update: the arrays of one client, or their shapes and types, by kind.

    Raises:
        ValueError: the update has scalars, which a server uses for more than sums.
    """
    hidden = [kind for kind in update if kind != PRIVATE_STEPS]
    scalars = [kind for kind in hidden if not len(update[kind].shape)]
    require(
        not scalars,
        f"clients would send numbers beside the model ({', '.join(scalars)}), which"
        " secure_aggregation does not hide; leave out the setting of the method that"
        " asks for them",
    )
    return hidden


def neighbour_graph(
    names: Sequence[str], neighbours: int = MAX_NEIGHBOURS
) -> dict[str, tuple[str, ...]]:
    """Draw the graph of clients that share masks and secrets.

    It is complete if there are few clients. Else clients are placed on a ring in random
    order, and each is connected to the nearest on both sides.

    Args:
        names: names of the clients.
        neighbours: maximum number of other clients that a client is connected to.

    Returns:
        The neighbours of each client, including itself, in alphabetical order.
    """
    if len(names) <= neighbours + 1:
        return dict.fromkeys(names, tuple(sorted(names)))
    # The operating system draws the order, so that no client can predict it.
    ring = list(names)
    random.SystemRandom().shuffle(ring)
    offsets = range(-(neighbours // 2), neighbours // 2 + 1)
    return {
        name: tuple(sorted(ring[(index + offset) % len(ring)] for offset in offsets))
        for index, name in enumerate(ring)
    }


def unsafe_combination(sums: ReleasedSums, past: bool) -> str:
    """Say which client a combination of sums would show; empty if none.

    Args:
        sums: the sums of a round, and those before with which they may be combined.
        past: whether there are sums before.
    """
    share, client = sums.largest_share(MAX_SHARE)
    if share <= MAX_SHARE:
        return ""
    which = "these and earlier sums" if past else "the sums"
    return (
        f"client {client} would be {share:.0%} of a combination of {which}, which would"
        f" not hide its vector (at most {MAX_SHARE:.0%})"
    )


def unsafe_sums(
    weights: Float[np.ndarray, "s c"],
    surviving: Bool[np.ndarray, " c"],
    names: Sequence[str],
) -> dict[int, str]:
    """Find the sums in which one client's weight is too large to hide its vector.

    Args:
        weights: weight of each client in each sum.
        surviving: whether each client has not dropped out.
        names: names of the clients.

    Returns:
        For the index of each such sum, a line that names the client.
    """
    unsafe = {}
    for index, sizes in enumerate(np.abs(np.where(surviving, weights, 0.0))):
        client, total = int(sizes.argmax()), float(sizes.sum())
        if sizes[client] > MAX_SHARE * total:
            unsafe[index] = (
                f"client {names[client]} would be {sizes[client] / total:.0%} of sum"
                f" {index + 1}, which would not hide its vector (at most"
                f" {MAX_SHARE:.0%})"
            )
    return unsafe


def normalized(
    weights: NDArray[np.float64], surviving: Bool[np.ndarray, " c"]
) -> NDArray[np.float64]:
    """Normalize the weights of the surviving clients.

    Args:
        weights: [s, c] weight of each client in each sum.
        surviving: whether each client has not dropped out.

    Returns:
        [s, c] weights whose absolute values sum to 1 in each row. Weights of clients
        that dropped out are zero, and so are all weights of a row without survivors.
    """
    remaining = np.where(surviving, weights, 0.0)
    total = np.abs(remaining).sum(axis=1, keepdims=True)
    return np.divide(remaining, total, out=np.zeros_like(remaining), where=total > 0)
