"""Secure sums: the coordinator learns weighted sums of clients' vectors, and no vector.

The protocol is SecAgg+ (Bell et al. 2020, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead), after Bonawitz et al. 2017. Every two neighbours agree on a
pairwise mask that one adds and the other subtracts, and every client adds a self mask
of its own. So what the coordinator receives looks random; in the sum over all clients
the pairwise masks cancel, and the self masks are removed. The secrets of both kinds of
masks are shared among neighbours, so that the sum can be unmasked although some clients
are gone. Each stage is an exchange of the coordinator with all clients that are left:

sum-keys     each client makes two key pairs, for masks and for sealing
sum-shares   each shares its secrets with its neighbours, sealed for them, by way of the
             coordinator
sum-vectors  each weighs its vector, once for each sum, and sends it masked
sum-unmask   each opens one share of every neighbour: of the self mask if the
             neighbour's vector arrived, of the mask key if it did not

Trusted for what: vectors are hidden from a coordinator that follows the protocol and
looks at everything it receives, even together with clients, as long as these are fewer
than the threshold. They are not hidden from a coordinator that invents clients and
answers for them, as it is the coordinator who says which keys belong to whom.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor.algorithms import UCFL
from fedtailor.pipelines import Clip, GaussianNoise
from fedtailor.protocol import PRIVATE_STEPS, Algorithm, Pipeline, require

KEYS, SHARES, VECTORS, UNMASK = "sum-keys", "sum-shares", "sum-vectors", "sum-unmask"
STAGES = (KEYS, SHARES, VECTORS, UNMASK)

SUM = "sum"
"""Key in a request's description of the method: which sum a stage belongs to."""

FEWEST = 3
"""The fewest clients of a sum: of two, each knows the other's vector."""

NEIGHBOURS = 50
"""The most others with whom a client shares masks and secrets."""

LARGEST_SHARE = 0.9
"""The largest weight of a client in a sum of weights 1: one vector hides nothing."""


@dataclass(frozen=True)
class SecureSums:
    """How clients' vectors are added.

    Attributes:
        threshold: share of a client's neighbours, itself among them, without which a
            sum cannot be unmasked; more than half of them, at most all.
        range: size of the largest number that a client can send.
        open_probe: whether clients answer a method's probe openly.
    """

    threshold: float = 2 / 3
    range: float = 64.0
    open_probe: bool = False

    def __post_init__(self) -> None:
        require(
            0.5 < self.threshold <= 1,
            f"sum_threshold is {self.threshold:g}; it must be above 0.5, and at most 1",
        )
        # A sum is rounded to a 2^31-th of the range: beyond, little of a model is left.
        require(
            1e-3 <= self.range <= 1e6,
            f"sum_range is {self.range:g}; it must be at least 0.001, and at most"
            " 1000000",
        )

    def needed(self, neighbours: int) -> int:
        """How many of some neighbours must answer until the last stage."""
        # 1e-9: 2/3 of 3 is 2, also in floating point
        return max(FEWEST, math.ceil(self.threshold * neighbours - 1e-9))

    def check(self, algorithm: Algorithm, uplink: Pipeline) -> None:
        """Refuse methods for which sums do not suffice.

        Raises:
            ValueError: a method's server needs single clients' vectors, or its probe
                does; or an uplink changes what is sent to something that cannot be
                added.
        """
        for method, _ in algorithm.phases():
            name = method.about.name
            if _is_ucfl(method):
                chosen = method.kernel != "bound" and method.sigma_batch == "auto"
                require(
                    isinstance(method.streams, int) and not chosen,
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

    def check_crowd(self, algorithm: Algorithm, clients: int) -> None:
        """Refuse sums from which single vectors follow.

        Args:
            algorithm: the method, or a schedule.
            clients: that report in a round.

        Raises:
            ValueError: there are fewer than three, or fewer than two for each stream of
                UCFL.
        """
        require(
            clients >= FEWEST,
            f"secure_aggregation needs {FEWEST} clients or more in a round, not"
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
    """Whether a method's server is UCFL's, which needs no more than sums."""
    # A subclass with a server of its own promises nothing.
    return type(method).server is UCFL.server


def hidden_kinds(update: Mapping[str, Any]) -> list[str]:
    """The kinds of message of an update that are added behind masks.

    These are all but the number of private steps.

    Args:
        update: kind -> array (or its shape and type) of a single client.

    Raises:
        ValueError: it holds scalars, with which a server does more than add.
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


def neighbourhoods(
    names: Sequence[str], neighbours: int = NEIGHBOURS
) -> dict[str, tuple[str, ...]]:
    """The graph of clients that share masks and secrets.

    Args:
        names: of the clients.
        neighbours: with how many others each shares, if there are more than that.

    Returns:
        For each client its neighbours, itself among them, in alphabetical order: all
        clients, or those beside it on a ring of random order.
    """
    if len(names) <= neighbours + 1:
        everybody = tuple(sorted(names))
        return dict.fromkeys(names, everybody)
    # The order is drawn by the operating system, so that no client can foresee it.
    ring = list(names)
    random.SystemRandom().shuffle(ring)
    half = neighbours // 2
    neighbourhood = {}
    for index, name in enumerate(ring):
        nearby = (ring[(index + step) % len(ring)] for step in range(-half, half + 1))
        neighbourhood[name] = tuple(sorted(nearby))
    return neighbourhood


def revealing_sums(
    weights: Float[np.ndarray, "s c"],
    present: Bool[np.ndarray, " c"],
    names: Sequence[str],
) -> dict[int, str]:
    """The sums that would not hide a client's vector, as it weighs almost all of them.

    Args:
        weights: of each client in each sum.
        present: whose vectors will be in the sums.
        names: of the clients.

    Returns:
        For the number of each such sum, a line that names the client.
    """
    revealing = {}
    for number, sizes in enumerate(np.abs(np.where(present, weights, 0.0))):
        client, total = int(sizes.argmax()), float(sizes.sum())
        if sizes[client] > LARGEST_SHARE * total:
            revealing[number] = (
                f"client {names[client]} would be {sizes[client] / total:.0%} of sum"
                f" {number + 1}, which would not hide its vector (at most"
                f" {LARGEST_SHARE:.0%})"
            )
    return revealing


def normalized(
    weights: NDArray[np.float64], present: Bool[np.ndarray, " c"]
) -> NDArray[np.float64]:
    """The weights of the clients that are present, of size 1 in every sum.

    Args:
        weights: [s, c] of each client in each sum.
        present: whose vectors will be in the sums.

    Returns:
        [s, c] weights whose absolute values sum to 1 in each row; zero for clients that
        are absent, and in rows where nobody is left.
    """
    left = np.where(present, weights, 0.0)
    total = np.abs(left).sum(axis=1, keepdims=True)
    return np.divide(left, total, out=np.zeros_like(left), where=total > 0)
