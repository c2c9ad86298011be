"""Properties that every registered method must have. A new method is tested here as soon as it is registered."""

from dataclasses import fields, replace

import jax
import numpy as np
import polars as pl
import pytest

from conformance.examples import ALONE_IS_LOCAL, OPT_OUTS, TRAFFIC, example
from conformance.problems import EXACT, classification, float64, predictors, softmax_model, train
from fedtailor.accounting import MODEL_KINDS
from fedtailor.algorithms import Local
from fedtailor.models import Classification, cross_entropy
from fedtailor.protocol import SGD, Algorithm, Exchange
from fedtailor.training import Participation

NAMES = sorted(Algorithm.registry)
every_algorithm = pytest.mark.parametrize("name", NAMES)
GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
SAMPLED = Participation(count=3)
FOURFOLD = Classification(lambda outputs, y: 4.0 * cross_entropy(outputs, y))


def unless_opted_out(prop: str, name: str) -> None:
    if (prop, name) in OPT_OUTS:
        pytest.skip(f"{name} is exempt from '{prop}': {OPT_OUTS[prop, name]}")


def federation(order=None, **changes):
    found = classification(groups=GROUPS, unseen=UNSEEN)
    if order is not None:
        found = replace(
            found,
            **{split: getattr(found, split).take(order) for split in ("train", "val", "test")},
            names=tuple(found.names[i] for i in order),
            groups=found.groups[order],
            unseen=found.unseen[order],
        )
    return replace(found, **changes)


def assert_same(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **(tolerance or EXACT))


def participation_of(algorithm):
    """Three of four clients, or everybody where the method is not defined for less."""
    try:
        train(algorithm, federation(), softmax_model(), 0, participation=SAMPLED)
    except ValueError:
        return Participation()
    return SAMPLED


@every_algorithm
def test_results_depend_on_neither_listing_nor_devices_nor_chunks(name):
    unless_opted_out("order", name)
    algorithm = example(name)
    with float64():
        participation = participation_of(algorithm)
        run = lambda f, **settings: train(  # noqa: E731
            algorithm, f, softmax_model(), 3, participation=participation, **settings
        )
        base = run(federation())
        found = predictors(base)
        assert all(np.isfinite(leaf).all() for leaf in found)
        order = np.array([3, 0, 4, 2, 1])
        assert_same(predictors(run(federation(order))), [leaf[order] for leaf in found])
        one, two = (trained(run(federation(), devices=devices, canonical=True)) for devices in (1, 2))
        for single, double in zip(one, two, strict=True):
            np.testing.assert_array_equal(single, double)
        assert_same(one, trained(base))
        assert_same(trained(run(federation(), chunk=2)), trained(base))


@every_algorithm
def test_nobody_reporting_changes_nothing(name):
    unless_opted_out("empty round", name)
    algorithm = example(name)
    if algorithm.participants == "all":
        pytest.skip(f"{name} trains all clients in every round, whoever reports")
    with float64():
        training = train(algorithm, federation(), softmax_model(), 2)
        before = trained(training)
        cohort = training._cohort(training.executor.seen, np.arange(4), seen=True, reporting=np.zeros(4, bool))
        downlink = algorithm.broadcast(training.server, cohort)
        answers = training.executor.exchange(Exchange("client", algorithm, cohort, downlink))
        training.server = algorithm.server(training.server, downlink, answers, cohort)
        for one, other in zip(before, trained(training), strict=True):
            np.testing.assert_array_equal(one, other)


def trained(training):
    """The server's models and the clients' states, as a list of arrays."""
    return [
        np.asarray(leaf)
        for leaf in jax.tree.leaves((getattr(training.server, "model", None), training.executor.client_states))
    ]


@every_algorithm
def test_identical_clients_get_one_model(name):
    unless_opted_out("identical clients", name)
    with float64():
        # 8 samples are one batch, so that all clients draw the same one
        same = classification(sizes=[8] * 5, same=True, groups=np.zeros(5, int), unseen=UNSEEN)
        found = predictors(train(example(name), same, softmax_model(), 2))
        for leaf in found:
            leaf = leaf[~UNSEEN]
            np.testing.assert_allclose(leaf, np.broadcast_to(leaf[:1], leaf.shape), **EXACT)


@every_algorithm
def test_a_single_client_is_trained_alone(name):
    unless_opted_out("one client", name)
    with float64():
        single = replace(classification(clients=1, sizes=[20]), groups=np.zeros(1, int))
        found = predictors(train(example(name, clients=1), single, softmax_model(), 2))
        assert all(np.isfinite(leaf).all() for leaf in found)
        if name in ALONE_IS_LOCAL:
            expected = predictors(train(Local(sgd=example(name).sgd), single, softmax_model(), 2))
            assert_same(found, expected)


@every_algorithm
def test_an_unseen_client_with_a_clients_data_gets_its_model(name):
    """Idempotent enrolment, for methods whose personal model is a function of the server's models and the data."""
    unless_opted_out("enrolment", name)
    with float64():
        twins = np.array([0, 1, 2, 1, 4])  # the unseen one holds client 1's data, in one batch
        base = classification(sizes=[8] * 5, groups=GROUPS[twins], unseen=UNSEEN)
        twin = replace(base, train=base.train.take(twins))
        training = train(example(name), twin, softmax_model(), 2)
        for leaf in predictors(training):
            np.testing.assert_allclose(leaf[3], leaf[1], **EXACT)


@every_algorithm
def test_unseen_clients_are_served_and_leave_no_trace(name):
    with float64():
        training = train(example(name), federation(), softmax_model(), 2)
        before = [np.asarray(leaf) for leaf in jax.tree.leaves((training.server, training.executor.client_states))]
        first, second = predictors(training), predictors(training)
        for one, two in zip(first, second, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_array_equal(one, two)
        for one, other in zip(before, jax.tree.leaves((training.server, training.executor.client_states)), strict=True):
            np.testing.assert_array_equal(one, other)


@every_algorithm
def test_scaling_the_loss_is_scaling_the_rate(name):
    """c F with rate eta / c trains the same models (for methods without a term of another scale)."""
    unless_opted_out("loss scale", name)
    c = 4.0
    with float64():
        model = softmax_model()
        scaled = replace(model, loss=FOURFOLD)
        algorithm = example(name)
        slower = with_rates_divided(algorithm, c)
        one, other = train(slower, federation(), scaled, 2), train(algorithm, federation(), model, 2)
        # controls are gradients and scale with the loss: the server's models where there are any
        if hasattr(one.server, "model"):
            assert_same([one.server.model], [other.server.model])
        else:
            assert_same(trained(one), trained(other))


def with_rates_divided(algorithm, c):
    """The method with every local learning rate divided by c."""
    changes = {
        field.name: replace(value, lr=value.lr / c)
        for field in fields(algorithm)
        if isinstance(value := getattr(algorithm, field.name), SGD)
    }
    return replace(algorithm, **changes)


@every_algorithm
def test_the_ledger_is_the_traffic_table(name):
    """Models in a round of three reporters (or of all), against the table of the methods' traffic."""
    if name not in TRAFFIC:
        pytest.skip(f"{name} has no row in the traffic table")
    expected = TRAFFIC[name]
    with float64():
        training = train(example(name), federation(), softmax_model(), 2)
    frame = training.ledger.frame().filter((pl.col("phase") == "round") & (pl.col("round") == 1))
    models = frame.filter(pl.col("kind").is_in(list(MODEL_KINDS)))
    down, up = (models.filter(pl.col("direction") == direction) for direction in ("down", "up"))
    scalars = [frame.filter(pl.col("direction") == d)["scalars"].sum() / 4 for d in ("down", "up")]
    found = (down["streams"].sum(), down["unicasts"].sum() / 4, up["unicasts"].sum() / 4, *scalars)
    assert found == expected, "(streams, models received, models sent, scalars received, scalars sent) per client"
