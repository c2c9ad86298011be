"""The three experiments of Mestoukirdi et al. 2022, User-Centric Federated Learning.

Section V. All train LeNet-5 by SGD with learning rate 0.1, momentum 0.9 and one local
epoch; batches of 64 and 300 rounds are the released code's. EMNIST is its published
test file of 116,323 characters, from which the paper's points are drawn.
"""

from dataclasses import replace

import numpy as np

import fedtailor.algorithms as methods
from fedtailor._base.choice import require
from fedtailor.data.federation import (
    IID,
    DirichletByClass,
    Federation,
    LabelPermutations,
    Rotations,
    datasets,
    from_partition,
)
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import lenet5
from fedtailor.protocol import SGD, Algorithm

LOCAL = SGD(lr=0.1, momentum=0.9, epochs=1, batch_size=64)
NO_MOMENTUM = replace(LOCAL, momentum=0.0)
"""For methods whose local steps are defined without momentum.

The paper does not print their settings.
"""


def emnist_label_shift(
    seed: int = 0,
    *,
    clients: int = 20,
    points: int = 10_000,
    alpha: float = 0.4,
    test: float = 0.2,
    val: float = 0.0,
) -> Federation:
    """Label shift: characters in 62 classes, each class spread over the clients in
    Dirichlet(alpha) proportions.

    Args:
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        points: characters of all clients together.
        alpha: concentration (small: few classes a client).
        test, val: fractions of each client's characters.

    Raises:
        ValueError: the sizes are impossible, or EMNIST is missing.
    """
    data = datasets.emnist("byclass", "test").sample(points, seed)
    partition = DirichletByClass(clients, alpha, min_samples=5)
    return from_partition(
        data, partition, test=test, val=val, name="emnist-label-shift", seed=seed
    )


def emnist_rotated(
    seed: int = 0,
    *,
    clients: int = 100,
    points: int = 100_000,
    alpha: float = 8.0,
    test: float = 0.2,
    val: float = 0.0,
) -> Federation:
    """Label and covariate shift: four equal groups see the characters turned by 0, 90,
    180 and 270 degrees.

    Args:
        seed: random seed of the points, the partition, the splits and the groups.
        clients: number of clients.
        points: characters of all clients together.
        alpha: concentration (small: few classes a client).
        test, val: fractions of each client's characters.

    Raises:
        ValueError: the sizes are impossible, or EMNIST is missing.
    """
    even = emnist_label_shift(
        seed, clients=clients, points=points, alpha=alpha, test=test, val=val
    )
    return replace(Rotations()(even, seed=seed), name="emnist-rotated")


def cifar_permuted(
    seed: int = 0,
    *,
    clients: int = 20,
    points: int = 50_000,
    groups: int = 4,
    test: int = 1_000,
    val: float = 0.0,
) -> Federation:
    """Concept shift: equal groups name the ten classes of CIFAR-10 by permutations of
    their own.

    The training images are dealt evenly, 2,500 a client; all clients test on the same
    images of the published test set, each under its group's names.

    Args:
        seed: random seed of the points, the partition, the permutations and the split.
        clients: number of clients.
        points: training images of all clients together.
        groups: number of groups, each with a permutation.
        test: number of test images, which are the first ones.
        val: fraction of each client's training images.

    Raises:
        ValueError: the sizes are impossible, or CIFAR-10 is missing.
    """
    data = datasets.cifar10()
    assert data.test is not None
    train, tests = np.flatnonzero(~data.test), np.flatnonzero(data.test)
    for name, size, images in (("points", points, train), ("test", test, tests)):
        require(
            1 <= size <= len(images),
            f"{name} is {size}; CIFAR-10 offers from 1 to {len(images)} images for it",
        )
    data = data.take(np.concatenate([train[:points], tests[:test]]))
    federation = from_partition(data, IID(clients), test="common", val=val, seed=seed)
    permuted = LabelPermutations(groups)(federation, seed=seed)
    return replace(permuted, name="cifar-permuted")


def _settings(streams: int | None, sigma_batch: int | float) -> dict[str, Algorithm]:
    """Published settings, and plain SGD where a method takes no momentum.

    Args:
        streams: those of user-centric aggregation; None = one for each client.
        sigma_batch: samples (or share) of a client in a batch of the variance (section
            V-F).
    """
    return {
        "ucfl": methods.UCFL(sgd=LOCAL, streams=streams, sigma_batch=sigma_batch),
        "ucfl-parallel": methods.UCFLParallel(
            sgd=LOCAL, streams=streams, sigma_batch=sigma_batch
        ),
        "pfedme": methods.PFedMe(
            sgd=SGD(lr=0.01, epochs=1, batch_size=20), lam=15.0, outer_lr=0.01
        ),
        "scaffold": methods.SCAFFOLD(sgd=SGD(lr=0.01, epochs=5, batch_size=64)),
        "per-fedavg": methods.PerFedAvg(sgd=NO_MOMENTUM),
        "apfl": methods.APFL(sgd=NO_MOMENTUM),
        "cgpfl": methods.CGPFL(sgd=NO_MOMENTUM),
        "cgpfl-heur": methods.CGPFLHeur(sgd=NO_MOMENTUM),
    }


SOURCE = "Mestoukirdi et al. 2022, section V"
SCENARIOS = (
    Scenario(
        "emnist-label-shift",
        "10,000 characters over 20 clients, each class in Dirichlet(0.4) proportions",
        emnist_label_shift,
        lenet5(),
        300,
        _settings(None, 100),
        defaults_with(LOCAL),
        source=SOURCE,
        data="EMNIST",
    ),
    Scenario(
        "emnist-rotated",
        "100,000 characters over 100 clients, Dirichlet(8), in 4 groups turned by 0,"
        " 90, 180, 270 degrees",
        emnist_rotated,
        lenet5(),
        300,
        _settings(4, 1 / 3),
        defaults_with(LOCAL),
        source=SOURCE,
        data="EMNIST",
    ),
    Scenario(
        "cifar-permuted",
        "50,000 images over 20 clients in 4 groups that name the classes by other"
        " permutations",
        cifar_permuted,
        lenet5(),
        300,
        _settings(4, 1 / 3),
        defaults_with(LOCAL),
        source=SOURCE,
        data="CIFAR-10",
    ),
)
