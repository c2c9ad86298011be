"""Networks that are made of another network."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.inputs import Inputs
from fedtailor.models.part_finder import LayerInfo

T = TypeVar("T")


@dataclass(frozen=True)
class Wrapper(Architecture):
    """A network around another one, which computes features and outputs, and has the
    layers and the running statistics.

    Attributes:
        inner: the other network.
    """

    inner: Architecture

    place: ClassVar[str] = ""
    """Where the layers of `inner` are in this network, such as "base."; "" = at its root.
    """
    freezes: ClassVar[bool] = False
    """Whether some arrays of `inner` are not trained."""

    @abstractmethod
    def inner_network(self, network: Network) -> Network:
        """The network of `inner` that computes the outputs."""

    @abstractmethod
    def with_inner(self, network: Network, inner: Network) -> Network:
        """The network, with the changes that training made to that of `inner`."""

    def inner_shapes(self, network: Network) -> Network:
        """The network of `inner`; only its shapes count."""
        return self.inner_network(network)

    def run_inner(self, network: Network, function: Callable[[Network], T]) -> T:
        """A function of the network of `inner`."""
        return function(self.inner_network(network))

    def outputs_of(
        self, network: Network, outputs: Float[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        """The outputs, of those of `inner`."""
        return outputs

    @property
    def frozen(self) -> FrozenArrays | None:
        return self.inner.frozen

    @property
    def held(self) -> tuple[FrozenArrays, ...]:
        return self.inner.held

    @property
    def inputs(self) -> Inputs | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.inputs

    @property
    def known_tokens(self) -> int | None:
        return self.inner.known_tokens

    @property
    def micro_batch(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.micro_batch

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        outputs = self.run_inner(network, lambda inner: self.inner.apply(inner, x, key))
        return self.outputs_of(network, outputs)

    def is_stochastic(self, network: Network) -> bool:
        return self.inner.is_stochastic(self.inner_shapes(network))

    def statistics(self, network: Network) -> tuple[str, ...]:
        inner = self.inner.statistics(self.inner_shapes(network))
        return tuple(f"{self.place}{path}" for path in inner)

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Network]:
        outputs, inner = self.run_inner(
            network, lambda inner: self.inner.train(inner, x, key, weight)
        )
        return self.outputs_of(network, outputs), self.with_inner(network, inner)

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        info = self.inner.layer_info(self.inner_shapes(network), input_shape)
        return info.renamed(lambda path: f"{self.place}{path}")

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        info = self._inner_info(layer_info)
        return self.run_inner(
            network, lambda inner: self.inner.features(inner, info, x, key)
        )

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        info = self._inner_info(layer_info)
        return self.run_inner(
            network,
            lambda inner: self.inner.train_features(inner, info, x, key, weight),
        )

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        info = self._inner_info(layer_info)
        outputs = self.run_inner(
            network,
            lambda inner: self.inner.head_outputs(inner, info, features, input_shape),
        )
        return self.outputs_of(network, outputs)

    def _inner_info(self, info: LayerInfo) -> LayerInfo:
        return info.renamed(lambda path: path.removeprefix(self.place))
