"""Steps in training mode: running statistics are renewed and nothing else moves them;
dropout in every method.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    softmax_model,
    train,
)
from fedtailor.algorithms import (
    APFL,
    CGPFL,
    DAPPER,
    MAPPER,
    MOON,
    FedAvg,
    FedDBE,
    FedEM,
    FedProx,
    FedRoD,
    Local,
    PerFedAvg,
    PFedMe,
)
from fedtailor.models.layered import Layered
from fedtailor.models.layers import Dense, Dropout, Relu, Reshape, Stack
from fedtailor.models.normalization import BatchNorm
from fedtailor.protocol import SGD, hyperparameters


@dataclass(frozen=True)
class Normal(Layered):
    """Batch normalisation between two dense layers; the gradient of a part of a batch
    would be another one.
    """

    micro_batch = 4

    def network(self, input_shape, outputs, stream):
        layers = [
            Dense(input_shape[0], 4, stream),
            BatchNorm(4),
            Relu(),
            Dense(4, outputs, stream),
        ]
        return Stack(layers)


@dataclass(frozen=True)
class Dropping(Layered):
    """Logistic regression that may drop half of its inputs."""

    drops: bool

    def network(self, input_shape, outputs, stream):
        dropout = [Dropout(0.5)] if self.drops else []
        return Stack(
            [Reshape(input_shape), *dropout, Dense(input_shape[0], outputs, stream)]
        )


@hyperparameters
class Weighed(FedAvg):
    """`FedAvg` by a gradient of its own, which is the usual one."""

    def client(self, state, inbox, local):
        gradient = lambda params, batch, step: local.batch_gradient(params, batch)  # noqa: E731
        return state, {
            "model": local.sgd(inbox.only("model"), self.sgd, gradient=gradient)
        }


def bound(architecture, federation, dtype="float64"):
    return architecture.bind(federation.input_shape, federation.classes, dtype=dtype)


def by_hand(model, theta, x, y, sgd, steps, anchor=None):
    """`steps` full-batch steps of SGD, and running statistics by the layer itself."""
    statistics = model.statistics

    def loss(theta):
        outputs, renewed = model.train_outputs(model.params(theta), x, jnp.ones(len(x)))
        return model.losses(outputs, y).mean(), model.vector(renewed)

    slope = jax.jit(jax.grad(loss, has_aux=True))
    velocity, state = (
        jnp.zeros_like(theta),
        (None if sgd.optimizer is None else sgd.optimizer.init(theta)),
    )
    for _ in range(steps):
        g, renewed = slope(theta)
        g = (
            g
            + sgd.weight_decay * theta
            + (0 if anchor is None else 0.5 * (theta - anchor))
        )
        g = jnp.where(statistics.mask, 0, g)
        if sgd.optimizer is None:
            velocity = sgd.momentum * velocity + g
            update = -sgd.lr * velocity
        else:
            update, state = sgd.optimizer.update(g, state, theta)
        theta = statistics.put(theta + update, statistics.take(renewed))
    return theta


OPTIMIZERS = {
    "plain": SGD(lr=0.3, steps=2, batch_size=8),
    "momentum": SGD(lr=0.3, momentum=0.5, weight_decay=0.1, steps=2, batch_size=8),
    "clipped": SGD(
        weight_decay=0.5,
        steps=2,
        batch_size=8,
        optimizer=optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.3)),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_by_hand_two_steps_with_padded_batches(name):
    """Five samples in batches of eight: what fills the batch enters no statistics."""
    with float64():
        federation = classification(clients=1, sizes=[5])
        model, sgd = bound(Normal(), federation), OPTIMIZERS[name]
        training = train(Local(sgd=sgd), federation, model, 1)
        x, y = (
            jnp.asarray(rows[federation.train[0]])
            for rows in (federation.x, federation.y)
        )
        start = jnp.asarray(training.initial(0))
        expected = by_hand(model, start, x, y, sgd, 2)
        np.testing.assert_allclose(personal(training)[0], expected, **EXACT)
        assert (model.statistics.take(expected) != model.statistics.take(start)).all()


def test_a_pull_does_not_move_statistics():
    with float64():
        federation = classification(clients=1, sizes=[5])
        model, sgd = bound(Normal(), federation), OPTIMIZERS["plain"]
        training = train(FedProx(sgd=sgd, mu=0.5), federation, model, 1)
        x, y = (
            jnp.asarray(rows[federation.train[0]])
            for rows in (federation.x, federation.y)
        )
        start = jnp.asarray(training.initial(0))
        np.testing.assert_allclose(
            personal(training)[0],
            by_hand(model, start, x, y, sgd, 2, anchor=start),
            **EXACT,
        )


def test_a_method_s_own_gradient_and_the_debug_engine_renew_statistics_too():
    with float64():
        federation = classification(clients=2, sizes=[9, 13])
        model, sgd = (
            bound(Normal(), federation),
            SGD(lr=0.2, momentum=0.5, epochs=1, batch_size=8),
        )
        usual = personal(train(FedAvg(sgd=sgd), federation, model, 2))
        np.testing.assert_allclose(
            personal(train(Weighed(sgd=sgd), federation, model, 2)), usual, **EXACT
        )
        np.testing.assert_allclose(
            personal(train(FedAvg(sgd=sgd), federation, model, 2, debug=True)),
            usual,
            **EXACT,
        )
        first = personal(train(FedAvg(sgd=sgd), federation, model, 1))
        assert (model.statistics.take(usual) != model.statistics.take(first)).all()


def test_steps_that_leave_statistics_behind_are_refused():
    federation = classification(clients=2, sizes=[9, 13])
    for algorithm in (PFedMe(), APFL()):
        with pytest.raises(
            ValueError,
            match=r"does not renew running statistics.*group instead of batch",
        ):
            train(algorithm, federation, bound(Normal(), federation, "float32"), 1)


def test_a_method_s_own_gradient_drops_out_as_the_usual_one():
    federation = classification(clients=2, sizes=[9, 13])
    model, sgd = (
        bound(Dropping(True), federation, "float32"),
        SGD(lr=0.2, epochs=2, batch_size=8),
    )
    usual, own = (
        personal(train(kind(sgd=sgd), federation, model, 1))
        for kind in (FedAvg, Weighed)
    )
    np.testing.assert_array_equal(own, usual)
    without = personal(
        train(
            FedAvg(sgd=sgd),
            federation,
            bound(Dropping(False), federation, "float32"),
            1,
        )
    )
    assert not np.allclose(usual, without)


SMALL = SGD(lr=0.2, steps=3, batch_size=8)


@pytest.mark.parametrize(
    "algorithm",
    [
        PFedMe(sgd=SMALL, lam=1.0),
        APFL(sgd=SMALL),
        APFL(sgd=SMALL, mix="logits"),
        PerFedAvg(sgd=SMALL),
        CGPFL(sgd=SMALL, lam=1.0, contexts=1),
        MAPPER(sgd=SMALL, cover=(0.0, 0.5)),
        FedEM(sgd=SMALL),
        MOON(sgd=SMALL),
        FedDBE(sgd=SMALL),
        FedRoD(sgd=SMALL),
    ],
    ids=[
        "pfedme",
        "apfl",
        "apfl-logits",
        "per-fedavg",
        "cgpfl",
        "mapper",
        "fedem",
        "moon",
        "feddbe",
        "fedrod",
    ],
)
def test_methods_with_steps_of_their_own_drop_out(algorithm):
    federation = classification(clients=2, sizes=[9, 13])

    def trained(drops, rounds):
        training = train(
            algorithm, federation, bound(Dropping(drops), federation, "float32"), rounds
        )
        return np.concatenate(
            [
                np.ravel(leaf)
                for leaf in jax.tree.leaves(
                    (training.server, training.executor.client_states)
                )
            ]
        )

    start, dropped, without = trained(False, 0), trained(True, 1), trained(False, 1)
    assert not np.allclose(dropped, without) and not np.allclose(dropped, start)


@pytest.mark.parametrize("coin", [False, True])
def test_dapper_s_mixtures_drop_out_while_it_serves(coin):
    federation = classification(clients=2, sizes=[9, 13])
    dapper = DAPPER(sgd=SMALL, tune=SMALL, cover=(0.7,), coin=coin)

    def served(drops, after):
        return personal(
            train(after, federation, bound(Dropping(drops), federation, "float32"), 0)
        )

    start, dropped, without = (
        served(False, FedAvg(sgd=SMALL)),
        served(True, dapper),
        served(False, dapper),
    )
    assert not np.allclose(dropped, without) and not np.allclose(dropped, start)


def test_every_use_of_randomness_in_a_step_is_another():
    """pFedMe's inner steps on one batch, and the two gradients of a step of a method's
    own.
    """
    seen = []

    @hyperparameters
    class Looking(FedAvg):
        def client(self, state, inbox, local):
            def step(params, batch, index):
                first, second = (
                    local.logits(params, batch.x),
                    local.logits(params, batch.x),
                )
                inner = local.fori_loop(
                    2,
                    lambda k, carry: carry.at[k].set(
                        local.logits(params, batch.x)[0, 0]
                    ),
                    jnp.zeros(2),
                )
                jax.debug.callback(
                    lambda *found: seen.append([np.asarray(one) for one in found]),
                    first,
                    second,
                    local.logits(params, batch.x, training=False),
                    inner,
                )
                return params

            theta = inbox.only("model")
            return state, {
                "model": local.vector(local.loop(local.params(theta), step, 2, 8))
            }

    federation = classification(clients=1, sizes=[8])
    model = bound(Dropping(True), federation, "float32")
    jax.block_until_ready(train(Looking(), federation, model, 1).server)
    jax.effects_barrier()
    assert len(seen) == 2
    for first, second, evaluated, inner in seen:
        assert not np.allclose(first, second) and not np.allclose(first, evaluated)
        assert inner[0] != inner[1]


@pytest.mark.parametrize("split", ["test", "exam"])
def test_a_method_cannot_reach_the_test_split(split):
    @hyperparameters
    class Cheat(FedAvg):
        def personal(self, state, inbox, local):
            theta = inbox.only("model")
            return jnp.where(local.loss(theta, split) > 1, theta, 0 * theta)

    training = train(Cheat(), classification(), softmax_model("float32"), 1)
    with pytest.raises(
        ValueError, match=f"the split '{split}'; it may look at 'train' and 'val' only"
    ):
        training.evaluate()
