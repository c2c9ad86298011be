"""Federated gradient boosting: trees from sums of histograms over clients."""

from fedtailor.statistics.boosting.bins import agree_on_bins, bins_of_values
from fedtailor.statistics.boosting.boost import (
    BoostedModel,
    BoostingProgress,
    BoostingSettings,
    OwnTrees,
    boost,
    boost_alone,
    boost_chosen,
)
from fedtailor.statistics.boosting.federated import BoostedFederation, boost_federation
from fedtailor.statistics.boosting.file import (
    load_boosted,
    load_progress,
    save_boosted,
    save_progress,
)
from fedtailor.statistics.boosting.levels import (
    GroupedRows,
    GroupedTrees,
    boost_groups,
    own_after,
)
from fedtailor.statistics.boosting.network import as_vectors
from fedtailor.statistics.boosting.rows import BoostingRequest, BoostingRows
from fedtailor.statistics.boosting.tree import Tree

__all__ = [
    "BoostedFederation",
    "BoostedModel",
    "BoostingProgress",
    "BoostingRequest",
    "BoostingRows",
    "BoostingSettings",
    "GroupedRows",
    "GroupedTrees",
    "OwnTrees",
    "Tree",
    "agree_on_bins",
    "as_vectors",
    "bins_of_values",
    "boost",
    "boost_alone",
    "boost_chosen",
    "boost_federation",
    "boost_groups",
    "load_boosted",
    "load_progress",
    "own_after",
    "save_boosted",
    "save_progress",
]
