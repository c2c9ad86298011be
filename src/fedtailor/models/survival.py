"""Proportional hazards in intervals of time: one risk for each example, and what all
examples have in common. In discrete time these are log-odds; in Cox's model, hazards that
add up.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.model import Model
from fedtailor.models.precision import DType, Precision
from fedtailor.models.tasks import LossFunction, cross_entropy
from fedtailor.models.wrapper import Wrapper

RISK_PART = "risk"
"""The part of a network that is the inner one."""
LOG_HAZARDS = (-30.0, math.log(50.0))
"""The least logarithm of a hazard that makes a difference to its odds, and the largest
one: nobody survives that."""


@dataclass(frozen=True)
class ProportionalHazards(Wrapper):
    """A network of one output, to which the log-odds of each interval are added.

    Attributes:
        inner: the network.
        start: the log-odds [intervals] from which training starts.
    """

    start: tuple[float, ...]

    place: ClassVar[str] = f"{RISK_PART}."

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: LossFunction = cross_entropy,
        dtype: DType | Precision = "float32",
    ) -> Model:
        # A network with frozen arrays gets them for inputs of one shape.
        inner = self.inner.bind(input_shape, 1, dtype=dtype).architecture
        bound = replace(self, inner=inner)
        return Model(bound, tuple(input_shape), outputs, loss, dtype)

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        if outputs != len(self.start):
            raise ValueError(
                f"there are log-odds of {len(self.start)} intervals for {outputs} outputs"
            )
        return {
            RISK_PART: self.inner.build(input_shape, 1, key),
            "log_odds": jnp.array(self.start, jnp.float32),
        }

    def inner_network(self, network: Network) -> Network:
        return network[RISK_PART]

    def with_inner(self, network: Network, inner: Network) -> Network:
        return {**network, RISK_PART: inner}

    def outputs_of(
        self, network: Network, outputs: Float[Array, "b ..."]
    ) -> Float[Array, "b intervals"]:
        return outputs.reshape(len(outputs), 1) + network["log_odds"]


@dataclass(frozen=True)
class CoxHazards(Architecture):
    """Cox's model in intervals of time, with coefficients [inputs], and the logarithms of
    the hazards [intervals] that add up in each for an example of risk 0. Outputs are the
    log-odds of the event in an interval, as those of `DiscreteTime`.

    It is fitted by Newton's steps, not by steps of gradients.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        if len(input_shape) != 1:
            raise ValueError(
                f"Cox's model takes rows of numbers, not inputs of shape {list(input_shape)}"
            )
        return {
            "coefficients": jnp.zeros(input_shape[0]),
            "log_hazards": jnp.zeros(outputs),
        }

    def apply(
        self, network: Network, x: Float[Array, "b inputs"], key: Array | None
    ) -> Float[Array, "b intervals"]:
        log_hazards = (x @ network["coefficients"])[:, None] + network["log_hazards"]
        # log(exp(h) - 1) = log h + h / 2 + log(sinh(h / 2) / (h / 2)), whose terms are
        # exact for small hazards h, too.
        least, most = LOG_HAZARDS
        log_hazards = jnp.minimum(log_hazards, most)
        half = jnp.exp(jnp.maximum(log_hazards, least)) / 2
        return log_hazards + half + jnp.log(jnp.sinh(half) / half)
