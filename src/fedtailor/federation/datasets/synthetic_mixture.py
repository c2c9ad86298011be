"""The synthetic mixture of FedEM.

Marfoq et al. 2021, appendix I; recipe as in the authors' released code.
"""

import numpy as np

from fedtailor.federation.checks import (
    check_finite,
    check_integer,
    check_memory,
    check_seed,
)
from fedtailor.federation.datasets.registry import register
from fedtailor.federation.federation import Federation, Ragged
from fedtailor.federation.sizes import LogNormal, SizeLaw
from fedtailor.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import require, server_rng

_SIZES = LogNormal(4, 2, offset=50)
_LARGEST = 1000
"""Training samples that a client has at most."""


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
    noise * N(0, 1) > 0. Clients differ in pi_i and in size only: floor of `sizes`, at
    most 1,000. Test samples are drawn beside them. A client's data do not depend on the
    number of clients.

    Args:
        clients: how many.
        components: how many classifiers.
        dimension: d, of the inputs.
        noise: deviation of the noise on x . theta_k.
        alpha: concentration of the proportions (small: a client uses one classifier;
            large: all equally).
        sizes: law of the training samples of clients.
        test: test samples of every client.
        val: fraction of the training samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: of everything.

    Returns:
        A federation of two classes.

    Raises:
        ValueError: impossible settings.
    """
    for what, value in (
        ("clients", clients),
        ("components", components),
        ("dimension", dimension),
        ("test", test),
    ):
        check_integer(value, what, 1)
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
        # A generator of its own for each client: its data must not depend on how many
        # others there are.
        rng = server_rng(seed, "synthetic mixture", client)
        # What a seed gives depends on the order of these draws.
        counts[client] = np.clip(np.floor(sizes.draw(1, rng)[0]), 2, _LARGEST)
        weights = rng.dirichlet(np.full(components, alpha))
        total = int(counts[client]) + test
        x = rng.uniform(-1, 1, (total, dimension))
        scores = (x * theta[rng.choice(components, total, p=weights)]).sum(axis=1)
        xs.append(x.astype(np.float32))
        ys.append((scores + noise * rng.normal(size=total) > 0).astype(np.int64))
    x, y = np.concatenate(xs), np.concatenate(ys)
    digits = len(str(clients - 1))
    names = tuple(f"client-{client:0{digits}d}" for client in range(clients))
    # of each client its training rows come first, then its test rows
    sizes_with_test = counts + test
    rows = Ragged.cut(np.arange(len(y)), sizes_with_test)
    place_in_client = np.arange(len(y)) - np.repeat(rows.offsets[:-1], sizes_with_test)
    is_test = place_in_client >= np.repeat(counts, sizes_with_test)
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
