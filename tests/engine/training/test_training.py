"""The engine: one set of numbers whatever the order, the devices, the chunk or the
debugger; clear failures.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    ROUNDED,
    classification,
    float64,
    personal,
    predictors,
    softmax_model,
    train,
)
from fedtailor.aggregation.pipelines import Byzantine
from fedtailor.algorithms import IFCA, UCFL, Ditto, FedAMP, FedAvg, FineTune, Local
from fedtailor.data.federation import Ragged
from fedtailor.engine.executors.map_clients import balanced_order
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.training import Participation
from fedtailor.models import mlp
from fedtailor.protocol import SGD, Diverged, hyperparameters

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)


def reordered(federation, order):
    return replace(
        federation,
        train=federation.train.take(order),
        val=federation.val.take(order),
        test=federation.test.take(order),
        names=tuple(federation.names[i] for i in order),
    )


def test_by_hand_one_client_two_steps():
    """Momentum, weight decay and the partial batch, against numpy."""
    with float64():
        federation, model = classification(clients=1, sizes=[5]), softmax_model()
        sgd = SGD(lr=0.3, momentum=0.5, weight_decay=0.1, epochs=2, batch_size=8)
        training = train(Local(sgd=sgd), federation, model, 1)
        theta = np.asarray(training.initial(0))
        x, y = (
            jnp.asarray(rows[federation.train[0]])
            for rows in (federation.x, federation.y)
        )
        velocity = np.zeros_like(theta)
        for _ in range(2):
            # full-batch gradient of softmax regression, theta = [weight, bias]
            params = model.params(jnp.asarray(theta))
            gradient = jax.grad(lambda p: model.losses(model.logits(p, x), y).mean())(
                params
            )
            velocity = 0.5 * velocity + np.asarray(model.vector(gradient)) + 0.1 * theta
            theta = theta - 0.3 * velocity
        np.testing.assert_allclose(personal(training)[0], theta, **EXACT)


@pytest.mark.as_shipped
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(sgd=TRAINED), UCFL(sgd=TRAINED, streams=2, warm=0)],
    ids=["fedavg", "ucfl"],
)
def test_the_order_of_listing_devices_and_chunks_do_not_matter(algorithm):
    with float64():
        federation, model = classification(), softmax_model()
        base = personal(train(algorithm, federation, model, 2))
        order = np.array([3, 0, 4, 2, 1])
        np.testing.assert_allclose(
            personal(train(algorithm, reordered(federation, order), model, 2)),
            base[order],
            **EXACT,
        )
        # three clients a device: a chunk, and one that is left
        np.testing.assert_allclose(
            personal(train(algorithm, federation, model, 2, chunk=2)), base, **EXACT
        )
        one, two = (
            personal(train(algorithm, federation, model, 2, devices=n, canonical=True))
            for n in (1, 2)
        )
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, base, **EXACT)


def test_newcomers_are_served_alike_by_any_number_of_devices():
    """Their states are outputs of the exchange before."""
    federation = classification(unseen=[False, False, True, False, False])
    one, two = (
        predictors(
            train(
                Ditto(sgd=TRAINED),
                federation,
                softmax_model("float32"),
                1,
                devices=n,
                canonical=True,
            )
        )
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


def test_the_debug_engine_gives_the_same_numbers():
    with float64():
        federation, model = classification(clients=2, sizes=[9, 13]), softmax_model()
        fast, slow = (
            personal(train(FedAvg(sgd=TRAINED), federation, model, 1, debug=debug))
            for debug in (False, True)
        )
    np.testing.assert_allclose(slow, fast, **EXACT)


def test_single_precision_agrees_with_double():
    federation = classification()
    single = personal(
        train(FedAvg(sgd=TRAINED), federation, softmax_model("float32"), 1)
    )
    with float64():
        double = personal(train(FedAvg(sgd=TRAINED), federation, softmax_model(), 1))
    np.testing.assert_allclose(single, double, **ROUNDED)


def test_steps_instead_of_epochs_continue_over_permutations():
    with float64():
        federation, model = classification(clients=2, sizes=[16, 24]), softmax_model()
        epochs = train(Local(sgd=SGD(epochs=6, batch_size=8)), federation, model, 1)
        steps = train(Local(sgd=SGD(steps=12, batch_size=8)), federation, model, 1)
        np.testing.assert_array_equal(personal(epochs)[0], personal(steps)[0])
        assert (personal(epochs)[1] != personal(steps)[1]).any()


def test_work_is_counted_in_examples():
    federation = classification(clients=2, sizes=[9, 20])
    training = train(
        FedAvg(sgd=SGD(epochs=3, batch_size=8)), federation, softmax_model("float32"), 1
    )
    frame = training.ledger.frame()
    assert frame["gradients"].sum() == 3 * 29
    partial = train(
        Local(sgd=SGD(steps=4, batch_size=8)), federation, softmax_model("float32"), 1
    )
    # 9 samples: batches of 8, 1, 8, 1; 20 samples: 8, 8, 4, 8
    assert partial.ledger.frame()["gradients"].sum() == 18 + 28


@pytest.mark.parametrize("debug", [False, True])
def test_divergence_names_client_and_round_and_keeps_what_was_finished(debug):
    federation = classification(clients=2, sizes=[9, 13])
    x = federation.x.copy()
    x[federation.train[1]] *= 1e30
    training = train(
        Local(sgd=SGD(lr=1e30, batch_size=8)),
        replace(federation, x=x),
        softmax_model("float32"),
        0,
        debug=debug,
    )
    before = np.asarray(training.executor.client_states["model"])
    with pytest.raises(
        Diverged, match=r"client 'client 1'.*round 0.*learning rate"
    ) as caught:
        training.advance()
    assert (caught.value.client, caught.value.round) == ("client 1", 0)
    assert (caught.value.step is not None) == debug
    assert training.round == 0
    np.testing.assert_array_equal(training.executor.client_states["model"], before)


def test_absent_clients_keep_their_state():
    federation = classification()
    participation = Participation(count=2)

    @hyperparameters
    class Sampled(Local):
        participants = "reporters"

    training = train(
        Sampled(), federation, softmax_model("float32"), 0, participation=participation
    )
    before = np.asarray(training.executor.client_states["model"])
    training.advance()
    changed = (np.asarray(training.executor.client_states["model"]) != before).any(
        axis=1
    )
    np.testing.assert_array_equal(
        changed, participation.sample(training.population.ids, 0, 0)
    )


def test_participation_is_keyed_by_id():
    ids = np.random.default_rng(0).integers(0, 2**63, 50).astype(np.uint64)
    sampler = Participation(fraction=0.3)
    report = sampler.sample(ids, 1, 4)
    assert report.sum() == 15
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(sampler.sample(ids[order], 1, 4), report[order])
    assert (sampler.sample(ids, 1, 5) != report).any()
    assert Participation(fraction=0.01).sample(ids, 0, 0).sum() == 1
    with pytest.raises(ValueError, match="exceeds the 50"):
        Participation(count=51).sample(ids, 0, 0)


@pytest.mark.parametrize("clients", [1, 2, 5, 8, 9, 23])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_balancing_keeps_everybody_and_balances(clients, devices):
    work = np.random.default_rng(clients).integers(1, 1000, clients)
    order = balanced_order(work, devices, longest_first=False)
    np.testing.assert_array_equal(np.sort(order), np.arange(clients))
    shards = np.array_split(work[order], np.arange(1, devices) * -(-clients // devices))
    if clients % devices == 0:
        assert max(map(sum, shards)) - min(map(sum, shards)) <= work.max()


def test_finetune_with_no_epochs_is_fedavg_and_after_no_rounds_local():
    with float64():
        federation, model = classification(), softmax_model()
        fedavg = personal(train(FedAvg(sgd=TRAINED), federation, model, 2))
        tuned = train(FineTune(sgd=TRAINED, tune=SGD(epochs=0)), federation, model, 2)
        np.testing.assert_array_equal(personal(tuned), fedavg)
        untrained = train(FineTune(sgd=TRAINED, tune=TRAINED), federation, model, 0)
        np.testing.assert_array_equal(
            personal(untrained),
            personal(train(Local(sgd=TRAINED), federation, model, 1)),
        )


def test_a_run_reports_personal_models_and_serves_newcomers():
    federation = classification(unseen=[False, False, True, False, False])
    result = run(
        FineTune(sgd=TRAINED),
        federation,
        softmax_model("float32"),
        rounds=3,
        evaluate_every=2,
    )
    summary = result.summary()
    assert summary.clients == 4
    assert [
        e.round
        for e in result.metrics.evaluations
        if e.metric == "loss" and e.split == "test"
    ] == [2, 2, 3, 3]
    client = federation.client("client 2")
    own = result.personal("client 2")
    accuracy = (own.predict(client.test.x) == client.test.y).mean()
    np.testing.assert_allclose(summary.unseen_mean, accuracy, **ROUNDED)
    np.testing.assert_allclose(own.probabilities(client.test.x).sum(1), 1, **ROUNDED)
    values = result.metrics.values()
    everyone = result.personal_models()
    for value, index in zip(values, federation.seen, strict=True):
        client = federation.client(int(index))
        assert value == pytest.approx(
            (everyone[client.name].predict(client.test.x) == client.test.y).mean(),
            abs=1e-6,
        )
    guest = result.enroll(client.train.x, client.train.y)
    assert guest.theta.shape == own.theta.shape
    with pytest.raises(ValueError, match="already in the federation"):
        result.enroll(client.train.x, client.train.y, name="client 2")
    with pytest.raises(ValueError, match="expected"):
        own.predict(np.zeros((2, 7)))


def test_rounds_do_not_recompile():
    """One program for other seeds, learning rates, epochs and sizes of clients."""
    from fedtailor.engine.executors.map_clients import map_clients

    model = softmax_model("float32")
    train(
        FedAvg(sgd=SGD(lr=0.1, epochs=1, batch_size=8)),
        classification(sizes=[10, 20, 30, 17, 3]),
        model,
        2,
    )
    programs = map_clients._cache_size()
    train(
        FedAvg(sgd=SGD(lr=0.3, epochs=2, batch_size=8)),
        classification(sizes=[20, 11, 9, 30, 10]),
        model,
        2,
        seed=3,
    )
    assert map_clients._cache_size() == programs


def test_an_empty_val_split_is_no_metric():
    federation = replace(classification(), val=Ragged.empty(5))
    training = simulate(FedAvg(), federation, softmax_model("float32"))
    training.evaluate()
    assert {e.split for e in training.metrics.evaluations} == {"test"}


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_of_a_billion_samples_is_all_that_a_client_has(drop_last):
    federation, model = (
        classification(clients=2, sizes=[9, 5]),
        softmax_model("float32"),
    )
    all_of_them, billion = (
        personal(
            train(
                Local(sgd=SGD(lr=0.1, epochs=2, batch_size=size, drop_last=drop_last)),
                federation,
                model,
                1,
            )
        )
        for size in (1024, 10**9)
    )
    np.testing.assert_array_equal(billion, all_of_them)
    with pytest.raises(
        ValueError, match="batch_size is 1000000000000; it must be below"
    ):
        SGD(batch_size=10**12)


def test_a_model_that_no_machine_holds_is_refused_at_once():
    with pytest.raises(
        ValueError,
        match=r"^a model of 8,000,000,000,003 numbers needs .* GiB of memory",
    ):
        simulate(FedAvg(), classification(clients=2), mlp(10**12))


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(
        ValueError,
        match="clusters is 10000, and there are 2 clients; ask for at most as many",
    ):
        simulate(IFCA(clusters=10_000), classification(clients=2), softmax_model())


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True], ids=str)
def test_seeds_that_would_give_the_random_numbers_of_another_are_refused(seed):
    with pytest.raises(ValueError, match=r"^seed is .*; it must be"):
        simulate(FedAvg(), classification(clients=2), softmax_model(), seed=seed)


@pytest.mark.parametrize("algorithm", [FedAMP(), FedAvg()])
def test_an_answer_that_a_transform_makes_nan_ends_in_the_line_of_training(algorithm):
    with pytest.raises(Diverged, match="gave NaN or infinity") as diverged:
        run(
            algorithm,
            classification(),
            softmax_model("float32"),
            2,
            uplink=(Byzantine("nan", share=0.4),),
        )
    assert "\n" not in str(diverged.value)
