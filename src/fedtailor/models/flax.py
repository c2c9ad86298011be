"""Flax linen modules as models."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.tree_paths import path_of
from fedtailor.protocol import along_axis


@dataclass(frozen=True)
class LinenModule(Architecture):
    """The architecture of `from_linen`."""

    module: Any
    input_dtype: str

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        example = jnp.zeros((1, *input_shape), self.input_dtype)
        params, dropout = jax.random.split(key)
        variables = self.module.init(
            {"params": params, "dropout": dropout},
            example,
            **self._mode(training=False),
        )
        unsupported = sorted(set(variables) - {"params", STATISTICS})
        if unsupported:
            raise ValueError(
                f"the linen module has collections {unsupported} in addition to its parameters and"
                " running statistics, and only those can be trained; use a module"
                " without them"
            )
        return _merge(variables)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        rngs = None if key is None else {"dropout": key}
        return self.module.apply(
            _split(network), x, rngs=rngs, **self._mode(training=key is not None)
        )

    def statistics(self, network: Network) -> tuple[str, ...]:
        keys = [keys for keys, _ in jax.tree_util.tree_leaves_with_path(network)]
        return tuple(
            path_of(path) for path in keys if str(path[-1].key).startswith(RUNNING)
        )

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b ..."], Network]:
        from flax import linen

        # Flax passes every call of a module to an interceptor. This one adds a mask of
        # padding to the arguments of BatchNorm.
        def mask_padding(
            call: Callable[..., Any], args: Any, kwargs: Any, context: Any
        ) -> Any:
            is_norm = isinstance(context.module, linen.BatchNorm)
            if is_norm and context.method_name == "__call__":
                x = args[0]
                kwargs = {**kwargs, "mask": along_axis(weight > 0, 0, x.ndim)}
            return call(*args, **kwargs)

        rngs = None if key is None else {"dropout": key}
        variables = _split(network)
        with linen.intercept_methods(mask_padding):
            outputs, new_statistics = self.module.apply(
                variables,
                x,
                rngs=rngs,
                mutable=[STATISTICS],
                **self._mode(training=True),
            )
        return outputs, _merge({**variables, **new_statistics})

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        from flax import linen

        # Record the calls of layers while the module runs on shapes.
        called: list[tuple[str, Any]] = []

        def record(
            call: Callable[..., Any], args: Any, kwargs: Any, context: Any
        ) -> Any:
            called.append((".".join(context.module.path), context.module))
            return call(*args, **kwargs)

        x = jax.ShapeDtypeStruct((1, *input_shape), self.input_dtype)
        with linen.intercept_methods(record):
            jax.eval_shape(lambda network, x: self.apply(network, x, None), network, x)
        dense = [path for path, module in called if isinstance(module, linen.Dense)]
        kinds = (
            linen.BatchNorm,
            linen.LayerNorm,
            linen.GroupNorm,
            linen.RMSNorm,
            linen.InstanceNorm,
        )
        norms = [path for path, module in called if isinstance(module, kinds)]
        # A layer that is called twice counts at its last call.
        order = list(dict.fromkeys(path for path, _ in reversed(called)))[::-1]
        return LayerInfo(
            dense[-1] if dense else None,
            tuple(dict.fromkeys(norms)),
            tuple(order),
            self.input_dtype,
        )

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        from flax import linen

        record, inputs = _input_recorder(layer_info.head)
        with linen.intercept_methods(record):
            self.apply(network, x, key)
        return inputs[-1]

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        from flax import linen

        record, inputs = _input_recorder(layer_info.head)
        with linen.intercept_methods(record):
            self.train(network, x, key, weight)
        return inputs[-1]

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        from flax import linen

        # The module runs on zeros up to its head, whose input is replaced by the
        # features. The compiler removes the unused body.
        def replace_input(
            call: Callable[..., Any], args: Any, kwargs: Any, context: Any
        ) -> Any:
            if ".".join(context.module.path) == layer_info.head:
                args = (features, *args[1:])
            return call(*args, **kwargs)

        zeros = jnp.zeros((len(features), *input_shape), self.input_dtype)
        with linen.intercept_methods(replace_input):
            return self.apply(network, zeros, None)

    def is_stochastic(self, network: Network) -> bool:
        return bool(self._mode(training=True))

    def _mode(self, training: bool) -> dict[str, bool]:
        """The argument of the module's `__call__` that selects training mode, if it has
        one.
        """
        accepted = inspect.signature(type(self.module).__call__).parameters
        modes = {"train": training, "training": training, "deterministic": not training}
        return {name: value for name, value in modes.items() if name in accepted}


def _input_recorder(path: str | None) -> tuple[Callable[..., Any], list[Array]]:
    """An interceptor of calls, and a list to which it appends the inputs of the module at
    that path.
    """
    inputs: list[Array] = []

    def record(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if ".".join(context.module.path) == path:
            inputs.append(args[0])
        return call(*args, **kwargs)

    return record, inputs


STATISTICS = "batch_stats"
"""Flax's collection of running statistics."""
RUNNING = "running_"
"""The prefix of a statistic's name among the parameters of its layer."""


def _merge(variables: Any) -> Any:
    """Merge the collections of parameters and of running statistics into one tree."""
    from flax import traverse_util

    flat = traverse_util.flatten_dict(variables["params"])
    statistics = traverse_util.flatten_dict(variables.get(STATISTICS, {}))
    if not statistics:
        return variables["params"]
    if any(str(path[-1]).startswith(RUNNING) for path in flat):
        raise ValueError(
            f"a parameter of the linen module is named {RUNNING}...; that is for"
            " statistics: rename it"
        )
    # A layer's statistics may have the names of its parameters, from which the prefix
    # distinguishes them.
    renamed = {}
    for (*layer, name), value in statistics.items():
        renamed[*layer, RUNNING + name] = value
    return traverse_util.unflatten_dict({**flat, **renamed})


def _split(network: Network) -> dict[str, Any]:
    """The inverse of `_merge`."""
    from flax import traverse_util

    flat = traverse_util.flatten_dict(network) if isinstance(network, dict) else {}
    statistics = {
        path: value for path, value in flat.items() if path[-1].startswith(RUNNING)
    }
    if not statistics:
        return {"params": network}
    params = {path: value for path, value in flat.items() if path not in statistics}
    renamed = {}
    for (*layer, name), value in statistics.items():
        renamed[*layer, name.removeprefix(RUNNING)] = value
    return {
        "params": traverse_util.unflatten_dict(params),
        STATISTICS: traverse_util.unflatten_dict(renamed),
    }


def from_linen(module: Any, input_dtype: str = "float32") -> LinenModule:
    """A Flax linen module as a model. The module is called on a batch, and has parameters
    and running statistics (collection "batch_stats") only.

    The statistics are entries of theta, next to the parameters of their layer, such as
    "BatchNorm_0.running_mean". If the module's `__call__` has an argument `train`,
    `training` or `deterministic`, it selects training mode, in which there is a random
    stream named "dropout". Models are equal if the modules are equal.

    Args:
        module: the module, for example `MyNet(classes=10)`.
        input_dtype: type of the inputs; "int32" for token ids.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: Flax is missing, this is not a linen module, or (when bound) it has
            variables of other collections.

    Example:
        >>> from flax import linen
        >>> ft.models.from_linen(linen.Dense(3)).bind((4,), 3).size
        15
    """
    try:
        from flax import linen
    except ImportError as error:
        raise ValueError(
            "from_linen needs Flax; install it with: pip install flax"
        ) from error
    if not isinstance(module, linen.Module):
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        bases = getattr(type(module), "__mro__", ())
        if any(base.__module__.startswith("flax.nnx") for base in bases):
            raise ValueError(
                f"from_linen takes a flax.linen.Module, and {kind} is an NNX module; write"
                " it as a flax.linen or an Equinox module (from_equinox)"
            )
        raise ValueError(
            f"from_linen takes an instance of flax.linen.Module, not {module!r}"
        )
    return LinenModule(module, input_dtype)
