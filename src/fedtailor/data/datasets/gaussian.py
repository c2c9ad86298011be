"""The two-level Gaussian task of Chen et al. 2022 (sections 2.1 and 4)."""

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
from fedtailor.data.federation.sizes import SizeLaw, Uniform
from fedtailor.data.federation.splits import Unseen, choose_unseen, draw_splits
from fedtailor.protocol import server_rng

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

    x has shape [N, 0] and y has shape [N, 1]. A model is one number, which estimates
    theta_m under squared error. The test split has the two samples theta_m - sigma and
    theta_m + sigma, for which the mean squared error of any estimate is its expected
    squared error.

    Args:
        clients: number of clients; the paper has 20.
        sigma_0: standard deviation between clients (small: homogeneous clients, large:
            heterogeneous clients).
        sigma: standard deviation within a client.
        theta_0: the global parameter.
        sizes: distribution of the clients' numbers of samples N_m, which the paper does
            not specify.
        val: fraction of the samples for validation.
        unseen: clients that never train: a count, a fraction or names.
        seed: random seed of the samples, the splits and the choice of unseen clients.

    Returns:
        A federation with targets of one number and without inputs.

    Raises:
        ValueError: a setting is out of range.
    """
    check_integer(clients, "clients", 1)
    check_memory(clients, 3 * 8, f"{clients} clients")
    for name, value in (("sigma_0", sigma_0), ("sigma", sigma), ("theta_0", theta_0)):
        check_finite(value, name)
    require(
        sigma_0 >= 0 and sigma > 0,
        f"sigma_0 is {sigma_0} and sigma {sigma}; need sigma_0 >= 0 and sigma > 0",
    )
    rng = server_rng(check_seed(seed), "gaussian", 0)
    theta = theta_0 + sigma_0 * rng.normal(size=clients)
    float_counts = np.maximum(np.floor(sizes.draw(clients, rng)), 1)
    total = float_counts.sum()
    check_memory(total, 3 * 8, f"{total:g} samples")
    counts = float_counts.astype(np.int64)
    train_y = np.repeat(theta, counts) + sigma * rng.normal(size=counts.sum())
    # The test rows follow the samples. For an estimate e, the mean of
    # (e - theta + sigma)^2 and (e - theta - sigma)^2 is (e - theta)^2 + sigma^2, the
    # expected squared error.
    test_y = np.stack([theta - sigma, theta + sigma], axis=1).reshape(-1)
    y = np.concatenate([train_y, test_y])[:, None]
    names = numbered_names(clients)
    rows = Ragged.cut(np.arange(len(train_y)), counts)
    train, vals, _ = draw_splits(rows, y, names, test=0, val=val, seed=seed)
    return Federation(
        np.zeros((len(y), 0), np.float32),
        y,
        train,
        vals,
        Ragged.cut(len(train_y) + np.arange(2 * clients), np.full(clients, 2)),
        names,
        unseen=choose_unseen(unseen, names, seed),
        name=f"two-level Gaussian (sigma_0 {sigma_0:g}, sigma {sigma:g})",
    )
