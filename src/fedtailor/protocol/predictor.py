"""Predictors: one model (its vector theta), a mixture of models, or a model combined with
nearest neighbours.
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


Predictor = Array | Mixture | NearestNeighbors
"""A model vector theta [d], a `Mixture`, or `NearestNeighbors`."""
