"""Cox's model as a baseline of the methods, for times to an event: of each client alone, of all
pooled, and stratified by client from sums.

Each has the penalty that scikit-survival calls alpha = 1, without which clients of few
events have no optimum.
"""

from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from fedtailor.lab.baselines.baseline import Baseline, Predict, Problem
from fedtailor.models.tasks import DiscreteTime, Survival, Task
from fedtailor.models.tasks.times import cox_sums, fit_cox

RIDGE = 1.0
_LEAST_HAZARD = 1e-7
"""The least cumulative hazard of an interval: the log-odds of none would be infinite."""

CoxRows = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [n, d], and times and events [n, 2]."""


class CoxBaseline(Baseline):
    """Base of the three: fitted to groups of clients, and stratified within them."""

    is_linear: ClassVar[bool] = True

    def applies(self, task: Task) -> bool:
        return isinstance(task, Survival)


class CoxAlone(CoxBaseline):
    """Cox's model is fitted to each client's own rows."""

    name: ClassVar[str] = "cox-alone"
    title: ClassVar[str] = "Cox regression, alone"
    needs_pooled_data: ClassVar[bool] = False

    def fit(self, problem: Problem) -> Predict:
        models = [_FittedCox(problem, [rows], rows) for rows in _rows(problem)]
        return lambda client, inputs: models[client](inputs)


class CoxStratified(CoxBaseline):
    """Coefficients that all clients share, and each client's own baseline hazard: Cox's
    model stratified by client, by Newton's steps on sums.
    """

    name: ClassVar[str] = "cox-stratified"
    title: ClassVar[str] = "Cox regression, from sums"
    needs_pooled_data: ClassVar[bool] = False

    def fit(self, problem: Problem) -> Predict:
        clients = _rows(problem)
        models = [_FittedCox(problem, clients, rows) for rows in clients]
        return lambda client, inputs: models[client](inputs)


class CoxPooled(CoxBaseline):
    """Cox's model is fitted to the rows of all clients together."""

    name: ClassVar[str] = "cox-pooled"
    title: ClassVar[str] = "Cox regression, pooled"
    needs_pooled_data: ClassVar[bool] = True

    def fit(self, problem: Problem) -> Predict:
        rows = np.concatenate(problem.x), np.concatenate(problem.y)
        predict = _FittedCox(problem, [rows], rows)
        return lambda client, inputs: predict(inputs)


def _rows(problem: Problem) -> list[CoxRows]:
    return list(zip(problem.x, problem.y, strict=True))


class _FittedCox:
    """A model that was fitted to strata, with the baseline hazard of one of them.

    Args:
        problem: says what the outputs are.
        strata: the rows of each.
        own: the rows from which the baseline hazard is estimated (Breslow 1974).
    """

    def __init__(self, problem: Problem, strata: list[CoxRows], own: CoxRows) -> None:
        inputs = problem.x[0].shape[1]
        self.coefficients = np.zeros(inputs)
        if any((y[:, 1] > 0).any() for _, y in strata):
            sums = [partial(cox_sums, x, y[:, 0], y[:, 1] > 0) for x, y in strata]
            self.coefficients = fit_cox(sums, inputs, RIDGE).coefficients
        self.hazards = None
        if isinstance(problem.task, DiscreteTime):
            self.hazards = _hazards(self.coefficients, own, problem.task.ends)

    def __call__(self, inputs: NDArray[Any]) -> Float64[NDArray, "n outputs"]:
        risks = (inputs @ self.coefficients)[:, None]
        if self.hazards is None:
            return risks
        # The odds of the event in an interval in which so much hazard adds up.
        return np.log(np.expm1(np.minimum(self.hazards * np.exp(risks), 50.0)))


def _hazards(
    coefficients: Float64[NDArray, " d"], rows: CoxRows, ends: tuple[float, ...]
) -> Float64[NDArray, " intervals"]:
    """The hazard that adds up in each interval for a row of risk 0."""
    x, y = rows
    weights, times, seen = np.exp(x @ coefficients), y[:, 0], y[:, 1] > 0
    order = np.argsort(times, kind="stable")
    at_risk = np.cumsum(weights[order][::-1])[::-1]
    first = np.searchsorted(times[order], times[seen], side="left")
    interval = np.searchsorted(np.asarray(ends), times[seen], side="left")
    hazards = np.bincount(interval, 1 / at_risk[first], minlength=len(ends) + 1)
    return np.maximum(hazards[: len(ends)], _LEAST_HAZARD)
