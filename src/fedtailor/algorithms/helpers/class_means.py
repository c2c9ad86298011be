"""The mean features of each class, which clients send and servers train on."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor.algorithms.helpers.own_steps import pass_over_samples
from fedtailor.protocol import Answers, Batch, LocalTrainer

T = TypeVar("T")

IS_SEEN = 1e-6
"""Above this share of a client's rows (or of all rows) a class is there. Sums of
fixed-point numbers may leave a little of nothing.
"""


def class_sums(
    w: Float[Array, " d"], classes: int, batch_size: int, local: LocalTrainer
) -> Float[Array, "classes _"]:
    """Sums of a client's features by class, and numbers of examples, divided by n_i.

    The features are those of evaluation.

    Args:
        w: the client's model.
        classes: the number of classes.
        batch_size: of the pass over the training samples.
        local: the client's data.

    Returns:
        [classes, size + 1], with the numbers of examples in the last column.
    """
    params = local.params(w)
    numbers = jnp.arange(classes)

    def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
        local.count_work(forwards=1)
        z = local.features(params, batch.x, training=False)
        z = z.reshape(len(z), -1)
        ones = jnp.ones((len(z), 1), z.dtype)
        is_class = (batch.y == numbers[:, None]) * batch.weight
        return total + is_class.astype(z.dtype) @ jnp.concatenate([z, ones], axis=1)

    example = local.draw("class means", 0, 1)
    z = jax.eval_shape(local.features, params, example.x)
    total = jnp.zeros((classes, int(np.prod(z.shape[1:])) + 1), z.dtype)
    total = pass_over_samples(local, total, add, batch_size)
    return total / jnp.maximum(local.size, 1)


def means_of_clients(
    answers: Answers, kind: str, classes: int
) -> tuple[Float[np.ndarray, "rc size"], Bool[np.ndarray, " rc"]]:
    """The mean features of each class of each reporter, from `class_sums`.

    Args:
        answers: the clients' answers.
        kind: the kind of message that has the sums.
        classes: the number of classes.

    Returns:
        The means, in the order of clients, each in the order of classes; and whether the
        client has the class. The mean of a class that it does not have is zero.
    """
    sent = answers.reporters(kind)
    sums = sent.reshape(len(sent) * classes, sent.shape[1] // classes)
    features, counts = sums[:, :-1], sums[:, -1:]
    is_seen = counts > IS_SEEN
    means = np.where(is_seen, features / np.where(is_seen, counts, 1), 0)
    return means, is_seen[:, 0]


def batches_of(
    order: Int[np.ndarray, "epochs n"], capacity: int, batch_size: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The batches of several passes over n rows.

    Args:
        order: the rows in the order of each pass.
        capacity: the number of rows, n or more, for which a program is compiled. Batches
            beyond n have weight 0, so that one program serves all n.
        batch_size: the number of rows in a batch.

    Returns:
        The rows of each batch [steps, batch_size], and their weights, which are 0 for
        padding.
    """
    epochs, n = order.shape
    steps = -(-capacity // batch_size)
    rows = np.zeros((epochs, steps * batch_size), np.int64)
    weights = np.zeros(rows.shape)
    rows[:, :n], weights[:, :n] = order, 1
    return rows.reshape(-1, batch_size), weights.reshape(-1, batch_size)


def descend(
    params: T,
    gradient: Callable[[T, Array, Array], T],
    batches: tuple[Int[Array, "steps b"], Float[Array, "steps b"]],
    rate: float | Array,
) -> T:
    """Plain SGD on a server, with the gradient(params, rows, weights) of each batch."""

    def step(params: T, batch: tuple[Array, Array]) -> tuple[T, None]:
        change = gradient(params, *batch)
        return jax.tree.map(lambda w, g: w - rate * g, params, change), None

    return jax.lax.scan(step, params, batches)[0]
