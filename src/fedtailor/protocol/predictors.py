"""Predictors: one model (its vector theta), or models together with further arrays, such as
a mixture, a model with nearest neighbours, or what a method of one's own defines.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from fedtailor._base.choice import require
from fedtailor.protocol.axes import along_axis
from fedtailor.protocol.parts import ModelParts
from fedtailor.protocol.state import state_name

T = TypeVar("T")


class PredictingModel(ModelParts, Protocol):
    """What a predictor may compute with a model (`fedtailor.models.Model`), in evaluation
    mode.
    """

    def params(self, theta: Float[Array, " d"]) -> PyTree:
        """Convert a vector theta [d] to a pytree of parameters."""
        ...

    def logits(
        self, params: PyTree, x: Shaped[Array, "b ..."]
    ) -> Shaped[Array, "b ..."]:
        """Compute the outputs for inputs x."""
        ...

    def features(
        self, params: PyTree, x: Shaped[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        """Compute the input of the head for inputs x."""
        ...

    def head_outputs(
        self, params: PyTree, features: Float[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        """Compute the outputs for features."""
        ...

    def log_probabilities(
        self, outputs: Float[Array, "*b classes"]
    ) -> Float[Array, "*b classes"]:
        """Compute the logarithms of the class probabilities that outputs mean."""
        ...


class CombinedPredictor:
    """Base of predictors that are more than one model: subclass it, decorate with
    `@predictor`, and write `outputs`.

    The field `models` [k, d], or `model` [d], holds the models. Other fields are arrays, dicts of arrays, or
    settings (`field(metadata={"static": True})`: a bool, number or str). All of them are
    stored with a client's model, and `outputs` says how it predicts.
    """

    registry: ClassVar[dict[str, type["CombinedPredictor"]]] = {}

    holds_examples: ClassVar[bool] = False
    """Whether its arrays hold a client's examples, which exports leave out."""

    @property
    def kind(self) -> str:
        """What lists of models call it."""
        return type(self).__name__

    def outputs(
        self, model: PredictingModel
    ) -> Callable[[Shaped[Array, "b ..."]], Float[Array, "b ..."]]:
        """The predictor as a function of normalised inputs.

        Args:
            model: the network.

        Returns:
            x [b, ...] -> logits, log-probabilities or predicted targets [b, ...]: what the
            model's losses are computed from.
        """
        raise NotImplementedError


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def predictor(cls: type[T]) -> type[T]:
    """Make a subclass of `CombinedPredictor` a frozen dataclass that can be traced and
    stored (class decorator).
    """
    new_class: Any = dataclass(frozen=True, eq=False)(cls)
    names = {field.name for field in dataclasses.fields(new_class)}
    require(
        bool(names & {"model", "models"}),
        f"{cls.__name__} needs a field `model` [d] or `models` [k, d]",
    )
    jax.tree_util.register_dataclass(new_class)
    CombinedPredictor.registry[state_name(new_class)] = new_class
    return new_class


@predictor
class Mixture(CombinedPredictor):
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

    @property
    def kind(self) -> str:
        return "mixture"

    def outputs(self, model: PredictingModel) -> Callable[[Array], Array]:
        """The mean logits of the models, or the logarithms of their mean probabilities.

        Raises:
            ValueError: probabilities of a model that predicts no classes.
        """
        require(
            self.logits or model.classification,
            "a mixture of probabilities needs a model of classes; this method cannot train"
            " a model with another loss",
        )
        stacked = jax.vmap(model.params)(self.models)
        weights = self.weights

        def mixed(x: Array) -> Array:
            # [k, b, ...]
            logits = jax.vmap(lambda params: model.logits(params, x))(stacked)
            if self.logits:
                return jnp.tensordot(weights, logits, 1)
            # We compute log sum_k w_k p_k in the log domain, so that small probabilities
            # do not underflow. The first `where` avoids log(0), whose derivative would be
            # NaN even though the second `where` discards the value.
            positive_weights = jnp.where(weights > 0, weights, 1)
            log_weights = jnp.where(weights > 0, jnp.log(positive_weights), -jnp.inf)
            log_weights = along_axis(log_weights, 0, logits.ndim)
            return jax.nn.logsumexp(
                model.log_probabilities(logits) + log_weights, axis=0
            )

        return mixed


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


Predictor = Array | CombinedPredictor
"""A model vector theta [d], or models with further arrays (`Mixture`, ...)."""
