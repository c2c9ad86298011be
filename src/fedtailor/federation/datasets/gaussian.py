"""The two-level Gaussian task of Chen et al. 2022.

Section 2.1, eq. 1; section 4, synthetic data.
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
from fedtailor.federation.sizes import SizeLaw, Uniform
from fedtailor.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import require, server_rng

_SIZES = Uniform(10, 100)


@register()
def gaussian(
    *,
    clients: int = 20,
    sigma_0: float = 1.0,
    sigma: float = 1.0,
    theta_0: float = 0.0,
    sizes: SizeLaw = _SIZES,
    val: float = 0.0,
    unseen: Unseen = 0,
    seed: int = 0,
) -> Federation:
    """Scalars: theta_m ~ N(theta_0, sigma_0^2) for each client, y ~ N(theta_m, sigma^2)
    for each of its samples.

    x has shape [N, 0] and y shape [N, 1]: a model of one number, under squared error,
    estimates theta_m. The test split is the pair theta_m - sigma, theta_m + sigma,
    whose mean is theta_m and whose mean squared error of any estimate is the exact
    expected one.

    Args:
        clients: how many; the paper has 20.
        sigma_0: deviation between clients (small: homogeneous, large: heterogeneous).
        sigma: deviation within a client.
        theta_0: the global parameter.
        sizes: law of the clients' sample counts N_m (the paper varies them and does not
            print them).
        val: fraction of the samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: of everything.

    Returns:
        A regression of one number without inputs.

    Raises:
        ValueError: impossible settings.
    """
    check_integer(clients, "clients", 1)
    check_memory(clients, 3 * 8, f"{clients} clients")
    for what, value in (("sigma_0", sigma_0), ("sigma", sigma), ("theta_0", theta_0)):
        check_finite(value, what)
    require(
        sigma_0 >= 0 and sigma > 0,
        f"sigma_0 is {sigma_0} and sigma {sigma}; need sigma_0 >= 0 and sigma > 0",
    )
    rng = server_rng(check_seed(seed), "gaussian", 0)
    theta = theta_0 + sigma_0 * rng.normal(size=clients)
    wanted = np.maximum(np.floor(sizes.draw(clients, rng)), 1)
    check_memory(wanted.sum(), 3 * 8, f"{wanted.sum():g} samples")
    counts = wanted.astype(np.int64)
    drawn = np.repeat(theta, counts) + sigma * rng.normal(size=counts.sum())
    # Each client's test split, behind all samples: the mean of (e - theta + sigma)^2
    # and (e - theta - sigma)^2 is (e - theta)^2 + sigma^2, the expected squared error
    # of an estimate e.
    exact = np.stack([theta - sigma, theta + sigma], axis=1).reshape(-1)
    y = np.concatenate([drawn, exact])[:, None]
    digits = len(str(clients - 1))
    names = tuple(f"client-{client:0{digits}d}" for client in range(clients))
    rows = Ragged.cut(np.arange(len(drawn)), counts)
    train, vals, _ = draw_splits(rows, y, names, test=0, val=val, seed=seed)
    return Federation(
        np.zeros((len(y), 0), np.float32),
        y,
        train,
        vals,
        Ragged.cut(len(drawn) + np.arange(2 * clients), np.full(clients, 2)),
        names,
        unseen=choose_unseen(unseen, names, seed),
        name=f"two-level Gaussian (sigma_0 {sigma_0:g}, sigma {sigma:g})",
    )
