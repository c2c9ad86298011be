"""Time to an event: concordance, curves and Cox's model, on plain arrays.

Times are numbers of 0 or more; `event` says whether the event was seen at that time, or
the subject was last seen without it (censored).
"""

from fedtailor.models.tasks.times.concordance import (
    Concordance,
    comparisons,
    harrell,
    uno,
)
from fedtailor.models.tasks.times.cox import CoxFit, CoxSums, Ties, cox_sums, fit_cox
from fedtailor.models.tasks.times.curves import (
    LifeTable,
    LogRank,
    brier_scores,
    censoring_curve,
    integrated_brier,
    life_table,
    log_rank,
)

__all__ = [
    "Concordance",
    "CoxFit",
    "CoxSums",
    "LifeTable",
    "LogRank",
    "Ties",
    "brier_scores",
    "censoring_curve",
    "comparisons",
    "cox_sums",
    "fit_cox",
    "harrell",
    "integrated_brier",
    "life_table",
    "log_rank",
    "uno",
]
