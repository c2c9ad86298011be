"""The synthetic mixture of FedEM (Marfoq et al. 2021, appendix I, released code)."""

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.memory import check_memory
from fedtailor.data.datasets.registry import register
from fedtailor.data.federation.checks import (
    check_finite,
    check_integer,
    check_seed,
)
from fedtailor.data.federation.dataset import numbered_names
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.data.federation.sizes import LogNormal, SizeLaw
from fedtailor.data.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import server_rng

_SIZES = LogNormal(4, 2, offset=50)
_MAX_SIZE = 1000
"""The largest number of training samples of a client."""


@register()
def synthetic_mixture(
    *,
    clients: int = 300,
    components: int = 3,
    dimension: int = 150,
    noise: float = 0.1,
    alpha: float = 0.4,
    sizes: SizeLaw = _SIZES,
    test: int = 5000,
    val: float = 0.0,
    unseen: Unseen = 0,
    seed: int = 0,
) -> Federation:
    """Two classes by one of a few linear classifiers that all clients mix, each in
    proportions of its own.

    theta_k ~ U(-1, 1)^d for each component, pi_i ~ Dirichlet(alpha, ..., alpha) for
    each client; for each sample x ~ U(-1, 1)^d, k ~ pi_i and y = 1 where x . theta_k +
    noise * N(0, 1) > 0. Clients differ only in pi_i and in their number of training
    samples, which is drawn from `sizes`, rounded down, and at most 1,000. A client's
    data do not depend on the number of clients.

    Args:
        clients: number of clients.
        components: number of classifiers.
        dimension: d, the number of inputs.
        noise: standard deviation of the noise on x . theta_k.
        alpha: concentration of the proportions (small: a client uses one classifier;
            large: a client uses all classifiers equally).
        sizes: distribution of the clients' numbers of training samples.
        test: number of test samples of each client.
        val: fraction of the training samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: random seed of the samples, the splits and the choice of unseen clients.

    Returns:
        A federation of two classes.

    Raises:
        ValueError: a setting is out of range.
    """
    for name, value in (
        ("clients", clients),
        ("components", components),
        ("dimension", dimension),
        ("test", test),
    ):
        check_integer(value, name, 1)
    check_finite(noise, "noise")
    check_finite(alpha, "alpha")
    require(noise >= 0, f"noise is {noise}; it must be 0 or more")
    require(alpha > 0, f"alpha is {alpha}; it must be above 0")
    check_memory(
        clients * (test + 2) * (dimension + 1),
        4,
        f"{clients} clients with {test} test samples",
    )
    theta = server_rng(check_seed(seed), "mixture components", 0).uniform(
        -1, 1, (components, dimension)
    )
    xs, ys, counts = [], [], np.zeros(clients, np.int64)
    for client in range(clients):
        # Each client has its own generator, so that its data do not depend on the
        # number of clients. Do not change the order of these draws: it determines the
        # data of a seed.
        rng = server_rng(seed, "synthetic mixture", client)
        counts[client] = np.clip(np.floor(sizes.draw(1, rng)[0]), 2, _MAX_SIZE)
        weights = rng.dirichlet(np.full(components, alpha))
        total = int(counts[client]) + test
        x = rng.uniform(-1, 1, (total, dimension))
        scores = (x * theta[rng.choice(components, total, p=weights)]).sum(axis=1)
        xs.append(x.astype(np.float32))
        ys.append((scores + noise * rng.normal(size=total) > 0).astype(np.int64))
    x, y = np.concatenate(xs), np.concatenate(ys)
    names = numbered_names(clients)
    # A client's training rows come before its test rows.
    rows = Ragged.cut(np.arange(len(y)), counts + test)
    is_test = rows.positions >= counts[rows.owners]
    train, vals, _ = draw_splits(
        rows.where(~is_test), y, names, test=0, val=val, seed=seed
    )
    return Federation(
        x,
        y,
        train,
        vals,
        rows.where(is_test),
        names,
        unseen=choose_unseen(unseen, names, seed),
        classes=2,
        name=f"synthetic mixture ({components} components)",
    )
