"""`Model`: what a client trains, seen from outside as a vector theta [d] and inside a
training loop as a pytree.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from fedtailor.models.losses import Classification, Loss, cross_entropy
from fedtailor.models.parameter_layout import (
    is_parameter,
    layout_of,
    part_finder_of,
    shapes_of,
)
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.parts import Part
from fedtailor.protocol import Params

Network = PyTree
"""A network: any pytree whose floating-point arrays are its parameters (an Equinox
module, a dict of arrays, ...).
"""


class Architecture(ABC):
    """A network before the shape of the data is known.

    Subclass it as a frozen dataclass: architectures with equal fields share compiled
    programs.

    Attributes:
        micro_batch: how many examples to differentiate at a time where a whole batch
            would outgrow the cache (the gradients add up to the batch's), or None.
        in_python: whether the network runs step by step in Python, which compiled
            programs cannot hold.
    """

    micro_batch: int | None = None
    in_python: ClassVar[bool] = False

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        """A randomly initialised network: a pytree whose floating-point arrays are the
        parameters.
        """

    @abstractmethod
    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        """Outputs for a batch; without a key in evaluation mode (dropout off)."""

    def is_stochastic(self, network: Network) -> bool:
        """Whether training the network (as `build` makes it) needs random numbers
        (dropout).
        """
        return False

    # running statistics, such as batch normalisation keeps
    # ------------------------------------------------------

    def statistics(self, network: Network) -> tuple[str, ...]:
        """Paths of the arrays that hold running statistics (as
        `fedtailor.models.tree_paths.path_of` writes them).
        """
        return ()

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Network]:
        """Outputs in a training step, and the network with new running statistics.

        Called only if there are `statistics`.

        Args:
            network: as before the step.
            x: a batch of inputs.
            key: randomness of the step (dropout); None if `is_stochastic` is False.
            weight: 1 for an example, 0 for padding, which must not change the
                statistics.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names statistics and has no method `train`"
        )

    # parts of the network: see `Model.part`
    # ---------------------------------------------------------------------

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        """Which layers are the head and the normalisation layers, and in which order
        the forward pass calls them.

        Args:
            network: as `build` makes it, or its shapes (`jax.ShapeDtypeStruct` for
                arrays).
            input_shape: shape of one input.

        Returns:
            The paths of these layers; the default knows none.
        """
        return LayerInfo()

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        """The inputs of the head; called only if `layer_info` names a head.

        Without a key in evaluation mode, as `apply`.
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
        """The inputs of the head in a training step.

        Called only if there are `statistics`; key and weight are as for `train`.
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
        """Outputs from features [b, ...] in evaluation mode; called only if
        `layer_info` names a head.
        """
        raise NotImplementedError(
            f"{type(self).__name__} names a head and has no method `head_outputs`"
        )

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: Loss = cross_entropy,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> "Model":
        """The model for inputs of one shape; see `Model` for the arguments and
        errors.
        """
        return Model(self, tuple(input_shape), outputs, loss, dtype)


@dataclass(frozen=True)
class Model:
    """A network, its loss and the two-way map between theta [d] and its pytree of
    parameters.

    Models are equal, and share compiled programs, when architecture, shapes, loss and
    precision are equal.

    Attributes:
        architecture: the network.
        input_shape: shape of one input.
        outputs: classes, symbols of a density, or targets of a regression.
        loss: (outputs [b, ...], targets [b, ...]) -> [b].
        dtype: precision of parameters and computation; "float64" needs
            `jax.enable_x64`.

    Raises:
        ValueError: the architecture does not fit the input, or holds state that
            training would have to carry along.
    """

    architecture: Architecture
    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss = cross_entropy
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise ValueError(
                f"outputs is {self.outputs}; a model needs one output (class, symbol,"
                " target) or more"
            )
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is {self.dtype!r}; choose 'float32' or 'float64'")
        _ = layout_of(self)

    # vectors and trees
    # ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        return layout_of(self).ends[-1]

    def init(self, key: Array) -> Float[Array, " d"]:
        """Random initial parameters theta [d]; the same in both precisions, up to
        rounding.
        """
        self._require_precision()
        return _initial(self, key)

    def params(self, theta: Float[Array, " d"]) -> Params:
        """The parameters as a tree; do this once, before a loop.

        Returns:
            A pytree of arrays in the model's precision, each a reshaped piece of theta.

        Raises:
            ValueError: theta has not d entries, or float64 is asked for and not
                enabled.
        """
        self._require_precision()
        layout = layout_of(self)
        if theta.shape != (self.size,):
            raise ValueError(
                f"theta has shape {theta.shape}; this model takes [{self.size}]"
            )
        theta = jnp.asarray(theta, self.dtype)
        # Static slices, which XLA fuses into the operations that read them.
        leaves = []
        start = 0
        for end, shape in zip(layout.ends, layout.shapes, strict=False):
            leaves.append(theta[start:end].reshape(shape))
            start = end
        return jax.tree.unflatten(layout.structure, leaves)

    def vector(self, params: Params) -> Float[Array, " d"]:
        """Back to theta [d]: the exact inverse of `params`."""
        leaves = jax.tree.leaves(params)
        if not leaves:
            return jnp.zeros(0, self.dtype)
        return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

    # parts
    # ----------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[str, ...]:
        """The named parts that this model has."""
        return tuple(part_finder_of(self).parts)

    def part(self, name: str | Part) -> Part:
        """A fixed set of entries of theta.

        Args:
            name: one of the following, or a part that this method has made.

                * "head" (the last dense layer), "body" (the rest), "norm" (all
                  normalisation layers), "bias", or "last2" (the last two layers, not
                  counting normalisation layers, and all that follows the first of
                  them);
                * a path such as "layers.2" or "layers.2.weight", a pattern on paths
                  such as "layers.*.weight", or a regular expression after "re:";
                * several of these with commas between them, which is their union;
                * all parameters except these: "not head,norm" is neither of the two;
                * "everything" or "nothing".

                `PartFinder.find` has the exact rules.

        Returns:
            The part; it takes and puts its entries of vectors [..., d].

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

    def part_mask(self, part: str | Part) -> PyTree[bool]:
        """A part as a tree of bools with the structure of `params`."""
        return self.part(part).tree_mask(shapes_of(self))

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
        """The output of the body, which is the input of the head.

        Args:
            params: the tree that `params` made, or theta [d].
            x: a batch of inputs [b, *input_shape].
            key: randomness of a training step; None = evaluation mode.

        Returns:
            [b, *feature_shape].

        Raises:
            ValueError: the model has no head.
        """
        layer_info = self._layer_info_with_head()
        self._require_inputs(x)
        return self.architecture.features(self._network(params), layer_info, x, key)

    def train_features(
        self,
        params: Params,
        x: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
        key: Array | None = None,
    ) -> Float[Array, "b ..."]:
        """The input of the head in a training step, by the statistics of this batch;
        arguments as `train_outputs`.

        Raises:
            ValueError: the model has no head.
        """
        if not self.has_statistics:
            return self.features(params, x, key)
        layer_info = self._layer_info_with_head()
        self._require_inputs(x)
        network = self._network(params)
        return self.architecture.train_features(network, layer_info, x, key, weight)

    def head_outputs(
        self, params: Params, features: Float[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        """The head's outputs for features: `logits` = `head_outputs` of `features`.

        Args:
            params: the tree that `params` made, or theta [d].
            features: [b, *feature_shape], as `features` gives them.

        Returns:
            Outputs, as `logits` gives them.
        """
        layer_info = self._layer_info_with_head()
        network = self._network(params)
        return self.architecture.head_outputs(
            network, layer_info, features, self.input_shape
        )

    def _layer_info_with_head(self) -> LayerInfo:
        """The architecture's description of its layers.

        Raises:
            ValueError: the model has no head.
        """
        finder = part_finder_of(self)
        if finder.layer_info.head is None:
            finder.find("head")  # raises an error that lists the parts there are
        return finder.layer_info

    # predictions
    # ----------------------------------------------------------------------------------

    @property
    def micro_batch(self) -> int | None:
        """Examples to differentiate at a time, or None for whole batches (over which
        statistics must be taken).
        """
        return None if self.has_statistics else self.architecture.micro_batch

    @property
    def has_statistics(self) -> bool:
        """Whether theta holds running statistics: entries that no gradient moves and
        every training step renews.
        """
        return len(layout_of(self).statistics) > 0

    @property
    def statistics(self) -> Part:
        """The entries that are running statistics (none, for most models)."""
        return self.part(",".join(layout_of(self).statistics) or "nothing")

    @property
    def in_python(self) -> bool:
        """Whether the network runs step by step in Python, which compiled programs
        cannot hold (PyTorch's engine).
        """
        return self.architecture.in_python

    @property
    def stochastic(self) -> bool:
        """Whether training needs a key (dropout)."""
        return layout_of(self).stochastic

    @property
    def classification(self) -> bool:
        """Whether outputs are class scores, so that accuracy means something."""
        return isinstance(self.loss, Classification)

    @property
    def metric(self) -> Literal["accuracy", "loss"]:
        """The name of the metric that clients are compared by."""
        # Without inputs every example gets the same class, so that the accuracy says
        # little.
        has_inputs = math.prod(self.input_shape) > 0
        return "accuracy" if self.classification and has_inputs else "loss"

    def logits(
        self, params: Params, x: Shaped[Array, "b ..."], key: Array | None = None
    ) -> Float[Array, "b ..."]:
        """The network's outputs.

        Args:
            params: the tree that `params` made.
            x: a batch of inputs [b, *input_shape], floats in the model's precision or
                integer tokens.
            key: randomness of a training step; None = evaluation mode.

        Returns:
            [b, outputs] class scores; of regressions and sequences what the loss takes.

        Raises:
            ValueError: the inputs have another shape, or the network does not give
                `outputs` class scores.
        """
        self._require_inputs(x)
        outputs = self.architecture.apply(self._network(params), x, key)
        self.require_outputs(outputs.shape, len(x))
        return outputs

    def require_outputs(self, shape: tuple[int, ...], examples: int) -> None:
        """Refuse outputs of a classification that are not one score a class.

        Raises:
            ValueError: with the shape that there is.
        """
        if self.classification and tuple(shape) != (examples, self.outputs):
            raise ValueError(
                f"the network gives {tuple(shape[1:])} outputs for one example, and the"
                f" data have {self.outputs} classes; make its last layer as wide as"
                " there are classes"
            )

    def train_outputs(
        self,
        params: Params,
        x: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
        key: Array | None = None,
    ) -> tuple[Float[Array, "b ..."], Params]:
        """Outputs in a training step, and the parameters with new running statistics.

        Without statistics the outputs are those of `logits`, and the parameters those
        given.

        Args:
            params: the tree that `params` made.
            x: a batch of inputs.
            weight: 0 for examples that only fill the batch and must not enter the
                statistics.
            key: randomness of the step, for models that are `stochastic`.

        Returns:
            Outputs [b, ...], and a tree as `params`.
        """
        if not self.has_statistics:
            return self.logits(params, x, key), params
        self._require_inputs(x)
        outputs, network = self.architecture.train(
            self._network(params), x, key, weight
        )
        return outputs, self.with_statistics(params, eqx.filter(network, is_parameter))

    def with_statistics(self, params: Params, source: Params) -> Params:
        """Put running statistics in place of others.

        Args:
            params: the tree that `params` made.
            source: another one.

        Returns:
            A tree with the running statistics of `source`, and all other arrays of
            `params`.
        """
        # Both trees are of this model, so that their arrays correspond one by one.
        old_leaves, structure = jax.tree.flatten(params)
        new_leaves = jax.tree.leaves(source)
        is_statistic = layout_of(self).is_statistic
        leaves = []
        for old, new, replaced in zip(
            old_leaves, new_leaves, is_statistic, strict=True
        ):
            leaves.append(new.astype(old.dtype) if replaced else old)
        return jax.tree.unflatten(structure, leaves)

    def losses(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        """Loss of each example."""
        return self.loss(outputs, y)

    def correct(
        self, outputs: Float[Array, "b classes"], y: Shaped[Array, " b"]
    ) -> Bool[Array, " b"]:
        """Whether the highest score is the label's (class scores or
        log-probabilities).
        """
        return jnp.argmax(outputs, axis=-1) == y

    def log_probabilities(
        self, outputs: Float[Array, "*b classes"]
    ) -> Float[Array, "*b classes"]:
        """Logarithms of the predicted class probabilities."""
        return jax.nn.log_softmax(outputs, axis=-1)

    def network(self, theta: Float[Array, " d"]) -> Network:
        """The network with the parameters theta [d], as `Architecture.apply` takes
        it.
        """
        return self._network(theta)

    def _network(self, params: Params) -> Network:
        """The network with the parameters of a tree, or of theta [d]."""
        layout = layout_of(self)
        # The tree of a model of one array [d] looks like a vector, and needs no unpacking.
        is_theta = getattr(params, "shape", None) == (self.size,)
        if is_theta and layout.shapes != ((self.size,),):
            params = self.params(params)
        # Running statistics are read and never trained: no gradient reaches them.
        if self.has_statistics:
            params = self.with_statistics(params, jax.lax.stop_gradient(params))
        return eqx.combine(params, layout.static)

    def _require_inputs(self, x: Shaped[Array, "b ..."]) -> None:
        if x.shape[1:] != self.input_shape:
            raise ValueError(
                f"inputs have shape {x.shape[1:]}; this model was bound to"
                f" {self.input_shape}"
            )

    def _require_precision(self) -> None:
        if self.dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ValueError(
                "a float64 model needs 64-bit JAX; work inside `with"
                " jax.enable_x64(True):`"
            )


@lru_cache(maxsize=256)
def _feature_shape(model: Model) -> tuple[int, ...]:
    """`Model.feature_shape`, found by tracing the body on shapes; cached, as every
    method with a head asks for it.
    """
    x = jax.ShapeDtypeStruct(
        (2, *model.input_shape), part_finder_of(model).layer_info.input_dtype
    )
    return jax.eval_shape(model.features, shapes_of(model), x).shape[1:]


# Compiled, as drawing layer by layer would dispatch hundreds of small operations.
@partial(jax.jit, static_argnums=0)
def _initial(model: Model, key: Array) -> Float[Array, " d"]:
    """theta of a network as its architecture draws it."""
    network = model.architecture.build(model.input_shape, model.outputs, key)
    params, _ = eqx.partition(network, is_parameter)
    return model.vector(
        jax.tree.map(lambda leaf: jnp.asarray(leaf, model.dtype), params)
    )
