"""The built-in scenarios: small real data, published experiments, and your own table.

Scenarios are found in the attribute `SCENARIOS` of all modules of this folder. The
imports below are for type checkers and editors. Their builders are functions of this
package, such as `scenarios.digits_rotated(seed=0, clients=8)`.
"""

from fedtailor._base.entry_points import find_registered, import_modules, load_offered
from fedtailor.lab.scenarios.cgpfl import (
    cgpfl_cifar,
    cgpfl_fashion,
    cgpfl_mnist,
)
from fedtailor.lab.scenarios.digits import (
    digits_byzantine,
    digits_label_shift,
    digits_permuted,
    digits_rotated,
)
from fedtailor.lab.scenarios.fedem import fedem_synthetic
from fedtailor.lab.scenarios.fedproto import fedproto_mnist
from fedtailor.lab.scenarios.fedrep import fedrep_cifar
from fedtailor.lab.scenarios.flamby import flamby_heart, flamby_tcga
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.lab.scenarios.school import school
from fedtailor.lab.scenarios.self_fl import (
    cifar_three_classes,
    femnist_letters,
    gaussian,
    mnist_two_digits,
    sent140,
    sent140_words,
    spoken_wake_word,
)
from fedtailor.lab.scenarios.standard import (
    pfedme_mnist,
    pfedme_synthetic,
    pfllib_cifar,
    pfllib_fashion,
    pfllib_mnist,
)
from fedtailor.lab.scenarios.table import table
from fedtailor.lab.scenarios.three_approaches import (
    density,
    emnist_writers,
    mnist_writers,
)
from fedtailor.lab.scenarios.user_centric import (
    cifar_permuted,
    emnist_label_shift,
    emnist_rotated,
)

ENTRY_POINTS = "fedtailor.scenarios"
"""The group of entry points of other packages' scenarios."""


def _discover() -> dict[str, Scenario]:
    """The scenarios of all modules of this folder, by name."""
    # The scenarios of the digits, which need no files, come first.
    modules = sorted(
        import_modules(__name__),
        key=lambda module: module.__name__ != f"{__name__}.digits",
    )
    return {
        scenario.name: scenario
        for module in modules
        for scenario in getattr(module, "SCENARIOS", ())
    }


SCENARIOS = _discover()
"""The scenarios by name."""

__all__ = [
    "SCENARIOS",
    "cgpfl_cifar",
    "cgpfl_fashion",
    "cgpfl_mnist",
    "cifar_permuted",
    "cifar_three_classes",
    "density",
    "digits_byzantine",
    "digits_label_shift",
    "digits_permuted",
    "digits_rotated",
    "emnist_label_shift",
    "emnist_rotated",
    "emnist_writers",
    "fedem_synthetic",
    "fedproto_mnist",
    "fedrep_cifar",
    "femnist_letters",
    "find",
    "flamby_heart",
    "flamby_tcga",
    "gaussian",
    "mnist_two_digits",
    "mnist_writers",
    "pfedme_mnist",
    "pfedme_synthetic",
    "pfllib_cifar",
    "pfllib_fashion",
    "pfllib_mnist",
    "school",
    "sent140",
    "sent140_words",
    "spoken_wake_word",
    "table",
]


def find(name: str) -> Scenario:
    """Find a built-in scenario, or one of another installed package.

    Raises:
        ValueError: there is no scenario of that name.
    """
    return find_registered(
        SCENARIOS, name, "scenario", ENTRY_POINTS, listed_by="fedtailor scenarios"
    )


def load_installed() -> list[str]:
    """Load the scenarios of all installed packages into `SCENARIOS`.

    Returns:
        What is wrong with those that cannot be loaded, one line each.
    """
    return load_offered(ENTRY_POINTS, find)
