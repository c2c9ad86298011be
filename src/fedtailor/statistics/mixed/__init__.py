"""Linear mixed models, the classical answer where groups differ at random."""

from fedtailor.statistics.mixed.model import (
    EFFECTS,
    ClientMoments,
    Effects,
    MixedModel,
    fit_mixed_model,
    mixed_model_at,
    with_intercept,
)

__all__ = [
    "EFFECTS",
    "ClientMoments",
    "Effects",
    "MixedModel",
    "fit_mixed_model",
    "mixed_model_at",
    "with_intercept",
]
