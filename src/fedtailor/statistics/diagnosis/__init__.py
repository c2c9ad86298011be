"""Diagnoses a population before training.

A diagnosis is based on one gradient of each client, and on its sample size, label
counts and feature moments.
"""

from fedtailor.aggregation import BestRows, best_rows
from fedtailor.statistics.diagnosis.bounds import (
    agnostic_bound,
    clusters_have_samples,
    contexts_bound,
    dapper_share,
    discrepancy_bias,
    effective_samples,
    estimation_term,
    hypcluster_bound,
    jensen_shannon_bias,
    mapper_bound,
    row_bounds,
    skewness,
    together_minus_alone,
)
from fedtailor.statistics.diagnosis.divergences import (
    InputDifferences,
    LabelDifferences,
    discrepancy_from_mixture,
    discrepancy_from_models,
    input_differences,
    jensen_shannon,
    label_differences,
)
from fedtailor.statistics.diagnosis.gradients import (
    Homogeneity,
    batch_sizes,
    gradient_traces,
    homogeneity,
)
from fedtailor.statistics.diagnosis.recommend import (
    Race,
    RaceEntry,
    are_clear,
    recommend_race,
    starting_point,
    starting_strength,
    streams_of,
)
from fedtailor.statistics.diagnosis.summary import (
    RESTS_ON,
    Diagnosis,
    Evidence,
    diagnose,
)
from fedtailor.statistics.diagnosis.uncertainty import (
    PersonalizationGain,
    local_variance_between,
    personalization_gain,
)

__all__ = [
    "RESTS_ON",
    "BestRows",
    "Diagnosis",
    "Evidence",
    "Homogeneity",
    "InputDifferences",
    "LabelDifferences",
    "PersonalizationGain",
    "Race",
    "RaceEntry",
    "agnostic_bound",
    "are_clear",
    "batch_sizes",
    "best_rows",
    "clusters_have_samples",
    "contexts_bound",
    "dapper_share",
    "diagnose",
    "discrepancy_bias",
    "discrepancy_from_mixture",
    "discrepancy_from_models",
    "effective_samples",
    "estimation_term",
    "gradient_traces",
    "homogeneity",
    "hypcluster_bound",
    "input_differences",
    "jensen_shannon",
    "jensen_shannon_bias",
    "label_differences",
    "local_variance_between",
    "mapper_bound",
    "personalization_gain",
    "recommend_race",
    "row_bounds",
    "skewness",
    "starting_point",
    "starting_strength",
    "streams_of",
    "together_minus_alone",
]
