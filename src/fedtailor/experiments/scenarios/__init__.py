"""The built-in scenarios: small real data, the papers' experiments at their published sizes, and your own file.

Every scenario's builder is a function of this package too: `scenarios.digits_rotated(seed=0, clients=8)`.
"""

from fedtailor.experiments.scenario import Scenario
from fedtailor.experiments.scenarios import cgpfl, digits, self_fl, standard, three_approaches, user_centric
from fedtailor.experiments.scenarios import table as own
from fedtailor.experiments.scenarios.cgpfl import cgpfl_cifar, cgpfl_fashion, cgpfl_mnist
from fedtailor.experiments.scenarios.digits import digits_label_shift, digits_permuted, digits_rotated
from fedtailor.experiments.scenarios.self_fl import (
    cifar_three_classes,
    femnist_letters,
    gaussian,
    mnist_two_digits,
    sent140,
    sent140_words,
)
from fedtailor.experiments.scenarios.standard import (
    pfedme_mnist,
    pfedme_synthetic,
    pfllib_cifar,
    pfllib_fashion,
    pfllib_mnist,
)
from fedtailor.experiments.scenarios.table import table
from fedtailor.experiments.scenarios.three_approaches import density, emnist_writers, mnist_writers
from fedtailor.experiments.scenarios.user_centric import cifar_permuted, emnist_label_shift, emnist_rotated
from fedtailor.protocol import check_choice

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for module in (digits, user_centric, three_approaches, self_fl, cgpfl, standard, own)
    for scenario in module.SCENARIOS
}
"""Name -> scenario."""

__all__ = [
    "SCENARIOS",
    "cgpfl_cifar",
    "cgpfl_fashion",
    "cgpfl_mnist",
    "cifar_permuted",
    "cifar_three_classes",
    "density",
    "digits_label_shift",
    "digits_permuted",
    "digits_rotated",
    "emnist_label_shift",
    "emnist_rotated",
    "emnist_writers",
    "femnist_letters",
    "find",
    "gaussian",
    "mnist_two_digits",
    "mnist_writers",
    "pfedme_mnist",
    "pfedme_synthetic",
    "pfllib_cifar",
    "pfllib_fashion",
    "pfllib_mnist",
    "sent140",
    "sent140_words",
    "table",
]


def find(name: str) -> Scenario:
    """A built-in scenario.

    Raises:
        ValueError: there is none of that name.
    """
    check_choice(name, SCENARIOS, "scenario", "fedtailor scenarios")
    return SCENARIOS[name]
