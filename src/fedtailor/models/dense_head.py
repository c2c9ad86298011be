"""Where the weights of a model's head are, for servers that train heads."""

from dataclasses import dataclass, replace
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.models.model import Model
from fedtailor.protocol import ModelParts


@dataclass(frozen=True)
class DenseHead:
    """A head z -> z W + b, as indices of its part of theta.

    Attributes:
        weight: W [features, outputs].
        bias: b [outputs]; empty for a head without a bias.
    """

    weight: NDArray[np.int64]
    bias: NDArray[np.int64]


def dense_head_of(model: ModelParts, method: str) -> DenseHead:
    """The head of a model, or of all networks of clients with different ones.

    Args:
        model: a `Model`.
        method: the name of the method that needs it, for messages.

    Raises:
        ValueError: the head is not a dense layer, or the networks keep the numbers of
            their heads in different orders.
    """
    assert isinstance(model, Model)
    require_equal_heads(model, method)
    head = _dense_head(model.members[0])
    require(
        head is not None,
        f"{method} needs networks whose last layer is one dense layer, z W + b, and this"
        " one's is another; choose another network",
    )
    assert head is not None
    return head


def outputs_of_numbers(model: ModelParts, method: str) -> NDArray[np.int32]:
    """Which output each number of a head makes.

    Args:
        model: a `Model`.
        method: as for `dense_head_of`.

    Returns:
        [networks, d] the index of the output, for the numbers of each network's head; -1
        for all others.

    Raises:
        ValueError: a head is not a dense layer.
    """
    assert isinstance(model, Model)
    found = np.full((len(model.members), model.size), -1, np.int32)
    for row, member in zip(found, model.members, strict=True):
        head = _dense_head(member)
        require(
            head is not None,
            f"{method} needs networks whose last layer is one dense layer, z W + b, and"
            " this one's is another; choose another network",
        )
        assert head is not None
        part = member.part("head" if "head" in member.parts else "everything")
        outputs = np.arange(member.outputs)
        row[part.indices[head.weight]] = outputs
        row[part.indices[head.bias]] = outputs[: len(head.bias)]
    return found


def require_equal_heads(model: ModelParts, method: str) -> None:
    """Require that the networks of clients keep the numbers of their heads in one order,
    so that one head fits all.

    Args:
        model: a `Model`.
        method: as for `dense_head_of`.

    Raises:
        ValueError: they do not.
    """
    assert isinstance(model, Model)
    # One network is as its own head has it, whatever this is.
    if len(model.members) == 1:
        return
    first, *others = [_dense_head(member) for member in model.members]
    for other in others:
        if first is None or other is None:
            is_equal = first is other
        else:
            is_equal = np.array_equal(first.weight, other.weight)
            is_equal = is_equal and np.array_equal(first.bias, other.bias)
        require(
            is_equal,
            f"{method} shares the last layer, whose numbers these networks keep in"
            " different orders; take all networks from one library, with a bias in all"
            " or none",
        )


@lru_cache(maxsize=64)
def _dense_head(model: Model) -> DenseHead | None:
    """The head of one network; None if it is not a dense layer."""
    model = replace(model, dtype="float32")  # the order is the same in all types
    part = model.part("head" if "head" in model.parts else "everything")
    size, features = part.size, int(np.prod(model.feature_shape))
    # Each number of the head is given its place, from 1, as its value. Outputs for unit
    # vectors then show which number is where, digit by digit, as small whole numbers are
    # exact on every device.
    places = 1 + np.arange(size)

    def read(values: NDArray[np.int64], z: NDArray[np.float64]) -> NDArray[np.int64]:
        """The places of the numbers that are the outputs for features z."""
        found = np.zeros((len(z), model.outputs), np.int64)
        for digit in range(4):
            entries = (values >> (8 * digit)) & 255
            theta = np.zeros(model.size)
            theta[part.indices] = entries
            inputs = jnp.asarray(
                z.reshape(-1, *model.feature_shape), model.precision.sums
            )
            outputs = model.head_outputs(jnp.asarray(theta, inputs.dtype), inputs)
            if outputs.shape != found.shape:
                return found
            found += np.rint(np.asarray(outputs)).astype(np.int64) << (8 * digit)
        return found

    bias = read(places, np.zeros((1, features)))[0]
    values = np.where(np.isin(places, bias), 0, places)
    blocks = [
        read(values, np.eye(features)[start : start + 256])
        for start in range(0, features, 256)
    ]
    weight = np.concatenate(blocks)
    used = np.concatenate([weight.reshape(-1), bias if bias.any() else bias[:0]])
    # A dense layer has each number at one place.
    if not np.array_equal(np.sort(used), places):
        return None
    return DenseHead(weight - 1, bias[: len(used) - weight.size] - 1)
