"""kNN-Per: FedAvg, mixed with the nearest neighbours among each client's examples."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import (
    About,
    Batch,
    ClientState,
    CombinedPredictor,
    Inbox,
    LocalTrainer,
    Params,
    Population,
    PredictingModel,
    Predictor,
    hyperparameters,
    predictor,
    sums_type,
)

BLOCK = 64
"""The batch size for storing features and for choosing lambda."""
GRID = 11
"""The number of values of lambda to choose from: 0, 0.1, ..., 1."""

FeatureStore = tuple[Float[Array, "s f"], Int[Array, " s"], Bool[Array, " s"]]
"""Features and labels of a client's examples, and which rows are not padding."""


@predictor
class NearestNeighbors(CombinedPredictor):
    """A model, combined with the k nearest of a client's own examples in the space of that
    model's features.

    An example at Euclidean distance r has the weight exp(-r / scale).

    Attributes:
        model: [d].
        features: the inputs of the model's head for the stored examples [s, f].
        labels: their classes [s].
        held: False for rows that are padding and no examples [s].
        share: lambda, the neighbours' share of the prediction, in [0, 1].
        scale: the distance at which the weight is 1/e.
        k: the number of neighbours; all examples are neighbours if there are fewer.
        logits: combine the neighbours' probabilities with the model's logits instead of
            its probabilities.
    """

    model: Float[Array, " d"]
    features: Float[Array, "s f"]
    labels: Int[Array, " s"]
    held: Bool[Array, " s"]
    share: Float[Array, ""]
    scale: Float[Array, ""]
    k: int = field(metadata={"static": True})
    logits: bool = field(default=False, metadata={"static": True})

    holds_examples: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return f"model and {self.k} neighbors"

    def outputs(self, model: PredictingModel) -> Callable[[Array], Array]:
        params = model.params(self.model)

        def combined(x: Array) -> Array:
            # The distance of neighbours is that of their features, which the model's head
            # needs as well.
            features = model.features(params, x)
            neighbors = self.probabilities(features, model.outputs)
            outputs = model.head_outputs(params, features)
            return self.combine(neighbors, outputs, self.share)

        return combined

    def probabilities(
        self, features: Float[Array, "b ..."], classes: int
    ) -> Float[Array, "b classes"]:
        """The prediction of the neighbours alone.

        Args:
            features: the inputs of the model's head for b inputs.
            classes: the number of classes.

        Returns:
            Class probabilities; all zero if the client has no example.
        """
        z = features.reshape(len(features), -1)
        # Find the nearest examples: the squared distances of all pairs, |z|^2 - 2 <z, f>
        # + |f|^2, need one matrix product.
        products = z @ self.features.T
        z_norms = jnp.square(z).sum(1)[:, None]
        squared_distances = z_norms - 2 * products + jnp.square(self.features).sum(1)
        count = min(self.k, len(self.labels))
        masked = jnp.where(self.held, squared_distances, jnp.inf)
        _, indices = jax.lax.top_k(-masked, count)
        is_example = self.held[indices]
        # Compute the distances of the neighbours again, as the difference above is
        # rounded and the root of a number near 0 enlarges the error.
        difference = z[:, None] - self.features[indices]
        distance = jnp.sqrt(jnp.square(difference).sum(-1))
        # Weights are relative to that of the nearest neighbour, since exp(-distance) of
        # all neighbours may underflow to 0.
        nearest = jnp.where(is_example, distance, jnp.inf).min(axis=1, keepdims=True)
        nearest = jnp.where(jnp.isfinite(nearest), nearest, 0)
        weight = jnp.where(is_example, jnp.exp((nearest - distance) / self.scale), 0)
        # Each neighbour votes for its class with its weight.
        one_hot = jax.nn.one_hot(self.labels[indices], classes, dtype=z.dtype)
        votes = (weight[..., None] * one_hot).sum(axis=1)
        return votes / jnp.maximum(
            votes.sum(axis=1, keepdims=True), jnp.finfo(z.dtype).tiny
        )

    def combine(
        self,
        neighbors: Float[Array, "b classes"],
        outputs: Float[Array, "b classes"],
        share: Float[Array, ""],
    ) -> Float[Array, "b classes"]:
        """Combine the predictions of the neighbours and of the model.

        Args:
            neighbors: class probabilities of the neighbours.
            outputs: logits of the model.
            share: the neighbours' share of the prediction, in [0, 1].

        Returns:
            Log-probabilities; if `logits` is True, the combined logits.
        """
        if self.logits:
            return share * neighbors + (1 - share) * outputs
        mixed = share * neighbors + (1 - share) * jax.nn.softmax(outputs, axis=-1)
        # A class may have probability 0 in both, whose logarithm would make the loss
        # infinite.
        return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))


@hyperparameters
class KNNPer(FedAvg):
    """Personalized federated learning through local memorization.

    Marfoq et al. 2022, algorithm 1.

    The global model is trained by FedAvg. After training, client i stores the features
    and labels of its training samples. It predicts with a mixture of the model's
    probabilities p and the labels of its k stored samples whose features z_j are
    nearest to z(x):

        lam_i p_kNN(y|x) + (1 - lam_i) p(y|x),    p_kNN(y|x) ~ sum over neighbours of class y of exp(-|z - z_j| / scale)

    where lam_i is the value of {0, 0.1, ..., 1} with the lowest loss on the client's
    validation samples, the smallest one on ties. Clients that never took part do the
    same, because no training is needed.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="knn-per",
        paper=(
            "Marfoq et al. 2022, Personalized Federated Learning through Local"
            " Memorization"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model together with its own nearest samples",
        server_sees="sums",
        validation="the neighbours' share; else lam_without_validation",
    )

    k: int = 10
    """Number of neighbours, at most all of a client's samples (the paper: 10)."""
    scale: float = 1.0
    """Distance over which a neighbour's weight falls by a factor e (the paper: 1)."""
    lam: float | None = None
    """Weight lam_i of the neighbours, in [0, 1]; None = chosen on validation samples."""
    lam_without_validation: float = 0.5
    """Weight of the neighbours for clients without validation samples, in [0, 1]."""
    capacity: int = 512
    """Largest number of samples that a client stores; they are drawn at random."""
    mix: Literal["probabilities", "logits"] = "probabilities"
    """What is mixed with the neighbours' probabilities: the model's probabilities (the
    paper), or its logits (the default of the released code)."""

    @property
    def takes_weights(self) -> bool:
        return False  # neighbours are rows, which vote alike

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k is {self.k}; it must be 1 or more")
        require(self.scale > 0, f"scale is {self.scale}; it must be above 0")
        require(
            self.lam is None or 0 <= self.lam <= 1,
            f"lam is {self.lam}; it must be in [0, 1]",
        )
        share = self.lam_without_validation
        require(
            0 <= share <= 1, f"lam_without_validation is {share}; it must be in [0, 1]"
        )
        require(
            self.capacity >= 1, f"capacity is {self.capacity}; it must be 1 or more"
        )
        mixes = ("probabilities", "logits")
        require(
            self.mix in mixes,
            f"mix is {self.mix!r}; it must be 'probabilities' or 'logits'",
        )

    def check(self, population: Population) -> None:
        if population.model is not None:
            _ = population.model.feature_shape  # a model without a head is refused here
            require(
                population.model.classification,
                "knn-per lets neighbours vote; it needs a model of classes",
            )

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        params = local.params(theta)
        features, labels, is_stored = self._stored_examples(params, local)
        share = jnp.asarray(0.0 if self.lam is None else self.lam, sums_type(theta))
        scale = jnp.asarray(self.scale, sums_type(theta))
        logits = self.mix == "logits"
        neighbors = NearestNeighbors(
            theta, features, labels, is_stored, share, scale, k=self.k, logits=logits
        )
        if self.lam is not None:
            return neighbors
        return replace(neighbors, share=self._best_share(neighbors, params, local))

    def _stored_examples(self, params: Params, local: LocalTrainer) -> FeatureStore:
        """The features and labels of the client's training samples.

        Returns:
            The same number of rows for every client, a multiple of `BLOCK`, because
            shapes must not depend on the number of a client's samples.
        """

        def features_of(x: Array) -> Array:
            return local.features(params, x, training=False).reshape(len(x), -1)

        blocks = -(-self.capacity // BLOCK)
        rows = blocks * BLOCK
        example = local.draw("store", 0, 1)
        z = jax.eval_shape(features_of, example.x)
        start = (
            jnp.zeros((rows, z.shape[1]), z.dtype),
            jnp.zeros(rows, example.y.dtype),
            jnp.zeros(rows, bool),
        )

        def add(
            store: FeatureStore, batch: Batch, step: Int[Array, ""]
        ) -> FeatureStore:
            local.count_work(forwards=1)
            # If no client has `BLOCK` samples, a batch has fewer rows. Padding is
            # stored as zeros.
            is_stored = batch.weight > 0
            new = (
                jnp.where(is_stored[:, None], features_of(batch.x), 0),
                jnp.where(is_stored, batch.y, 0),
                is_stored,
            )
            # Block number `step` of the store is this batch.
            first = step * BLOCK
            return tuple(  # pyright: ignore[reportReturnType]
                jax.lax.dynamic_update_slice_in_dim(
                    old, rows.astype(old.dtype), first, 0
                )
                for old, rows in zip(store, new, strict=True)
            )

        # At most one epoch, in a random order of its own. So the first `capacity`
        # samples are drawn without replacement.
        steps = jnp.minimum(-(-local.size // BLOCK), blocks)
        features, labels, is_stored = local.loop(
            start, add, steps, BLOCK, whole=True, purpose="store"
        )
        return (
            features,
            labels,
            is_stored & (jnp.arange(len(is_stored)) < self.capacity),
        )

    def _best_share(
        self, predictor: NearestNeighbors, params: Params, local: LocalTrainer
    ) -> Float[Array, ""]:
        """The lambda of least mean loss on the validation samples.

        Returns:
            A point of the grid, the smallest one on ties; `lam_without_validation` if
            there are no such samples.
        """
        grid = jnp.linspace(0, 1, GRID, dtype=sums_type(predictor.model))

        def add(
            total: Float[Array, " grid"], batch: Batch, step: Int[Array, ""]
        ) -> Float[Array, " grid"]:
            local.count_work(forwards=1)
            z = local.features(params, batch.x, training=False)
            outputs = local.head_outputs(params, z)
            # The search for neighbours is expensive and does not depend on lambda, so
            # one pass evaluates the whole grid.
            neighbors = predictor.probabilities(z, outputs.shape[-1])
            losses = []
            for lam in grid:
                mixed = predictor.combine(neighbors, outputs, lam)
                losses.append(local.losses(mixed, batch.y, batch.weight))
            return total + jnp.stack(losses) @ batch.weight

        count = local.count("val")
        batches = -(-count // BLOCK)
        zero = jnp.zeros_like(grid)
        total = local.loop(
            zero, add, batches, BLOCK, whole=True, purpose="share", split="val"
        )
        best = grid[jnp.argmin(total)]
        return jnp.where(count > 0, best, self.lam_without_validation)
