"""The built-in scenarios: small real data, and the experiments of the papers at their published sizes.

Every scenario's builder is a function of this package too: `scenarios.digits_rotated(seed=0, clients=8)`.
"""

from fedtailor.experiments.scenario import Scenario, known
from fedtailor.experiments.scenarios import digits
from fedtailor.experiments.scenarios.digits import digits_label_shift, digits_permuted, digits_rotated

__all__ = ["SCENARIOS", "digits_label_shift", "digits_permuted", "digits_rotated", "find"]

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (*digits.SCENARIOS,)}
"""Name -> scenario."""


def find(name: str) -> Scenario:
    """A built-in scenario.

    Raises:
        ValueError: there is none of that name.
    """
    known(name, SCENARIOS, "scenario", "fedtailor scenarios")
    return SCENARIOS[name]
