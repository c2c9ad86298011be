"""PyTorch's element-wise operations in JAX."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedtailor.models.pytorch.layout import FeatureMaps, torch_layout
from fedtailor.models.pytorch.operations import OPERATIONS, Context, operation
from fedtailor.protocol import along_axis

_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": jnp.abs,
    "alias": lambda x: x,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "cos": jnp.cos,
    "detach": jax.lax.stop_gradient,
    "detach_": jax.lax.stop_gradient,
    "erf": jax.lax.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "hardswish_": jax.nn.hard_swish,
    "lift_fresh_copy": lambda x: x,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not,
    "mish": jax.nn.mish,
    "neg": jnp.negative,
    "reciprocal": lambda x: 1 / x,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "relu6_": jax.nn.relu6,
    "relu_": jax.nn.relu,
    "rsqrt": jax.lax.rsqrt,
    "selu": jax.nn.selu,
    "selu_": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sigmoid_": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "silu_": jax.nn.silu,
    "sin": jnp.sin,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tanh": jnp.tanh,
    "tanh_": jnp.tanh,
}


def _elementwise(function: Callable[[Array], Array]) -> Callable[..., Any]:
    """An element-wise function as an operation. Feature maps keep their layout, so that no
    image is transposed.
    """

    def call(context: Context, x: Any, **kwargs: Any) -> Any:
        if isinstance(x, FeatureMaps):
            return FeatureMaps(function(x.array))
        return function(torch_layout(x))

    return call


for _name, _function in _UNARY.items():
    OPERATIONS[_name] = _elementwise(_function)


@operation("add", "add_", "sub", "sub_", layout=True)
def _add(context: Context, x: Any, y: Any, *, alpha: float = 1) -> Any:
    sign = -alpha if context.operation_name.startswith("sub") else alpha
    if isinstance(x, FeatureMaps) and isinstance(y, FeatureMaps) and x.shape == y.shape:
        return FeatureMaps(x.array + (y.array if sign == 1 else sign * y.array))
    x, y = torch_layout(x), torch_layout(y)
    # A product with 1 or -1 would be an operation more.
    if sign == 1:
        return x + y
    return x - y if sign == -1 else x + sign * y


_BINARY: dict[str, Callable[..., Any]] = {
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "lt": operator.lt,
    "matmul": jnp.matmul,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "mul": operator.mul,
    "mul_": operator.mul,
    "ne": operator.ne,
    "pow": jnp.power,
}
for _name, _function in _BINARY.items():
    operation(_name)(lambda context, x, y, function=_function: function(x, y))

_PYTHON = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "neg": operator.neg,
    "getitem": operator.getitem,
}
for _name, _function in _PYTHON.items():
    operation(f"python.{_name}")(
        lambda context, *args, function=_function: function(*args)
    )


@operation("div", "div_")
def _div(context: Context, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    return jnp.floor(x / y) if rounding_mode == "floor" else jnp.trunc(x / y)


@operation("rsub")
def _rsub(context: Context, x: Any, y: Any, alpha: float = 1) -> Any:
    return y - alpha * x


@operation("gelu")
def _gelu(context: Context, x: Array, *, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operation("leaky_relu", "leaky_relu_")
def _leaky_relu(context: Context, x: Array, slope: float = 0.01) -> Array:
    return jax.nn.leaky_relu(x, slope)


@operation("elu", "elu_")
def _elu(
    context: Context,
    x: Array,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Array:
    return scale * jnp.where(
        x > 0, x, alpha * jnp.expm1(input_scale * jnp.minimum(x, 0))
    )


@operation("celu", "celu_")
def _celu(context: Context, x: Array, alpha: float = 1.0) -> Array:
    return jax.nn.celu(x, alpha)


@operation("glu")
def _glu(context: Context, x: Array, dim: int = -1) -> Array:
    return jax.nn.glu(x, dim)


@operation("softplus")
def _softplus(
    context: Context, x: Array, beta: float = 1.0, threshold: float = 20.0
) -> Array:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


@operation("prelu")
def _prelu(context: Context, x: Array, weight: Array) -> Array:
    # PyTorch: an input without an axis of channels has one channel.
    slope = along_axis(weight, 1, x.ndim) if x.ndim > 1 else weight
    return jnp.where(x > 0, x, x * slope)


@operation("clamp", "clamp_", "hardtanh", "hardtanh_")
def _clamp(
    context: Context,
    x: Array,
    low: float | None = None,
    high: float | None = None,
    **kwargs: Any,
) -> Array:
    if context.operation_name.startswith("hardtanh"):
        low, high = -1 if low is None else low, 1 if high is None else high
    return jnp.clip(x, kwargs.get("min", low), kwargs.get("max", high))


@operation("clamp_min")
def _clamp_min(context: Context, x: Array, low: float) -> Array:
    return jnp.maximum(x, low)


@operation("softmax", "_softmax")
def _softmax(context: Context, x: Array, dim: int, *rest: Any, **kwargs: Any) -> Array:
    return jax.nn.softmax(x, dim)


@operation("log_softmax", "_log_softmax")
def _log_softmax(
    context: Context, x: Array, dim: int, *rest: Any, **kwargs: Any
) -> Array:
    return jax.nn.log_softmax(x, dim)


@operation("where")
def _where(context: Context, condition: Array, x: Any, y: Any) -> Array:
    return jnp.where(condition, x, y)


@operation("masked_fill", "masked_fill_")
def _masked_fill(context: Context, x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, value, x)
