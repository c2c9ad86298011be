"""Predictors: one model (its vector theta), or models together with further arrays, such as
a mixture, a model with nearest neighbours, or what a method of one's own defines.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

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
    """Whether its arrays hold a client's examples, which exports refuse."""

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
            ValueError: probabilities of a model that predicts no classes, or not as many
                weights as models.
        """
        shape, models = jnp.shape(self.weights), len(self.models)
        require(
            shape == (models,),
            f"a mixture of {models} models has weights of shape {shape}; there must be one"
            " for each model",
        )
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


Predictor = Array | CombinedPredictor
"""A model vector theta [d], or models with further arrays (`Mixture`, ...)."""
