"""Networks with a frozen part: only the rest is theta."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, reason
from fedtailor.models.architecture import Architecture, InPrecision, Network
from fedtailor.models.frozen_arrays import FrozenArrays, arrays_by_path, placed
from fedtailor.models.model import Model, initial_arrays
from fedtailor.models.parameter_layout import layout_of, part_finder_of
from fedtailor.models.precision import DType, Precision
from fedtailor.models.tasks import LossFunction, cross_entropy
from fedtailor.models.tree_paths import path_of
from fedtailor.models.wrapper import T, Wrapper

CONSTANTS = "constants of the network/"
"""How the names of arrays begin that a network has frozen itself (PyTorch's parameters
without a gradient).
"""


@dataclass(frozen=True)
class PartlyFrozen(Wrapper):
    """What networks with frozen arrays have in common.

    Attributes:
        where: which arrays of `inner` are frozen, or have adapters (`Model.part`).
        seed: of frozen arrays that were not given.
        given: arrays to start from, by path.
        arrays: the frozen arrays by path; None before it is bound to a shape.
    """

    where: str
    seed: int = field(default=0, kw_only=True)
    given: FrozenArrays | None = field(default=None, kw_only=True)
    arrays: FrozenArrays | None = field(default=None, kw_only=True)
    freezes = True

    @property
    def frozen(self) -> FrozenArrays | None:
        return self.arrays

    @property
    def held(self) -> tuple[FrozenArrays, ...]:
        return tuple(each for each in (self.arrays, self.given) if each is not None)

    def bind(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        loss: LossFunction = cross_entropy,
        dtype: DType | Precision = "float32",
    ) -> Model:
        whole = self.inner.bind(input_shape, outputs, loss, dtype)
        if self.arrays is None:
            bound = self.with_arrays(whole)
        else:
            check_shapes(whole, self.arrays_of_inner())
            bound = self
        return Model(bound, tuple(input_shape), outputs, loss, dtype)

    @abstractmethod
    def with_arrays(self, whole: Model) -> Self:
        """The architecture with the frozen arrays of a model of `inner`."""

    def with_constants(self, arrays: Mapping[str, Any]) -> FrozenArrays:
        """Frozen arrays, and those that `inner` has frozen itself."""
        constants = self.inner.frozen or {}
        return FrozenArrays(
            {**arrays, **{f"{CONSTANTS}{name}": constants[name] for name in constants}}
        )

    def arrays_of_inner(self) -> dict[str, NDArray[Any]]:
        """The frozen arrays that are those of `inner`, by its paths."""
        return {
            path: array
            for path, array in self._arrays.items()
            if not path.startswith(CONSTANTS)
        }

    def run_inner(self, network: Network, function: Callable[[Network], T]) -> T:
        constants, present = self.inner.frozen, self._arrays.present()
        arrays = [present[f"{CONSTANTS}{name}"] for name in constants or ()]
        with placed(constants, arrays):
            return self.run_network(network, function)

    def run_network(self, network: Network, function: Callable[[Network], T]) -> T:
        """As `run_inner`, where what `inner` has frozen itself is in place."""
        return function(self.inner_network(network))

    @property
    def _arrays(self) -> FrozenArrays:
        assert self.arrays is not None, "it is bound to a shape before it is used"
        return self.arrays


@dataclass(frozen=True)
class Frozen(PartlyFrozen):
    """The architecture of `frozen`. Its network is that of `inner` with None in the place
    of the frozen arrays.
    """

    def with_arrays(self, whole: Model) -> Self:
        paths = frozen_paths(whole, self.where)
        arrays = start_of(whole, self.given, self.seed)
        kept = self.with_constants({path: arrays[path] for path in paths})
        return replace(self, arrays=kept, given=rest_of(self.given, kept))

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        network = self.inner.build(input_shape, outputs, key)
        return without(with_start(network, self.given), self._arrays)

    def inner_network(self, network: Network) -> Network:
        return filled(network, self._arrays.present())

    def inner_shapes(self, network: Network) -> Network:
        return filled(network, self._arrays.shapes())

    def with_inner(self, network: Network, inner: Network) -> Network:
        return without(inner, self._arrays)


def frozen(
    model: Architecture, where: str, *, start: Any = None, seed: int = 0
) -> Frozen:
    """A model with a frozen part, whose arrays are not part of theta. They lie once on
    each device, do not travel, and are stored once next to a run and its exports. For
    example

        ft.models.frozen(ft.models.resnet(18), where="not head", start="resnet18.safetensors")

    Args:
        model: the whole network (of the zoo, `from_equinox` or `from_linen`).
        where: the arrays to freeze: a part or a pattern on paths, as `Model.part` takes
            them ("not head", "layers.0,layers.2", "conv*"). Running statistics are never
            frozen.
        start: trained values: arrays by path, a network (an Equinox module, a tree of
            Flax's parameters) or a safetensors file of them. Arrays that train begin with
            them, too, where they are given. None = random ones.
        seed: of frozen arrays that are random. They are the same in all runs.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: `start` cannot be read, or (when bound) does not fit the network, or
            `where` is nothing or everything of it. In PyTorch modules,
            `requires_grad_(False)` freezes parameters.

    Example:
        >>> from fedtailor.models import frozen, mlp
        >>> mlp(4).bind((8, 8), 10).size
        310
        >>> frozen(mlp(4), "not head").bind((8, 8), 10).size
        50
    """
    check_inner(model, "frozen")
    given = given_arrays(model, start)
    return Frozen(model.without_trained(), where, seed=seed, given=given)


def merged(model: Model, theta: ArrayLike) -> tuple[Model, NDArray[Any]]:
    """The whole network of a model with frozen arrays or adapters.

    Args:
        model: such a model.
        theta: its vector [d].

    Returns:
        The model of the whole network, and its vector. Other models are returned as they
        are.

    Example:
        >>> from fedtailor.models import lora, merged, mlp
        >>> adapted = lora(mlp(4), rank=2, where="layers.*.weight").bind((8, 8), 10)
        >>> whole, theta = merged(adapted, np.zeros(adapted.size))
        >>> adapted.size, whole.size
        (164, 310)
    """
    architecture = model.architecture
    if not isinstance(architecture, PartlyFrozen):
        return model, np.asarray(theta)
    whole = Model(
        architecture.inner, model.input_shape, model.outputs, model.loss, model.dtype
    )
    network = architecture.inner_network(model.network(jnp.asarray(theta)))
    layout = layout_of(whole)
    leaves = {
        path_of(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(network)
    }
    vector = [np.asarray(leaves[path]).reshape(-1) for path in layout.paths]
    return whole, np.concatenate(vector).astype(np.asarray(theta).dtype)


def save_start(
    model: Model, theta: ArrayLike, path: Path | str, part: str = "everything"
) -> Path:
    """Write a trained network as a safetensors file of its arrays by path, from which
    `frozen`, `lora` and their keys in files start.

    Args:
        model: the model, of whose adapters and frozen arrays `merged` makes one network.
        theta: its vector [d].
        path: the file.
        part: what to write: a part or a pattern on paths, such as "body" if the clients
            have other classes.

    Raises:
        ValueError: the part is not one of the network, or the file cannot be written.

    Example:
        >>> from fedtailor.models import lora, mlp, save_start
        >>> trained = mlp(8).bind((4,), 3)
        >>> file = save_start(trained, np.ones(trained.size), "base.safetensors", "body")
        >>> adapted = lora(mlp(8), rank=2, start=file)
    """
    from safetensors.numpy import save_file

    path = Path(path)
    whole, vector = merged(model, theta)
    layout = layout_of(whole)
    written = part_finder_of(whole).paths_of(part)
    pieces = np.split(vector, layout.ends[:-1])
    arrays = {
        name: piece.reshape(shape)
        for name, shape, piece in zip(layout.paths, layout.shapes, pieces, strict=True)
        if name in written
    }
    try:
        with atomic_write(path) as temporary:
            save_file(arrays, temporary)
    except OSError as error:
        raise ValueError(f"cannot write {path} ({reason(error)})") from None
    return path


# what frozen networks and networks with adapters have in common
# --------------------------------------------------------------------------------------


def check_inner(model: object, name: str) -> None:
    """Refuse what cannot be wrapped.

    Raises:
        ValueError: it is not an architecture, it is bound already, also to a precision,
            or PyTorch's.
    """
    require(
        not isinstance(model, Model),
        f"{name} takes a network before it is bound to a shape, such as"
        " ft.models.mlp(64); leave out bind",
    )
    require(
        isinstance(model, Architecture),
        f"{name} takes a model of fedtailor.models, not {model!r}",
    )
    assert isinstance(model, Architecture)
    require(
        not isinstance(model, InPrecision),
        f"{name} takes a network before in_precision; call in_precision on what {name}"
        " gives",
    )
    require(
        not isinstance(model, PartlyFrozen),
        f"{name} takes the whole network, and this one has frozen arrays already; give"
        " one pattern for all of them",
    )


def given_arrays(model: Architecture, start: Any) -> FrozenArrays | None:
    """The arrays that a user gives to start from, with those that the network comes with;
    None if there are none.
    """
    if start is None:
        return model.trained
    if isinstance(start, FrozenArrays) and model.trained is None:
        return start
    return FrozenArrays({**(model.trained or {}), **arrays_by_path(start)})


def frozen_paths(whole: Model, where: str) -> tuple[str, ...]:
    """The paths of the arrays that `where` selects, without running statistics, in the
    order of theta.

    Raises:
        ValueError: they are none, or all.
    """
    statistics = layout_of(whole).statistics
    selected = part_finder_of(whole).paths_of(where)
    paths = tuple(path for path in selected if path not in statistics)
    require(
        len(paths) > 0,
        f"{where!r} holds running statistics only, which are not frozen",
    )
    return paths


def rest_of(given: FrozenArrays | None, frozen: FrozenArrays) -> FrozenArrays | None:
    """The given arrays that are not frozen, from which training starts."""
    rest = {name: array for name, array in (given or {}).items() if name not in frozen}
    return FrozenArrays(rest) if rest else None


def check_shapes(whole: Model, given: Mapping[str, Any]) -> None:
    """Refuse arrays that do not fit a network.

    Raises:
        ValueError: a given array is not one of the network, or has another shape.
    """
    layout = layout_of(whole)
    shapes = dict(zip(layout.paths, layout.shapes, strict=True))
    for name, array in given.items():
        require(
            name in shapes,
            f"the network has no array {name!r}; it has"
            f" {', '.join(list(shapes)[:6])}, ...; rename or leave it out",
        )
        require(
            array.shape == shapes[name],
            f"{name!r} has the shape {array.shape}, and the network's is"
            f" {shapes[name]}; leave it out of the arrays to start from new ones",
        )


def start_of(
    whole: Model, given: FrozenArrays | None, seed: int
) -> dict[str, NDArray[Any]]:
    """The arrays of a network by path: those that are given, and random ones.

    Raises:
        ValueError: a given array is not one of the network, or has another shape.
    """
    check_shapes(whole, given or {})
    arrays = dict(given or {})
    missing = tuple(path for path in layout_of(whole).paths if path not in arrays)
    if missing:
        random = initial_arrays(whole, missing, jax.random.key(seed))
        for path, array in zip(missing, random, strict=True):
            arrays[path] = np.asarray(array, np.float32)
    return arrays


def with_start(network: Network, given: FrozenArrays | None) -> Network:
    """A network with other values where some are given."""
    if given is None:
        return network
    return map_paths(
        network,
        lambda path, leaf: (
            jnp.asarray(given[path], leaf.dtype) if path in given else leaf
        ),
    )


def without(network: Network, paths: Mapping[str, Any] | Set[str]) -> Network:
    """A network with None in the place of some arrays."""
    return map_paths(network, lambda path, leaf: None if path in paths else leaf)


def filled(network: Network, arrays: Mapping[str, Any]) -> Network:
    """The inverse of `without`. Arrays get the type of those that are there."""
    floats = [
        leaf.dtype
        for leaf in jax.tree.leaves(network)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    dtype = floats[0] if floats else None

    def fill(path: str, leaf: Any) -> Any:
        if leaf is not None or path not in arrays:
            return leaf
        array = arrays[path]
        if dtype is None or isinstance(array, jax.ShapeDtypeStruct):
            return array
        return array.astype(dtype)

    return map_paths(network, fill)


def map_paths(network: Network, function: Callable[[str, Any], Any]) -> Network:
    """Replace the leaves of a network, None among them, by a function of their paths."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(path_of(path), leaf),
        network,
        is_leaf=lambda leaf: leaf is None,
    )
