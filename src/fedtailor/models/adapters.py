"""Models of the user's own: two functions, an Equinox module or a Flax linen module."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.model import Architecture
from fedtailor.models.parts import Anatomy, path_of, paths_of

NO_STATE = (
    "statistics that change during training (BatchNorm's running mean and variance) belong to no client and cannot be "
    "averaged like weights; use GroupNorm or LayerNorm instead"
)


@dataclass(frozen=True)
class Functions(Architecture):
    """Two functions; see `from_function`."""

    init: Callable[[Array], Any]
    function: Callable[[Any, Array], Array]

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Any:
        return self.init(key)

    def apply(self, network: Any, x: Shaped[Array, "b ..."], key: Array | None) -> Float[Array, "b ..."]:
        return self.function(network, x)


def from_function(init: Callable[[Array], Any], apply: Callable[[Any, Array], Array]) -> Functions:
    """A model from two functions; models are equal when the function objects are, so define these once.

    Args:
        init: key -> parameters, any pytree of floating-point arrays.
        apply: (parameters, x [b, ...]) -> outputs [b, ...].
    """
    return Functions(init, apply)


@dataclass(frozen=True)
class EquinoxModule(Architecture):
    """An Equinox module; see `from_equinox`."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Any:
        module = self.make(*self.args, **dict(self.kwargs), key=key)
        leaves = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, eqx.nn.State | eqx.nn.StateIndex))
        if any(isinstance(leaf, eqx.nn.State | eqx.nn.StateIndex) for leaf in leaves):
            raise ValueError(f"the Equinox module keeps state: {NO_STATE}")
        return module

    def apply(self, network: Any, x: Shaped[Array, "b ..."], key: Array | None) -> Float[Array, "b ..."]:
        return self._each(lambda network, one, **options: network(one, **options), network, x, key)

    def anatomy(self, network: Any, input_shape: tuple[int, ...]) -> Anatomy:
        dtype, called = _dense_calls(network, input_shape)
        norms = paths_of(network, (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm))
        return Anatomy(called[-1] if called else None, norms, tuple(called[-1:]), dtype)

    def features(
        self, network: Any, anatomy: Anatomy, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        def body(network: Any, example: Array, **options: Any) -> Array:
            tap = _Tap()
            _tapped(network, anatomy.head, tap)(example, **options)
            return tap.seen

        return self._each(body, network, x, key)

    def head_outputs(
        self, network: Any, anatomy: Anatomy, features: Float[Array, "b ..."], input_shape: tuple[int, ...]
    ) -> Float[Array, "b ..."]:
        # The module runs on zeros up to its head, which is given the features instead; what leads up to it is never
        # read, so that the compiler removes it.
        def rest(network: Any, one: Array) -> Array:
            return _tapped(network, anatomy.head, _Tap(one))(jnp.zeros(input_shape, anatomy.input_dtype))

        return self._each(rest, network, features, None)

    def _each(self, call: Callable[..., Array], network: Any, x: Array, key: Array | None) -> Array:
        """`call(network, example)` for each example, in evaluation mode without a key."""
        network = eqx.nn.inference_mode(network, value=key is None)
        if key is None:
            return jax.vmap(partial(call, network))(x)
        return jax.vmap(lambda one, key: call(network, one, key=key))(x, jax.random.split(key, len(x)))

    def is_stochastic(self, network: Any) -> bool:
        has_mode = lambda node: hasattr(node, "inference")  # noqa: E731
        return any(has_mode(node) for node in jax.tree.leaves(network, is_leaf=has_mode))


class _Tap:
    """Looks at what a dense layer is given, or gives it something else."""

    def __init__(self, instead: Array | None = None, note: Callable[[], None] | None = None) -> None:
        self.instead, self.note, self.seen = instead, note, jnp.zeros(0)

    def __call__(self, x: Array) -> Array:
        if self.note is not None:
            self.note()
        self.seen = x
        return x if self.instead is None else self.instead


class _Tapped(eqx.Module):
    """A dense layer behind a tap."""

    dense: eqx.nn.Linear
    tap: _Tap = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return self.dense(self.tap(x), key=key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense, name)


def _tapped(network: Any, path: str | None, tap: _Tap) -> Any:
    """The network with its dense layer of that path tapped."""
    return _map_dense(network, lambda where, dense: _Tapped(dense, tap) if where == path else dense)


def _map_dense(network: Any, function: Callable[[str, eqx.nn.Linear], Any]) -> Any:
    is_dense = lambda node: isinstance(node, eqx.nn.Linear)  # noqa: E731
    change = lambda keys, node: function(path_of(keys), node) if is_dense(node) else node  # noqa: E731
    return jax.tree_util.tree_map_with_path(change, network, is_leaf=is_dense)


def _dense_calls(network: Any, input_shape: tuple[int, ...]) -> tuple[str, list[str]]:
    """The type of the inputs, and the paths of the dense layers in the order in which they are called."""
    paths = paths_of(network, eqx.nn.Linear)
    for dtype in ("float32", "int32"):
        called: list[str] = []
        tapped = _map_dense(
            network, lambda path, dense, called=called: _Tapped(dense, _Tap(note=partial(called.append, path)))
        )
        example = jax.ShapeDtypeStruct(input_shape, dtype)
        with suppress(Exception):  # the module takes the other type, or does not fit these inputs: training says so
            eqx.filter_eval_shape(lambda network, x: network(x), eqx.nn.inference_mode(tapped), example)
            return dtype, called
    return "float32", list(paths)


def from_equinox(make: Callable[..., Any], *args: Any, **kwargs: Any) -> EquinoxModule:
    """Any Equinox module without state, called on one example; for example

        models.from_equinox(eqx.nn.MLP, in_size=64, out_size=10, width_size=32, depth=2)

    A module that contains dropout is given a key in training and switched to inference in evaluation. Models are equal
    when `make` and its arguments are.

    Args:
        make: builds the module: make(*args, **kwargs, key=key).
        args, kwargs: passed on to `make`; hashable.

    Raises:
        ValueError: an argument cannot be hashed, or (when bound) the module keeps state, as BatchNorm does.
    """
    architecture = EquinoxModule(make, args, tuple(sorted(kwargs.items())))
    try:
        hash(architecture)
    except TypeError as error:
        raise ValueError(
            f"an argument of {make} cannot be hashed ({error}); pass tuples for lists and arrays"
        ) from error
    return architecture


@dataclass(frozen=True)
class LinenModule(Architecture):
    """A Flax linen module; see `from_linen`."""

    module: Any
    input_dtype: str

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Any:
        example = jnp.zeros((1, *input_shape), self.input_dtype)
        params, dropout = jax.random.split(key)
        variables = self.module.init({"params": params, "dropout": dropout}, example, **self._mode(training=False))
        others = sorted(set(variables) - {"params"})
        if others:
            raise ValueError(f"the linen module has collections {others} beside its parameters: {NO_STATE}")
        return variables["params"]

    def apply(self, network: Any, x: Shaped[Array, "b ..."], key: Array | None) -> Float[Array, "b ..."]:
        rngs = None if key is None else {"dropout": key}
        return self.module.apply({"params": network}, x, rngs=rngs, **self._mode(training=key is not None))

    def anatomy(self, network: Any, input_shape: tuple[int, ...]) -> Anatomy:
        from flax import linen

        called: list[tuple[str, Any]] = []

        def look(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            called.append((".".join(context.module.path), context.module))
            return call(*args, **kwargs)

        x = jax.ShapeDtypeStruct((1, *input_shape), self.input_dtype)
        with linen.intercept_methods(look):
            jax.eval_shape(lambda network, x: self.apply(network, x, None), network, x)
        dense = [path for path, module in called if isinstance(module, linen.Dense)]
        kinds = (linen.BatchNorm, linen.LayerNorm, linen.GroupNorm, linen.RMSNorm, linen.InstanceNorm)
        norms = [path for path, module in called if isinstance(module, kinds)]
        order = list(dict.fromkeys(path for path, _ in reversed(called)))[::-1]  # by the last call
        return Anatomy(dense[-1] if dense else None, tuple(dict.fromkeys(norms)), tuple(order), self.input_dtype)

    def features(
        self, network: Any, anatomy: Anatomy, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        seen: list[Array] = []

        def look(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            if ".".join(context.module.path) == anatomy.head:
                seen.append(args[0])
            return call(*args, **kwargs)

        self._intercepted(look, network, x, key)
        return seen[-1]

    def head_outputs(
        self, network: Any, anatomy: Anatomy, features: Float[Array, "b ..."], input_shape: tuple[int, ...]
    ) -> Float[Array, "b ..."]:
        # As for Equinox modules: the body runs on zeros, unread.
        def replace(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            is_head = ".".join(context.module.path) == anatomy.head
            return call(*((features, *args[1:]) if is_head else args), **kwargs)

        return self._intercepted(replace, network, jnp.zeros((len(features), *input_shape), self.input_dtype), None)

    def _intercepted(self, interceptor: Any, network: Any, x: Array, key: Array | None) -> Array:
        from flax import linen

        with linen.intercept_methods(interceptor):
            return self.apply(network, x, key)

    def is_stochastic(self, network: Any) -> bool:
        return bool(self._mode(training=True))

    def _mode(self, training: bool) -> dict[str, bool]:
        """The argument of the module's call that says whether it trains, where there is one."""
        accepted = inspect.signature(type(self.module).__call__).parameters
        modes = {"train": training, "training": training, "deterministic": not training}
        return {name: value for name, value in modes.items() if name in accepted}


def from_linen(module: Any, input_dtype: str = "float32") -> LinenModule:
    """Any Flax linen module that has parameters only, called on a batch.

    Where its `__call__` takes `train`, `training` or `deterministic`, this says whether dropout is on, and training
    passes a random stream named "dropout". Models are equal when the modules are.

    Args:
        module: the module, for example `MyNet(classes=10)`.
        input_dtype: type of the inputs; "int32" for token ids.

    Raises:
        ValueError: Flax is missing, this is no linen module, or (when bound) it keeps state, as BatchNorm does.
    """
    try:
        from flax import linen
    except ImportError as error:
        raise ValueError("from_linen needs Flax; install it with: pip install flax") from error
    if not isinstance(module, linen.Module):
        raise ValueError(f"from_linen takes an instance of flax.linen.Module, not {module!r}")
    return LinenModule(module, input_dtype)
