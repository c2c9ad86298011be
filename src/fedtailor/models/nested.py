"""Networks of several widths: a narrower one is the upper left of the widest."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.models.by_client import ByClient
from fedtailor.models.layers import Dense
from fedtailor.models.model import Model
from fedtailor.models.parameter_layout import Layout, layout_of, part_finder_of
from fedtailor.models.tree_paths import paths_of
from fedtailor.protocol import ModelParts, client_ids


@dataclass(frozen=True)
class NestedNetworks:
    """The networks of clients, as parts of the widest one.

    Attributes:
        widest: the index of the widest network.
        own: for each network, the indices of its numbers in theta.
        nested: for each network, the indices in theta of the numbers of the widest
            network that correspond to these.
        rates: for each network, the share of the widest one's features that it has.
        ids: the ids of the clients that have a network by name.
        network_of: the index of the network of each of them.
        default: the index of the network of all others; -1 = there are no others.
    """

    widest: int
    own: tuple[NDArray[np.int64], ...]
    nested: tuple[NDArray[np.int64], ...]
    rates: NDArray[np.float64]
    ids: NDArray[np.uint64]
    network_of: NDArray[np.int64]
    default: int


def nested_networks(model: ModelParts, method: str) -> NestedNetworks:
    """How the networks of a model's clients are nested; one network is its own widest.

    Args:
        model: a `Model`.
        method: the name of the method that needs it, for messages.

    Raises:
        ValueError: no network has all others as its upper left.
    """
    assert isinstance(model, Model)
    members, architecture = model.members, model.architecture
    if len(members) == 1:
        everything = np.arange(model.size)
        none = np.zeros(0, np.int64)
        return NestedNetworks(
            0, (everything,), (everything,), np.ones(1), none.astype(np.uint64), none, 0
        )
    assert isinstance(architecture, ByClient)
    require(
        "norm" not in model.parts and not any(it.has_statistics for it in members),
        f"{method} trains networks of different widths without normalisation layers, and"
        " these have some; leave them out",
    )
    arrays = [_arrays(model, index) for index in range(len(members))]
    sizes = [len(model_arrays) for model_arrays in arrays]
    widest = int(np.argmax([sum(map(np.size, it.values())) for it in arrays]))
    refusal = (
        f"{method} needs networks of one kind, each the upper left of the"
        " widest one; give all of them the same layers, and the widest one the largest"
        " width of each"
    )
    require(len(set(sizes)) == 1, refusal)
    nested = [_upper_left(it, arrays[widest]) for it in arrays]
    own = [
        np.concatenate([it.reshape(-1) for it in those.values()]) for those in arrays
    ]
    complete = tuple(it for it in nested if it is not None)
    require(len(complete) == len(members), refusal)
    for index, member in enumerate(members):
        is_equal = _computes_alike(member, members[widest], own[index], complete[index])
        require(is_equal, refusal)
    features = np.array([math.prod(member.feature_shape) for member in members])
    names = [name for name, _ in architecture.clients]
    return NestedNetworks(
        widest,
        tuple(own),
        complete,
        features / features[widest],
        client_ids(names) if names else np.zeros(0, np.uint64),
        np.array([index for _, index in architecture.clients], np.int64),
        -1 if architecture.default is None else architecture.default,
    )


def _arrays(model: Model, index: int) -> dict[str, NDArray[np.int64]]:
    """The arrays of one of the networks, by their path in it, as indices of theta. Dense
    layers are [inputs, outputs], however they are stored.
    """
    layout = layout_of(model)
    transposed = _transposed(layout)
    arrays, start = {}, 0
    for path, shape, end in zip(layout.paths, layout.shapes, layout.ends, strict=False):
        place, _, rest = path.partition(".")
        if place == str(index):
            array = np.arange(start, end).reshape(shape)
            arrays[rest] = array.T if path in transposed else array
        start = end
    return arrays


def _transposed(layout: Layout) -> set[str]:
    """The paths of the weights of dense layers that are stored as [outputs, inputs]."""

    def is_dense(node: object) -> bool:
        return isinstance(node, Dense)

    leaves = jax.tree.leaves(layout.static, is_leaf=is_dense)
    dense = [leaf for leaf in leaves if is_dense(leaf)]
    paths = paths_of(layout.static, Dense)
    return {
        f"{path}.weight"
        for path, layer in zip(paths, dense, strict=True)
        if layer.transposed
    }


def _upper_left(
    arrays: Mapping[str, NDArray[np.int64]], widest: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.int64] | None:
    """The numbers of the widest network that are those of a narrower one, in its order;
    None if these are not the same arrays, or one is larger.
    """
    found = []
    for path, array in arrays.items():
        whole = widest.get(path)
        if whole is None or whole.ndim != array.ndim:
            return None
        if any(
            ours > theirs for ours, theirs in zip(array.shape, whole.shape, strict=True)
        ):
            return None
        found.append(whole[tuple(map(slice, array.shape))].reshape(-1))
    return np.concatenate(found)


def _computes_alike(
    narrow: Model,
    widest: Model,
    own: NDArray[np.int64],
    nested: NDArray[np.int64],
) -> bool:
    """Whether the widest network with zeros beyond the upper left computes what the narrow
    one does. Networks that read a width otherwise (groups of channels, gates) do not.
    """
    # Which numbers correspond does not depend on their type.
    narrow, widest = (replace(it, dtype="float32") for it in (narrow, widest))
    rng = np.random.default_rng(0)
    if part_finder_of(widest).layer_info.input_dtype == "int32":
        x = jnp.ones((2, *widest.input_shape), jnp.int32)
    else:
        x = jnp.asarray(rng.normal(size=(2, *widest.input_shape)), jnp.float32)
    # They are of the size of initial weights.
    start = np.asarray(narrow.init(jax.random.key(0)))[own]
    values = start * rng.uniform(0.5, 1.5, len(own))
    theta = np.zeros(widest.size)
    theta[own] = values
    theta[nested] = values
    outputs = [
        np.asarray(it.logits(jnp.asarray(theta, jnp.float32), x))
        for it in (narrow, widest)
    ]
    return np.allclose(*outputs, rtol=1e-4, atol=1e-4)
