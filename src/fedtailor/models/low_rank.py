"""Low-rank adapters (LoRA) next to frozen weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.models.architecture import Architecture, InPrecision, Network
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.frozen_network import (
    PartlyFrozen,
    check_inner,
    filled,
    frozen_paths,
    given_arrays,
    map_paths,
    rest_of,
    start_of,
    with_start,
    without,
)
from fedtailor.models.layers import Conv, ConvPool, Dense
from fedtailor.models.low_rank_products import Factors, low_rank_sum, run_adapted
from fedtailor.models.model import Model
from fedtailor.models.parameter_layout import layout_of, part_finder_of
from fedtailor.models.tree_paths import path_of, paths_of
from fedtailor.models.wrapper import T

BASE, ADAPTERS = "base", "adapters"
A, B = "lora_a", "lora_b"
LOCAL_A, LOCAL_B = "local_a", "local_b"
"""The factors of second adapters, which clients keep (FedDPA)."""


@dataclass(frozen=True)
class Lora(PartlyFrozen):
    """The architecture of `lora`.

    Its network is {"base": the trained rest of `inner`, "adapters": {path: {"lora_a": A,
    "lora_b": B}}}, with dots in paths replaced by "/".

    Attributes:
        rank: r, the largest one; a weight with fewer rows or columns has as many.
        alpha: adapters are multiplied by alpha / r.
        train_whole: the part of `inner` that is trained as a whole.
        freeze_a: whether A is frozen, too.
        local_rank: the rank of a second adapter of each weight; 0 = there is none.
        adapted: (path, inputs, outputs, whether outputs are the last axis) of each weight
            with an adapter; empty before it is bound.
    """

    rank: int
    alpha: float
    train_whole: str = "nothing"
    freeze_a: bool = False
    local_rank: int = 0
    adapted: tuple[tuple[str, int, int, bool], ...] = field(default=(), kw_only=True)

    place: ClassVar[str] = f"{BASE}."

    def with_arrays(self, whole: Model) -> Self:
        adapted = _adapted(whole, self.where)
        given, factors = _apart(self.given)
        arrays = start_of(whole, given, self.seed)
        trained = part_finder_of(whole).paths_of(self.train_whole)
        both = [path for path, *_ in adapted if path in trained]
        require(
            not both,
            f"{both[0] if both else ''} is trained as a whole and has an adapter;"
            " change where or train",
        )
        statistics = layout_of(whole).statistics
        kept = {
            path: array
            for path, array in arrays.items()
            if path not in trained and path not in statistics
        }
        _check_factors(factors, adapted, self.rank)
        if self.freeze_a:
            key = jax.random.key(self.seed)
            for index, (path, fan_in, fan_out, _) in enumerate(adapted):
                if f"{path}.{A}" in factors:
                    kept[f"{path}.{A}"] = factors[f"{path}.{A}"]
                    continue
                normal = _normal(key, index, min(self.rank, fan_in, fan_out), fan_in)
                # NumPy divides alike in every program.
                scale = np.float32(math.sqrt(fan_in))
                kept[f"{path}.{A}"] = np.asarray(normal) / scale
        frozen = self.with_constants(kept)
        given = rest_of(self.given, frozen)
        return replace(self, arrays=frozen, adapted=adapted, given=given)

    def arrays_of_inner(self) -> dict[str, NDArray[Any]]:
        arrays = super().arrays_of_inner()
        return {path: arrays[path] for path in arrays if not path.endswith(f".{A}")}

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        network = self.inner.build(input_shape, outputs, key)
        given, factors = _apart(self.given)
        adapters = {}
        for index, (path, fan_in, fan_out, _) in enumerate(self.adapted):
            rank = min(self.rank, fan_in, fan_out)
            adapter = {B: jnp.zeros((fan_out, rank), jnp.float32)}
            if not self.freeze_a:
                adapter[A] = _normal(key, index, rank, fan_in) / math.sqrt(fan_in)
            if self.local_rank:
                rank = min(self.local_rank, fan_in, fan_out)
                normal = _normal(jax.random.split(key)[1], index, rank, fan_in)
                adapter[LOCAL_A] = normal / math.sqrt(fan_in)
                adapter[LOCAL_B] = jnp.zeros((fan_out, rank), jnp.float32)
            for name in (A, B):
                if name in adapter and f"{path}.{name}" in factors:
                    adapter[name] = jnp.asarray(factors[f"{path}.{name}"], jnp.float32)
            adapters[path.replace(".", "/")] = adapter
        base = without(with_start(network, given), self._arrays)
        return {BASE: base, ADAPTERS: adapters}

    def inner_network(self, network: Network) -> Network:
        """The network of `inner`, with W + alpha / r B A in the place of W."""
        base, products = self.base(network), self.products(network)

        def add(path: str, leaf: Any) -> Any:
            if path not in products:
                return leaf
            return low_rank_sum(leaf, *products[path]).total

        return map_paths(base, add)

    def run_network(self, network: Network, function: Callable[[Network], T]) -> T:
        base, products = self.base(network), self.products(network)
        return run_adapted(function, base, products)

    def base(self, network: Network) -> Network:
        """The network of `inner` without adapters."""
        base = filled(network[BASE], self._arrays.present())
        if not jax.tree.leaves(network[BASE]):
            # Nothing of the base trains, so that the adapters tell the type.
            leaf = jax.tree.leaves(network[ADAPTERS])[0]
            base = jax.tree.map(
                lambda array: (
                    array.astype(leaf.dtype) if hasattr(array, "astype") else array
                ),
                base,
            )
        return base

    def products(self, network: Network) -> dict[str, Factors]:
        """The path of a weight -> what is added to it."""
        present = self._arrays.present()
        products = {}
        for path, _, _, is_last in self.adapted:
            adapter = network[ADAPTERS][path.replace(".", "/")]
            b = adapter[B]
            a = present[f"{path}.{A}"].astype(b.dtype) if self.freeze_a else adapter[A]
            b = self.alpha / self.rank * b
            if self.local_rank:
                # The sum of both products is one product.
                a = jnp.concatenate([a, adapter[LOCAL_A]])
                b = jnp.concatenate([b, adapter[LOCAL_B]], axis=1)
            products[path] = (a, b, is_last)
        return products

    def inner_shapes(self, network: Network) -> Network:
        return filled(network[BASE], self._arrays.shapes())

    def with_inner(self, network: Network, inner: Network) -> Network:
        return {**network, BASE: without(inner, self._arrays)}


def lora(
    model: Architecture,
    rank: int = 8,
    where: str = "re:(weight|kernel)$",
    *,
    alpha: float | None = None,
    train: str = "nothing",
    freeze_a: bool = False,
    local_rank: int = 0,
    start: Any = None,
    seed: int = 0,
) -> Lora:
    """A model with low-rank adapters (Hu et al. 2022): W + alpha / r B A in the place of
    each weight W, where A [r, inputs] and B [outputs, r] are trained and W is frozen.

        ft.models.lora(ft.models.mlp(256), rank=8, where="layers.*.weight", start="base.safetensors")

    B starts at 0, so that the model begins as the base. theta holds the parts "lora_a",
    "lora_b" and what `train` names; all else is frozen (see `frozen`). The kernel of a
    convolution counts as a matrix with one row for each output channel.

    FedSA-LoRA (Guo et al. 2025: A is averaged, B stays with the client) is
    `FedPer(part="lora_b")`; FFA-LoRA (Sun et al. 2024) is any method with
    `freeze_a=True`.

    Args:
        model: the whole network (of the zoo, `from_equinox` or `from_linen`).
        rank: r, 1 or more; a weight with fewer rows or columns has a full rank.
        where: the weights that get adapters, as `Model.part` takes them; arrays with
            fewer than two axes are passed over.
        alpha: the scale; None = r, so that adapters are B A.
        train: a part of the network that is trained as a whole, such as "head".
        freeze_a: freeze A at its random start.
        local_rank: the rank of a second adapter of each weight, not scaled by alpha,
            which is the part "local" (for `FedDPA`); 0 = there is none.
        start: trained values, as for `frozen`; also of factors, by the path of their weight
            and ".lora_a" or ".lora_b".
        seed: of frozen arrays that are random.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`. `merged` gives the
        network without adapters back.

    Raises:
        ValueError: a setting is out of range, or (when bound) does not fit the network.

    Example:
        >>> from fedtailor.models import lora, mlp
        >>> adapted = lora(mlp(4), rank=2, where="layers.*.weight").bind((8, 8), 10)
        >>> adapted.size
        164
    """
    check_inner(model, "lora")
    require(
        isinstance(rank, int) and rank >= 1, f"rank is {rank}; it must be 1 or more"
    )
    require(
        isinstance(local_rank, int) and local_rank >= 0,
        f"local_rank is {local_rank}; it must be 0 or more",
    )
    scale = float(rank if alpha is None else alpha)
    require(scale > 0, f"alpha is {alpha}; it must be above 0")
    return Lora(
        model.without_trained(),
        where,
        rank,
        scale,
        train,
        freeze_a,
        local_rank,
        seed=seed,
        given=given_arrays(model, start),
    )


@dataclass(frozen=True)
class AdapterEntries:
    """Where the adapter of one weight is in theta.

    Attributes:
        a: A [rank, inputs], as indices of theta.
        b: B [outputs, rank], as indices of theta.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]


def adapters_of(model: object) -> tuple[AdapterEntries, ...]:
    """The adapters of a model; none if it has no adapters, or their A is frozen."""
    if not isinstance(model, Model) or not isinstance(model.architecture, Lora):
        return ()
    return () if model.architecture.freeze_a else _entries_of(model, A, B)


def second_adapters_of(model: object) -> tuple[AdapterEntries, ...]:
    """The second adapters of a model, in the same order; none if it has none."""
    if not isinstance(model, Model) or not isinstance(model.architecture, Lora):
        return ()
    has_second = model.architecture.local_rank > 0
    return _entries_of(model, LOCAL_A, LOCAL_B) if has_second else ()


def _entries_of(model: Model, a: str, b: str) -> tuple[AdapterEntries, ...]:
    """Where the factors of these names are."""
    assert isinstance(model.architecture, Lora)
    layout = layout_of(model)
    indices = {}
    starts = (0, *layout.ends)
    for path, shape, begin in zip(layout.paths, layout.shapes, starts, strict=False):
        indices[path] = begin + np.arange(math.prod(shape)).reshape(shape)
    return tuple(
        AdapterEntries(indices[f"{place}.{a}"], indices[f"{place}.{b}"])
        for path, *_ in model.architecture.adapted
        for place in (f"{ADAPTERS}.{path.replace('.', '/')}",)
    )


def has_adapters(network: Architecture) -> bool:
    """Whether `lora` made the network, also one of another precision."""
    inner = network.inner if isinstance(network, InPrecision) else network
    return isinstance(inner, Lora)


def scale_of_adapters(model: object) -> float:
    """The factor alpha / r of the product of an adapter; 1 without adapters."""
    if not isinstance(model, Model) or not isinstance(model.architecture, Lora):
        return 1.0
    return model.architecture.alpha / model.architecture.rank


def full_rank(model: object) -> int:
    """The largest rank that an adapter of the model can have; 0 without adapters."""
    if not isinstance(model, Model) or not isinstance(model.architecture, Lora):
        return 0
    adapted = model.architecture.adapted
    return max(min(fan_in, fan_out) for _, fan_in, fan_out, _ in adapted)


def scale_of_equal_adapters(model: object) -> float | None:
    """alpha / r, if each weight has two adapters of the same rank, of which all factors
    are trained; else None.
    """
    if not isinstance(model, Model) or not isinstance(model.architecture, Lora):
        return None
    lora = model.architecture
    is_equal = all(
        min(lora.rank, fan_in, fan_out) == min(lora.local_rank, fan_in, fan_out)
        for _, fan_in, fan_out, _ in lora.adapted
    )
    return lora.alpha / lora.rank if is_equal and not lora.freeze_a else None


def _apart(
    given: FrozenArrays | None,
) -> tuple[FrozenArrays | None, dict[str, NDArray[Any]]]:
    """Given arrays of the network, and those of adapters."""
    # Paths only: arrays may be in a file until they are asked for.
    of_factors = [path for path in given or () if path.rpartition(".")[2] in (A, B)]
    if given is None or not of_factors:
        return given, {}
    factors = {path: given[path] for path in of_factors}
    arrays = {path: given[path] for path in given if path not in factors}
    return (FrozenArrays(arrays) if arrays else None), factors


def _check_factors(
    factors: Mapping[str, NDArray[Any]],
    adapted: Sequence[tuple[str, int, int, bool]],
    rank: int,
) -> None:
    """Refuse factors that do not fit the adapters.

    Raises:
        ValueError: a weight has no adapter, or one of another shape.
    """
    shapes = {}
    for path, fan_in, fan_out, _ in adapted:
        own = min(rank, fan_in, fan_out)
        shapes[f"{path}.{A}"], shapes[f"{path}.{B}"] = (own, fan_in), (fan_out, own)
    for path, array in factors.items():
        weight = path.rpartition(".")[0]
        require(
            path in shapes,
            f"there are factors of {weight}, which has no adapter; name it in where",
        )
        require(
            array.shape == shapes[path],
            f"{path} has the shape {array.shape}, and the adapter's is {shapes[path]};"
            " give the rank of these factors",
        )


def _adapted(whole: Model, where: str) -> tuple[tuple[str, int, int, bool], ...]:
    """The weights that get adapters; see `Lora.adapted`.

    Raises:
        ValueError: none has two axes.
    """
    layout = layout_of(whole)
    shapes = dict(zip(layout.paths, layout.shapes, strict=True))
    outputs_last = _outputs_last(whole)
    adapted = []
    for path in frozen_paths(whole, where):
        shape = shapes[path]
        if len(shape) < 2:
            continue
        is_last = path in outputs_last
        fan_out = shape[-1] if is_last else shape[0]
        adapted.append((path, math.prod(shape) // fan_out, fan_out, is_last))
    require(
        len(adapted) > 0,
        f"{where!r} names no matrix of the network; name weights, such as"
        f" {', '.join(path for path in shapes if len(shapes[path]) > 1) or 'none'}",
    )
    return tuple(adapted)


def _outputs_last(whole: Model) -> frozenset[str]:
    """The paths of weights whose last axis are the outputs: of Flax, and of the zoo."""
    network: Any = jax.eval_shape(
        lambda key: _leaves_only(
            whole.architecture.build(whole.input_shape, whole.outputs, key)
        ),
        jax.random.key(0),
    )
    found = {
        path_of(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(network)
        if path_of(path).rpartition(".")[2] == "kernel"
    }
    static = layout_of(whole).static
    for path in paths_of(static, (Dense, Conv, ConvPool)):
        found.add(f"{path}.weight")
    found.update(whole.architecture.outputs_last)

    def mark(keys: Any, node: Any) -> None:
        if isinstance(node, Dense) and node.transposed:
            found.discard(f"{path_of(keys)}.weight")

    jax.tree_util.tree_map_with_path(
        mark, static, is_leaf=lambda node: isinstance(node, Dense)
    )
    return frozenset(found)


def _leaves_only(network: Network) -> Any:
    """A network with nothing but arrays in it, for `eval_shape`."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else None, network)


def _normal(key: Array, index: int, rank: int, fan_in: int) -> Float[Array, "r i"]:
    """The random numbers from which the A of the index-th adapter starts."""
    own_key = jax.random.fold_in(key, index)
    return jax.random.normal(own_key, (rank, fan_in), jnp.float32)
