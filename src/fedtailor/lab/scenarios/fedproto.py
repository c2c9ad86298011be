"""The MNIST experiment of FedProto.

Tan et al. 2022, FedProto: Federated Prototype Learning across Heterogeneous Clients, Table 1.
Settings are those of the released code and its options.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedtailor.algorithms as methods
from fedtailor._base.choice import require
from fedtailor.data.federation import Dataset, Federation, datasets, from_partition
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import cnn_5x5
from fedtailor.protocol import SGD, Algorithm, server_rng

TEST_SHOTS = 40
"""Test images of each class of a client, as in the released code."""


@dataclass(frozen=True)
class WaysAndShots:
    """Every client has some classes ("ways"), and as many training images of each ("shots").

    Both numbers differ from client to client, uniformly: at most `spread` more or fewer
    classes than `ways`, and from 2 on; shots from `shots` - `spread` + 1 to `shots` +
    `spread` - 2. No two clients share an image.
    """

    clients: int
    ways: int
    spread: int
    shots: int

    def __call__(self, data: Dataset, seed: int) -> list[NDArray[np.integer[Any]]]:
        rng = server_rng(seed, "ways and shots", 0)
        test = data.test
        assert test is not None
        low, high = self.shots - self.spread + 1, self.shots + self.spread - 1
        unused = {
            (label, is_test): rng.permutation(
                np.flatnonzero((data.y == label) & (test == is_test))
            )
            for label in range(data.classes or 0)
            for is_test in (False, True)
        }
        parts = []
        for _ in range(self.clients):
            ways = rng.integers(max(2, self.ways - self.spread), self._most_ways(data))
            shots = int(rng.integers(low, max(high, low + 1)))
            part = []
            for label in rng.choice(data.classes or 0, ways, replace=False):
                for is_test, count in ((False, shots), (True, TEST_SHOTS)):
                    rows = unused[label, is_test]
                    require(
                        len(rows) >= count,
                        f"{data.name} has too few images of a class for {self.clients}"
                        " clients; take fewer clients or shots",
                    )
                    part.append(rows[:count])
                    unused[label, is_test] = rows[count:]
            parts.append(np.concatenate(part))
        return parts

    def _most_ways(self, data: Dataset) -> int:
        """The number of classes that no client reaches."""
        return min(data.classes or 0, self.ways + self.spread + 1)


def fedproto_mnist(
    seed: int = 0,
    *,
    clients: int = 20,
    ways: int = 3,
    spread: int = 2,
    shots: int = 100,
    val: float = 0.0,
) -> Federation:
    """Digits over clients with few classes each, and about 100 training images of each.

    A client tests on 40 images of each of its classes, from the published test set.

    Args:
        seed: random seed of the classes, the sizes, the images and the validation split.
        clients: number of clients.
        ways: classes of a client, on average about (the paper's n).
        spread: how many more or fewer a client may have (the paper's "stdev"). The released
            code has at least 2, so that three classes with a spread of 2 are 2 to 5.
        shots: training images of a client's class (the paper's k).
        val: fraction of each client's training images.

    Raises:
        ValueError: the sizes are impossible, or MNIST is missing.
    """
    federation = from_partition(
        datasets.mnist(),
        WaysAndShots(clients, ways, spread, shots),
        test="published",
        val=val,
        name="fedproto-mnist",
        seed=seed,
    )
    # Pixels have mean 0 and deviation 1 over MNIST's training images.
    return replace(federation, shift=0.1307 * 255, scale=1 / (0.3081 * 255))


LOCAL = SGD(lr=0.01, momentum=0.5, epochs=1, batch_size=4, drop_last=True)
HEAD = replace(LOCAL, epochs=10)
SETTINGS: dict[str, Algorithm] = {
    "fedrep": methods.FedRep(sgd=LOCAL, head=HEAD),
}
SCENARIOS = (
    Scenario(
        "fedproto-mnist",
        "MNIST over 20 clients, two to five classes each, 100 images of each class",
        fedproto_mnist,
        cnn_5x5(50, (10, 20)),
        100,
        SETTINGS,
        defaults_with(LOCAL),
        source="Tan et al. 2022, Table 1",
        data="MNIST",
    ),
)
