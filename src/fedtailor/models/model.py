"""`Model`: an architecture for data of one shape. Its parameters are a vector theta [d], or
a pytree inside training loops.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.by_client import ByClient
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.no_fuse import no_fuse
from fedtailor.models.own_code import explained
from fedtailor.models.parameter_layout import (
    is_parameter,
    layout_of,
    part_finder_of,
    shapes_of,
)
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.parts import Part
from fedtailor.models.precision import DType, Precision
from fedtailor.models.tasks import LossFunction, Task, cross_entropy, task_of
from fedtailor.protocol import Params


@dataclass(frozen=True)
class Model:
    """A network for inputs of one shape, its loss, and the conversions between a vector
    theta [d] and a pytree of parameters.

    Models with equal fields are equal, and share compiled programs.

    Attributes:
        architecture: makes and runs the network.
        input_shape: the shape of one input.
        outputs: the number of classes, of symbols of a density, or of targets of a
            regression.
        loss: a task, such as `cross_entropy`; or a function (outputs [b, ...], targets
            [b, ...]) -> [b], which is the loss of a regression.
        dtype: the precision of parameters and computation, or a `Precision` that tells
            them apart. "float64" needs `jax.enable_x64`; with "bfloat16" steps, losses and
            averages are computed in float32.

    Raises:
        ValueError: the architecture does not fit the input, or has state that is neither
            parameters nor running statistics.

    Example:
        >>> model = ft.models.mlp(hidden=8).bind((4,), 3)
        >>> model.size, model.outputs
        (67, 3)
    """

    architecture: Architecture
    input_shape: tuple[int, ...]
    outputs: int
    loss: LossFunction = cross_entropy
    dtype: DType | Precision = "float32"

    has_plain_type: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise ValueError(
                f"outputs is {self.outputs}; a model needs one output (class, symbol,"
                " target) or more"
            )
        layout, is_mixed = layout_of(self), self.precision.is_mixed
        several = self.architecture.inputs
        if is_mixed and several is not None and several.is_mixed:
            raise ValueError(
                "with bfloat16, whole numbers beside floats among the inputs would be"
                " rounded; use float32"
            )
        if is_mixed and layout.statistics:
            raise ValueError(
                "running statistics of batch normalisation need float32; use a model"
                " with group normalisation for bfloat16"
            )

    # vectors and trees
    # ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        return layout_of(self).ends[-1]

    @property
    def own_size(self) -> int:
        """Number of parameters of this model's own network, of one of several
        (`models.by_client`); d if there is one network.
        """
        index = self.network_index
        if index is None:
            return self.size
        layout = layout_of(self)
        starts = (0, *layout.ends)
        return sum(
            end - start
            for path, start, end in zip(layout.paths, starts, layout.ends, strict=False)
            if path.startswith(f"{index}.")
        )

    def init(self, key: Array) -> Float[Array, " d"]:
        """Draw random initial parameters theta [d], which are the same in both precisions
        up to rounding.
        """
        self._require_precision()
        return _initial(self, key)

    def params(self, theta: Float[Array, " d"]) -> Params:
        """Convert a vector theta [d] to a pytree of parameters. Call this once, before a
        loop.

        Returns:
            A pytree of arrays in the precision of sums, each a reshaped slice of theta.

        Raises:
            ValueError: theta does not have d entries, or the model needs float64 and this
                is not enabled.
        """
        self._require_precision()
        layout = layout_of(self)
        if theta.shape != (self.size,):
            raise ValueError(
                f"theta has shape {theta.shape}; this model takes [{self.size}]"
            )
        theta = jnp.asarray(theta, self.precision.sums)
        return jax.tree.unflatten(layout.structure, _leaves(self, theta))

    def vector(self, params: Params) -> Float[Array, " d"]:
        """Convert a pytree of parameters to a vector theta [d]: the inverse of `params`."""
        leaves, dtype = jax.tree.leaves(params), self.precision.parameters
        if not leaves:
            return jnp.zeros(0, dtype)
        return _vector(leaves).astype(dtype)

    @property
    def frozen(self) -> FrozenArrays | None:
        """The arrays that no training changes, which are not part of theta; None if
        there are none.
        """
        return self.architecture.frozen

    # networks by client
    # ----------------------------------------------------------------------------------

    @property
    def members(self) -> "tuple[Model, ...]":
        """The models of the clients' networks, if these differ (`models.by_client`); this
        one alone if they do not.
        """
        network = self.architecture
        if not isinstance(network, ByClient) or not network.is_several:
            return (self,)
        return tuple(
            replace(self, architecture=network.member(index))
            for index in range(len(network.members))
        )

    def member_of(self, client: str) -> int:
        """The index of a client's model among `members`.

        Raises:
            ValueError: the client has no network.
        """
        network = self.architecture
        if not isinstance(network, ByClient) or not network.is_several:
            return 0
        return network.index_of(client)

    @property
    def network_index(self) -> int | None:
        """Of the model of one client among several networks, the index of its network."""
        network = self.architecture
        return network.use if isinstance(network, ByClient) else None

    def with_network(self, index: int) -> "Model":
        """The model of the clients with another one of the networks.

        Raises:
            ValueError: there are no different networks.
        """
        network = self.architecture
        if not isinstance(network, ByClient) or not 0 <= index < len(network.members):
            raise ValueError(f"this model has no network number {index}")
        return replace(self, architecture=network.member(index))

    def of_client(self, client: str) -> "Model":
        """The model of a client; its vectors have the size of this one's."""
        return self.members[self.member_of(client)]

    # parts
    # ----------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of this model's parts."""
        return tuple(part_finder_of(self).parts)

    def part(self, name: str | Part) -> Part:
        """Select a part of the model, a fixed set of entries of theta.

        Args:
            name: a `Part` of this model, which is returned; or one of the following.

                * "head" (the last dense layer), "body" (the rest), "norm" (all
                  normalisation layers), "bias", or "last2" (the last two layers and all
                  normalisation layers after the first of these);
                * a path such as "layers.2" or "layers.2.weight", a pattern on paths
                  such as "layers.*.weight", or a regular expression after "re:";
                * several of these with commas between them, which is their union;
                * "not head,norm": all parameters except those of "head,norm";
                * "everything" or "nothing".

                `PartFinder.find` has the exact rules.

        Returns:
            The part, which reads and replaces its entries of vectors [..., d].

        Raises:
            ValueError: the model has no such part, or a pattern matches nothing or
                everything.
        """
        if isinstance(name, Part):
            if name.d != self.size:
                raise ValueError(
                    f"part {name.name!r} is of a model of {name.d} parameters; this one"
                    f" has {self.size}"
                )
            return name
        return part_finder_of(self).find(name)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of every array of parameters, in the order of theta."""
        return layout_of(self).paths

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one example's features.

        Raises:
            ValueError: the model has no head.
        """
        return _feature_shape(self)

    def features(
        self, params: Params, x: Shaped[Array, "b ..."], key: Array | None = None
    ) -> Float[Array, "b ..."]:
        """Compute the output of the body, which is the input of the head.

        Args:
            params: a tree, or theta [d].
            x: a batch of inputs [b, *input_shape].
            key: the random key of a training step; None = evaluation mode.

        Returns:
            [b, *feature_shape].

        Raises:
            ValueError: the model has no head.
        """
        layer_info = self._layer_info_with_head()
        x = self._inputs(x)
        with self._explained():
            features = self.architecture.features(
                self.network(params), layer_info, x, key
            )
        return self._to_sums(features)

    def train_features(
        self,
        params: Params,
        x: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
        key: Array | None = None,
    ) -> Float[Array, "b ..."]:
        """Compute the input of the head in a training step, which normalises by the
        statistics of the batch. The arguments are those of `train_outputs`.

        Raises:
            ValueError: the model has no head.
        """
        if not self.has_statistics:
            return self.features(params, x, key)
        layer_info = self._layer_info_with_head()
        x = self._inputs(x)
        network = self.network(params)
        with self._explained():
            return self.architecture.train_features(network, layer_info, x, key, weight)

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        """Compute the head's outputs: `head_outputs(params, features(params, x))` is
        `logits(params, x)`.

        Args:
            params: a tree, or theta [d].
            features: [b, *feature_shape].
        """
        layer_info = self._layer_info_with_head()
        network = self.network(params)
        outputs = self.architecture.head_outputs(
            network, layer_info, self._to_compute(features), self.input_shape
        )
        return self._to_sums(outputs)

    def _layer_info_with_head(self) -> LayerInfo:
        """The architecture's description of its layers.

        Raises:
            ValueError: the model has no head.
        """
        finder = part_finder_of(self)
        if finder.layer_info.head is None:
            finder.find("head")  # raises an error that lists the model's parts
        return finder.layer_info

    # predictions
    # ----------------------------------------------------------------------------------

    @property
    def micro_batch(self) -> int | None:
        """The number of examples to differentiate at a time; None = the whole batch,
        which running statistics and losses that couple examples need.
        """
        is_whole = self.has_statistics or self.task.couples_examples
        return None if is_whole else self.architecture.micro_batch

    @property
    def has_statistics(self) -> bool:
        """Whether theta holds running statistics, which have no gradient and are updated
        in every training step.
        """
        return len(layout_of(self).statistics) > 0

    @property
    def statistics(self) -> Part:
        """The part that holds the running statistics; empty for most models."""
        return self.part(",".join(layout_of(self).statistics) or "nothing")

    def negative_variance(self, theta: Float[np.ndarray, "*s d"]) -> str | None:
        """The path of a running variance that is negative in a model, which gives NaN;
        None = there is none.
        """
        layout = layout_of(self)
        starts = (0, *layout.ends)
        for path, start, end in zip(layout.paths, starts, layout.ends, strict=False):
            is_variance = path in layout.statistics and "var" in path.rpartition(".")[2]
            if is_variance and (theta[..., start:end] < 0).any():
                return path
        return None

    @property
    def stochastic(self) -> bool:
        """Whether training needs a random key (dropout)."""
        return layout_of(self).stochastic

    @property
    def classification(self) -> bool:
        """Whether outputs are class scores, with one label for each example."""
        return self.task.predicts_classes

    @property
    def task(self) -> Task:
        """What the model is to predict, with all that follows from it."""
        return task_of(self.loss)

    @property
    def precision(self) -> Precision:
        """The types in which the model's numbers are kept, computed and added up."""
        return Precision.of(self.dtype)

    @property
    def metric(self) -> str:
        """The name of the metric that clients are compared by."""
        return self.task.main_metric(math.prod(self.input_shape) > 0)

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], key: Array | None = None
    ) -> Float[Array, "b ..."]:
        """Compute the network's outputs.

        Args:
            params: a tree, or theta [d].
            x: a batch of inputs [b, *input_shape], floats in the model's precision or
                integer tokens.
            key: the random key of a training step; None = evaluation mode.

        Returns:
            Class scores [b, outputs]; for regressions and sequences, the outputs that the
            loss takes.

        Raises:
            ValueError: the inputs have another shape, or the network does not return
                `outputs` class scores.
        """
        x = self._inputs(x)
        with self._explained():
            outputs = self.architecture.apply(self.network(params), x, key)
        self.require_outputs(outputs.shape, len(x))
        return self._to_sums(outputs)

    def require_outputs(self, shape: tuple[int, ...], examples: int) -> None:
        """Refuse outputs that are not what the task needs, such as one score for each
        class.

        Raises:
            ValueError: the outputs have another shape.
        """
        self.task.check_outputs(shape, examples, self.outputs)

    def train_outputs(
        self,
        params: Params,
        x: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
        key: Array | None = None,
    ) -> tuple[Float[Array, "b ..."], Params]:
        """Compute the outputs in a training step, and update the running statistics.

        Args:
            params: a tree of parameters.
            x: a batch of inputs.
            weight: 1 for an example, 0 for padding, which does not change the statistics.
            key: the random key of the step, for models that are `stochastic`.

        Returns:
            Outputs [b, ...], and the parameters with new running statistics. A model
            without statistics returns `params`.
        """
        if not self.has_statistics:
            return self.logits(params, x, key), params
        x = self._inputs(x)
        with self._explained():
            outputs, network = self.architecture.train(
                self.network(params), x, key, weight
            )
        return outputs, self.with_statistics(params, eqx.filter(network, is_parameter))

    def with_statistics(self, params: Params, source: Params) -> Params:
        """Replace the running statistics.

        Args:
            params: a tree of parameters.
            source: the tree whose running statistics replace those of `params`.

        Returns:
            A tree with the running statistics of `source`, and all other arrays of
            `params`.
        """
        # Both trees are of this model, so that their leaves correspond.
        old_leaves, structure = jax.tree.flatten(params)
        new_leaves = jax.tree.leaves(source)
        is_statistic = layout_of(self).is_statistic
        leaves = []
        for old, new, is_new in zip(old_leaves, new_leaves, is_statistic, strict=True):
            leaves.append(new.astype(old.dtype) if is_new else old)
        return jax.tree.unflatten(structure, leaves)

    def losses(
        self,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"] | None = None,
    ) -> Float[Array, " b"]:
        """Loss of each example; `weight` is 0 for padding (None = there is none)."""
        return self.task.losses(outputs, y, weight)

    def correct(
        self, outputs: Float[Array, "b classes"], y: Shaped[Array, " b"]
    ) -> Bool[Array, " b"]:
        """Whether the label has the highest class score."""
        return jnp.argmax(outputs, axis=-1) == y

    def log_probabilities(
        self, outputs: Float[Array, "*b classes"]
    ) -> Float[Array, "*b classes"]:
        """Logarithms of the predicted class probabilities."""
        return jax.nn.log_softmax(outputs, axis=-1)

    def network(self, params: Params) -> Network:
        """The network with the parameters of a tree, or of a vector theta [d]."""
        layout = layout_of(self)
        # If the tree is one array [d], it is the same as the vector.
        is_theta = getattr(params, "shape", None) == (self.size,)
        if is_theta and layout.shapes != ((self.size,),):
            params = self.params(params)
        # No gradient flows to running statistics.
        if self.has_statistics:
            params = self.with_statistics(params, jax.lax.stop_gradient(params))
        if self.precision.is_mixed:
            params = jax.tree.map(self._to_compute, params)
        return eqx.combine(params, layout.static)

    def _explained(self) -> AbstractContextManager[None]:
        """Errors of the network's code end in one line that names the inputs."""
        return explained(f"fails on inputs of shape {self.input_shape}")

    def _inputs(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        """Inputs of the network's shape, in the type that it computes in."""
        if x.shape[1:] != self.input_shape:
            raise ValueError(
                f"inputs have shape {x.shape[1:]}; this model was bound to"
                f" {self.input_shape}"
            )
        return self._to_compute(x)

    def _to_compute(self, values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """Floating-point numbers in the type that networks compute in."""
        if self.precision.is_mixed and jnp.issubdtype(values.dtype, jnp.floating):
            return values.astype(self.precision.compute)
        return values

    def _to_sums(self, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """What a network has computed, in the type of sums."""
        return values.astype(self.precision.sums) if self.precision.is_mixed else values

    def _require_precision(self) -> None:
        needs_64_bits = "float64" in (self.precision.parameters, self.precision.sums)
        if needs_64_bits and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ValueError(
                "a float64 model needs 64-bit JAX; work inside `with"
                " jax.enable_x64(True):`"
            )


@lru_cache(maxsize=256)
def _feature_shape(model: Model) -> tuple[int, ...]:
    """As `Model.feature_shape`, by tracing the body on shapes. It is cached, as this takes
    time.
    """
    x = jax.ShapeDtypeStruct(
        (2, *model.input_shape), part_finder_of(model).layer_info.input_dtype
    )
    return jax.eval_shape(model.features, shapes_of(model), x).shape[1:]


def _leaves(model: Model, theta: Float[Array, " d"]) -> list[Array]:
    """The arrays of a model with parameters theta [d]."""
    # Static slices, which XLA fuses into the operations that read them.
    layout = layout_of(model)
    leaves = []
    start = 0
    for end, shape in zip(layout.ends, layout.shapes, strict=False):
        leaves.append(theta[start:end].reshape(shape))
        start = end
    return leaves


def _vector(leaves: list[Array]) -> Float[Array, " d"]:
    """The inverse of `_leaves`."""
    return _concatenate([leaf.reshape(-1) for leaf in leaves])


# By itself it copies memory. Fused with what reads the vector, it would ask for each
# number in turn which array holds it, and take ten times as long.
@no_fuse
def _concatenate(vectors: list[Array]) -> Float[Array, " d"]:
    return jnp.concatenate(vectors)


# It is compiled, as the layers would dispatch hundreds of small operations.
@partial(jax.jit, static_argnums=0)
def _initial(model: Model, key: Array) -> Float[Array, " d"]:
    """As `Model.init`."""
    return model.vector(_random_params(model, key))


@partial(jax.jit, static_argnums=(0, 1))
def initial_arrays(model: Model, paths: tuple[str, ...], key: Array) -> list[Array]:
    """Some arrays of `model.init(key)` by their paths, for networks that are too large to
    have both.
    """
    leaves = jax.tree.leaves(_random_params(model, key))
    arrays = dict(zip(layout_of(model).paths, leaves, strict=True))
    return [arrays[path] for path in paths]


def _random_params(model: Model, key: Array) -> Params:
    network = model.architecture.build(model.input_shape, model.outputs, key)
    params, _ = eqx.partition(network, is_parameter)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, model.precision.sums), params)
