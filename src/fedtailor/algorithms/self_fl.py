"""Self-FL: local steps, starting points and weights of the average from the uncertainty
of models.
"""

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
"""Sums of variances are not smaller than this, so that their inverses can be added up
in single precision.
"""


@server_state
class SelfFLState(ServerState):
    """The common model, and what is known of the variances."""

    model: Float[Array, "1 d"]
    """theta, the common model."""
    inter: float
    """s0, the variance between clients; 0 before two clients have reported at once."""
    intra: Float[np.ndarray, " m"]
    """s_m of each client; NaN = it has none yet."""
    took_part: Bool[np.ndarray, " m"]
    """Who has ever reported."""
    smoothing: float
    """The share C of the server's step."""


@hyperparameters
class SelfFL(Algorithm):
    """Self-aware personalized federated learning (Chen et al. 2022, algorithm 1).

    Models of clients are taken to be theta_m ~ N(theta_0, s0) around a common one, and
    what client m learns alone to be z_m ~ N(theta_m, s_m). The server estimates s0 by
    the variance of the models in a round (eq. 14), each client its s_m by the variance
    of its own models over rounds (eq. 13). With a_m = 1/(s0 + s_m) and A = sum_{k != m}
    a_k, client m starts a round from

        theta - (a_m / A) (theta_m - theta)                                                       (eq. 10)

    and takes the number l of steps after which this start has as much weight as the
    others deserve,

        (1 - eta h)^l = rho = A / (1/s_m + A),    rounded up, from 1 to l_max                      (eq. 8)

    where h is the curvature of its loss. The server averages with weights a_m over
    reporters (eq. 11) and moves by a share C towards the average. Variances are means
    over coordinates; for h = 1 any multiple of them gives the same.

    What the paper leaves open: the curvature h (eq. 8 as printed, h = 1/s_m, has no
    solution where eta >= s_m); a client with fewer than two models counts with the
    median variance of the others and takes l_max steps (one that never took part and is
    only served: as many as eq. 8 says); while nobody has a variance, rounds are plain
    averages; under sampling A sums over all clients that ever took part.
    """

    about: ClassVar[About] = About(
        name="self-fl",
        paper="Chen et al. 2022, Self-Aware Personalized Federated Learning",
        down="1 model and 3 scalars",
        up="1 model and 1 scalar",
        keeps="its personal model, mean and variance of its past ones",
        unseen="the global model, after steps on its own data",
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
        # the model, s0, the sum A of the others' precisions, and the variance of those
        # who do not know theirs
        precisions = self._precisions(server)
        others: float | NDArray[np.float64] = precisions.sum()
        own: float | NDArray[np.float64] = _median_variance(server)
        # for a newcomer all clients are others; to a seen one its own a_m does not
        # count
        if cohort.seen:
            others = _sums_of_others(precisions)[cohort.position]
            if self.intra_variances is not None:
                own = server.intra[cohort.position]
        models = {"model": Streams.everyone(server.model, len(cohort))}
        return Downlink(
            models, scalars={"inter": server.inter, "others": others, "intra": own}
        )

    def server(
        self, server: SelfFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> SelfFLState:
        server = self._with_variances(server, answers, cohort)
        if self.dynamic_steps and self.curvature == "literal":
            least = min(_known(server), default=np.inf)
            require(
                self.sgd.lr < least,
                f"eq. 8 has no solution: the learning rate {self.sgd.lr} is not below"
                f" the smallest variance {least:.3g}; lower it or choose another"
                " curvature",
            )
        # eq. 11 and the smoothing of section 4.1: a row of weights that sums to C moves
        # by that share.
        weights = server.smoothing * self._weights(server, cohort)
        return server.replace(model=mix(server.model, answers["model"], weights[None]))

    def _with_variances(
        self, server: SelfFLState, answers: Answers, cohort: Cohort
    ) -> SelfFLState:
        """The server that has taken note of what this round says of the variances (eq.
        13 and 14).
        """
        reporters = cohort.reporters
        models = answers["model"]
        took_part = server.took_part.copy()
        intra = server.intra.copy()
        inter = server.inter
        took_part[reporters] = True
        # eq. 13 is the client's own estimate; the server takes note of the last one
        # that each has sent
        if self.intra_variances is None:
            sent = answers.reporters("intra").astype(np.float64)
            intra[reporters] = np.where(sent == _UNKNOWN, np.nan, sent)
        # eq. 14, from this round's models: algorithm 1 has it before their average,
        # which uses it
        if self.inter_variance is None and len(reporters) > 1:
            reporting = models.to_rows(cohort.reporting, fill=False)
            inter = float(variance_between(models.values, reporting))
        return server.replace(took_part=took_part, intra=intra, inter=inter)

    def _weights(self, server: SelfFLState, cohort: Cohort) -> NDArray[np.float64]:
        """Weights [c] of the average over reporters."""
        if self.weights != "variance":
            return reporter_weights(cohort, self.weights)
        precisions = np.where(
            cohort.reporting, self._precisions(server)[cohort.position], 0.0
        )
        total = precisions.sum()
        return precisions / total if total > 0 else reporter_weights(cohort, "uniform")

    def _precisions(self, server: SelfFLState) -> NDArray[np.float64]:
        """a_m = 1 / (s0 + s_m) of all clients.

        Returns:
            [m], with the median of the known variances for s_m that are not known; 0
            for clients that never took part, and for all clients while no variance is
            known.
        """
        is_given = self.intra_variances is not None
        anything_known = len(_known(server)) > 0
        intra = np.where(np.isnan(server.intra), _median_variance(server), server.intra)
        counts = (server.took_part | is_given) & anything_known
        return np.where(counts, 1 / np.maximum(server.inter + intra, _LEAST), 0.0)

    def serve(self, server: SelfFLState, cohort: Cohort) -> Downlink:
        return Downlink() if cohort.seen else self.broadcast(server, cohort)

    def personalization_gain(self, server: SelfFLState) -> NDArray[np.float64]:
        """GAIN_m (section 2.1): variance of client m's model learned alone over that of
        its model learned together.

        Returns:
            1 + s_m A [m], in the order of client ids; NaN for clients without a
            variance.
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
        none = jnp.zeros((), theta.dtype)
        return {"model": theta, "moments": (none, jnp.zeros_like(theta), none)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox["model"][0]
        others, inter, s = (
            inbox.scalars[name] for name in ("others", "inter", "intra")
        )
        moments = state["moments"]
        models_before, *_ = moments
        estimates = self.intra_variances is None
        # s_m: the client's own estimate from two models on, until then what the server
        # sent in its place.
        if estimates:
            s = jnp.where(models_before > 1, variance(moments) / theta.size, s)
        start, steps = theta, local.steps(self.sgd)
        if self.initialisation:
            # eq. 10, as soon as the client has a model and others have a precision
            defined = (others > 0) & (models_before > 0)
            # a_m / A
            share = 1 / (jnp.maximum(inter + s, _LEAST) * jnp.where(defined, others, 1))
            start = theta - jnp.where(defined, share, 0) * (state["model"] - theta)
        if self.dynamic_steps:
            steps = self._steps(s, inbox, local)
            steps = (
                jnp.where(models_before > 1, steps, self.l_max) if estimates else steps
            )
        new = local.sgd(start, self.sgd, steps=steps)
        # The variance sent up includes the model just trained (eq. 13 sums up to round
        # t). Forgetting takes weight off the past models: a smaller count and a smaller
        # sum of squares, around the same mean.
        if not is_off(self.forget):
            count, mean, m2 = moments
            moments = (1 - self.forget) * count, mean, (1 - self.forget) * m2
        moments = update(moments, new)
        models, *_ = moments
        own_variance = jnp.where(models > 1, variance(moments) / theta.size, _UNKNOWN)
        return {"model": new, "moments": moments}, {"model": new, "intra": own_variance}

    def _steps(self, s: Array, inbox: Inbox, local: LocalTrainer) -> Array:
        """Eq. 8, solved for the number of steps: l = log(rho) / log(1 - eta h), rounded
        up, from 1 to l_max.

        Args:
            s: the client's variance s_m.

        Returns:
            l, an integer; l_max where nothing is known of the others.
        """
        # With x = s_m A eq. 8's rho is x / (1 + x), and -log(rho) = log(1 + 1/x), exact
        # also for rho near 1.
        x = s * self._precision_of_others(
            inbox.scalars["others"], inbox.scalars["inter"]
        )
        rate: Any = self.sgd.rate(local.round)
        contraction = jnp.log1p(-rate * self._curvature(s, inbox["model"][0], local))
        wanted = jnp.log1p(1 / jnp.where(x > 0, x, 1)) / -contraction
        # a quotient that is whole on paper must not be rounded up to the next number
        rounding = 1e-3
        wanted = jnp.where(
            jnp.isfinite(contraction), jnp.ceil(wanted - rounding), 1
        )  # one step goes all the way
        steps = jnp.where(x > 0, jnp.clip(wanted, 1, self.l_max), self.l_max)
        return steps.astype(jnp.int32)

    def _precision_of_others(self, others: Any, inter: Any) -> Any:
        """The inverse of the variance of what all other clients' models say about one
        client's.
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
        theta, steps = inbox["model"][0], local.steps(self.sgd)
        if self.dynamic_steps:
            steps = self._steps(inbox.scalars["intra"], inbox, local)
        return {
            **self.init_client(theta),
            "model": local.sgd(theta, self.sgd, steps=steps),
        }


def _known(server: SelfFLState) -> NDArray[np.float64]:
    """The variances s_m of the clients that have one."""
    return server.intra[~np.isnan(server.intra)]


def _median_variance(server: SelfFLState) -> float:
    """What stands in for a variance that is not known; 0 while nobody has one."""
    known = _known(server)
    return float(np.median(known)) if len(known) else 0.0


def _sums_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_{k != m} values_k [m]."""
    return np.maximum(values.sum() - values, 0.0)
