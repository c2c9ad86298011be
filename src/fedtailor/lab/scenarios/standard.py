"""The splits of pFedMe and PFLlib, which most papers on personalization use."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Literal

import fedtailor.algorithms as methods
from fedtailor.data.federation import (
    ClassesPerClient,
    Dataset,
    DirichletByClass,
    Federation,
    LogNormal,
    Uniform,
    datasets,
    from_partition,
)
from fedtailor.lab.scenarios.common import PFEDME_SIZES, subsample
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import cnn_5x5, logistic
from fedtailor.protocol import SGD, Algorithm


def pfedme_mnist(
    seed: int = 0,
    *,
    clients: int = 20,
    points: int | None = None,
    test: float = 0.25,
    val: float = 0.0,
) -> Federation:
    """Digits over clients with two classes each, i and i + 1 (modulo 10) for client i;
    sizes are log-normal.

    All images are dealt, in proportion to draws from LogNormal(0, 2) plus 3 (see
    `PFEDME_SIZES`).

    Args:
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        points: images of all clients together; None = all 70,000.
        test, val: fractions of each client's images.

    Raises:
        ValueError: the sizes are impossible, or MNIST is missing.
    """
    data = subsample(datasets.mnist(), points, seed)
    partition = ClassesPerClient(
        clients, 2, PFEDME_SIZES, each_class=True, use_all=True, stride=1
    )
    return from_partition(
        data, partition, test=test, val=val, name="pfedme-mnist", seed=seed
    )


def pfedme_synthetic(
    seed: int = 0,
    *,
    clients: int = 100,
    alpha: float = 0.5,
    beta: float = 0.5,
    test: float = 0.1,
    val: float = 0.0,
) -> Federation:
    """Linear classifiers that differ by client: 60 inputs, 10 classes, at least 250
    samples a client.

    Args:
        seed: random seed of the data and the splits.
        clients: number of clients.
        alpha, beta: how much classifiers and inputs differ (see `datasets.synthetic`).
        test, val: fractions of each client's samples.

    Raises:
        ValueError: the sizes are impossible.
    """
    sizes = LogNormal(4, 2, offset=50, factor=5)
    return datasets.synthetic(
        alpha, beta, clients=clients, sizes=sizes, test=test, val=val, seed=seed
    )


def pfllib(
    read: Callable[[], Dataset],
    seed: int = 0,
    *,
    clients: int = 20,
    split: Literal["pathological", "dirichlet"] = "pathological",
    classes: int = 2,
    alpha: float = 0.1,
    points: int | None = None,
    test: float = 0.25,
    val: float = 0.0,
) -> Federation:
    """All images of a data set, training and test set merged, by one of PFLlib's two
    splits.

    Args:
        read: the data set.
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        split: "pathological": clients share all their classes or none, with shares of a
            class between a tenth and the whole of the largest (PFLlib draws all but the
            last client's like this, and the last gets the rest); "dirichlet": each
            class in Dirichlet(alpha) proportions; a client that already holds its equal
            share gets no further class, and the draw is repeated until every client has
            40 images (with few points, half of an equal share).
        classes: number of classes of each client (pathological).
        alpha: concentration (dirichlet).
        points: images of all clients together; None = all.
        test, val: fractions of each client's images.

    Raises:
        ValueError: the sizes are impossible, or the data set is missing.
    """
    data = subsample(read(), points, seed)
    if split == "pathological":
        partition = ClassesPerClient(
            clients,
            classes,
            Uniform(0.1, 1),
            each_class=True,
            use_all=True,
            stride=classes,
        )
    else:
        min_samples = max(min(40, len(data) // clients // 2), 2)
        partition = DirichletByClass(
            clients, alpha, capped=True, min_samples=min_samples
        )
    return from_partition(
        data,
        partition,
        test=test,
        val=val,
        name=f"pfllib ({data.name}, {split})",
        seed=seed,
    )


def _pfllib_of(name: str, read: Callable[[], Dataset]) -> Callable[..., Federation]:
    """`pfllib` for one data set, with a help text of its own."""

    @wraps(pfllib)
    def build(seed: int = 0, **options: Any) -> Federation:
        return pfllib(read, seed, **options)

    build.__name__ = build.__qualname__ = name.replace("-", "_")
    build.__signature__ = inspect.signature(partial(pfllib, read))  # type: ignore[attr-defined]
    documented = "        read: the data set.\n"
    build.__doc__ = (pfllib.__doc__ or "").replace(documented, "")
    return build


def _pfedme(inner: SGD, lam: float, meta: SGD, alpha: float) -> dict[str, Algorithm]:
    """pFedMe and Per-FedAvg as tuned in the authors' repository."""
    return {
        "pfedme": methods.PFedMe(sgd=inner, lam=lam, outer_lr=0.01, beta=2.0),
        "per-fedavg": methods.PerFedAvg(sgd=meta, alpha=alpha),
    }


PFEDME = SGD(lr=0.02, steps=20, batch_size=20)
"""FedAvg as tuned there: 20 mini-batches a round, for MNIST and for the synthetic task.
"""
PFLLIB = SGD(lr=0.005, epochs=1, batch_size=10)
"""PFLlib's defaults."""

SCENARIOS = (
    Scenario(
        "pfedme-mnist",
        "MNIST over 20 clients, two classes each, sizes log-normal",
        pfedme_mnist,
        logistic(),
        800,
        _pfedme(replace(PFEDME, lr=0.1), 15.0, replace(PFEDME, lr=0.003), 0.03),
        defaults_with(PFEDME),
        participation=0.25,
        source="Dinh et al. 2020, section 5",
        data="MNIST",
    ),
    Scenario(
        "pfedme-synthetic",
        "linear classifiers that differ by client, 100 clients, sizes log-normal",
        pfedme_synthetic,
        logistic(),
        600,
        _pfedme(replace(PFEDME, lr=0.01), 20.0, replace(PFEDME, lr=0.002), 0.02),
        defaults_with(PFEDME),
        participation=0.1,
        source="Dinh et al. 2020, section 5",
    ),
    *(
        Scenario(
            name,
            f"{data} over 20 clients, two classes each or in Dirichlet(0.1)"
            " proportions",
            _pfllib_of(name, read),
            cnn_5x5(hidden=512),
            2000,
            {},
            defaults_with(PFLLIB),
            source="PFLlib, Zhang et al. 2025",
            data=data,
        )
        for name, data, read in (
            ("pfllib-mnist", "MNIST", datasets.mnist),
            ("pfllib-fashion", "Fashion-MNIST", datasets.fashion_mnist),
            ("pfllib-cifar", "CIFAR-10", datasets.cifar10),
        )
    ),
)
pfllib_mnist, pfllib_fashion, pfllib_cifar = (
    scenario.build for scenario in SCENARIOS[2:]
)
