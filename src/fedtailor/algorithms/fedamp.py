"""FedAMP: each client's training is pulled towards a mean of similar models."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import mix
from fedtailor.aggregation.distances import cosine_similarity, squared_distances
from fedtailor.algorithms.helpers.pairs import check_pairs
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.proximal import require_stable
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    MatrixDiagnostic,
    Population,
    ServerState,
    Streams,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_state,
)


@server_state
class FedAMPState(ServerState):
    """The model that each client sent last, and the weights of its mean."""

    models: Float[np.ndarray, "m d"]
    """w_1, ..., w_m, on the host; the initial model for clients that have sent none."""
    sent: Bool[np.ndarray, " m"]
    """Which clients have ever sent one."""
    attention: Float[np.ndarray, "m m"]
    """xi_ij, with a client's own weight on the diagonal: each row sums to 1."""
    initial: Float[Array, " d"]
    """The common initial model, which new clients can compute from the seed."""


@hyperparameters
class FedAMP(PersonalModelAlgorithm):
    """Federated attentive message passing.

    Huang et al. 2021, algorithm 1, equations 5 to 8.

    The server keeps the last model of every client and sends client i a mean of these
    models, with weights that depend on i:

        u_i = sum_(j != i) xi_ij w_j + (1 - sum_(j != i) xi_ij) w_i,
        xi_ij = (alpha / sigma) exp(-|w_i - w_j|^2 / sigma)

    A proximal term pulls the client's training towards u_i:

        w_i <- SGD(w_i; F_i(w) + lam / (2 alpha) |w - u_i|^2)

    So clients with similar models become more similar still. `heur` is HeurFedAMP, for
    models too large for Euclidean distances: xi_ij ~ exp(sigma cos(w_i, w_j)), scaled
    so that they and the client's own weight sum to 1. The server sees each client's
    model.

    A client that never took part receives all models, because the server has no model
    of this client from which it could compute u. The client trains once from their
    mean, computes u itself, and trains again as in a round.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedamp",
        paper=(
            "Huang et al. 2021, Personalized Cross-Silo Federated Learning on Non-IID"
            " Data"
        ),
        down="1 model, its own mean",
        up="1 model",
        client_keeps="its personal model",
        unseen_clients_get="all clients' models; trains, attends to them, and trains again",
        models_received="one of several",
    )

    sgd: SGD = SGD()
    """Local training."""
    alpha: float = 0.1
    """Step of the message passing, above 0; at most sigma / (m - 1) for m clients
    (Huang et al.: 0.1).
    """
    lam: ZeroIsStatic = 0.1
    """Strength of the regularizer: the weight of the proximal term around u_i is lam /
    alpha (Huang et al.: lam / alpha = 1).
    """
    sigma: float | None = None
    """Scale of squared distances (or of cosines, for `heur`). None = 1, the paper's, or
    alpha times the number of clients where that is more, so that no client's own weight
    is negative."""
    heur: bool = False
    """HeurFedAMP: attention by cosines."""
    own_weight: float | None = None
    """A client's weight in its own mean, for `heur`, in [0, 1]; None = 1/m for m
    clients.
    """
    start: Literal["own", "mean"] = "own"
    """Where local training starts: from the client's own model w_i, or from u_i."""

    def __post_init__(self) -> None:
        require(
            self.alpha > 0,
            f"alpha is {self.alpha}; it must be above 0 (local is the method without"
            " messages)",
        )
        require(
            self.sigma is None or self.sigma > 0,
            f"sigma is {self.sigma}; it must be above 0",
        )
        require_stable("lam / alpha", self.lam / self.alpha, self.sgd)
        is_valid = self.own_weight is None or 0 <= self.own_weight <= 1
        require(is_valid, f"own_weight is {self.own_weight}; it must be in [0, 1]")
        require(
            self.heur or self.own_weight is None,
            "own_weight belongs to heur; leave it out, or set heur",
        )

    def check(self, population: Population) -> None:
        check_pairs(population, self.about.name)
        others, sigma = len(population) - 1, self._scale(len(population))
        require(
            self.heur or self.alpha * others <= sigma,
            f"alpha {self.alpha:g} with sigma {sigma:g} gives the own models of"
            f" {others + 1} clients a negative weight; the largest alpha for them is"
            f" {sigma / max(others, 1):.4g}",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> FedAMPState:
        theta, clients = init(0), len(population)
        models = np.repeat(np.asarray(theta)[None], clients, axis=0)
        return FedAMPState(
            models, np.zeros(clients, bool), self._attention(models), theta
        )

    def broadcast(self, server: FedAMPState, cohort: Cohort) -> Downlink:
        clients = cohort.position
        # u_i = sum_j xi_ij w_j for each client of the cohort. Rows of xi sum to 1, so
        # `mix` returns these averages and does not read its first argument.
        means = mix(server.models[clients], server.models, server.attention[clients])
        return Downlink({"model": Streams.one_each(means)})

    def server(
        self, server: FedAMPState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> FedAMPState:
        if not cohort.reporting.any():
            return server
        models = server.models.copy()
        sent = server.sent.copy()
        models[cohort.reporters] = answers.reporters("model")
        sent[cohort.reporters] = True
        return server.replace(
            models=models, sent=sent, attention=self._attention(models)
        )

    def _attention(self, models: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m m"]:
        """xi between all clients, from their models.

        Returns:
            Rows that sum to 1, with the own weight 1 - sum_(j != i) xi_ij on the
            diagonal.
        """
        clients = len(models)
        distances_or_cosines = (
            cosine_similarity(models) if self.heur else squared_distances(models)
        )
        is_other = ~np.eye(clients, dtype=bool)
        weights = np.asarray(self._weights(distances_or_cosines, is_other, clients, np))
        weights[~is_other] = 1 - weights.sum(axis=1)
        return weights

    def _scale(self, clients: int) -> float:
        """sigma, by default such that no client's own weight is negative."""
        if self.sigma is not None:
            return self.sigma
        return 1.0 if self.heur else max(1.0, self.alpha * clients)

    def _weights(
        self, distances_or_cosines: Any, is_other: Any, clients: int, xp: Any
    ) -> Any:
        """xi_ij for j != i.

        Args:
            distances_or_cosines: squared distances or, for `heur`, cosines [..., m].
            is_other: [..., m] which entries are other clients.
            clients: the number of clients, the own one included.
            xp: the library of the arrays: NumPy on the server, JAX on a newcomer.

        Returns:
            [..., m], zero where not `is_other`.
        """
        sigma = self.sigma
        if not self.heur:
            # alpha A'(|w_i - w_j|^2), where A(x) = 1 - exp(-x / sigma) is the paper's
            # attention-inducing function.
            scale = xp.maximum(1.0, self.alpha * clients) if sigma is None else sigma
            weights = self.alpha / scale * xp.exp(-distances_or_cosines / scale)
            return xp.where(is_other, weights, 0.0)
        own = 1 / clients if self.own_weight is None else self.own_weight
        inverse_temperature = 1.0 if sigma is None else sigma
        # The cosine less 1 changes no quotient, and nothing overflows.
        exponentials = xp.exp(inverse_temperature * (distances_or_cosines - 1))
        exponentials = xp.where(is_other, exponentials, 0.0)
        total = exponentials.sum(axis=-1, keepdims=True)
        return (1 - own) * exponentials / xp.where(total > 0, total, 1.0)

    def global_model(self, server: FedAMPState) -> Float[Array, " d"]:
        return jnp.asarray(server.models.mean(axis=0))  # there is no global model

    def serve(self, server: FedAMPState, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        # Unseen clients receive the models of all clients that have ever sent one.
        models = Streams.all_to_all(
            jnp.asarray(server.models), len(cohort), is_sent=server.sent
        )
        # They can compute the initial model from the seed, so the ledger does not count
        # it.
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink({"model": models, "initial": start})

    def diagnostics(self, server: FedAMPState) -> Sequence[Diagnostic]:
        return [
            MatrixDiagnostic(
                "collaboration",
                "Attention: a client's mean of all models",
                server.attention,
            )
        ]

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        w = self._train(state["model"], inbox.only("model"), local)
        return {"model": w}, {"model": w}

    def _train(
        self, w: Float[Array, " d"], u: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " d"]:
        """Minimise F_i(w) + lam / (2 alpha) |w - u|^2."""
        # `local.sgd` adds the gradient of the second term. A constant lam = 0 leaves it
        # out of the compiled program.
        proximal = None if is_off(self.lam) else (self.lam / self.alpha, u)
        return local.sgd(w if self.start == "own" else u, self.sgd, proximal=proximal)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        models = inbox["model"]
        sent = inbox.received["model"]
        # First w, a model of its own to compare with the others: it is trained from
        # the mean of what they sent.
        average = sent @ models / jnp.maximum(sent.sum(), 1)
        mean = jnp.where(sent.any(), average, inbox.only("initial"))
        w = local.sgd(mean, self.sgd)
        if self.heur:
            lengths = jnp.linalg.norm(models, axis=1) * jnp.linalg.norm(w)
            distances_or_cosines = (models @ w) / jnp.where(lengths > 0, lengths, 1)
        else:
            distances_or_cosines = jnp.square(models - w).sum(axis=1)
        # Then its row of xi, and a training as in a round, towards u. alpha was checked
        # for one client less, so the row may sum to more than 1.
        xi = self._weights(distances_or_cosines, sent, len(models) + 1, jnp)
        xi = xi / jnp.maximum(xi.sum(), 1)
        u = xi @ models + (1 - xi.sum()) * w
        return {"model": self._train(w, u, local)}
