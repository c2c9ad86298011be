"""Cox's model for times to an event: of each client alone and stratified by client from
sums, which can be handed over, and of all pooled.

Each has the penalty that scikit-survival calls alpha = 1, without which clients of few
events have no optimum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from fedtailor.lab.baselines.baseline import Baseline, KeptModels, Problem
from fedtailor.lab.baselines.linear_models import kept_linear
from fedtailor.models import Model
from fedtailor.models.survival import CoxHazards
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


class KeptCox(CoxBaseline):
    """Base of both that need no pooled rows: their models can be handed over."""

    keeps_models: ClassVar[bool] = True
    needs_pooled_data: ClassVar[bool] = False

    def keep(self, fitted: "CoxModels", model: Model) -> KeptModels:
        newcomers = [] if fitted.newcomer is None else [fitted.newcomer]
        every, count = [*fitted.models, *newcomers], len(fitted.models)
        if not isinstance(model.task, DiscreteTime):
            risks = [(it.coefficients[:, None], np.zeros(1)) for it in every]
            shared = risks[count] if newcomers else None
            return kept_linear(risks[:count], shared, model, {})
        network = CoxHazards().bind(model.input_shape, model.outputs, model.loss)
        vectors = [_vector(it, network) for it in every]
        shared = vectors[count] if newcomers else None
        return KeptModels(network, vectors[:count], shared, {})

    def with_choices(self, chosen: Sequence[Mapping[str, Any]]) -> "KeptCox":
        return self


class CoxAlone(KeptCox):
    """Cox's model is fitted to each client's own rows."""

    name: ClassVar[str] = "cox-alone"
    title: ClassVar[str] = "Cox regression, alone"
    is_alone: ClassVar[bool] = True
    over_machines: ClassVar[bool] = True
    about: ClassVar[str] = (
        "Each client fits Cox's model, with a ridge penalty of 1 and Efron's ties, to its"
        " own rows. Nothing is sent."
    )

    def fit(self, problem: Problem) -> "CoxModels":
        models = []
        for rows in _rows(problem):
            models.append(_fitted(problem, _coefficients(problem, [rows]), rows))
        return CoxModels(models, None)


class CoxStratified(KeptCox):
    """Coefficients that all clients share, and each client's own baseline hazard: Cox's
    model stratified by client, by Newton's steps on sums.
    """

    name: ClassVar[str] = "cox-stratified"
    title: ClassVar[str] = "Cox regression, from sums"
    about: ClassVar[str] = (
        "Cox's model stratified by client, with a ridge penalty of 1 and Efron's ties:"
        " coefficients that all clients share, from sums over clients of gradients and"
        " second derivatives, and each client's own baseline hazard. A newcomer has the"
        " baseline hazard of all clients' rows."
    )

    def fit(self, problem: Problem) -> "CoxModels":
        clients = _rows(problem)
        shared = _coefficients(problem, clients)
        models = [_fitted(problem, shared, rows) for rows in clients]
        return CoxModels(models, _fitted(problem, shared, _all_rows(problem)))


class CoxPooled(CoxBaseline):
    """Cox's model is fitted to the rows of all clients together."""

    name: ClassVar[str] = "cox-pooled"
    title: ClassVar[str] = "Cox regression, pooled"
    needs_pooled_data: ClassVar[bool] = True

    def fit(self, problem: Problem) -> "CoxModels":
        rows = _all_rows(problem)
        model = _fitted(problem, _coefficients(problem, [rows]), rows)
        return CoxModels([model] * len(problem), model)


@dataclass(frozen=True)
class CoxModel:
    """A fitted model.

    Attributes:
        coefficients: [d] log hazard ratios.
        hazards: [intervals] the hazard that adds up in each for a row of risk 0; None if
            only risks are predicted.
    """

    coefficients: Float64[NDArray, " d"]
    hazards: Float64[NDArray, " intervals"] | None

    def __call__(self, inputs: NDArray[Any]) -> Float64[NDArray, "n outputs"]:
        risks = (inputs @ self.coefficients)[:, None]
        if self.hazards is None:
            return risks
        # The odds of the event in an interval in which so much hazard adds up.
        return np.log(np.expm1(np.minimum(self.hazards * np.exp(risks), 50.0)))


@dataclass(frozen=True)
class CoxModels:
    """Models of clients, which predict.

    Attributes:
        models: those of each client.
        newcomer: that of a client that did not train; None = there is none.
    """

    models: Sequence[CoxModel]
    newcomer: CoxModel | None

    def __call__(self, client: int, x: NDArray[Any]) -> Float64[NDArray, "n outputs"]:
        return self.models[client](x)


def _vector(of: CoxModel, network: Model) -> NDArray[np.float32]:
    """A model as the vector of a network."""
    assert of.hazards is not None
    arrays = {"coefficients": of.coefficients, "log_hazards": np.log(of.hazards)}
    single = {name: values.astype(np.float32) for name, values in arrays.items()}
    return np.asarray(network.vector(single), np.float32)


def _rows(problem: Problem) -> list[CoxRows]:
    return list(zip(problem.x, problem.y, strict=True))


def _all_rows(problem: Problem) -> CoxRows:
    return np.concatenate(problem.x), np.concatenate(problem.y)


def _coefficients(
    problem: Problem, strata: Sequence[CoxRows]
) -> Float64[NDArray, " d"]:
    """Fits a model to strata; without events its coefficients are 0."""
    inputs = problem.x[0].shape[1]
    if not any((y[:, 1] > 0).any() for _, y in strata):
        return np.zeros(inputs)
    sums = [partial(cox_sums, x, y[:, 0], y[:, 1] > 0) for x, y in strata]
    return fit_cox(sums, inputs, RIDGE).coefficients


def _fitted(
    problem: Problem, coefficients: Float64[NDArray, " d"], rows: CoxRows
) -> CoxModel:
    """The model of coefficients, with the baseline hazard of some rows (Breslow 1974)."""
    hazards = None
    if isinstance(problem.task, DiscreteTime):
        hazards = _hazards(coefficients, rows, problem.task.ends)
    return CoxModel(coefficients, hazards)


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
