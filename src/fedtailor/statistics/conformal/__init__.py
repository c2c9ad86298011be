"""Prediction sets and intervals that hold a stated share of the time (split conformal
prediction), and temperatures, for each client.
"""

from fedtailor.statistics.conformal.calibration import (
    OWN_ROWS,
    Calibration,
    ClientCalibration,
    Threshold,
)
from fedtailor.statistics.conformal.quantiles import (
    BINS,
    conformal_rank,
    covered_share,
    quantile_of_counts,
    quantile_of_scores,
    require_coverage,
    score_counts,
    scores_of_classes,
)
from fedtailor.statistics.conformal.temperature import (
    LEAST_ROWS,
    TEMPERATURE,
    fit_temperature,
)

__all__ = [
    "BINS",
    "LEAST_ROWS",
    "OWN_ROWS",
    "TEMPERATURE",
    "Calibration",
    "ClientCalibration",
    "Threshold",
    "conformal_rank",
    "covered_share",
    "fit_temperature",
    "quantile_of_counts",
    "quantile_of_scores",
    "require_coverage",
    "score_counts",
    "scores_of_classes",
]
