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
sum-confirm  (ConsistencyCheck) each client gets the list of those whose vectors arrived,
             and sends every neighbour on it a code that only the two can compute
sum-unmask   (Unmasking) each client that got the codes of all these neighbours reveals one
             share for every neighbour: of the self mask if the neighbour's vector arrived,
             else of the pairwise masks' key

Without the codes a server could tell some clients that others are lost, and these that
they arrived: their shares would open both secrets of a client. SecAgg asks for signatures
of as many clients as the threshold. Here all neighbours whose vectors arrived have to
confirm the same list, each of them one. So only a sum over the clients of one list opens.

An active server that invents clients, and answers for them, can unmask vectors: clients
learn each other's public keys from the server alone.
"""

import hashlib
from collections.abc import Sequence

KEYS, SHARES, VECTORS = "sum-keys", "sum-shares", "sum-vectors"
CONFIRM, UNMASK = "sum-confirm", "sum-unmask"
STAGES = (KEYS, SHARES, VECTORS, CONFIRM, UNMASK)

SUM = "sum"
"""Key in a request's description of the method: the sum that a stage belongs to."""

MAX_NEIGHBOURS = 50
"""Maximum number of other clients with which a client shares masks and secrets."""


def neighbour_graph(
    names: Sequence[str], neighbours: int = MAX_NEIGHBOURS
) -> dict[str, tuple[str, ...]]:
    """The graph of clients that share masks and secrets.

    It is complete if there are few clients. Else clients are placed on a ring, in the
    order of digests of their names, and each is connected to the nearest on both sides.
    So a client knows who its neighbours are, in each sum of the same clients, and that
    one of them is missing: a client that nobody has as a neighbour could be named in a
    sum and have no part in it, and the difference to an earlier sum would be its vector.

    Args:
        names: names of all clients of a sum, also of those that are lost.
        neighbours: maximum number of other clients that a client is connected to.

    Returns:
        The neighbours of each client, including itself, in alphabetical order.
    """
    ring = _ring(names)
    return {name: _around(ring, at, neighbours) for at, name in enumerate(ring)}


def neighbours_of(
    client: str, names: Sequence[str], neighbours: int
) -> tuple[str, ...]:
    """The neighbours of one client (see `neighbour_graph`), which is among the names."""
    ring = _ring(names)
    return _around(ring, ring.index(client), neighbours)


def _ring(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def _around(ring: Sequence[str], at: int, neighbours: int) -> tuple[str, ...]:
    """Those at a place of a ring and next to it, in alphabetical order."""
    if len(ring) <= neighbours + 1:
        return tuple(sorted(ring))
    half = neighbours // 2
    around = [ring[(at + offset) % len(ring)] for offset in range(-half, half + 1)]
    return tuple(sorted(around))
