"""Paths of arrays and modules inside a network, such as "layers.2.weight"."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import PyTree


def path_of(keys: Sequence[Any]) -> str:
    """A path of JAX's tree functions as a string, such as "layers.2.weight"."""
    return jax.tree_util.keystr(tuple(keys), simple=True, separator=".")


def paths_of(tree: PyTree, kinds: type | tuple[type, ...]) -> tuple[str, ...]:
    """Find the modules of some types inside a network.

    Returns:
        The paths of these modules, in the order of the tree.
    """

    def is_module(node: Any) -> bool:
        return isinstance(node, kinds)

    # Without `is_leaf` JAX would flatten the modules, which are trees.
    nodes = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_module)
    return tuple(path_of(path) for path, node in nodes if is_module(node))


def map_nodes(
    tree: PyTree, kinds: type | tuple[type, ...], function: Callable[[str, Any], Any]
) -> PyTree:
    """Replace modules inside a network.

    Args:
        tree: the network.
        kinds: the types of the modules to replace.
        function: (path, module) -> the replacement of the module.

    Returns:
        The new network.
    """

    def is_module(node: Any) -> bool:
        return isinstance(node, kinds)

    def replace(keys: Sequence[Any], node: Any) -> Any:
        return function(path_of(keys), node) if is_module(node) else node

    return jax.tree_util.tree_map_with_path(replace, tree, is_leaf=is_module)
