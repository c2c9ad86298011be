"""Cox's model, fitted by Newton's steps on sums that clients can add up.

With risk sets of single clients, the partial likelihood of all is the sum of theirs: the
model that is stratified by client (Kalbfleisch and Prentice 2002, section 4.4). Each step
needs of a client one number, a gradient and a matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require

Ties = Literal["efron", "breslow"]
"""How events at one time are counted (Efron 1977; Breslow 1974)."""

MAX_STEPS = 50
TOLERANCE = 1e-12
"""The fit ends after a Newton step whose squared length, in the coefficients' errors, is
below this; the step itself leaves an error of the order of its square.
"""

_SINGULAR = 1e-6
"""Information is lost where an eigenvalue is smaller than so much of its value at 0."""


@dataclass(frozen=True)
class CoxSums:
    """The partial likelihood of some rows at some coefficients.

    Attributes:
        log_likelihood: its logarithm.
        gradient: [d].
        information: [d, d] minus its second derivative.
        events: number of events.
    """

    log_likelihood: float
    gradient: Float64[NDArray, " d"]
    information: Float64[NDArray, "d d"]
    events: int

    def __add__(self, other: "CoxSums") -> "CoxSums":
        """The sums of both: their rows are of different strata."""
        return CoxSums(
            self.log_likelihood + other.log_likelihood,
            self.gradient + other.gradient,
            self.information + other.information,
            self.events + other.events,
        )


@dataclass(frozen=True)
class CoxFit:
    """A fitted model.

    Attributes:
        coefficients: [d] log hazard ratios.
        covariance: [d, d] of the coefficients.
        log_likelihood: of the partial likelihood.
        events: number of events.
        steps: Newton steps.
    """

    coefficients: Float64[NDArray, " d"]
    covariance: Float64[NDArray, "d d"]
    log_likelihood: float
    events: int
    steps: int

    @property
    def errors(self) -> Float64[NDArray, " d"]:
        """Standard errors of the coefficients."""
        return np.sqrt(np.diag(self.covariance))


def cox_sums(
    x: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    coefficients: ArrayLike,
    ties: Ties = "efron",
) -> CoxSums:
    """The partial likelihood of rows whose risk sets are among themselves.

    Args:
        x: [n, d] inputs.
        time: [n].
        event: [n] whether the event was seen.
        coefficients: [d].
        ties: see `Ties`.
    """
    inputs, beta = np.asarray(x, np.float64), np.asarray(coefficients, np.float64)
    times, seen = np.asarray(time, np.float64), np.asarray(event).astype(bool)
    require(
        inputs.ndim == 2 and inputs.shape == (len(times), len(beta)),
        f"x has shape {inputs.shape}; it must be rows x coefficients,"
        f" {(len(times), len(beta))}",
    )
    missing = np.isnan(inputs).any(axis=0)
    require(
        not missing.any(),
        f"input {int(missing.argmax())} (the first is 0) has missing values (NaN); leave"
        " these rows out, or fill them in",
    )
    require(not np.isnan(times).any(), "a time is missing (NaN); leave these rows out")
    # The likelihood compares rows of one client, so that only differences of its inputs
    # count; those of inputs far from 0 would lose their digits.
    inputs = inputs - inputs.mean(axis=0) if len(inputs) else inputs
    scores = inputs @ beta
    likelihood = 0.0
    gradient, information = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
    order = np.argsort(-times, kind="stable")
    s0, s1, s2 = 0.0, np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
    largest = -np.inf  # score in the risk set so far, relative to which weights are
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and times[order[end]] == times[order[start]]:
            end += 1
        group = order[start:end]
        largest, before = max(largest, scores[group].max()), largest
        fewer = np.exp(before - largest)
        s0, s1, s2 = s0 * fewer, s1 * fewer, s2 * fewer
        w, rows = np.exp(scores[group] - largest), inputs[group]
        s0 += w.sum()
        s1 = s1 + w @ rows
        s2 = s2 + (rows * w[:, None]).T @ rows
        died = group[seen[group]]
        if len(died):
            w_died, rows_died = np.exp(scores[died] - largest), inputs[died]
            t0, t1 = w_died.sum(), w_died @ rows_died
            t2 = (rows_died * w_died[:, None]).T @ rows_died
            likelihood += scores[died].sum() - len(died) * largest
            gradient = gradient + rows_died.sum(0)
            for rank in range(len(died)):
                part = rank / len(died) if ties == "efron" else 0.0
                r0, r1 = s0 - part * t0, s1 - part * t1
                r2 = s2 - part * t2
                likelihood -= np.log(r0)
                gradient = gradient - r1 / r0
                information = information + r2 / r0 - np.outer(r1, r1) / r0**2
        start = end
    return CoxSums(float(likelihood), gradient, information, int(seen.sum()))


def fit_cox(
    clients: Sequence[Callable[[Float64[NDArray, " d"]], CoxSums]],
    inputs: int,
    ridge: float = 0.0,
) -> CoxFit:
    """Maximise the partial likelihood, stratified by client.

    Args:
        clients: of each client the function from coefficients to its sums, such as
            `partial(cox_sums, x, time, event)`.
        inputs: number of coefficients, d.
        ridge: penalty: half of it times the sum of the squared coefficients is taken off
            the logarithm of the likelihood.

    Raises:
        ValueError: there are no events, an input is constant within every client, inputs
            determine each other, or the likelihood has no maximum: some combination of
            inputs separates who has the event first.
    """
    require(ridge >= 0, f"ridge is {ridge}; it must be 0 or more")

    def penalised(beta: Float64[NDArray, " d"]) -> CoxSums:
        sums = reduce(add, (client(beta) for client in clients))
        return sums + CoxSums(
            -ridge / 2 * float(beta @ beta), -ridge * beta, ridge * np.eye(inputs), 0
        )

    beta = np.zeros(inputs)
    sums = penalised(beta)
    least = _SINGULAR * np.linalg.eigvalsh(sums.information)
    require(sums.events > 0, "there is no event; nothing can be estimated")
    _require_information(sums)
    for step in range(1, MAX_STEPS + 1):
        direction = _solve(sums)
        size = 1.0
        while True:
            candidate = beta + size * direction
            tried = penalised(candidate)
            if tried.log_likelihood >= sums.log_likelihood - 1e-9 or size < 1e-6:
                break
            size /= 2
        change = float(direction @ sums.information @ direction)
        beta, sums = candidate, tried
        # Where the likelihood has no maximum, it becomes flat along a way to infinity.
        if (np.linalg.eigvalsh(sums.information) < least).any():
            break
        if change < TOLERANCE:
            covariance = np.linalg.inv(sums.information)
            return CoxFit(beta, covariance, sums.log_likelihood, sums.events, step)
    raise ValueError(
        "the likelihood has no maximum: some inputs separate who has the event first;"
        " leave out inputs, or add a penalty"
    )


def _require_information(sums: CoxSums) -> None:
    """Refuse inputs that the rows say nothing about, whoever has the event first.

    Args:
        sums: where all coefficients are 0; with a penalty, its own is in them.

    Raises:
        ValueError: an input is constant, or inputs determine each other.
    """
    own, slope = np.diag(sums.information), sums.gradient
    # Of a constant both are rounding errors; of an input in a large unit only the first
    # is small.
    is_flat = (own <= 1e-10 * own.max(initial=0)) & (slope**2 <= 1e-8 * np.abs(own))
    constant = np.flatnonzero((own <= 0) | is_flat)
    require(
        len(constant) == 0,
        f"input {', '.join(map(str, constant))} (the first is 0) is constant within every"
        " client, among those at risk; leave it out",
    )
    lengths = np.sqrt(own)
    values = np.linalg.eigvalsh(sums.information / np.outer(lengths, lengths))
    require(
        bool((values > 1e-10).all()),
        "inputs determine each other; leave some out",
    )


def _solve(sums: CoxSums) -> Float64[NDArray, " d"]:
    try:
        return np.linalg.solve(sums.information, sums.gradient)
    except np.linalg.LinAlgError:
        raise ValueError(
            "inputs are constant or determine each other; leave some out"
        ) from None
