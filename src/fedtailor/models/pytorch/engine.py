"""PyTorch modules that PyTorch itself trains, for those that cannot be converted."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models.architecture import Architecture
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.pytorch.host_call import host_call
from fedtailor.models.pytorch.inspection import Facts
from fedtailor.models.pytorch.live import LiveModule, Mode, What
from fedtailor.models.pytorch.start import Start, reshape_inputs


@dataclass(frozen=True)
class TorchEngine(Architecture):
    """A PyTorch module that PyTorch itself runs; see `from_torch(..., engine="torch")`.

    Attributes:
        layers: the module's `repr`.
        start: its initial values.
        facts: its properties.
        constants: a fingerprint of the arrays that training does not change.
    """

    layers: str
    start: Start
    facts: Facts
    constants: str

    in_python = True

    def live(self, dtype: str) -> LiveModule:
        """The module in a precision; the same object in every call."""
        return _live(self, dtype)

    def build(
        self, input_shape: tuple[int, ...], outputs: int, key: Array
    ) -> dict[str, Array]:
        reshape_inputs(
            jax.ShapeDtypeStruct((1, *input_shape), jnp.float32),
            self.facts.example_shape,
        )
        return self.start.build(key)

    def apply(
        self, network: Any, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        return self._run(
            "outputs", "evaluation" if key is None else "training", network, x, key
        )[0]

    def is_stochastic(self, network: Any) -> bool:
        return self.facts.stochastic

    def statistics(self, network: Any) -> tuple[str, ...]:
        return self.facts.statistics

    def train(
        self,
        network: Any,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Any]:
        outputs, *new_statistics = self._run(
            "outputs", self.mode(key), network, x, key, weight
        )
        return outputs, {
            **network,
            **dict(zip(self.facts.statistics, new_statistics, strict=True)),
        }

    def mode(self, key: Any) -> Mode:
        """The mode of a training step. Without a key there is no dropout."""
        return "statistics" if key is None and self.facts.stochastic else "training"

    def layer_info(self, network: Any, input_shape: tuple[int, ...]) -> LayerInfo:
        facts = self.facts
        return LayerInfo(
            facts.head,
            facts.norms,
            facts.order,
            "int32" if facts.integers else "float32",
        )

    def features(
        self,
        network: Any,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        return self._run(
            "features", "evaluation" if key is None else "training", network, x, key
        )[0]

    def train_features(
        self,
        network: Any,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        return self._run("features", self.mode(key), network, x, key, weight)[0]

    def head_outputs(
        self,
        network: Any,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        return self._run("head", "evaluation", network, features, None)[0]

    def _run(
        self,
        what: What,
        mode: Mode,
        network: Any,
        x: Any,
        key: Array | None,
        weight: Array | None = None,
    ) -> list[Array]:
        words = None if key is None else jax.random.key_data(key)
        return _run(self, what, mode, network, x, words, weight)


@lru_cache(maxsize=8)
def _live(engine: TorchEngine, dtype: str) -> LiveModule:
    """As `TorchEngine.live`. The module is cached here, as an engine is a frozen value."""
    return LiveModule(engine.start.module, engine.facts, dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _run(
    engine: TorchEngine,
    what: What,
    mode: Mode,
    network: Any,
    x: Any,
    words: Any,
    weight: Any,
) -> list[Array]:
    """A forward pass by PyTorch, as a function that JAX can differentiate once.

    Args:
        what: see `What`.
        mode: see `Mode`.
        network: parameters and statistics, by path.
        x: inputs, or features.
        words: two random words for dropout.
        weight: 0 for padding.

    Returns:
        Outputs (or features) [b, ...], and the running statistics after the pass.
    """
    # JAX must know the shapes of the outputs and of every statistic beforehand.
    facts = engine.facts
    shape = facts.feature_shape if what == "features" else facts.output_shape
    assert shape is not None
    dtype = jnp.result_type(*network.values())
    shapes = [(len(x), *shape), *(network[path].shape for path in facts.statistics)]
    arrays, structure = jax.tree.flatten((network, x, words, weight))

    def call(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
        network, x, words, weight = jax.tree.unflatten(structure, arrays)
        return engine.live(dtype.name).evaluate(network, x, words, weight, what, mode)

    return host_call(
        call, [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes], arrays
    )


def _forward(
    engine: TorchEngine, what: What, mode: Mode, *arguments: Any
) -> tuple[list[Array], Any]:
    """The pass and its residuals. These are its arguments only, as PyTorch runs the pass
    again for the derivative.
    """
    return _run(engine, what, mode, *arguments), arguments


def _backward(
    engine: TorchEngine,
    what: What,
    mode: Mode,
    arguments: Any,
    output_grads: list[Array],
) -> Any:
    """Derivatives with respect to network and inputs, computed by PyTorch. Random words
    and weight have none.
    """
    network, x, _, _ = arguments
    dtype = jnp.result_type(*network.values())
    differentiable = [x] if jnp.issubdtype(x.dtype, jnp.floating) else []
    shapes = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for leaf in (*jax.tree.leaves(network), *differentiable)
    ]
    arrays, structure = jax.tree.flatten((*arguments, output_grads[0]))

    def call(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
        network, x, words, weight, output_grads = jax.tree.unflatten(structure, arrays)
        return engine.live(dtype.name).differentiate(
            network, x, words, weight, output_grads, what, mode
        )

    derivatives = host_call(call, shapes, arrays)
    gradient = jax.tree.unflatten(
        jax.tree.structure(network), derivatives[: len(network)]
    )
    # In JAX the derivative with respect to integers has the dtype float0.
    x_grad = derivatives[-1] if differentiable else np.zeros(x.shape, jax.dtypes.float0)
    return gradient, x_grad, None, None


_run.defvjp(_forward, _backward)
