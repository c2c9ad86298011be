"""FedFomo against a program of a few lines: which models, weighed on which samples,
mixed into what.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    answers_of,
    assert_absent_keep_their_state,
    by_place,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    train,
)
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import FedFomo, Local
from fedtailor.data.federation import Ragged
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS = 0.1, 2
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
ALL = FedFomo(sgd=PLAIN, downloads=3, explore=0.0)
"""Every client is sent all others' models, so that nothing is left to chance."""


def validated(optimum, unseen=None):
    """Clients with a validation split of two samples whose loss is A/2 |theta -
    optimum|^2.
    """
    federation = quadratics(a, A, SIZES, unseen=unseen)
    held = np.repeat(
        np.concatenate([A, np.broadcast_to(optimum, a.shape)], axis=1), 2, axis=0
    )
    rows = len(federation.y) + np.arange(len(held))
    return replace(
        federation,
        x=np.zeros((len(federation.x) + len(held), 0)),
        y=np.concatenate([federation.y, held]),
        val=Ragged.of(np.split(rows, len(a))),
    )


def weigh(base, models, client, optimum, norm=2):
    """Weights of `models` [k, d] for a client."""
    loss = lambda theta: 0.5 * (A[client] * (theta - optimum[client]) ** 2).sum(-1)  # noqa: E731
    distance = np.linalg.norm(models - base, norm, axis=1)
    weights = np.maximum(loss(base) - loss(models), 0) / np.where(
        distance > 0, distance, 1
    )
    return weights / max(weights.sum(), 1e-300)


def train_alone(theta, client):
    return a[client] + (1 - LR * A[client]) ** STEPS * (theta - a[client])


def by_hand(theta, optimum, rounds, norm=2):
    """Bases and models [4, 2] and affinities [4, 4] after some rounds with all
    downloads.
    """
    base, own, affinity = (
        np.tile(theta, (4, 1)),
        np.tile(theta, (4, 1)),
        np.zeros((4, 4)),
    )
    for t in range(rounds):
        new = base.copy()
        for i in range(4):
            others = [j for j in range(4) if j != i] if t else []
            weights = weigh(base[i], own[[*others, i]], i, optimum, norm)
            affinity[i, others] += weights[:-1]
            new[i] = base[i] + weights @ (own[[*others, i]] - base[i])
        base, own = new, np.stack([train_alone(new[i], i) for i in range(4)])
    return base, own, affinity


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("split", ["val", "holdout"])
def test_rounds_by_hand(split, norm):
    """Without a validation split a fifth of the training samples is held out; here
    these all say the same.
    """
    with float64():
        optimum = a[::-1] if split == "val" else a
        federation = validated(optimum) if split == "val" else quadratics(a, A, SIZES)
        training = train(
            replace(ALL, norm=norm), federation, quadratic_model(2, shifted), 4
        )
        base, own, affinity = by_hand(
            np.asarray(training.initial(0)), optimum, 4, int(norm[1])
        )
        np.testing.assert_allclose(
            by_place(training, training.executor.client_states["base"]), base, **EXACT
        )
        np.testing.assert_allclose(
            by_place(training, training.executor.client_states["model"]), own, **EXACT
        )
        np.testing.assert_allclose(
            by_place(training, training.server.model), own, **EXACT
        )
        found = by_place(training, by_place(training, training.server.affinity).T).T
        np.testing.assert_allclose(found, affinity, **EXACT)
        assert np.count_nonzero(affinity) > 3
        (diagnostic,) = training.algorithm.diagnostics(training.server)
        assert diagnostic.name == "affinity"
        np.testing.assert_array_equal(diagnostic.values, training.server.affinity)
        for choice, expected in (("trained", own), ("mixed", base)):
            training.phase.algorithm = replace(training.algorithm, predict_with=choice)
            np.testing.assert_allclose(personal(training), expected, **EXACT)


def test_without_downloads_it_is_training_alone_with_a_guard():
    with float64():
        alone = replace(ALL, downloads=0)
        improving = train(
            alone, quadratics(a, A, SIZES), quadratic_model(2, shifted), 3
        )
        local = train(
            Local(sgd=PLAIN), quadratics(a, A, SIZES), quadratic_model(2, shifted), 3
        )
        np.testing.assert_allclose(personal(improving), personal(local), **EXACT)
        start = np.asarray(local.initial(0))
        guarded = train(
            alone, validated(start), quadratic_model(2, shifted), 3
        )  # no model is better than the first
        base = by_place(guarded, guarded.executor.client_states["base"])
        np.testing.assert_array_equal(base, np.tile(start, (4, 1)))
        assert improving.ledger.totals().models_down == 0


def choices(algorithm, affinity, uploaded, t=0, seed=0):
    training = train(
        algorithm,
        quadratics(a[:, :1], A[:, :1], SIZES),
        quadratic_model(1),
        0,
        seed=seed,
    )
    training.round = t
    server = training.server.replace(affinity=affinity, uploaded=uploaded)
    cohort = training.round_cohort(np.ones(4, bool))
    return algorithm.broadcast(server, cohort).streams["model"].recipients


def test_the_server_sends_the_models_of_highest_affinity():
    affinity = np.array([[9.0, 1, 2, 3], [1, 9, 3, 2], [3, 2, 9, 1], [1, 2, 3, 9]])
    greedy = FedFomo(sgd=PLAIN, downloads=2, explore=0.0)
    with float64():
        np.testing.assert_array_equal(
            choices(greedy, affinity, np.full(4, True)),
            [[3, 2], [2, 3], [0, 1], [2, 1]],
        )
        some = choices(greedy, affinity, np.array([True, True, False, False]))
        np.testing.assert_array_equal(some, [[1, -1], [0, -1], [0, 1], [1, 0]])
        np.testing.assert_array_equal(
            choices(greedy, affinity, np.full(4, False)), np.full((4, 2), -1)
        )


@pytest.mark.parametrize(
    ("explore", "t", "share"),
    [
        (1.0, 0, 1 / 3),
        (0.0, 0, 1.0),
        (0.5, 0, 2 / 3),
        (0.5, 4, 1 - 0.3 * 2 / 3),
        (0.5, 20, 1),
    ],
)
def test_exploration_is_uniform_and_decays(explore, t, share):
    """How often the best model is sent, when one is: always, or with probability 1/3
    when exploring.
    """
    affinity = 1.0 * (np.roll(np.eye(4), 1, axis=1) > 0)
    algorithm = FedFomo(sgd=PLAIN, downloads=1, explore=explore)
    with float64():
        training = train(
            algorithm, quadratics(a[:, :1], A[:, :1], SIZES), quadratic_model(1), 0
        )
        training.round = t
        server = training.server.replace(affinity=affinity, uploaded=np.full(4, True))
        sent = []
        for seed in range(500):
            training._secret = seed  # of the server's draws
            cohort = training.round_cohort(np.ones(4, bool))
            sent.append(
                algorithm.broadcast(server, cohort).streams["model"].recipients[:, 0]
            )
        assert not (np.array(sent) == np.arange(4)).any()
        assert abs(
            (np.array(sent) == (np.arange(4) + 1) % 4).mean() - share
        ) < 4 * np.sqrt(0.25 / 2000)


def test_absent_clients_keep_state_model_and_affinity():
    with float64():
        training = train(
            replace(ALL, downloads=2),
            quadratics(a, A, SIZES),
            quadratic_model(2),
            2,
            participation=Participation(count=2),
        )
        assert_absent_keep_their_state(training, 2)
        report = training.participation.sample(
            training.population.ids, training.seed, training.round
        )
        before = training.server
        training.advance()
        for name in ("model", "affinity"):
            after, old = (
                np.asarray(getattr(server, name))
                for server in (training.server, before)
            )
            np.testing.assert_array_equal(after[~report], old[~report])
        assert (
            (np.asarray(training.server.model) != np.asarray(before.model))[report]
            .any(axis=1)
            .all()
        )


def test_a_round_without_reporters_changes_nothing():
    with float64():
        training = train(ALL, quadratics(a, A, SIZES), quadratic_model(2), 2)
        cohort = replace(
            training.round_cohort(np.ones(4, bool)), reporting=np.zeros(4, bool)
        )
        answers = answers_of(cohort, model=np.ones((4, 2)), weights=np.ones((4, 3)))
        after = ALL.server(
            training.server, ALL.broadcast(training.server, cohort), answers, cohort
        )
        for field in fields(after):
            np.testing.assert_array_equal(
                getattr(after, field.name), getattr(training.server, field.name)
            )


def test_newcomers_weigh_all_models_from_the_initial_one_on_training_samples_only():
    """Its validation split, which says something else, is not looked at."""
    unseen = np.array([False, False, True, False])
    with float64():
        optimum = a[::-1]
        federation = validated(optimum, unseen)
        training, ledger = (
            train(ALL, federation, quadratic_model(2, shifted), 3),
            Ledger(),
        )
        start, models = np.asarray(training.initial(0)), personal(training)
        candidates = np.concatenate([models, start[None]])
        expected = train_alone(
            start + weigh(start, candidates, 2, a) @ (candidates - start), 2
        )
        np.testing.assert_allclose(predictors(training)[0][2], expected, **EXACT)
        assert (
            np.abs(
                weigh(start, candidates, 2, optimum) - weigh(start, candidates, 2, a)
            ).max()
            > 0.1
        )
        training.serve(unseen=True, ledger=ledger)
        down = [(e.kind, e.unicasts) for e in ledger.entries if e.direction == "down"]
        assert down == [("model", 3)]  # the initial model is known


def test_a_fifth_is_held_out_for_good():
    """One full-batch step of rate 1 is the mean of the samples trained on: four of
    five, the same in every round.
    """
    targets = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    federation = quadratics(np.zeros(2), sizes=[5, 1])
    federation = replace(federation, y=np.stack([np.ones(6), [*targets, 3.0]], axis=1))
    algorithm = FedFomo(sgd=SGD(lr=1.0, steps=1, batch_size=64), downloads=0)
    with float64():
        training, held = train(algorithm, federation, quadratic_model(1), 0), []
        for _ in range(3):
            training.advance()
            found = by_place(training, training.executor.client_states["model"])[:, 0]
            held.append(targets.sum() - 4 * found[0])
            assert found[1] == 3.0  # a single sample is trained on and validates
        np.testing.assert_allclose(
            held, targets[np.abs(targets - held[0]).argmin()], **EXACT
        )


def test_traffic():
    with float64():
        training = train(
            FedFomo(sgd=PLAIN, downloads=2),
            quadratics(a, A, SIZES),
            quadratic_model(2),
            2,
        )
        frame = training.ledger.frame().to_dicts()
        down = [
            (e["round"], e["kind"], e["unicasts"])
            for e in frame
            if e["direction"] == "down"
        ]
        assert down == [(1, "model", 8)]
        up = [
            (e["round"], e["kind"], e["unicasts"], e["bytes_unicast"])
            for e in frame
            if e["direction"] == "up"
        ]
        assert {("model", 4, 64), ("weights", 4, 64)} == {entry[1:] for entry in up}
        ledger = Ledger()
        training.serve(ledger=ledger)
        assert ledger.totals().models_down == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"downloads": -1}, "downloads is -1; it must be 0 or more"),
        ({"explore": 1.5}, r"explore is 1\.5; it must be in \[0, 1\]"),
        ({"explore_decay": -0.1}, r"explore_decay is -0\.1; it must be 0 or more"),
        ({"norm": "max"}, "norm is 'max'; it must be 'l2' or 'l1'"),
        ({"holdout": 1.0}, r"holdout is 1\.0; it must be in \(0, 1\)"),
        ({"predict_with": "base"}, "predict_with is 'base'; it must be 'trained' or"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        FedFomo(**changes)
