"""pFedHN: the server's step against finite differences, the linear hypernetwork, and
newcomers.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import Local, PFedHN
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD, Inbox

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS = 0.2, 3
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
BARE = {"server_momentum": 0.0, "server_decay": 0.0, "clip": 0.0}
"""The server's step without momentum, decay and clipping."""


def generated(layers, initial, embeddings):
    """H in NumPy."""
    h = np.asarray(embeddings)
    for number, layer in enumerate(layers):
        h = h @ np.asarray(layer["weights"]) + np.asarray(layer["bias"])
        h = np.maximum(h, 0) if number + 1 < len(layers) else h
    return np.asarray(initial) + h


def on_host(server):
    return jax.tree.map(np.array, (server.layers, server.embeddings))


@pytest.mark.parametrize("count", [4, 2])
def test_the_servers_step_is_the_vector_jacobian_product(count):
    with float64():
        method = PFedHN(
            sgd=PLAIN, hidden_layers=2, hidden_size=7, server_lr=0.5, **BARE
        )
        participation = Participation(count=count)
        federation, model = quadratics(a, A, SIZES), quadratic_model(2, shifted)
        training = train(method, federation, model, 1, participation=participation)
        before, initial = on_host(training.server), training.server.initial
        report = participation.sample(
            training.population.ids, training.seed, training.round
        )
        order = training.population.original_index
        theta = generated(before[0], initial, before[1])
        delta = (1 - LR * A[order]) ** STEPS * (theta - a[order]) + a[order] - theta
        training.advance()
        after = on_host(training.server)
        step = jax.tree.map(lambda new, old: (new - old) / 0.5, after, before)

        def objective(direction, size):
            moved = jax.tree.map(lambda p, v: p + size * v, before, direction)
            return (
                (delta * generated(moved[0], initial, moved[1]))
                .sum(axis=1)[report]
                .mean()
            )

        rng = np.random.default_rng(0)
        for _ in range(5):
            direction = jax.tree.map(lambda p: rng.normal(size=p.shape), before)
            slope = (objective(direction, 1e-6) - objective(direction, -1e-6)) / 2e-6
            along = sum(
                np.vdot(*pair)
                for pair in zip(*map(jax.tree.leaves, (step, direction)), strict=True)
            )
            np.testing.assert_allclose(along, slope, rtol=1e-6, atol=1e-6)
        assert (after[1] != before[1]).any(axis=1).tolist() == report.tolist()


@pytest.mark.parametrize("part", ["nothing", "bias"])
def test_a_linear_hypernetwork_of_unit_vectors_trains_every_client_alone(part):
    """Also where a part of the model is not generated, but stays on the client."""
    sgd = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
    with float64():
        alone = personal(train(Local(sgd=sgd), classification(), softmax_model(), 3))
        # the mean over 5 reporters times a rate of 5
        method = PFedHN(
            sgd=sgd,
            hidden_layers=0,
            embedding="one-hot",
            server_lr=5.0,
            part=part,
            **BARE,
        )
        training = train(method, classification(), softmax_model(), 3)
        np.testing.assert_allclose(personal(training), alone, **EXACT)
        sent = softmax_model().part(part).complement.size
        assert (
            training.ledger.totals().bytes_up
            == 3 * 5 * 8 * sent
            == training.ledger.totals().bytes_down_unicast
        )


def test_newcomers_of_pfedhn_pc_train_a_head_beside_their_embedding():
    unseen = np.array([False, True, False, False, False])
    with float64():
        model, found = softmax_model(), []
        for steps in (0, 2):
            method = PFedHN(
                sgd=PLAIN,
                hidden_layers=1,
                hidden_size=5,
                part="bias",
                newcomer_steps=steps,
            )
            training = train(method, classification(unseen=unseen), model, 2)
            found.append(predictors(training)[0][1])
        own = model.part("bias")
        server = training.server
        layers, embeddings = on_host(server)
        start = own.complement.take(np.asarray(server.initial))
        np.testing.assert_allclose(
            own.complement.take(found[0]),
            generated(layers, start, embeddings.mean(axis=0)),
            **EXACT,
        )
        np.testing.assert_array_equal(
            own.take(found[0]), own.take(np.asarray(server.initial))
        )
        assert (found[1] != found[0]).all()


def test_something_is_left_to_generate():
    with float64():
        with pytest.raises(
            ValueError, match="part 'everything' leaves pfedhn nothing to generate"
        ):
            train(PFedHN(part="everything"), classification(), softmax_model(), 0)
        with pytest.raises(
            ValueError,
            match="part 'head' is all of this model; the parts it has are: bias",
        ):
            train(PFedHN(part="head"), classification(), softmax_model(), 0)


def test_momentum_decay_and_clipping_of_the_server():
    """Of the linear hypernetwork: a client's row of W is theta_i - theta^0, and its
    gradient -delta_i / m.
    """
    rate, momentum, decay, clip = 0.7, 0.9, 0.02, 0.05
    with float64():
        method = PFedHN(
            sgd=PLAIN,
            hidden_layers=0,
            embedding="one-hot",
            server_lr=rate,
            server_momentum=momentum,
            server_decay=decay,
            clip=clip,
        )
        training = train(
            method, quadratics(a, A, SIZES), quadratic_model(2, shifted), 4
        )
        start = np.asarray(training.initial(0))
        w, v = np.zeros((4, 2)), np.zeros((4, 2))
        for _ in range(4):
            theta = start + w
            g = -((1 - LR * A) ** STEPS * (theta - a) + a - theta) / 4
            assert np.linalg.norm(g) > clip
            v = momentum * v + g * clip / np.linalg.norm(g) + decay * w
            w = w - rate * v
        np.testing.assert_allclose(personal(training), start + w, **EXACT)


def test_clients_are_sent_models_of_their_own_and_predict_with_them():
    with float64():
        training = train(
            PFedHN(sgd=PLAIN, hidden_size=5),
            quadratics(a, A, SIZES),
            quadratic_model(2, shifted),
            3,
        )
        layers, embeddings = on_host(training.server)
        expected = by_place(
            training, generated(layers, training.server.initial, embeddings)
        )
        np.testing.assert_allclose(personal(training), expected, **EXACT)
        assert len(np.unique(expected, axis=0)) == 4


def test_training_approaches_the_clients_own_optima():
    with float64():
        method = PFedHN(
            sgd=SGD(lr=0.2, steps=10, batch_size=8), hidden_size=20, server_lr=0.05
        )
        training = train(method, quadratics(a, 1.0, SIZES), quadratic_model(2), 0)
        away = []
        for _ in range(3):
            away.append(np.abs(personal(training) - a).mean())
            for _ in range(50):
                training.advance()
        assert away[2] < away[1] < away[0]
        assert away[2] < 0.5 * np.abs(a - a.mean(axis=0)).mean()


def test_newcomers_fit_an_embedding_with_the_hypernetwork_fixed():
    """Three steps along J' delta from the mean embedding, J by finite differences."""
    unseen = [False, False, True, False]
    with float64():
        method = PFedHN(
            sgd=PLAIN, hidden_layers=2, hidden_size=5, newcomer_steps=3, newcomer_lr=0.3
        )
        training = train(
            method,
            quadratics(a, A, SIZES, unseen=unseen),
            quadratic_model(2, shifted),
            2,
        )
        ledger = Ledger()
        training.serve(unseen=True, ledger=ledger)
        size = sum(leaf.size for leaf in jax.tree.leaves(training.server.layers))
        sent = sum(
            entry.bytes_unicast for entry in ledger.entries if entry.direction == "down"
        )
        layers, embeddings = on_host(training.server)
        assert sent == 8 * (size + embeddings.shape[1])
        e, initial = embeddings.mean(axis=0), training.server.initial
        for _ in range(3):
            theta = generated(layers, initial, e)
            delta = (1 - LR * A[2]) ** STEPS * (theta - a[2]) + a[2] - theta
            steps = 1e-6 * np.eye(len(e))
            slopes = (
                generated(layers, initial, e + steps)
                - generated(layers, initial, e - steps)
            ) / 2e-6
            e = e + 0.3 * slopes @ delta
        np.testing.assert_allclose(
            predictors(training)[0][2],
            generated(layers, initial, e),
            rtol=1e-6,
            atol=1e-6,
        )


def test_each_step_of_a_newcomer_is_a_training_of_its_own():
    """Step k trains as in the k-th round from now on, so that batches are others."""
    rounds = []

    def in_round(number):
        rounds.append(number)
        return SimpleNamespace(sgd=lambda theta, settings: theta + 1.0)

    def fori_loop(count, body, carry):
        for k in range(count):
            carry = body(jnp.int32(k), carry)
        return carry

    model = models.mlp(5).bind((4,), 3, dtype="float32")
    local = SimpleNamespace(
        round=jnp.int32(7),
        in_round=in_round,
        fori_loop=fori_loop,
        part_of_model=lambda name: model.part(name),
    )
    values = {
        "initial": jnp.zeros((1, model.size)),
        "embedding": jnp.ones((1, 2)),
        "layer 0 weights": jnp.ones((1, 2, model.size)),
    }
    received = {kind: jnp.ones(1, bool) for kind in values}
    inbox = Inbox(values, received, {}, jnp.asarray(True))
    PFedHN(hidden_layers=0, newcomer_steps=3).init_unseen(inbox, local)
    assert [int(number) for number in rounds] == [7, 8, 9]


def test_errors():
    wrong = {
        **{
            "embedding": "two-hot",
            "embedding_size": 0,
            "hidden_layers": -1,
            "hidden_size": 0,
            "server_lr": 0,
        },
        **{
            "server_momentum": 1.0,
            "server_decay": -1.0,
            "clip": -1.0,
            "newcomer_steps": -1,
            "newcomer_lr": 0,
        },
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=rf"^{name} is "):
            PFedHN(**{name: value})
    with pytest.raises(ValueError, match=r"as many dimensions as there are clients"):
        PFedHN(embedding="one-hot", embedding_size=3)
