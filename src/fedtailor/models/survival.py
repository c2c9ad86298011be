"""Proportional hazards in discrete time: one risk for each example, and log-odds that all
examples have in common.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.models.architecture import Network
from fedtailor.models.model import Model
from fedtailor.models.precision import DType, Precision
from fedtailor.models.tasks import LossFunction, cross_entropy
from fedtailor.models.wrapper import Wrapper

RISK_PART = "risk"
"""The part of a network that is the inner one."""


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
