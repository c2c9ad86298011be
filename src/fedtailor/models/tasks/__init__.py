"""What models are to predict, with one file for each kind: classes, numbers, tokens.

`import_modules` finds every module of this folder. The imports below are for type checkers
and editors.
"""

from fedtailor._base.entry_points import import_modules
from fedtailor.models.tasks.classification import Classification, cross_entropy
from fedtailor.models.tasks.regression import Regression, squared_error
from fedtailor.models.tasks.survival import CoxPartial, DiscreteTime, Survival
from fedtailor.models.tasks.task import (
    LossFunction,
    Task,
    find_loss,
    loss_of,
    plain_loss,
    register,
    registered_losses,
)
from fedtailor.models.tasks.tokens import TokenCrossEntropy, token_cross_entropy

__all__ = [
    "Classification",
    "CoxPartial",
    "DiscreteTime",
    "LossFunction",
    "Regression",
    "Survival",
    "Task",
    "TokenCrossEntropy",
    "cross_entropy",
    "default_loss",
    "find_loss",
    "loss_of",
    "plain_loss",
    "register",
    "registered_losses",
    "squared_error",
    "task_of",
    "token_cross_entropy",
]


def task_of(loss: LossFunction) -> Task:
    """The task of a model's loss: a loss that is not a task is that of a regression."""
    return loss if isinstance(loss, Task) else Regression(loss)


def default_loss(classes: int | None) -> LossFunction:
    """The loss for data of this number of classes; None = their targets are numbers."""
    return squared_error if classes is None else cross_entropy


import_modules(__name__)
