"""The synthetic(alpha, beta) classification task of FedProx and pFedMe (Li et al. 2020,
section 5.1).
"""

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.memory import check_memory
from fedtailor.data.datasets.registry import register
from fedtailor.data.federation.build import from_arrays
from fedtailor.data.federation.checks import (
    check_finite,
    check_integer,
    check_seed,
)
from fedtailor.data.federation.dataset import numbered_names
from fedtailor.data.federation.federation import Federation
from fedtailor.data.federation.sizes import LogNormal, SizeLaw
from fedtailor.data.federation.splits import Unseen
from fedtailor.protocol import server_rng

_INPUTS, _CLASSES = 60, 10
_FEDPROX = LogNormal(4, 2, offset=50)


@register()
def synthetic(
    alpha: float = 0.5,
    beta: float = 0.5,
    *,
    clients: int = 30,
    sizes: SizeLaw = _FEDPROX,
    test: float = 0.1,
    val: float = 0.0,
    unseen: Unseen = 0,
    seed: int = 0,
) -> Federation:
    """Linear classifiers that differ by client: 60 inputs, 10 classes, y = argmax(W_k x
    + b_k).

    u_k ~ N(0, alpha^2), entries of W_k and b_k ~ N(u_k, 1); B_k ~ N(0, beta^2), entries
    of v_k ~ N(B_k, 1), x ~ N(v_k, diag(j^-1.2)). As in the authors' code, alpha and
    beta are standard deviations (the paper's text suggests variances). A client's data
    do not depend on the number of clients.

    Args:
        alpha: meant to control how much the classifiers differ. As published it has no
            effect: u_k adds the same number to the scores of all classes, which does
            not change their argmax. The classifiers differ by the standard deviation of
            1.
        beta: how much the clients' inputs differ.
        clients: number of clients; FedProx has 30, pFedMe 100.
        sizes: distribution of the clients' sizes; pFedMe's is LogNormal(4, 2,
            offset=50, factor=5).
        test, val: fractions of each client's samples; FedProx and pFedMe test on 0.1.
        unseen: clients that never train: a count, a fraction or names.
        seed: random seed of the samples, the splits and the choice of unseen clients.

    Returns:
        A federation of ten classes.

    Raises:
        ValueError: a setting is out of range.
    """
    check_finite(alpha, "alpha")
    check_finite(beta, "beta")
    require(
        alpha >= 0 and beta >= 0,
        f"alpha is {alpha} and beta {beta}; they must be 0 or more",
    )
    check_integer(clients, "clients", 1)
    check_memory(
        2 * clients * (_INPUTS + 1), 8, f"{clients} clients with 2 samples or more"
    )
    check_seed(seed)
    input_std = np.arange(1, _INPUTS + 1) ** -0.6
    xs, ys, total = [], [], 0.0
    for client in range(clients):
        # Each client has its own generator, so that its data do not depend on the
        # number of clients.
        rng = server_rng(seed, "synthetic", client)
        size = max(np.floor(sizes.draw(1, rng)[0]), 2.0)
        total += size
        check_memory(
            total * (_INPUTS + 1), 8, f"{total:g} samples for {client + 1} clients"
        )
        # Do not change the order of these draws: it determines the data of a seed.
        u = alpha * rng.normal()
        b = beta * rng.normal()
        mean = rng.normal(b, 1, _INPUTS)
        weights = rng.normal(u, 1, (_INPUTS, _CLASSES))
        bias = rng.normal(u, 1, _CLASSES)
        x = rng.normal(mean, input_std, (int(size), _INPUTS))
        xs.append(x.astype(np.float32))
        ys.append(np.argmax(x @ weights + bias, axis=1))
    client_of_row = np.repeat(numbered_names(clients), [len(y) for y in ys])
    return from_arrays(
        np.concatenate(xs),
        np.concatenate(ys),
        client_of_row,
        test=test,
        val=val,
        unseen=unseen,
        classes=_CLASSES,
        name=f"synthetic({alpha:g}, {beta:g})",
        seed=seed,
    )
