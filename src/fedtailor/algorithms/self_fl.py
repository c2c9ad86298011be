"""Self-FL: start, steps and weight of a client's training follow from variances."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike
from numpy.typing import NDArray

from fedtailor.aggregation import mix, reporter_weights
from fedtailor.aggregation.variances import update, variance, variance_between
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.curvature import largest_eigenvalue
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
    Predictor,
    ServerState,
    Streams,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    require,
    server_state,
)

_UNKNOWN = -1.0
"""What a client sends for its variance before it has two models."""
_LEAST = 1e-30
"""The least sum of variances, so that sums of inverses stay finite in float32."""


@server_state
class SelfFLState(ServerState):
    """The common model, and what is known of the variances."""

    model: Float[Array, "1 d"]
    """theta, the common model."""
    inter: float
    """s0, the variance between clients; 0 until two clients report in one round."""
    intra: Float[np.ndarray, " m"]
    """s_m, the variance of each client's models; NaN = not known yet."""
    took_part: Bool[np.ndarray, " m"]
    """Which clients have ever reported."""
    smoothing: float
    """C, the fraction of the way to the average that the server's step goes."""


@hyperparameters
class SelfFL(Algorithm):
    """Self-aware personalized federated learning (Chen et al. 2022, algorithm 1).

    The method assumes that the clients' true models are theta_m ~ N(theta_0, s0) around
    a common one, and that what client m learns alone is z_m ~ N(theta_m, s_m). The
    server estimates s0 by the variance of the models in a round (eq. 14), each client
    its s_m by the variance of its own models over rounds (eq. 13). With a_m = 1/(s0 +
    s_m) and A = sum_{k != m} a_k, client m starts a round from

        theta - (a_m / A) (theta_m - theta)                                                       (eq. 10)

    and takes l steps, so that the weight of this start in the trained model is the
    weight rho of the other clients' models in the best estimate of theta_m,

        (1 - eta h)^l = rho = A / (1/s_m + A),    rounded up, from 1 to l_max                      (eq. 8)

    where h is the curvature of its loss. The server averages with weights a_m over
    reporters (eq. 11) and moves the fraction C of the way towards the average.
    Variances are means over coordinates; for h = 1 any multiple of them gives the same.

    The paper leaves some things open. Here

    * the curvature h can be chosen: eq. 8 as printed, with h = 1/s_m, has no solution
      for eta >= s_m;
    * a client with fewer than two models is given the median variance of the others and
      takes l_max steps (a client that never took part: the number of eq. 8);
    * until some client has a variance, rounds are plain averages;
    * under sampling, A is the sum over all clients that ever took part.
    """

    # What tables of methods say of this one; `About` explains the words.
    about: ClassVar[About] = About(
        name="self-fl",
        paper="Chen et al. 2022, Self-Aware Personalized Federated Learning",
        down="1 model and 3 scalars",
        up="1 model and 1 scalar",
        client_keeps="its personal model, mean and variance of its past ones",
        unseen_clients_get="the global model, after steps on its own data",
    )

    sgd: SGD = SGD(lr=0.03, steps=20, batch_size=10)
    """Local training (Chen et al. on MNIST: rate 0.03, batch 10); its steps count only
    without `dynamic_steps`.
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
    """What others' models tell client m: A as in eq. 3, where client m is the common
    model itself, or 1/(s0 + 1/A) as the hierarchical model implies. Eq. 3 pulls clients
    together because they are many, however far apart they are."""
    smoothing: float | None = None
    """The share C; None = the share of clients that report (section 4.1)."""
    warm: int = 0
    """Rounds of FedAvg before the first one (section 3.2 suggests some for networks; 20
    is a good number).
    """
    forget: ZeroIsStatic = 0.0
    """Share of a client's past models that its variance forgets with every new one."""
    inter_variance: float | None = None
    """A known s0, instead of the estimate."""
    intra_variances: Float[np.ndarray, " m"] | None = None
    """Known s_m, sorted by client id, instead of the estimates."""

    def __post_init__(self) -> None:
        weights = ("variance", "samples", "uniform")
        kinds = ("unit", "fisher", "literal", "power")
        require(
            self.weights in weights,
            f"weights is {self.weights!r}; it must be one of {', '.join(weights)}",
        )
        known = (
            self.curvature in kinds
            if isinstance(self.curvature, str)
            else self.curvature > 0
        )
        require(
            known,
            f"curvature is {self.curvature!r}; it must be a number above 0 or one of"
            f" {', '.join(kinds)}",
        )
        require(
            self.posterior in ("paper", "exact"),
            f"posterior is {self.posterior!r}; it must be 'paper' or 'exact'",
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

    def check(self, population: Population) -> None:
        if self.intra_variances is not None:
            given = np.asarray(self.intra_variances)
            fits = given.shape == (len(population),) and bool((given >= 0).all())
            require(
                fits,
                f"intra_variances must be {len(population)} numbers of 0 or more, one"
                " for each client",
            )

    def phases(self) -> Sequence[tuple[Algorithm, int | None]]:
        if self.warm == 0:
            return [(self, None)]
        return [(FedAvg(sgd=self.sgd), self.warm), (self, None)]

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> SelfFLState:
        clients = len(population)
        known = self.intra_variances is not None
        return SelfFLState(
            model=init(0)[None],
            inter=0.0 if self.inter_variance is None else self.inter_variance,
            intra=(
                np.array(self.intra_variances, np.float64)
                if known
                else np.full(clients, np.nan)
            ),
            took_part=np.zeros(clients, bool),
            smoothing=(
                population.reporters_per_round / clients
                if self.smoothing is None
                else self.smoothing
            ),
        )

    def broadcast(self, server: SelfFLState, cohort: Cohort) -> Downlink:
        # "others" is A, the sum of the precisions of all other clients: of all clients
        # for one that never took part.
        precisions = self._precisions(server)
        others: float | NDArray[np.float64] = precisions.sum()
        if cohort.seen:
            others = _sums_of_others(precisions)[cohort.position]
        # "intra" is s_m, for clients that do not estimate it (yet).
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
            least = min(_known_variances(server), default=np.inf)
            require(
                self.sgd.lr < least,
                f"eq. 8 has no solution: the learning rate {self.sgd.lr} is not below"
                f" the smallest variance {least:.3g}; lower it or choose another"
                " curvature",
            )
        # eq. 11, smoothed as in section 4.1: with weights that sum to C, `mix` moves the
        # model by the fraction C towards the average.
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
        # eq. 13: s_m is the client's own estimate, of which the last one counts
        intra = server.intra.copy()
        if self.intra_variances is None:
            sent = answers.reporters("intra").astype(np.float64)
            intra[reporters] = np.where(sent == _UNKNOWN, np.nan, sent)
        # eq. 14: s0 from this round's models; algorithm 1 computes it before the
        # average, whose weights depend on it
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
        # While nobody has a variance, rounds are plain averages.
        return precisions / total if total > 0 else reporter_weights(cohort, "uniform")

    def _precisions(self, server: SelfFLState) -> NDArray[np.float64]:
        """a_m = 1 / (s0 + s_m) of all clients.

        An unknown s_m is replaced by the median of those that are known.

        Returns:
            [m]; 0 for clients that never took part, and for all clients while no
            variance is known.
        """
        intra = np.where(np.isnan(server.intra), _median_variance(server), server.intra)
        precisions = 1 / np.maximum(server.inter + intra, _LEAST)
        is_given = self.intra_variances is not None
        any_known = len(_known_variances(server)) > 0
        is_used = (server.took_part | is_given) & any_known
        return np.where(is_used, precisions, 0.0)

    def serve(self, server: SelfFLState, cohort: Cohort) -> Downlink:
        # Clients that took part predict with their own model and need nothing; the
        # others start from what is sent in a round (`init_unseen`).
        return Downlink() if cohort.seen else self.broadcast(server, cohort)

    def personalization_gain(self, server: SelfFLState) -> NDArray[np.float64]:
        """GAIN_m = 1 + s_m A (section 2.1), what client m gains from learning together.

        It is the variance of the client's model learned alone over that of its model
        learned together.

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
        zero = jnp.zeros((), theta.dtype)
        # (count, mean, M2) of the models that the client has trained; see `variances`
        return {"model": theta, "moments": (zero, jnp.zeros_like(theta), zero)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        others = inbox.scalars["others"]
        inter = inbox.scalars["inter"]
        s = inbox.scalars["intra"]
        moments = state["moments"]
        past_models, *_ = moments
        # s_m: the client's own estimate as soon as it has two models, until then the
        # one that the server sent
        is_estimated = self.intra_variances is None
        if is_estimated:
            s = jnp.where(past_models > 1, variance(moments) / theta.size, s)
        start = theta
        if self.initialisation:
            # eq. 10, as soon as the client has a model and others have a precision:
            # theta - (a_m / A) (theta_m - theta), with a_m = 1 / (s0 + s_m)
            is_defined = (others > 0) & (past_models > 0)
            total = jnp.where(is_defined, others, 1)
            share = 1 / (jnp.maximum(inter + s, _LEAST) * total)
            start = theta - jnp.where(is_defined, share, 0) * (state["model"] - theta)
        steps = local.steps(self.sgd)
        if self.dynamic_steps:
            steps = self._steps(s, inbox, local)
            if is_estimated:
                steps = jnp.where(past_models > 1, steps, self.l_max)
        trained = local.sgd(start, self.sgd, steps=steps)
        # Forgetting reduces the weight of past models: the count and the sum of squares
        # shrink, and the mean does not change. With forget = 0 it is not compiled.
        if not is_off(self.forget):
            count, mean, m2 = moments
            moments = (1 - self.forget) * count, mean, (1 - self.forget) * m2
        # eq. 13 sums up to round t, so the variance includes the model just trained.
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
        # With x = s_m A, rho = A / (1/s_m + A) = x / (1 + x), so -log(rho) is
        # log(1 + 1/x), which is exact also for rho near 1.
        x = s * self._precision_of_others(others, inter)
        rate: Any = self.sgd.rate(local.round)
        h = self._curvature(s, inbox.only("model"), local)
        log_contraction = jnp.log1p(-rate * h)
        exact = jnp.log1p(1 / jnp.where(x > 0, x, 1)) / -log_contraction
        # A quotient that is whole on paper must not be rounded up to the next number.
        rounding = 1e-3
        rounded = jnp.ceil(exact - rounding)
        # With eta h = 1 a single step reaches the minimum.
        steps = jnp.where(jnp.isfinite(log_contraction), rounded, 1)
        steps = jnp.where(x > 0, jnp.clip(steps, 1, self.l_max), self.l_max)
        return steps.astype(jnp.int32)

    def _precision_of_others(self, others: Any, inter: Any) -> Any:
        """The precision with which the other clients' models predict a client's own.

        Args:
            others: A, the sum of their precisions a_k.
            inter: s0.
        """
        return others if self.posterior == "paper" else others / (1 + inter * others)

    def _curvature(
        self, s: Array, theta: Float[Array, " d"], local: LocalTrainer
    ) -> ScalarLike:
        """h of eq. 8, for the client's variance s_m and the model received."""
        if self.curvature == "unit":
            return 1.0
        if self.curvature == "power":
            return largest_eigenvalue(local, theta, local.key("curvature"))
        if self.curvature == "fisher":
            return 1 / jnp.maximum(s * local.size, _LEAST)
        if self.curvature == "literal":
            return 1 / jnp.maximum(s, _LEAST)
        assert not isinstance(self.curvature, str)
        return self.curvature

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        theta = inbox.only("model")
        steps = local.steps(self.sgd)
        if self.dynamic_steps:
            steps = self._steps(inbox.scalars["intra"], inbox, local)
        trained = local.sgd(theta, self.sgd, steps=steps)
        return {**self.init_client(theta), "model": trained}


def _known_variances(server: SelfFLState) -> NDArray[np.float64]:
    """The variances s_m of the clients that have one."""
    return server.intra[~np.isnan(server.intra)]


def _median_variance(server: SelfFLState) -> float:
    """The median of the known variances s_m; 0 while nobody has one."""
    known = _known_variances(server)
    return float(np.median(known)) if len(known) else 0.0


def _sums_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_{k != m} values_k [m]."""
    return np.maximum(values.sum() - values, 0.0)
