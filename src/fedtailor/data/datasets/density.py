"""The density estimation task of Mansour et al. 2020 (section 6.1, appendix F.1)."""

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.memory import check_memory
from fedtailor.data.datasets.registry import register
from fedtailor.data.federation.checks import check_integer, check_seed
from fedtailor.data.federation.dataset import numbered_names
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.data.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import server_rng

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

    P_j is the point mass on symbol j, U is the uniform distribution, and k counts from
    0. x has shape [N, 0], and a model is a vector of `symbols` logits. The test split
    represents D_k exactly: it has 4 * `symbols` rows, in which every symbol occurs in
    proportion to D_k. So the test loss is the expected loss, without sampling error.
    The groups are k % 4.

    Args:
        samples: number of samples of each client; the paper has 10, 100 and 1,000.
        clients: number of clients.
        symbols: size of the alphabet.
        val: fraction of the samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: random seed of the samples, the splits and the choice of unseen clients.

    Returns:
        A federation of `symbols` classes without inputs.

    Raises:
        ValueError: a setting is out of range.
    """
    for name, value in (
        ("samples", samples),
        ("clients", clients),
        ("symbols", symbols),
    ):
        check_integer(value, name, 1)
    check_memory(
        clients * (samples + 4 * symbols),
        4 * 8,
        f"{clients} clients with {samples} samples of {symbols} symbols",
    )
    require(symbols > _CLUSTERS, f"symbols is {symbols}; it must be above {_CLUSTERS}")
    client = np.arange(clients)
    cluster = client % _CLUSTERS
    personal = client % (symbols - _CLUSTERS)
    rng = server_rng(check_seed(seed), "density", 0)
    # The component of the mixture from which each sample is drawn: 0 = the cluster's
    # symbol, 1 = the uniform distribution, 2 = the client's personal symbol.
    component = rng.choice(3, (clients, samples), p=[0.5, 0.25, 0.25])
    uniform = rng.integers(0, symbols, component.shape)
    labels = np.select(
        [component == 0, component == 1],
        [cluster[:, None], uniform],
        personal[:, None],
    ).reshape(-1)
    names = numbered_names(clients)
    rows = Ragged.cut(np.arange(clients * samples), np.full(clients, samples))
    train, vals, _ = draw_splits(rows, labels, names, test=0, val=val, seed=seed)
    # The test split represents D_k as counts of symbols, with a sum of 4 * symbols:
    # U gives each symbol 1, and the two point masses have 2 * symbols and symbols.
    counts = np.ones((clients, symbols), np.int64)
    np.add.at(counts, (client, cluster), 2 * symbols)
    np.add.at(counts, (client, personal), symbols)
    # The test rows, one per symbol, follow the samples. All clients share them.
    alphabet = clients * samples + np.arange(symbols)
    tests = np.repeat(np.tile(alphabet, clients), counts.reshape(-1))
    y = np.concatenate([labels, np.arange(symbols)])
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
