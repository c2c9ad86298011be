"""FedCP: a policy sends each feature of each example to a shared and to a personal head."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.algorithms.helpers.feature_layers import (
    Arrays,
    arrays_in,
    dense_arrays,
    example_features,
    flat_features,
    gradient_of_outputs,
    layer_norm,
    numbers_of,
    vector_of,
)
from fedtailor.algorithms.helpers.own_steps import (
    head_of,
    loop_over_batches,
    mean_over,
    require_plain_sgd,
    sgd_step_with_statistics,
    why_sums_show_clients,
)
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.models.dense_head import dense_head_of
from fedtailor.protocol import (
    About,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    CombinedPredictor,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelParts,
    Params,
    Population,
    PredictingModel,
    Predictor,
    Streams,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    predictor,
    server_rng,
    server_state,
)

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Of the Gaussian kernels that compare features (released code)."""


@predictor
class FeaturePolicy(CombinedPredictor):
    """A shared model, a head of the client's own, and a policy between them.

        h_i( r z ) + h( (1 - r) z ),    r = policy( context z ),    z = features of the shared body

    Attributes:
        models: the shared model, and a model with the client's own head, [2, d].
        context: of the client, one number a feature [size].
        policy: the policy's arrays.
    """

    models: Float[Array, "2 d"]
    context: Float[Array, " size"]
    policy: dict[str, Array]

    @property
    def kind(self) -> str:
        return "model, own head and policy"

    def outputs(self, model: PredictingModel) -> Callable[[Array], Array]:
        shared, own = model.params(self.models[0]), model.params(self.models[1])

        def separated(x: Array) -> Array:
            z = model.features(shared, x)
            return _two_heads(
                model, own, shared, separate(self.policy, self.context, z)
            )

        return separated


@server_state
class FedCPState(AveragedModels):
    """The shared model and policy."""

    policy: Float[Array, "1 e"]
    """The policy's arrays, as one vector."""


@hyperparameters
class FedCP(FedAvg):
    """Federated conditional policy (Zhang et al. 2023, algorithm 1).

    Clients share a body b, a head h and a policy, and each keeps a head h_i of its own.
    For every example the policy divides the features z = b(x) between the two heads,
    by the features and by what the client's head is like:

        h_i( r z ) + h( (1 - r) z ),    (r, 1 - r) = softmax of the pairs of  relu( norm( W (v_i z) + w ) )
        v_i = sum_k V_k / | sum_k V_k |     for the weights V_k of class k in h_i, at the start of the round

    One plain SGD step of b, h_i and the policy on every batch lowers the loss, and lam
    times the squared distance (MMD, Gaussian kernels) between the batch's features and
    those of the received body; h stays as it is. The client sends its body, its policy
    and the head (h_i + h) / 2, which the server averages. It predicts with the shared
    body, head and policy, and its own head. A client that never took part trains a head,
    from the shared one, for as many steps as a round has.

    The released code (and PFLlib) adds Gumbel noise to the policy's scores in every pass,
    predictions included, which is not done here.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedcp",
        paper=(
            "Zhang et al. 2023, FedCP: Separating Feature Information for Personalized"
            " Federated Learning via Conditional Policy"
        ),
        down="1 model and the policy",
        up="1 model and the policy",
        client_keeps="its head",
        unseen_clients_get="trains a head beside the shared one",
        server_sees="sums",
    )

    lam: ZeroIsStatic = 5.0
    """Weight of the distance between features (released code, for a CNN: 5)."""
    sent_head: Literal["mean", "own"] = "mean"
    """The head that a client sends: (h_i + h) / 2, or h_i."""

    @property
    def sums_show_clients(self) -> str:
        # It sends its own head, which it goes on to train.
        return why_sums_show_clients(self.sgd)

    def __post_init__(self) -> None:
        require_plain_sgd("fedcp's coupled steps", self.sgd)
        require(self.lam >= 0, f"lam is {self.lam}; it must be 0 or more")

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def server_only_averages(self) -> bool:
        return False

    def numbers_per_round(self, model: ModelParts) -> int:
        return model.size + numbers_of(_shapes(int(np.prod(model.feature_shape))))

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        dense_head_of(model, self.about.name)

    def init_server(self, init: Init, population: Population) -> Any:
        start = super().init_server(init, population)
        model = model_parts_of(population, self.about.name)
        size = int(np.prod(model.feature_shape))
        rng = server_rng(population.seed, "fedcp", 0)
        policy = vector_of(dense_arrays(rng, "policy", size, 2 * size), _shapes(size))
        policy = policy.astype(start.model.dtype)[None]
        return FedCPState(start.model, start.optimizer, policy=policy)

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        streams = super().broadcast(server, cohort).streams
        policy = Streams.everyone(server.policy, len(cohort))
        return Downlink({**streams, "policy": policy})

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        new = super().server(server, downlink, answers, cohort)
        assert isinstance(new, FedCPState)
        weights = reporter_weights(cohort, self.weights)[None]
        return new.replace(policy=mix(server.policy, answers["policy"], weights))

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        head = model.part("head" if "head" in model.parts else "everything")
        return {"head": head.take(theta)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta, head = inbox.only("model"), head_of(local)
        own = head.put(theta, state["head"])
        policy = self._received(theta, inbox, local)
        own, policy = self._train(theta, own, policy, local)
        sent = own
        if self.sent_head == "mean":
            sent = head.put(own, (head.take(own) + head.take(theta)) / 2)
        size = len(policy["policy bias"]) // 2
        update = {"model": sent, "policy": vector_of(policy, _shapes(size))}
        return {"head": head.take(own)}, update

    def _received(
        self, theta: Float[Array, " d"], inbox: Inbox, local: LocalTrainer
    ) -> Arrays:
        """The policy that the server has sent."""
        size = int(np.prod(example_features(theta, local).shape))
        return arrays_in(inbox.only("policy"), _shapes(size))

    def _context(
        self, own: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " size"]:
        """v_i: the sum of a linear head's weights over its outputs, with length 1."""
        params, z = local.params(own), example_features(own, local)

        # The head is linear, so that its derivative is its weights.
        def total(z: Float[Array, "1 ..."]) -> Float[Array, ""]:
            return local.head_outputs(params, z).sum()

        weights = flat_features(jax.grad(total)(jnp.zeros(z.shape, z.dtype)))[0]
        length = jnp.sqrt(jnp.square(weights).sum())
        return weights / jnp.maximum(length, 1e-12)

    def _train(
        self,
        theta: Float[Array, " d"],
        own: Float[Array, " d"],
        policy: Arrays,
        local: LocalTrainer,
    ) -> tuple[Float[Array, " d"], Arrays]:
        """A round's steps of the body, the client's head and the policy.

        Args:
            theta: the shared model, which stays as it is.
            own: the shared body under the client's head.
            policy: as received.
            local: the client's data and training.
        """
        sgd, rate = self.sgd, self.sgd.rate(local.round)
        context = self._context(own, local)
        shared = local.params(theta)

        def step(
            carry: tuple[Params, Arrays], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Params, Arrays]:
            def loss(params: Params, policy: Arrays) -> Float[Array, ""]:
                z = local.features(params, batch.x)
                outputs = _two_heads(
                    local, params, shared, separate(policy, context, z)
                )
                total = mean_over(
                    local.losses(outputs, batch.y, batch.weight), batch.weight
                )
                # With lam = 0 this term is not compiled.
                if not is_off(self.lam):
                    before = jax.lax.stop_gradient(local.features(shared, batch.x))
                    apart = _discrepancy(
                        flat_features(z), flat_features(before), batch.weight
                    )
                    total = total + self.lam * apart
                return total

            local.count_work(gradients=1, forwards=0 if is_off(self.lam) else 1)
            params, policy = carry
            slopes, policy_slopes = jax.grad(loss, argnums=(0, 1))(params, policy)
            params = sgd_step_with_statistics(params, slopes, batch, sgd, rate, local)
            policy = jax.tree.map(lambda w, g: w - rate * g, policy, policy_slopes)
            return params, policy

        params, policy = loop_over_batches(
            local, (local.params(own), policy), step, sgd
        )
        return local.vector(params), policy

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        own = head_of(local).put(theta, state["head"])
        policy = self._received(theta, inbox, local)
        return FeaturePolicy(jnp.stack([theta, own]), self._context(own, local), policy)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        theta, head = inbox.only("model"), head_of(local)
        policy = self._received(theta, inbox, local)
        context, shared = self._context(theta, local), local.params(theta)

        def outputs(params: Params, x: Array) -> Array:
            return _two_heads(
                local,
                params,
                shared,
                separate(policy, context, local.features(params, x)),
            )

        gradient = gradient_of_outputs(outputs, local)
        own = local.sgd(theta, self.sgd, gradient=gradient, train_only=head)
        return {"head": head.take(own)}


def _shapes(size: int) -> dict[str, tuple[int, ...]]:
    """The policy's arrays, in the order of their vector."""
    shapes: dict[str, tuple[int, ...]] = {"policy weights": (size, 2 * size)}
    for name in ("bias", "gain", "offset"):
        shapes[f"policy {name}"] = (2 * size,)
    return shapes


def separate(
    policy: Arrays, context: Float[Array, " size"], z: Float[Array, "b ..."]
) -> tuple[Float[Array, "b ..."], Float[Array, "b ..."]]:
    """The features that go to the client's own head, and to the shared one; they add up
    to z.
    """
    rows = flat_features(z)
    scores = (rows * context) @ policy["policy weights"] + policy["policy bias"]
    scores = layer_norm(scores, policy["policy gain"], policy["policy offset"])
    own, shared = jnp.split(jax.nn.relu(scores), 2, axis=1)
    share = jax.nn.sigmoid(own - shared)  # the softmax of two scores
    mine = (share * rows).reshape(z.shape)
    return mine, z - mine


def _two_heads(
    model: PredictingModel | LocalTrainer,
    own: Params,
    shared: Params,
    separated: tuple[Array, Array],
) -> Array:
    """The sum of what the client's head and the shared one make of their features."""
    mine, general = separated
    return model.head_outputs(own, mine) + model.head_outputs(shared, general)


def _discrepancy(
    z: Float[Array, "b size"], other: Float[Array, "b size"], weight: Float[Array, " b"]
) -> Float[Array, ""]:
    """The squared maximum mean discrepancy of two sets of features, one of each example,
    summed over `BANDWIDTHS`.

        mean_ij  k(z_i, z_j) + k(o_i, o_j) - 2 k(z_i, o_j),    k(a, b) = exp( -|a - b|^2 / (2 width) )
    """
    pairs = weight[:, None] * weight

    def kernels(a: Array, b: Array) -> Array:
        lengths = jnp.square(a).sum(axis=1)[:, None] + jnp.square(b).sum(axis=1)
        apart = lengths - 2 * a @ b.T
        values = [jnp.exp(-apart / (2 * width)) for width in BANDWIDTHS]
        return jnp.stack(values).sum(axis=0)

    total = kernels(z, z) + kernels(other, other) - 2 * kernels(z, other)
    return (pairs * total).sum() / jnp.maximum(pairs.sum(), 1)
