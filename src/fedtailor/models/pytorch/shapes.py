"""PyTorch's operations that reshape, reduce, create and convert arrays, in JAX."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from fedtailor.models.pytorch.layout import FeatureMaps, Value, torch_layout
from fedtailor.models.pytorch.operations import Context, Unsupported, operation


@operation("sym_size", layout=True)
def _size(context: Context, x: Value, dim: int) -> int:
    return x.shape[dim]


@operation("view", "reshape", "_unsafe_view")
def _reshape(context: Context, x: Array, shape: Sequence[int]) -> Array:
    return x.reshape(shape)


@operation("flatten", layout=True)
def _flatten(context: Context, x: Value, start: int = 0, end: int = -1) -> Array:
    if isinstance(x, FeatureMaps) and start == 1 and end in (-1, 3):
        return x.array.reshape(-1, x.array.shape[-1]).T
    array: Array = torch_layout(x)
    start = start % array.ndim
    end = end % array.ndim
    merged = math.prod(array.shape[start : end + 1])
    return array.reshape(*array.shape[:start], merged, *array.shape[end + 1 :])


@operation("unflatten")
def _unflatten(context: Context, x: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim = dim % x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@operation("permute")
def _permute(context: Context, x: Array, dims: Sequence[int]) -> Array:
    return x.transpose(dims)


@operation("transpose")
def _transpose(context: Context, x: Array, first: int, second: int) -> Array:
    return jnp.swapaxes(x, first, second)


@operation("t", "numpy_T")
def _t(context: Context, x: Array) -> Array:
    return x.T


@operation("unsqueeze")
def _unsqueeze(context: Context, x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


@operation("squeeze")
def _squeeze(context: Context, x: Array, dim: Any = None) -> Array:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


@operation("expand")
def _expand(context: Context, x: Array, shape: Sequence[int], **kwargs: Any) -> Array:
    # -1 means that the axis keeps its size. Axes are added in front.
    sizes = (*shape[: len(shape) - x.ndim], *x.shape)
    new_shape = [
        size if new == -1 else new for new, size in zip(shape, sizes, strict=True)
    ]
    return jnp.broadcast_to(x, new_shape)


@operation("expand_as")
def _expand_as(context: Context, x: Array, other: Array) -> Array:
    return jnp.broadcast_to(x, other.shape)


@operation("repeat")
def _repeat(context: Context, x: Array, times: Sequence[int]) -> Array:
    return jnp.tile(x, times)


@operation("cat", "concat")
def _cat(context: Context, arrays: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate(arrays, dim)


@operation("stack")
def _stack(context: Context, arrays: Sequence[Array], dim: int = 0) -> Array:
    return jnp.stack(arrays, dim)


@operation("split", "split_with_sizes")
def _split(context: Context, x: Array, size: Any, dim: int = 0) -> list[Array]:
    if isinstance(size, int):
        return jnp.split(x, list(range(size, x.shape[dim], size)), dim)
    return jnp.split(x, list(itertools.accumulate(size[:-1])), dim)


@operation("chunk")
def _chunk(context: Context, x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(context, x, -(-x.shape[dim] // chunks), dim)


@operation("unbind")
def _unbind(context: Context, x: Array, dim: int = 0) -> list[Array]:
    return [jnp.take(x, i, dim) for i in range(x.shape[dim])]


@operation("select")
def _select(context: Context, x: Array, dim: int, index: int) -> Array:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@operation("index")
def _index(context: Context, x: Array, indices: Sequence[Any]) -> Array:
    # None stands for a whole axis.
    return x[tuple(slice(None) if index is None else index for index in indices)]


@operation("one_hot")
def _one_hot(context: Context, x: Array, classes: int = -1) -> Array:
    if classes < 0:
        raise Unsupported("one_hot without a number of classes")
    return jax.nn.one_hot(x, classes, dtype="int32")


@operation("slice")
def _slice(
    context: Context,
    x: Array,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Array:
    cut: list[Any] = [slice(None)] * x.ndim
    cut[dim] = slice(start, end, step)
    return x[tuple(cut)]


@operation("flip")
def _flip(context: Context, x: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(x, dims)


@operation("pad", "constant_pad_nd")
def _pad(
    context: Context,
    x: Array,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Array:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    if mode != "constant":
        modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        if mode not in modes:
            raise Unsupported(f"padding of mode {mode!r}")
        return jnp.pad(x, widths, modes[mode])
    return jax.lax.pad(
        x, jnp.asarray(value or 0, x.dtype), [(low, high, 0) for low, high in widths]
    )


# reductions
# --------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(
        context: Context,
        x: Array,
        dim: Any = None,
        keepdim: bool = False,
        **kwargs: Any,
    ) -> Array:
        axes = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
        return function(x, axis=axes, keepdims=keepdim)

    return reduce


for _name, _function in {
    "mean": jnp.mean,
    "sum": jnp.sum,
    "amax": jnp.max,
    "amin": jnp.min,
    "prod": jnp.prod,
    "logsumexp": jax.nn.logsumexp,
    "all": jnp.all,
    "any": jnp.any,
}.items():
    operation(_name)(_reduction(_function))


@operation("max")
def _max(context: Context, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return x.max()
    return x.max(dim, keepdims=keepdim), x.argmax(dim, keepdims=keepdim)


@operation("argmax")
def _argmax(
    context: Context, x: Array, dim: int | None = None, keepdim: bool = False
) -> Array:
    return x.argmax(dim, keepdims=keepdim)


@operation("var")
def _var(
    context: Context,
    x: Array,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    **kwargs: Any,
) -> Array:
    correction = kwargs.get("correction", int(unbiased))
    return x.var(
        tuple(dim) if isinstance(dim, list | tuple) else dim,
        ddof=int(correction),
        keepdims=keepdim,
    )


@operation("std")
def _std(context: Context, x: Array, *args: Any, **kwargs: Any) -> Array:
    return jnp.sqrt(_var(context, x, *args, **kwargs))


@operation("cumsum")
def _cumsum(context: Context, x: Array, dim: int, **kwargs: Any) -> Array:
    return jnp.cumsum(x, dim)


@operation("linalg_vector_norm")
def _norm(
    context: Context,
    x: Array,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    **kwargs: Any,
) -> Array:
    return jnp.linalg.norm(
        x, ord, tuple(dim) if isinstance(dim, list | tuple) else dim, keepdim
    )


@operation("einsum")
def _einsum(
    context: Context, equation: str, arrays: Sequence[Array], **kwargs: Any
) -> Array:
    return jnp.einsum(equation, *arrays)


# creation and conversion
# --------------------------------------------------------------------------------------


def _dtype(context: Context, dtype: str | None) -> DTypeLike:
    """JAX's dtype for one of PyTorch's; floating-point types become the model's."""
    if dtype is None or "float" in dtype:
        return context.dtype
    return {"bool": bool, "long": "int32", "int64": "int32"}.get(dtype, dtype)


@operation("zeros", "new_zeros")
def _zeros(
    context: Context, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.zeros(args[-1], _dtype(context, dtype))


@operation("ones", "new_ones")
def _ones(
    context: Context, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.ones(args[-1], _dtype(context, dtype))


@operation("full")
def _full(
    context: Context,
    shape: Sequence[int],
    value: Any,
    *,
    dtype: str | None = None,
    **kwargs: Any,
) -> Array:
    return jnp.full(shape, value, _dtype(context, dtype))


@operation("zeros_like")
def _zeros_like(context: Context, x: Array, **kwargs: Any) -> Array:
    return jnp.zeros_like(x)


@operation("ones_like")
def _ones_like(context: Context, x: Array, **kwargs: Any) -> Array:
    return jnp.ones_like(x)


@operation("arange")
def _arange(
    context: Context, *limits: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    is_integer = all(isinstance(limit, int) for limit in limits) and (
        dtype is None or "float" not in dtype
    )
    return jnp.arange(*limits, dtype=jnp.int32 if is_integer else context.dtype)


@operation("to", "_to_copy", "type_as")
def _to(
    context: Context, x: Array, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    if args and hasattr(args[0], "dtype"):
        return x.astype(args[0].dtype)
    new = dtype or next((arg for arg in args if isinstance(arg, str)), None)
    return x if new is None else x.astype(_dtype(context, new))


@operation("tril")
def _tril(context: Context, x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@operation("triu")
def _triu(context: Context, x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@operation("nothing", layout=True)
def _nothing(context: Context, *args: Any, **kwargs: Any) -> None:
    """Does nothing: for assertions about shapes, which hold for the traced example."""
