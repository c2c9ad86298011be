"""The CIFAR-10 experiment of FedRep.

Collins et al. 2021, Exploiting Shared Representations, section 5. Settings are those of
the released scripts: 100 rounds in which a tenth of the clients train, learning rate
0.01, momentum 0.5, weight decay 1e-4 and batches of 10. They crop and mirror training
images at random; nothing here does.
"""

from dataclasses import replace

import fedtailor.algorithms as methods
from fedtailor.data.federation import (
    ClassesPerClient,
    Federation,
    datasets,
    from_partition,
)
from fedtailor.lab.scenarios.common import subsample
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import cnn_5x5
from fedtailor.protocol import SGD, Algorithm


def fedrep_cifar(
    seed: int = 0,
    *,
    clients: int = 100,
    classes: int = 2,
    points: int | None = None,
    val: float = 0.0,
) -> Federation:
    """Images over clients with few classes each; the clients of a class share its
    images equally.

    A client tests on those of its images that are of the published test set, a sixth of
    them. (The paper deals training and test images in equal numbers, and may give a
    client the same class twice.)

    Args:
        seed: random seed of the points, the partition and the validation split.
        clients: number of clients.
        classes: number of classes of each client.
        points: images of all clients together; None = all 60,000.
        val: fraction of each client's training images.

    Raises:
        ValueError: the sizes are impossible, or CIFAR-10 is missing.
    """
    data = subsample(datasets.cifar10(), points, seed)
    partition = ClassesPerClient(clients, classes)
    return from_partition(
        data, partition, test="published", val=val, name="fedrep-cifar", seed=seed
    )


LOCAL = SGD(lr=0.01, momentum=0.5, weight_decay=1e-4, epochs=1, batch_size=10)
HEAD = replace(LOCAL, epochs=10)
SETTINGS: dict[str, Algorithm] = {
    "fedrep": methods.FedRep(sgd=LOCAL, head=HEAD),
    "finetune": methods.FineTune(sgd=LOCAL, tune=HEAD),
}
SCENARIOS = (
    Scenario(
        "fedrep-cifar",
        "60,000 images over 100 clients, two classes each, a tenth of them a round",
        fedrep_cifar,
        cnn_5x5((120, 64), (64, 64)),
        100,
        SETTINGS,
        defaults_with(LOCAL),
        participation=0.1,
        source="Collins et al. 2021, section 5",
        data="CIFAR-10",
    ),
)
