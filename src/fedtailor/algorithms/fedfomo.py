"""FedFomo: every client weighs other clients' models by what they do on its own validation samples."""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Predictor,
    Streams,
    hyperparameters,
    require,
)


@hyperparameters
class FedFomo(Algorithm):
    """Personalized federated learning with first order model optimization (Zhang et al. 2021).

    The server keeps the last model that each client uploaded and sends a client M of them. The client weighs these and
    its own, with L its validation loss and b its model before its last local training,

        w_n ~ max( L(b) - L(theta_n), 0 ) / |theta_n - b|,     theta <- b + sum_n w_n (theta_n - b),

    w normalised to sum 1 (theta = b where no model is better), then trains theta on its own data and uploads the
    result with the weights. Their sums over the rounds are the affinities P, by which the server chooses the next M
    models, ties at random; with probability `explore` it chooses uniformly instead. Models never uploaded are not sent:
    in the first round nothing is. A client that never took part weighs all models, from the common initial one.
    """

    about: ClassVar[About] = About(
        name="fedfomo",
        paper="Zhang et al. 2021, Personalized Federated Learning with First Order Model Optimization",
        down="M other clients' models",
        up="1 model and M weights",
        keeps="its model before and after training",
        unseen="weighs all models on its own validation samples, then trains",
    )

    sgd: SGD = SGD(lr=0.1, epochs=5, batch_size=50, weight_decay=1e-4, lr_decay=0.01)
    """Local training (released code)."""
    downloads: int = 5
    """M, models sent to a client in a round (released code: 5 or 10); at most all others."""
    explore: float = 0.3
    """Probability of a uniform choice of the M models in the first round (released code)."""
    explore_decay: float = 0.05
    """What is subtracted from that probability in every round, down to 0 (released code)."""
    norm: Literal["l2", "l1"] = "l2"
    """Distance between models: Euclidean (the paper), or the sum of absolute differences (the released code)."""
    holdout: float = 0.2
    """Share of the training samples held out for validation by clients without a validation split, in (0, 1)."""
    predict_with: Literal["trained", "mixed"] = "trained"
    """The personal model: after the local training, or the weighted one before it."""

    def __post_init__(self) -> None:
        require(self.downloads >= 0, f"downloads is {self.downloads}; it must be 0 or more")
        require(0 <= self.explore <= 1, f"explore is {self.explore}; it must be in [0, 1]")
        require(self.explore_decay >= 0, f"explore_decay is {self.explore_decay}; it must be 0 or more")
        require(self.norm in ("l2", "l1"), f"norm is {self.norm!r}; it must be 'l2' or 'l1'")
        require(0 < self.holdout < 1, f"holdout is {self.holdout}; it must be in (0, 1)")
        choices = ("trained", "mixed")
        require(self.predict_with in choices, f"predict_with is {self.predict_with!r}; it must be one of {choices}")

    # on the server ----------------------------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> Any:
        clients, theta = len(population), init(0)
        return {
            "initial": theta,
            "model": jnp.repeat(theta[None], clients, axis=0),
            "uploaded": np.zeros(clients, bool),
            "affinity": np.zeros((clients, clients)),
        }

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams(server["model"], self._choose(server, cohort))})

    def _choose(self, server: Any, cohort: Cohort) -> Int[np.ndarray, "c k"]:
        """Whose models each client is sent; -1 where fewer than M others have uploaded one."""
        clients, rng = len(server["uploaded"]), cohort.rng("fedfomo")
        chosen = np.full((len(cohort), min(self.downloads, clients - 1)), -1, np.int32)
        explore = max(self.explore - self.explore_decay * cohort.round, 0.0)
        for row, client in enumerate(cohort.position):
            uniform, ties = rng.random() < explore, rng.random(clients)
            ranked = np.lexsort((ties, np.zeros(clients) if uniform else -server["affinity"][client]))
            ranked = ranked[server["uploaded"][ranked] & (ranked != client)][: chosen.shape[1]]
            chosen[row, : len(ranked)] = ranked
        return chosen

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        clients, models = len(server["uploaded"]), answers["model"]
        # one past the end: not stored
        place = models.to_rows(np.where(cohort.reporting, cohort.position, clients), fill=clients)
        uploaded, affinity = server["uploaded"].copy(), server["affinity"].copy()
        uploaded[cohort.reporters] = True
        row, column = np.nonzero((downlink.streams["model"].recipients >= 0) & cohort.reporting[:, None])
        weights, sent = answers.host("weights"), downlink.streams["model"].recipients
        affinity[cohort.position[row], sent[row, column]] += weights[row, column]
        bank = _store(server["model"], models.values, place)
        return {**server, "model": bank, "uploaded": uploaded, "affinity": affinity}

    def global_model(self, server: Any) -> Float[Array, " d"]:
        return server["model"].mean(axis=0)  # of all clients' last uploads: there is no global model

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        bank = np.where(server["uploaded"], np.arange(len(server["uploaded"])), -1).astype(np.int32)
        # theta^0 is common knowledge (the seed)
        start = Streams.everyone(server["initial"], len(cohort), already_held=True)
        return Downlink({"model": Streams(server["model"], np.tile(bank, (len(cohort), 1))), "initial": start})

    # on the client ----------------------------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> Any:
        return {"base": theta, "model": theta}

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        state, weights = self._update(state, inbox, local)
        return state, {"model": state["model"], "weights": weights[:-1]}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        return self._update(self.init_client(inbox["initial"][0]), inbox, local)[0]

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return state["model" if self.predict_with == "trained" else "base"]

    def _update(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, Float[Array, " k"]]:
        """A weighting and a training: the new state, and the weights of what was sent and of the client's own model."""
        base = state["base"]
        models = jnp.concatenate([inbox["model"], state["model"][None]])
        got = jnp.append(inbox.received["model"], True)
        held = jnp.where(local.count("val") > 0, 0, jnp.clip(jnp.int32(self.holdout * local.size), 1, local.size))
        kept = jnp.maximum(local.size - held, jnp.minimum(local.size, 1))
        unused = local.part(local.size - held, local.size, "holdout")

        def validate(theta: Float[Array, " d"]) -> Float[Array, ""]:
            return local.loss(theta, "val") + unused.loss(theta, "train")  # one of the two is empty

        gain = jnp.where(got, jnp.maximum(validate(base) - local.map(validate, models), 0), 0)
        away = models - base
        distance = jnp.abs(away).sum(axis=1) if self.norm == "l1" else jnp.linalg.norm(away, axis=1)
        weights = gain / (distance + 1e-12)
        weights = weights / jnp.where(weights.sum() > 0, weights.sum(), 1)
        theta = base + (weights[:, None] * away).sum(axis=0)
        trained = local.part(0, kept, "holdout").sgd(theta, self.sgd)
        return {"base": theta, "model": trained}, weights


@jax.jit
def _store(bank: Float[Array, "m d"], models: Float[Array, "c d"], place: NDArray[np.int64]) -> Float[Array, "m d"]:
    """The bank with `models` at `place`; places past its end are dropped."""
    return bank.at[place].set(models, mode="drop")
