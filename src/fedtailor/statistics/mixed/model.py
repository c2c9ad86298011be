"""Linear mixed models by restricted maximum likelihood (REML), from sums of clients.

    y_k = X_k beta + Z_k u_k + e_k,    u_k ~ N(0, D),    e_k ~ N(0, sigma^2 I)

X_k has a column of ones and the inputs; Z_k holds those columns of X_k whose
coefficients differ by client. The likelihood depends on a client's rows by X_k'X_k,
X_k'y_k, y_k'y_k and n_k only (`ClientMoments`), so a fit takes the same time for any
number of rows, and nothing else would have to leave a client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from fedtailor._base.choice import check_choice, require

Effects = Literal["intercept", "isotropic", "diagonal", "full"]
"""What differs by client: the intercept only; or the intercept and all slopes, with one
variance for all of them, one for each, or any covariance.
"""
EFFECTS: tuple[Effects, ...] = get_args(Effects)

_TOLERANCE = 1e-9
_MOST_ROUNDING = 1e-2
"""The largest rounding error of a sum of squares, as a share of the errors' own."""


@dataclass(frozen=True)
class ClientMoments:
    """What the likelihood needs of one client.

    Attributes:
        gram: X'X [p, p] of the rows with a leading 1.
        cross: X'y [p].
        square: y'y.
        rows: n. If rows have weights, their sum, and each of the others is a sum of
            weighted terms, as if each row were there that many times.
    """

    gram: Float[np.ndarray, "p p"]
    cross: Float[np.ndarray, " p"]
    square: float
    rows: float

    @classmethod
    def of(
        cls, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None
    ) -> "ClientMoments":
        """The moments of inputs x [n, p - 1] and targets y [n] of rows that count
        `weights` [n] (None = 1 each).
        """
        design = with_intercept(x)
        targets = np.asarray(y, np.float64).reshape(-1)
        if weights is not None:
            weight = np.asarray(weights, np.float64)
            weighted = design * weight[:, None]
            return cls(
                weighted.T @ design,
                weighted.T @ targets,
                float(targets @ (weight * targets)),
                float(weight.sum()),
            )
        return cls(
            design.T @ design,
            design.T @ targets,
            float(targets @ targets),
            len(targets),
        )


@dataclass(frozen=True)
class MixedModel:
    """A fitted mixed model.

    Attributes:
        beta: fixed effects [p], the intercept first.
        beta_covariance: of their estimates [p, p], (X'V^-1 X)^-1 at the estimated V.
        covariance: D [q, q], of the columns `random`.
        sigma2: variance of a row's error.
        random: the columns of X whose coefficients differ by client [q].
        effects: the best linear unbiased predictors of u_k, [clients, q].
        log_likelihood: the restricted log-likelihood at its maximum.
    """

    beta: Float[np.ndarray, " p"]
    beta_covariance: Float[np.ndarray, "p p"]
    covariance: Float[np.ndarray, "q q"]
    sigma2: float
    random: NDArray[np.int64]
    effects: Float[np.ndarray, "clients q"]
    log_likelihood: float

    def coefficients(self, client: int | None = None) -> Float[np.ndarray, " p"]:
        """The coefficients of a client, the intercept first; of a client that the fit
        did not see (None), the fixed effects.
        """
        coefficients = self.beta.copy()
        if client is not None:
            coefficients[self.random] += self.effects[client]
        return coefficients

    def predict(self, x: ArrayLike, client: int | None = None) -> NDArray[np.float64]:
        """Predictions [n] for inputs x [n, p - 1]."""
        return with_intercept(x) @ self.coefficients(client)


def with_intercept(x: ArrayLike) -> Float[np.ndarray, "n p"]:
    """Inputs [n, ...] as rows [n, p] in double precision, with a leading 1."""
    rows = np.asarray(x, np.float64)
    rows = rows.reshape(len(rows), int(np.prod(rows.shape[1:], dtype=int)))
    return np.hstack([np.ones((len(rows), 1)), rows])


def fit_mixed_model(
    moments: Sequence[ClientMoments], effects: Effects = "intercept"
) -> MixedModel:
    """Fit a mixed model by REML.

    Args:
        moments: of each client; a client without rows has zeros, and effects of 0.
        effects: what differs by client.

    Raises:
        ValueError: there is only one client with rows, no client has two, the rows do
            not determine the fixed effects, or the target's mean is so large that sums of
            squares do not show what varies around it.
    """
    check_choice(effects, EFFECTS, "structure of random effects")
    sums = _Sums(moments, effects)
    p, q = sums.grams.shape[1], len(sums.random)
    require(
        sum(client.rows > 0 for client in moments) > 1,
        "a mixed model needs two clients or more with rows",
    )
    require(
        any(client.rows > 1 for client in moments),
        "each client has one row, so that nothing tells what differs by client from the"
        " error of a row; a mixed model needs a client with two rows or more",
    )
    # Of columns of one length, as their units say nothing about the rank.
    total = sums.grams.sum(axis=0)
    lengths = np.sqrt(np.maximum(np.diag(total), np.finfo(float).tiny))
    correlations = total / np.outer(lengths, lengths)
    require(
        sums.rows > p and np.linalg.matrix_rank(correlations, hermitian=True) == p,
        f"{sums.rows:,} rows do not determine {p} fixed effects; leave out inputs that"
        " follow from others",
    )
    # Least squares of all rows: the largest variance that a fit can have.
    _require_precision(mixed_model_at(moments, np.zeros((q, q)), effects), sums)
    # D / sigma^2 is F F' with a lower triangular factor F of these free entries.
    rows, columns = np.tril_indices(q) if effects == "full" else np.diag_indices(q)
    shares_one = effects in ("intercept", "isotropic")

    def factor(entries: NDArray[np.float64]) -> NDArray[np.float64]:
        half = np.zeros((q, q))
        half[rows, columns] = entries
        return half

    def deviance(entries: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        profile = _profile(factor(entries), sums)
        slope = profile.slope[rows, columns]
        return profile.deviance, np.atleast_1d(slope.sum() if shares_one else slope)

    # F = 0 is a stationary point. Start where a client's effects are as uncertain by
    # its own rows as they are before them.
    scale = max(np.sqrt(sums.rows / len(moments)), 1.0)
    start = np.where(rows == columns, 1 / scale, 0.0)
    found = minimize(
        deviance,
        start[:1] if shares_one else start,
        jac=True,
        method="BFGS",
        options={"gtol": _TOLERANCE * sums.rows, "maxiter": 1000},
    )
    half = factor(found.x)
    fitted = mixed_model_at(moments, half @ half.T, effects)
    _require_precision(fitted, sums)
    return fitted


def mixed_model_at(
    moments: Sequence[ClientMoments],
    relative: Float[np.ndarray, "q q"],
    effects: Effects,
) -> MixedModel:
    """The generalised least squares estimate and the BLUPs for a given D / sigma^2.

    Args:
        moments: of each client.
        relative: D / sigma^2.
        effects: what differs by client.
    """
    sums = _Sums(moments, effects)
    values, vectors = np.linalg.eigh(relative)
    half = vectors * np.sqrt(np.maximum(values, 0))
    profile = _profile(half, sums)
    # u_k = D Z'V^-1 (y - X beta)
    blups = profile.score @ relative
    return MixedModel(
        profile.beta,
        profile.inverse * profile.sigma2,
        relative * profile.sigma2,
        profile.sigma2,
        sums.random,
        blups,
        -profile.deviance / 2,
    )


def _require_precision(model: MixedModel, sums: "_Sums") -> None:
    """Refuse sums of squares whose rounding error is not far below what varies.

    Raises:
        ValueError: it is not.
    """
    rounding = sums.rows * np.finfo(float).eps * float(sums.square)
    require(
        bool(rounding < _MOST_ROUNDING * model.sigma2 * sums.rows),
        "the target is so large compared with what varies in it that its sums of squares round"
        " this away; subtract its mean from it, or another number that is near",
    )


class _Sums:
    """The moments of all clients, stacked, and the columns with random effects."""

    def __init__(self, moments: Sequence[ClientMoments], effects: Effects) -> None:
        self.grams = np.stack([client.gram for client in moments])  # [k, p, p]
        self.crosses = np.stack([client.cross for client in moments])  # [k, p]
        self.square = sum(client.square for client in moments)
        self.rows = sum(client.rows for client in moments)
        p = self.grams.shape[1]
        self.random = np.arange(1 if effects == "intercept" else p)


@dataclass(frozen=True)
class _Profile:
    """The restricted likelihood at a factor F, with the best beta and sigma^2.

    Attributes:
        deviance: minus twice the restricted log-likelihood.
        slope: its derivative with respect to F [q, q].
        beta: the generalised least squares estimate [p].
        inverse: (X'V^-1 X)^-1 [p, p].
        sigma2: variance of a row's error.
        score: Z'V^-1 (y - X beta) of each client [k, q], where V = I + Z F F' Z'.
    """

    deviance: float
    slope: Float[np.ndarray, "q q"]
    beta: Float[np.ndarray, " p"]
    inverse: Float[np.ndarray, "p p"]
    sigma2: float
    score: Float[np.ndarray, "k q"]


def _profile(half: Float[np.ndarray, "q q"], sums: _Sums) -> _Profile:
    """The restricted likelihood at D = sigma^2 F F'; see Bates et al. 2015, section 3."""
    random, q = sums.random, len(sums.random)
    zx, zy = sums.grams[:, random, :], sums.crosses[:, random]  # Z'X, Z'y
    zz = zx[:, :, random]
    # (I + Z F F' Z')^-1 = I - Z F B F'Z' with B = (I + F'Z'ZF)^-1
    inner = np.eye(q) + half.T @ zz @ half
    b = np.linalg.inv(inner)
    middle = half @ b @ half.T  # F B F'
    weighted = sums.grams.sum(axis=0) - np.einsum("kqp,kqr,krs->ps", zx, middle, zx)
    cross = sums.crosses.sum(axis=0) - np.einsum("kqp,kqr,kr->p", zx, middle, zy)
    square = sums.square - np.einsum("kq,kqr,kr->", zy, middle, zy)
    inverse = np.linalg.inv(weighted)
    beta = inverse @ cross
    freedom = sums.rows - len(beta)
    sigma2 = (square - cross @ beta) / freedom
    log_dets = np.linalg.slogdet(inner)[1].sum() + np.linalg.slogdet(weighted)[1]
    deviance = freedom * (np.log(2 * np.pi * sigma2) + 1) + log_dets
    # Z'V^-1 X and Z'V^-1 (y - X beta)
    white = zx - zz @ middle @ zx
    residual = zy - zx @ beta
    score = residual - np.einsum("kqr,krs,ks->kq", zz, middle, residual)
    slope = 2 * (
        (zz @ half @ b).sum(axis=0)
        - np.einsum("kqp,ps,krs->qr", white, inverse, white) @ half
        - score.T @ score @ half / sigma2
    )
    return _Profile(float(deviance), slope, beta, inverse, float(sigma2), score)
