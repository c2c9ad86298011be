"""Equinox modules as models."""

import inspect
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor._base.printable import name_of
from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.equinox_norm import WeightedBatchNorm
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.tree_paths import map_nodes, path_of, paths_of

NO_STATE = (
    "what changes during training must be running statistics; use a layer without state"
)


@dataclass(frozen=True)
class EquinoxModule(Architecture):
    """The architecture of `from_equinox`."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        module = self.make(*self.args, **dict(self.kwargs), key=key)
        kinds = eqx.nn.State | eqx.nn.StateIndex | eqx.nn.BatchNorm
        nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kinds))
        if any(isinstance(node, eqx.nn.State) for node in nodes):
            raise ValueError(
                f"{name_of(self.make)} gives a state in addition to the module; pass the"
                " module's class, and its state is kept"
            )
        if any(isinstance(node, eqx.nn.StateIndex) for node in nodes):
            raise ValueError(
                f"the Equinox module keeps state other than BatchNorm's: {NO_STATE}"
            )
        network = map_nodes(
            module, eqx.nn.BatchNorm, lambda path, norm: WeightedBatchNorm(norm)
        )
        self._check_call(network)
        return network

    def _check_call(self, network: Network) -> None:
        """Require that a module can be called as it will be.

        Raises:
            ValueError: it takes other arguments.
        """
        state = [None] if paths_of(network, eqx.nn.StateIndex) else []
        key = {"key": None} if self.is_stochastic(network) else {}
        try:
            inspect.signature(network).bind(None, *state, **key)
        except TypeError as error:
            needed = "x, state" if state else "x"
            if key:
                needed += ", *, key=None"
            raise ValueError(
                f"{type(network).__name__} must be callable on one example as"
                f" __call__(self, {needed}), and takes other arguments ({error}): wrap it"
                " in a module that is called so"
            ) from None

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
            network, eqx.nn.StateIndex, lambda path, index: _with_new_init(index, state)
        )

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        return self._train(network, x, key, weight, recorded_layer=layer_info.head)[1]

    def _train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
        recorded_layer: str | None = None,
    ) -> tuple[Float[Array, "b ..."], Float[Array, "b ..."], eqx.nn.State]:
        """Run a forward pass over a batch in training mode.

        Args:
            network: the network before the step.
            x: a batch of inputs.
            key: the random key of the step.
            weight: 0 for padding.
            recorded_layer: the path of a dense layer whose inputs to return.

        Returns:
            Outputs [b, ...], the inputs of `recorded_layer` [b, ...], and the state after
            the step.
        """
        network = eqx.nn.inference_mode(network, value=False)
        axis = _axis_name(network)

        def train_on_example(
            example: Array, weight: Array, key: Array | None
        ) -> tuple[Array, Array, eqx.nn.State]:
            module = map_nodes(
                network, WeightedBatchNorm, lambda path, norm: norm.with_weight(weight)
            )
            options = {} if key is None else {"key": key}
            hook = _InputHook()
            if recorded_layer is not None:
                module = _with_hook(module, recorded_layer, hook)
            output, state = module(example, eqx.nn.State(network), **options)
            return output, hook.last_input, state

        keys = None if key is None else jax.random.split(key, len(x))
        key_axis = None if key is None else 0
        # BatchNorm takes means over the named axis, so that all examples end with the
        # same state, which is not stacked.
        batched = jax.vmap(
            train_on_example,
            in_axes=(0, 0, key_axis),
            out_axes=(0, 0, None),
            axis_name=axis,
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
            hook = _InputHook()
            _call(_with_hook(network, layer_info.head, hook), example, **options)
            return hook.last_input

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
            hook = _InputHook(example_features)
            return _call(_with_hook(network, layer_info.head, hook), zeros)

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
        # Equinox's layers with a field `inference` draw random numbers in training, except
        # BatchNorm.
        def has_mode(node: Any) -> bool:
            return hasattr(node, "inference")

        layers = filter(has_mode, jax.tree.leaves(network, is_leaf=has_mode))
        return any(not isinstance(layer, eqx.nn.BatchNorm) for layer in layers)


class _InputHook:
    """Records or replaces the input of a dense layer.

    Attributes:
        replacement: the new input of the layer; None = do not replace it.
        on_call: called before every call of the layer.
        last_input: the input of the last call, before it is replaced.
    """

    def __init__(
        self,
        replacement: Array | None = None,
        on_call: Callable[[], None] | None = None,
    ) -> None:
        self.replacement = replacement
        self.on_call = on_call
        self.last_input = jnp.zeros(0)

    def __call__(self, x: Array) -> Array:
        if self.on_call is not None:
            self.on_call()
        self.last_input = x
        return x if self.replacement is None else self.replacement


class _HookedLinear(eqx.Module):
    """A dense layer with a hook on its input."""

    dense: eqx.nn.Linear
    hook: _InputHook = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return self.dense(self.hook(x), key=key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense, name)


def _with_hook(network: Network, path: str | None, hook: _InputHook) -> Network:
    """The network with a hook on its dense layer at that path."""

    def add_hook(node_path: str, dense: eqx.nn.Linear) -> eqx.nn.Linear | _HookedLinear:
        return _HookedLinear(dense, hook) if node_path == path else dense

    return map_nodes(network, eqx.nn.Linear, add_hook)


def _call(network: Network, example: Array, **options: Any) -> Array:
    """The module's output for one example. A module with state is called with its initial
    state.
    """
    state = ()
    if paths_of(network, eqx.nn.StateIndex):
        state = (eqx.nn.State(network),)
    try:
        output = network(example, *state, **options)
    except RuntimeError as error:
        if "requires a key" not in str(error):
            raise
        raise ValueError(
            f"{type(network).__name__} has dropout, and does not pass its key on: call each"
            " layer that draws with key=..., of jax.random.split(key)"
        ) from None
    return output[0] if state else output


def _with_new_init(index: eqx.nn.StateIndex, state: eqx.nn.State) -> eqx.nn.StateIndex:
    """The index with its value in `state` as the initial value, which makes statistics
    part of the network.
    """
    return eqx.tree_at(lambda index: index.init, index, state.get(index))


def _axis_name(network: Network) -> Hashable:
    """The `axis_name` of all of the module's BatchNorm layers."""

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
    """Record the calls of the module's dense layers while it runs on shapes.

    Returns:
        The dtype of the inputs, and the paths of the dense layers in the order of their
        calls. If the module runs with neither dtype, "float32" and the paths in the order
        of the tree.
    """
    called: list[str] = []

    def add_hook(path: str, dense: eqx.nn.Linear) -> _HookedLinear:
        return _HookedLinear(dense, _InputHook(on_call=partial(called.append, path)))

    hooked = map_nodes(network, eqx.nn.Linear, add_hook)
    for dtype in ("float32", "int32"):
        called.clear()
        example = jax.ShapeDtypeStruct(input_shape, dtype)
        # An error means that the module takes the other dtype, or does not fit these
        # inputs, which training will report.
        with suppress(Exception):
            eqx.filter_eval_shape(_call, eqx.nn.inference_mode(hooked), example)
            return dtype, called
    return "float32", list(paths_of(network, eqx.nn.Linear))


def from_equinox(make: Callable[..., Any], *args: Any, **kwargs: Any) -> EquinoxModule:
    """An Equinox module as a model. The module is called on one example. For example,

        models.from_equinox(eqx.nn.MLP, in_size=64, out_size=10, width_size=32, depth=2)

    A module with dropout is called with a key in training, and is in inference mode in
    evaluation. A module with `eqx.nn.BatchNorm` is called as `module(x, state)` and returns
    (output, state), as usual in Equinox; its running statistics are entries of theta.
    Models are equal if `make` and its arguments are equal.

    Args:
        make: builds the module: make(*args, **kwargs, key=key).
        args, kwargs: the arguments of `make`; must be hashable.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: an argument cannot be hashed, or (when bound) the module keeps state
            other than BatchNorm's or takes other arguments.

    Example:
        >>> import equinox as eqx
        >>> model = ft.models.from_equinox(eqx.nn.Linear, 4, 3)
        >>> model.bind((4,), 3).size
        15
    """
    architecture = EquinoxModule(make, args, tuple(sorted(kwargs.items())))
    try:
        hash(architecture)
    except TypeError as error:
        raise ValueError(
            f"an argument of {name_of(make)} cannot be hashed ({error}); pass tuples for lists"
            " and arrays"
        ) from error
    return architecture
