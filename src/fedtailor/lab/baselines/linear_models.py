"""Coefficients of each client as models that can be kept, exported and used."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.lab.baselines.baseline import KeptModels
from fedtailor.models import Model, linear

Coefficients = tuple[Float[NDArray, "inputs outputs"], Float[NDArray, " outputs"]]
"""Weights, and what is added."""


def kept_linear(
    clients: Sequence[Coefficients],
    shared: Coefficients | None,
    like: Model,
    chosen: Mapping[str, Any],
) -> KeptModels:
    """Linear models of clients.

    Args:
        clients: the coefficients of each client.
        shared: those of a client that did not train; None = there are none.
        like: a model of the same inputs and outputs.
        chosen: what was chosen on validation rows.
    """
    model = linear().bind(like.input_shape, like.outputs, like.loss)
    empty = model.params(jnp.zeros(model.size))

    def vector(of: Coefficients) -> NDArray[np.float32]:
        weights, added = (np.asarray(it, np.float32) for it in of)

        def placed(leaf: Any) -> NDArray[np.float32]:
            if leaf.ndim == 1:
                return added
            # Some layers hold the transposed matrix.
            return weights if leaf.shape == weights.shape else weights.T

        return np.asarray(model.vector(jax.tree.map(placed, empty)), np.float32)

    vectors = [vector(one) for one in clients]
    return KeptModels(
        model, vectors, None if shared is None else vector(shared), chosen
    )
