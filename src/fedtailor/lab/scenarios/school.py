"""Exam scores by school: many small clients.

MR-MTL was evaluated on these data under differential privacy.
"""

from fedtailor.data.federation import Federation, Natural, datasets, from_partition
from fedtailor.lab.scenarios.common import sample_clients
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import logistic
from fedtailor.protocol import SGD


def school(
    seed: int = 0, *, clients: int | None = None, test: float = 0.3, val: float = 0.0
) -> Federation:
    """Exam scores of 139 schools with 22 to 251 pupils each, from 27 inputs.

    Args:
        seed: random seed of the splits, and of the choice of schools.
        clients: number of schools, chosen at random; None = all.
        test, val: fractions of each school's pupils.

    Raises:
        ValueError: the fractions are impossible, or the data are missing.
    """
    data = sample_clients(datasets.school(), clients, seed)
    return from_partition(data, Natural(), test=test, val=val, name="school", seed=seed)


SCENARIOS = (
    Scenario(
        "school",
        "exam scores of pupils in 139 schools, a linear regression",
        school,
        logistic(),
        200,
        {},
        defaults_with(SGD(lr=0.01, epochs=1, batch_size=32)),
        source="Liu et al. 2022, section 4",
        data="School",
    ),
)
