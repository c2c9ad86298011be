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
from fedtailor.protocol import along_axis


@operation("sym_size", layout=True)
def _size(context: Context, x: Value, dim: int) -> int:
    return x.shape[dim]


@operation("view", "reshape", "_unsafe_view", layout=True)
def _reshape(context: Context, x: Value, shape: Sequence[int]) -> Array:
    if isinstance(x, FeatureMaps) and len(shape) == 2 and shape[0] == x.shape[0]:
        return x.array.reshape(-1, x.shape[0]).T
    return torch_layout(x).reshape(shape)


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
    # PyTorch takes an empty vector for an empty array of any shape (caches of keys).
    arrays = [array for array in arrays if array.shape != (0,)] or arrays
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


@operation("gather", "take_along_dim")
def _gather(context: Context, x: Array, dim: int, index: Array, **kwargs: Any) -> Array:
    # PyTorch reads only the first rows of the other axes.
    return x[_positions(index, dim)]


def _positions(index: Array, dim: int) -> tuple[Array, ...]:
    """The positions in an array that `gather` reads and `scatter` writes."""
    positions = list(jnp.indices(index.shape, sparse=True))
    positions[dim] = index
    return tuple(positions)


@operation("index_select")
def _index_select(context: Context, x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, dim)


@operation("scatter", "scatter_add")
def _scatter(
    context: Context, x: Array, dim: int, index: Array, source: Any, **kwargs: Any
) -> Array:
    if kwargs:
        raise Unsupported("scatter with reduce")
    if hasattr(source, "shape"):
        source = source[tuple(map(slice, index.shape))]
    at = x.at[_positions(index, dim)]
    return at.add(source) if context.operation_name == "scatter_add" else at.set(source)


@operation("index_put")
def _index_put(
    context: Context,
    x: Array,
    indices: Sequence[Any],
    values: Any,
    accumulate: bool = False,
) -> Array:
    at = x.at[tuple(slice(None) if index is None else index for index in indices)]
    return at.add(values) if accumulate else at.set(values)


@operation("index_add")
def _index_add(
    context: Context, x: Array, dim: int, index: Array, source: Array, alpha: float = 1
) -> Array:
    rows = jnp.moveaxis(x, dim, 0).at[index].add(alpha * jnp.moveaxis(source, dim, 0))
    return jnp.moveaxis(rows, 0, dim)


@operation("select_scatter")
def _select_scatter(
    context: Context, x: Array, source: Array, dim: int, index: int
) -> Array:
    return x.at[_along(x, dim, index)].set(source)


@operation("slice_scatter")
def _slice_scatter(
    context: Context,
    x: Array,
    source: Array,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Array:
    return x.at[_along(x, dim, slice(start, end, step))].set(source)


def _along(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    """An index of one axis, and all of the others."""
    cut: list[Any] = [slice(None)] * x.ndim
    cut[dim] = index
    return tuple(cut)


@operation("copy")
def _copy(context: Context, x: Array, source: Array, *rest: Any) -> Array:
    return jnp.broadcast_to(source, x.shape).astype(x.dtype)


@operation("fill")
def _fill(context: Context, x: Array, value: Any) -> Array:
    return jnp.full_like(x, value)


@operation("diagonal")
def _diagonal(
    context: Context, x: Array, offset: int = 0, first: int = 0, second: int = 1
) -> Array:
    return jnp.diagonal(x, offset, first, second)


@operation("unfold")
def _unfold(context: Context, x: Array, dim: int, size: int, step: int) -> Array:
    dim = dim % x.ndim
    starts = range(0, x.shape[dim] - size + 1, step)
    rows = [jax.lax.slice_in_dim(x, start, start + size, axis=dim) for start in starts]
    return jnp.moveaxis(jnp.stack(rows, dim), dim + 1, -1)


@operation("roll")
def _roll(context: Context, x: Array, shifts: Any, dims: Any = ()) -> Array:
    if not dims:
        return jnp.roll(x, shifts)
    return jnp.roll(x, tuple(shifts), tuple(dims))


@operation("repeat_interleave")
def _repeat_interleave(
    context: Context, x: Array, times: int, dim: int | None = None, **kwargs: Any
) -> Array:
    if not isinstance(times, int):
        raise Unsupported("repeat_interleave with one number for each entry")
    return jnp.repeat(x, times, dim)


@operation("channel_shuffle")
def _channel_shuffle(context: Context, x: Array, groups: int) -> Array:
    b, c, *rest = x.shape
    return x.reshape(b, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)


@operation("meshgrid")
def _meshgrid(
    context: Context, arrays: Sequence[Array], *, indexing: str = "ij"
) -> list[Array]:
    return jnp.meshgrid(*arrays, indexing=indexing)


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
    return x[_along(x, dim, slice(start, end, step))]


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


OVER_EXAMPLES = ("mean", "sum", "var", "std")
"""Reductions that leave padding out. Their argument `examples` holds those of the reduced
axes along which examples lie.
"""


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(
        context: Context,
        x: Array,
        dim: Any = None,
        keepdim: bool = False,
        **kwargs: Any,
    ) -> Array:
        return function(x, axis=_axes(dim), keepdims=keepdim)

    return reduce


def _axes(dim: Any) -> Any:
    """The axes that a reduction names, as JAX takes them; () and None are all."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


for _name, _function in {
    "amax": jnp.max,
    "amin": jnp.min,
    "prod": jnp.prod,
    "logsumexp": jax.nn.logsumexp,
    "all": jnp.all,
    "any": jnp.any,
}.items():
    operation(_name)(_reduction(_function))


@operation("mean", "sum")
def _mean(
    context: Context,
    x: Array,
    dim: Any = None,
    keepdim: bool = False,
    *,
    examples: Sequence[int] = (),
    **kwargs: Any,
) -> Array:
    is_example = _is_example(context, x, examples)
    total = jnp.sum(x, _axes(dim), keepdims=keepdim, where=is_example)
    if context.operation_name == "sum":
        return total
    if is_example is None:
        return jnp.mean(x, _axes(dim), keepdims=keepdim)
    return total / jnp.maximum(_count(x, _axes(dim), is_example), 1)


def _is_example(context: Context, x: Array, axes: Sequence[int]) -> Array | None:
    """Whether entries are of an example and not of padding, for reductions over axes along
    which examples lie.
    """
    if context.weight is None or not axes:
        return None
    (axis,) = axes
    return along_axis(context.weight > 0, axis, x.ndim)


def _count(x: Array, axes: Any, is_example: Array) -> Array:
    """How many entries of examples a reduction over some axes adds up."""
    axes = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    entries = math.prod(x.shape[axis] for axis in axes)
    return is_example.mean(dtype=x.dtype) * entries


@operation("max", "min")
def _extreme(context: Context, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
    is_max = context.operation_name == "max"
    if dim is None:
        return x.max() if is_max else x.min()
    if hasattr(dim, "shape"):
        return jnp.maximum(x, dim) if is_max else jnp.minimum(x, dim)
    # The derivative goes to one of several equal entries.
    index = (x.argmax if is_max else x.argmin)(dim, keepdims=True)
    values = jnp.take_along_axis(x, index, dim)
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


@operation("sort")
def _sort(
    context: Context,
    x: Array,
    dim: int = -1,
    descending: bool = False,
    **kwargs: Any,
) -> tuple[Array, Array]:
    index = jnp.argsort(x, dim, descending=descending)
    return jnp.take_along_axis(x, index, dim), index


@operation("argsort")
def _argsort(
    context: Context,
    x: Array,
    dim: int = -1,
    descending: bool = False,
    **kwargs: Any,
) -> Array:
    return jnp.argsort(x, dim, descending=descending)


@operation("topk")
def _topk(
    context: Context, x: Array, k: int, dim: int = -1, largest: bool = True, *_: Any
) -> tuple[Array, Array]:
    index = jnp.argsort(x, dim, descending=largest)
    index = jax.lax.slice_in_dim(index, 0, k, axis=dim)
    return jnp.take_along_axis(x, index, dim), index


@operation("median")
def _median(
    context: Context, x: Array, dim: int | None = None, keepdim: bool = False
) -> Any:
    x, axis = (x.reshape(-1), 0) if dim is None else (x, dim)
    values, index = _sort(context, x, axis)
    middle = (x.shape[axis] - 1) // 2
    values, index = (
        jax.lax.index_in_dim(array, middle, axis, keepdim) for array in (values, index)
    )
    return values if dim is None else (values, index)


@operation("argmax", "argmin")
def _argmax(
    context: Context, x: Array, dim: int | None = None, keepdim: bool = False
) -> Array:
    function = x.argmax if context.operation_name == "argmax" else x.argmin
    return function(dim, keepdims=keepdim)


@operation("var")
def _var(
    context: Context,
    x: Array,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    examples: Sequence[int] = (),
    **kwargs: Any,
) -> Array:
    correction = kwargs.get("correction", int(unbiased))
    correction = 1 if correction is None else correction
    is_example, axes = _is_example(context, x, examples), _axes(dim)
    if is_example is None:
        return x.var(axes, ddof=correction, keepdims=keepdim)
    count = _count(x, axes, is_example)
    total = x.sum(axes, keepdims=True, where=is_example)
    squares = jnp.square(x - total / jnp.maximum(count, 1))
    # A batch that is all padding has a variance of 0.
    divisor = jnp.where(count > 0, count - correction, 1)
    return squares.sum(axes, keepdims=keepdim, where=is_example) / divisor


@operation("std")
def _std(context: Context, x: Array, *args: Any, **kwargs: Any) -> Array:
    return safe_sqrt(_var(context, x, *args, **kwargs))


@operation("var_mean")
def _var_mean(
    context: Context, x: Array, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> tuple[Array, Array]:
    axes = _axes(dim)
    variance = _var(context, x, axes, keepdim=keepdim, **kwargs)
    return variance, jnp.mean(x, axes, keepdims=keepdim)


def safe_sqrt(x: Array) -> Array:
    """The square root, with PyTorch's derivative of norms at 0, which is 0."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


@operation("cumsum", "cumprod")
def _cumulated(context: Context, x: Array, dim: int, **kwargs: Any) -> Array:
    if context.operation_name == "cumprod":
        return jnp.cumprod(x, dim)
    return jnp.cumsum(x, dim)


@operation("diff")
def _diff(
    context: Context,
    x: Array,
    n: int = 1,
    dim: int = -1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    if x.dtype == bool:
        parts = [part for part in (prepend, x, append) if part is not None]
        x = jnp.concatenate(parts, dim)
        before = jax.lax.slice_in_dim(x, 0, -1, axis=dim)
        return jnp.not_equal(jax.lax.slice_in_dim(x, 1, None, axis=dim), before)
    return jnp.diff(x, n, dim, prepend, append)


@operation("linalg_vector_norm", "norm")
def _norm(
    context: Context,
    x: Array,
    ord: float | None = 2,
    dim: Any = None,
    keepdim: bool = False,
    **kwargs: Any,
) -> Array:
    axes = _axes(dim)
    if ord in (None, 2):
        # The derivative at 0 is 0, and JAX's would be NaN.
        return safe_sqrt(jnp.square(x).sum(axes, keepdims=keepdim))
    magnitudes = jnp.where(x == 0, 0, jnp.abs(x))
    if ord == 1:
        return magnitudes.sum(axes, keepdims=keepdim)
    if axes is None:
        x, axes = x.reshape(-1), 0
    return jnp.linalg.norm(x, ord, axes, keepdim)


@operation("einsum")
def _einsum(
    context: Context, equation: str, arrays: Sequence[Array], **kwargs: Any
) -> Array:
    return jnp.einsum(equation, *arrays)


# creation and conversion
# --------------------------------------------------------------------------------------


def dtype_of(context: Context, dtype: str | None, *like: Any) -> DTypeLike:
    """JAX's dtype for one of PyTorch's; floating-point types become the model's.

    Args:
        context: of the run.
        dtype: None = that of the first array of `like`, or floating-point numbers.
        like: the arguments of the operation.
    """
    if dtype is None:
        first = like[0] if like else None
        return getattr(first, "dtype", context.dtype)
    if "float" in dtype:
        return context.dtype
    return {"bool": bool, "long": "int32", "int64": "int32"}.get(dtype, dtype)


@operation("zeros", "new_zeros", "empty", "new_empty")
def _zeros(
    context: Context, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.zeros(args[-1], dtype_of(context, dtype, *args))


@operation("ones", "new_ones")
def _ones(
    context: Context, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.ones(args[-1], dtype_of(context, dtype, *args))


@operation("full", "new_full")
def _full(
    context: Context, *args: Any, dtype: str | None = None, **kwargs: Any
) -> Array:
    shape, value = args[-2:]
    new = dtype_of(context, dtype, *args)
    if dtype is None and context.operation_name == "full":
        kinds: dict[type, Any] = {bool: bool, int: "int32"}
        new = kinds.get(type(value), context.dtype)
    return jnp.full(shape, value, new)


@operation("full_like")
def _full_like(
    context: Context, x: Array, value: Any, *, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.full_like(x, value, dtype_of(context, dtype, x))


@operation("scalar_tensor")
def _scalar_tensor(
    context: Context, value: Any, *, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.asarray(value, dtype_of(context, dtype))


@operation("eye")
def _eye(
    context: Context, *sizes: int, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.eye(*sizes, dtype=dtype_of(context, dtype))


@operation("linspace")
def _linspace(
    context: Context,
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: str | None = None,
    **kwargs: Any,
) -> Array:
    return jnp.linspace(start, end, steps, dtype=dtype_of(context, dtype))


@operation("zeros_like", "empty_like")
def _zeros_like(
    context: Context, x: Array, *, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.zeros_like(x, dtype_of(context, dtype, x))


@operation("ones_like")
def _ones_like(
    context: Context, x: Array, *, dtype: str | None = None, **kwargs: Any
) -> Array:
    return jnp.ones_like(x, dtype_of(context, dtype, x))


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
    return x if new is None else x.astype(dtype_of(context, new))


# Fourier transforms
# --------------------------------------------------------------------------------------


@operation("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft")
def _fourier(
    context: Context, x: Array, n: int | None = None, dim: int = -1, norm: Any = None
) -> Array:
    function = getattr(jnp.fft, context.operation_name.removeprefix("fft_"))
    return function(x, n, dim, norm)


@operation("fft_fft2", "fft_ifft2", "fft_rfft2", "fft_fftn", "fft_ifftn", "fft_rfftn")
def _fourier_axes(
    context: Context, x: Array, sizes: Any = None, dims: Any = None, norm: Any = None
) -> Array:
    name = context.operation_name.removeprefix("fft_")
    if dims is None:
        dims = (-2, -1) if name.endswith("2") else range(x.ndim)
    function = getattr(jnp.fft, name.replace("2", "n"))
    return function(x, sizes, tuple(dims), norm)


@operation("tril")
def _tril(context: Context, x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@operation("triu")
def _triu(context: Context, x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@operation("nothing", layout=True)
def _nothing(context: Context, *args: Any, **kwargs: Any) -> None:
    """Does nothing: for assertions about shapes, which hold for the traced example."""
