"""GPFL: a shared body whose features a valve turns into general and personal ones."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.class_means import (
    class_counts,
    number_of_classes,
    require_classes,
)
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
    loop_over_batches,
    mean_over,
    require_plain_sgd,
    sgd_step_with_statistics,
)
from fedtailor.algorithms.helpers.shared_part import (
    SharedPart,
    entry_of_part,
    join_parts,
    model_parts_of,
)
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


@predictor
class ValvedFeatures(CombinedPredictor):
    """A model whose head is given the features relu( scale z + shift ).

    Attributes:
        model: [d].
        scale, shift: one number a feature [size].
    """

    model: Float[Array, " d"]
    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    @property
    def kind(self) -> str:
        return "model and scales of its features"

    def outputs(self, model: PredictingModel) -> Callable[[Array], Array]:
        params = model.params(self.model)

        def valved(x: Array) -> Array:
            z = model.features(params, x)
            opened = jax.nn.relu(flat_features(z) * self.scale + self.shift)
            return model.head_outputs(params, opened.reshape(z.shape))

        return valved


@server_state
class GPFLState(SharedPart):
    """The shared body, and what stands between it and the heads."""

    modules: Float[Array, "1 e"]
    """The embeddings of the classes and the valve, as one vector."""


@hyperparameters
class GPFL(FedPer):
    """Generic and personalized feature learning (Zhang et al. 2023).

    Clients share a body b, an embedding e_k of each class and a valve, and keep their
    heads h_i. The valve makes two layers of a condition c and opens features by them:

        V(z; c) = relu( (1 + L_1(c)) z + L_2(c) ),    L(c) = layer norm of relu(W c + w)
        p_i = sum_k (n_ik / n_i) e_k,    g = mean_k e_k

    where n_ik counts the client's training examples of class k. One plain SGD step of all
    parts on every batch lowers the loss of personal features, that of general ones as to
    whose class they lie nearest, and their distance to the embedding that was received:

        loss( h_i( V(z; p_i) ) )  -  mean log softmax_k( cos( V(z; g), e_k ) )_y  +  lam mean | V(z; g) - e_y |

    The server averages body, embeddings and valve; a client predicts with h_i( V(b(x);
    p_i) ). A client that never took part trains a head below what it receives, from the
    initial one, for as many steps as a round has.

    The released code (and PFLlib) makes p_i and g from the embeddings that the client
    itself trained last, 0 in its first round (`conditions="trained"`), and takes the norm
    of a whole batch's differences (`distance="batch"`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="gpfl",
        paper=(
            "Zhang et al. 2023, GPFL: Simultaneously Learning Global and Personalized"
            " Feature Information for Personalized Federated Learning"
        ),
        down="1 body, the embeddings of classes, and the valve",
        up="1 body, the embeddings of classes, and the valve",
        client_keeps="its head",
        unseen_clients_get="trains a head on the shared body",
        models_received="a part",
        server_sees="sums",
    )

    lam: ZeroIsStatic = 0.01
    """Weight of the distance to the class's embedding (released code: 0.01; 0.0001 for
    ResNet-18).
    """
    mu: ZeroIsStatic = 0.1
    """Weight decay of embeddings and valve (released code: 0.1 for a CNN, 0 for
    ResNet-18).
    """
    conditions: Literal["received", "trained"] = "received"
    """Which embeddings the conditions p_i and g are made of: those that the client was
    sent, or those that it trained last (released code).
    """
    distance: Literal["examples", "batch"] = "examples"
    """The mean distance of examples, or the norm of all differences of a batch (released
    code).
    """

    def __post_init__(self) -> None:
        require_plain_sgd("gpfl's coupled steps", self.sgd)
        for name in ("lam", "mu"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}; it must be 0 or more")
        for name, values in (
            ("conditions", ("received", "trained")),
            ("distance", ("examples", "batch")),
        ):
            value = getattr(self, name)
            require(
                value in values,
                f"{name} is {value!r}; it must be {values[0]!r} or {values[1]!r}",
            )

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def server_only_averages(self) -> bool:
        return False

    def numbers_per_round(self, model: ModelParts) -> int:
        size = int(np.prod(model.feature_shape))
        return model.size + numbers_of(_shapes(model.outputs, size))

    def check(self, population: Population) -> None:
        super().check(population)
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        require_classes(model, "gpfl learns an embedding of each class")

    def init_server(self, init: Init, population: Population) -> Any:
        start = super().init_server(init, population)
        model = model_parts_of(population, self.about.name)
        classes, size = model.outputs, int(np.prod(model.feature_shape))
        rng = server_rng(population.seed, "gpfl", 0)
        # As PyTorch draws them: embeddings from N(0, 1).
        drawn = {"embeddings": rng.normal(size=(classes, size))}
        for layer in ("scale", "shift"):
            drawn |= dense_arrays(rng, layer, size, size)
        modules = vector_of(drawn, _shapes(classes, size))
        return GPFLState(
            start.model,
            start.optimizer,
            start.initial,
            start.runs,
            modules=modules.astype(start.initial.dtype)[None],
        )

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        streams = super().broadcast(server, cohort).streams
        return Downlink({**streams, "modules": self._modules(server, cohort)})

    def _modules(self, server: Any, cohort: Cohort) -> Streams:
        return Streams.everyone(server.modules, len(cohort))

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        new = super().server(server, downlink, answers, cohort)
        weights = reporter_weights(cohort, self.weights)[None]
        return new.replace(modules=mix(server.modules, answers["modules"], weights))

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        streams = super().serve(server, cohort).streams
        return Downlink({**streams, "modules": self._modules(server, cohort)})

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        state = super().init_state(theta, model)
        if self.conditions == "trained":
            size = int(np.prod(model.feature_shape))
            embeddings = jnp.zeros((model.outputs, size), theta.dtype)
            state = {**state, "embeddings": embeddings}
        return state

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own = self._own(local)
        theta = join_parts(own, state, inbox.only("model"))
        modules = self._received(theta, inbox, local)
        theta, trained = self._train_all(theta, modules, state, local)
        new = entry_of_part("own", own.take(theta))
        if self.conditions == "trained":
            new["embeddings"] = trained["embeddings"]
        return new, {
            **entry_of_part("model", own.complement.take(theta)),
            "modules": vector_of(trained, _shapes(*trained["embeddings"].shape)),
        }

    def _received(
        self, theta: Float[Array, " d"], inbox: Inbox, local: LocalTrainer
    ) -> Arrays:
        """The embeddings and the valve that the server has sent."""
        size = int(np.prod(example_features(theta, local).shape))
        shapes = _shapes(number_of_classes(theta, local), size)
        return arrays_in(inbox.only("modules"), shapes)

    def _conditions(
        self, modules: Arrays, state: ClientState, local: LocalTrainer
    ) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """p_i and g."""
        embeddings = modules["embeddings"]
        if self.conditions == "trained":
            embeddings = state["embeddings"]
        counts = class_counts(len(embeddings), self.sgd.batch_size, local)
        shares = (counts / jnp.maximum(counts.sum(), 1)).astype(embeddings.dtype)
        return shares @ embeddings, embeddings.mean(axis=0)

    def _train_all(
        self,
        theta: Float[Array, " d"],
        modules: Arrays,
        state: ClientState,
        local: LocalTrainer,
    ) -> tuple[Float[Array, " d"], Arrays]:
        """A round's steps of the model, the embeddings and the valve."""
        sgd, rate = self.sgd, self.sgd.rate(local.round)
        personal, general = self._conditions(modules, state, local)
        targets = modules["embeddings"]

        def step(
            carry: tuple[Params, Arrays], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Params, Arrays]:
            def loss(params: Params, parts: Arrays) -> Float[Array, ""]:
                z = local.features(params, batch.x)
                opened = _valve(parts, flat_features(z), personal)
                outputs = local.head_outputs(params, opened.reshape(z.shape))
                fit = local.losses(outputs, batch.y, batch.weight)
                opened = _valve(parts, flat_features(z), general)
                cosines = _unit(opened) @ _unit(parts["embeddings"]).T
                logs = jax.nn.log_softmax(cosines)
                nearest = -jnp.take_along_axis(logs, batch.y[:, None], axis=1)[:, 0]
                total = mean_over(fit + nearest, batch.weight)
                # With lam = 0 this term is not compiled.
                if not is_off(self.lam):
                    apart = opened - targets[batch.y]
                    total = total + self.lam * self._distance(apart, batch.weight)
                return total

            local.count_work(gradients=1)
            params, parts = carry
            slopes, module_slopes = jax.grad(loss, argnums=(0, 1))(params, parts)
            params = sgd_step_with_statistics(params, slopes, batch, sgd, rate, local)
            parts = jax.tree.map(
                lambda w, g: w - rate * (g + self.mu * w), parts, module_slopes
            )
            return params, parts

        params, parts = loop_over_batches(
            local, (local.params(theta), modules), step, sgd
        )
        return local.vector(params), parts

    def _distance(
        self, apart: Float[Array, "b size"], weight: Float[Array, " b"]
    ) -> Float[Array, ""]:
        squares = jnp.square(apart).sum(axis=1)
        if self.distance == "batch":
            return _root((squares * weight).sum())
        return mean_over(_root(squares), weight)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = join_parts(self._own(local), state, inbox.only("model"))
        modules = self._received(theta, inbox, local)
        condition, _ = self._conditions(modules, state, local)
        scale, shift = _scale_and_shift(modules, condition)
        return ValvedFeatures(theta, scale, shift)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # A head on the received body below the received valve.
        own = self._own(local)
        theta = own.complement.put(inbox.only("initial"), inbox.only("model"))
        modules = self._received(theta, inbox, local)
        state: dict[str, Array] = {}
        if self.conditions == "trained":
            state["embeddings"] = jnp.zeros_like(modules["embeddings"])
        condition, _ = self._conditions(modules, state, local)
        scale, shift = _scale_and_shift(modules, condition)

        def outputs(params: Params, x: Array) -> Array:
            z = local.features(params, x)
            opened = jax.nn.relu(flat_features(z) * scale + shift)
            return local.head_outputs(params, opened.reshape(z.shape))

        gradient = gradient_of_outputs(outputs, local)
        theta = local.sgd(theta, self.sgd, gradient=gradient, train_only=own)
        return {**state, **entry_of_part("own", own.take(theta))}


def _shapes(classes: int, size: int) -> dict[str, tuple[int, ...]]:
    """The arrays of the modules, in the order of their vector."""
    shapes: dict[str, tuple[int, ...]] = {"embeddings": (classes, size)}
    for layer in ("scale", "shift"):
        shapes[f"{layer} weights"] = (size, size)
        for name in ("bias", "gain", "offset"):
            shapes[f"{layer} {name}"] = (size,)
    return shapes


def _scale_and_shift(
    modules: Arrays, condition: Float[Array, " size"]
) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
    """1 + L_1(c) and L_2(c)."""
    layers = []
    for layer in ("scale", "shift"):
        inner = condition @ modules[f"{layer} weights"] + modules[f"{layer} bias"]
        gain, offset = modules[f"{layer} gain"], modules[f"{layer} offset"]
        layers.append(layer_norm(jax.nn.relu(inner), gain, offset))
    return 1 + layers[0], layers[1]


def _valve(
    modules: Arrays, z: Float[Array, "b size"], condition: Float[Array, " size"]
) -> Float[Array, "b size"]:
    """V(z; c)."""
    scale, shift = _scale_and_shift(modules, condition)
    return jax.nn.relu(z * scale + shift)


def _unit(vectors: Float[Array, "n size"]) -> Float[Array, "n size"]:
    """Vectors of length 1; those of length 0 stay as they are, without a gradient."""
    lengths = _root(jnp.square(vectors).sum(axis=1, keepdims=True))
    return vectors / jnp.maximum(lengths, 1e-12)


def _root(squares: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square roots, whose derivative at 0 is 0."""
    is_positive = squares > 0
    return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, squares, 1)), 0)
