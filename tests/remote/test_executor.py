"""The same methods over messages: every request and answer goes through bytes, and the
models are the simulation's.
"""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.examples import example
from fedtailor import models
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import DAPPER, FedMD, Then
from fedtailor.algorithms.dapper import sampler
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import simulate
from fedtailor.engine.storage.checkpoint import load_tree, save_tree
from fedtailor.protocol import Algorithm
from fedtailor.remote.wire.messages import decode_reply, decode_request
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients
from fedtailor.testing.conformance import participation_of
from fedtailor.testing.problems import classification, predictors, softmax_model
from remote.federations import Remote

GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
ONE_MACHINE = Settings(devices=1, canonical=True)


def federation():
    # ragged, of two sizes only: each client compiles programs of its own for each
    return classification(sizes=[11, 17, 17, 11, 17], groups=GROUPS, unseen=UNSEEN)


def method(name):
    """The method as the suite runs it; DAPPER with public examples, as its server has
    no others.
    """
    if name == "dapper":
        rng = np.random.default_rng(3)
        data = federation()
        return DAPPER(
            sgd=example(name).sgd,
            tune=example(name).tune,
            source="proxy",
            proxy=sampler(
                rng.normal(size=(20, 4)).astype(data.x.dtype),
                rng.integers(0, 3, 20).astype(data.y.dtype),
            ),
        )
    return example(name)


def simulated(algorithm, clients, rounds, **options):
    training = simulate(
        algorithm, clients, softmax_model("float32"), settings=ONE_MACHINE, **options
    )
    for _ in range(rounds):
        training.advance()
    return training


def assert_close(ours, expected, tolerance=1e-5):
    for one, other in zip(
        jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True
    ):
        if isinstance(one, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# Machines have no public set, which FedMD needs (refused below).
@pytest.mark.parametrize("name", sorted(set(Algorithm.registry) - {"fedmd"}))
def test_methods_give_the_models_of_the_simulation(name, tmp_path):
    algorithm, clients = method(name), federation()
    participation = participation_of(algorithm, lambda: softmax_model("float32"))
    ours = Remote(
        algorithm,
        clients,
        softmax_model("float32"),
        tmp_path,
        participation=participation,
    )
    counting = Counting(ours.responders)
    training = ours.training(ours.executor(counting))
    for _ in range(3):
        training.advance()
    rounds = training.ledger.totals()
    # of this small model, the envelopes are larger than the vectors: whole messages are
    # counted below
    assert counting.vectors_up <= 1.02 * rounds.bytes_up
    assert counting.vectors_down <= 1.02 * rounds.bytes_down_unicast
    training.evaluate()
    expected = simulated(algorithm, clients, 3, participation=participation)
    expected.evaluate()
    assert_close(training.server, expected.server)
    wanted = predictors(expected)
    assert np.isfinite(wanted[0]).all()
    delivered = Ledger(training.ledger.entries)
    personal = ours.personal(training, delivered)
    charged = sum(
        entry.bytes_unicast for entry in delivered.entries if entry.direction == "down"
    )
    assert counting.vectors_down <= 1.02 * charged
    for place, client in enumerate(clients.names):
        assert_close(personal[client], [leaf[place] for leaf in wanted])
    for metric in ("loss", "accuracy"):
        for unseen in (False, True):
            mine = training.metrics.values(metric, unseen=unseen)
            assert len(mine) == (1 if unseen else 4)
            np.testing.assert_allclose(
                mine, expected.metrics.values(metric, unseen=unseen), rtol=1e-4
            )
    assert training.ledger.totals() == expected.ledger.totals()
    assert ours.lines == []


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (DAPPER(), "dapper's server needs examples of the clients and has none"),
        (FedMD(), "fedmd needs a public set of inputs"),
    ],
)
def test_a_server_without_examples_refuses_methods_that_need_them(
    algorithm, message, tmp_path
):
    ours = Remote(algorithm, federation(), softmax_model("float32"), tmp_path)
    with pytest.raises(ValueError, match=message):
        ours.training()


def test_schedules_start_the_second_method_from_the_first_ones_model(tmp_path):
    schedule, clients = (
        Then(example("fedavg"), 2, Then(example("ditto"), 2, example("ucfl"))),
        federation(),
    )
    ours = Remote(schedule, clients, softmax_model("float32"), tmp_path)
    training, expected = ours.training(), simulated(schedule, clients, 0)
    for _ in range(5):
        training.advance()
        expected.advance()
        assert_close(training.server, expected.server)
    assert training.phase.index == 2
    personal = ours.personal(training)
    for place, client in enumerate(clients.names):
        assert_close(personal[client], [leaf[place] for leaf in predictors(expected)])


@pytest.mark.parametrize("name", ["fedavg", "ucfl"])
def test_models_are_the_simulations_to_the_bit(name, tmp_path):
    clients = federation()
    ours = Remote(example(name), clients, softmax_model("float32"), tmp_path)
    training, expected = ours.training(), simulated(example(name), clients, 3)
    for _ in range(3):
        training.advance()
    assert_close(training.server, expected.server, tolerance=0)
    personal, wanted = ours.personal(training), predictors(expected)
    for place, client in enumerate(clients.names):
        assert_close(personal[client], [leaf[place] for leaf in wanted], tolerance=0)


def test_a_client_whose_answers_are_lost_is_done_without(tmp_path):
    clients = classification(3)
    ours = Remote(example("scaffold"), clients, softmax_model("float32"), tmp_path)
    lost = clients.names[1]
    silent = LoopbackTransport(
        {**ours.responders, lost: lambda body: b"nothing of ours"}
    )
    training = ours.training(ours.executor(silent, minimum=2))
    training.advance()
    assert ours.lines == [
        f"client {lost}: it is not a message of a fedtailor federation, or it is damaged"
    ]
    # the same round in a simulation in which that client does not report
    expected = simulated(example("scaffold"), clients, 0)
    expected.advance(
        reporting=np.array([name != lost for name in expected.population.names])
    )
    assert_close(training.server, expected.server)
    # it comes back, and starts from the state that counts: none
    training.executor._transport = ours.transport
    training.advance()
    expected.advance()
    assert_close(training.server, expected.server)


def test_a_round_without_the_minimum_changes_nothing(tmp_path):
    clients = classification(3)
    ours = Remote(example("ditto"), clients, softmax_model("float32"), tmp_path)
    mute = {name: lambda body: b"" for name in clients.names[:2]}
    executor = ours.executor(minimum=2)
    training = ours.training(executor)
    training.advance()
    before = jax.tree.map(np.array, training.server)
    executor._transport = LoopbackTransport({**ours.responders, **mute})
    with pytest.raises(
        TooFewClients, match="1 of 3 clients answered in time, and 2 are needed"
    ):
        training.advance()
    assert training.round == 1
    assert_close(training.server, before, tolerance=0)
    executor._transport = ours.transport
    ours.lines.clear()
    training.advance()
    expected = simulated(example("ditto"), clients, 2)
    assert_close(training.server, expected.server)
    personal = ours.personal(training)
    for place, client in enumerate(clients.names):
        assert_close(personal[client], [predictors(expected)[0][place]])


def test_coordinator_and_clients_that_start_again_go_on_to_the_same_bits(tmp_path):
    clients = classification(3)
    straight = Remote(
        example("ditto"), clients, softmax_model("float32"), tmp_path / "straight"
    )
    expected = straight.training()
    for _ in range(5):
        expected.advance()

    ours = Remote(
        example("ditto"), clients, softmax_model("float32"), tmp_path / "killed"
    )
    training = ours.training()
    for _ in range(2):
        training.advance()
    save_tree(tmp_path / "checkpoint", training.snapshot())
    training.executor.snapshot_saved()
    for _ in range(
        2
    ):  # the coordinator dies after these: nobody will ask for what they led to
        training.advance()
    ours.transport = LoopbackTransport(
        {name: ours.client(name) for name in clients.names}
    )
    again = ours.training()
    again.restore(load_tree(tmp_path / "checkpoint"))
    for _ in range(3):
        again.advance()
    assert_close(again.server, expected.server, tolerance=0)
    mine, wanted = ours.personal(again), straight.personal(expected)
    for client in clients.names:
        assert_close(mine[client], wanted[client], tolerance=0)
        assert ours.store(client).rounds()[0] == 1  # nobody can ask for older ones


def test_without_leave_to_evaluate_nobody_is_asked_and_clients_refuse(tmp_path):
    clients = classification(3)
    ours = Remote(
        example("fedavg"), clients, softmax_model("float32"), tmp_path, evaluate=False
    )
    training = ours.training()
    training.advance()
    training.evaluate()
    assert len(training.metrics.values("loss")) == 0
    ours.plan = replace(ours.plan, evaluate=True)
    curious = ours.training()
    curious.evaluate()
    assert len(ours.lines) == 3
    assert "its job does not let it send what the request asks for" in ours.lines[0]
    assert len(curious.metrics.values("loss")) == 0


def test_a_client_does_only_what_its_job_says(tmp_path):
    clients = classification(3)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)
    ours.plan = replace(ours.plan, algorithm=example("finetune"))
    with pytest.raises(TooFewClients):
        ours.training().advance()
    assert "another method, hyper-parameter or seed than its job's" in ours.lines[0]


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_messages_are_hardly_larger_than_what_the_ledger_counts(name, tmp_path):
    clients = classification(2)
    model = models.mlp(hidden=5000).bind((4,), 3)  # about as large as LeNet-5
    ours = Remote(example(name), clients, model, tmp_path)
    counting = Counting(ours.responders)
    training = ours.training(ours.executor(counting))
    for _ in range(3):
        training.advance()
        training.evaluate()
    totals = training.ledger.totals()
    assert totals.bytes_up < counting.up <= 1.02 * totals.bytes_up
    # the first round's model follows from the seed; the last evaluation sends what is
    # delivered at the end
    assert (
        0.9 * totals.bytes_down_unicast
        < counting.down
        <= 1.02 * totals.bytes_down_unicast
    )
    before = counting.down
    ours.personal(training)
    assert counting.down - before < 0.02 * model.size * 4 * len(clients)


def test_a_client_that_was_started_again_is_sent_what_it_lacks(tmp_path):
    clients = classification(2)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)
    training = ours.training()
    training.advance()
    training.evaluate()
    first, other = clients.names
    counting = training.executor._transport = Counting(
        {**ours.responders, first: ours.client(first)}
    )
    training.advance()
    assert counting.vectors_down == ours.plan.model.size * 4 and counting.messages == {
        first: 2,
        other: 1,
    }
    assert not ours.lines
    assert_close(
        training.server, simulated(example("fedavg"), clients, 2).server, tolerance=0
    )


class Counting(LoopbackTransport):
    """Counts messages, their bytes, and the bytes of the vectors in them."""

    def __init__(self, clients):
        super().__init__(clients)
        self.up = self.down = self.vectors_up = self.vectors_down = 0
        self.messages = Counter()

    def send(self, client, body):
        arrays = decode_request(body).arrays
        self.down += len(body)
        self.vectors_down += sum(
            array.nbytes
            for name, array in arrays.items()
            if name == "initial" or name.startswith("stream/")
        )
        self.messages[client] += 1
        super().send(client, body)

    def receive(self):
        arrived = super().receive()
        for _, body in arrived:
            arrays = decode_reply(body).arrays
            self.up += len(body)
            self.vectors_up += sum(
                array.nbytes
                for name, array in arrays.items()
                if name.startswith("update/") and array.ndim
            )
        return arrived


def test_a_split_of_few_rows_is_not_measured(tmp_path):
    """The loss of a single row tells its class to whoever has the model."""
    clients = classification(4, test=6, val=4)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)
    training, expected = ours.training(), simulated(example("fedavg"), clients, 1)
    training.advance()
    training.evaluate()
    expected.evaluate()
    np.testing.assert_allclose(
        training.metrics.values("loss", "test"), expected.metrics.values("loss", "test")
    )
    assert len(expected.metrics.values("loss", "val")) == 4
    assert not len(training.metrics.values("loss", "val")) and ours.lines == []
