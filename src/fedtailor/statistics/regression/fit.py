"""Fit a regression by Newton's method; each step needs sums over clients only.

Inputs are centred and divided by their mean absolute deviations (sums, too) while steps
are taken, so that neither units nor large means cost digits; results are in the user's
units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.special import logit

from fedtailor._base.choice import check_choice, require
from fedtailor._base.printable import join_names
from fedtailor.aggregation.secure_sums import MIN_CLIENTS
from fedtailor.statistics.regression.result import Regression
from fedtailor.statistics.regression.rows import (
    Ask,
    Kept,
    RegressionRequest,
    RegressionRows,
    Totals,
    from_upper,
    sum_over,
    sums_from,
)
from fedtailor.statistics.regression.sums import (
    MODELS,
    MOST_COUNTED,
    ClientRows,
    Model,
    Sums,
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
_SHORTEST = 1e-9
"""The least part of a step of Newton's method that is tried."""

MOST_QUESTIONS = 120
"""Sums that a fit asks for at most; four to eight are usual."""


@dataclass(frozen=True)
class Fitted:
    """A regression from sums over clients.

    Attributes:
        regression: the regression.
        kept: how many clients and rows are in it.
        compared: the level of each category with which the others are compared.
    """

    regression: Regression
    kept: Kept
    compared: tuple[int, ...] = ()


def fit_regression(
    clients: Sequence[ClientRows],
    names: Sequence[str],
    model: Model,
    *,
    intercept: Intercept = "common",
    errors: Errors = "model",
    on_grid: bool = False,
) -> Regression:
    """Fit a regression to the rows of all clients, by maximum likelihood.

    Args:
        clients: their rows; those without rows count as absent.
        names: of the inputs [p].
        model: "linear", "logistic", "poisson", or "cox", whose baseline hazard is each
            client's own (stratified).
        intercept: of the others: which clients share.
        errors: what standard errors assume.
        on_grid: whether sums are those of machines, whose answers are rounded to whole
            multiples of 2^-60 and then added exactly.

    Raises:
        ValueError: inputs follow from each other, separate the outcomes, or Newton's
            method does not converge.
    """
    check_settings(model, intercept, errors)
    for rows in clients:
        check_targets(rows.y, model)
    intercept = "fixed" if model == "cox" else intercept
    parts = [
        RegressionRows(rows, model, own_intercept=intercept == "fixed")
        for rows in clients
    ]
    begun = _begin(
        sum_over(parts, on_grid=on_grid), names, model, intercept, errors, (), 0
    )
    left_out = tuple(number for number, part in enumerate(parts) if part.says_nothing)
    if intercept == "random":
        kept = [part.rows for part in parts if part.is_kept]
        return _with_random_intercepts(kept, begun)
    return replace(_finish(begun), left_out=left_out)


def fit_from_sums(
    ask: Ask,
    names: Sequence[str],
    model: Model,
    *,
    levels: Sequence[Sequence[int]] = (),
    intercept: Literal["common", "fixed"] = "common",
    least_clients: int = MIN_CLIENTS,
) -> Fitted:
    """Fit a regression of which only sums over clients are known.

    Args:
        ask: asks all clients, each of which has `RegressionRows`.
        names: of the inputs [p].
        model, intercept: see `fit_regression`.
        levels: inputs that are 1 for a level of one category and 0 for the others, by
            category. The most frequent level, the first of several, is not used as an
            input, and neither are levels that no row has.
        least_clients: the least number of clients whose rows say something; of fewer the
            sums would show single ones.

    Raises:
        ValueError: see `fit_regression`.
    """
    intercept = "fixed" if model == "cox" else intercept
    begun = _begin(ask, names, model, intercept, "model", levels, least_clients)
    return Fitted(_finish(begun), begun.kept, begun.compared)


def check_settings(model: str, intercept: str, errors: str) -> None:
    """Check which regression is asked for.

    Raises:
        ValueError: there is no such one.
    """
    check_choice(model, MODELS, "model")
    check_choice(intercept, INTERCEPTS, "intercept")
    check_choice(errors, ERRORS, "errors")
    require(
        intercept != "random" or (model == "linear" and errors == "model"),
        "random intercepts are for the linear model with errors of the model; choose"
        " intercept fixed, or errors CR1, for another",
    )


def check_targets(y: Float[np.ndarray, " n"], model: Model) -> None:
    """Check that the model is for these targets.

    Raises:
        ValueError: it is not.
    """
    if model == "logistic":
        require(bool(np.isin(y, [0, 1]).all()), _TWO_CLASSES)
    elif model == "poisson":
        wrong = y[(y < 0) | (y != np.round(y)) | (y > MOST_COUNTED)]
        example = "" if not len(wrong) else f", not {wrong[0]:g}"
        require(
            not len(wrong),
            "the target of a Poisson regression is a count, 0, 1, 2, ..., up to"
            f" {MOST_COUNTED:,}{example}",
        )


_WRONG_SUMS = (
    "the sums of the clients are not those of any rows, as a variance is not above 0; a"
    " client may send wrong numbers"
)
_TWO_CLASSES = "the target of a logistic regression is 0 or 1, and both occur"


def _check_kept(kept: Kept, least_clients: int, errors: Errors) -> None:
    """Check that there are clients enough."""
    require(
        kept.clients > 0,
        "no client has rows that say anything about the coefficients; do outcomes (or"
        " events) and inputs vary within clients?",
    )
    require(
        kept.varying >= least_clients,
        f"only {kept.varying} clients have complete rows that say something about the"
        f" coefficients, and their sums are shown for {least_clients} or more",
    )
    require(
        errors == "model" or kept.clients > 1,
        "standard errors that are robust to dependence within clients need two clients",
    )


def _check_totals(totals: Totals, model: Model) -> None:
    """Check that the rows of all clients together say something."""
    if model == "logistic":
        require(0 < totals.y < totals.rows, _TWO_CLASSES)
    elif model == "poisson":
        require(totals.y > 0, "every count is 0; there is nothing to explain")


@dataclass(frozen=True)
class _Begun:
    """A regression before the first step.

    Attributes:
        ask: asks all clients.
        names: of the inputs that are used.
        units: in which steps are taken.
        shared: coefficients without inputs.
        at_start: the clients' sums there.
        found: the regression, without numbers.
        parameters: how many numbers are estimated, with own intercepts.
        totals: sums of the rows.
        kept, compared: see `Fitted`.
    """

    ask: Ask
    names: tuple[str, ...]
    units: "_Units"
    shared: Float[np.ndarray, " q"]
    at_start: Sums
    found: Regression
    parameters: int
    totals: Totals
    kept: Kept
    compared: tuple[int, ...]


def _begin(
    ask: Ask,
    names: Sequence[str],
    model: Model,
    intercept: Intercept,
    errors: Errors,
    levels: Sequence[Sequence[int]],
    least_clients: int,
) -> _Begun:
    """Choose inputs and units, and ask for the sums without inputs."""
    kept = Kept.of(ask(RegressionRequest("kept")))
    _check_kept(kept, least_clients, errors)
    totals = Totals.of(ask(RegressionRequest("start")))
    _check_totals(totals, model)
    inputs, compared = _chosen_inputs(len(names), levels, totals)
    used = tuple(names[number] for number in inputs)
    rows, clients = round(totals.rows), kept.clients
    units = _Units.of(ask, totals, names, inputs, model)
    parameters = len(used)
    if model != "cox":
        parameters += clients if intercept == "fixed" else 1
    require(
        model != "linear" or rows > parameters,
        f"{rows:,} rows do not determine {parameters:,} coefficients; leave out inputs",
    )
    shared = np.zeros(len(used))
    if intercept != "fixed":
        link = {"linear": lambda mean: 0.0, "logistic": logit, "poisson": np.log}[model]
        shared = np.append(link(totals.y / totals.rows), shared)
    begin = RegressionRequest("begin", arrays=units.arrays(inputs, shared))
    at_start = sums_from(ask(begin), len(shared))
    _require_independent(at_start, used, has_intercept=intercept != "fixed")
    require(_is_positive(at_start), _WRONG_SUMS)
    found = Regression(
        model,
        intercept,
        errors,
        (*(() if intercept == "fixed" else ("intercept",)), *used),
        np.empty(0),
        np.empty((0, 0)),
        np.inf,
        0.0,
        rows,
        clients,
        0,
    )
    return _Begun(
        ask, used, units, shared, at_start, found, parameters, totals, kept, compared
    )


def _chosen_inputs(
    count: int, levels: Sequence[Sequence[int]], totals: Totals
) -> tuple[list[int], tuple[int, ...]]:
    """The inputs that are used, and the levels with which the others are compared."""
    without, compared = set[int](), []
    for group in levels:
        there = [number for number in group if totals.x[number] > 0]
        most = max(there, key=lambda number: totals.x[number], default=group[0])
        compared.append(most)
        # A single level stays, and is named as an input that does not vary.
        without |= set(group) - set(there)
        without |= {most} if len(there) > 1 else set()
    return [number for number in range(count) if number not in without], tuple(compared)


def _finish(begun: _Begun) -> Regression:
    """Take the steps, and compute the errors."""
    model, totals, units = begun.found.model, begun.totals, begun.units
    coefficients, total, steps = _newton(begun)
    require(_is_positive(total), _WRONG_SUMS)
    inverse = np.linalg.inv(total.information)
    freedom, sigma2, covariance = np.inf, None, inverse
    log_likelihood, events = total.log_likelihood, None
    rows, clients, parameters = begun.found.rows, begun.found.clients, begun.parameters
    if model == "linear":
        squares = -2 * total.log_likelihood
        require(
            squares > 1e-20 * rows,
            "the target follows exactly from the inputs; there are no errors to estimate",
        )
        freedom = float(rows - parameters)
        covariance = inverse * squares / freedom
        sigma2 = squares / freedom * units.y_scale**2
        variance = squares / rows * units.y_scale**2
        log_likelihood = -rows / 2 * (np.log(2 * np.pi * variance) + 1)
    elif model == "poisson":
        log_likelihood -= totals.gammas
    elif model == "cox":
        events = round(totals.events)
    if begun.found.errors != "model":
        # The sandwich of clients' scores (Liang and Zeger 1986).
        products = begun.ask(RegressionRequest("clusters"))
        covariance = inverse @ from_upper(products, len(inverse)) @ inverse
        freedom = clients - 1.0
        if begun.found.errors == "CR1":
            covariance *= clients / freedom
            if model != "cox":
                covariance *= (rows - 1) / (rows - parameters)
    return replace(
        units.undo(begun.found, coefficients, covariance),
        freedom=freedom,
        log_likelihood=float(log_likelihood),
        sigma2=sigma2,
        events=events,
        steps=steps,
    )


@dataclass(frozen=True)
class _Units:
    """The units in which steps are taken: means of 0, mean absolute deviations of 1."""

    x_shift: Float[np.ndarray, " p"]
    x_scale: Float[np.ndarray, " p"]
    y_shift: float
    y_scale: float

    @classmethod
    def of(
        cls,
        ask: Ask,
        totals: Totals,
        names: Sequence[str],
        inputs: Sequence[int],
        model: Model,
    ) -> "_Units":
        shift, y_shift = totals.x / totals.rows, totals.y / totals.rows
        arrays = {"shift": shift, "y_shift": np.array([y_shift])}
        spread = ask(RegressionRequest("spread", arrays=arrays)) / totals.rows
        x_shift, x_scale = shift[inputs], spread[inputs]
        lengths = x_scale + np.abs(x_shift)
        constant = np.flatnonzero(x_scale <= 1e-13 * lengths)
        require(
            not len(constant),
            f"{_quoted(names, np.asarray(inputs, int)[constant])} does not vary; leave it"
            " out with drop",
        )
        if model != "linear":
            return cls(x_shift, x_scale, 0.0, 1.0)
        y_scale = float(spread[-1])
        require(y_scale > 0, "the target does not vary")
        return cls(x_shift, x_scale, y_shift, y_scale)

    def arrays(
        self, inputs: Sequence[int], shared: Float[np.ndarray, " q"]
    ) -> dict[str, np.ndarray]:
        """What clients need to begin."""
        return {
            "kept": np.array(inputs, np.int64),
            "shift": self.x_shift,
            "scale": self.x_scale,
            "y_units": np.array([self.y_shift, self.y_scale]),
            "shared": shared,
        }

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


def _is_positive(sums: Sums) -> bool:
    """Whether all variances of combinations of coefficients are above 0."""
    try:
        np.linalg.cholesky(sums.information)
    except np.linalg.LinAlgError:
        return False
    return True


def _newton(begun: _Begun) -> tuple[Float[np.ndarray, " q"], Sums, int]:
    """Take steps until one is far below the standard errors.

    Returns:
        The coefficients, the sums at them, and the number of steps.
    """
    shared, total, asked = begun.shared, begun.at_start, 0
    for number in range(_MAX_STEPS + 1):
        try:
            step = np.linalg.solve(total.information, total.score)
        except np.linalg.LinAlgError:
            break
        if float(total.score @ step) < _TOLERANCE**2:
            return shared, total, number
        length, tried = 1.0, _sums_at(begun, shared + step)
        least = total.log_likelihood - 1e-12 * abs(total.log_likelihood)
        while tried.log_likelihood < least:
            asked += 1
            if length < _SHORTEST or asked + _MAX_STEPS > MOST_QUESTIONS - 5:
                break
            length /= 2
            tried = _sums_at(begun, shared + length * step)
        shared, total = shared + length * step, tried
    _refuse_separated(begun, total)
    raise ValueError(
        f"Newton's method did not converge in {_MAX_STEPS} steps; leave out inputs, or"
        " bring rare categories together"
    )


def _sums_at(begun: _Begun, shared: Float[np.ndarray, " q"]) -> Sums:
    """The sums at shared coefficients."""
    request = RegressionRequest("step", arrays={"shared": shared})
    return sums_from(begun.ask(request), len(shared))


def _require_independent(
    at_start: Sums, names: Sequence[str], *, has_intercept: bool
) -> None:
    """Refuse inputs that follow from those before them (and from who is the client, where
    each has its own intercept).
    """
    sums = at_start.without_intercept() if has_intercept else at_start
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


def _refuse_separated(begun: _Begun, now: Sums) -> None:
    """Refuse inputs along which the likelihood grows without end.

    Each step along them takes a share of the information, down to nothing.
    """
    model, has_intercept = begun.found.model, begun.found.intercept != "fixed"
    if model == "linear" or not np.isfinite(now.information).all():
        return
    from scipy.linalg import eigh  # takes memory that clients do not need

    left, directions = eigh(now.information, begun.at_start.information)
    if left[0] > _SEPARATED:
        return
    shares = np.abs(directions[1:, 0] if has_intercept else directions[:, 0])
    causes = _quoted(begun.names, np.flatnonzero(shares > 0.05 * shares.max(initial=0)))
    what = {
        "logistic": f"{causes} separate the two outcomes",
        "poisson": f"every count is 0 where {causes} have some values",
        "cox": f"{causes} separate who has the event first",
    }[model]
    raise ValueError(
        f"{what}, so that no finite coefficient is the best; leave out inputs with drop,"
        " or bring categories together"
    )


def _with_random_intercepts(clients: Sequence[ClientRows], begun: _Begun) -> Regression:
    """A linear mixed model by restricted maximum likelihood.

    Args:
        clients: their rows, in the units of steps.
        begun: the regression before the first step.
    """
    from fedtailor.statistics.mixed import ClientMoments, fit_mixed_model

    found, units = begun.found, begun.units
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
