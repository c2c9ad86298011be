"""What PyTorch's operations are in JAX: a table by name, without the overload ("add", not "aten.add.Tensor").

Every entry is called as `function(context, *args, **kwargs)`, with PyTorch's positional arguments and arrays in its
layout; those marked with `layout=True` (in `layers`) take `Planes` and `Images` too. Register what is missing:

    @operation("my_op")
    def my_op(context, x): ...
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedtailor.models.pytorch.layout import Planes, plain

OPERATIONS: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


class Unsupported(ValueError):
    """An operation, or a use of one, that has no counterpart here."""


def operation(*names: str, layout: bool = False) -> Callable[[Function], Function]:
    """Register a function under names of operations; without `layout`, its arguments are in PyTorch's layout."""

    def register(function: Function) -> Function:
        def called(context: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_plain, args))
            return function(context, *args, **kwargs)

        for name in names:
            OPERATIONS[name] = function if layout else called
        return function

    return register


def _plain(argument: Any) -> Any:
    return tuple(map(plain, argument)) if isinstance(argument, tuple) else plain(argument)


# element by element -------------------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": jnp.abs, "alias": lambda x: x, "clone": lambda x: x, "contiguous": lambda x: x, "cos": jnp.cos,
    "detach": jax.lax.stop_gradient, "detach_": jax.lax.stop_gradient, "erf": jax.lax.erf, "exp": jnp.exp,
    "hardsigmoid": jax.nn.hard_sigmoid, "hardswish": jax.nn.hard_swish, "hardswish_": jax.nn.hard_swish,
    "lift_fresh_copy": lambda x: x, "log": jnp.log, "logical_not": jnp.logical_not, "mish": jax.nn.mish,
    "neg": jnp.negative, "reciprocal": lambda x: 1 / x, "relu": jax.nn.relu, "relu6": jax.nn.relu6,
    "relu6_": jax.nn.relu6, "relu_": jax.nn.relu, "rsqrt": jax.lax.rsqrt, "sigmoid": jax.nn.sigmoid,
    "sigmoid_": jax.nn.sigmoid, "sign": jnp.sign, "silu": jax.nn.silu, "silu_": jax.nn.silu, "sin": jnp.sin,
    "sqrt": jnp.sqrt, "square": jnp.square, "tanh": jnp.tanh, "tanh_": jnp.tanh,
}  # fmt: skip


def _keeping_layout(function: Callable[[Array], Array]) -> Callable[..., Any]:
    def called(context: Any, x: Any, **kwargs: Any) -> Any:
        return Planes(function(x.array)) if isinstance(x, Planes) else function(plain(x))

    return called


for _name, _function in _UNARY.items():
    OPERATIONS[_name] = _keeping_layout(_function)


@operation("add", "add_", "sub", "sub_", layout=True)
def _add(context: Any, x: Any, y: Any, *, alpha: float = 1) -> Any:
    sign = -alpha if context.operation.name.startswith("sub") else alpha
    if isinstance(x, Planes) and isinstance(y, Planes) and x.shape == y.shape:
        return Planes(x.array + (y.array if sign == 1 else sign * y.array))
    x, y = plain(x), plain(y)
    return x + y if sign == 1 else x - y if sign == -1 else x + sign * y


_BINARY: dict[str, Callable[..., Any]] = {
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "eq": operator.eq, "ge": operator.ge,
    "gt": operator.gt, "le": operator.le, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "lt": operator.lt, "matmul": jnp.matmul, "maximum": jnp.maximum, "minimum": jnp.minimum, "mm": jnp.matmul,
    "bmm": jnp.matmul, "mul": operator.mul, "mul_": operator.mul, "ne": operator.ne, "pow": jnp.power,
}  # fmt: skip
for _name, _function in _BINARY.items():
    operation(_name)(lambda context, x, y, function=_function: function(x, y))

_ON_SIZES = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
             "truediv": operator.truediv, "mod": operator.mod, "neg": operator.neg,
             "getitem": operator.getitem}  # fmt: skip
for _name, _function in _ON_SIZES.items():
    operation(f"python.{_name}")(lambda context, *args, function=_function: function(*args))


@operation("div", "div_")
def _div(context: Any, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    return jnp.floor(x / y) if rounding_mode == "floor" else jnp.trunc(x / y)


@operation("rsub")
def _rsub(context: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    return y - alpha * x


@operation("gelu")
def _gelu(context: Any, x: Array, *, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operation("leaky_relu", "leaky_relu_")
def _leaky_relu(context: Any, x: Array, slope: float = 0.01) -> Array:
    return jax.nn.leaky_relu(x, slope)


@operation("elu", "elu_")
def _elu(context: Any, x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.minimum(x, 0)))


@operation("softplus")
def _softplus(context: Any, x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


@operation("prelu")
def _prelu(context: Any, x: Array, weight: Array) -> Array:
    return jnp.where(x > 0, x, x * weight.reshape(-1, *[1] * (x.ndim - 2)))


@operation("clamp", "clamp_", "hardtanh", "hardtanh_")
def _clamp(context: Any, x: Array, low: float | None = None, high: float | None = None, **kwargs: Any) -> Array:
    if context.operation.name.startswith("hardtanh"):
        low, high = -1 if low is None else low, 1 if high is None else high
    return jnp.clip(x, kwargs.get("min", low), kwargs.get("max", high))


@operation("clamp_min")
def _clamp_min(context: Any, x: Array, low: float) -> Array:
    return jnp.maximum(x, low)


@operation("softmax", "_softmax")
def _softmax(context: Any, x: Array, dim: int, *rest: Any, **kwargs: Any) -> Array:
    return jax.nn.softmax(x, dim)


@operation("log_softmax", "_log_softmax")
def _log_softmax(context: Any, x: Array, dim: int, *rest: Any, **kwargs: Any) -> Array:
    return jax.nn.log_softmax(x, dim)


@operation("where")
def _where(context: Any, condition: Array, x: Any, y: Any) -> Array:
    return jnp.where(condition, x, y)


@operation("masked_fill", "masked_fill_")
def _masked_fill(context: Any, x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, value, x)


# shapes -------------------------------------------------------------------------------------------------------------


@operation("sym_size", layout=True)
def _size(context: Any, x: Any, dim: int) -> int:
    return x.shape[dim]


@operation("view", "reshape", "_unsafe_view")
def _reshape(context: Any, x: Array, shape: Sequence[int]) -> Array:
    return x.reshape(shape)


@operation("flatten", layout=True)
def _flatten(context: Any, x: Any, start: int = 0, end: int = -1) -> Array:
    if isinstance(x, Planes) and start == 1 and end in (-1, 3):
        return x.array.reshape(-1, x.array.shape[-1]).T
    x = plain(x)
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


@operation("unflatten")
def _unflatten(context: Any, x: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim = dim % x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@operation("permute")
def _permute(context: Any, x: Array, dims: Sequence[int]) -> Array:
    return x.transpose(dims)


@operation("transpose")
def _transpose(context: Any, x: Array, first: int, second: int) -> Array:
    return jnp.swapaxes(x, first, second)


@operation("t", "numpy_T")
def _t(context: Any, x: Array) -> Array:
    return x.T


@operation("unsqueeze")
def _unsqueeze(context: Any, x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


@operation("squeeze")
def _squeeze(context: Any, x: Array, dim: Any = None) -> Array:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


@operation("expand")
def _expand(context: Any, x: Array, shape: Sequence[int], **kwargs: Any) -> Array:
    added = len(shape) - x.ndim
    wanted = [x.shape[i - added] if side == -1 else side for i, side in enumerate(shape)]
    return jnp.broadcast_to(x, wanted)


@operation("expand_as")
def _expand_as(context: Any, x: Array, other: Array) -> Array:
    return jnp.broadcast_to(x, other.shape)


@operation("repeat")
def _repeat(context: Any, x: Array, times: Sequence[int]) -> Array:
    return jnp.tile(x, times)


@operation("cat", "concat")
def _cat(context: Any, arrays: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate(arrays, dim)


@operation("stack")
def _stack(context: Any, arrays: Sequence[Array], dim: int = 0) -> Array:
    return jnp.stack(arrays, dim)


@operation("split", "split_with_sizes")
def _split(context: Any, x: Array, size: Any, dim: int = 0) -> list[Array]:
    sizes = range(size, x.shape[dim], size) if isinstance(size, int) else jnp.cumsum(jnp.asarray(size[:-1])).tolist()
    return jnp.split(x, list(sizes), dim)


@operation("chunk")
def _chunk(context: Any, x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(context, x, -(-x.shape[dim] // chunks), dim)


@operation("unbind")
def _unbind(context: Any, x: Array, dim: int = 0) -> list[Array]:
    return [jnp.take(x, i, dim) for i in range(x.shape[dim])]


@operation("select")
def _select(context: Any, x: Array, dim: int, index: int) -> Array:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@operation("slice")
def _slice(context: Any, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    cut: list[Any] = [slice(None)] * x.ndim
    cut[dim] = slice(start, end, step)
    return x[tuple(cut)]


@operation("flip")
def _flip(context: Any, x: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(x, dims)


@operation("pad", "constant_pad_nd")
def _pad(context: Any, x: Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Array:
    if mode != "constant":
        raise Unsupported(f"padding of mode {mode!r}")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return jax.lax.pad(x, jnp.asarray(value or 0, x.dtype), [(low, high, 0) for low, high in widths])


# sums ---------------------------------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(context: Any, x: Array, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Array:
        axes = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
        return function(x, axis=axes, keepdims=keepdim)

    return reduce


for _name, _function in {"mean": jnp.mean, "sum": jnp.sum, "amax": jnp.max, "amin": jnp.min, "prod": jnp.prod,
                         "logsumexp": jax.nn.logsumexp, "all": jnp.all, "any": jnp.any}.items():  # fmt: skip
    operation(_name)(_reduction(_function))


@operation("max")
def _max(context: Any, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return x.max()
    return x.max(dim, keepdims=keepdim), x.argmax(dim, keepdims=keepdim)


@operation("argmax")
def _argmax(context: Any, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return x.argmax(dim, keepdims=keepdim)


@operation("var")
def _var(context: Any, x: Array, dim: Any = None, unbiased: Any = True, keepdim: bool = False, **kwargs: Any) -> Array:
    correction = kwargs.get("correction", int(unbiased))
    return x.var(tuple(dim) if isinstance(dim, list | tuple) else dim, ddof=int(correction), keepdims=keepdim)


@operation("linalg_vector_norm")
def _norm(context: Any, x: Array, ord: float = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Array:
    return jnp.linalg.norm(x, ord, tuple(dim) if isinstance(dim, list | tuple) else dim, keepdim)


@operation("einsum")
def _einsum(context: Any, equation: str, arrays: Sequence[Array], **kwargs: Any) -> Array:
    return jnp.einsum(equation, *arrays)


# arrays out of nothing ----------------------------------------------------------------------------------------------


def _kind(context: Any, dtype: str | None) -> Any:
    """A type of PyTorch's: floating-point numbers are in the model's precision."""
    return (
        context.dtype
        if dtype is None or "float" in dtype
        else {"bool": bool, "long": "int32", "int64": "int32"}.get(dtype, dtype)
    )


@operation("zeros", "new_zeros")
def _zeros(context: Any, *args: Any, dtype: str | None = None, **kwargs: Any) -> Array:
    return jnp.zeros(args[-1], _kind(context, dtype))


@operation("ones", "new_ones")
def _ones(context: Any, *args: Any, dtype: str | None = None, **kwargs: Any) -> Array:
    return jnp.ones(args[-1], _kind(context, dtype))


@operation("full")
def _full(context: Any, shape: Sequence[int], value: Any, *, dtype: str | None = None, **kwargs: Any) -> Array:
    return jnp.full(shape, value, _kind(context, dtype))


@operation("zeros_like")
def _zeros_like(context: Any, x: Array, **kwargs: Any) -> Array:
    return jnp.zeros_like(x)


@operation("ones_like")
def _ones_like(context: Any, x: Array, **kwargs: Any) -> Array:
    return jnp.ones_like(x)


@operation("arange")
def _arange(context: Any, *limits: Any, dtype: str | None = None, **kwargs: Any) -> Array:
    whole = all(isinstance(limit, int) for limit in limits) and (dtype is None or "float" not in dtype)
    return jnp.arange(*limits, dtype=jnp.int32 if whole else context.dtype)


@operation("to", "_to_copy", "type_as")
def _to(context: Any, x: Array, *args: Any, dtype: str | None = None, **kwargs: Any) -> Array:
    wanted = dtype or next((arg for arg in args if isinstance(arg, str)), None)
    if args and hasattr(args[0], "dtype"):
        return x.astype(args[0].dtype)
    return x if wanted is None else x.astype(_kind(context, wanted))


@operation("tril")
def _tril(context: Any, x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@operation("triu")
def _triu(context: Any, x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@operation("nothing", layout=True)
def _nothing(context: Any, *args: Any, **kwargs: Any) -> None:
    """Assertions about shapes, which hold for the example that was traced."""
