"""Exponentials and logarithms that are the same to the bit on every machine.

Those of NumPy and SciPy differ in the last digit from one kind of processor to another. In an
exact sum over machines that would show which rows lie on the other kind. These are made of
sums, products and quotients, which IEEE 754 rounds alike everywhere; their last digit is right
but for one or two.
"""

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

_LARGEST, _SMALLEST = 709.0, -745.0
# ln 2 in two parts (fdlibm); products of the first with whole numbers to 2^20 are exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_EXP = [1 / math.factorial(power) for power in range(14)]
_ATANH = [1 / (2 * power + 1) for power in range(19)]


def exp(x: Float[NDArray, "*shape"]) -> Float[NDArray, "*shape"]:
    """e^x; from 709 on infinite, and below -745 0."""
    within = np.clip(np.nan_to_num(x), _SMALLEST, _LARGEST)
    power = np.rint(within / math.log(2))
    rest = (within - power * _LN2_HIGH) - power * _LN2_LOW
    # Taylor's series: |rest| is at most 0.35.
    value = np.ldexp(_polynomial(_EXP, rest), power.astype(np.int32))
    value = np.where(x >= _LARGEST, np.inf, np.where(x <= _SMALLEST, 0.0, value))
    return np.where(np.isnan(x), np.nan, value)


def log(x: Float[NDArray, "*shape"]) -> Float[NDArray, "*shape"]:
    """The logarithm of numbers above 0."""
    part, power = np.frexp(x)
    # From sqrt(1/2) to sqrt(2).
    is_small = part < math.sqrt(0.5)
    part, power = np.where(is_small, 2 * part, part), power - is_small
    return power * _LN2_HIGH + (power * _LN2_LOW + _atanh2((part - 1) / (part + 1)))


def expit(x: Float[NDArray, "*shape"]) -> Float[NDArray, "*shape"]:
    """1 / (1 + e^-x)."""
    small = exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1 + small)


def softplus(x: Float[NDArray, "*shape"]) -> Float[NDArray, "*shape"]:
    """log(1 + e^x)."""
    small = exp(-np.abs(x))
    return np.maximum(x, 0) + _atanh2(small / (2 + small))


def log_softmax(x: Float[NDArray, "n classes"]) -> Float[NDArray, "n classes"]:
    """Logarithms of probabilities, of logits."""
    apart = x - x.max(axis=1, keepdims=True)
    # Class after class, as sums over an axis have no fixed order.
    total = np.zeros(len(x))
    for column in exp(apart).T:
        total = total + column
    return apart - log(total)[:, np.newaxis]


def _atanh2(z: Float[NDArray, "*shape"]) -> Float[NDArray, "*shape"]:
    """log((1 + z) / (1 - z)) for |z| up to 1/3."""
    return 2 * z * _polynomial(_ATANH, z * z)


def _polynomial(
    coefficients: list[float], x: Float[NDArray, "*shape"]
) -> Float[NDArray, "*shape"]:
    """By Horner's rule."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
