"""Proportional hazards in discrete time: one risk for each example, and log-odds that all
examples have in common.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.part_finder import LayerInfo

RISK_PART = "risk"
"""The part of a network that is the inner one."""


@dataclass(frozen=True)
class ProportionalHazards(Architecture):
    """A network of one output, to which the log-odds of each interval are added.

    Attributes:
        inner: the network.
        start: the log-odds [intervals] from which training starts.
    """

    inner: Architecture
    start: tuple[float, ...]

    @property
    def micro_batch(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.micro_batch

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        if outputs != len(self.start):
            raise ValueError(
                f"there are log-odds of {len(self.start)} intervals for {outputs} outputs"
            )
        return {
            RISK_PART: self.inner.build(input_shape, 1, key),
            "log_odds": jnp.array(self.start, jnp.float32),
        }

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b intervals"]:
        return _added(self.inner.apply(network[RISK_PART], x, key), network)

    def is_stochastic(self, network: Network) -> bool:
        return self.inner.is_stochastic(network[RISK_PART])

    def statistics(self, network: Network) -> tuple[str, ...]:
        inner = self.inner.statistics(network[RISK_PART])
        return tuple(f"{RISK_PART}.{path}" for path in inner)

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b intervals"], Network]:
        outputs, inner = self.inner.train(network[RISK_PART], x, key, weight)
        return _added(outputs, network), {**network, RISK_PART: inner}

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        info = self.inner.layer_info(network[RISK_PART], input_shape)
        return replace(
            info,
            head=None if info.head is None else f"{RISK_PART}.{info.head}",
            norms=tuple(f"{RISK_PART}.{path}" for path in info.norms),
            order=tuple(f"{RISK_PART}.{path}" for path in info.order),
        )

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        info = self._inner_info(layer_info)
        return self.inner.features(network[RISK_PART], info, x, key)

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        info = self._inner_info(layer_info)
        return self.inner.train_features(network[RISK_PART], info, x, key, weight)

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b intervals"]:
        info = self._inner_info(layer_info)
        outputs = self.inner.head_outputs(
            network[RISK_PART], info, features, input_shape
        )
        return _added(outputs, network)

    def _inner_info(self, info: LayerInfo) -> LayerInfo:
        def inner(path: str) -> str:
            return path.removeprefix(f"{RISK_PART}.")

        return replace(
            info,
            head=None if info.head is None else inner(info.head),
            norms=tuple(map(inner, info.norms)),
            order=tuple(map(inner, info.order)),
        )


def _added(risk: Float[Array, "b ..."], network: Any) -> Float[Array, "b intervals"]:
    return risk.reshape(len(risk), 1) + network["log_odds"]
