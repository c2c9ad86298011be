"""UCFL: each client receives a mix of all models, weighted by similar gradients.

The method of the papers is in `ucfl_paper`. This file adds when to ask clients for
gradients (`WarmUp`), and the choice of n_k (`Trial`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedtailor._base.choice import require
from fedtailor.aggregation import (
    Probe,
    user_centric_weights,
)
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.batch_gradients import (
    batch_scatter,
    batch_size,
    batch_variance,
)
from fedtailor.algorithms.helpers.trial import Trial
from fedtailor.algorithms.helpers.user_centric import (
    BeforeProbe,
    UCFLState,
    bandwidth_of,
    probe_of,
    stream_diagnostics,
)
from fedtailor.algorithms.helpers.validation import validation_error
from fedtailor.algorithms.helpers.warm_up import (
    PROBE_SHARE,
    WarmUp,
    gradient_noise,
    sketcher,
    warm_up_diagnostics,
)
from fedtailor.algorithms.ucfl_paper import PaperUCFL
from fedtailor.protocol import (
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    HiddenRows,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Sees,
    hyperparameters,
    sums_type,
)

CANDIDATES = (0.0, 0.1, 0.25, 0.5, 1.0, np.nan)
"""The candidates of `sigma_batch="auto"`: n_k as a share of a client's samples.

0 is FedAvg, 1 is training alone, and NaN is the kernel `bound`, which has no n_k.
"""
TRIAL = "trial"
"""The mode of clients that train one model of each candidate."""


@hyperparameters
class UCFL(PaperUCFL):
    """User-centric federated learning (Mestoukirdi et al. 2021/2022).

    Every client answers a probe at a common model with its gradient g_i and the
    variance of its gradients over disjoint batches (eq. 10); the server turns them into
    rows of weights (eq. 9)

        w_ij ~ n_j exp( -|g_i - g_j|^2 / (2 sigma_i^2) )

    Then, in each round, every client trains the model of its stream, and the streams
    are mixed (eq. 8):

        theta_s = sum_j W_sj SGD(theta_s(j); D_j)

    With one stream for each client (`streams=None`) W consists of these rows. With
    fewer streams, W consists of the centroids of clusters of rows by k-means (eq. 11).
    "auto" chooses the number of streams by the silhouette (algorithm 2): it compares 2
    to m-1 streams, and uses a single stream if no silhouette is positive. With two
    clients there is always a single stream.

    When only some clients report (the paper assumes that all do), rows are renormalised
    over the reporters. A stream whose row has almost no weight on them does not change.
    An unseen client also answers the probe. It receives the stream whose centroid is
    nearest to its row or, with a stream for each client, its own mix of the models that
    clients sent last. Only streams that have been mixed and clients that have sent a
    model are used for this, because the other models are still theta^0. A seen client
    whose own stream has never been mixed is served in the same way.

    In the papers the probe is made once, at the initial model (`warm=0`), where
    gradients may say little about who resembles whom. By default it is made after 0, 1,
    2, 5, 10 and 20 rounds of FedAvg. Groups of clients are clear if their silhouette is
    0.5 or more. UCFL uses the probe with the largest silhouette, or a later one that
    finds the same clear groups. Asking ends when two clear probes, one after the other,
    find the same groups, when clients no longer differ after a clear one, and after 20
    rounds in any case. Until then all clients train FedAvg's model, and are served
    mixes of the models that they sent last, with the weights of the probe that is used
    so far. Clients answer with sketches of 1,024 numbers, whose distances are those of
    the gradients to about 4 %. If no test of all clients together finds the gradients
    to differ, there is a single stream, and training goes on as FedAvg. If they differ
    without clear groups, `streams="auto"` gives each client a stream of its own.

    The choice of n_k, the number of samples of a batch in the variances, is not in the
    papers. A small n_k gives FedAvg, a large one training alone. One probe is enough
    for all n_k, since sigma_i^2 = tr S_i (1/n_k - 1/n_i) in expectation, where S_i is
    the covariance of a single sample's gradient. From this probe `sigma_batch="auto"`
    computes the weights for five values of n_k. A sixth candidate has the weights of
    `kernel="bound"`, which need no n_k: they minimise a bound on the error of the mixed
    gradient, with distances from which the noise of both gradients is subtracted.

    All six candidates train in parallel for `trial` + 1 rounds: a client receives,
    trains and sends six models, and sends the validation error of each. The trial
    continues, at most three times as long, while the best candidate is wrong more than
    half as often as the initial model. The rest of the run uses the candidate of lowest
    error, averaged over clients and over the later half of these rounds.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="ucfl",
        paper="Mestoukirdi et al. 2021, User-Centric Federated Learning",
        down="1 model of its stream",
        up="1 model (1 sketch of a gradient and 4 scalars in each of up to 6 probes)",
        client_keeps="nothing",
        unseen_clients_get=(
            "answers the probe; the nearest stream, or its own mix of the last models"
        ),
        models_received="one of several",
        sums_if="streams is a number, and sigma_batch not 'auto'",
    )

    modes = (TRIAL,)

    trial: int = 10
    """Rounds in which the candidates of "auto" train before one of them is chosen; up
    to three times as many if they learn slowly (see `Trial.is_over`). A run that ends
    earlier uses the best candidate so far."""
    warm: int | Literal["auto"] = "auto"
    """Rounds of FedAvg before the probe, whose gradients are then taken at the resulting
    model (in the papers at theta^0: 0). "auto" asks with sketches of the gradients,
    until they show clear groups, or 20 rounds are over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trial >= 1, f"trial is {self.trial}; it must be 1 or more")
        require(
            self.warm == "auto" or (isinstance(self.warm, int) and self.warm >= 0),
            f"warm is {self.warm!r}; it must be a number of rounds, 0 or more, or 'auto'",
        )

    def phases(self) -> Sequence[tuple[Algorithm, int | None]]:
        # "auto" trains as FedAvg within this method, as its rounds are not known before.
        if isinstance(self.warm, int) and self.warm > 0:
            return [(FedAvg(sgd=self.sgd), self.warm), (self, None)]
        return [(self, None)]

    # Said again, as this class has a server of its own.
    @property
    def server_sees(self) -> Sees:
        is_number = isinstance(self.streams, int)
        return "sums" if is_number and not self._has_trial else "models"

    @property
    def sums_per_round(self) -> int:
        return self.streams if isinstance(self.streams, int) else 1

    @property
    def _has_trial(self) -> bool:
        """Whether several candidates for the weights are compared in a `Trial`."""
        return self.sigma_batch == "auto" and self.kernel != "bound"

    @property
    def _needs_trace(self) -> bool:
        """Whether clients send tr S / n instead of sigma^2."""
        return self.sigma_batch == "auto" or self.kernel == "bound"

    # before training
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> BeforeProbe:
        if self.rows is None and self.warm == "auto":
            return WarmUp.start(init(0), population)
        return super().init_server(init, population)

    @property
    def probe_needs_all(self) -> bool:
        return self.warm != "auto"

    def asks_again(self, server: BeforeProbe) -> bool:
        return isinstance(server, WarmUp) and server.asks

    def probe_downlink(self, server: BeforeProbe, cohort: Cohort) -> Downlink:
        if isinstance(server, Trial):
            server = server.leader
        elif isinstance(server, WarmUp) and not cohort.seen and server.streams:
            # Newcomers are asked at the model at which the streams' clients were.
            server = server.streams
        downlink = super().probe_downlink(server, cohort)
        seed = server.sketch if isinstance(server, WarmUp | UCFLState) else None
        return downlink if seed is None else replace(downlink, scalars={"sketch": seed})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta, n = inbox.only("model"), local.size
        answer = {"samples": n.astype(sums_type(theta))}
        gradient, project = local.gradient(theta), None
        if "sketch" in inbox.scalars:
            project = sketcher(gradient, inbox.scalars["sketch"])
        # "auto" and `bound` need tr S / n, from which sigma^2 follows for every n_k, and
        # so does the test of whether clients differ.
        if self._needs_trace or self.warm == "auto":
            size = batch_size(PROBE_SHARE, n)
            sigma2, concentration = batch_scatter(
                local, theta, gradient, PROBE_SHARE, project
            )
            if self.warm == "auto":
                answer["concentration"] = concentration
            # sigma_i^2 = tr S (1/n_k - 1/n) = (tr S / n) (n / n_k - 1), in expectation
            factor = jnp.where(n > size, n / size - 1, 1)
            noise = sigma2 / factor.astype(sums_type(theta))
            answer["sigma2" if self._needs_trace else "noise"] = noise
        # Other weights are those of eq. 10 with the batches that it names, so that a probe
        # of "auto" has the weights of `warm` at its round.
        if not self._needs_trace:
            assert not isinstance(self.sigma_batch, str)
            own = batch_size(self.sigma_batch, n)
            answer["sigma2"] = batch_variance(local, theta, gradient, own)
        if project is None:
            answer["gradient"] = gradient
        else:
            answer["sketch"] = project(gradient)
        if self._has_trial:
            answer["validation"] = local.count("val").astype(sums_type(theta))
        return answer

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        more = {
            "noise": (0, math.inf),
            "concentration": (0, 1),
            "validation": (0, math.inf),
        }
        return {**super().ranges(size), **more}

    def aggregate_probe(
        self, server: BeforeProbe, answers: Answers, cohort: Cohort
    ) -> UCFLState | Trial | WarmUp:
        if self._has_trial and cohort.reporting.all():
            require(
                bool((answers.host("validation") > 0).any()),
                "sigma_batch 'auto' is chosen on validation data, and no client has any;"
                " split some off, or name a number",
            )
        probe = probe_of(answers, cohort)
        if not isinstance(server, WarmUp):
            if self._has_trial:
                return self._trial(server, probe, answers)
            return self._streams_after(server, probe)
        noise = gradient_noise(answers)
        server, counts = server.after_probe(
            replace(probe, sigma2=noise),
            answers.host("concentration"),
            cohort.reporting,
            self.kernel,
        )
        # Clients that differ, but not by groups, cannot share a stream.
        is_auto = self.streams == "auto" and self.trade_off is None
        method = (
            replace(self, streams=None) if is_auto and not server.has_groups else self
        )
        if counts:
            server = server.replace(streams=method._streams_after(server, probe))
        if not server.is_over:
            return server
        if server.streams is None:
            return self._one_for_all(server, probe)
        # Training begins at FedAvg's model, with the weights of the best probe.
        streams = server.streams.replace(asked=server.asked)
        if not self._has_trial:
            return streams.starting_at(server.initial)
        assert streams.gradients is not None and streams.sigma2 is not None
        best = Probe(streams.gradients, streams.sigma2, streams.sizes)
        return method._trial(streams, best, answers).starting_at(server.initial)

    def _streams_after(self, server: BeforeProbe, probe: Probe) -> UCFLState:
        """The streams of a probe, before their first round.

        If n_k is still to be chosen, they have that of the papers, a third.
        """
        if self._has_trial:
            return self._candidate(server, probe, 1 / 3)
        rows = user_centric_weights(probe, self.kernel)
        return self._with_streams(server, rows, probe)

    def _trial(self, server: BeforeProbe, probe: Probe, answers: Answers) -> Trial:
        """The trial of all candidates, before its first round.

        Args:
            server: the server before.
            probe: with tr S_i / n_i for sigma_i^2.
            answers: the clients' answers to the last probe.
        """
        return Trial(
            initial=server.initial,
            ids=server.ids,
            sizes=server.sizes,
            candidates=[self._candidate(server, probe, share) for share in CANDIDATES],
            shares=np.array(CANDIDATES),
            validates=answers.host("validation") > 0,
            errors=np.zeros((0, len(CANDIDATES))),
        )

    def _one_for_all(self, server: WarmUp, probe: Probe) -> UCFLState:
        """The server for clients that do not differ: a single stream, which is FedAvg."""
        weights = server.sizes / server.sizes.sum()
        rows = np.tile(weights, (len(weights), 1))
        state = replace(self, streams=1)._with_streams(server, rows, probe)
        return state.replace(bandwidth=np.inf)

    def _candidate(self, server: BeforeProbe, probe: Probe, share: float) -> UCFLState:
        """The server's state with one of the `CANDIDATES` for the weights.

        Args:
            server: the server before the probe.
            probe: with tr S_i / n_i for sigma_i^2.
            share: n_k / n_i, see `bandwidth_of`; NaN = the kernel `bound`.
        """
        if np.isnan(share):
            rows = user_centric_weights(probe, "bound")
            return self._with_streams(server, rows, probe).replace(kernel="bound")
        bandwidth = bandwidth_of(share)
        rows = user_centric_weights(probe.with_bandwidth(bandwidth), self.kernel)
        return self._with_streams(server, rows, probe).replace(bandwidth=bandwidth)

    def _with_streams(
        self,
        server: BeforeProbe,
        rows: Float[np.ndarray, "m m"],
        probe: Probe | None = None,
    ) -> UCFLState:
        streams = super()._with_streams(server, rows, probe)
        if not isinstance(server, WarmUp | UCFLState):
            return streams
        return streams.replace(sketch=server.sketch, asked=server.asked)

    # rounds
    # ----------------------------------------------------------------------------------

    def broadcast(self, server: UCFLState | Trial | WarmUp, cohort: Cohort) -> Downlink:
        if isinstance(server, WarmUp):
            return server.downlink(cohort, already_held=server.fresh)
        if isinstance(server, Trial):
            return replace(server.downlink(cohort), mode=TRIAL)
        return super().broadcast(server, cohort)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        models = inbox["model"]
        if inbox.mode != TRIAL:
            return super().client(state, inbox, local)
        # The client receives one model of each candidate. It measures their validation
        # errors before it trains them.
        errors = local.map(lambda theta: validation_error(local, theta), models)
        trained = local.map(lambda theta: local.sgd(theta, self.sgd), models)
        return state, {"model": trained, "error": errors}

    def server(
        self,
        server: UCFLState | Trial | WarmUp,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> UCFLState | Trial | WarmUp:
        models = answers["model"]
        if isinstance(server, WarmUp):
            return self._after_warm_up(server, models, cohort)
        if isinstance(server, UCFLState):
            return self._mix_streams(server, models, cohort)
        # The k-th of the models that each client sent belongs to candidate k.
        candidates = []
        for k, candidate in enumerate(server.candidates):
            candidates.append(self._mix_streams(candidate, models.item(k), cohort))
        trial = server.after(candidates, answers, cohort)
        return trial.chosen() if trial.is_over(self.trial) else trial

    def _after_warm_up(
        self, server: WarmUp, models: ClientRows, cohort: Cohort
    ) -> WarmUp:
        """The server after a round of the warm-up, of these models [c, d]."""
        server = server.after_round(models, cohort)
        if server.streams is None or not cohort.reporting.any():
            return server
        if isinstance(models, HiddenRows):
            # Every further sum of hidden models would tell the server more of them.
            return server.replace(streams=server.streams.starting_at(server.initial))
        # What clients are served is personal from the first good probe on. A stream
        # with no weight on the reporters is FedAvg's model.
        streams = server.streams.starting_at(server.initial)
        streams = self._mix_streams(streams, models, cohort)
        return server.replace(
            streams=streams.replace(mixed=np.ones(len(streams.model), bool))
        )

    # after training
    # ----------------------------------------------------------------------------------

    def serve(self, server: UCFLState | Trial | WarmUp, cohort: Cohort) -> Downlink:
        if isinstance(server, WarmUp):
            if server.streams is None:
                return server.downlink(cohort)
            server = server.streams
        server = server.leader if isinstance(server, Trial) else server
        return super().serve(server, cohort)

    # reports
    # ----------------------------------------------------------------------------------

    def diagnostics(self, server: UCFLState | Trial | WarmUp) -> Sequence[Diagnostic]:
        if isinstance(server, WarmUp):
            of_streams = (
                [] if server.streams is None else stream_diagnostics(server.streams)
            )
            return [*of_streams, *warm_up_diagnostics(server.asked)]
        server = server.leader if isinstance(server, Trial) else server
        return [*stream_diagnostics(server), *warm_up_diagnostics(server.asked)]
