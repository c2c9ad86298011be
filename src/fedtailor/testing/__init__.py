"""For authors of methods: checks of properties, and problems with known solutions."""

from fedtailor.testing.conformance import CHECKS, check_algorithm
from fedtailor.testing.problems import (
    classification,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)

__all__ = [
    "CHECKS",
    "check_algorithm",
    "classification",
    "predictors",
    "quadratic_model",
    "quadratics",
    "softmax_model",
    "train",
]
