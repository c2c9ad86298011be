"""Fit a regression by Newton's method; each step needs sums over clients only.

Inputs are centred and divided by their standard deviations (sums, too) while steps are
taken, so that neither units nor large means cost digits; results are in the user's units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.special import gammaln, logit

from fedtailor._base.choice import check_choice, require
from fedtailor._base.printable import join_names
from fedtailor.statistics.mixed import ClientMoments, fit_mixed_model
from fedtailor.statistics.regression.result import Regression
from fedtailor.statistics.regression.sums import (
    MODELS,
    ClientRows,
    Model,
    Sums,
    sums_of,
)

Intercept = Literal["common", "fixed", "random"]
"""One intercept; one for each client; or one for each client from a normal distribution."""
INTERCEPTS: tuple[Intercept, ...] = get_args(Intercept)
Errors = Literal["model", "CR0", "CR1"]
"""Standard errors of the model, or robust to any dependence of a client's rows, without
and with the correction for few clients.
"""
ERRORS: tuple[Errors, ...] = get_args(Errors)

_MAX_STEPS = 30
_TOLERANCE = 1e-10
"""Of the last step, in standard errors."""
_COLLINEAR = 1e-11
"""The share of its variance that an input must have in addition to those before it."""
_SEPARATED = 1e-8
"""The share of its information at the start which a coefficient that runs away loses."""


def fit_regression(
    clients: Sequence[ClientRows],
    names: Sequence[str],
    model: Model,
    *,
    intercept: Intercept = "common",
    errors: Errors = "model",
) -> Regression:
    """Fit a regression to the rows of all clients, by maximum likelihood.

    Args:
        clients: their rows; those without rows count as absent.
        names: of the inputs [p].
        model: "linear", "logistic", "poisson", or "cox", whose baseline hazard is each
            client's own (stratified).
        intercept: of the others: which clients share.
        errors: what standard errors assume.

    Raises:
        ValueError: inputs follow from each other, separate the outcomes, or Newton's
            method does not converge.
    """
    check_choice(model, MODELS, "model")
    check_choice(intercept, INTERCEPTS, "intercept")
    check_choice(errors, ERRORS, "errors")
    require(
        intercept != "random" or (model == "linear" and errors == "model"),
        "random intercepts are for the linear model with errors of the model; choose"
        " intercept fixed, or errors CR1, for another",
    )
    _check_targets(clients, model)
    intercept = "fixed" if model == "cox" else intercept
    left_out = tuple(
        number
        for number, rows in enumerate(clients)
        if intercept == "fixed" and _says_nothing(rows, model)
    )
    kept = [
        rows
        for number, rows in enumerate(clients)
        if len(rows.y) and number not in left_out
    ]
    require(bool(kept), "no client has rows that say anything about the coefficients")
    require(
        errors == "model" or len(kept) > 1,
        "standard errors that are robust to dependence within clients need two clients",
    )
    units = _Units.of(kept, names, model)
    problem = _Problem([units.of_client(rows) for rows in kept], model, intercept)
    start, own = problem.start()
    at_start = problem.total(problem.answers(start, own))
    total_rows = sum(len(rows.y) for rows in kept)
    parameters = len(names) + {"common": 1, "random": 1, "fixed": len(kept)}[intercept]
    parameters = len(names) if model == "cox" else parameters
    require(
        model != "linear" or total_rows > parameters,
        f"{total_rows:,} rows do not determine {parameters:,} coefficients; leave out"
        " inputs",
    )
    _require_independent(problem, at_start, names)
    found = Regression(
        model,
        intercept,
        errors,
        (*(() if intercept == "fixed" else ("intercept",)), *names),
        np.empty(0),
        np.empty((0, 0)),
        np.inf,
        0.0,
        total_rows,
        len(kept),
        0,
        left_out=left_out,
    )
    if intercept == "random":
        return _with_random_intercepts(problem.clients, units, found)
    coefficients, answers, steps = _newton(problem, start, own, names, at_start)
    total = problem.total(answers)
    inverse = np.linalg.inv(total.information)
    freedom, sigma2, covariance = np.inf, None, inverse
    log_likelihood, events = total.log_likelihood, None
    if model == "linear":
        squares = -2 * total.log_likelihood
        require(
            squares > 1e-20 * total_rows,
            "the target follows exactly from the inputs; there are no errors to estimate",
        )
        freedom = float(total_rows - parameters)
        covariance = inverse * squares / freedom
        sigma2 = squares / freedom * units.y_scale**2
        variance = squares / total_rows * units.y_scale**2
        log_likelihood = -total_rows / 2 * (np.log(2 * np.pi * variance) + 1)
    elif model == "poisson":
        log_likelihood -= sum(float(gammaln(rows.y + 1).sum()) for rows in kept)
    elif model == "cox":
        events = int(sum(rows.seen.sum() for rows in kept if rows.seen is not None))
    if errors != "model":
        covariance = _cluster_robust(problem, answers, inverse)
        freedom = len(kept) - 1.0
        if errors == "CR1":
            covariance *= len(kept) / freedom
            if model != "cox":
                covariance *= (total_rows - 1) / (total_rows - parameters)
    return replace(
        units.undo(found, coefficients, covariance),
        freedom=freedom,
        log_likelihood=float(log_likelihood),
        sigma2=sigma2,
        events=events,
        steps=steps,
    )


def _check_targets(clients: Sequence[ClientRows], model: Model) -> None:
    """Refuse targets that the model is not for."""
    y = np.concatenate([client.y for client in clients])
    require(bool(len(y)), "there are no rows")
    if model == "logistic":
        require(
            bool(np.isin(y, [0, 1]).all()) and len(np.unique(y)) == 2,
            "the target of a logistic regression is 0 or 1, and both occur",
        )
    elif model == "poisson":
        wrong = y[(y < 0) | (y != np.round(y))]
        example = "" if not len(wrong) else f", not {wrong[0]:g}"
        require(
            not len(wrong),
            f"the target of a Poisson regression is a count, 0, 1, 2, ...{example}",
        )
        require(y.max() > 0, "every count is 0; there is nothing to explain")
    elif model == "cox":
        require(
            any(rows.seen is not None and rows.seen.any() for rows in clients),
            "no event was seen; there is nothing to explain",
        )


def _says_nothing(rows: ClientRows, model: Model) -> bool:
    """Whether a client's own intercept explains its rows entirely, by being infinite."""
    if model not in ("logistic", "poisson") or not len(rows.y):
        return False
    return bool(rows.y.max() == 0 or (model == "logistic" and rows.y.min() == 1))


@dataclass(frozen=True)
class _Units:
    """The units in which steps are taken: means of 0 and deviations of 1."""

    x_shift: Float[np.ndarray, " p"]
    x_scale: Float[np.ndarray, " p"]
    y_shift: float
    y_scale: float

    @classmethod
    def of(
        cls, clients: Sequence[ClientRows], names: Sequence[str], model: Model
    ) -> "_Units":
        rows = sum(len(client.y) for client in clients)
        x_shift = np.sum([client.x.sum(axis=0) for client in clients], axis=0) / rows
        spread = [((client.x - x_shift) ** 2).sum(axis=0) for client in clients]
        x_scale = np.sqrt(np.sum(spread, axis=0) / rows)
        lengths = np.sqrt(x_scale**2 + x_shift**2)
        constant = np.flatnonzero(x_scale <= 1e-13 * lengths)
        require(
            not len(constant),
            f"{_quoted(names, constant)} does not vary; leave it out with drop",
        )
        if model != "linear":
            return cls(x_shift, x_scale, 0.0, 1.0)
        y_shift = sum(float(client.y.sum()) for client in clients) / rows
        squares = sum(float(((client.y - y_shift) ** 2).sum()) for client in clients)
        require(squares > 0, "the target does not vary")
        return cls(x_shift, x_scale, y_shift, float(np.sqrt(squares / rows)))

    def of_client(self, rows: ClientRows) -> ClientRows:
        x = (rows.x - self.x_shift) / self.x_scale
        return ClientRows(x, (rows.y - self.y_shift) / self.y_scale, rows.seen)

    def undo(
        self,
        found: Regression,
        coefficients: Float[np.ndarray, " q"],
        covariance: Float[np.ndarray, "q q"],
    ) -> Regression:
        """The regression with coefficients and a covariance in the user's units."""
        back = np.diag(1 / self.x_scale)
        if found.intercept != "fixed":
            back = np.block(
                [
                    [1.0, -(self.x_shift / self.x_scale)],
                    [np.zeros((len(back), 1)), back],
                ]
            )
        user = self.y_scale * back @ coefficients
        if found.intercept != "fixed":
            user[0] += self.y_shift
        return replace(
            found,
            coefficients=user,
            covariance=self.y_scale**2 * back @ covariance @ back.T,
        )


class _Problem:
    """The clients' rows in units of steps, and how their sums are added up."""

    def __init__(
        self, clients: Sequence[ClientRows], model: Model, intercept: Intercept
    ) -> None:
        self.clients = clients
        self.model: Model = model
        self.fixed = intercept == "fixed" and model != "cox"
        self.has_intercept = intercept != "fixed"

    def start(self) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " k"]]:
        """Coefficients without inputs: shared ones, and each client's own intercept."""
        p = self.clients[0].x.shape[1]
        if self.model == "cox":
            return np.zeros(p), np.zeros(len(self.clients))
        link = {"linear": float, "logistic": logit, "poisson": np.log}[self.model]
        if self.fixed:
            own = [float(link(client.y.mean())) for client in self.clients]
            return np.zeros(p), np.array(own)
        mean = np.concatenate([client.y for client in self.clients]).mean()
        return np.concatenate([[link(mean)], np.zeros(p)]), np.zeros(len(self.clients))

    def answers(
        self, shared: Float[np.ndarray, " q"], own: Float[np.ndarray, " k"]
    ) -> list[Sums]:
        """The sums of each client."""
        return [
            sums_of(
                client,
                self.model,
                np.concatenate([[intercept], shared]) if self.fixed else shared,
            )
            for client, intercept in zip(self.clients, own, strict=True)
        ]

    def total(self, answers: Sequence[Sums]) -> Sums:
        """The sums of all clients, of the shared coefficients."""
        parts = [part.without_intercept() if self.fixed else part for part in answers]
        return sum(parts[1:], parts[0])


def _newton(
    problem: _Problem,
    shared: Float[np.ndarray, " q"],
    own: Float[np.ndarray, " k"],
    names: Sequence[str],
    at_start: Sums,
) -> tuple[Float[np.ndarray, " q"], list[Sums], int]:
    """Take steps until one is far below the standard errors.

    Returns:
        The coefficients, each client's sums at them, and the number of steps.
    """
    answers = problem.answers(shared, own)
    for number in range(_MAX_STEPS + 1):
        total = problem.total(answers)
        try:
            step = np.linalg.solve(total.information, total.score)
        except np.linalg.LinAlgError:
            break
        squared, own_step = float(total.score @ step), np.zeros_like(own)
        if problem.fixed:
            # An intercept follows the others at once, within its client.
            score = np.array([part.score[0] for part in answers])
            row = np.array([part.information[0] for part in answers])
            own_step = (score - row[:, 1:] @ step) / row[:, 0]
            squared += float((score**2 / row[:, 0]).sum())
        if squared < _TOLERANCE**2:
            return shared, answers, number
        length, tried = 1.0, answers
        while length > 1e-9:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                tried = problem.answers(shared + length * step, own + length * own_step)
            reached = sum(part.log_likelihood for part in tried)
            if reached >= total.log_likelihood - 1e-12 * abs(total.log_likelihood):
                break
            length /= 2
        shared, own, answers = shared + length * step, own + length * own_step, tried
    _refuse_separated(problem, at_start, problem.total(answers), names)
    raise ValueError(
        f"Newton's method did not converge in {_MAX_STEPS} steps; leave out inputs, or"
        " bring rare categories together"
    )


def _require_independent(
    problem: _Problem, at_start: Sums, names: Sequence[str]
) -> None:
    """Refuse inputs that follow from those before them (and from who is the client, where
    each has its own intercept).
    """
    sums = at_start.without_intercept() if problem.has_intercept else at_start
    information, kept = sums.information, list[int]()
    largest = np.diag(information).max(initial=0)
    for j in range(len(names)):
        cross = information[kept, j]
        slopes = np.linalg.solve(information[np.ix_(kept, kept)], cross)
        if information[j, j] - cross @ slopes > _COLLINEAR * largest:
            kept.append(j)
            continue
        causes = [kept[i] for i in np.flatnonzero(np.abs(slopes) > 1e-6)]
        reason = f"follows from {_quoted(names, causes)}"
        if not causes:
            reason = "does not vary within clients"
        raise ValueError(f"{names[j]!r} {reason}; leave it out with drop")


def _refuse_separated(
    problem: _Problem, at_start: Sums, now: Sums, names: Sequence[str]
) -> None:
    """Refuse inputs along which the likelihood grows without end.

    Each step along them takes a share of the information, down to nothing.
    """
    left, directions = eigh(now.information, at_start.information)
    if left[0] > _SEPARATED:
        return
    shares = np.abs(directions[1:, 0] if problem.has_intercept else directions[:, 0])
    causes = _quoted(names, np.flatnonzero(shares > 0.05 * shares.max(initial=0)))
    what = {
        "logistic": f"{causes} separate the two outcomes",
        "poisson": f"every count is 0 where {causes} have some values",
        "cox": f"{causes} separate who has the event first",
    }[problem.model]
    raise ValueError(
        f"{what}, so that no finite coefficient is the best; leave out inputs with drop,"
        " or bring categories together"
    )


def _cluster_robust(
    problem: _Problem, answers: Sequence[Sums], inverse: Float[np.ndarray, "q q"]
) -> Float[np.ndarray, "q q"]:
    """The sandwich of clients' scores (Liang and Zeger 1986)."""
    parts = [part.without_intercept() if problem.fixed else part for part in answers]
    scores = np.stack([part.score for part in parts])
    return inverse @ (scores.T @ scores) @ inverse


def _with_random_intercepts(
    clients: Sequence[ClientRows], units: _Units, found: Regression
) -> Regression:
    """A linear mixed model by restricted maximum likelihood."""
    mixed = fit_mixed_model([ClientMoments.of(rows.x, rows.y) for rows in clients])
    # The restricted likelihood is a density of contrasts, and has units.
    freedom = found.rows - len(found.names)
    change = freedom * np.log(units.y_scale) + np.log(units.x_scale).sum()
    return replace(
        units.undo(found, mixed.beta, mixed.beta_covariance),
        log_likelihood=float(mixed.log_likelihood - change),
        sigma2=mixed.sigma2 * units.y_scale**2,
        client_variance=float(mixed.covariance[0, 0]) * units.y_scale**2,
    )


def _quoted(names: Sequence[str], which: Sequence[int] | np.ndarray) -> str:
    return join_names([repr(names[number]) for number in which])
