"""Secure sums: the coordinator learns weighted sums of what clients send, and nobody's
own vector.

The protocol is SecAgg+ (Bell et al. 2020, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead), after Bonawitz et al. 2017. Every two neighbours agree on a
mask that one adds and the other subtracts, and every client adds a mask of its own;
what the coordinator is sent looks random, and the sum of all is what remains when the
clients' own masks are taken off. Secrets of both kinds of masks are shared among
neighbours, so that the sum can be had although some of them are gone. Stages, each an
exchange of the coordinator with all clients that are left:

sum-keys     each client makes two key pairs, for masks and for sealing
sum-shares   each shares its secrets with its neighbours, sealed for them, through the coordinator
sum-vectors  each weighs its vector, once for each sum, and sends it masked
sum-unmask   each opens its shares: of the own masks of those that sent theirs, and of the keys of those that did not

It hides vectors from a coordinator that looks at all it gets and follows the protocol,
and from clients together with it, as long as these are fewer than the threshold. A
coordinator that answers for clients that it invents is not held off: it is the one who
says which keys belong to whom.
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
"""Of a request: which sum a stage belongs to."""

FEWEST = 3
"""Clients without which there is no sum: of two, each knows the other's vector."""

NEIGHBOURS = 50
"""With how many others a client shares masks and secrets, where there are more."""

LARGEST_SHARE = 0.9
"""How much of a sum one client may weigh: a sum of one vector hides nothing."""


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
        fits = (
            1e-3 <= self.range <= 1e6
        )  # a sum is rounded to its 2^31-th: beyond, little of a model is left
        require(
            fits,
            f"sum_range is {self.range:g}; it must be at least 0.001, and at most"
            " 1000000",
        )

    def needed(self, clients: int) -> int:
        """How many of some neighbours must be there till the end."""
        return max(FEWEST, math.ceil(self.threshold * clients - 1e-9))

    def check(self, algorithm: Algorithm, uplink: Pipeline) -> None:
        """Refuse what sums do not suffice for.

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
                    method.about.sees in ("sums", "nothing"),
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
        """Refuse sums over so few clients, or so many sums, that single vectors follow
        from them.

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
    """Whether a method's server is UCFL's: a subclass with one of its own promises
    nothing.
    """
    return type(method).server is UCFL.server


def hidden_kinds(update: Mapping[str, Any]) -> list[str]:
    """Kinds of message of an update that are added behind masks: all but the number of
    private steps.

    Args:
        update: kind -> array, or the form of one, of a single client.

    Raises:
        ValueError: it holds single numbers, with which a server does more than add.
    """
    hidden = [kind for kind in update if kind != PRIVATE_STEPS]
    numbers = [kind for kind in hidden if not len(update[kind].shape)]
    require(
        not numbers,
        f"clients would send numbers beside the model ({', '.join(numbers)}), which"
        " secure_aggregation does not hide; leave out the setting of the method that"
        " asks for them",
    )
    return hidden


def neighbourhoods(
    names: Sequence[str], neighbours: int = NEIGHBOURS
) -> dict[str, tuple[str, ...]]:
    """With whom each client shares, itself among them, in order: all, or as many on a
    ring of random order.
    """
    if len(names) <= neighbours + 1:
        everybody = tuple(sorted(names))
        return dict.fromkeys(names, everybody)
    ring = list(names)
    random.SystemRandom().shuffle(ring)
    half = neighbours // 2
    return {
        name: tuple(
            sorted(ring[(place + step) % len(ring)] for step in range(-half, half + 1))
        )
        for place, name in enumerate(ring)
    }


def lonely(
    weights: Float[np.ndarray, "s c"],
    there: Bool[np.ndarray, " c"],
    names: Sequence[str],
) -> dict[int, str]:
    """In which sums a client stands almost alone, and which client, in words.

    Args:
        weights: of each client in each sum.
        there: whose vectors will be in the sums.
        names: of the clients.
    """
    left, found = np.abs(np.where(there, weights, 0.0)), {}
    for number, row in enumerate(left):
        client, total = int(row.argmax()), float(row.sum())
        if row[client] > LARGEST_SHARE * total:
            weight = f"{row[client] / total:.0%} of sum {number + 1}"
            most = f"(at most {LARGEST_SHARE:.0%})"
            found[number] = (
                f"client {names[client]} would be {weight}, which would not hide its"
                f" vector {most}"
            )
    return found


def rescaled(
    weights: NDArray[np.float64], there: Bool[np.ndarray, " c"]
) -> NDArray[np.float64]:
    """The weights [s, c] of those that are there, each row's sizes summing to 1; zero
    where nobody is.
    """
    left = np.where(there, weights, 0.0)
    total = np.abs(left).sum(axis=1, keepdims=True)
    return np.divide(left, total, out=np.zeros_like(left), where=total > 0)
