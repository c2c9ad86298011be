"""Decompositions in a client's program: of one matrix at a time, as batches of them can
block all threads of the devices (PACFL on 28 x 28 images hung on two devices).
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.algorithms.helpers.decompositions import eigh, orthonormalize
from fedtailor.models.pytorch.elementwise import _matrix_exp

LIBRARY = {"qr": lambda a: jnp.linalg.qr(a)[0], "eigh": jnp.linalg.eigh}
OWN = {"qr": orthonormalize, "eigh": eigh}


def decomposed(jaxpr: Any) -> Iterator[int]:
    """The number of dimensions of what each decomposition in a program decomposes."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in (
            "qr",
            "geqrf",
            "householder_product",
            "eigh",
            "lu",
        ):
            yield equation.invars[0].aval.ndim
        for value in jax.tree.leaves(tuple(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from decomposed(inner)


def dimensions(function: Callable, matrices: jax.Array) -> set[int]:
    """As `decomposed`, where `function` is mapped over classes and over clients."""
    mapped = jax.vmap(jax.vmap(function))
    return set(decomposed(jax.make_jaxpr(mapped)(matrices).jaxpr))


@pytest.mark.parametrize("name", sorted(OWN))
def test_no_batch_of_matrices_is_decomposed(name: str) -> None:
    matrices = jnp.ones((2, 3, 5, 5))
    assert dimensions(LIBRARY[name], matrices) == {4}
    assert dimensions(OWN[name], matrices) == {2}


def test_exponentials_of_converted_modules_are_computed_one_by_one() -> None:
    matrices = jax.random.normal(jax.random.key(0), (2, 3, 4, 4))
    library = jax.scipy.linalg.expm
    assert set(decomposed(jax.make_jaxpr(library)(matrices).jaxpr)) == {4}
    assert set(decomposed(jax.make_jaxpr(_matrix_exp)(matrices).jaxpr)) == {2}
    np.testing.assert_array_equal(_matrix_exp(matrices), library(matrices))


def test_decompositions_are_those_of_the_library() -> None:
    matrices = np.random.default_rng(0).normal(size=(2, 3, 7, 5)).astype(np.float32)
    found = jax.vmap(jax.vmap(orthonormalize))(matrices)
    np.testing.assert_array_equal(found, jnp.linalg.qr(matrices)[0])
    grams = np.einsum("abnk,abnl->abkl", matrices, matrices)
    for mine, theirs in zip(
        jax.vmap(jax.vmap(eigh))(grams), jnp.linalg.eigh(grams), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
