"""The density estimation task of Mansour et al. 2020 (section 6.1, appendix F.1)."""

import numpy as np

from fedtailor.federation.checks import check_integer, check_memory, check_seed
from fedtailor.federation.datasets.registry import register
from fedtailor.federation.federation import Federation, Ragged
from fedtailor.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import require, server_rng

_CLUSTERS = 4


@register()
def density(
    samples: int = 100,
    *,
    clients: int = 100,
    symbols: int = 100,
    val: float = 0.0,
    unseen: Unseen = 0,
    seed: int = 0,
) -> Federation:
    """Symbols without inputs: client k draws from D_k = 0.5 P_{k % 4} + 0.25 U + 0.25
    P_{k % (symbols - 4)}.

    P_j is the point mass on symbol j, U the uniform distribution; k counts from 0. x
    has shape [N, 0]: a model of `symbols` logits fits. The test split IS the
    population: every symbol stands in it in proportion to D_k (4 times `symbols` rows),
    so a test loss is the exact expected loss, without sampling error. The groups are k
    % 4.

    Args:
        samples: of each client; the paper has 10, 100 and 1,000.
        clients: how many.
        symbols: size of the alphabet.
        val: fraction of the samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: of everything.

    Returns:
        A federation of `symbols` classes without inputs.

    Raises:
        ValueError: impossible settings.
    """
    for what, value in (
        ("samples", samples),
        ("clients", clients),
        ("symbols", symbols),
    ):
        check_integer(value, what, 1)
    check_memory(
        clients * (samples + 4 * symbols),
        4 * 8,
        f"{clients} clients with {samples} samples of {symbols} symbols",
    )
    require(symbols > _CLUSTERS, f"symbols is {symbols}; it must be above {_CLUSTERS}")
    client = np.arange(clients)
    cluster = client % _CLUSTERS
    own = client % (symbols - _CLUSTERS)
    rng = server_rng(check_seed(seed), "density", 0)
    # Which part of the mixture each sample is of: the cluster's symbol, any symbol, or
    # the client's own.
    component = rng.choice(3, (clients, samples), p=[0.5, 0.25, 0.25])
    uniform = rng.integers(0, symbols, component.shape)
    of_cluster = cluster[:, None]
    of_client = own[:, None]
    drawn = np.select(
        [component == 0, component == 1], [of_cluster, uniform], of_client
    )
    digits = len(str(clients - 1))
    names = tuple(f"client-{number:0{digits}d}" for number in client)
    mine = Ragged.cut(np.arange(clients * samples), np.full(clients, samples))
    train, vals, _ = draw_splits(
        mine, drawn.reshape(-1), names, test=0, val=val, seed=seed
    )
    # The test split is D_k itself, as counts of symbols out of 4 * symbols: 0.25, 0.5
    # and 0.25 of them.
    counts = np.ones((clients, symbols), np.int64)
    np.add.at(counts, (client, cluster), 2 * symbols)
    np.add.at(counts, (client, own), symbols)
    # One row for each symbol, behind the samples, which all clients share.
    alphabet = clients * samples + np.arange(symbols)
    tests = np.repeat(np.tile(alphabet, clients), counts.reshape(-1))
    y = np.concatenate([drawn.reshape(-1), np.arange(symbols)])
    return Federation(
        np.zeros((len(y), 0), np.float32),
        y,
        train,
        vals,
        Ragged.cut(tests, counts.sum(axis=1)),
        names,
        groups=cluster,
        unseen=choose_unseen(unseen, names, seed),
        classes=symbols,
        name=f"density ({samples} samples)",
    )
