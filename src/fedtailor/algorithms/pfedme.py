"""pFedMe: personal models by Moreau envelopes."""

from typing import ClassVar, Literal

from jaxtyping import Array, ScalarLike

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.envelope import envelope_steps
from fedtailor.algorithms.helpers.own_steps import require_plain_sgd
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.proximal import require_stable
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    GlobalModel,
    Inbox,
    LocalTrainer,
    Predictor,
    Streams,
    TracedInt,
    hyperparameters,
)


@hyperparameters
class PFedMe(PersonalModelAlgorithm):
    """Personalized federated learning with Moreau envelopes.

    Dinh et al. 2020, algorithm 1.

    The global model w minimises the mean of the envelopes min_theta f_i(theta) + lam/2
    |theta - w|^2, whose gradient is lam (w - theta_i(w)). In a round every client takes
    R steps from w_0 = w; on each mini-batch

        theta <- theta - eta_p ( g_i(theta) + lam (theta - w_r) )     K times on the same batch
        w_{r+1} = w_r - eta lam ( w_r - theta )

    and the server averages what the reporters send:

        w <- (1 - beta) w + beta mean_S w_R

    All clients train in every round. The personal model is theta after the last of the
    R mini-batches. A client that never took part computes its theta in the same way
    around the final w, which does not change.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="pfedme",
        paper="Dinh et al. 2020, Personalized Federated Learning with Moreau Envelopes",
        down="1 model, to all clients",
        up="1 model",
        client_keeps="its personal model",
        unseen_clients_get="inner steps around the global model",
        server_sees="sums",
    )
    participants: ClassVar = "all"

    sgd: SGD = SGD(lr=0.1, steps=20, batch_size=20)
    """Inner steps: their rate eta_p, and the number R of mini-batches in a round
    (released code: R = 20, batch 20, rate 0.1 for logistic regression and 0.09 for
    networks; it also decays weights by 0.001, which the paper does not)."""
    inner_steps: TracedInt = 5
    """K, inner steps on each mini-batch."""
    lam: float = 15.0
    """Weight of the proximal term lam/2 |theta - w|^2."""
    outer_lr: float = 0.005
    """eta, the learning rate of w: each step goes the fraction outer_lr lam of the way
    to theta, usually at most 1.
    """
    beta: float = 1.0
    """The server's step towards the average; above 1 is over-relaxation (Dinh et al.
    tune 1 to 4).
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters: equal (the paper), or by training samples
    n_i (the released code).
    """
    warm_start: bool = True
    """Start the inner steps on a mini-batch from the theta of the one before (the
    released code) instead of w_r; the paper does not say.
    """
    predict_with: Literal["personal", "global"] = "personal"
    """Which model a client predicts with: theta_i ("personal"), or w ("global")."""

    def __post_init__(self) -> None:
        require_plain_sgd("pfedme's inner steps", self.sgd)
        require(
            self.inner_steps >= 1,
            f"inner_steps is {self.inner_steps}; it must be 1 or more",
        )
        require(
            self.lam > 0 and self.beta > 0,
            f"lam {self.lam} and beta {self.beta} must be above 0",
        )
        require_stable("lam", self.lam, self.sgd)
        share = self.outer_lr * self.lam
        require(
            0 < share < 2,
            f"outer_lr times lam is {share:g}; it must be above 0 and below 2 (at most"
            " 1 is usual)",
        )

    def broadcast(self, server: GlobalModel, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # The step w <- w - eta lam (w - theta) moves w by the fraction eta lam of its
        # distance to theta.
        theta, w = self._solve(inbox.only("model"), local, self.outer_lr * self.lam)
        return {"model": theta}, {"model": w}

    def _solve(
        self, w: Array, local: LocalTrainer, share: ScalarLike
    ) -> tuple[Array, Array]:
        """R inner solves, each followed by a step of w.

        Returns:
            theta after the last solve, and w.
        """
        return envelope_steps(
            local,
            w,
            self.sgd,
            self.inner_steps,
            self.lam,
            share,
            warm_start=self.warm_start,
        )

    def server(
        self, server: GlobalModel, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> GlobalModel:
        # With weights [1, c] that sum to beta, `mix` returns (1 - beta) w + beta mean_S
        # w_R.
        weights = self.beta * reporter_weights(cohort, self.weights)[None]
        return server.replace(model=mix(server.model, answers["model"], weights))

    def serve(self, server: GlobalModel, cohort: Cohort) -> Downlink:
        if self.predict_with == "global":
            return self.broadcast(server, cohort)
        return super().serve(server, cohort)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        if self.predict_with == "global":
            return inbox.only("model")
        return super().personal(state, inbox, local)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        if self.predict_with == "global":
            return self.init_client(inbox.only("model"))
        # Training is over, so w does not change (share = 0).
        theta, _ = self._solve(inbox.only("model"), local, share=0.0)
        return {"model": theta}
