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


def _matrix_exp(x: Array) -> Array:
    """The exponential of one matrix after the other: a batch of them can block all
    threads, see `fedtailor.algorithms.helpers.decompositions`.
    """
    matrices = x.reshape(-1, *x.shape[-2:])
    return jax.lax.map(jax.scipy.linalg.expm, matrices).reshape(x.shape)


_UNARY: dict[str, Callable[[Array], Array]] = {
    # The derivative at 0 is 0, and not 1 as that of `jnp.abs`.
    "abs": lambda x: jnp.abs(x) if jnp.iscomplexobj(x) else x * _sign(x),
    "acos": jnp.arccos,
    "alias": lambda x: x,
    "asin": jnp.arcsin,
    "atan": jnp.arctan,
    "bitwise_not": jnp.bitwise_not,
    "ceil": jnp.ceil,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "detach": jax.lax.stop_gradient,
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "imag": jnp.imag,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "lift_fresh_copy": lambda x: x,
    "linalg_matrix_exp": _matrix_exp,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not,
    "matrix_exp": _matrix_exp,
    "mish": jax.nn.mish,
    "neg": jnp.negative,
    "real": jnp.real,
    "reciprocal": lambda x: 1 / x,
    "relu": jax.nn.relu,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
    "view_as_complex": lambda x: jax.lax.complex(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: jnp.stack([jnp.real(x), jnp.imag(x)], -1),
}


def _sign(x: Array) -> Array:
    return jax.lax.stop_gradient(jnp.sign(x))


def _hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    """x between two bounds, at which the derivative is 0 (1/2 in JAX's own)."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x)).astype(x.dtype)


_UNARY |= {
    "hardsigmoid": lambda x: _hardtanh(x + 3, 0, 6) / 6,
    "hardswish": lambda x: jnp.where(
        x >= 3, x, jnp.where(x <= -3, 0, x * (x + 3) / 6)
    ).astype(x.dtype),
    "relu6": lambda x: _hardtanh(x, 0, 6),
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


@operation("add", "sub", layout=True)
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
    "__and__": jnp.bitwise_and,
    "__or__": jnp.bitwise_or,
    "__xor__": jnp.bitwise_xor,
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "bmm": jnp.matmul,
    "dot": jnp.vdot,
    "eq": operator.eq,
    "floor_divide": jnp.floor_divide,
    "fmod": jnp.fmod,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": operator.lt,
    "matmul": jnp.matmul,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mm": jnp.matmul,
    "mul": operator.mul,
    "mv": jnp.matmul,
    "ne": operator.ne,
    "outer": jnp.outer,
    "remainder": jnp.remainder,
    "vdot": jnp.vdot,
}
for _name, _function in _BINARY.items():
    operation(_name)(lambda context, x, y, function=_function: function(x, y))

_PYTHON = {
    "add": operator.add,
    "and_": operator.and_,
    "eq": operator.eq,
    "floordiv": operator.floordiv,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "mod": operator.mod,
    "mul": operator.mul,
    "ne": operator.ne,
    "neg": operator.neg,
    "or_": operator.or_,
    "pow": operator.pow,
    "sub": operator.sub,
    "sym_float": float,
    "sym_int": int,
    "sym_max": max,
    "sym_min": min,
    "truediv": operator.truediv,
}
for _name, _function in _PYTHON.items():
    operation(f"python.{_name}")(
        lambda context, *args, function=_function: function(*args)
    )


@operation("python.getitem", layout=True)
def _getitem(context: Context, values: Any, index: Any) -> Any:
    return values[index]


@operation("pow")
def _pow(context: Context, x: Any, y: Any) -> Array:
    # The derivative of x^0 at 0 is 0, and JAX's would be NaN.
    return jnp.ones_like(x) if isinstance(y, int | float) and y == 0 else x**y


@operation("div")
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


@operation("leaky_relu")
def _leaky_relu(context: Context, x: Array, slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, slope * x)


@operation("elu")
def _elu(
    context: Context,
    x: Array,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Array:
    negative = jnp.where(x > 0, 0, x)
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * negative))


@operation("celu")
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


@operation("hardtanh")
def _clip(context: Context, x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    return _hardtanh(x, low, high)


@operation("clamp", "clamp_min", "clamp_max")
def _clamp(context: Context, x: Array, *bounds: Any, **named: Any) -> Array:
    low, high = (*bounds, None, None)[:2]
    if context.operation_name == "clamp_max":
        low, high = None, low
    low, high = named.get("min", low), named.get("max", high)
    # Unlike those of `jnp.clip`, derivatives at the bounds are 1.
    if low is not None:
        x = jnp.where(x < low, low, x).astype(x.dtype)
    return x if high is None else jnp.where(x > high, high, x).astype(x.dtype)


@operation("threshold")
def _threshold(context: Context, x: Array, bound: float, value: float) -> Array:
    return jnp.where(x > bound, x, value).astype(x.dtype)


@operation("nan_to_num")
def _nan_to_num(
    context: Context, x: Array, nan: Any = None, high: Any = None, low: Any = None
) -> Array:
    return jnp.nan_to_num(x, nan=nan or 0.0, posinf=high, neginf=low)


@operation("addcmul", "addcdiv")
def _add_product(
    context: Context, x: Array, y: Array, z: Array, *, value: float = 1
) -> Array:
    return x + value * (y * z if context.operation_name == "addcmul" else y / z)


@operation("lerp")
def _lerp(context: Context, x: Array, y: Array, weight: Any) -> Array:
    return x + weight * (y - x)


@operation("softmax", "_softmax", "_safe_softmax")
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


@operation("masked_fill")
def _masked_fill(context: Context, x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, value, x)
