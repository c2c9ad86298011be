"""Self-FL: variances determine the start, the steps and the weight of each client."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.aggregation.variances import update, variance, variance_between
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.curvature import largest_eigenvalue
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LineDiagnostic,
    LocalTrainer,
    Population,
    ServerState,
    Streams,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_state,
    sums_type,
)

_UNKNOWN = -1.0
"""The variance that a client sends before it has trained two models."""
_MIN_VARIANCE = 1e-30
"""The smallest sum of variances, so that sums of inverses stay finite in float32."""


@server_state
class SelfFLState(ServerState):
    """The common model, and the variances as far as they are known."""

    model: Float[Array, "1 d"]
    """theta, the common model."""
    inter: float
    """s0, the variance between clients; 0 until two clients report in one round."""
    intra: Float[np.ndarray, " m"]
    """s_m, the variance of each client's models; NaN = not known yet."""
    took_part: Bool[np.ndarray, " m"]
    """Which clients have reported in any round."""
    smoothing: float
    """C: the server moves its model by this fraction towards the average."""


@hyperparameters
class SelfFL(PersonalModelAlgorithm):
    """Self-aware personalized federated learning (Chen et al. 2022, algorithm 1).

    The method assumes that the clients' true models are theta_m ~ N(theta_0, s0) around
    a common model theta_0, and that client m alone would learn z_m ~ N(theta_m, s_m).
    The server estimates s0 by the variance between the models of a round (eq. 14). Each
    client estimates its s_m by the variance of its own models over rounds (eq. 13).
    With a_m = 1/(s0 + s_m) and A = sum_{k != m} a_k, client m starts a round from

        theta - (a_m / A) (theta_m - theta)                                                       (eq. 10)

    and takes l steps. The weight of this start in the trained model is then rho, the
    weight of the other clients' models in the best estimate of theta_m:

        (1 - eta h)^l = rho = A / (1/s_m + A),    rounded up, from 1 to l_max                      (eq. 8)

    where h is the curvature of the client's loss. The server averages over reporters
    with weights a_m (eq. 11) and moves its model by the fraction C towards the average.
    Variances are means over coordinates. For h = 1 the method does not depend on their
    scale.

    The paper leaves some details open. In this implementation

    * the curvature h can be chosen, because eq. 8 as printed, with h = 1/s_m, has no
      solution for eta >= s_m;
    * a client with fewer than two models uses the median variance of the others and
      takes l_max steps (a client that never took part: as many as eq. 8 says);
    * until the variance of some client is known, the server takes plain averages;
    * if clients are sampled, A is the sum over all clients that ever took part.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="self-fl",
        paper="Chen et al. 2022, Self-Aware Personalized Federated Learning",
        down="1 model and 3 scalars",
        up="1 model and 1 scalar",
        client_keeps="its personal model, mean and variance of its past ones",
        unseen_clients_get="the global model, after steps on its own data",
    )

    sgd: SGD = SGD(lr=0.03, steps=20, batch_size=10)
    """Local training (Chen et al. on MNIST: rate 0.03, batch 10). With `dynamic_steps`
    its number of steps is not used.
    """
    initialisation: bool = True
    """Start rounds from eq. 10; otherwise from the global model."""
    dynamic_steps: bool = True
    """Take the number of steps of eq. 8; otherwise that of `sgd`."""
    weights: Literal["variance", "samples", "uniform"] = "variance"
    """Weights of the average: eq. 11, by training samples, or equal."""
    l_max: TracedInt = 40
    """Largest number of steps in a round (Chen et al.: 40)."""
    curvature: float | Literal["unit", "fisher", "literal", "power"] = "unit"
    """h: a number, 1 (`unit`), 1/(n_m s_m) as for a well-specified likelihood
    (`fisher`), 1/s_m as printed (`literal`), or the largest eigenvalue of the Hessian
    by power iteration (`power`)."""
    posterior: Literal["paper", "exact"] = "paper"
    """The precision with which the other models predict client m's: A as in eq. 3,
    which takes client m's true model for the common one, or 1/(s0 + 1/A), as the
    hierarchical model implies. With eq. 3 many clients pull each other together,
    however different they are."""
    smoothing: float | None = None
    """The share C; None = the share of clients that report (section 4.1)."""
    warm: int = 0
    """Rounds of FedAvg before the first round (section 3.2 suggests some for networks;
    20 is a good number).
    """
    forget: ZeroIsStatic = 0.0
    """The fraction that a new model takes off the weight of the client's past models in
    its variance."""
    inter_variance: float | None = None
    """A known s0, instead of the estimate."""
    intra_variances: Float[np.ndarray, " m"] | None = None
    """Known s_m, sorted by client id, instead of the estimates."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.curvature, str) or self.curvature > 0,
            f"curvature is {self.curvature}; it must be above 0",
        )
        require(self.l_max >= 1, f"l_max is {self.l_max}; it must be 1 or more")
        require(self.warm >= 0, f"warm is {self.warm}; it must be 0 or more")
        require(0 <= self.forget < 1, f"forget is {self.forget}; it must be in [0, 1)")
        share = self.smoothing
        require(
            share is None or 0 < share <= 1,
            f"smoothing is {share}; it must be in (0, 1], or None",
        )
        inter = self.inter_variance
        require(
            inter is None or inter >= 0,
            f"inter_variance is {inter}; it must be 0 or more",
        )

    @property
    def work_tells_of_rows(self) -> bool:
        return self.dynamic_steps

    def check(self, population: Population) -> None:
        if self.intra_variances is not None:
            variances = np.asarray(self.intra_variances)
            is_vector = variances.shape == (len(population),)
            require(
                is_vector and bool((variances >= 0).all()),
                f"intra_variances must be {len(population)} numbers of 0 or more, one"
                " for each client",
            )

    def phases(self) -> Sequence[tuple[Algorithm, int | None]]:
        warm_up = [(FedAvg(sgd=self.sgd), self.warm)] if self.warm else []
        return [*warm_up, (self, None)]

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> SelfFLState:
        clients = len(population)
        intra, smoothing = self.intra_variances, self.smoothing
        if intra is None:
            intra = np.full(clients, np.nan)
        if smoothing is None:
            smoothing = population.reporters_per_round / clients
        return SelfFLState(
            model=init(0)[None],
            inter=0.0 if self.inter_variance is None else self.inter_variance,
            intra=np.array(intra, np.float64),
            took_part=np.zeros(clients, bool),
            smoothing=smoothing,
        )

    def broadcast(self, server: SelfFLState, cohort: Cohort) -> Downlink:
        # "others" is A, the sum of the precisions of all other clients. For an unseen
        # client it is the sum over all seen clients.
        precisions = self._precisions(server)
        others: float | NDArray[np.float64] = precisions.sum()
        if cohort.seen:
            others = _sums_of_others(precisions)[cohort.position]
        # "intra" is s_m, for clients that have no estimate of it yet.
        intra: float | NDArray[np.float64] = _median_variance(server)
        if cohort.seen and self.intra_variances is not None:
            intra = server.intra[cohort.position]
        models = {"model": Streams.everyone(server.model, len(cohort))}
        scalars = {"inter": server.inter, "others": others, "intra": intra}
        return Downlink(models, scalars=scalars)

    def server(
        self, server: SelfFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> SelfFLState:
        server = self._with_variances(server, answers, cohort)
        if self.dynamic_steps and self.curvature == "literal":
            smallest = min(_known_variances(server), default=np.inf)
            require(
                self.sgd.lr < smallest,
                f"eq. 8 has no solution: the learning rate {self.sgd.lr} is not below"
                f" the smallest variance {smallest:.3g}; lower it or choose another"
                " curvature",
            )
        # Eq. 11 with the smoothing of section 4.1. The weights sum to C, so `mix` moves
        # the model by the fraction C towards the average.
        weights = server.smoothing * self._weights(server, cohort)
        model = mix(server.model, answers["model"], weights[None])  # weights [1, c]
        return server.replace(model=model)

    def _with_variances(
        self, server: SelfFLState, answers: Answers, cohort: Cohort
    ) -> SelfFLState:
        """The server with the variances of this round (eq. 13 and 14)."""
        reporters = cohort.reporters
        took_part = server.took_part.copy()
        took_part[reporters] = True
        # eq. 13: s_m is the last estimate that the client has sent.
        intra = server.intra.copy()
        if self.intra_variances is None:
            sent = answers.reporters("intra").astype(np.float64)
            intra[reporters] = np.where(sent == _UNKNOWN, np.nan, sent)
        # eq. 14: s0 is computed from this round's models. Algorithm 1 does so before
        # the average, because the weights of the average depend on s0.
        inter = server.inter
        if self.inter_variance is None and len(reporters) > 1:
            models = answers["model"]
            reporting = models.to_rows(cohort.reporting, fill=False)
            inter = float(variance_between(models.values, reporting))
        return server.replace(took_part=took_part, intra=intra, inter=inter)

    def _weights(self, server: SelfFLState, cohort: Cohort) -> NDArray[np.float64]:
        """Weights [c] of the average over reporters (eq. 11: a_m, scaled to sum 1)."""
        if self.weights != "variance":
            return reporter_weights(cohort, self.weights)
        of_cohort = self._precisions(server)[cohort.position]
        precisions = np.where(cohort.reporting, of_cohort, 0.0)
        total = precisions.sum()
        # A plain average, as long as no variance is known.
        return precisions / total if total > 0 else reporter_weights(cohort, "uniform")

    def _precisions(self, server: SelfFLState) -> NDArray[np.float64]:
        """a_m = 1 / (s0 + s_m) of all clients.

        The median of the known s_m replaces an unknown one.

        Returns:
            [m]; 0 for clients that never took part, and for all clients while no
            variance is known.
        """
        intra = np.where(np.isnan(server.intra), _median_variance(server), server.intra)
        precisions = 1 / np.maximum(server.inter + intra, _MIN_VARIANCE)
        has_variances = self.intra_variances is not None
        any_known = len(_known_variances(server)) > 0
        is_used = (server.took_part | has_variances) & any_known
        return np.where(is_used, precisions, 0.0)

    def personalization_gain(self, server: SelfFLState) -> NDArray[np.float64]:
        """GAIN_m = 1 + s_m A, the gain from federated training (section 2.1).

        It is the variance of the client's model after training alone, divided by its
        variance after federated training.

        Returns:
            [m], in the order of client ids; NaN for clients without a variance.
        """
        others = _sums_of_others(self._precisions(server))
        return 1 + server.intra * self._precision_of_others(others, server.inter)

    def diagnostics(self, server: SelfFLState) -> Sequence[Diagnostic]:
        gain = self.personalization_gain(server)
        known = np.flatnonzero(~np.isnan(gain))
        return [
            LineDiagnostic(
                name="gain",
                title="Gain of learning together",
                x=known,
                y=gain[known],
                x_label="client",
                y_label="variance alone / variance together",
            )
        ]

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        zero = jnp.zeros((), sums_type(theta))
        # (count, mean, M2) of the models that the client has trained; see `variances`
        return {"model": theta, "moments": (zero, jnp.zeros_like(theta), zero)}

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        return {"intra": (_UNKNOWN, math.inf)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        others = inbox.scalars["others"]
        inter = inbox.scalars["inter"]
        s = inbox.scalars["intra"]
        moments = state["moments"]
        past_models, *_ = moments
        # s_m is the client's own estimate as soon as it has two models, and until then
        # the variance that the server has sent.
        is_estimated = self.intra_variances is None
        if is_estimated:
            s = jnp.where(past_models > 1, variance(moments) / theta.size, s)
        start = theta
        if self.initialisation:
            # eq. 10: theta - (a_m / A) (theta_m - theta), with a_m = 1 / (s0 + s_m). It
            # needs a model of the client and the precision of the others.
            is_defined = (others > 0) & (past_models > 0)
            total = jnp.where(is_defined, others, 1)
            share = 1 / (jnp.maximum(inter + s, _MIN_VARIANCE) * total)
            start = theta - jnp.where(is_defined, share, 0) * (state["model"] - theta)
        steps = local.steps(self.sgd)
        if self.dynamic_steps:
            steps = self._steps(s, inbox, local)
            if is_estimated:
                steps = jnp.where(past_models > 1, steps, self.l_max)
        trained = local.sgd(start, self.sgd, steps=steps)
        # A lower count and sum of squares, with the same mean, reduce the weight of
        # past models. With the constant forget = 0 this is left out of the program.
        if not is_off(self.forget):
            count, mean, m2 = moments
            moments = (1 - self.forget) * count, mean, (1 - self.forget) * m2
        # The sum in eq. 13 includes round t, so the variance includes the new model.
        moments = update(moments, trained)
        models, *_ = moments
        intra = jnp.where(models > 1, variance(moments) / theta.size, _UNKNOWN)
        return (
            {"model": trained, "moments": moments},
            {"model": trained, "intra": intra},
        )

    def _steps(self, s: Array, inbox: Inbox, local: LocalTrainer) -> Array:
        """The number of steps l = log(rho) / log(1 - eta h), from 1 to l_max (eq. 8).

        Args:
            s: the client's variance s_m.
            inbox: what the server sent.
            local: the client.

        Returns:
            l, an integer; l_max if the variances of the others are not known.
        """
        others, inter = inbox.scalars["others"], inbox.scalars["inter"]
        # With x = s_m A, rho = A / (1/s_m + A) = x / (1 + x). So -log(rho) is
        # log(1 + 1/x), which is accurate for rho near 1, too.
        x = s * self._precision_of_others(others, inter)
        rate: Any = self.sgd.rate(local.round)
        h = self._curvature(s, inbox.only("model"), local)
        log_contraction = jnp.log1p(-rate * h)
        exact = jnp.log1p(1 / jnp.where(x > 0, x, 1)) / -log_contraction
        # Rounding errors must not raise an integer quotient to the next integer.
        rounding = 1e-3
        rounded = jnp.ceil(exact - rounding)
        # If eta h = 1, a single step reaches the minimum.
        steps = jnp.where(jnp.isfinite(log_contraction), rounded, 1)
        steps = jnp.where(x > 0, jnp.clip(steps, 1, self.l_max), self.l_max)
        return steps.astype(jnp.int32)

    def _precision_of_others(self, others: Any, inter: Any) -> Any:
        """The precision with which the other clients' models predict a client's model.

        Args:
            others: A, the sum of their precisions a_k.
            inter: s0.
        """
        return others if self.posterior == "paper" else others / (1 + inter * others)

    def _curvature(
        self, s: Array, theta: Float[Array, " d"], local: LocalTrainer
    ) -> ScalarLike:
        """h of eq. 8, for the client's variance s_m and the received model."""
        if self.curvature == "unit":
            return 1.0
        if self.curvature == "power":
            return largest_eigenvalue(local, theta, local.key("curvature"))
        if self.curvature == "fisher":
            return 1 / jnp.maximum(s * local.samples, _MIN_VARIANCE)
        if self.curvature == "literal":
            return 1 / jnp.maximum(s, _MIN_VARIANCE)
        assert not isinstance(self.curvature, str)
        return self.curvature

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        theta = inbox.only("model")
        steps = local.steps(self.sgd)
        if self.dynamic_steps:
            steps = self._steps(inbox.scalars["intra"], inbox, local)
        trained = local.sgd(theta, self.sgd, steps=steps)
        return {**self.init_client(theta), "model": trained}


def _known_variances(server: SelfFLState) -> NDArray[np.float64]:
    """The variances s_m that are known."""
    return server.intra[~np.isnan(server.intra)]


def _median_variance(server: SelfFLState) -> float:
    """The median of the known variances s_m; 0 as long as no variance is known."""
    known = _known_variances(server)
    return float(np.median(known)) if len(known) else 0.0


def _sums_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_{k != m} values_k [m]."""
    return np.maximum(values.sum() - values, 0.0)
