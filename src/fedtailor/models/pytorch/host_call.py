"""A function on the host as an operation of JAX that runs at once, in the calling
thread.

`jax.pure_callback` goes through a compiled program even where there is none: it answers
errors with a traceback in the log, and may wait for a thread that it occupies itself
(jax-ml/jax issue 24255). What stands here never compiles.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from numpy.typing import NDArray

Function = Callable[..., Sequence[NDArray[Any]]]
"""(arrays) -> arrays."""


def host_call(
    function: Function, shapes: Sequence[jax.ShapeDtypeStruct], arrays: Sequence[Any]
) -> list[jax.Array]:
    """Call a function of NumPy arrays with JAX arrays.

    Under `jax.vmap` it is called for one element after another.

    Args:
        function: arrays -> arrays of these shapes.
        shapes: of what it returns.
        arrays: what it is given.

    Returns:
        What the function returned, as JAX arrays.

    Raises:
        ValueError: a compiled program, or a derivative of the function, is asked for.
    """
    return _primitive.bind(*arrays, function=function, shapes=tuple(shapes))


# A primitive of JAX needs rules for what may happen to it: run, be given shapes only,
# be batched, be differentiated, be compiled. The last two end in an error that says
# what to do.
_primitive = Primitive("pytorch")
_primitive.multiple_results = True


@_primitive.def_impl
def _call(*arrays: Any, function: Function, shapes: Any) -> list[jax.Array]:
    found = function(*map(np.asarray, arrays))
    return [
        jnp.asarray(array, shape.dtype)
        for array, shape in zip(found, shapes, strict=True)
    ]


@_primitive.def_abstract_eval
def _shapes(*arrays: Any, function: Function, shapes: Any) -> list[Any]:
    return [ShapedArray(shape.shape, shape.dtype) for shape in shapes]


def _one_by_one(
    arrays: Sequence[Any], axes: Sequence[int | None], **parameters: Any
) -> Any:
    """The rule for `jax.vmap`: one call for each row of the arrays that have a batch
    axis, and the results stacked.
    """
    size = next(
        array.shape[axis]
        for array, axis in zip(arrays, axes, strict=True)
        if axis is not None
    )
    rows = []
    for row in range(size):
        of_row = []
        for array, axis in zip(arrays, axes, strict=True):
            of_row.append(
                array
                if axis is None
                else jax.lax.index_in_dim(array, row, axis, keepdims=False)
            )
        rows.append(_primitive.bind(*of_row, **parameters))
    columns = [jnp.stack(column) for column in zip(*rows, strict=True)]
    return columns, [0] * len(columns)


def _not_compiled(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "a model that PyTorch itself runs cannot be part of a compiled program; call it"
        " outside of jax.jit, or inside `with jax.disable_jit():`"
    )


class NotDifferentiable(TypeError):
    """A derivative of a `host_call` was asked for (of gradients of a model, say)."""


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise NotDifferentiable(
        "derivatives of what PyTorch computes go through TorchEngine, once only"
    )


batching.primitive_batchers[_primitive] = _one_by_one
ad.primitive_jvps[_primitive] = _no_derivative
mlir.register_lowering(_primitive, _not_compiled)
