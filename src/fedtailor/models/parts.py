"""Parts of a model: fixed sets of entries of the vector theta [d], named after layers
and parameters.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

Vector = TypeVar("Vector", Array, NDArray[Any])


@dataclass(frozen=True)
class Part:
    """Some entries of theta [d], in the order in which they stand there. Hashable, and
    static inside a program.

    Attributes:
        name: the name or pattern that it was asked for by, such as "head".
        slices: where it lies: (start, end) of runs of entries, ascending and apart.
        d: the number of entries of the whole theta.
    """

    name: str
    slices: tuple[tuple[int, int], ...]
    d: int

    @property
    def size(self) -> int:
        """The number of entries, d_part."""
        return sum(end - start for start, end in self.slices)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which entries of theta belong to the part [d]."""
        mask = np.zeros(self.d, bool)
        for start, end in self.slices:
            mask[start:end] = True
        return mask

    @property
    def indices(self) -> NDArray[np.int64]:
        """The positions of its entries in theta [d_part]."""
        return np.flatnonzero(self.mask)

    @property
    def complement(self) -> "Part":
        """All other entries of theta."""
        # The gaps between the part's runs: from the end of one to the start of the next.
        others = []
        gap_start = 0
        for start, end in (*self.slices, (self.d, self.d)):
            if gap_start < start:
                others.append((gap_start, start))
            gap_start = end
        is_negated = self.name.startswith(NOT)
        name = self.name.removeprefix(NOT) if is_negated else NOT + self.name
        return Part(name, tuple(others), self.d)

    def take(self, theta: Vector) -> Vector:
        """The part's entries of one model [d], or of stacked ones [..., d].

        Returns:
            [..., d_part].

        Raises:
            ValueError: theta has another number of entries.
        """
        self._require("theta", theta, self.d)
        pieces = [theta[..., start:end] for start, end in self.slices]
        return _concatenated(pieces, theta)

    def put(self, theta: Vector, values: Vector) -> Vector:
        """Replace the part's entries.

        Args:
            theta: one model [d], or stacked ones [..., d].
            values: the new entries [..., d_part]; leading axes broadcast.

        Returns:
            New models [..., d]: NumPy arrays if both arguments are, else JAX arrays.

        Raises:
            ValueError: theta or values have another number of entries.
        """
        self._require("theta", theta, self.d)
        self._require("values", values, self.size)
        leading = np.broadcast_shapes(theta.shape[:-1], values.shape[:-1])
        xp = _array_module(theta, values)
        theta = xp.broadcast_to(theta, (*leading, self.d))
        values = xp.broadcast_to(values, (*leading, self.size)).astype(theta.dtype)
        # Slices and a concatenation, which XLA compiles to copies; indices would be a
        # scatter.
        pieces = []
        theta_start = values_start = 0
        for start, end in self.slices:
            values_end = values_start + end - start
            pieces.append(theta[..., theta_start:start])
            pieces.append(values[..., values_start:values_end])
            theta_start = end
            values_start = values_end
        pieces.append(theta[..., theta_start:])
        return _concatenated(pieces, theta)

    def tree_mask(self, params: PyTree) -> PyTree[bool]:
        """The part as a tree of bools, one for each array of `params` (what
        `Model.params` gives, or its shapes).

        A part that `Model.part` makes holds an array wholly or not at all.
        """
        leaves, structure = jax.tree.flatten(params)
        ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
        inside = []
        for leaf, end in zip(leaves, ends, strict=True):
            # an array's last entry speaks for all of it
            inside.append(leaf.size > 0 and bool(self.mask[end - 1]))
        return jax.tree.unflatten(structure, inside)

    def _require(self, what: str, vector: Any, size: int) -> None:
        if vector.shape[-1:] != (size,):
            raise ValueError(
                f"{what} has shape {vector.shape}; part {self.name!r} takes [...,"
                f" {size}] (of d = {self.d})"
            )


def _array_module(*arrays: Any) -> Any:
    """NumPy for arrays of NumPy alone, else JAX's."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _concatenated(pieces: list[Any], like: Any) -> Any:
    """Pieces of vectors one after another; without any, an empty vector of the leading
    axes and type of `like`.
    """
    pieces = [like[..., :0], *pieces]
    return _array_module(*pieces).concatenate(pieces, axis=-1)


# which parts a model has
# --------------------------------------------------------------------------------------

NOT = "not "
"""Before a part's name: all but this part."""
REGEX = "re:"
"""Before a pattern that is a regular expression, searched for in the paths."""
EVERYTHING, NOTHING = "everything", "nothing"


@dataclass(frozen=True)
class Parameter:
    """One array of a model: its path, such as "layers.2.weight", and where it lies in
    theta.
    """

    path: str
    start: int
    end: int

    @property
    def layer(self) -> str:
        """The path of the layer that owns it, "layers.2" of "layers.2.weight"."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in that layer, "weight" of "layers.2.weight"."""
        return self.path.rpartition(".")[2]

    def inside(self, layer: str) -> bool:
        """Whether it belongs to a layer (or is the array of that path itself)."""
        return self.path == layer or self.path.startswith(f"{layer}.") or not layer


@dataclass(frozen=True)
class Anatomy:
    """An architecture's description of its layers, each by the path of the module that
    owns the parameters.

    Attributes:
        head: the last dense layer, or None where there is none.
        norms: normalisation layers.
        order: layers in the order of computation; those left out come first, as they
            stand in theta.
        input_dtype: type of the inputs: "float32" (for all floating-point types), or
            "int32" for token ids.
    """

    head: str | None = None
    norms: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    input_dtype: str = "float32"


@dataclass(frozen=True)
class Outline:
    """The parameters of a model in the order of theta, and how they group into
    parts.
    """

    parameters: tuple[Parameter, ...]
    anatomy: Anatomy

    @property
    def d(self) -> int:
        """The number of entries of theta."""
        return self.parameters[-1].end if self.parameters else 0

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Every named part that is neither all of the model nor nothing of it."""
        return {
            name: part for name, part in self._named.items() if 0 < part.size < self.d
        }

    @cached_property
    def _named(self) -> dict[str, Part]:
        """Every named part, also those that are all of the model, or nothing."""
        head = self.anatomy.head
        norms = self.anatomy.norms
        # part's name -> which of the parameters belong to it
        members: dict[str, list[bool]] = {}
        if head is not None:
            members["head"] = [p.inside(head) for p in self.parameters]
            members["body"] = [not p.inside(head) for p in self.parameters]
        members["norm"] = [any(map(p.inside, norms)) for p in self.parameters]
        members["bias"] = ["bias" in p.name for p in self.parameters]
        for count, layers in enumerate(self._last_layers(), 1):
            members[f"last{count}"] = [p.layer in layers for p in self.parameters]
        return {name: self._part(name, inside) for name, inside in members.items()}

    def find(self, name: str) -> Part:
        """The part of this name: see `Model.part`.

        Raises:
            ValueError: there is no such part.
        """
        if not isinstance(name, str):
            raise ValueError(
                f"part is {name!r}; it must be a name or a pattern, such as 'head',"
                " 'last2' or 'layers.*'"
            )
        if name in (EVERYTHING, NOTHING):
            return self._part(name, [name == EVERYTHING for _ in self.parameters])
        if name.startswith(NOT):
            others = self.find(name.removeprefix(NOT).strip()).complement
            return Part(name, others.slices, others.d)
        if name in self._named:
            return self._proper(self._named[name])
        # Several with commas between them are their union; a regular expression may
        # have commas of its own.
        if "," in name and not name.startswith(REGEX):
            masks = [
                self.find(one.strip()).mask for one in name.split(",") if one.strip()
            ]
            inside = [
                any(mask[p.start : p.end].any() for mask in masks)
                for p in self.parameters
            ]
        else:
            inside = [self._matches(name, p) for p in self.parameters]
        return self._proper(self._part(name, inside))

    def _matches(self, pattern: str, parameter: Parameter) -> bool:
        """Whether a parameter is meant by a path, by a pattern on paths, or by a
        regular expression.

        Raises:
            ValueError: the regular expression is none.
        """
        if pattern.startswith(REGEX):
            try:
                return bool(re.search(pattern.removeprefix(REGEX), parameter.path))
            except re.error as error:
                raise ValueError(
                    f"part {pattern!r} is no regular expression ({error})"
                ) from None
        return pattern != "" and (
            parameter.inside(pattern) or fnmatch.fnmatchcase(parameter.path, pattern)
        )

    def _proper(self, part: Part) -> Part:
        """Refuse a part that is all of the model, or nothing of it: a mistyped pattern
        should not pass silently.
        """
        if 0 < part.size < self.d:
            return part
        how = "is nothing" if part.size == 0 else "is all"
        paths = [p.path or "(one array)" for p in self.parameters]
        shown = ", ".join(paths[:SHOWN])
        if len(paths) > SHOWN:
            shown += f" and {len(paths) - SHOWN} more"
        parts = ", ".join(_shortened(list(self.parts))) or "none"
        raise ValueError(
            f"part {part.name!r} {how} of this model; the parts it has are: {parts}; "
            f"or name parameters by path or pattern: {shown}"
        )

    def _last_layers(self) -> Sequence[set[str]]:
        """The layers of "last1", "last2", ...: normalisation layers count with the
        layer before them.
        """
        # Layers of unknown order come first, as they stand in theta; then those whose
        # calls were watched.
        layers = list(dict.fromkeys(p.layer for p in self.parameters))
        ordered = [layer for layer in self.anatomy.order if layer in layers]
        layers = [layer for layer in layers if layer not in ordered] + ordered
        # "last2" begins at the last but one layer that is no normalisation, and goes on
        # to the end.
        starts = [
            index
            for index, layer in enumerate(layers)
            if layer not in self.anatomy.norms
        ]
        return [set(layers[start:]) for start in reversed(starts)]

    def _part(self, name: str, inside: Sequence[bool]) -> Part:
        """The part of these parameters, with neighbours in one run."""
        slices: list[tuple[int, int]] = []
        for parameter, wanted in zip(self.parameters, inside, strict=True):
            if not wanted or parameter.start == parameter.end:
                continue
            if slices and slices[-1][1] == parameter.start:
                slices[-1] = (slices[-1][0], parameter.end)
            else:
                slices.append((parameter.start, parameter.end))
        return Part(name, tuple(slices), self.d)


SHOWN = 12
"""Paths in an error message."""


def _shortened(names: list[str]) -> list[str]:
    """Names with last1, last2, ..., last9 as "last1 to last9"."""
    last = [name for name in names if re.fullmatch(r"last\d+", name)]
    others = [name for name in names if name not in last]
    if len(last) > 2:
        last = [f"{last[0]} to {last[-1]}"]
    return [*others, *last]


def path_of(keys: Sequence[Any]) -> str:
    """A path of JAX's as text: "layers.2.weight"."""
    return jax.tree_util.keystr(tuple(keys), simple=True, separator=".")


def paths_of(tree: PyTree, kinds: type | tuple[type, ...]) -> tuple[str, ...]:
    """Find modules inside a network.

    Args:
        tree: the network.
        kinds: the modules' types.

    Returns:
        The paths of the modules of these types, in the order of the tree.
    """

    def is_module(node: Any) -> bool:
        return isinstance(node, kinds)

    # Modules are trees themselves, which JAX would flatten without `is_leaf`.
    nodes = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_module)
    return tuple(path_of(path) for path, node in nodes if is_module(node))


def map_nodes(
    tree: PyTree, kinds: type | tuple[type, ...], function: Callable[[str, Any], Any]
) -> PyTree:
    """Replace modules inside a network.

    Args:
        tree: the network.
        kinds: the types of the modules to replace.
        function: (path, module) -> what takes the module's place.

    Returns:
        The new network; the given one stays as it is.
    """

    def is_module(node: Any) -> bool:
        return isinstance(node, kinds)

    def replaced(keys: Sequence[Any], node: Any) -> Any:
        return function(path_of(keys), node) if is_module(node) else node

    return jax.tree_util.tree_map_with_path(replaced, tree, is_leaf=is_module)
