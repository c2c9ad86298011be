"""Decompositions of matrices in the program of a client, one matrix at a time.

On CPUs, JAX computes the matrices of a batch in parallel, and the thread that runs a
client's program waits for them. If every device does so at once, no thread is left to
compute them, and training hangs. `jax.vmap` makes batches, and so does an executor that
trains several clients at the same time. Under both, these functions become loops.
"""

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float


@sequential_vmap
def orthonormalize(matrix: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Orthonormal columns that span the columns of a matrix with n >= k."""
    return jnp.linalg.qr(matrix)[0]


@sequential_vmap
def eigh(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """The eigenvalues of a symmetric matrix, ascending, and its eigenvectors (columns)."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors
