"""PyTorch modules that are converted to JAX and trained by this library's own engine."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.inputs import Inputs
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.pytorch.convert import (
    has_randomness,
    layer_order,
    norms_of,
)
from fedtailor.models.pytorch.layout import Value
from fedtailor.models.pytorch.operations import Context
from fedtailor.models.pytorch.program import Constants, ModuleProgram
from fedtailor.models.pytorch.start import Start, reshape_inputs

MICRO_BATCH = 20
"""Examples to differentiate at a time in modules with convolutions (as in the zoo's).
"""


@dataclass(frozen=True)
class TorchModule(Architecture):
    """A PyTorch module; see `from_torch`."""

    training: ModuleProgram
    evaluation: ModuleProgram
    start: Start
    example_shape: tuple[int, ...]
    input_dtype: str
    micro_batch: int | None
    inputs: Inputs | None = None

    @property
    def frozen(self) -> FrozenArrays | None:
        return _frozen(self.training.constants, self.evaluation.constants)

    def build(
        self, input_shape: tuple[int, ...], outputs: int, key: Array
    ) -> dict[str, Array]:
        reshape_inputs(
            jax.ShapeDtypeStruct((1, *input_shape), jnp.float32), self.example_shape
        )
        return self.start.build(key)

    def apply(
        self, network: Any, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        program = self.evaluation if key is None else self.training
        return program.run(network, self._input(x), self._context(network, key=key))

    def is_stochastic(self, network: Any) -> bool:
        return has_randomness(self.training, self.evaluation)

    def statistics(self, network: Any) -> tuple[str, ...]:
        return self.training.statistics

    def train(
        self,
        network: Any,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Any]:
        context = self._context(network, key, weight)
        outputs = self.training.run(network, self._input(x), context)
        return outputs, {**network, **context.new_statistics}

    def layer_info(self, network: Any, input_shape: tuple[int, ...]) -> LayerInfo:
        head, order = self.evaluation.head, layer_order(self.evaluation)
        path = None if head is None else head.path
        return LayerInfo(path, norms_of(self.evaluation), order, self.input_dtype)

    def features(
        self,
        network: Any,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        program = self.evaluation if key is None else self.training
        context = self._context(network, key)
        return program.run(
            network, self._input(x), context, stop_at=_head_input(program)
        )

    def train_features(
        self,
        network: Any,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        context = self._context(network, key, weight)
        return self.training.run(
            network, self._input(x), context, stop_at=_head_input(self.training)
        )

    def head_outputs(
        self,
        network: Any,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        # The body runs on zeros. The compiler removes it, as nothing reads its outputs.
        program, context = self.evaluation, self._context(network)
        zeros = jnp.zeros((len(features), *self.example_shape), self.input_dtype)
        return program.run(
            network, zeros, context, replace=(_head_input(program), features)
        )

    def _input(self, x: Shaped[Array, "b ..."]) -> Value:
        return reshape_inputs(x, self.example_shape)

    def _context(
        self,
        network: Any,
        key: Array | None = None,
        weight: Float[Array, " b"] | None = None,
    ) -> Context:
        dtype = jnp.result_type(*network.values()) if network else jnp.float32
        frozen = self.frozen
        present = {} if frozen is None else frozen.present()
        return Context(dtype, weight, key, frozen=present)


@lru_cache(maxsize=64)
def _frozen(training: Constants, evaluation: Constants) -> FrozenArrays | None:
    """The large constants of both programs, once."""
    arrays = {**training.large, **evaluation.large}
    return FrozenArrays(arrays) if arrays else None


def _head_input(program: ModuleProgram) -> str:
    """The name of the value that is the input of the head."""
    assert program.head is not None
    return program.head.input
