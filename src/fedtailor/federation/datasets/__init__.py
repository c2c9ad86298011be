"""Data sets: readers of public files, and synthetic tasks.

A reader returns a `Dataset`, which is then partitioned. A synthetic task returns a
`Federation`. Data sets of all modules in this folder are registered; the imports below
are for type checkers and editors.
"""

import sys
from typing import Any

from fedtailor.federation.datasets.cifar10 import cifar10
from fedtailor.federation.datasets.density import density
from fedtailor.federation.datasets.digits import digits
from fedtailor.federation.datasets.download import is_offline, set_offline
from fedtailor.federation.datasets.emnist import emnist
from fedtailor.federation.datasets.femnist import femnist
from fedtailor.federation.datasets.gaussian import gaussian
from fedtailor.federation.datasets.heart_disease import heart_disease
from fedtailor.federation.datasets.mnist import fashion_mnist, mnist, mnist_writers
from fedtailor.federation.datasets.registry import DATASETS, discover, find, register
from fedtailor.federation.datasets.school import school
from fedtailor.federation.datasets.sent140 import sent140
from fedtailor.federation.datasets.spoken_digits import spoken_digits
from fedtailor.federation.datasets.store import MissingData, data_home
from fedtailor.federation.datasets.synthetic import synthetic
from fedtailor.federation.datasets.synthetic_mixture import synthetic_mixture
from fedtailor.federation.datasets.tcga_brca import tcga_brca

discover(sys.modules[__name__])

__all__ = [
    "DATASETS",
    "MissingData",
    "cifar10",
    "data_home",
    "density",
    "digits",
    "emnist",
    "fashion_mnist",
    "femnist",
    "find",
    "gaussian",
    "heart_disease",
    "is_offline",
    "mnist",
    "mnist_writers",
    "register",
    "school",
    "sent140",
    "set_offline",
    "spoken_digits",
    "synthetic",
    "synthetic_mixture",
    "tcga_brca",
]


def __getattr__(name: str) -> Any:
    """A data set of another installed package, `fedtailor.federation.datasets.theirs`."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return find(name)
    except ValueError as error:
        raise AttributeError(str(error)) from None
