"""One client that lies in the right form: it is named and left out, and the others train
as if it had not answered.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.examples import PLAIN, example
from fedtailor.aggregation.pipelines import Clip, GaussianNoise, Quantize, TopK
from fedtailor.algorithms import IFCA, UCFL, FedAvg
from fedtailor.remote.wire.messages import decode_reply, decode_request, encode_reply
from fedtailor.remote.wire.transport import LoopbackTransport
from fedtailor.testing.problems import classification, softmax_model
from remote.federations import Remote
from remote.jobs import NAMES, Clients
from remote.test_executor import assert_close, simulated

BAD = 1
"""Which of the clients lies."""


def lying(respond, change, tasks=("client",)):
    """A client whose answers to some tasks are changed.

    Args:
        respond: the honest client.
        change: function from the arrays of an honest answer to those that are sent.
        tasks: tasks in whose answers the client lies.
    """

    def answer(body):
        reply = decode_reply(respond(body))
        request = decode_request(body)
        if request.task not in tasks or reply.refusal or reply.cache_miss:
            return encode_reply(reply)
        arrays = {name: np.array(array) for name, array in reply.arrays.items()}
        change(arrays)
        return encode_reply(replace(reply, arrays=arrays))

    return answer


def with_liar(ours, change, tasks=("client",)):
    liar = ours.federation.names[BAD]
    clients = dict(ours.responders)
    clients[liar] = lying(clients[liar], change, tasks)
    return liar, LoopbackTransport(clients)


def without(algorithm, clients, name, rounds, **options):
    """The simulation in which one client never reports."""
    expected = simulated(algorithm, clients, 0, **options)
    for _ in range(rounds):
        expected.advance(
            reporting=np.array([each != name for each in expected.population.names])
        )
    return expected


def set_all(name, value):
    def change(arrays):
        arrays[name][...] = value

    return change


@pytest.mark.parametrize("value", [1e30, 1e6, -1e30, np.nan, np.inf])
def test_a_model_that_is_too_far_away_does_not_reach_the_others(value, tmp_path):
    clients = classification(4)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)
    liar, transport = with_liar(ours, set_all("update/model", value))
    training = ours.training(ours.executor(transport, minimum=2))
    for _ in range(2):
        training.advance()
    assert_close(
        training.server, without(example("fedavg"), clients, liar, 2).server, 0
    )
    assert len(ours.lines) == 2 and all(liar in line for line in ours.lines)


def test_a_model_within_what_others_do_is_believed(tmp_path):
    """Ten times as far as honest ones: a client with more rows may come that far."""
    clients = classification(4)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)

    def ten_times(arrays):
        start = ours.plan.initial()
        arrays["update/model"] = start + 10 * (arrays["update/model"] - start)

    _, transport = with_liar(ours, ten_times)
    training = ours.training(ours.executor(transport))
    training.advance()
    assert not ours.lines


@pytest.mark.parametrize(
    "uplink",
    [
        (Clip(0.05),),
        (Clip(0.05), Quantize(block=8)),
        (Clip(0.05), TopK(0.2)),
        (GaussianNoise(0.5, norm=0.05, by="client"),),
        (GaussianNoise(0.5, norm=0.05, by="server"),),
    ],
    ids=lambda uplink: "-".join(each.name for each in uplink),
)
def test_the_bound_of_a_clip_is_the_coordinators_too(uplink, tmp_path):
    """Without it an honest client is let through; a change of norm 4 is not."""
    algorithm = FedAvg(sgd=PLAIN, weights="uniform")
    clients = classification(4)
    ours = Remote(
        algorithm,
        clients,
        softmax_model("float32"),
        tmp_path,
        uplink=uplink,
        evaluate=False,
    )

    def far(arrays):
        name = "update/model"
        if arrays[name].dtype == np.int8:
            arrays["update/model scale"][...] = 1.0
        else:
            arrays[name] = arrays[name] + np.float32(4.0)

    honest = ours.training(ours.executor())
    for _ in range(3):
        honest.advance()
    assert not ours.lines
    ours.responders = {name: ours.client(name) for name in clients.names}
    liar, transport = with_liar(ours, far)
    training = ours.training(ours.executor(transport))
    training.advance()
    assert [liar in line and "0.05" in line for line in ours.lines] == [True]
    assert np.abs(np.asarray(training.server.model)).max() < 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("work", -5),
        ("work", 2**60),
        ("update/cluster", 2),
        ("update/cluster", -1),
        ("update/cluster", 2**31 - 1),
    ],
)
def test_numbers_out_of_range_are_refused_with_the_senders_name(name, value, tmp_path):
    clients = classification(4)
    algorithm = IFCA(sgd=PLAIN, clusters=2)
    ours = Remote(algorithm, clients, softmax_model("float32"), tmp_path)
    liar, transport = with_liar(ours, set_all(name, value))
    training = ours.training(ours.executor(transport))
    training.advance()
    assert len(ours.lines) == 1 and liar in ours.lines[0]
    assert_close(training.server, without(algorithm, clients, liar, 1).server)


@pytest.mark.parametrize("value", [2**15, -3])
def test_an_index_of_a_model_that_was_not_sent_is_refused(value, tmp_path):
    """The server would look it up, and end."""
    clients, uplink = classification(4), (Quantize(block=8),)
    algorithm = IFCA(sgd=PLAIN, clusters=2)
    ours = Remote(algorithm, clients, softmax_model("float32"), tmp_path, uplink=uplink)
    liar, transport = with_liar(ours, set_all("update/model start", value))
    training = ours.training(ours.executor(transport))
    training.advance()
    assert len(ours.lines) == 1 and liar in ours.lines[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("update/sigma2", -1.0),
        ("update/samples", 1e9),
        ("update/samples", -5.0),
        ("update/gradient", 1e30),
    ],
)
def test_a_probe_is_checked_like_a_round(name, value, tmp_path):
    from fedtailor.remote.wire.transport import TooFewClients

    clients = classification(4)
    ours = Remote(UCFL(sgd=PLAIN, warm=0), clients, softmax_model("float32"), tmp_path)
    liar, transport = with_liar(ours, set_all(name, value), tasks=("probe",))
    training = ours.training(ours.executor(transport))
    with pytest.raises(TooFewClients):
        training.advance()
    assert len(ours.lines) == 1 and liar in ours.lines[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scores/test/statistics/accuracy/correct", 500_000.0),
        ("scores/test/statistics/accuracy/correct", -1.0),
        ("scores/val/statistics/accuracy/count", 1e-3),
        ("scores/test/count", -4),
    ],
)
def test_scores_that_no_model_can_have_are_refused(name, value, tmp_path):
    clients = classification(4)
    ours = Remote(example("fedavg"), clients, softmax_model("float32"), tmp_path)
    liar, transport = with_liar(ours, set_all(name, value), tasks=("evaluate",))
    training = ours.training(ours.executor(transport))
    training.advance()
    training.evaluate()
    assert len(ours.lines) == 1 and liar in ours.lines[0]
    assert len(training.metrics.values("accuracy")) == 3


def test_a_run_with_a_liar_ends_with_sound_models_and_a_sound_checkpoint(
    tmp_path, lines
):
    clients = Clients(tmp_path / "wards")
    transport, _ = clients.start(NAMES)
    honest = transport._clients["b"]
    transport._clients["b"] = lying(honest, set_all("update/model", 1e30))
    training = clients.train_over(transport, NAMES)
    assert len(lines) == 4 and all("client b" in line for line in lines)
    assert np.isfinite(np.asarray(training.server.model)).all()
    assert np.abs(np.asarray(training.server.model)).max() < 100
    clients.set_rounds(6)
    more = clients.train(NAMES, resume=True)
    assert more.round == 6
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(more.server))
