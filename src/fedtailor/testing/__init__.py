"""For authors of methods: what every method must satisfy, and small problems whose
answers are known exactly.
"""

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
