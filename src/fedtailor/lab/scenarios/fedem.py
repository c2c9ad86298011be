"""The synthetic experiment of FedEM.

Marfoq et al. 2021, Federated Multi-Task Learning under a Mixture of Distributions.
Settings are those of the released code: 200 rounds of one epoch, batches of 128,
momentum 0.9, weight decay 5e-4. Its rates fall to a tenth at rounds 100 and again at
150; here they fall by 1.5 % a round, to a twentieth in the end. The EMNIST experiment
is `emnist-label-shift` with other sizes (experiments/fedem-emnist.toml).
"""

from dataclasses import replace

import fedtailor.algorithms as methods
from fedtailor.data.federation import Federation, datasets
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import logistic
from fedtailor.protocol import SGD, Algorithm


def fedem_synthetic(
    seed: int = 0,
    *,
    clients: int = 300,
    alpha: float = 0.4,
    test: int = 5000,
    val: float = 0.0,
) -> Federation:
    """Two classes by three linear classifiers, which every client mixes in proportions
    of its own.

    Args:
        seed: random seed of the data and the splits.
        clients: number of clients.
        alpha: concentration of the proportions.
        test: test samples of every client.
        val: fraction of each client's training samples.

    Raises:
        ValueError: the sizes are impossible.
    """
    return datasets.synthetic_mixture(
        clients=clients, alpha=alpha, test=test, val=val, seed=seed
    )


LOCAL = SGD(
    lr=0.01, momentum=0.9, weight_decay=5e-4, epochs=1, batch_size=128, lr_decay=0.015
)
SETTINGS: dict[str, Algorithm] = {
    "fedem": methods.FedEM(sgd=replace(LOCAL, lr=0.05), components=3),
    "finetune": methods.FineTune(sgd=LOCAL, tune=replace(LOCAL, lr_decay=0.0)),
}
SCENARIOS = (
    Scenario(
        "fedem-synthetic",
        "300 clients that mix three linear classifiers of 150 inputs in proportions of"
        " their own",
        fedem_synthetic,
        logistic(),
        200,
        SETTINGS,
        defaults_with(LOCAL),
        source="Marfoq et al. 2021, section 4",
    ),
)
