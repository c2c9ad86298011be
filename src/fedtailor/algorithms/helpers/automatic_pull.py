"""`lam="auto"`: the weight of a proximal term from the variance components of a mixed
model, which are estimated from sums over clients.

Take a linear model, whose outputs are Z_i theta, and clients that differ at random:

    y_i = Z_i (w + u_i) + e_i,    u_i ~ N(0, tau^2 I),    e_i ~ N(0, sigma^2 I)

The best linear unbiased predictor (BLUP) of client i's model v_i = w + u_i minimises

    |y_i - Z_i v|^2 + (sigma^2 / tau^2) |v - w|^2.

Divided by n_i, that is the mean squared error with the proximal term lam_i/2 |v - w|^2,

    lam_i = 2 sigma^2 / (n_i tau^2)

(without the 2 where the loss has a factor 1/2). With these weights MR-MTL's mean of all
models ends at the generalised least squares estimate of w, and its clients at the BLUPs
(Henderson's mixed model equations, 1950); Ditto's clients end at the BLUPs for the w
that its global model is.

sigma^2 and tau^2 are estimated as by Henderson's method 3 (1953): two residual sums of
squares, of all rows together and of each client alone, are equal to their
expectations. Both follow from sums over clients of Z'Z, (Z'Z)^2, Z'y and a few numbers,
so that one exchange is enough and the server need not know any client's part.
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.algorithms.helpers.decompositions import eigh
from fedtailor.algorithms.helpers.proximal import require_stable
from fedtailor.protocol import (
    SGD,
    Answers,
    Batch,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelParts,
    Population,
    hyperparameters,
    server_state,
    sums_type,
)

MOST_PARAMETERS = 200
"""Parameters of a model up to which "auto" is allowed: clients send 2 d^2 numbers."""
_BATCH = 256
_MOMENTS = "moments"
_RATIO = "ratio"
_MOST_RATIO = 1e30
_MOST_RATIO_OF_SQUARES = 1e3
"""The largest mean square of targets, in units of the rows' errors, whose sums are exact
enough.
"""


@server_state
class WithComponents(AveragedModels):
    """Averaged models, and what all clients know of the variance components."""

    initial: Float[Array, " d"]
    """The model that clients' targets are measured from in the probe: the common initial
    one, or the least squares estimate of the probe before.
    """
    asks_again: bool
    """Whether sums around that model are too large compared with what varies."""
    sigma2: float
    """The variance of a row's error."""
    tau2: float
    """The variance of a client's parameters; 0 where their models do not differ."""


@hyperparameters
class AutomaticPull(FedAvg):
    """FedAvg's server for methods whose clients have a proximal term of weight `lam`."""

    lam: Any = 1.0

    @property
    def probes(self) -> bool:
        return self.lam == "auto"

    @property
    def probe_tells_columns(self) -> bool:
        return self.probes

    @property
    def takes_weights(self) -> bool:
        # Variance components are estimated with degrees of freedom, numbers of rows.
        return self.lam != "auto"

    def check(self, population: Population) -> None:
        super().check(population)
        model = population.model
        if self.lam != "auto" or model is None:
            return
        everything = model.part("everything").size
        require(
            not model.classification and _is_linear(model),
            'lam "auto" takes the variance components of a linear model with squared'
            " loss, and this model is not one; name a number",
        )
        require(
            everything <= MOST_PARAMETERS,
            f'lam "auto" is for at most {MOST_PARAMETERS} parameters, and this model has'
            f" {everything}: clients send two numbers for each pair; name a number",
        )

    def init_server(self, init: Init, population: Population) -> AveragedModels:
        server = super().init_server(init, population)
        if self.lam != "auto":
            return server
        return WithComponents(server.model, server.optimizer, init(0), False, 1.0, 0.0)

    def asks_again(self, server: AveragedModels) -> bool:
        return isinstance(server, WithComponents) and server.asks_again

    def broadcast(self, server: AveragedModels, cohort: Cohort) -> Downlink:
        downlink = super().broadcast(server, cohort)
        if not isinstance(server, WithComponents):
            return downlink
        # A number that is as good as infinite where clients do not differ.
        ratio = _MOST_RATIO
        if server.tau2 > 0:
            ratio = min(server.sigma2 / server.tau2, _MOST_RATIO)
        return replace(downlink, scalars={**downlink.scalars, _RATIO: ratio})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        return {_MOMENTS: moments(inbox.only("model"), local)}

    def aggregate_probe(
        self, server: WithComponents, answers: Answers, cohort: Cohort
    ) -> WithComponents:
        # Only the sum over clients is used.
        total = answers.host(_MOMENTS).astype(np.float64).sum(axis=0)
        sigma2, tau2, pooled = components(total, len(server.initial))
        new = server.replace(sigma2=sigma2, tau2=max(tau2, 0.0), asks_again=False)
        # Sums of squares in single precision do not show errors around a target's large
        # mean. Then clients are asked once more, around the model that fits all.
        square, rows = total[-4], total[-1]
        if server.asks_again or square < _MOST_RATIO_OF_SQUARES * rows * sigma2:
            return new
        moved = np.asarray(server.initial, np.float64) + pooled
        moved = jnp.asarray(moved, server.initial.dtype)
        return new.replace(initial=moved, asks_again=True)

    def pull(self, inbox: Inbox, local: LocalTrainer, sgd: SGD) -> Any:
        """The weight of this client's proximal term.

        Where clients hardly differ, or one has few rows, the weight is so large that
        plain steps would not be stable. It is then 1 / lr: after each step nothing but
        the gradient at the anchor is left, so that the model is the anchor's neighbour.
        """
        if self.lam != "auto":
            return self.lam
        weight = 2 * inbox.scalars[_RATIO] / jnp.maximum(local.size, 1)
        return jnp.minimum(weight, 1 / sgd.lr)


def _is_linear(model: ModelParts) -> bool:
    """Whether nothing comes before the model's last dense layer."""
    try:
        _ = model.feature_shape
    except ValueError:
        return False
    # A head that is all of the model is not among its parts.
    return "head" not in model.parts and not model.has_statistics


def require_pull(name: str, pull: float | Literal["auto"], sgd: SGD) -> None:
    """Require a weight that is "auto" or stable; see `require_stable`."""
    if isinstance(pull, str):
        require(pull == "auto", f'{name} is {pull!r}; it must be a number or "auto"')
        return
    require_stable(name, pull, sgd)


def moments(theta: Float[Array, " d"], local: LocalTrainer) -> Float[Array, " m"]:
    """What one client sends, to be added up over clients.

    Args:
        theta: any model, from whose outputs targets are measured; they are linear in it.
        local: the client's data.

    Returns:
        Z'Z and (Z'Z)^2, then Z'y, y'y, the residual sum of squares of the client's own
        least squares, its degrees of freedom n - rank Z, and n; y is what the targets
        have beyond the outputs of theta.
    """
    d, dtype = theta.shape[0], sums_type(theta)
    zero = jnp.zeros((), dtype)

    def rows_of(batch: Batch) -> tuple[Float[Array, "b d"], Float[Array, " b"]]:
        """Z and y of a batch; padding is 0."""
        local.count_work(gradients=1)

        def predict(model: Float[Array, " d"]) -> Float[Array, " b"]:
            outputs = local.logits(model, batch.x, training=False)
            return outputs.reshape(-1).astype(dtype)

        slopes = jax.jacfwd(predict)(theta).astype(dtype)
        y = batch.y.reshape(-1).astype(dtype) - predict(theta)
        return slopes * batch.weight[:, None], y * batch.weight

    def add(carry: Any, batch: Batch, step: Any) -> Any:
        gram, cross, square = carry
        rows, y = rows_of(batch)
        return gram + rows.T @ rows, cross + rows.T @ y, square + y @ y

    one_pass = SGD(lr=1.0, epochs=1, batch_size=_BATCH)
    start = (jnp.zeros((d, d), dtype), jnp.zeros(d, dtype), zero)
    steps = local.steps(one_pass)
    gram, cross, square = local.loop(
        start, add, steps, _BATCH, purpose="variance components"
    )
    # The client's own least squares, which may have fewer rows than parameters.
    values, vectors = eigh(gram)
    smallest = values[-1] * d * jnp.finfo(dtype).eps
    is_used = values > smallest
    along = vectors.T @ cross
    own = vectors @ jnp.where(is_used, along / jnp.where(is_used, values, 1), 0)

    # From the residuals themselves: y'y less what is explained would round them away
    # where y is large.
    def add_residual(total: Array, batch: Batch, step: Any) -> Array:
        rows, y = rows_of(batch)
        return total + jnp.square(y - rows @ own).sum()

    residual = local.loop(
        zero, add_residual, steps, _BATCH, purpose="variance components"
    )
    freedom = jnp.maximum(local.size - is_used.sum(), 0).astype(dtype)
    residual = jnp.where(freedom > 0, residual, 0)
    size = local.size.astype(dtype)
    numbers = jnp.stack([square, residual, freedom, size])
    return jnp.concatenate([gram.ravel(), (gram @ gram).ravel(), cross, numbers])


def components(
    total: NDArray[np.float64], d: int
) -> tuple[float, float, Float[np.ndarray, " d"]]:
    """sigma^2 and tau^2 by Henderson's method 3, from the sum of all `moments`.

    With S_i = Z_i'Z_i and S their sum, the residual sums of squares have expectations

        sum_i RSS_i = sigma^2 sum_i (n_i - rank S_i)
        RSS of all  = sigma^2 (n - rank S) + tau^2 (tr S - tr S^+ sum_i S_i^2)

    for any w, as no residual depends on it.

    Args:
        total: the sum over clients of what `moments` returns.
        d: number of parameters.

    Returns:
        (sigma^2, tau^2, the least squares estimate of all rows [d]); tau^2 may be
        negative, as an unbiased estimate of 0 can be.

    Raises:
        ValueError: no client has more rows than parameters.
    """
    gram, squares, cross, numbers = np.split(total, np.cumsum([d * d, d * d, d]))
    gram, squares = gram.reshape(d, d), squares.reshape(d, d)
    square, residual, freedom, rows = numbers
    require(
        freedom > 0,
        f'lam "auto" needs a client with more rows than the {d} parameters of its'
        " model; name a number",
    )
    sigma2 = residual / freedom
    values, vectors = np.linalg.eigh(gram)
    # The sums may be of single precision, and directions that nobody has are noise.
    is_used = values > values[-1] * d * np.finfo(np.float32).eps
    vectors, values = vectors[:, is_used], values[is_used]
    along = vectors.T @ cross
    residual_of_all = square - np.sum(along**2 / values)
    within = np.sum((vectors * (squares @ vectors)).sum(axis=0) / values)
    between = np.trace(gram) - within
    require(
        between > 0,
        'lam "auto" needs two clients or more, which are to differ; name a number',
    )
    expected = sigma2 * (rows - len(values))
    tau2 = float((residual_of_all - expected) / between)
    return float(sigma2), tau2, vectors @ (along / values)
