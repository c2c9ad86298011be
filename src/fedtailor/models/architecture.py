"""`Architecture`: a network before the shape of the data is known."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Array, Float, PyTree, Shaped

from fedtailor._base.printable import without_addresses
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.inputs import Inputs
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.precision import DType, Precision
from fedtailor.models.tasks import LossFunction, cross_entropy

if TYPE_CHECKING:
    from fedtailor.models.model import Model

Network = PyTree
"""A network: any pytree whose floating-point arrays are its parameters, such as an Equinox
module or a dict of arrays.
"""


class Architecture(ABC):
    """A network before the shape of the data is known.

    Subclass it as a frozen dataclass. Architectures with equal fields are equal, and share
    compiled programs.

    Attributes:
        micro_batch: the number of examples to differentiate at a time, so that activations
            fit into the cache; the gradients are added up. None = the whole batch.
        trained: arrays by path that the network begins with, if it comes trained.
        inputs: what the inputs are that the network takes apart; None if it takes one.

    Example:
        >>> isinstance(ft.models.mlp(hidden=64), ft.models.Architecture)
        True
    """

    micro_batch: int | None = None
    trained: FrozenArrays | None = None
    inputs: Inputs | None = None

    def __str__(self) -> str:
        return without_addresses(self)

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        """Make a network with random parameters.

        Args:
            input_shape: the shape of one input.
            outputs: the number of outputs.
            key: the random key of the parameters.
        """

    @abstractmethod
    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        """Compute the outputs for a batch.

        Args:
            network: with parameters and running statistics.
            x: a batch of inputs.
            key: the random key of a training step, for dropout; None = evaluation mode.
        """

    @property
    def frozen(self) -> FrozenArrays | None:
        """The arrays of the network that no training changes, and that are not part of
        theta; None if there are none.
        """
        return None

    @property
    def held(self) -> tuple[FrozenArrays, ...]:
        """The arrays without which a file does not describe this architecture."""
        return ()

    def without_trained(self) -> "Architecture":
        """The same network, whose `trained` arrays are elsewhere."""
        return self

    @property
    def outputs_last(self) -> tuple[str, ...]:
        """Paths of weights whose last axis are the outputs, if only the network knows."""
        return ()

    @property
    def known_tokens(self) -> int | None:
        """The number of token ids that the network knows; None if it takes others."""
        return None

    def is_stochastic(self, network: Network) -> bool:
        """Whether training needs random numbers (dropout).

        Args:
            network: as `build` returns it, or its shapes.
        """
        return False

    # running statistics, such as those of batch normalisation
    # ------------------------------------------------------

    def statistics(self, network: Network) -> tuple[str, ...]:
        """The paths of the arrays that are running statistics, in the form of
        `fedtailor.models.tree_paths.path_of`.
        """
        return ()

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Network]:
        """Compute the outputs in a training step, and update the running statistics.

        It is called only if there are `statistics`.

        Args:
            network: the network before the step.
            x: a batch of inputs.
            key: the random key of the step, for dropout; None if `is_stochastic` is
                False.
            weight: 1 for an example, 0 for padding, which must not change the
                statistics.

        Returns:
            The outputs, and the network with new running statistics.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names statistics and has no method `train`"
        )

    # parts of the network (see `Model.part`)
    # ---------------------------------------------------------------------

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        """Describe the layers of the network: its head, its normalisation layers, and the
        order of calls.

        Args:
            network: as `build` returns it, or its shapes (`jax.ShapeDtypeStruct` in place
                of arrays).
            input_shape: the shape of one input.

        Returns:
            The description; by default one without a head and normalisation layers.
        """
        return LayerInfo()

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        """Compute the inputs of the head. It is called only if `layer_info` has a head.

        Args:
            network: as for `apply`.
            layer_info: what the method `layer_info` returned.
            x: as for `apply`.
            key: as for `apply`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names a head and has no method `features`"
        )

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        """Compute the inputs of the head in a training step.

        It is called only if there are `statistics`. Key and weight are as for `train`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names a head and statistics and has no"
            " `train_features`"
        )

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        """Compute the outputs from features [b, ...] in evaluation mode. It is called
        only if `layer_info` has a head.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names a head and has no method `head_outputs`"
        )

    def in_precision(self, dtype: DType | Precision) -> "Architecture":
        """This network for models of a precision other than float32.

        Example:
            >>> half = ft.models.logistic().in_precision("bfloat16")
            >>> ft.run(ft.FedAvg(), federation, half, rounds=1).personal(0).theta.dtype
            dtype(bfloat16)
        """
        Precision.of(dtype)
        return self if dtype == "float32" else InPrecision(self, dtype)

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: LossFunction = cross_entropy,
        dtype: DType | Precision = "float32",
    ) -> "Model":
        """The model for inputs of one shape; `Model` explains the arguments and errors."""
        from fedtailor.models.model import Model  # avoids an import cycle

        return Model(self, tuple(input_shape), outputs, loss, dtype)


@dataclass(frozen=True)
class InPrecision(Architecture):
    """A network before its precision is bound, see `Architecture.in_precision`.

    The bound model is one of the inner network.
    """

    inner: Architecture
    precision: DType | Precision

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        return self.inner.build(input_shape, outputs, key)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        return self.inner.apply(network, x, key)

    def in_precision(self, dtype: DType | Precision) -> Architecture:
        return self.inner.in_precision(dtype)

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: LossFunction = cross_entropy,
        dtype: DType | Precision | None = None,
    ) -> "Model":
        return self.inner.bind(
            input_shape, outputs, loss, self.precision if dtype is None else dtype
        )
