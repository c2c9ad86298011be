"""Host functions as JAX operations that run immediately, in the calling thread.

`jax.pure_callback` always compiles a program: it logs a traceback for every error, and
may wait for a thread that it occupies itself (jax-ml/jax issue 24255). The operation of
this module is never compiled.
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

HostFunction = Callable[..., Sequence[NDArray[Any]]]
"""(arrays) -> arrays."""


def host_call(
    function: HostFunction,
    shapes: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[Any],
) -> list[jax.Array]:
    """Call a function of NumPy arrays with JAX arrays.

    Under `jax.vmap` it is called for one element after another.

    Args:
        function: arrays -> arrays.
        shapes: the shapes and dtypes of the arrays that it returns.
        arrays: its arguments.

    Returns:
        The arrays that the function returns, as JAX arrays.

    Raises:
        ValueError: the call is part of a compiled program.
        NotDifferentiable: a derivative of the call is computed.
    """
    return _primitive.bind(*arrays, function=function, shapes=tuple(shapes))


# A JAX primitive has rules for evaluation, for abstract evaluation (of shapes), for
# batching, for differentiation and for compilation. The last two raise an error that says
# what to do.
_primitive = Primitive("pytorch")
_primitive.multiple_results = True


@_primitive.def_impl
def _call(*arrays: Any, function: HostFunction, shapes: Any) -> list[jax.Array]:
    results = function(*map(np.asarray, arrays))
    return [
        jnp.asarray(array, shape.dtype)
        for array, shape in zip(results, shapes, strict=True)
    ]


@_primitive.def_abstract_eval
def _shapes(*arrays: Any, function: HostFunction, shapes: Any) -> list[Any]:
    return [ShapedArray(shape.shape, shape.dtype) for shape in shapes]


def _one_by_one(
    arrays: Sequence[Any], axes: Sequence[int | None], **parameters: Any
) -> Any:
    """The rule for `jax.vmap`: call the function for each index of the batch axis, and
    stack the results.
    """
    size = next(
        array.shape[axis]
        for array, axis in zip(arrays, axes, strict=True)
        if axis is not None
    )
    results = []
    for index in range(size):
        arguments = []
        for array, axis in zip(arrays, axes, strict=True):
            if axis is not None:
                array = jax.lax.index_in_dim(array, index, axis, keepdims=False)
            arguments.append(array)
        results.append(_primitive.bind(*arguments, **parameters))
    stacked = [jnp.stack(rows) for rows in zip(*results, strict=True)]
    return stacked, [0] * len(stacked)


def _not_compiled(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "a model that PyTorch itself runs cannot be part of a compiled program; call it"
        " outside of jax.jit, or inside `with jax.disable_jit():`"
    )


class NotDifferentiable(TypeError):
    """A derivative of a `host_call`, such as that of a model's gradient, is computed."""


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise NotDifferentiable(
        "derivatives of what PyTorch computes go through TorchEngine, once only"
    )


batching.primitive_batchers[_primitive] = _one_by_one
ad.primitive_jvps[_primitive] = _no_derivative
mlir.register_lowering(_primitive, _not_compiled)
