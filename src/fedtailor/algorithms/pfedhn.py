"""pFedHN: a hypernetwork on the server generates every client's model."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights
from fedtailor.aggregation.distances import cosine_similarity
from fedtailor.algorithms.helpers.hypernetwork import (
    Layers,
    generate,
    init_layers,
    layers_from_inbox,
    layers_to_messages,
)
from fedtailor.algorithms.helpers.shared_part import (
    entry_of_part,
    join_parts,
    model_parts_of,
    part_of_runs,
    runs_of,
)
from fedtailor.models import Part
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
    LocalTrainer,
    MatrixDiagnostic,
    ModelPart,
    ModelParts,
    Population,
    Predictor,
    RefusedStatistics,
    ServerState,
    Streams,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_rng,
    server_state,
)


@server_state
class PFedHNState(ServerState):
    """The hypernetwork and the clients' embeddings."""

    layers: Layers
    """phi, the parameters of the hypernetwork H."""
    embeddings: Float[Array, "m e"]
    """e_1, ..., e_m, one for each client."""
    optimizer: tuple[Array, ...]
    """The state of the server's optimiser."""
    initial: Float[Array, " d"]
    """The common initial model theta^0, to which the output of H is added."""
    runs: Int[np.ndarray, "runs 2"]
    """The generated entries of theta, as runs [first, one past the last)."""

    @property
    def part(self) -> Part:
        """The generated entries of a model."""
        return part_of_runs(self.runs, len(self.initial))


@hyperparameters
class PFedHN(Algorithm):
    """Personalized federated learning using hypernetworks.

    Shamsian et al. 2021, algorithm 1.

    The server holds a network H with parameters phi, and an embedding e_i of every
    client, and sends client i the model theta_i = H(e_i; phi). The client trains it and
    returns theta_i'. With delta_i = theta_i' - theta_i the server steps phi and the e_i
    along the gradient of

        - mean_S < delta_i, H(e_i; phi) >          (delta_i held fixed: the vector-Jacobian product of their equation 4)

    by SGD with momentum, after clipping the gradient's norm. phi is never sent during
    training, so a large H costs no communication. Here H(e_i; phi) is theta^0, the
    common initial model, plus the output of a perceptron with ReLU, whose last bias is
    zero at first. The personal model is H(e_i; phi), without further training.

    `part="head"` is pFedHN-pc (their section 3.4): H generates the body only. The
    client trains the body together with a head, which starts from the common initial
    one and never leaves the client.

    The released code also clips the gradients of every local step to a norm of 50, which
    `clip` of `sgd` does; `clip` of the method bounds the server's gradient only.

    A client that never took part receives phi once and fits an embedding to its own
    deltas, while phi is fixed. If a part of the model stays on the client, it trains
    that part in the same steps.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="pfedhn",
        paper=(
            "Shamsian et al. 2021, Personalized Federated Learning using Hypernetworks"
        ),
        down="1 model, its own",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the hypernetwork; it fits an embedding to its own training",
        models_received="one of several",
    )

    sgd: SGD = SGD(lr=0.005, momentum=0.9, weight_decay=5e-5, steps=50, batch_size=64)
    """Local training (released code: 50 steps of batch 64 at rate 0.005, momentum 0.9,
    weight decay 5e-5).
    """
    embedding: Literal["learned", "one-hot"] = "learned"
    """Embeddings that are drawn at random and learned, or the unit vectors of m
    dimensions, fixed.
    """
    embedding_size: int | None = None
    """Dimensions of a learned embedding; None = 1 + m // 4 for m clients (Shamsian et
    al.).
    """
    hidden_layers: int = 3
    """Hidden layers (Shamsian et al.: 3); 0 = a linear map that is zero at first."""
    hidden_size: int = 100
    """Units of a hidden layer (Shamsian et al.: 100); the last layer has this times the
    model's size parameters.
    """
    server_lr: float = 0.01
    """Rate of the server's steps (released code: 0.01; 0.05 of pFedHN-pc)."""
    server_momentum: float = 0.9
    """Momentum of the server's steps, in [0, 1) (released code: 0.9)."""
    server_decay: float = 1e-3
    """Weight decay of phi and embeddings (released code: 0.001)."""
    clip: ZeroIsStatic = 50.0
    """Largest norm of the server's gradient (released code: 50); 0 = none."""
    part: str = "nothing"
    """The part of the model that is not generated and stays on the client: "head"
    (pFedHN-pc), a pattern, ...
    """
    newcomer_steps: TracedInt = 20
    """Local trainings with which a client that never took part fits its embedding."""
    newcomer_lr: float = 0.1
    """Rate of these steps."""

    def __post_init__(self) -> None:
        kinds = ("learned", "one-hot")
        require(
            self.embedding in kinds,
            f"embedding is {self.embedding!r}; it must be 'learned' or 'one-hot'",
        )
        size = self.embedding_size
        require(
            size is None or size >= 1, f"embedding_size is {size}; it must be 1 or more"
        )
        require(
            size is None or self.embedding == "learned",
            "one-hot embeddings have as many dimensions as there are clients; leave"
            " embedding_size out",
        )
        require(
            self.hidden_layers >= 0,
            f"hidden_layers is {self.hidden_layers}; it must be 0 or more",
        )
        require(
            self.hidden_size >= 1,
            f"hidden_size is {self.hidden_size}; it must be 1 or more",
        )
        require(
            self.server_lr > 0, f"server_lr is {self.server_lr}; it must be above 0"
        )
        require(
            0 <= self.server_momentum < 1,
            f"server_momentum is {self.server_momentum}; it must be in [0, 1)",
        )
        require(
            self.server_decay >= 0,
            f"server_decay is {self.server_decay}; it must be 0 or more",
        )
        require(self.clip >= 0, f"clip is {self.clip}; it must be 0 (none) or more")
        require(
            self.newcomer_steps >= 0,
            f"newcomer_steps is {self.newcomer_steps}; it must be 0 or more",
        )
        require(
            self.newcomer_lr > 0,
            f"newcomer_lr is {self.newcomer_lr}; it must be above 0",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        generated = self._generated(population)
        require(
            generated is None or generated.size > 0,
            f"part {self.part!r} leaves pfedhn nothing to generate",
        )
        model = population.model
        if model is None or not model.has_statistics:
            return
        # Running statistics are averages of data. A network that generates them may give
        # a variance below 0.
        statistics = model.statistics.indices
        if generated is None or np.isin(statistics, generated.indices).any():
            raise RefusedStatistics(
                "pfedhn would generate running statistics of batch normalisation; set"
                " part='norm', so that they stay with the client, or use a model with"
                " group normalisation"
            )

    def _generated(self, population: Population) -> ModelPart | None:
        """The part of the model that the hypernetwork generates; None = all of it."""
        if self.part == "nothing":
            return None
        return model_parts_of(population, self.about.name).part(self.part).complement

    def init_server(self, init: Init, population: Population) -> PFedHNState:
        theta = init(0)
        clients = len(population)
        generated = self._generated(population)
        runs = np.array([[0, len(theta)]]) if generated is None else runs_of(generated)
        rng = server_rng(population.seed, "pfedhn", 0)
        if self.embedding == "one-hot":
            embeddings = np.eye(clients)
        else:
            embedding_size = self.embedding_size or 1 + clients // 4
            embeddings = rng.normal(size=(clients, embedding_size))
        generated_size = int(np.diff(runs).sum())
        hidden_sizes = [self.hidden_size] * self.hidden_layers
        sizes = [embeddings.shape[1], *hidden_sizes, generated_size]
        layers = init_layers(rng, sizes, theta.dtype)
        embeddings = jnp.asarray(embeddings, theta.dtype)
        optimizer = self._optimizer().init((layers, embeddings))
        leaves = tuple(jax.tree.leaves(optimizer))
        return PFedHNState(layers, embeddings, leaves, theta, runs)

    def _optimizer(self) -> optax.GradientTransformation:
        """SGD with momentum and weight decay, after clipping the gradient's norm."""
        clip = optax.identity()
        if not is_off(self.clip):  # clip = 0: no clipping
            clip = optax.clip_by_global_norm(self.clip)
        decay = optax.add_decayed_weights(self.server_decay)
        return optax.chain(clip, decay, optax.sgd(self.server_lr, self.server_momentum))

    def broadcast(self, server: PFedHNState, cohort: Cohort) -> Downlink:
        # theta_i = theta^0 + H(e_i; phi), a stream for every client of the cohort
        start = server.part.take(server.initial)
        models = generate(server.layers, start, server.embeddings[cohort.position])
        return Downlink({"model": Streams.one_each(models)})

    def server(
        self, server: PFedHNState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> PFedHNState:
        if not cohort.reporting.any():
            return server
        trained = answers.reporters("model")  # theta_i'
        share = reporter_weights(cohort, "uniform")[cohort.reporting]
        share = share.astype(trained.dtype)
        start = server.part.take(server.initial)
        layers, embeddings, optimizer = _step(
            self, server, start, cohort.reporters, trained, share
        )
        return server.replace(layers=layers, embeddings=embeddings, optimizer=optimizer)

    def global_model(self, server: PFedHNState) -> Float[Array, " d"]:
        # the model of the mean embedding
        part = server.part
        start = part.take(server.initial)
        model = generate(server.layers, start, server.embeddings.mean(axis=0))
        return part.put(server.initial, model)

    def serve(self, server: PFedHNState, cohort: Cohort) -> Downlink:
        # Seen clients receive their generated model, as in a round.
        if cohort.seen:
            return self.broadcast(server, cohort)
        # Unseen clients receive phi, and the mean embedding to start from. They can
        # compute the initial model from the seed, so the ledger does not count it.
        clients = len(cohort)
        initial = Streams.everyone(server.initial, clients, already_held=True)
        streams = {"initial": initial}
        messages = layers_to_messages(server.layers)
        messages["embedding"] = server.embeddings.mean(axis=0)
        for kind, value in messages.items():
            streams[kind] = Streams.everyone(
                value[None], clients
            )  # one stream [1, ...]
        return Downlink(streams)

    def diagnostics(self, server: PFedHNState) -> Sequence[Diagnostic]:
        title = "Cosines between clients' embeddings"
        return [
            MatrixDiagnostic("affinity", title, cosine_similarity(server.embeddings))
        ]

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        return entry_of_part("own", model.part(self.part).take(theta))

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own = local.part_of_model(self.part)
        theta = local.sgd(join_parts(own, state, inbox.only("model")), self.sgd)
        return entry_of_part("own", own.take(theta)), {
            "model": own.complement.take(theta)
        }

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        layers = layers_from_inbox(inbox, self.hidden_layers + 1)
        own = local.part_of_model(self.part)
        initial = inbox.only("initial")

        def shared_part(e: Float[Array, " e"]) -> Float[Array, " d_shared"]:
            return generate(layers, own.complement.take(initial), e)

        def fit(k: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            # A round with fixed phi: generate a model, train it, and move e along the
            # vector-Jacobian product of delta = theta' - theta.
            e, own_state = carry
            shared, vjp = jax.vjp(shared_part, e)
            start = join_parts(own, own_state, shared)
            theta = local.in_round(local.round + k).sgd(start, self.sgd)
            delta = own.complement.take(theta) - shared
            (direction,) = vjp(delta)
            e = e + self.newcomer_lr * direction
            return e, entry_of_part("own", own.take(theta))

        start = inbox.only("embedding"), entry_of_part("own", own.take(initial))
        e, own_state = local.fori_loop(self.newcomer_steps, fit, start)
        return {**own_state, "model": shared_part(e)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        shared = state["model"] if "model" in state else inbox.only("model")
        return join_parts(local.part_of_model(self.part), state, shared)


@jax.jit
def _step(
    algorithm: PFedHN,
    server: PFedHNState,
    initial: Float[Array, " d_shared"],
    clients: Int[Array | np.ndarray, " r"],
    trained: Float[Array | np.ndarray, "r d_shared"],
    share: Float[Array | np.ndarray, " r"],
) -> tuple[Layers, Float[Array, "m e"], tuple[Array, ...]]:
    """One step of the hypernetwork and the embeddings.

    Args:
        algorithm: with the rates of the server's optimiser.
        server: before the step.
        initial: theta^0, or its generated part.
        clients: the reporters' rows in the table of embeddings.
        trained: the models theta_i' that they sent.
        share: their weights in the mean.

    Returns:
        New layers, embeddings and optimiser state.
    """
    params = (server.layers, server.embeddings)

    def models_of_reporters(params: tuple[Layers, Array]) -> Float[Array, "r d_shared"]:
        layers, embeddings = params
        return generate(layers, initial, embeddings[clients])

    # The gradient of - sum_i share_i < delta_i, H(e_i; phi) > with respect to phi and
    # all e_i, with delta_i = theta_i' - theta_i held fixed.
    models, vjp = jax.vjp(models_of_reporters, params)
    (gradient,) = vjp(-share[:, None] * (trained - models))
    is_fixed = algorithm.embedding == "one-hot"
    if is_fixed:
        # Fixed embeddings do not count in the norm that is clipped.
        grad_layers, grad_embeddings = gradient
        gradient = grad_layers, jnp.zeros_like(grad_embeddings)
    # The server stores the leaves of optax's state as a tuple, because a checkpoint
    # cannot hold optax's classes. They are put back into optax's classes here.
    optimizer = algorithm._optimizer()
    structure = jax.tree.structure(jax.eval_shape(optimizer.init, params))
    old_state = jax.tree.unflatten(structure, server.optimizer)
    updates, new_state = optimizer.update(gradient, old_state, params)
    new_params: Any = optax.apply_updates(params, updates)
    layers, embeddings = new_params
    if is_fixed:
        embeddings = server.embeddings
    return layers, embeddings, tuple(jax.tree.leaves(new_state))
