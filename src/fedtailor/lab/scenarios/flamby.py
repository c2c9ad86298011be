"""The small data sets of FLamby (du Terrail et al. 2022), with real hospitals."""

from dataclasses import replace

import numpy as np

from fedtailor.data.federation import Federation, Natural, datasets, from_partition
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import logistic
from fedtailor.models.tasks import CoxPartial
from fedtailor.protocol import SGD


def flamby_heart(seed: int = 0, *, val: float = 0.0) -> Federation:
    """Heart disease or none, of 740 patients in four hospitals, from 13 numbers.

    Training and test rows are FLamby's, whatever the seed.

    Args:
        seed: random seed of the validation rows.
        val: fraction of each hospital's training rows.

    Raises:
        ValueError: the fraction is impossible, or the data are missing.
    """
    data = datasets.heart_disease()
    return from_partition(
        data, Natural(), test="published", val=val, name="flamby-heart", seed=seed
    )


def flamby_tcga(seed: int = 0, *, val: float = 0.0) -> Federation:
    """Time to death of 1,088 patients with breast cancer in six regions, from 39 columns.

    Training and test rows are FLamby's, whatever the seed. Cox's partial likelihood is
    taken within each batch.

    Args:
        seed: random seed of the validation rows.
        val: fraction of each region's training rows.

    Raises:
        ValueError: the fraction is impossible, or the data are missing.
    """
    data = datasets.tcga_brca()
    federation = from_partition(
        data, Natural(), test="published", val=val, name="flamby-tcga", seed=seed
    )
    train = federation.y[federation.train.rows]
    events = np.unique(train[train[:, 1] > 0, 0]).astype(float)
    return replace(federation, loss=CoxPartial(tuple(events.tolist())))


# The published logistic regression has one weight for each input. Here it has one for
# each input and class, and their difference, which alone matters, moves twice as far in
# a step: half of the published rate, 0.001, makes the same steps.
LOCAL = SGD(lr=0.0005, steps=100, batch_size=4)
SCENARIOS = (
    Scenario(
        "flamby-heart",
        "heart disease of 740 patients in four hospitals, a logistic regression",
        flamby_heart,
        logistic(),
        15,
        {},
        defaults_with(LOCAL),
        source="du Terrail et al. 2022, Fed-Heart-Disease",
        data="heart disease",
    ),
    Scenario(
        "flamby-tcga",
        "survival of 1,088 patients in six regions, a linear model of risks",
        flamby_tcga,
        logistic(),
        5,
        {},
        defaults_with(SGD(lr=0.1, steps=100, batch_size=8)),
        source="du Terrail et al. 2022, Fed-TCGA-BRCA",
        data="TCGA-BRCA",
    ),
)
