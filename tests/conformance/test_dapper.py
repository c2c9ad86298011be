"""DAPPER: reductions, the mixture it converges to, how lambda is chosen, which examples
travel, private sources.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
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
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms import DAPPER, FedAvgM, FineTune, HypCluster
from fedtailor.algorithms.dapper import sampler
from fedtailor.data.federation import Federation, Ragged
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
SYMBOLS = 4
TO_THE_END = SGD(
    lr=2.0, epochs=300, batch_size=32
)  # one batch an epoch: gradient descent


def symbols(draws, val=None, unseen=None, alphabet=SYMBOLS, test=None):
    """Clients that hold symbols and no inputs; `draws`, `val` and `test` are one list a
    client.

    By default the test splits are misleading: many of one symbol, which no choice may
    depend on."""
    clients = len(draws)
    held = [[] for _ in draws] if val is None else val
    tested = [[alphabet - 1] * 9 for _ in draws] if test is None else test
    parts = [np.asarray(part, int) for part in (*draws, *held, *tested)]
    y = np.concatenate(parts)
    rows = np.split(np.arange(len(y)), np.cumsum([len(part) for part in parts])[:-1])
    return Federation(
        np.zeros((len(y), 0)),
        y,
        Ragged.of(rows[:clients]),
        Ragged.of(rows[clients : 2 * clients]),
        Ragged.of(rows[2 * clients :]),
        tuple(f"client {i}" for i in range(len(draws))),
        unseen=np.zeros(len(draws), bool) if unseen is None else np.asarray(unseen),
        classes=alphabet,
    )


def density(alphabet=SYMBOLS):
    return models.density().bind((0,), alphabet, dtype="float64")


def shares(y):
    return np.bincount(np.asarray(y), minlength=SYMBOLS) / len(y)


def probabilities(training):
    theta = predictors(training)[0]
    theta = np.exp(theta - theta.max(axis=1, keepdims=True))
    return theta / theta.sum(axis=1, keepdims=True)


def delivered(training, place):
    """Labels sent to a client (by its place in the federation) when training is
    over.
    """
    unseen = bool(training.executor.federation.unseen[place])
    table = training.executor.unseen if unseen else training.executor.seen
    service = training.serve(
        np.flatnonzero(table.original_index == place), unseen=unseen
    )
    return labels_of(service, 0)


def labels_of(service, row):
    """Labels sent to the client of a service in that row of its cohort."""
    labels = service.downlink.streams["labels"]
    return np.asarray(labels.values)[
        labels.recipients[row][labels.recipients[row] >= 0]
    ]


DRAWS = [[0, 0, 1], [1, 1, 2, 3, 2, 1, 0], [3, 3, 3, 2, 0], [0, 1, 2, 3, 3]]


# reductions
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("coin", [False, True])
def test_with_lambda_1_it_is_fine_tuning(coin):
    """By coin, of r times as many steps."""
    with float64():
        federation, model = classification(), softmax_model()
        dapper = DAPPER(
            sgd=TRAINED,
            optimizer=ServerOptimizer(),
            cover=(1.0,),
            coin=coin,
            r=3,
            tune=TRAINED,
        )
        longer = replace(TRAINED, epochs=TRAINED.epochs * (3 if coin else 1))
        expected = train(FineTune(sgd=TRAINED, tune=longer), federation, model, 1)
        np.testing.assert_allclose(
            personal(train(dapper, federation, model, 1)), personal(expected), **EXACT
        )


def test_in_training_it_is_fedavgm_and_examples_are_delivered_once():
    with float64():
        federation, model = classification(), softmax_model()
        training = train(DAPPER(sgd=TRAINED), federation, model, 2)
        fedavgm = train(FedAvgM(sgd=TRAINED), federation, model, 2)
        np.testing.assert_array_equal(training.server.model, fedavgm.server.model)
        assert training.ledger.frame().equals(fedavgm.ledger.frame())
        training.serve(ledger=training.ledger)
    delivery = training.ledger.frame().filter(pl.col("phase") == "delivery")
    of = {row["kind"]: row for row in delivery.iter_rows(named=True)}
    examples = 5 * federation.train.sizes.sum()
    assert (of["model"]["streams"], of["model"]["unicasts"]) == (1, 5)
    assert (
        of["inputs"]["unicasts"]
        == of["labels"]["unicasts"]
        == of["inputs"]["streams"]
        == examples
    )
    assert of["inputs"]["bytes_unicast"] == examples * 4 * 8


# the minimiser
# --------------------------------------------------------------------------------------


def test_of_a_density_the_minimiser_is_the_mixture_of_both_data_sets():
    """softmax(h) = lambda D_k + (1 - lambda) C', with the C' that was sent."""
    with float64():
        dapper = DAPPER(cover=(0.3,), tune=TO_THE_END)
        training = train(
            dapper, symbols(DRAWS, unseen=[False, False, False, True]), density(), 1
        )
        found = probabilities(training)
        for place, own in enumerate(DRAWS):
            others = delivered(training, place)
            assert len(others) == 5 * len(own)
            np.testing.assert_allclose(
                found[place], 0.3 * shares(own) + 0.7 * shares(others), atol=1e-9
            )


@pytest.mark.parametrize("lam", [0.2, 0.9])
def test_a_coin_takes_its_side_as_often_as_lambda_says(lam):
    """With steps of rate 1 on quadratics a client ends where its last step went: at 1
    (its own) or -1 (the others).
    """
    clients = 400
    with float64():
        federation = quadratics(np.ones(clients), sizes=np.full(clients, 3))
        others = sampler(np.zeros((1, 0)), np.array([[1.0, -1.0]]))
        dapper = DAPPER(
            cover=(lam,),
            coin=True,
            source="proxy",
            proxy=others,
            tune=SGD(lr=1.0, batch_size=1),
        )
        found = personal(train(dapper, federation, quadratic_model(1), 0))[:, 0]
    assert set(found) == {-1.0, 1.0}
    np.testing.assert_allclose(
        (found == 1).mean(), lam, atol=4 * np.sqrt(lam * (1 - lam) / clients)
    )


def test_without_a_coin_both_sides_are_weighed():
    with float64():
        others = sampler(np.zeros((1, 0)), np.array([[1.0, -1.0]]))
        dapper = DAPPER(
            cover=(0.2,), source="proxy", proxy=others, tune=SGD(lr=1.0, batch_size=2)
        )
        found = personal(
            train(
                dapper,
                quadratics(np.ones(4), sizes=[1, 2, 3, 7]),
                quadratic_model(1),
                0,
            )
        )
    np.testing.assert_allclose(found, 0.2 - 0.8, **EXACT)


# the choice of lambda
# --------------------------------------------------------------------------------------

ONLY_0 = [[0] * 8, [0] * 5]
EVEN = [list(range(SYMBOLS)) * 2] * 2
CHOOSING = DAPPER(cover=(0.0, 1.0), r=40, tune=SGD(lr=1.0, epochs=40, batch_size=8))


def others_even(alphabet=SYMBOLS):
    return sampler(np.zeros((alphabet, 0)), np.arange(alphabet))


def test_lambda_is_chosen_on_the_validation_split():
    """The clients' training data are one symbol, what they will see and the proxy are
    all: the proxy is right.
    """
    with float64():
        chosen = replace(CHOOSING, source="proxy", proxy=others_even())
        found = probabilities(train(chosen, symbols(ONLY_0, val=EVEN), density(), 0))
        assert (found[:, 0] < 0.4).all()
        tempted = replace(chosen, select="train")
        assert (
            probabilities(train(tempted, symbols(ONLY_0, val=EVEN), density(), 0))[:, 0]
            > 0.9
        ).all()


def test_lambda_does_not_depend_on_test_rows():
    """Test rows that say the opposite of the validation rows, or nothing, leave every
    model as it is.
    """
    with float64():
        chosen = replace(CHOOSING, source="proxy", proxy=others_even())
        for val in (EVEN, None):
            opposite, none = (
                train(chosen, symbols(ONLY_0, val=val, test=test), density(), 0)
                for test in ([[0] * 30] * 2, [[1, 2, 3] * 10] * 2)
            )
            np.testing.assert_array_equal(predictors(opposite)[0], predictors(none)[0])


def test_newcomers_choose_lambda_on_their_training_data():
    """Of two clients with the same data, what a validation split says counts for the
    one that took part only.
    """
    with float64():
        chosen = replace(CHOOSING, source="proxy", proxy=others_even())
        federation = symbols([[0] * 8] * 2, val=EVEN, unseen=[False, True])
        found = probabilities(train(chosen, federation, density(), 0))
    assert found[0, 0] < 0.4 and found[1, 0] > 0.9


def test_without_validation_data_some_training_data_are_held_out():
    """A client with one symbol holds out that symbol, and lambda 1 is right. One whose
    7 samples are all different holds out a symbol that it does not train on, and the
    others' data are better, although, over all 7 samples, its own are."""
    draws, n = [[0] * 8, list(range(7))], 8
    tune = SGD(lr=1.0, epochs=10, batch_size=8)
    with float64():
        chosen = replace(
            CHOOSING, source="proxy", proxy=others_even(n), held_out=0.1, tune=tune
        )
        federation = symbols(draws, alphabet=n)
        found = probabilities(train(chosen, federation, density(n), 0))
        assert found[0, 0] > 0.5
        np.testing.assert_allclose(found[1], 1 / n, atol=0.03)
        tempted = probabilities(
            train(replace(chosen, select="train"), federation, density(n), 0)
        )
        assert tempted[1, 7] < 0.06


# which examples travel
# --------------------------------------------------------------------------------------


def test_examples_are_seen_clients_training_data_and_always_the_same():
    with float64():
        federation = symbols(
            [[0, 0], [1, 1, 1], [2], [3, 3]], unseen=[False, False, False, True]
        )
        training = train(DAPPER(r=20), federation, density(), 1)
        before = [delivered(training, place) for place in range(4)]
        assert [len(labels) for labels in before] == [40, 60, 20, 40]
        np.testing.assert_array_equal(np.unique(np.concatenate(before)), [0, 1, 2])
        np.testing.assert_allclose(
            shares(np.concatenate(before)), np.array([2, 3, 1, 0]) / 6, atol=0.12
        )
        training.advance()
        together = training.serve()
        assert len(together.cohort) == 3
        for row, place in enumerate(training.executor.seen.original_index):
            np.testing.assert_array_equal(labels_of(together, row), before[place])


def test_clusters_start_from_their_model_and_exchange_their_own_data():
    groups = np.array([0, 1, 0, 1, 0])
    with float64():
        federation = symbols(
            [[0, 1] * 4, [2, 3] * 4, [1, 0] * 4, [3, 2] * 4, [1, 0] * 2],
            unseen=groups * 0 + [0, 0, 0, 0, 1],
        )
        sgd = SGD(lr=3.0, epochs=5, batch_size=8)
        settings = {
            "sgd": sgd,
            "clusters": 2,
            "start": "farthest",
            "optimizer": ServerOptimizer(),
        }
        training = train(
            DAPPER(**settings, cover=(0.0,), tune=SGD(lr=0.1)), federation, density(), 4
        )
        hyp = train(HypCluster(**settings), federation, density(), 4)
        np.testing.assert_array_equal(training.server.model, hyp.server.model)
        cluster = by_place(training, training.server.cluster)
        assert cluster[0] == cluster[2] != cluster[1] == cluster[3]
        for place in range(4):
            np.testing.assert_array_equal(
                np.unique(delivered(training, place)) // 2, groups[place]
            )
        np.testing.assert_array_equal(
            np.unique(delivered(training, 4)), np.arange(4)
        )  # its cluster is not known yet
        found = probabilities(training)
        assert (found[groups == 0, :2].sum(axis=1) > 0.9).all() and (
            found[groups == 1, 2:].sum(axis=1) > 0.9
        ).all()


# private sources
# --------------------------------------------------------------------------------------


def test_a_density_generates_its_own_examples():
    """softmax(h) is near lambda D_k + (1 - lambda) h_c, up to the sampling error of r
    m_k draws; nothing travels.
    """
    with float64():
        federation = symbols([np.repeat([0, 1], [30, 10]), np.repeat([2, 3], [15, 25])])
        tune = SGD(lr=2.0, epochs=150, batch_size=40)
        training = train(
            DAPPER(
                cover=(0.5,), r=50, source="model", tune=tune, sgd=SGD(lr=2.0, epochs=9)
            ),
            federation,
            density(),
            2,
        )
        assert set(training.serve().downlink.streams) == {"model"}
        theta = np.exp(np.asarray(training.server.model[0]))
        common = theta / theta.sum()
        found = probabilities(training)
        assert common.min() > 0.02 and common.max() < 0.6
        for place in range(2):
            expected = 0.5 * shares(federation.client(place).train.y) + 0.5 * common
            np.testing.assert_allclose(
                found[place], expected, atol=0.5 * 4 * 0.5 / np.sqrt(2000)
            )


def test_proxy_data_replace_the_clients():
    with float64():
        dapper = DAPPER(
            cover=(0.0,),
            source="proxy",
            proxy=sampler(np.zeros((1, 0)), np.array([3])),
            tune=TO_THE_END,
        )
        training = train(dapper, symbols(DRAWS), density(), 0)
        np.testing.assert_array_equal(delivered(training, 1), [3] * 35)
        assert (probabilities(training)[:, 3] > 0.99).all()


def test_wrong_settings_are_refused():
    for wrong in (
        {"r": 0},
        {"select": "test"},
        {"held_out": 0.0},
        {"source": "web"},
        {"cover": ()},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DAPPER(**wrong)
    for wrong in ({"source": "proxy"}, {"proxy": sampler([0.0], [0])}):
        with pytest.raises(ValueError, match="need each other"):
            DAPPER(**wrong)
    with pytest.raises(ValueError, match="same length"):
        sampler([0.0, 1.0], [0])
    with float64():
        training = train(
            DAPPER(source="model", cover=(0.5,)), classification(), softmax_model(), 0
        )
        with pytest.raises(ValueError, match="needs a density"):
            personal(training)
        with pytest.raises(ValueError, match="source='proxy'"):
            DAPPER().check(replace(training.population, examples=None))
        DAPPER(source="model").check(replace(training.population, examples=None))


def linear_problem(unseen=None):
    """Clients of a linear relation of their own, and a linear model that knows no
    moments.
    """
    federation = classification(clients=4, unseen=unseen)
    rng = np.random.default_rng(5)
    y = np.zeros((len(federation.y), 2))
    for i in range(4):
        rows = np.concatenate(
            [split[i] for split in (federation.train, federation.val, federation.test)]
        )
        y[rows] = federation.x[rows] @ rng.normal(size=(4, 2)) + rng.normal(size=2)
    return replace(federation, y=y, classes=None)


def test_from_second_moments_it_is_the_mixture_with_all_clients_data():
    """One lambda, full batches: gradient descent on lambda F_k + (1 - lambda) F, by
    NumPy.
    """
    lam, tune = 0.3, SGD(lr=0.05, steps=4, batch_size=64)
    unseen = np.array([False, False, True, False])
    with float64():
        federation = linear_problem(unseen)
        model = models.logistic().bind(
            (4,), 2, loss=models.squared_error, dtype="float64"
        )
        method = DAPPER(
            sgd=SGD(lr=0.01, batch_size=8), tune=tune, source="moments", cover=(lam,)
        )
        training = train(method, federation, model, 2)
        data = [tuple(map(np.asarray, federation.client(i).train)) for i in range(4)]
        everybody = [np.concatenate([data[i][k] for i in (0, 1, 3)]) for k in range(2)]
        start = model.params(jnp.asarray(training.server.model[0]))

        def gradient(matrix, x, y):
            u = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            return 2 * u.T @ (u @ matrix - y) / len(x)

        found = predictors(training)[0]
        for i in range(4):
            matrix = matrix_of(start)
            for _ in range(4):
                matrix = matrix - 0.05 * (
                    lam * gradient(matrix, *data[i])
                    + (1 - lam) * gradient(matrix, *everybody)
                )
            np.testing.assert_allclose(
                matrix_of(model.params(jnp.asarray(found[i]))), matrix, **EXACT
            )
        frame = training.ledger.frame().filter(pl.col("kind") == "moments")
        assert frame["bytes_unicast"].sum() == 3 * 8 * 5 * 7 and frame[
            "phase"
        ].unique().to_list() == ["probe"]


def matrix_of(params):
    """H [5, 2] of the model x -> H' (x, 1)."""
    leaves = sorted(jax.tree.leaves(params), key=lambda leaf: -leaf.ndim)
    return np.concatenate([np.asarray(leaves[0]), np.asarray(leaves[1])[None]])


def test_moments_need_a_linear_model_and_squared_error():
    with float64():
        method, federation = DAPPER(source="moments"), linear_problem()
        nonlinear = models.mlp(5).bind(
            (4,), 2, loss=models.squared_error, dtype="float64"
        )
        with pytest.raises(ValueError, match="needs a linear model with squared error"):
            train(method, federation, nonlinear, 1)
        with pytest.raises(ValueError, match="needs a linear model with squared error"):
            train(method, classification(), softmax_model(), 0)
    with pytest.raises(ValueError, match="no batches to toss a coin for"):
        DAPPER(source="moments", coin=True)
