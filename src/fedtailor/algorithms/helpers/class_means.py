"""The mean features of each class, which clients send and servers train on."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.algorithms.helpers.own_steps import mean_over, pass_over_samples
from fedtailor.protocol import (
    SGD,
    Answers,
    Batch,
    ClientRows,
    HiddenRows,
    LocalTrainer,
    ModelParts,
    Params,
    StepGradient,
)

T = TypeVar("T")

IS_SEEN, IS_SEEN_IN_SUM = 1e-6, 1e-4
"""Above this share of a client's rows (or of all rows) a class is there: of open vectors,
and of sums behind masks, whose noise is some hundredths of it.
"""

ABSENT = -1e30
"""Added to the score of a class that a client does not have.

The probability of the class is then 0, and it contributes no gradient.
"""

WHY_SUMS_SHOW_CLIENTS = (
    "a client that has rows of one class only changes nothing, so that a sum of models can be"
    " what one client changed"
)
"""`Algorithm.sums_show_clients` of a method that adds `ABSENT`."""


def require_classes(model: ModelParts, needed_for: str) -> None:
    """Require that a model has classes.

    Args:
        model: what is trained.
        needed_for: what the method does with classes, for the message.
    """
    require(
        model.classification,
        f"{needed_for}, and this model has none; choose another method",
    )


def require_no_private_steps(method: str, sent: str, *steps: SGD) -> None:
    """Require training without noise, which what a method sends besides would undo.

    Args:
        method: its name.
        sent: what it sends, for the message.
        steps: all trainings of a client.
    """
    require(
        all(sgd.dp_noise is None for sgd in steps),
        f"{method} sends {sent}, which private steps do not cover; leave out dp_noise",
    )


def require_server_steps(server_lr: float, **numbers: int) -> None:
    """Require a rate of a server's steps of 0 or more, and numbers of 1 or more."""
    require(server_lr >= 0, f"server_lr is {server_lr}; it must be 0 or more")
    for name, value in numbers.items():
        require(value >= 1, f"{name} is {value}; it must be 1 or more")


def number_of_classes(theta: Float[Array, " d"], local: LocalTrainer) -> int:
    """The number of scores that a client's model gives."""
    example = local.draw("classes", 0, 1)
    return jax.eval_shape(local.logits, theta, example.x).shape[-1]


def class_counts(
    classes: int, batch_size: int, local: LocalTrainer
) -> Float[Array, " classes"]:
    """The number of a client's training examples of each class."""

    def add(counts: Array, batch: Batch, step: Int[Array, ""]) -> Array:
        labels = jax.nn.one_hot(batch.y, classes, dtype=batch.weight.dtype)
        return counts + batch.weight @ labels

    weight_type = local.draw("classes", 0, 1).weight.dtype
    return pass_over_samples(local, jnp.zeros(classes, weight_type), add, batch_size)


def class_sums(
    w: Float[Array, " d"],
    classes: int,
    batch_size: int,
    local: LocalTrainer,
    *,
    columns: Callable[[Float[Array, "b size"]], Float[Array, "b _"]] = lambda z: z,
) -> Float[Array, "classes _"]:
    """Sums of a client's features by class, and numbers of examples, divided by n_i.

    The features are those of evaluation.

    Args:
        w: the client's model.
        classes: the number of classes.
        batch_size: of the pass over the training samples.
        local: the client's data.
        columns: what of the features is added up; by default they themselves.

    Returns:
        [classes, columns + 1], with the numbers of examples in the last column.
    """
    params = local.params(w)
    numbers = jnp.arange(classes)

    def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
        local.count_work(forwards=1)
        added = of(batch.x)
        is_class = (batch.y == numbers[:, None]) * batch.weight
        return total + is_class.astype(added.dtype) @ added

    def of(x: Array) -> Array:
        z = local.features(params, x, training=False)
        z = columns(z.reshape(len(z), -1))
        return jnp.concatenate([z, jnp.ones((len(z), 1), z.dtype)], axis=1)

    added = jax.eval_shape(of, local.draw("class means", 0, 1).x)
    total = jnp.zeros((classes, added.shape[1]), added.dtype)
    total = pass_over_samples(local, total, add, batch_size)
    return total / jnp.maximum(local.total(), 1)


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


def least_share(sent: ClientRows) -> float:
    """The share of all rows above which sums of clients' vectors say that a class is there.

    Args:
        sent: the vectors.
    """
    return IS_SEEN_IN_SUM if isinstance(sent, HiddenRows) else IS_SEEN


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


@jax.jit
def train_head(
    head: Float[Array, " d_head"],
    weight: Int[Array, "features classes"],
    bias: Int[Array, " _"],
    z: Float[Array, "n features"],
    y: Int[Array, " n"],
    batches: tuple[Int[Array, "steps b"], Float[Array, "steps b"]],
    rate: Float[Array, ""] | float,
) -> Float[Array, " d_head"]:
    """The head after the server's steps on examples (z, y).

    Args:
        head: before them.
        weight, bias: where its numbers are.
        z, y: features and classes.
        batches: rows of z, and their weights.
        rate: of the steps.
    """

    def loss(head: Array, rows: Array, weights: Array) -> Array:
        outputs = z[rows] @ head[weight]
        if bias.size:
            outputs = outputs + head[bias]
        logs = jax.nn.log_softmax(outputs)
        losses = -jnp.take_along_axis(logs, y[rows][:, None], axis=1)[:, 0]
        return mean_over(losses, weights.astype(losses.dtype))

    start = head.astype(z.dtype)
    trained = descend(start, jax.grad(loss), batches, rate)
    return trained.astype(head.dtype)


def gradient_with_pull(
    prototypes: Float[Array, "classes _"], lam: float | Array, local: LocalTrainer
) -> StepGradient:
    """The gradient of F_i(w) + lam mean_x |z - C_y|^2 / size on a batch.

    Args:
        prototypes: the mean features C of each class, and in the last column 1 for
            classes that have one, 0 for others, which pull nothing.
        lam: the weight of the distance.
        local: the client.
    """

    def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        local.count_work(gradients=1)
        of_class = prototypes[batch.y]
        targets, is_known = of_class[:, :-1], of_class[:, -1]

        def loss(params: Params) -> Float[Array, ""]:
            z = local.features(params, batch.x)
            losses = local.losses(local.head_outputs(params, z), batch.y, batch.weight)
            apart = jnp.square(z.reshape(len(z), -1) - targets).mean(axis=1)
            return mean_over(losses + lam * is_known * apart, batch.weight)

        return jax.grad(loss)(params)

    return gradient
