"""Statistical decisions: who gains, which method is best, and warnings."""

from fedtailor.statistics.decision.choice import Choice, choose_by_validation
from fedtailor.statistics.decision.contributions import (
    MOST_EXACT,
    Hurt,
    hurt_clients,
    mean_gains,
    mean_interval,
    sampled_shapley_values,
    shapley_values,
)
from fedtailor.statistics.decision.convergence import movement
from fedtailor.statistics.decision.expected import expected_metrics
from fedtailor.statistics.decision.gains import (
    client_gains,
    hierarchical,
    holm,
    shrink,
)
from fedtailor.statistics.decision.intervals import (
    Interval,
    Splits,
    resampled_interval,
    two_way_interval,
)
from fedtailor.statistics.decision.recommendation import Recommendation, recommend
from fedtailor.statistics.decision.row_scores import (
    SCORES,
    Score,
    metric_interval,
)
from fedtailor.statistics.decision.warnings import (
    warn_few_validation_rows,
    warn_grid_edges,
    warn_not_still,
    warn_repeated_rows,
    warn_small_tests,
    warn_still_falling,
)
from fedtailor.statistics.decision.winner import NO_DIFFERENCE, Winner, best_method

__all__ = [
    "MOST_EXACT",
    "NO_DIFFERENCE",
    "SCORES",
    "Choice",
    "Hurt",
    "Interval",
    "Recommendation",
    "Score",
    "Splits",
    "Winner",
    "best_method",
    "choose_by_validation",
    "client_gains",
    "expected_metrics",
    "hierarchical",
    "holm",
    "hurt_clients",
    "mean_gains",
    "mean_interval",
    "metric_interval",
    "movement",
    "recommend",
    "resampled_interval",
    "sampled_shapley_values",
    "shapley_values",
    "shrink",
    "two_way_interval",
    "warn_few_validation_rows",
    "warn_grid_edges",
    "warn_not_still",
    "warn_repeated_rows",
    "warn_small_tests",
    "warn_still_falling",
]
