"""Subspaces that the inputs of clients span, and the angles between them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.algorithms.helpers.decompositions import eigh, orthonormalize
from fedtailor.algorithms.helpers.own_steps import pass_over_samples
from fedtailor.protocol import Batch, LocalTrainer

_ITERATIONS = 40
"""Iterations of the subspace iteration. Each is a pass over a client's inputs.

The error of a vector with singular value s decreases as (s' / s)^80, where s' is the
largest singular value outside of the iterated subspace.
"""
_EXTRA_VECTORS = 4
"""Vectors that are iterated in addition to the requested ones, for a smaller s'."""
_BATCH = 64
"""The batches of these passes."""


def leading_vectors(
    local: LocalTrainer, classes: int, features: int, vectors: int, least: int
) -> Float[Array, "classes p features"]:
    """The leading right singular vectors of one client's inputs, class by class.

    With X_c [n_c, features] the inputs of class c, these are the eigenvectors of X_c'
    X_c with the largest eigenvalues. They are computed by subspace iteration, which
    needs the memory of a batch and a few vectors only.

    Args:
        local: the client.
        classes: the number of classes.
        features: the number of features of an input.
        vectors: p, the number of vectors for each class.
        least: the number of examples from which a class has vectors.

    Returns:
        The vectors as rows. A class with fewer than p directions has rows of zeros, and
        one of fewer than `least` examples nothing else.
    """
    width = min(vectors + _EXTRA_VECTORS, features)
    dtype = local.draw("pacfl", 0, 1).x.dtype

    def times_gram(
        basis: Float[Array, "classes features w"],
    ) -> Float[Array, "classes features w"]:
        """X_c' X_c V_c for the basis V_c of each class, in one pass over the data."""

        def add(total: Array, batch: Batch, index: Int[Array, ""]) -> Array:
            # X_c' X_c V_c is a sum over samples x of x (x' V_c), with their weights, which
            # are 0 for padding.
            x = batch.x.reshape(len(batch.x), -1)  # [b, features]
            products = jnp.einsum("bf,bfw->bw", x, basis[batch.y])
            products = products * batch.weight[:, None].astype(dtype)
            return total.at[batch.y].add(x[:, :, None] * products[:, None])

        zero = jnp.zeros_like(basis)
        return pass_over_samples(local, zero, add, _BATCH, purpose="pacfl")

    def iterate(_: Any, basis: Array) -> Array:
        # Without orthonormalisation all columns would converge to the first vector.
        return jax.vmap(orthonormalize)(times_gram(basis))

    start = jax.random.normal(jax.random.key(0), (features, width), dtype)
    start = jnp.broadcast_to(orthonormalize(start), (classes, features, width))
    basis = local.fori_loop(_ITERATIONS, iterate, start)
    # Rayleigh-Ritz: the singular vectors within the subspace follow from the
    # eigenvectors of V' X' X V. `eigh` sorts them in ascending order; [::-1] puts the
    # largest first.
    projected = jnp.einsum("cfv,cfw->cvw", basis, times_gram(basis))
    eigenvalues, rotation = jax.vmap(eigh)(projected)
    singular_vectors = jnp.einsum("cfv,cvw->cwf", basis, rotation)[:, ::-1]
    eigenvalues = eigenvalues[:, ::-1]
    # A class does not have the directions whose eigenvalues are rounding errors of the
    # largest one.
    rounding = jnp.finfo(dtype).eps * features * eigenvalues[:, :1]
    is_direction = eigenvalues[:, :vectors] > rounding

    def count(total: Array, batch: Batch, index: Int[Array, ""]) -> Array:
        return total.at[batch.y].add(batch.weight > 0)

    examples = pass_over_samples(
        local, jnp.zeros(classes, jnp.int32), count, _BATCH, purpose="pacfl"
    )
    is_direction &= (examples >= least)[:, None]
    return jnp.where(is_direction[:, :, None], singular_vectors[:, :vectors], 0)


def principal_angles(
    one: Float[np.ndarray, "classes p features"],
    others: Float[np.ndarray, "m classes p features"],
) -> Float[np.ndarray, "m n"]:
    """Principal angles between one client's subspaces and those of other clients.

    Args:
        one: the bases of one client.
        others: the bases of m other clients.

    Returns:
        Angles in degrees [m, classes * p]; NaN where one of the two clients has no such
        direction. All angles are 90 for clients that have no class in common.
    """
    # The cosines of the principal angles are the singular values of U_ic' U_jc [p, p].
    products = np.einsum("cpf,mcqf->mcpq", one, others)
    cosines = np.linalg.svd(products, compute_uv=False)
    angles = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
    # Two subspaces have as many angles as the smaller one has dimensions. A row of
    # zeros does not count as a dimension.
    dimensions = (one != 0).any(axis=-1).sum(axis=-1)  # [classes]
    other_dimensions = (others != 0).any(axis=-1).sum(axis=-1)  # [m, classes]
    rank = np.minimum(dimensions, other_dimensions)
    beyond_rank = np.arange(cosines.shape[-1]) >= rank[..., None]
    angles[beyond_rank] = np.nan
    angles = angles.reshape(len(others), -1)
    has_no_common_class = np.isnan(angles).all(axis=1)
    angles[has_no_common_class] = 90.0
    return angles


def joint_subspaces(
    bases: Float[np.ndarray, "c classes p features"],
) -> Float[np.ndarray, "c 1 n features"]:
    """One subspace for each client, the span of the vectors of all its classes.

    Returns:
        Orthonormal rows, and rows of zeros beyond the dimension of the span.
    """
    stacked = bases.reshape(len(bases), 1, -1, bases.shape[-1])
    _, singular_values, rows = np.linalg.svd(stacked, full_matrices=False)
    is_direction = singular_values[..., None] > 1e-6
    return np.where(is_direction, rows, 0.0)
