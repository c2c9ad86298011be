"""CFL: FedAvg until a cluster is split, splits as the paper and its code make them, and
newcomers in the tree.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    answers_of,
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
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import CFL, FedAvg
from fedtailor.engine.executors.map_clients import map_clients
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

INF = float("inf")
STEP = SGD(lr=0.2, steps=1, batch_size=64)
"""With unit curvature one step from theta is the update 0.2 (a - theta)."""
SPLIT = CFL(sgd=STEP, eps1=INF, eps2=0.0, first_split=0, weights="uniform")
"""Splits in every round what has three clients or more."""


def directions(degrees):
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)


def clusters(training):
    """The clients of every cluster, by their places in the federation."""
    stream = by_place(training, training.server.cluster)
    return {
        frozenset(np.flatnonzero(stream == cluster).tolist())
        for cluster in np.unique(stream)
    }


@pytest.mark.parametrize(
    "never",
    [{"eps2": INF}, {"eps1": 0.0}, {"first_split": 3}, {"min_clients": 6}],
    ids=str,
)
def test_without_splits_it_is_fedavg(never):
    sgd = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
    # not to the last bit: the places kept for other clusters change the order of a sum
    with float64():
        clustered = train(
            replace(SPLIT, sgd=sgd, weights="samples", **never),
            classification(),
            softmax_model(),
            3,
        )
        plain = train(FedAvg(sgd=sgd), classification(), softmax_model(), 3)
        assert clustered.server.splits == []
        np.testing.assert_allclose(
            clustered.server.model[:1], plain.server.model, **EXACT
        )


def test_splits_in_the_first_round_that_allows_it():
    with float64():
        training = train(
            replace(SPLIT, first_split=2),
            quadratics([3.0, 3, -1, -1]),
            quadratic_model(1),
            2,
        )
        assert training.server.splits == []
        training.advance()
        assert [split.round for split in training.server.splits] == [2]
        assert clusters(training) == {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.parametrize("linkage", ["complete", "single"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_opposed_groups_part_where_fedavg_stands_still(weights, linkage):
    """At the stationary point the mean update is 0 and the cosines are exactly +-1."""
    sizes = np.array([3, 8, 13, 18])
    a = np.array([4.0, 3.0, -1.0, -1.5])
    a -= (
        (sizes @ a / sizes.sum()) if weights == "samples" else a.mean()
    )  # so that it is 0, where training starts
    with float64():
        algorithm = replace(
            SPLIT,
            eps1=1e-12,
            eps2=0.1,
            linkage=linkage,
            weights=weights,
            gamma_max=0.999,
        )
        training = train(algorithm, quadratics(a, sizes=sizes), quadratic_model(1), 1)
        assert clusters(training) == {frozenset({0, 1}), frozenset({2, 3})}
        (split,) = training.server.splits
        assert sorted([split.directions[0, 0], split.directions[1, 0]]) == [-1.0, 1.0]
        np.testing.assert_array_equal(split.model, [0.0])
        for _ in range(120):
            training.advance()
        p = sizes if weights == "samples" else np.ones(4)
        ends = [
            (p * a)[half].sum() / p[half].sum() for half in (slice(0, 2), slice(2, 4))
        ]
        np.testing.assert_allclose(
            personal(training)[:, 0], np.repeat(ends, 2), **EXACT
        )


@pytest.mark.parametrize(
    ("eps1", "eps2", "splits"), [(0.41, 0.59, 1), (0.39, 0.59, 0), (0.41, 0.61, 0)]
)
def test_the_criterion_is_in_norms_of_updates(eps1, eps2, splits):
    """Updates 0.2 a = (0.6, 0.6, 0.0): their mean is 0.4 and their largest 0.6."""
    with float64():
        training = train(
            replace(SPLIT, eps1=eps1, eps2=eps2),
            quadratics([3.0, 3.0, 0.0]),
            quadratic_model(1),
            1,
        )
        assert len(training.server.splits) == splits


def test_the_two_linkages_part_a_chain_differently():
    with float64():
        federation = quadratics(directions([0, 22, 48, 70, 105]), sizes=[5] * 5)
        complete, single = (
            train(replace(SPLIT, linkage=linkage), federation, quadratic_model(2), 1)
            for linkage in ("complete", "single")
        )
        assert clusters(complete) == {frozenset({0, 1}), frozenset({2, 3, 4})}
        assert clusters(single) == {frozenset({0, 1, 2, 3}), frozenset({4})}


@pytest.mark.parametrize(("gamma_max", "splits"), [(0.70, 1), (0.72, 0)])
def test_the_papers_bound_rejects_a_split(gamma_max, splits):
    """Across the two parts of orthogonal updates the cosine is 0, and sqrt(1/2) =
    0.707.
    """
    with float64():
        federation = quadratics(directions([0, 0, 90, 90]), sizes=[5] * 4)
        training = train(
            replace(SPLIT, gamma_max=gamma_max), federation, quadratic_model(2), 1
        )
        assert len(training.server.splits) == splits


def test_halves_go_on_from_the_parents_model_and_their_own_updates():
    a = np.array([6.0, 4.0, -4.0, -6.0])
    with float64():
        training = train(
            replace(SPLIT, weights="samples"),
            quadratics(a),
            quadratic_model(1, shifted),
            1,
        )
        start = float(training.initial(0)[0])
        sent, sizes = start + 0.2 * (a - start), np.array([3, 8, 13, 18])
        ends = [
            (sizes * sent)[half].sum() / sizes[half].sum()
            for half in (slice(0, 2), slice(2, 4))
        ]
        np.testing.assert_allclose(
            personal(training)[:, 0], np.repeat(ends, 2), **EXACT
        )


ANGLES = np.repeat([0, 50, 110, 180, 240, 300], 2)


def six_pairs(unseen=None):
    return quadratics(directions(ANGLES), sizes=[5] * 12, unseen=unseen)


def test_splits_go_on_until_clusters_agree_and_hardly_ever_recompile():
    with float64():
        training = train(
            replace(SPLIT, sgd=replace(STEP, steps=2)),
            six_pairs(),
            quadratic_model(2),
            1,
        )
        shapes, programs = {training.server.model.shape}, map_clients._cache_size()
        for _ in range(30):
            training.advance()
            shapes.add(training.server.model.shape)
        assert clusters(training) == {frozenset({i, i + 1}) for i in range(0, 12, 2)}
        assert shapes == {(4, 2), (8, 2)}
        assert map_clients._cache_size() - programs == 1
        np.testing.assert_allclose(personal(training), directions(ANGLES), atol=1e-3)
        log = training.server.splits
        assert len(log) == 5
        (tree,) = training.algorithm.diagnostics(training.server)
        assert tree.name == "splits"
        np.testing.assert_array_equal(tree.parent, [split.parent for split in log])
        np.testing.assert_array_equal(tree.round, [split.round for split in log])
        np.testing.assert_array_equal(tree.members, training.server.cluster)
        # replayed from its start, the tree gives the clusters
        members = np.zeros(12, int)
        for child, (parent, split) in enumerate(
            zip(tree.parent, log, strict=True), start=1
        ):
            assert (members[[*split.first, *split.second]] == parent).all()
            members[split.second] = child
        np.testing.assert_array_equal(members, tree.members)
        for child, split in enumerate(log, start=1):
            assert split.parent < child
            assert not set(split.first) & set(split.second)


def test_newcomers_walk_down_the_tree():
    unseen = np.arange(12) % 2 == 1
    with float64():
        federation = quadratics(directions(ANGLES), sizes=[5] * 12, unseen=unseen)
        training = train(
            replace(SPLIT, min_clients=2), federation, quadratic_model(2), 8
        )
        assert len(training.server.splits) == 5
        found = predictors(training)[0]
        np.testing.assert_array_equal(found[unseen], found[~unseen])
        ledger = Ledger()
        training.serve(unseen=True, ledger=ledger)
        down = {
            e.kind: (e.streams, e.unicasts / 6)
            for e in ledger.entries
            if e.direction == "down"
        }
        assert down == {"model": (6 + 5, 6 + 5), "gradient": (10, 10), "parent": (5, 5)}
        (work,) = [e for e in ledger.entries if e.direction == "compute"]
        # a newcomer trains at the splits that its twin went through, and at no other
        assert work.gradients == 5 * sum(
            len(s.first) + len(s.second) for s in training.server.splits
        )


def test_newcomers_before_any_split_get_the_one_model():
    with float64():
        federation = quadratics([3.0, 3, -1, -1], unseen=[False, True, False, False])
        training, ledger = (
            train(replace(SPLIT, first_split=9), federation, quadratic_model(1), 2),
            Ledger(),
        )
        training.serve(unseen=True, ledger=ledger)
        assert [
            (e.kind, e.streams) for e in ledger.entries if e.direction == "down"
        ] == [("model", 1)]
        np.testing.assert_array_equal(
            predictors(training)[0][:, 0], np.full(4, training.server.model[0, 0])
        )


def everybody(training, reporting):
    """A cohort of all clients, of whom some report."""
    return replace(
        training.round_cohort(np.ones(len(reporting), bool)), reporting=reporting
    )


def test_only_a_whole_cluster_is_split():
    with float64():
        training = train(
            replace(SPLIT, first_split=9),
            quadratics([3.0, 3, -1, -1]),
            quadratic_model(1),
            0,
        )
        models = np.array([[3.0], [3.0], [-1.0], [-1.0]])
        for absent, splits in ((0, 1), (1, 0), (4, 0)):
            cohort = everybody(training, np.arange(4) >= absent)
            answers = answers_of(cohort, model=models)
            after = SPLIT.server(
                training.server,
                SPLIT.broadcast(training.server, cohort),
                answers,
                cohort,
            )
            assert len(after.splits) == splits
        np.testing.assert_array_equal(
            after.model, training.server.model
        )  # nobody reported


def test_sampling_is_refused():
    message = (
        r"cfl splits a cluster only when all its clients report, and only 2 of 4 do in"
        r" a round; train with full"
    )
    with pytest.raises(ValueError, match=message):
        train(
            CFL(),
            quadratics([3.0, 3, -1, -1]),
            quadratic_model(1),
            0,
            participation=Participation(count=2),
        )


def test_errors():
    with pytest.raises(ValueError, match=r"eps1 -1\.0 and eps2 1\.6 must be 0 or more"):
        CFL(eps1=-1)
    with pytest.raises(ValueError, match=r"min_clients is 1; it must be 2 or more"):
        CFL(min_clients=1)
    with pytest.raises(
        ValueError, match=r"linkage is 'average'; it must be 'complete'"
    ):
        CFL(linkage="average")
    with pytest.raises(
        ValueError, match=r"gamma_max is 1\.0; it must be in \[0, 1\), or None"
    ):
        CFL(gamma_max=1)


def test_the_momentum_of_local_training_persists():
    """Three rounds of two steps, with a split on the way, by NumPy; without `persist`
    velocities start at zero.
    """
    a, sgd = (
        np.array([3.0, 2.0, -1.0, -2.0]),
        SGD(lr=0.1, momentum=0.9, steps=2, batch_size=64),
    )
    with float64():
        for persist in (False, True):
            method = replace(SPLIT, sgd=sgd, persist=persist, first_split=1)
            training = train(method, quadratics(a), quadratic_model(1), 3)
            assert clusters(training) == {frozenset({0, 1}), frozenset({2, 3})}
            theta, velocity = np.zeros(4), np.zeros(4)
            for round in range(3):
                own, velocity = theta.copy(), velocity * persist
                for _ in range(2):
                    velocity = 0.9 * velocity + own - a
                    own = own - 0.1 * velocity
                halves = own.reshape(2, 2).mean(axis=1)
                theta = np.repeat(halves, 2) if round >= 1 else np.full(4, own.mean())
            np.testing.assert_allclose(personal(training)[:, 0], theta, **EXACT)
    with pytest.raises(
        ValueError, match="persist keeps the momentum of local training, which has none"
    ):
        CFL(sgd=SGD(momentum=0.0), persist=True)
