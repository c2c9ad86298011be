"""What a client predicts with: one model (its vector theta), a mixture of models, or a
model beside neighbours.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mixture:
    """A convex combination of the outputs of k models.

    Attributes:
        weights: [k], non-negative, summing to 1.
        models: [k, d].
        logits: combine logits (APFL's official code) instead of probabilities (Mansour
            et al. 2020, eq. 8).
    """

    weights: Float[Array, " k"]
    models: Float[Array, "k d"]
    logits: bool = field(default=False, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NearestNeighbors:
    """A model, and the k nearest of a client's own examples in the space of that
    model's features.

    An example at Euclidean distance r counts exp(-r / scale) for its class. Of the
    stored rows only those in `held` are examples.

    Attributes:
        model: [d].
        features: what the model's head is given for the stored examples [s, f].
        labels: their classes [s].
        held: which rows are examples [s].
        share: lambda, the neighbours' share of the prediction, in [0, 1].
        scale: the distance at which the weight has fallen to 1/e.
        k: neighbours; all examples where there are fewer.
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

    def probabilities(
        self, features: Float[Array, "b ..."], classes: int
    ) -> Float[Array, "b classes"]:
        """What the neighbours alone predict.

        Args:
            features: what the model's head is given for b inputs.
            classes: the number of classes.

        Returns:
            Class probabilities; all zero where the client holds no example.
        """
        z = features.reshape(len(features), -1)
        # Which are the nearest: |z - f|^2 = |z|^2 - 2 <z, f> + |f|^2 for all pairs is
        # one matrix product.
        products = z @ self.features.T
        squares_of_z = jnp.square(z).sum(1)[:, None]
        squares = squares_of_z - 2 * products + jnp.square(self.features).sum(1)
        count = min(self.k, len(self.labels))
        _, chosen = jax.lax.top_k(-jnp.where(self.held, squares, jnp.inf), count)
        held = self.held[chosen]
        # The few distances that count are computed anew: that difference of squares is
        # rounded, and the root of a number near 0 enlarges the error.
        difference = z[:, None] - self.features[chosen]
        distance = jnp.sqrt(jnp.square(difference).sum(-1))
        # Weights relative to the nearest neighbour's: exp(-distance) of all of them may
        # underflow to 0.
        nearest = jnp.where(held, distance, jnp.inf).min(axis=1, keepdims=True)
        nearest = jnp.where(jnp.isfinite(nearest), nearest, 0)
        weight = jnp.where(held, jnp.exp((nearest - distance) / self.scale), 0)
        # Each neighbour votes for its class by its weight.
        one_hot = jax.nn.one_hot(self.labels[chosen], classes, dtype=z.dtype)
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
        """The prediction of the neighbours and the model together.

        Args:
            neighbors: class probabilities of the neighbours.
            outputs: logits of the model.
            share: the neighbours' share of the prediction, in [0, 1].

        Returns:
            Log-probabilities; where `logits` is set, the combined logits.
        """
        if self.logits:
            return share * neighbors + (1 - share) * outputs
        mixed = share * neighbors + (1 - share) * jax.nn.softmax(outputs, axis=-1)
        # Both may give a class probability 0, whose logarithm would make the loss
        # infinite.
        return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))


Predictor = Array | Mixture | NearestNeighbors
"""A model vector theta [d], a `Mixture`, or `NearestNeighbors`."""
