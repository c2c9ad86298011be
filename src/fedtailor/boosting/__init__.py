"""Federated gradient boosting: trees from sums of histograms over clients."""

from fedtailor.boosting.bins import agree_on_bins, bins_of_values
from fedtailor.boosting.boost import (
    BoostedModel,
    BoostingSettings,
    boost,
    boost_alone,
)
from fedtailor.boosting.federated import BoostedFederation, boost_federation
from fedtailor.boosting.file import load_boosted, save_boosted
from fedtailor.boosting.rows import BoostingRequest, BoostingRows
from fedtailor.boosting.tree import Tree

__all__ = [
    "BoostedFederation",
    "BoostedModel",
    "BoostingRequest",
    "BoostingRows",
    "BoostingSettings",
    "Tree",
    "agree_on_bins",
    "bins_of_values",
    "boost",
    "boost_alone",
    "boost_federation",
    "load_boosted",
    "save_boosted",
]
