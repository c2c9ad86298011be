"""The positions of a network's parameters in the vector theta."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedtailor.models.own_code import explained
from fedtailor.models.part_finder import Parameter, PartFinder
from fedtailor.models.tree_paths import path_of
from fedtailor.protocol import Params

if TYPE_CHECKING:
    from fedtailor.models.architecture import Network
    from fedtailor.models.model import Model


@dataclass(frozen=True)
class Layout:
    """The positions of a model's parameters in theta, and the rest of its network.

    Attributes:
        structure: the structure of the tree of parameters.
        paths: the path of each array of parameters, in the order of theta.
        shapes: the shape of each array.
        ends: the index in theta after the last entry of each array; (0,) for a model
            without parameters.
        static: the network without its parameters.
        stochastic: whether training needs random numbers.
        statistics: the paths of the arrays that are running statistics.
    """

    structure: Any  # jax.tree_util.PyTreeDef, which is not a class to type checkers
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    static: "Network"
    stochastic: bool
    statistics: tuple[str, ...]

    @property
    def is_statistic(self) -> tuple[bool, ...]:
        """For each array of parameters, whether it is a running statistic."""
        return tuple(path in self.statistics for path in self.paths)


# The layout is cached here and not in the model: equal models share it, and a model
# remains a frozen dataclass.
@lru_cache(maxsize=256)
def layout_of(model: "Model") -> Layout:
    """The layout of a model.

    Raises:
        ValueError: the network holds arrays that cannot be trained.
    """

    def build() -> "Network":
        return model.architecture.build(
            model.input_shape, model.outputs, jax.random.key(0)
        )

    # This computes shapes only.
    with explained(
        f"cannot be made for inputs of shape {model.input_shape} and {model.outputs}"
        " outputs"
    ):
        network = eqx.filter_eval_shape(build)
    # `static` holds functions, settings and shapes. An array in it, such as one of
    # integers, would be neither trained nor sent.
    params, static = eqx.partition(network, is_parameter)
    for path, leaf in jax.tree_util.tree_leaves_with_path(static):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"the network's array {name} is {leaf.dtype}; only floating-point"
                " arrays can be trained"
            )
    leaves, structure = jax.tree.flatten(params)
    paths = tuple(
        path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)
    )
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    ends = tuple(int(end) for end in np.cumsum([math.prod(shape) for shape in shapes]))
    return Layout(
        structure,
        paths,
        shapes,
        ends or (0,),
        static,
        stochastic=model.architecture.is_stochastic(network),
        statistics=model.architecture.statistics(network),
    )


@lru_cache(maxsize=256)
def part_finder_of(model: "Model") -> PartFinder:
    """The `PartFinder` of a model."""
    layout = layout_of(model)
    parameters = tuple(map(Parameter, layout.paths, (0, *layout.ends), layout.ends))
    # Only the shapes of the parameters are needed.
    network = eqx.combine(shapes_of(model), layout.static)
    with explained(f"fails on inputs of shape {model.input_shape}"):
        layer_info = model.architecture.layer_info(network, model.input_shape)
    return PartFinder(parameters, layer_info)


def shapes_of(model: "Model") -> Params:
    """The tree of a model's parameters, with shapes instead of arrays."""
    layout = layout_of(model)
    leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in layout.shapes]
    return jax.tree.unflatten(layout.structure, leaves)


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf of a network is an array of parameters."""
    return (
        hasattr(leaf, "shape")
        and hasattr(leaf, "dtype")
        and jnp.issubdtype(leaf.dtype, jnp.floating)
    )
