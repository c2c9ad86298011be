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

import random
from collections.abc import Sequence

KEYS, SHARES, VECTORS, UNMASK = "sum-keys", "sum-shares", "sum-vectors", "sum-unmask"
STAGES = (KEYS, SHARES, VECTORS, UNMASK)

SUM = "sum"
"""Key in a request's description of the method: the sum that a stage belongs to."""

MAX_NEIGHBOURS = 50
"""Maximum number of other clients with which a client shares masks and secrets."""


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
