"""The built-in scenarios on scikit-learn's 1,797 digits.

Small real data, so that comparisons take seconds. All have 20 clients with about 72
training and 18 test images each, split by class. Every column of pixels is centred (by
its mean over all training images) and scaled by 1/2: gradients at a random initial
model then tell groups apart; raw pixels hide the groups behind what all images share.
Scale and local training were chosen on training and validation data of other seeds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import fedtailor.algorithms as methods
from fedtailor._base.choice import require_one_of
from fedtailor.aggregation import ServerOptimizer
from fedtailor.data.federation import (
    BackDoor,
    DirichletByClass,
    Federation,
    LabelPermutations,
    Rotations,
    Stratified,
    WrongLabels,
    datasets,
    from_partition,
    set_aside,
    standardize,
)
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import mlp
from fedtailor.protocol import SGD, Algorithm

SCALE = 0.5

LOCAL = SGD(lr=0.05, momentum=0.9, epochs=5, batch_size=16)
"""Five epochs of five steps per round, for all methods that can use momentum.

(With less local training per round, aggregation pulls all models together, whatever its
weights.)
"""
NO_MOMENTUM = replace(LOCAL, lr=0.1, momentum=0.0)
STEPS = 25


def digits_label_shift(
    seed: int = 0,
    *,
    clients: int = 20,
    alpha: float = 0.4,
    test: float = 0.2,
    val: float = 0.0,
    public: float = 0.0,
) -> Federation:
    """Label shift: each class spread over clients in Dirichlet(alpha) proportions
    (Mestoukirdi et al., section V).

    Args:
        seed: random seed of the partition and the splits.
        clients: number of clients.
        alpha: concentration parameter.
        test, val: fractions of each client's images.
        public: share of all training images that is set aside as a public set without
            labels (`fedtailor.data.federation.set_aside`).

    Raises:
        ValueError: too many clients for the data.
    """
    partition = DirichletByClass(clients, alpha, min_samples=10)
    federation = from_partition(
        datasets.digits(), partition, test=test, val=val, seed=seed
    )
    return _normalize(federation, "digits-label-shift", public, seed)


def digits_rotated(
    seed: int = 0,
    *,
    clients: int = 20,
    test: float = 0.2,
    val: float = 0.0,
    public: float = 0.0,
) -> Federation:
    """Covariate shift: four equal groups of clients see the images turned by 0, 90, 180
    and 270 degrees.

    Args:
        seed: random seed of the partition, the splits and the groups.
        clients: number of clients.
        test, val: fractions of each client's images.
        public: as for `digits_label_shift`.

    Raises:
        ValueError: too many clients for the data.
    """
    even = _even(seed, clients, test, val)
    return _normalize(Rotations()(even, seed=seed), "digits-rotated", public, seed)


def digits_permuted(
    seed: int = 0,
    *,
    clients: int = 20,
    groups: int = 4,
    test: float = 0.2,
    val: float = 0.0,
    public: float = 0.0,
) -> Federation:
    """Concept shift: equal groups of clients permute the labels, each in its own way.

    Args:
        seed: random seed of the partition, the splits, the groups and their
            permutations.
        clients: number of clients.
        groups: number of groups.
        test, val: fractions of each client's images.
        public: as for `digits_label_shift`.

    Raises:
        ValueError: too many clients for the data.
    """
    permute = LabelPermutations(groups)
    even = _even(seed, clients, test, val)
    return _normalize(permute(even, seed=seed), "digits-permuted", public, seed)


Attack = Literal["flip-labels", "random-labels", "back-door", "none"]


def digits_byzantine(
    seed: int = 0,
    *,
    attack: Attack = "flip-labels",
    byzantine: float = 0.2,
    clients: int = 20,
    alpha: float = 1.0,
    test: float = 0.2,
    val: float = 0.0,
) -> Federation:
    """Label shift, and clients that train on poisoned data (their test data stay true).

    Args:
        seed: random seed of the partition, the splits and the choice of Byzantine clients.
        attack: what the Byzantine clients train on (`fedtailor.data.federation.WrongLabels` and
            `BackDoor`). With `--uplink byzantine:...` of the same share the same clients also
            send something else than they train.
        byzantine: share of the clients that are Byzantine.
        clients: number of clients.
        alpha: concentration parameter of Dirichlet's distribution.
        test, val: fractions of each client's images.

    Raises:
        ValueError: too many clients for the data, or an unknown attack.
    """
    honest = digits_label_shift(seed, clients=clients, alpha=alpha, test=test, val=val)
    if attack == "back-door":
        poisoned = BackDoor(byzantine)(honest, seed=seed)
    elif attack == "none":
        poisoned = honest
    else:
        require_one_of(attack, get_args(Attack), "attack")
        labels = "flip" if attack == "flip-labels" else "random"
        poisoned = WrongLabels(byzantine, labels)(honest, seed=seed)
    return replace(poisoned, name="digits-byzantine")


def _even(seed: int, clients: int, test: float, val: float) -> Federation:
    """The digits, divided equally among the clients by class."""
    return from_partition(
        datasets.digits(), Stratified(clients), test=test, val=val, seed=seed
    )


def _normalize(
    federation: Federation, name: str, public: float, seed: int
) -> Federation:
    """The federation with centred pixels, and with a share of its training rows set
    aside.
    """
    normal = replace(standardize(federation), scale=SCALE, name=name)
    return normal if public == 0 else set_aside(normal, public, seed=seed)


SETTINGS: dict[str, Algorithm] = {
    "ucfl": methods.UCFL(sgd=LOCAL, streams="auto", sigma_batch=0.5),
    "ucfl-parallel": methods.UCFLParallel(sgd=LOCAL, streams="auto", sigma_batch=0.5),
    "finetune": methods.FineTune(sgd=LOCAL, tune=replace(NO_MOMENTUM, epochs=1)),
    "fedavgm": methods.FedAvgM(
        sgd=NO_MOMENTUM, optimizer=ServerOptimizer("momentum", lr=0.3, momentum=0.9)
    ),
    "hypcluster": methods.HypCluster(
        sgd=LOCAL, clusters=4, start="farthest", optimizer=ServerOptimizer()
    ),
    "ifca": methods.IFCA(sgd=LOCAL, clusters=4, start="farthest"),
    "dapper": methods.DAPPER(
        sgd=LOCAL,
        tune=replace(NO_MOMENTUM, epochs=1, batch_size=10),
        optimizer=ServerOptimizer(),
    ),
    "mapper": methods.MAPPER(
        sgd=LOCAL,
        fit=replace(NO_MOMENTUM, epochs=2, batch_size=10),
        optimizer=ServerOptimizer(),
    ),
    "afl": methods.AFL(sgd=LOCAL, update="model", lambda_lr=0.01, average=False),
    "fedprox": methods.FedProx(sgd=LOCAL, mu=0.1),
    "scaffold": methods.SCAFFOLD(sgd=NO_MOMENTUM),
    "ditto": methods.Ditto(sgd=LOCAL, lam=0.1),
    "apfl": methods.APFL(sgd=NO_MOMENTUM),
    "per-fedavg": methods.PerFedAvg(sgd=replace(NO_MOMENTUM, steps=STEPS), alpha=0.1),
    "pfedme": methods.PFedMe(
        sgd=replace(NO_MOMENTUM, steps=STEPS), lam=3.0, outer_lr=0.1, beta=1.0
    ),
    "cgpfl": methods.CGPFL(sgd=replace(NO_MOMENTUM, steps=STEPS), lam=3.0, contexts=4),
    "cgpfl-heur": methods.CGPFLHeur(sgd=replace(NO_MOMENTUM, steps=STEPS), lam=3.0),
    "l2gd": methods.L2GD(sgd=replace(NO_MOMENTUM, steps=STEPS), lam=0.3, p=0.3),
    "self-fl": methods.SelfFL(
        sgd=replace(NO_MOMENTUM, steps=STEPS), l_max=2 * STEPS, warm=5
    ),
    "cfl": methods.CFL(sgd=LOCAL, eps1=0.4, eps2=0.8, first_split=10),
    "fedfomo": methods.FedFomo(sgd=NO_MOMENTUM, downloads=5),
    "fedem": methods.FedEM(sgd=NO_MOMENTUM),
    "fedrod": methods.FedRoD(sgd=NO_MOMENTUM),
    "feddbe": methods.FedDBE(sgd=NO_MOMENTUM),
}
"""Recommended settings; other methods use their defaults with `LOCAL`."""


SOURCE = "Mestoukirdi et al. 2022, section V (in small)"


def _scenario(
    name: str, description: str, build: Callable[..., Federation]
) -> Scenario:
    return Scenario(
        name,
        description,
        build,
        mlp(64),
        40,
        SETTINGS,
        defaults_with(LOCAL),
        source=SOURCE,
    )


SCENARIOS = (
    _scenario(
        "digits-label-shift",
        "20 clients, labels in Dirichlet(0.4) proportions",
        digits_label_shift,
    ),
    _scenario(
        "digits-rotated",
        "20 clients in 4 groups that see digits turned by 0, 90, 180, 270 degrees",
        digits_rotated,
    ),
    _scenario(
        "digits-permuted",
        "20 clients in 4 groups, each of which permutes the labels in its own way",
        digits_permuted,
    ),
    _scenario(
        "digits-byzantine",
        "20 clients with different shares of labels; a fifth of them are Byzantine",
        digits_byzantine,
    ),
)
