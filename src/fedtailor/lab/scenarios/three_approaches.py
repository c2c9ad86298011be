"""The experiments of Mansour et al. 2020, Three Approaches for Personalization.

Section 6, appendix F. The paper's 3,400 writers are those of FEMNIST; here are the
writers that the data directory holds, and MNIST with its own writers. Settings are
those of appendix F.2, which the methods of this paper have by default: 20 clients a
round, learning rate 0.01, batches of 20, two epochs, 1,000 rounds. The participation
shares below are 20 of the seen writers.
"""

import numpy as np

import fedtailor.algorithms as methods
from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer
from fedtailor.data.federation import Federation, Natural, datasets, from_partition
from fedtailor.lab.scenarios.common import sample_clients
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import cnn
from fedtailor.models import density as density_model
from fedtailor.protocol import SGD, Algorithm

LOCAL = SGD(lr=0.01, epochs=2, batch_size=20)


def density(
    seed: int = 0,
    *,
    clients: int = 100,
    samples: int = 100,
    symbols: int = 100,
    val: float = 0.0,
) -> Federation:
    """Density estimation (section 6.1): the share of each symbol on each client; the
    test split is the population.

    Args:
        seed: random seed of the samples.
        clients: number of clients; client k is in group k % 4.
        samples: number of samples of each client (the paper: 10, 100 and 1,000).
        symbols: size of the alphabet.
        val: fraction of the samples for validation.

    Raises:
        ValueError: the sizes are impossible.
    """
    return datasets.density(
        samples, clients=clients, symbols=symbols, val=val, seed=seed
    )


def emnist_writers(
    seed: int = 0,
    *,
    clients: int | None = None,
    unseen: float = 0.26,
    shuffled: bool = False,
    val: float = 0.1,
) -> Federation:
    """Characters by their writers (section 6.2), some of whom never train.

    Args:
        seed: random seed of the validation split and of the unseen writers.
        clients: number of writers, chosen at random; None = all.
        unseen: share of the writers that never train (the paper: 900 of 3,400).
        shuffled: draw the unseen writers at random. Otherwise they are the last by
            name: the high-school students among the writers, f2100 to f2599, then all
            train, and only census employees are unseen.
        val: fraction of each writer's training characters (the paper's eval split,
            whose size it does not print).

    Raises:
        ValueError: the sizes are impossible, or FEMNIST is missing.
    """
    data = sample_clients(datasets.femnist(), clients, seed)
    names = list(Natural().named(data))
    require(
        0 <= unseen < 1,
        f"unseen is {unseen}; it is a share of the writers, from 0 to below 1",
    )
    count = round(unseen * len(names))
    unseen_writers = unseen if shuffled else names[len(names) - count :]
    return from_partition(
        data,
        Natural(),
        test="published",
        val=val,
        unseen=unseen_writers,
        name="emnist-writers",
        seed=seed,
    )


def mnist_writers(
    seed: int = 0,
    *,
    clients: int | None = None,
    unseen: float = 0.26,
    shuffled: bool = False,
    test: float = 0.2,
    val: float = 0.1,
) -> Federation:
    """Digits by their writers: the experiment of section 6.2 on MNIST, whose test set
    has writers of its own.

    Args:
        seed: random seed of the splits and of the unseen writers.
        clients: number of writers, chosen at random; None = all 836.
        unseen: share of the writers that never train, if shuffled.
        shuffled: draw the unseen writers at random. Otherwise the 539 writers of
            MNIST's training set train, and the 297 others, who wrote its test set, are
            unseen.
        test, val: fractions of each writer's digits.

    Raises:
        ValueError: the sizes are impossible, or the files of MNIST or QMNIST are
            missing.
    """
    data = sample_clients(datasets.mnist_writers(), clients, seed)
    assert data.client is not None and data.test is not None
    unseen_writers = unseen if shuffled else np.unique(data.client[data.test]).tolist()
    return from_partition(
        data,
        Natural(),
        test=test,
        val=val,
        unseen=unseen_writers,
        name="mnist-writers",
        seed=seed,
    )


SETTINGS: dict[str, Algorithm] = {
    "finetune": methods.FineTune(
        sgd=LOCAL, optimizer=ServerOptimizer("momentum", lr=1.0, momentum=0.9)
    ),
}
SYMBOLS = SGD(lr=4.0, epochs=4, batch_size=50)
"""SGD for the density task, whose settings the paper does not specify.

The learning rate is large, so the regularization `LAM` is weak.
"""
LAM = 0.1
DENSITY_SETTINGS: dict[str, Algorithm] = {
    "hypcluster": methods.HypCluster(
        sgd=SYMBOLS, clusters=4, start="farthest", optimizer=ServerOptimizer()
    ),
    "ifca": methods.IFCA(sgd=SYMBOLS, clusters=4, start="farthest"),
    "dapper": methods.DAPPER(
        sgd=SYMBOLS,
        tune=SGD(lr=4.0, epochs=60, batch_size=100),
        optimizer=ServerOptimizer(),
    ),
    "mapper": methods.MAPPER(
        sgd=SYMBOLS,
        fit=SGD(lr=4.0, epochs=12, batch_size=50),
        optimizer=ServerOptimizer(),
    ),
    "finetune": methods.FineTune(sgd=SYMBOLS, tune=SYMBOLS),
    "ditto": methods.Ditto(sgd=SYMBOLS, lam=LAM),
    "pfedme": methods.PFedMe(sgd=SYMBOLS, lam=LAM, outer_lr=4.0),
    "cgpfl": methods.CGPFL(sgd=SYMBOLS, lam=LAM),
    "cgpfl-heur": methods.CGPFLHeur(sgd=SYMBOLS, lam=LAM),
    "l2gd": methods.L2GD(sgd=SYMBOLS, lam=LAM, p=0.5),
}

SOURCE = "Mansour et al. 2020, section 6"
SCENARIOS = (
    Scenario(
        "density",
        "100 clients in 4 groups estimate distributions of 100 symbols",
        density,
        density_model(),
        80,
        DENSITY_SETTINGS,
        defaults_with(SYMBOLS),
        source=SOURCE,
    ),
    Scenario(
        "emnist-writers",
        "characters by their writers, of whom 26 % never train",
        emnist_writers,
        cnn(),
        1000,
        SETTINGS,
        defaults_with(LOCAL),
        participation=0.0935,
        source=SOURCE,
        data="FEMNIST",
    ),
    Scenario(
        "mnist-writers",
        "MNIST's digits by their writers; those of its test set never train",
        mnist_writers,
        cnn(),
        1000,
        SETTINGS,
        defaults_with(LOCAL),
        participation=0.0372,
        source=SOURCE,
        data="MNIST, QMNIST",
    ),
)
