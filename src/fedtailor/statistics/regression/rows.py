"""`RegressionRows`: one client's part of a regression, which answers requests by vectors
that are added up over clients.

Nothing but the sum over clients is used of any answer, so that secure sums apply. In a
simulation the answers are added in one process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtailor._base.choice import require
from fedtailor.statistics.grid import (
    sums_of_rows,
    total_of,
)
from fedtailor.statistics.regression.sums import (
    ClientRows,
    Model,
    Sums,
    best_intercept,
    sums_of,
    terms_of,
)

_TOO_LARGE: Any = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}
"""What is asked may be made to be too large; it is cut, row by row."""

Kind = Literal["kept", "start", "spread", "begin", "step", "clusters"]


@dataclass(frozen=True)
class RegressionRequest:
    """What the server asks of all clients.

    Attributes:
        kind: what to do:

            kept      how many clients have rows that say something, or none such
            start     how many rows there are; sums of targets and of inputs
            spread    absolute deviations from the means `arrays["shift"]` of the inputs
                      and `arrays["y_shift"]`, to choose units
            begin     take the inputs `arrays["kept"]` and the units `shift`, `scale` and
                      `y_units`, and answer `Sums` at the coefficients `shared`
            step      `Sums` at the coefficients `shared`
            clusters  products of the score at the coefficients that were last asked for
        arrays: what else is sent.
    """

    kind: Kind
    arrays: dict[str, NDArray] = field(default_factory=dict)


Ask = Callable[[RegressionRequest], NDArray[np.float64]]
"""Asks all clients; returns the sum of their answers."""


@dataclass(frozen=True)
class Kept:
    """How many clients have rows that say something about the coefficients.

    Of others no sum has a row: two sums, with and without one of them, would show it.

    Attributes:
        clients: the number of these clients.
        left_out: of others, which have rows.
        missing: rows of all clients that are left out, as a cell is missing.
        varying: of the clients, those whose inputs say something. Beside own intercepts
            the others' rows say how far targets are from them.
    """

    clients: int
    left_out: int
    missing: int
    varying: int

    @staticmethod
    def of(vector: Float[NDArray, " n"]) -> "Kept":
        """Of an answer."""
        return Kept(*np.rint(vector).astype(int).tolist())


@dataclass(frozen=True)
class Totals:
    """Sums over the rows of clients that say something.

    Attributes:
        rows, y, events: rows, sum of targets, events.
        gammas: of counts y, the sum of log(y!).
        x: sums of each input [p].
    """

    rows: float
    y: float
    events: float
    gammas: float
    x: Float[NDArray, " p"]

    @staticmethod
    def of(vector: Float[NDArray, " n"]) -> "Totals":
        """Of an answer."""
        rows, y, events, gammas = vector[:4].tolist()
        return Totals(rows, y, events, gammas, vector[4:])


def sums_from(vector: Float[NDArray, " n"], inputs: int) -> Sums:
    """The `Sums` of an answer about a number of coefficients; with own intercepts, without
    these.
    """
    score, upper = np.split(vector[1:], [inputs])
    return Sums(float(vector[0]), score, from_upper(upper, inputs))


def answer_size(request: RegressionRequest, inputs: int, kept: int) -> int:
    """The length of an answer.

    Args:
        request: what is asked.
        inputs: the number of inputs at the start.
        kept: the number of shared coefficients.
    """
    triangle = kept * (kept + 1) // 2
    return {
        "kept": 4,
        "start": 4 + inputs,
        "spread": inputs + 1,
        "begin": 1 + kept + triangle,
        "step": 1 + kept + triangle,
        "clusters": triangle,
    }[request.kind]


class RegressionRows:
    """The rows of one client, and where Newton's method is with them.

    Args:
        rows: the rows.
        model: which.
        own_intercept: whether the client has an intercept of its own.
        missing: how many rows were left out, as a cell is missing.

    Attributes:
        says_nothing: whether there are rows, and with an own intercept (or baseline
            hazard) these say nothing about the coefficients.
        is_kept: whether the rows say something about the coefficients.
        rows: in the units of steps, once these are known.
    """

    def __init__(
        self, rows: ClientRows, model: Model, *, own_intercept: bool, missing: int = 0
    ) -> None:
        self.rows = rows
        self._model: Model = model
        self._own_intercept = own_intercept and model != "cox"
        self._missing = missing
        has_own = own_intercept or model == "cox"  # a baseline hazard
        self.says_nothing = has_own and _says_nothing(rows, model)
        self.is_kept = len(rows.y) > 0 and not self.says_nothing
        self._inputs = rows.x.shape[1]
        # Coefficients that all share, with a common intercept.
        self._shared = 0
        # At the coefficients that were last asked for.
        self._last: Sums | None = None

    def answer(self, request: RegressionRequest) -> NDArray[np.float64]:
        """This client's part of the sum that a request asks for."""
        if request.kind == "begin":
            self._begin(request)
        if not self.is_kept and request.kind != "kept":
            return np.zeros(answer_size(request, self._inputs, self._shared))
        kind = "step" if request.kind == "begin" else request.kind
        with np.errstate(**_TOO_LARGE):
            return getattr(self, f"_{kind}")(request)

    def words(self, request: RegressionRequest) -> UInt32[NDArray, "n words"]:
        """The answer as whole numbers, in words that are added behind masks.

        A sum over rows does not depend on which rows one client has, so it shows nothing
        of a client that it does not show of all rows together. Beside own intercepts, and
        in Cox's model, answers are no such sums.

        Raises:
            ValueError: of own intercepts and in Cox's model, numbers are not finite.
        """
        is_of_rows = not self._own_intercept and self._model != "cox"
        if self.is_kept and request.kind in ("begin", "step") and is_of_rows:
            if request.kind == "begin":
                self._begin(request)
            shared = request.arrays["shared"]
            with np.errstate(**_TOO_LARGE):
                return sums_of_rows(terms_of(self.rows, self._model, shared).blocks())
        if self.is_kept and request.kind in ("start", "spread"):
            with np.errstate(**_TOO_LARGE):
                return sums_of_rows([self._terms(request)])
        return sums_of_rows([self.answer(request)[np.newaxis]])

    def _kept(self, request: RegressionRequest) -> NDArray[np.float64]:
        x = self.rows.x
        varies = self.is_kept and (not self._own_intercept or bool((x != x[0]).any()))
        return np.array(
            [self.is_kept, self.says_nothing, self._missing, varies], np.float64
        )

    def _start(self, request: RegressionRequest) -> NDArray[np.float64]:
        return self._terms(request).sum(axis=0)

    def _spread(self, request: RegressionRequest) -> NDArray[np.float64]:
        return self._terms(request).sum(axis=0)

    def _terms(self, request: RegressionRequest) -> Float[NDArray, "n m"]:
        """What each row adds to the answer of "start" or "spread"."""
        x, y, given = self.rows.x, self.rows.y, request.arrays
        if request.kind == "spread":
            return np.abs(np.c_[x - given["shift"], y - given["y_shift"]])
        seen = np.zeros(len(y)) if self.rows.seen is None else self.rows.seen
        gammas = gammaln(y + 1) if self._model == "poisson" else np.zeros(len(y))
        return np.c_[np.ones(len(y)), y, seen, gammas, x]

    def _begin(self, request: RegressionRequest) -> None:
        """Take the units, before the first step."""
        given = request.arrays
        self._shared = len(given["shared"])
        y_shift, y_scale = given["y_units"]
        with np.errstate(**_TOO_LARGE):
            x = (self.rows.x[:, given["kept"]] - given["shift"]) / given["scale"]
            y = (self.rows.y - y_shift) / y_scale
        self.rows = ClientRows(x, y, self.rows.seen)

    def _step(self, request: RegressionRequest) -> NDArray[np.float64]:
        """The sums at shared coefficients, in one vector.

        An own intercept is the best one beside these. Were it what the server makes it,
        all clients but one could have weights of nearly 0. And no client answers anything
        else, such as nothing, where its numbers are too large: what the others add would
        show what this one does not.

        Raises:
            ValueError: they are not finite.
        """
        shared = request.arrays["shared"]
        if self._own_intercept:
            best = best_intercept(self.rows, self._model, shared)
            coefficients = np.append(best, shared)
            sums = sums_of(self.rows, self._model, coefficients).without_intercept()
        else:
            sums = sums_of(self.rows, self._model, shared)
        upper = to_upper(sums.information)
        vector = np.concatenate([[sums.log_likelihood], sums.score, upper])
        require(bool(np.isfinite(vector).all()), "the inputs are too far apart")
        self._last = sums
        return vector

    def _clusters(self, request: RegressionRequest) -> NDArray[np.float64]:
        assert self._last is not None
        return to_upper(np.outer(self._last.score, self._last.score))


def sum_over(clients: Sequence[RegressionRows], *, on_grid: bool = False) -> Ask:
    """Asks clients of this process one after another.

    Args:
        clients: the clients.
        on_grid: whether answers are the words that are added behind masks, so that their
            sums are exact.
    """

    def ask(request: RegressionRequest) -> NDArray[np.float64]:
        if on_grid:
            return total_of([it.words(request) for it in clients])
        return np.sum([it.answer(request) for it in clients], axis=0)

    return ask


def to_upper(matrix: Float[NDArray, "q q"]) -> NDArray[np.float64]:
    """The upper triangle of a symmetric matrix, row by row."""
    return matrix[np.triu_indices(len(matrix))]


def from_upper(upper: Float[NDArray, " n"], size: int) -> NDArray[np.float64]:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    return matrix + np.triu(matrix, 1).T


def _says_nothing(rows: ClientRows, model: Model) -> bool:
    """Whether rows say nothing about coefficients beside an intercept of their client.

    Outcomes that are all the same are explained by an infinite intercept. Inputs that are
    the same in all rows follow from it; in a linear model such rows say how far targets
    are from it, if there are two. With an intercept for each time of an event, a baseline
    hazard, the rows that count are those at risk at the first event.
    """
    x, y = rows.x, rows.y
    if not len(y):
        return False
    if model == "linear":
        return len(y) == 1
    if model == "cox":
        assert rows.seen is not None
        times = y[rows.seen > 0]
        if not len(times):
            return True
        x = x[y >= times.min()]
    elif y.max() == 0 or (model == "logistic" and y.min() == 1):
        return True
    return bool((x == x[0]).all())
