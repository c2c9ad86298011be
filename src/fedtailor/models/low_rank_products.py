"""Networks whose weights are W + B A, run without ever adding B A to W.

A product x (W + B A) is computed as x W + (x A) B. So training has no copy of W and no
gradient of its size, and takes about two thirds of the products.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, Float

from fedtailor.models.tree_paths import path_of


@dataclass(frozen=True)
class LowRankSum:
    """A weight W plus B A.

    Attributes:
        weight: W, of any number of axes.
        a: A, with the axes of W but `axis`, after its first one, which is the rank.
        b: B [outputs, rank].
        axis: the axis of W that are the outputs.
    """

    weight: Array
    a: Float[Array, "rank ..."]
    b: Float[Array, "outputs rank"]
    axis: int

    @cached_property
    def total(self) -> Array:
        """W + B A."""
        product = jnp.tensordot(self.b, self.a, 1)
        return self.weight + jnp.moveaxis(product, 0, self.axis)

    def transposed(self, permutation: Sequence[int]) -> "LowRankSum":
        """With its axes in another order."""
        axis = permutation.index(self.axis)
        order = [0]
        for old in permutation:
            if old != self.axis:
                order.append(1 + old - (old > self.axis))
        return LowRankSum(
            self.weight.transpose(permutation), self.a.transpose(order), self.b, axis
        )

    def reshaped(self, shape: tuple[int, ...]) -> "LowRankSum | None":
        """With other axes of inputs; None if the axis of outputs would change."""
        outputs = len(self.b)
        last = self.weight.ndim - 1
        if self.axis == last and shape[-1:] == (outputs,):
            axis, inputs = len(shape) - 1, shape[:-1]
        elif self.axis == 0 and shape[:1] == (outputs,):
            axis, inputs = 0, shape[1:]
        else:
            return None
        a = self.a.reshape(len(self.a), *inputs)
        return LowRankSum(self.weight.reshape(shape), a, self.b, axis)

    def astype(self, dtype: Any) -> "LowRankSum":
        """In another type."""
        weight, a, b = (each.astype(dtype) for each in (self.weight, self.a, self.b))
        return LowRankSum(weight, a, b, self.axis)


Factors = tuple[Float[Array, "rank inputs"], Float[Array, "outputs rank"], bool]
"""A, B, and whether the outputs are the last axis of W, else its first one."""


def run_adapted(
    function: Callable[[Any], Any], network: Any, factors: Mapping[str, Factors]
) -> Any:
    """Compute a function of a network to some of whose weights products are added.

    Args:
        function: network -> any tree.
        network: with the weights W.
        factors: the path of a weight -> what is added to it.

    Returns:
        The function's result for the network with W + B A in the place of each W, up to
        rounding; to the bit if all B are zero.
    """
    arrays, rest = eqx.partition(network, eqx.is_array)
    fixed: list[Any] = []

    def outputs_of(arrays: Any) -> Any:
        outputs, others = eqx.partition(
            function(eqx.combine(arrays, rest)), eqx.is_array
        )
        fixed.append(others)
        return outputs

    program, shapes = jax.make_jaxpr(outputs_of, return_shape=True)(arrays)
    inputs: list[Any] = []
    for place, array in jax.tree_util.tree_leaves_with_path(arrays):
        found = factors.get(path_of(place))
        inputs.append(array if found is None else low_rank_sum(array, *found))
    outputs = map(_total, _evaluate(program.jaxpr, program.consts, inputs))
    return eqx.combine(
        jax.tree.unflatten(jax.tree.structure(shapes), list(outputs)), fixed[-1]
    )


def low_rank_sum(
    weight: Array,
    a: Float[Array, "rank inputs"],
    b: Float[Array, "outputs rank"],
    is_last: bool,
) -> LowRankSum:
    """W + B A, where W may have several axes of inputs.

    Args:
        weight: W.
        a, b: A and B.
        is_last: whether the outputs are the last axis of W, else its first one.
    """
    inputs = weight.shape[:-1] if is_last else weight.shape[1:]
    axis = weight.ndim - 1 if is_last else 0
    return LowRankSum(weight, a.reshape(len(a), *inputs), b, axis)


def _total(value: Any) -> Array:
    """The numbers of a value."""
    return value.total if isinstance(value, LowRankSum) else value


def _evaluate(
    program: Jaxpr, constants: Sequence[Any], inputs: Sequence[Any]
) -> list[Any]:
    """Run a traced program on values; some of them are sums of products."""
    values: dict[Any, Any] = dict(zip(program.constvars, constants, strict=True))
    values.update(zip(program.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in program.eqns:
        arguments = [read(atom) for atom in equation.invars]
        values.update(zip(equation.outvars, _step(equation, arguments), strict=True))
    return [read(atom) for atom in program.outvars]


def _step(equation: JaxprEqn, arguments: list[Any]) -> list[Any]:
    """The outputs of one step of a program."""
    if any(isinstance(argument, LowRankSum) for argument in arguments):
        inner = equation.params.get("jaxpr")
        if equation.primitive.name == "jit" and isinstance(inner, ClosedJaxpr):
            return _evaluate(inner.jaxpr, inner.consts, arguments)
        rule = _RULES.get(equation.primitive.name)
        found = None if rule is None else rule(equation, *arguments)
        if found is not None:
            return [found]
    bound = equation.primitive.get_bind_params(equation.params)
    # JAX returned the functions of a step apart from its parameters once.
    functions, parameters = bound if isinstance(bound, tuple) else ((), bound)
    numbers = map(_total, arguments)
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*functions, *numbers, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


# what each step makes of a sum of products; None = the step needs all its numbers
# --------------------------------------------------------------------------------------


def _convert(equation: JaxprEqn, value: LowRankSum) -> LowRankSum:
    return value.astype(equation.params["new_dtype"])


def _transpose(equation: JaxprEqn, value: LowRankSum) -> LowRankSum:
    return value.transposed(equation.params["permutation"])


def _reshape(equation: JaxprEqn, value: LowRankSum) -> LowRankSum | None:
    return value.reshaped(equation.params["new_sizes"])


def _dot(equation: JaxprEqn, left: Any, right: Any) -> Array | None:
    (left_axes, right_axes), batch = equation.params["dimension_numbers"]
    if batch != ((), ()) or (
        isinstance(left, LowRankSum) and isinstance(right, LowRankSum)
    ):
        return None
    options = {
        name: equation.params[name] for name in ("precision", "preferred_element_type")
    }
    is_left = isinstance(left, LowRankSum)
    weight, x = (left, right) if is_left else (right, left)
    weight_axes, x_axes = (
        (left_axes, right_axes) if is_left else (right_axes, left_axes)
    )

    def product(one: Array, other: Array, one_axes: Any, other_axes: Any) -> Array:
        axes = tuple(one_axes), tuple(other_axes)
        return jax.lax.dot_general(one, other, (axes, ((), ())), **options)

    inputs = [axis for axis in range(weight.weight.ndim) if axis != weight.axis]
    if sorted(weight_axes) == inputs:
        # All inputs are summed over, so that x A has the rank as its last axis.
        a_axes = [1 + axis - (axis > weight.axis) for axis in weight_axes]
        first, second = (weight.a, a_axes), (weight.b, [1])
    elif tuple(weight_axes) == (weight.axis,):
        first, second = (weight.b, [0]), (weight.a, [0])
    else:
        return None
    narrow = product(x, first[0], x_axes, first[1]).astype(x.dtype)
    rank = [narrow.ndim - 1]
    if is_left:
        whole = product(weight.weight, x, weight_axes, x_axes)
        return whole + product(second[0], narrow, second[1], rank)
    whole = product(x, weight.weight, x_axes, weight_axes)
    return whole + product(narrow, second[0], rank, second[1])


def _convolve(equation: JaxprEqn, x: Any, kernel: Any) -> Array | None:
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    groups = parameters["feature_group_count"], parameters["batch_group_count"]
    if isinstance(x, LowRankSum) or groups != (1, 1):
        return None
    if kernel.axis != numbers.rhs_spec[0]:
        return None
    convolve = equation.primitive.bind
    narrow = convolve(x, jnp.moveaxis(kernel.a, 0, kernel.axis), **parameters)
    channels = numbers.out_spec[1]
    change = jnp.tensordot(narrow.astype(x.dtype), kernel.b, ((channels,), (1,)))
    whole = convolve(x, kernel.weight, **parameters)
    return whole + jnp.moveaxis(change, -1, channels).astype(whole.dtype)


_RULES: dict[str, Callable[..., Any]] = {
    "convert_element_type": _convert,
    "transpose": _transpose,
    "reshape": _reshape,
    "dot_general": _dot,
    "conv_general_dilated": _convolve,
}
"""The name of a step -> (step, its arguments) -> its output."""
