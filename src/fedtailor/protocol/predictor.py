"""What a client predicts with: one model (its vector theta), a mixture of models, or a model beside neighbours."""

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
        logits: combine logits (APFL's official code) instead of probabilities (Mansour et al. 2020, eq. 8).
    """

    weights: Float[Array, " k"]
    models: Float[Array, "k d"]
    logits: bool = field(default=False, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NearestNeighbors:
    """A model, and the k nearest of a client's own examples in the space of that model's features.

    An example at Euclidean distance r counts exp(-r / scale) for its class. Of the stored rows only those in `held`
    are examples.

    Attributes:
        model: [d].
        features: what the model's head is given for the stored examples [s, f].
        labels: their classes [s].
        held: which rows are examples [s].
        share: lambda, the neighbours' share of the prediction, in [0, 1].
        scale: the distance at which the weight has fallen to 1/e.
        k: neighbours; all examples where there are fewer.
        logits: combine the neighbours' probabilities with the model's logits instead of its probabilities.
    """

    model: Float[Array, " d"]
    features: Float[Array, "s f"]
    labels: Int[Array, " s"]
    held: Bool[Array, " s"]
    share: Float[Array, ""]
    scale: Float[Array, ""]
    k: int = field(metadata={"static": True})
    logits: bool = field(default=False, metadata={"static": True})

    def probabilities(self, features: Float[Array, "b ..."], classes: int) -> Float[Array, "b classes"]:
        """What the neighbours alone predict for features."""
        z = features.reshape(len(features), -1)
        squares = jnp.square(z).sum(1)[:, None] - 2 * z @ self.features.T + jnp.square(self.features).sum(1)
        chosen = jax.lax.top_k(-jnp.where(self.held, squares, jnp.inf), min(self.k, len(self.labels)))[1]
        # distances anew: the difference of squares is rounded, which a root of nearly 0 makes much of
        distance = jnp.sqrt(jnp.square(z[:, None] - self.features[chosen]).sum(-1))
        nearest = jnp.where(self.held[chosen], distance, jnp.inf).min(axis=1, keepdims=True)
        nearest = jnp.where(jnp.isfinite(nearest), nearest, 0)
        weight = jnp.where(self.held[chosen], jnp.exp((nearest - distance) / self.scale), 0)
        votes = (weight[..., None] * jax.nn.one_hot(self.labels[chosen], classes, dtype=z.dtype)).sum(axis=1)
        return votes / jnp.maximum(votes.sum(axis=1, keepdims=True), jnp.finfo(z.dtype).tiny)

    def combine(
        self, neighbors: Float[Array, "b classes"], outputs: Float[Array, "b classes"], share: Float[Array, ""]
    ) -> Float[Array, "b classes"]:
        """Outputs of both together, from the neighbours' probabilities and the model's logits: log-probabilities, or
        logits."""
        if self.logits:
            return share * neighbors + (1 - share) * outputs
        mixed = share * neighbors + (1 - share) * jax.nn.softmax(outputs, axis=-1)
        return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))


Predictor = Array | Mixture | NearestNeighbors
"""A model vector theta [d], a `Mixture`, or `NearestNeighbors`."""
