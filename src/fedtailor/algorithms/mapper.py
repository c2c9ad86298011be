"""MAPPER: each client's own mixture of a global and a local model."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.selection import require_cover
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Mixture,
    Params,
    Predictor,
    StepGradient,
    hyperparameters,
    sums_type,
)


@hyperparameters
class MAPPER(FedAvg):
    """Model interpolation (Mansour et al. 2020, section 5, figure 3).

    A client predicts with the probabilities lambda p_l(y|x) + (1 - lambda) p_c(y|x) of
    a local model h_l and the global model h_c. In each round it fits a local model,
    starting from h_c, for every lambda of a finite set in [0, 1] (`cover`),

        h_l(lambda) = argmin_h F'( lambda h + (1 - lambda) h_c )                  (eq. 9)
        lambda*     = argmin_lambda F''( lambda h_l(lambda) + (1 - lambda) h_c )  (eq. 10), the smallest on ties

    and then trains the global model as a part of the mixture, with the local model
    fixed:

        h_c <- h_c - eta grad_{h_c} F'''( lambda* h_l(lambda*) + (1 - lambda*) h_c )  (eq. 11)

    F', F'' and F''' are the losses on three parts of the client's training data, which
    are the same in all rounds. The server averages the h_c with momentum, as in
    FedAvgM. To predict, every client, including those that never took part, repeats eq.
    9 and 10 with the final h_c. Clients that choose lambda* = 1 do not use the global
    model and do not change it.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="mapper",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="fits its own local model and lambda to the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, epochs=2, batch_size=20)
    """Local training of the global model (Mansour et al., appendix F.2: rate 0.01, 2
    epochs, batch 20).
    """
    optimizer: ServerOptimizer = ServerOptimizer("momentum", lr=1.0, momentum=0.9)
    """The server's step (Mansour et al., appendix F.2: rate 1, momentum 0.9)."""
    cover: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """The values of lambda to choose from, ascending (the paper: a cover of [0, 1])."""
    split: tuple[float, float, float] | None = (0.5, 0.25, 0.25)
    """Shares of the training data for eq. 9, 10 and 11 (the paper has three parts, and
    does not give their sizes). None uses all data three times, as in the pseudocode,
    and so do clients with fewer than three samples."""
    fit: SGD = SGD(lr=0.02, epochs=5, batch_size=10)
    """Training of local models (Mansour et al., appendix F.2: rate 0.02, 5 epochs,
    batch 10).
    """

    @property
    def takes_weights(self) -> bool:
        return False  # rows are divided into parts

    @property
    def sums_show_clients(self) -> str:
        return (
            "a client that chooses its local model alone sends back the model that it received,"
            " so that a sum can be what another has changed"
        )

    def __post_init__(self) -> None:
        require_cover(self.cover)
        if self.split is not None:
            has_shares = len(self.split) == 3 and min(self.split) > 0
            require(
                has_shares and abs(sum(self.split) - 1) < 1e-9,
                f"split is {self.split}; it must be three positive shares that sum to"
                " 1, or None",
            )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        fit_on, choose_on, train_on = self._parts(local)
        # Eq. 9 and 10 give h_l(lambda*) and lambda*. Eq. 11 trains h_c while these are
        # fixed.
        lam, own = self._interpolate(theta, fit_on, choose_on)
        gradient = through_mixture(train_on, own, 1 - lam)
        return state, {"model": train_on.sgd(theta, self.sgd, gradient=gradient)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        fit_on, choose_on, _ = self._parts(local)
        lam, own = self._interpolate(theta, fit_on, choose_on)
        return _mixture(lam, own, theta)

    def _interpolate(
        self, theta: Float[Array, " d"], fit_on: LocalTrainer, choose_on: LocalTrainer
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """Fit the client's side of the mixture to a global model (eq. 9 and 10).

        Args:
            theta: h_c.
            fit_on: the client with the samples of F'.
            choose_on: the client with the samples of F''.

        Returns:
            lambda* and its local model h_l(lambda*).
        """
        cover = jnp.asarray(self.cover, sums_type(theta))

        def fit(lam: Float[Array, ""]) -> Float[Array, " d"]:
            """h_l(lambda) of eq. 9, by SGD from h_c."""
            gradient = through_mixture(fit_on, theta, lam)
            return fit_on.sgd(theta, self.fit, gradient=gradient)

        def loss(lam: Float[Array, ""], own: Float[Array, " d"]) -> Float[Array, ""]:
            """What eq. 10 minimises."""
            return choose_on.loss(_mixture(lam, own, theta))

        own = fit_on.map(fit, cover)
        losses = choose_on.map(loss, cover, own)
        best = jnp.argmin(losses)
        return cover[best], own[best]

    def _parts(
        self, local: LocalTrainer
    ) -> tuple[LocalTrainer, LocalTrainer, LocalTrainer]:
        """The client's data for eq. 9, 10 and 11.

        Returns:
            The client with three disjoint parts of its samples, at least one sample in
            each. If `split` is None or the client has fewer than three samples, each
            part has all samples.
        """
        if self.split is None:
            return local, local, local
        n = local.size
        first, second, _ = self.split
        # The parts are [0, a), [a, b) and [b, n).
        a = jnp.clip(jnp.round(first * n).astype(jnp.int32), 1, n - 2)
        end_of_second = jnp.round((first + second) * n).astype(jnp.int32)
        b = jnp.clip(end_of_second, a + 1, n - 1)
        too_few = n < 3
        return (
            local.part(0, jnp.where(too_few, n, a), "mapper"),
            local.part(jnp.where(too_few, 0, a), jnp.where(too_few, n, b), "mapper"),
            local.part(jnp.where(too_few, 0, b), n, "mapper"),
        )


def through_mixture(
    local: LocalTrainer, frozen: Float[Array, " d"], share: Float[Array, ""]
) -> StepGradient:
    """The gradient for training one model of a mixture while the other one is frozen.

    Args:
        local: the client.
        frozen: the other model.
        share: the share of the trained model in the mixture.

    Returns:
        The gradient of the mean of -log( share p(y) + (1 - share) p_frozen(y) ) with
        respect to the model of p. For each sample it is the gradient of -log p(y) times
        share p(y) / (share p(y) + (1 - share) p_frozen(y)).
    """
    frozen_params = local.params(frozen)
    # If the share is 0 or 1, one of these is -inf, and the mixture is the other model.
    log_share = jnp.log(share)
    log_rest = jnp.log(1 - share)

    def log_probabilities(params: Params, batch: Batch) -> Array:
        return jax.nn.log_softmax(local.logits(params, batch.x), axis=-1)

    def gradient(params: Params, batch: Batch, step: Array) -> Params:
        local.count_work(gradients=1, forwards=1)
        rest = log_rest + log_probabilities(frozen_params, batch)

        def loss(params: Params) -> Float[Array, ""]:
            mixed = jnp.logaddexp(log_share + log_probabilities(params, batch), rest)
            total = jnp.vdot(local.losses(mixed, batch.y, batch.weight), batch.weight)
            return total / jnp.maximum(batch.weight.sum(), 1)

        return jax.grad(loss)(params)

    return gradient


def _mixture(
    lam: Float[Array, ""], own: Float[Array, " d"], theta: Float[Array, " d"]
) -> Mixture:
    return Mixture(jnp.stack([lam, 1 - lam]), jnp.stack([own, theta]))
