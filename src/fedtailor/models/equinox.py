"""Equinox modules as models."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.equinox_norm import WeightedBatchNorm
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.tree_paths import map_nodes, path_of, paths_of

NO_STATE = (
    "what changes during training must be running statistics; use a layer without state"
)


@dataclass(frozen=True)
class EquinoxModule(Architecture):
    """An Equinox module; see `from_equinox`."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        module = self.make(*self.args, **dict(self.kwargs), key=key)
        kinds = eqx.nn.State | eqx.nn.StateIndex | eqx.nn.BatchNorm
        nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kinds))
        if any(isinstance(node, eqx.nn.State) for node in nodes):
            raise ValueError(
                f"{self.make} gives a state beside the module; pass the module's class,"
                " and its state is kept"
            )
        if any(isinstance(node, eqx.nn.StateIndex) for node in nodes):
            raise ValueError(
                f"the Equinox module keeps state other than BatchNorm's: {NO_STATE}"
            )
        return map_nodes(
            module, eqx.nn.BatchNorm, lambda path, norm: WeightedBatchNorm(norm)
        )

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        return self._vmapped(_call, network, x, key)

    def statistics(self, network: Network) -> tuple[str, ...]:
        norms = paths_of(network, WeightedBatchNorm)
        prefixes = tuple(
            f"{norm}.{kind}_" for norm in norms for kind in ("batch", "ema")
        )
        paths = [path_of(keys) for keys in _array_paths(network)]
        return tuple(path for path in paths if path.startswith(prefixes))

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Network]:
        outputs, _, state = self._train(network, x, key, weight)
        network = eqx.nn.inference_mode(network, value=False)
        return outputs, map_nodes(
            network, eqx.nn.StateIndex, lambda path, index: _renewed(index, state)
        )

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        return self._train(network, x, key, weight, watched=layer_info.head)[1]

    def _train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
        watched: str | None = None,
    ) -> tuple[Float[Array, "b ..."], Float[Array, "b ..."], eqx.nn.State]:
        """A training step: a pass over a batch in training mode.

        Args:
            weight: 0 for examples that only fill the batch.
            watched: path of a dense layer whose inputs are wanted.

        Returns:
            Outputs [b, ...], the inputs of the dense layer `watched` [b, ...], and the
            state after the step.
        """
        network = eqx.nn.inference_mode(network, value=False)
        axis = _axis_name(network)

        def one(
            example: Array, weight: Array, key: Array | None
        ) -> tuple[Array, Array, eqx.nn.State]:
            weighted = map_nodes(
                network, WeightedBatchNorm, lambda path, norm: norm.with_weight(weight)
            )
            options = {} if key is None else {"key": key}
            tap = _Tap()
            if watched is not None:
                weighted = _tapped(weighted, watched, tap)
            output, state = weighted(example, eqx.nn.State(network), **options)
            return output, tap.recorded, state

        keys = None if key is None else jax.random.split(key, len(x))
        key_axis = None if key is None else 0
        # BatchNorm takes means over the named axis, so that all examples end with the
        # same state, which is not stacked.
        batched = jax.vmap(
            one, in_axes=(0, 0, key_axis), out_axes=(0, 0, None), axis_name=axis
        )
        return batched(x, weight, keys)

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        dtype, called = _dense_calls(network, input_shape)
        norms = paths_of(
            network,
            (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm),
        )
        return LayerInfo(
            called[-1] if called else None, norms, tuple(called[-1:]), dtype
        )

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        def body(network: Network, example: Array, **options: Any) -> Array:
            tap = _Tap()
            _call(_tapped(network, layer_info.head, tap), example, **options)
            return tap.recorded

        return self._vmapped(body, network, x, key)

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        # The module runs on zeros up to its head, whose input is replaced by the
        # features. The compiler removes the unused body.
        def head(network: Network, example_features: Array) -> Array:
            zeros = jnp.zeros(input_shape, layer_info.input_dtype)
            return _call(
                _tapped(network, layer_info.head, _Tap(example_features)), zeros
            )

        return self._vmapped(head, network, features, None)

    def _vmapped(
        self, call: Callable[..., Array], network: Network, x: Array, key: Array | None
    ) -> Array:
        """`call(network, example)` for each example, in evaluation mode without a
        key.
        """
        network = eqx.nn.inference_mode(network, value=key is None)
        if key is None:
            return jax.vmap(partial(call, network))(x)
        keys = jax.random.split(key, len(x))
        return jax.vmap(lambda example, key: call(network, example, key=key))(x, keys)

    def is_stochastic(self, network: Network) -> bool:
        # Equinox's layers that differ between training and evaluation have a field
        # `inference`; of these only BatchNorm draws nothing.
        def has_mode(node: Any) -> bool:
            return hasattr(node, "inference")

        layers = filter(has_mode, jax.tree.leaves(network, is_leaf=has_mode))
        return any(not isinstance(layer, eqx.nn.BatchNorm) for layer in layers)


class _Tap:
    """Records the input of a dense layer, or replaces it.

    Attributes:
        replacement: the layer's input; None = the one that it has without the tap.
        on_call: called before every call of the layer.
        recorded: the last input.
    """

    def __init__(
        self,
        replacement: Array | None = None,
        on_call: Callable[[], None] | None = None,
    ) -> None:
        self.replacement = replacement
        self.on_call = on_call
        self.recorded = jnp.zeros(0)

    def __call__(self, x: Array) -> Array:
        if self.on_call is not None:
            self.on_call()
        self.recorded = x
        return x if self.replacement is None else self.replacement


class _Tapped(eqx.Module):
    """A dense layer behind a tap."""

    dense: eqx.nn.Linear
    tap: _Tap = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return self.dense(self.tap(x), key=key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense, name)


def _tapped(network: Network, path: str | None, tap: _Tap) -> Network:
    """The network with a tap in front of its dense layer of that path."""

    def tapped(node_path: str, dense: eqx.nn.Linear) -> eqx.nn.Linear | _Tapped:
        return _Tapped(dense, tap) if node_path == path else dense

    return map_nodes(network, eqx.nn.Linear, tapped)


def _call(network: Network, example: Array, **options: Any) -> Array:
    """The module's output for one example; a module with state is passed its own."""
    if not paths_of(network, eqx.nn.StateIndex):
        return network(example, **options)
    output, _ = network(example, eqx.nn.State(network), **options)
    return output


def _renewed(index: eqx.nn.StateIndex, state: eqx.nn.State) -> eqx.nn.StateIndex:
    """The index with the state's value as its initial value, so that statistics are part
    of the network.
    """
    return eqx.tree_at(lambda index: index.init, index, state.get(index))


def _axis_name(network: Network) -> Hashable:
    """The name that all of the module's BatchNorms give to the batch."""

    def is_norm(node: Any) -> bool:
        return isinstance(node, WeightedBatchNorm)

    norms = filter(is_norm, jax.tree.leaves(network, is_leaf=is_norm))
    names = {norm.axis_name for norm in norms}
    if len(names) != 1:
        raise ValueError(
            f"the module's BatchNorms name the batch {sorted(map(str, names))}; give"
            " them one axis_name"
        )
    return names.pop()


def _array_paths(network: Network) -> list[Any]:
    """The paths of all arrays, in the order of the tree."""
    return [
        keys
        for keys, leaf in jax.tree_util.tree_leaves_with_path(network)
        if hasattr(leaf, "shape")
    ]


def _dense_calls(
    network: Network, input_shape: tuple[int, ...]
) -> tuple[str, list[str]]:
    """Watch the calls of the module's dense layers when it runs on shapes.

    Returns:
        The type of its inputs, and the paths of its dense layers in the order in which
        they are called; in the order of the tree where it runs on neither type.
    """
    called: list[str] = []

    def watched(path: str, dense: eqx.nn.Linear) -> _Tapped:
        return _Tapped(dense, _Tap(on_call=partial(called.append, path)))

    tapped = map_nodes(network, eqx.nn.Linear, watched)
    for dtype in ("float32", "int32"):
        called.clear()
        example = jax.ShapeDtypeStruct(input_shape, dtype)
        # It fails where the module takes the other type, or does not fit these inputs,
        # of which training will tell.
        with suppress(Exception):
            eqx.filter_eval_shape(_call, eqx.nn.inference_mode(tapped), example)
            return dtype, called
    return "float32", list(paths_of(network, eqx.nn.Linear))


def from_equinox(make: Callable[..., Any], *args: Any, **kwargs: Any) -> EquinoxModule:
    """Any Equinox module, called on one example; for example

        models.from_equinox(eqx.nn.MLP, in_size=64, out_size=10, width_size=32, depth=2)

    A module that contains dropout is given a key in training and switched to inference
    in evaluation. One that contains `eqx.nn.BatchNorm` is called as `module(x, state)`
    and returns (output, state), as always in Equinox; its running statistics are
    entries of theta. Models are equal when `make` and its arguments are.

    Args:
        make: builds the module: make(*args, **kwargs, key=key).
        args, kwargs: passed on to `make`; hashable.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: an argument cannot be hashed, or (when bound) the module keeps state
            other than BatchNorm's.
    """
    architecture = EquinoxModule(make, args, tuple(sorted(kwargs.items())))
    try:
        hash(architecture)
    except TypeError as error:
        raise ValueError(
            f"an argument of {make} cannot be hashed ({error}); pass tuples for lists"
            " and arrays"
        ) from error
    return architecture
