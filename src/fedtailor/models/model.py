"""`Model`: what a client trains, seen from outside as a vector theta [d] and inside a training loop as a pytree."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from fedtailor.models.losses import Classification, Loss, cross_entropy


class Architecture(ABC):
    """A network before the shape of the data is known. Subclass as a frozen dataclass: equal values are one program.

    Attributes:
        micro_batch: how many examples to differentiate at a time where a whole batch would outgrow the cache (the
            gradients add up to the batch's), or None.
    """

    micro_batch: int | None = None

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Any:
        """A randomly initialised network: a pytree whose floating-point arrays are the parameters."""

    @abstractmethod
    def apply(self, network: Any, x: Shaped[Array, "b ..."], key: Array | None) -> Float[Array, "b ..."]:
        """Outputs for a batch; without a key in evaluation mode (dropout off)."""

    def is_stochastic(self, network: Any) -> bool:
        """Whether training the network (as `build` makes it) needs random numbers."""
        return False

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: Loss = cross_entropy,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> "Model":
        """The model for inputs of one shape; see `Model` for the arguments and errors."""
        return Model(self, tuple(input_shape), outputs, loss, dtype)


@dataclass(frozen=True)
class Model:
    """A network, its loss and the two-way map between theta [d] and its pytree of parameters.

    Models are equal, and share compiled programs, when architecture, shapes, loss and precision are equal.

    Attributes:
        architecture: the network.
        input_shape: shape of one input.
        outputs: classes, symbols of a density, or targets of a regression.
        loss: (outputs [b, ...], targets [b, ...]) -> [b].
        dtype: precision of parameters and computation; "float64" needs `jax.enable_x64`.

    Raises:
        ValueError: the architecture does not fit the input, or holds state that training would have to carry along.
    """

    architecture: Architecture
    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss = cross_entropy
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise ValueError(f"outputs is {self.outputs}; a model needs one output (class, symbol, target) or more")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is {self.dtype!r}; choose 'float32' or 'float64'")
        _ = _layout(self)

    # vectors and trees ------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        return _layout(self).ends[-1]

    def init(self, key: Array) -> Float[Array, " d"]:
        """Random initial parameters theta [d]; the same in both precisions, up to rounding."""
        self._require_precision()
        return _initial(self, key)

    def params(self, theta: Float[Array, " d"]) -> Any:
        """The parameters as a tree, each reshaped out of theta; do this once, before a loop.

        Raises:
            ValueError: theta has not d entries, or float64 is asked for and not enabled.
        """
        self._require_precision()
        layout = _layout(self)
        if theta.shape != (self.size,):
            raise ValueError(f"theta has shape {theta.shape}; this model takes [{self.size}]")
        theta = jnp.asarray(theta, self.dtype)
        starts = (0, *layout.ends)
        leaves = [
            theta[start:end].reshape(shape)
            for start, end, shape in zip(starts, layout.ends, layout.shapes, strict=False)
        ]
        return jax.tree.unflatten(layout.structure, leaves)

    def vector(self, params: Any) -> Float[Array, " d"]:
        """Back to theta [d]: the exact inverse of `params`."""
        leaves = jax.tree.leaves(params)
        return jnp.concatenate([leaf.reshape(-1) for leaf in leaves]) if leaves else jnp.zeros(0, self.dtype)

    # predictions ------------------------------------------------------------------------------------------------

    @property
    def micro_batch(self) -> int | None:
        """Examples to differentiate at a time, or None for whole batches."""
        return self.architecture.micro_batch

    @property
    def stochastic(self) -> bool:
        """Whether training needs a key (dropout)."""
        return _layout(self).stochastic

    @property
    def classification(self) -> bool:
        """Whether outputs are class scores, so that accuracy means something."""
        return isinstance(self.loss, Classification)

    @property
    def metric(self) -> Literal["accuracy", "loss"]:
        """What clients are compared by. Without inputs every example gets the same class: only the loss says much."""
        return "accuracy" if self.classification and math.prod(self.input_shape) > 0 else "loss"

    def logits(self, params: Any, x: Shaped[Array, "b ..."], key: Array | None = None) -> Float[Array, "b ..."]:
        """Outputs for inputs x [b, *input_shape], floats in the model's precision or integer tokens.

        Args:
            params: the tree that `params` made.
            x: a batch of inputs.
            key: randomness of a training step; None = evaluation mode.

        Raises:
            ValueError: the inputs have another shape, or the network does not give `outputs` class scores.
        """
        if x.shape[1:] != self.input_shape:
            raise ValueError(f"inputs have shape {x.shape[1:]}; this model was bound to {self.input_shape}")
        outputs = self.architecture.apply(eqx.combine(params, _layout(self).static), x, key)
        if self.classification and outputs.shape != (len(x), self.outputs):
            raise ValueError(
                f"the network gives {outputs.shape[1:]} outputs for one example, and the data have {self.outputs} "
                "classes; make its last layer as wide as there are classes"
            )
        return outputs

    def losses(self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]) -> Float[Array, " b"]:
        """Loss of each example."""
        return self.loss(outputs, y)

    def correct(self, outputs: Float[Array, "b classes"], y: Shaped[Array, " b"]) -> Bool[Array, " b"]:
        """Whether the highest score is the label's (class scores or log-probabilities)."""
        return jnp.argmax(outputs, axis=-1) == y

    def log_probabilities(self, outputs: Float[Array, "*b classes"]) -> Float[Array, "*b classes"]:
        """Logarithms of the predicted class probabilities."""
        return jax.nn.log_softmax(outputs, axis=-1)

    def _require_precision(self) -> None:
        if self.dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ValueError("a float64 model needs 64-bit JAX; work inside `with jax.enable_x64(True):`")


@dataclass(frozen=True)
class _Layout:
    """Where the parameters of a model lie in theta, and the rest of its network."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    static: Any
    stochastic: bool


@lru_cache(maxsize=256)
def _layout(model: Model) -> _Layout:
    def build() -> Any:
        return model.architecture.build(model.input_shape, model.outputs, jax.random.key(0))

    network = eqx.filter_eval_shape(build)  # no array is made
    params, static = eqx.partition(network, _is_parameter)
    for path, leaf in jax.tree_util.tree_leaves_with_path(static):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            where = jax.tree_util.keystr(path)
            raise ValueError(f"the network's array {where} is {leaf.dtype}; only floating-point arrays can be trained")
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    ends = tuple(int(end) for end in np.cumsum([math.prod(shape) for shape in shapes]))
    return _Layout(structure, shapes, ends or (0,), static, model.architecture.is_stochastic(network))


@partial(jax.jit, static_argnums=0)
def _initial(model: Model, key: Array) -> Float[Array, " d"]:
    network = model.architecture.build(model.input_shape, model.outputs, key)
    params, _ = eqx.partition(network, _is_parameter)
    return model.vector(jax.tree.map(lambda leaf: jnp.asarray(leaf, model.dtype), params))


def _is_parameter(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
