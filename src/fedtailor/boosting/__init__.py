"""Federated gradient boosting: trees from sums of histograms over clients."""

from fedtailor.boosting.bins import agree_on_bins, bins_of_values
from fedtailor.boosting.boost import (
    BoostedModel,
    BoostingSettings,
    boost,
    boost_alone,
)
from fedtailor.boosting.rows import BoostingRows, Request
from fedtailor.boosting.tree import Tree

__all__ = [
    "BoostedModel",
    "BoostingRows",
    "BoostingSettings",
    "Request",
    "Tree",
    "agree_on_bins",
    "bins_of_values",
    "boost",
    "boost_alone",
]
