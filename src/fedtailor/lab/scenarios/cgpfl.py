"""The experiments of CGPFL.

Tang et al. 2022, Personalized Federated Learning with Contextualized Generalization,
section 5. The models are the paper's: logistic regression (whose l2 term it does not
print: none here; its other model is `mlp(128)`) and, for CIFAR-10, two convolutions and
two dense layers.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

import fedtailor.algorithms as methods
from fedtailor.data.federation import (
    ClassesPerClient,
    Dataset,
    Federation,
    Uniform,
    datasets,
    from_partition,
)
from fedtailor.lab.scenarios.common import subsample
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import Architecture, cnn, logistic
from fedtailor.protocol import SGD


def three_classes(
    read: Callable[[], Dataset],
    seed: int = 0,
    *,
    clients: int = 40,
    classes: int = 3,
    low: int = 400,
    high: int = 5000,
    points: int | None = None,
    test: float = 0.25,
    val: float = 0.0,
) -> Federation:
    """Images over clients with few classes each and sizes drawn uniformly.

    The published sizes add up to about 108,000 images, more than the data sets have:
    where the clients of a class wish for more than there is, they all get the same
    share of what they wish for.

    Args:
        read: the data set.
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        classes: number of classes of each client.
        low, high: least and greatest size that a client wishes for, images.
        points: images of all clients together, at most; None = all of the data set.
        test, val: fractions of each client's images.

    Raises:
        ValueError: the sizes are impossible, or the data set is missing.
    """
    data = subsample(read(), points, seed)
    partition = ClassesPerClient(clients, classes, Uniform(low, high))
    return from_partition(
        data, partition, test=test, val=val, name=f"cgpfl ({data.name})", seed=seed
    )


def _training(read: Callable[[], Dataset]) -> Dataset:
    """The 60,000 published training images, which the paper deals of MNIST and
    Fashion-MNIST.
    """
    data = read()
    assert data.test is not None
    return data.take(np.flatnonzero(~data.test))


def _scenario(
    name: str,
    data: str,
    read: Callable[[], Dataset],
    model: Architecture,
    rounds: int,
    sgd: SGD,
) -> Scenario:
    return Scenario(
        name,
        f"{data} over 40 clients, three classes each, sizes from 400 to 5,000 (scaled"
        " down)",
        partial(three_classes, read),
        model,
        rounds,
        {"pfedme": methods.PFedMe(sgd=sgd, lam=12.0, outer_lr=sgd.lr)},
        defaults_with(sgd),
        source="Tang et al. 2022, section 5",
        data=data,
    )


LOCAL = SGD(lr=0.005, steps=10, batch_size=20)
"""Ten mini-batches a round; the size of a batch is pFedMe's, as the paper prints none.
"""
SCENARIOS = (
    _scenario(
        "cgpfl-mnist",
        "MNIST",
        partial(_training, datasets.mnist),
        logistic(),
        200,
        LOCAL,
    ),
    _scenario(
        "cgpfl-fashion",
        "Fashion-MNIST",
        partial(_training, datasets.fashion_mnist),
        logistic(),
        200,
        LOCAL,
    ),
    _scenario(
        "cgpfl-cifar", "CIFAR-10", datasets.cifar10, cnn(), 300, replace(LOCAL, lr=0.03)
    ),
)
cgpfl_mnist, cgpfl_fashion, cgpfl_cifar = (scenario.build for scenario in SCENARIOS)
