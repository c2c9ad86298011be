"""FedFomo: each client weighs other clients' models by its validation loss."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.algorithms.helpers.pairs import check_pairs
from fedtailor.protocol import (
    NOT_SENT,
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
    LocalTrainer,
    MatrixDiagnostic,
    Population,
    Predictor,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class FedFomoState(ServerState):
    """The clients' last models, and the weights that clients gave to other models."""

    initial: Float[Array, " d"]
    """The common initial model."""
    model: Float[Array, "m d"]
    """The model that each client uploaded last; the initial one before the first."""
    uploaded: Bool[np.ndarray, " m"]
    """Which clients have uploaded a model."""
    affinity: Float[np.ndarray, "m m"]
    """P: row i holds the sums of the weights that client i gave to other models."""


@hyperparameters
class FedFomo(Algorithm):
    """Personalized federated learning with first order model optimization.

    Zhang et al. 2021.

    The server keeps the last model that each client uploaded and sends a client M of
    them. The client weighs these and its own, with L its validation loss and b its
    model before its last local training,

        w_n ~ max( L(b) - L(theta_n), 0 ) / |theta_n - b|,     theta <- b + sum_n w_n (theta_n - b),

    w normalised to sum 1 (theta = b if no model is better), then trains theta on its
    own data and uploads the result with the weights. The affinities P are the sums of
    these weights over the rounds. The server sends the M models of largest affinity,
    ties at random; with probability `explore` it chooses uniformly instead. Models that
    were never uploaded are not sent, so nothing is sent in the first round. A client
    that never took part weighs all models and the common initial model by its loss on a
    held-out share of its training data.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedfomo",
        paper=(
            "Zhang et al. 2021, Personalized Federated Learning with First Order Model"
            " Optimization"
        ),
        down="M other clients' models",
        up="1 model and M weights",
        client_keeps="its model before and after training",
        unseen_clients_get=(
            "weighs all models on held-out training samples, then trains on the others"
        ),
        models_received="several",
        validation=(
            "the weights of the models that it receives; else held-out training samples"
        ),
    )

    sgd: SGD = SGD(lr=0.1, epochs=5, batch_size=50, weight_decay=1e-4, lr_decay=0.01)
    """Local training (released code)."""
    downloads: int = 5
    """M, models sent to a client in a round (released code: 5 or 10); at most all
    others.
    """
    explore: float = 0.3
    """Probability of a uniform choice of the M models in the first round (released
    code).
    """
    explore_decay: float = 0.05
    """What is subtracted from that probability in every round, down to 0 (released
    code).
    """
    norm: Literal["l2", "l1"] = "l2"
    """Distance between models: Euclidean (the paper), or the sum of absolute
    differences (the released code).
    """
    holdout: float = 0.2
    """Share of the training samples held out for validation, in (0, 1), by clients
    without a validation split and by those that never took part."""
    predict_with: Literal["trained", "mixed"] = "trained"
    """The personal model: after the local training, or the weighted one before it."""

    @property
    def takes_weights(self) -> bool:
        return False  # rows are divided into parts

    def __post_init__(self) -> None:
        require(
            self.downloads >= 0, f"downloads is {self.downloads}; it must be 0 or more"
        )
        require(
            0 <= self.explore <= 1, f"explore is {self.explore}; it must be in [0, 1]"
        )
        require(
            self.explore_decay >= 0,
            f"explore_decay is {self.explore_decay}; it must be 0 or more",
        )
        require(
            0 < self.holdout < 1, f"holdout is {self.holdout}; it must be in (0, 1)"
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        check_pairs(population, self.about.name)

    def init_server(self, init: Init, population: Population) -> FedFomoState:
        clients, theta = len(population), init(0)
        return FedFomoState(
            initial=theta,
            model=jnp.repeat(theta[None], clients, axis=0),  # [m, d]
            uploaded=np.zeros(clients, bool),
            affinity=np.zeros((clients, clients)),
        )

    def broadcast(self, server: FedFomoState, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams(server.model, self._choose(server, cohort))})

    def _choose(self, server: FedFomoState, cohort: Cohort) -> Int[np.ndarray, "c k"]:
        """The clients whose models each client of the cohort is sent.

        Returns:
            Positions of clients [c, M], filled up with `NOT_SENT` where fewer than M
            other clients have uploaded a model.
        """
        clients = len(server.uploaded)
        rng = cohort.rng("fedfomo")
        most = min(self.downloads, clients - 1)
        chosen = np.full((len(cohort), most), NOT_SENT, np.int32)
        explore = max(self.explore - self.explore_decay * cohort.round, 0.0)
        for row, client in enumerate(cohort.position):
            # Order by affinity, the largest first, with ties at random. A client that
            # explores takes all clients at random.
            explores = rng.random() < explore
            ties = rng.random(clients)
            affinity = np.zeros(clients) if explores else server.affinity[client]
            ranked = np.lexsort((ties, -affinity))
            is_available = server.uploaded[ranked] & (ranked != client)
            best = ranked[is_available][:most]
            chosen[row, : len(best)] = best
        return chosen

    def server(
        self, server: FedFomoState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> FedFomoState:
        clients = len(server.uploaded)
        uploaded = server.uploaded.copy()
        uploaded[cohort.reporters] = True
        # Store the models of the reporters. All other rows (of other clients, and of
        # padding) get a position past the end, which `_store` drops.
        models = answers["model"]
        position = np.where(cohort.reporting, cohort.position, clients)
        rows = models.to_rows(position, fill=clients)
        model = _store(server.model, models.values, rows)
        # Add the weights [c, M] to the affinities. `recipients` [c, M] holds the
        # positions of the clients whose models were sent.
        weights = answers.host("weights")  # as a NumPy array
        sources = downlink.streams["model"].recipients
        is_used = (sources != NOT_SENT) & cohort.reporting[:, None]
        row, column = np.nonzero(is_used)
        affinity = server.affinity.copy()
        affinity[cohort.position[row], sources[row, column]] += weights[row, column]
        return server.replace(model=model, uploaded=uploaded, affinity=affinity)

    def global_model(self, server: FedFomoState) -> Float[Array, " d"]:
        # There is no global model: the mean of all clients' last uploads.
        return server.model.mean(axis=0)

    def serve(self, server: FedFomoState, cohort: Cohort) -> Downlink:
        # Seen clients have their own models, so nothing is sent to them.
        if cohort.seen:
            return Downlink()
        # Unseen clients receive the models of all clients that have ever uploaded one.
        models = Streams.all_to_all(server.model, len(cohort), is_sent=server.uploaded)
        # They can compute the initial model from the seed, so the ledger does not count
        # it.
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink({"model": models, "initial": start})

    def diagnostics(self, server: FedFomoState) -> Sequence[Diagnostic]:
        return [
            MatrixDiagnostic(
                "affinity",
                "Weights that clients gave to others' models",
                server.affinity,
            )
        ]

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"base": theta, "model": theta}

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        return {"weights": (0, 1)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        state, weights = self._update(state, inbox, local, use_val=True)
        return state, {"model": state["model"], "weights": weights[:-1]}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        start = self.init_client(inbox.only("initial"))
        state, _ = self._update(start, inbox, local, use_val=False)
        return state

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model" if self.predict_with == "trained" else "base"]

    def _update(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer, use_val: bool
    ) -> tuple[ClientState, Float[Array, " k"]]:
        """Weigh models, mix them, and train the mixture.

        Args:
            state: the client's.
            inbox: the models of other clients.
            local: the client's data and training.
            use_val: weigh on the validation split if there is one; otherwise on
                held-out training samples.

        Returns:
            The new state, and the weights of the models that were sent and, last, of
            the client's own model.
        """
        # The candidates theta_n are the received models and, last, the client's own
        # model after its last training. b is the client's model before that training.
        base = state["base"]
        models = jnp.concatenate([inbox["model"], state["model"][None]])
        is_available = jnp.append(inbox.received["model"], True)
        # With a validation split no training samples are held out. A client with a
        # single sample trains and validates on it.
        n = local.size
        held_count = jnp.clip(jnp.int32(self.holdout * n), 1, n)
        if use_val:
            held_count = jnp.where(local.count("val") > 0, 0, held_count)
        train_count = jnp.maximum(n - held_count, jnp.minimum(n, 1))
        held_out = local.part(n - held_count, n, "holdout")

        def validation_loss(theta: Float[Array, " d"]) -> Float[Array, ""]:
            loss = held_out.loss(theta, "train")
            # One of the two splits is empty, and its loss is 0.
            return local.loss(theta, "val") + loss if use_val else loss

        # w_n ~ max( L(b) - L(theta_n), 0 ) / |theta_n - b|. All are 0 if no model is
        # better than b.
        decrease = validation_loss(base) - local.map(validation_loss, models)
        gain = jnp.where(is_available, jnp.maximum(decrease, 0), 0)
        differences = models - base
        distance = jnp.linalg.norm(differences, axis=1)
        if self.norm == "l1":
            distance = jnp.abs(differences).sum(axis=1)
        weights = gain / (distance + 1e-12)
        weights = weights / jnp.where(weights.sum() > 0, weights.sum(), 1)
        # theta <- b + sum_n w_n (theta_n - b)
        theta = base + (weights[:, None] * differences).sum(axis=0)
        theta = theta.astype(base.dtype)  # of a model in bfloat16, weights are float32
        trained = local.part(0, train_count, "holdout").sgd(theta, self.sgd)
        return {"base": theta, "model": trained}, weights


@jax.jit
def _store(
    table: Float[Array, "m d"], models: Float[Array, "c d"], rows: NDArray[np.int64]
) -> Float[Array, "m d"]:
    """The table with `models` in these rows; those past its end are dropped."""
    return table.at[rows].set(models, mode="drop")
