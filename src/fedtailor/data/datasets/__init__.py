"""Data sets: readers of public files, and synthetic tasks.

A reader returns a `Dataset`, which is then partitioned. A synthetic task returns a
`Federation`. Data sets of all modules in this folder are registered; the imports below
are for type checkers and editors.
"""

import sys
from typing import Any

from fedtailor.data.datasets.cifar10 import cifar10
from fedtailor.data.datasets.density import density
from fedtailor.data.datasets.digits import digits
from fedtailor.data.datasets.download import is_offline, set_offline
from fedtailor.data.datasets.emnist import emnist
from fedtailor.data.datasets.femnist import femnist
from fedtailor.data.datasets.gaussian import gaussian
from fedtailor.data.datasets.heart_disease import heart_disease
from fedtailor.data.datasets.mnist import fashion_mnist, mnist, mnist_writers
from fedtailor.data.datasets.registry import DATASETS, discover, find, register
from fedtailor.data.datasets.school import school
from fedtailor.data.datasets.sent140 import sent140
from fedtailor.data.datasets.spoken_digits import spoken_digits
from fedtailor.data.datasets.store import MissingData, data_home
from fedtailor.data.datasets.synthetic import synthetic
from fedtailor.data.datasets.synthetic_mixture import synthetic_mixture
from fedtailor.data.datasets.tcga_brca import tcga_brca

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
    """A data set of another installed package, `fedtailor.data.datasets.theirs`."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return find(name)
    except ValueError as error:
        raise AttributeError(str(error)) from None
