"""Small federations with known solutions, and functions that run methods on them.

All tests use these few shapes, so that they share compiled programs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor import models
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.executors import DeviceExecutor, Settings
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Training
from fedtailor.engine.training.asynchronous import AsynchronousServer
from fedtailor.engine.training.participation import Participation
from fedtailor.models import Model
from fedtailor.models.layered import Layered
from fedtailor.models.layers import Dense, InitStream, Relu, Reshape, Stack
from fedtailor.models.normalization import BatchNorm
from fedtailor.protocol import (
    Algorithm,
    Answers,
    ClientRows,
    Cohort,
    Mixture,
    drive,
)

BATCH = 8
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
"""Tolerances for float64."""
ROUNDED: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
"""Tolerances for float32."""


@contextmanager
def float64() -> Iterator[None]:
    """Enables double precision inside a `with` block."""
    with jax.enable_x64(True):
        yield


def zeros(key: Array, size: int) -> Float[Array, " size"]:
    """An initial model of zeros."""
    return jnp.zeros(size)


def shifted(key: Array, size: int) -> Float[Array, " size"]:
    """An initial model that depends on the key."""
    return jax.random.normal(key, (size,))


def constant(theta: Float[Array, " d"], x: Float[Array, "b 0"]) -> Float[Array, "b d"]:
    """A model that ignores its inputs and returns its parameters."""
    return jnp.broadcast_to(theta, (len(x), *theta.shape))


def quadratic_loss(
    outputs: Float[Array, "b d"], y: Float[Array, "b 2*d"]
) -> Float[Array, " b"]:
    """(outputs - a)^T A (outputs - a) / 2 with diagonal A and y = [diag(A), a]."""
    curvature, a = jnp.split(y, 2, axis=-1)
    return 0.5 * (curvature * jnp.square(outputs - a)).sum(-1)


_INITS = {
    (kind, size): partial(kind, size=size)
    for kind in (zeros, shifted)
    for size in (1, 2, 3)
}


def quadratic_model(size: int, init: Any = zeros) -> Model:
    """The model theta [size] for `quadratics`, with the loss `quadratic_loss`.

    All problems of one size share one compiled program.

    Example:
        >>> from fedtailor.testing import quadratic_model
        >>> quadratic_model(2).size
        2
    """
    return models.from_function(_INITS[init, size], constant).bind(
        (0,), size, loss=quadratic_loss, dtype="float64"
    )


def quadratics(
    a: ArrayLike,
    curvature: ArrayLike = 1.0,
    sizes: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    unseen: ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> Federation:
    """Clients with objectives f_i(theta) = sum_k curvature_ik (theta_k - a_ik)^2 / 2.

    All samples of a client are equal, so that each batch gives the full gradient and
    closed forms hold for any batch size.

    Args:
        a: minimizers, [clients] or [clients, size].
        curvature: curvatures, broadcast to the shape of `a`; [clients] is one number
            for each client.
        sizes: numbers of samples. By default they differ and are not multiples of
            `BATCH`.
        groups, unseen, names: see `Federation`.

    Example:
        >>> from fedtailor.testing import quadratics
        >>> len(quadratics([[0.0, 1.0], [2.0, 3.0]]))
        2
    """
    a = np.atleast_2d(np.asarray(a, float).T).T
    curvature = np.broadcast_to(
        np.reshape(curvature, (-1, 1)) if np.ndim(curvature) == 1 else curvature,
        a.shape,
    )
    clients = len(a)
    sizes = np.asarray([3 + 5 * i for i in range(clients)] if sizes is None else sizes)
    y = np.repeat(np.concatenate([curvature, a], axis=1), sizes, axis=0)
    rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    return Federation(
        x=np.zeros((len(y), 0)),
        y=y,
        train=Ragged.of(rows),
        val=Ragged.empty(clients),
        test=Ragged.empty(clients),
        names=tuple(names or (f"client {i}" for i in range(clients))),
        groups=None if groups is None else np.asarray(groups),
        unseen=np.zeros(clients, bool) if unseen is None else np.asarray(unseen),
    )


def classification(
    clients: int = 5,
    sizes: ArrayLike | None = None,
    seed: int = 0,
    groups: ArrayLike | None = None,
    unseen: ArrayLike | None = None,
    test: int = 6,
    val: int = 5,
    same: bool = False,
    public: int = 9,
) -> Federation:
    """Clients with Gaussian inputs [4] and 3 classes, each with another labelling.

    Args:
        clients: number of clients.
        sizes: numbers of training samples, different by default.
        seed: random seed.
        groups, unseen: see `Federation`.
        test: test samples of each client.
        val: validation samples of each client.
        same: whether all clients have the same data.
        public: inputs of the public set; 0 = there is none.

    Example:
        >>> from fedtailor.testing import classification
        >>> len(classification(clients=3))
        3
    """
    rng = np.random.default_rng(seed)
    sizes = np.asarray([11 + 6 * i for i in range(clients)] if sizes is None else sizes)
    x, y, rows_of_splits = [], [], ([], [], [])
    start = 0
    for size in sizes:
        client_rng = np.random.default_rng(seed + 1) if same else rng
        inputs = client_rng.normal(size=(size + val + test, 4))
        scores = inputs @ client_rng.normal(size=(4, 3))
        noise = client_rng.normal(size=(len(inputs), 3))
        labels = (scores + 0.3 * noise).argmax(1)
        splits = ((0, size), (size, size + val), (size + val, len(inputs)))
        for rows_of_split, (begin, end) in zip(rows_of_splits, splits, strict=True):
            rows_of_split.append(start + np.arange(begin, end))
        x.append(inputs)
        y.append(labels)
        start += len(inputs)
    train_rows, val_rows, test_rows = rows_of_splits
    inputs = np.random.default_rng(seed + 2).normal(size=(public, 4))
    return Federation(
        x=np.concatenate(x),
        y=np.concatenate(y),
        train=Ragged.of(train_rows),
        val=Ragged.of(val_rows),
        test=Ragged.of(test_rows),
        names=tuple(f"client {i}" for i in range(clients)),
        groups=None if groups is None else np.asarray(groups),
        unseen=np.zeros(clients, bool) if unseen is None else np.asarray(unseen),
        classes=3,
        public=inputs if public else None,
    )


def softmax_model(dtype: Literal["float32", "float64"] = "float64") -> Model:
    """Softmax regression for `classification`.

    Example:
        >>> from fedtailor.testing import softmax_model
        >>> softmax_model("float32").size
        15
    """
    return models.logistic().bind((4,), 3, dtype=dtype)


def mlp_model() -> Model:
    """A network with a body and a head for `classification`."""
    return models.mlp(hidden=5).bind((4,), 3, dtype="float64")


@dataclass(frozen=True)
class Normalized(Layered):
    """Batch normalisation between two dense layers."""

    width: int = 4

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        size, width = math.prod(input_shape), self.width
        layers = [
            Dense(size, width, stream),
            BatchNorm(width),
            Relu(),
            Dense(width, outputs, stream),
        ]
        return Stack(layers if input_shape == (size,) else [Reshape((size,)), *layers])


def normalized_model() -> Model:
    """A network with batch normalisation for `classification`."""
    return Normalized().bind((4,), 3, dtype="float64")


def train(
    algorithm: Algorithm,
    federation: Federation,
    model: Model,
    rounds: int,
    *,
    seed: int = 0,
    participation: Participation | None = None,
    asynchronous: AsynchronousServer | None = None,
    **settings: Any,
) -> Training[DeviceExecutor]:
    """Runs the probe and `rounds` rounds of a training, without evaluations.

    Example:
        >>> from fedtailor.testing import quadratic_model, quadratics, train
        >>> import jax
        >>> with jax.enable_x64(True):
        ...     clients, model = quadratics([[0.0], [2.0]]), quadratic_model(1)
        ...     print(train(ft.FedAvg(), clients, model, rounds=2).round)
        2
    """
    participation = participation or Participation()
    training = simulate(
        algorithm,
        federation,
        model,
        seed=seed,
        participation=participation,
        asynchronous=asynchronous,
        settings=Settings(**settings),
    )
    training.probe()
    for _ in range(rounds):
        training.advance()
    return training


def personal(training: Training[DeviceExecutor]) -> NDArray[Any]:
    """The personal models [m, d] of all seen clients, in the federation's order."""
    return by_place(training, training.predictors(training.serve()))


def predictors(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The predictors of all clients, seen and unseen, in the federation's order.

    Returns:
        The arrays [m, ...] of the predictors.

    Raises:
        AssertionError: weights of a mixture are negative, or do not sum to 1.

    Example:
        >>> from fedtailor.testing import predictors, quadratic_model, quadratics, train
        >>> import jax
        >>> with jax.enable_x64(True):
        ...     clients, model = quadratics([[0.0], [2.0]]), quadratic_model(1)
        ...     print(len(predictors(train(ft.Local(), clients, model, rounds=2))))
        1
    """
    executor, by_client = training.executor, None
    for table in (executor.seen, executor.unseen):
        groups = drive(training.serve_clients(table, np.arange(len(table))), executor)
        for served in groups:
            predictor = training.predictors(served)
            if isinstance(predictor, Mixture):
                _require_convex(np.asarray(predictor.weights))
            leaves = jax.tree.leaves(predictor)
            by_client = by_client or [
                np.full((len(executor.federation), *leaf.shape[1:]), np.nan)
                for leaf in leaves
            ]
            for target, leaf in zip(by_client, leaves, strict=True):
                target[table.original_index[served.cohort.rows]] = leaf
    assert by_client is not None
    return by_client


def _require_convex(weights: NDArray[np.floating]) -> None:
    """Assert that each client's weights [c, k] of a mixture are at least 0 and sum to 1."""
    wrong = (np.abs(weights.sum(axis=1) - 1) > 1e-6) | (weights < 0).any(axis=1)
    assert not wrong.any(), (
        f"a mixture has the weights {weights[wrong][0].tolist()}; they must be at least 0,"
        " and sum to 1"
    )


def by_place(training: Training[DeviceExecutor], rows: ArrayLike) -> NDArray[Any]:
    """Permutes rows over the population from id order to the federation's order."""
    by_client = np.empty_like(np.asarray(rows))
    by_client[np.argsort(np.argsort(training.population.original_index))] = rows
    return by_client


def answers_of(cohort: Cohort, **arrays: Any) -> Answers:
    """The answers of a cohort whose clients sent these arrays [c, ...]."""
    rows = np.arange(len(cohort))
    return Answers(
        cohort.reporting,
        {kind: ClientRows(jnp.asarray(value), rows) for kind, value in arrays.items()},
    )


def assert_absent_keep_their_state(
    training: Training[DeviceExecutor], rounds: int = 3
) -> None:
    """Asserts that each round changes exactly the states of the reporters."""
    for _ in range(rounds):
        is_reporter = training.participation.sample(
            training.population.ids, training.seed, training.round
        )
        assert 0 < is_reporter.sum() < len(is_reporter)
        before = [
            np.array(leaf) for leaf in jax.tree.leaves(training.executor.client_states)
        ]
        training.advance()
        changed = np.zeros(len(is_reporter), bool)
        for old, new in zip(
            before, jax.tree.leaves(training.executor.client_states), strict=True
        ):
            changed |= (
                (old != np.asarray(new)).reshape(len(is_reporter), -1).any(axis=1)
            )
        np.testing.assert_array_equal(changed, is_reporter)
