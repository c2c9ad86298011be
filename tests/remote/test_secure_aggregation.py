"""Trainings in which the coordinator sees sums only: the simulation's models to the
bound, and nothing in the clear.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip(
    "cryptography", reason="secure sums need `cryptography` (extra federation)"
)
pytest.importorskip("Crypto", reason="secure sums need PyCryptodome (extra federation)")

from conformance.examples import PLAIN, example
from fedtailor.aggregation.pipelines import Cast, Clip
from fedtailor.aggregation.secure_sums import NOISE, FixedPoint, SecureSums
from fedtailor.algorithms import (
    MAPPER,
    SCAFFOLD,
    UCFL,
    FedAvg,
    FedDyn,
    FedEM,
    FedProto,
    FedRep,
    FineTune,
    HypCluster,
)
from fedtailor.engine.runs import run
from fedtailor.engine.training import Participation, Privacy
from fedtailor.protocol import SGD, Downlink, Streams, hyperparameters
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.wire.messages import decode_reply, decode_request, encode_request
from fedtailor.remote.wire.secure_sums import VECTORS
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients
from fedtailor.testing.problems import classification, predictors, softmax_model
from remote.federations import Remote
from remote.test_executor import assert_close, simulated
from remote.test_job import job_of

pytestmark = pytest.mark.usefixtures("exact_sums")

STREAMS = UCFL(sgd=PLAIN, streams=2, warm=0)
ROUNDS = 2
# half a step of each of four clients, and a rounding of the sum to float32, in each
# round
BOUND = ROUNDS * (4 / 2 * FixedPoint(64.0).step + 2.0**-24)


def clients():
    return classification(4, sizes=[11, 17, 17, 11])


class Secure(Remote):
    """A federation whose job asks for sums."""

    def __init__(self, algorithm, directory, *, sums=None, **options):
        self._sums = SecureSums(open_probe=True) if sums is None else sums
        super().__init__(
            algorithm, clients(), softmax_model("float32"), directory, **options
        )

    @property
    def plan(self):
        return replace(self._plan, sums=self._sums)

    @plan.setter
    def plan(self, plan):
        self._plan = plan


class Watching(LoopbackTransport):
    """Keeps what the coordinator is sent, by task."""

    def __init__(self, clients):
        super().__init__(clients)
        self.replies = []

    def receive(self):
        arrived = super().receive()
        self.replies += [decode_reply(body) for _, body in arrived]
        return arrived

    def bytes_up(self, tasks):
        found = (reply for reply in self.replies if reply.task in tasks)
        return sum(
            array.nbytes
            for reply in found
            for name, array in reply.arrays.items()
            if name != "work"
        )


@pytest.mark.parametrize(("algorithm", "sums"), [(example("fedavg"), 1), (STREAMS, 2)])
def test_models_are_the_simulations_to_the_bound(algorithm, sums, tmp_path):
    ours = Secure(algorithm, tmp_path)
    watching = Watching(ours.responders)
    training, expected = (
        ours.training(ours.executor(watching)),
        simulated(algorithm, clients(), ROUNDS),
    )
    for _ in range(ROUNDS):
        training.advance()
    # training from models that differ by the bound may widen it a little: these steps
    # are Lipschitz
    difference = np.abs(
        np.asarray(training.server.model) - np.asarray(expected.server.model)
    ).max()
    assert (
        difference <= 3 * BOUND
        and len(training.server.model) == sums
        and ours.lines == []
    )
    # no training message holds an update; one masked vector travels for each sum
    trained = [reply for reply in watching.replies if reply.task == "client"]
    assert len(trained) == 4 * ROUNDS and all(
        set(reply.arrays) == {"work"} for reply in trained
    )
    masked = [
        reply.arrays["masked"] for reply in watching.replies if reply.task == VECTORS
    ]
    assert {it.shape for it in masked} == {(sums, ours.plan.model.size)} and masked[
        0
    ].dtype == np.uint32
    # the ledger counts what travelled: masked vectors as models, keys and shares beside
    # them
    stages = {reply.task for reply in watching.replies} - {"client", "probe"}
    entries = [
        entry
        for entry in training.ledger.entries
        if entry.phase == "round" and entry.direction == "up"
    ]
    assert watching.bytes_up(stages) == sum(entry.bytes_unicast for entry in entries)
    models = [entry for entry in entries if entry.kind == "model"]
    assert [entry.unicasts for entry in models] == [4 * sums] * ROUNDS
    assert (
        sum(entry.bytes_unicast for entry in models)
        == 4 * ROUNDS * sums * ours.plan.model.size * 4
    )
    # personal models
    personal, wanted = ours.personal(training), predictors(expected)
    for place, client in enumerate(clients().names):
        assert_close(
            personal[client], [leaf[place] for leaf in wanted], tolerance=3 * BOUND
        )


@pytest.mark.parametrize(("algorithm", "sums"), [(example("fedavg"), 1), (STREAMS, 2)])
def test_a_simulation_with_secure_sums_gives_the_models_to_the_bit(
    algorithm, sums, tmp_path
):
    """And counts the masked vectors that travel, though it masks nothing."""
    ours = Secure(algorithm, tmp_path)
    deployed = ours.training()
    privacy = Privacy(secure_aggregation=True, probe="open")
    simulation = simulated(algorithm, clients(), ROUNDS, privacy=privacy)
    for _ in range(ROUNDS):
        deployed.advance()
    np.testing.assert_array_equal(deployed.server.model, simulation.server.model)
    open_sums = simulated(algorithm, clients(), ROUNDS)
    assert not np.array_equal(simulation.server.model, open_sums.server.model)
    models = [
        [entry.unicasts for entry in training.ledger.entries if entry.kind == "model"]
        for training in (deployed, simulation)
    ]
    assert models[0] == models[1] and 4 * sums in models[0]


def test_a_class_that_no_client_has_is_none_beside_noise(tmp_path, monkeypatch):
    """The noise of its count was taken for rows, and the noise of its features divided by it."""
    monkeypatch.setattr("fedtailor.aggregation.secure_sums.NOISE", NOISE)

    federation = clients()
    last = federation.classes - 1
    fewer = replace(federation, y=np.where(federation.y == last, 0, federation.y))
    monkeypatch.setitem(globals(), "clients", lambda: fewer)
    training = Secure(example("fedproto"), tmp_path).training()
    for _ in range(4):
        training.advance()
        prototypes = np.asarray(training.server.prototypes)
        assert not prototypes[last].any() and prototypes[0].any()


def test_counts_of_classes_are_added_in_small_ranges_only():
    SecureSums(range=64.0).check(FedProto(), ())
    SecureSums(range=1000.0).check(FedAvg(), ())
    with pytest.raises(ValueError, match="would hide counts of classes"):
        SecureSums(range=1000.0).check(FedProto(), ())


def test_a_simulation_refuses_what_sums_do_not_allow():
    privacy = Privacy(secure_aggregation=True)
    model, few = softmax_model("float32"), classification(2)
    for options, said in (
        ({"algorithm": FedAvg(), "federation": few}, "needs 3 clients or more"),
        ({"algorithm": STREAMS}, "needs each client's answer to the probe"),
        ({"participation": 0.5}, "2 of 4 clients report in a round"),
        (
            {"participation": Participation(0.5, sampling="poisson")},
            "Poisson|poisson",
        ),
        ({"uplink": (Cast("bfloat16"),)}, "Cast makes it something else"),
    ):
        settings = {"algorithm": FedAvg(), "federation": clients(), **options}
        with pytest.raises(ValueError, match=said):
            run(model=model, rounds=1, privacy=privacy, **settings)


def test_without_scores_a_simulation_measures_nothing():
    finished = run(
        FedAvg(),
        clients(),
        softmax_model("float32"),
        1,
        privacy=Privacy(evaluate=False),
    )
    assert finished.metrics.evaluations == []
    assert np.isfinite(finished.personal(0).theta).all()


def test_a_round_without_a_client_shows_it_and_does_not_count(tmp_path):
    """By the difference to a round with it: updates are alike from round to round."""
    ours = Secure(example("fedavg"), tmp_path)
    lost = clients().names[1]
    answer = ours.responders[lost]
    training = ours.training()
    before = np.array(training.server.model)
    for task, said in (
        (VECTORS, "3 of 4 clients are left for a secure sum, and it needs 4"),
        ("client", "3 of 4 clients"),
    ):
        deaf = lambda body, task=task: b"" if task.encode() in body else answer(body)  # noqa: E731
        training.executor._transport = LoopbackTransport(
            {**ours.responders, lost: deaf}
        )
        with pytest.raises(TooFewClients, match=said):
            training.advance()
        np.testing.assert_array_equal(training.server.model, before)
    training.executor._transport = ours.transport
    training.advance()
    assert training.round == 1


def test_other_clients_in_each_round_are_refused_before_anything_is_sent():
    """After as many rounds as clients the sums would show all of them."""
    said = (
        r"^3 of 5 clients report in a round, and the differences of such sums show"
        r" single clients: .* or set sum_scope = \"round\" in \[privacy\]"
    )
    with pytest.raises(ValueError, match=said):
        SecureSums().check_client_count(example("fedavg"), 3, 5)
    SecureSums(scope="round").check_client_count(example("fedavg"), 3, 5)
    SecureSums().check_client_count(example("fedavg"), 5, 5)


def test_a_client_lost_after_training_weighs_nothing_and_returns(tmp_path):
    ours = Secure(example("fedavg"), tmp_path, sums=SecureSums(scope="round"))
    lost = clients().names[1]
    answer = ours.responders[lost]
    deaf = lambda body: b"" if VECTORS.encode() in body else answer(body)  # noqa: E731 (a line is enough)
    training = ours.training(
        ours.executor(LoopbackTransport({**ours.responders, lost: deaf}), minimum=3)
    )
    training.advance()
    assert ours.lines == [
        f"client {lost}: it is not a message of a fedtailor federation, or it is damaged"
    ]
    expected = simulated(example("fedavg"), clients(), 0)
    expected.advance(
        reporting=np.array([name != lost for name in expected.population.names])
    )
    np.testing.assert_allclose(
        training.server.model, expected.server.model, rtol=0, atol=2 * BOUND
    )
    training.executor._transport = ours.transport
    training.advance()
    expected.advance()
    np.testing.assert_allclose(
        training.server.model, expected.server.model, rtol=0, atol=3 * BOUND
    )
    # below the minimum the round does not count, and can be done again
    training.executor._transport = LoopbackTransport({**ours.responders, lost: deaf})
    training.executor.rules = replace(training.executor.rules, minimum=4)
    before = np.array(training.server.model)
    with pytest.raises(
        TooFewClients, match="3 of 4 clients are left for a secure sum, and it needs 4"
    ):
        training.advance()
    np.testing.assert_array_equal(training.server.model, before)
    training.executor._transport = ours.transport
    training.advance()
    assert training.round == 3


def test_several_vectors_of_a_client_are_added_each_in_a_sum_of_its_own(tmp_path):
    algorithm = SCAFFOLD(sgd=replace(PLAIN, epochs=1, steps=3))
    ours, expected = Secure(algorithm, tmp_path), simulated(algorithm, clients(), 1)
    training = ours.training()
    training.advance()
    np.testing.assert_allclose(
        training.server.model, expected.server.model, rtol=0, atol=3 * BOUND
    )
    assert (
        training.ledger.totals().models_up == expected.ledger.totals().models_up
        and ours.lines == []
    )


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            HypCluster(),
            (
                "hypcluster's needs more of each client; `fedtailor algorithms --by"
                " sees` lists"
            ),
        ),
        (
            UCFL(),
            "ucfl's needs no more if streams is a number, and sigma_batch not 'auto'",
        ),
        (
            UCFL(streams=2, sigma_batch="auto"),
            "ucfl's needs no more if streams is a number",
        ),
        (
            UCFL(streams=3),
            (
                "3 sums over 4 clients hide little; secure_aggregation needs two"
                " clients or more in a"
            ),
        ),
    ],
)
def test_methods_that_need_more_are_refused_before_anything_is_sent(
    algorithm, said, tmp_path
):
    ours = Secure(algorithm, tmp_path)
    watching = Watching(ours.responders)
    with pytest.raises(ValueError) as refused:
        ours.training(ours.executor(watching))
    assert (
        said in str(refused.value)
        and "\n" not in str(refused.value)
        and watching.replies == []
    )


def test_numbers_beside_the_model_are_refused_before_anything_is_sent(tmp_path):
    ours = Secure(FineTune(sgd=PLAIN, best=True), tmp_path)
    watching = Watching(ours.responders)
    with pytest.raises(
        ValueError,
        match=r"clients would send numbers in addition to the model \(validation_loss, ",
    ):
        ours.training(ours.executor(watching)).advance()
    assert watching.replies == []


@hyperparameters
class Curious(FedAvg):
    """Averages as FedAvg does, and looks at the models besides."""

    # It promises what it does not keep.
    server_sees = "sums"

    def server(self, server, downlink, answers, cohort):
        answers.host("model")
        return super().server(server, downlink, answers, cohort)


def test_a_server_that_looks_at_single_updates_is_stopped(tmp_path):
    ours = Secure(Curious(sgd=PLAIN), tmp_path)
    with pytest.raises(
        ValueError,
        match=(
            "asks for single clients' vectors, and secure_aggregation shows it sums"
            " only"
        ),
    ):
        ours.training().advance()


class Favouring(LoopbackTransport):
    """Sends one client another model than the others."""

    def send(self, client, body):
        request = decode_request(body)
        if client == clients().names[0] and request.task == "client":
            model = np.full((1, softmax_model("float32").size), 0.5, np.float32)
            arrays = {"stream/model": model, "index/model": np.zeros(1, np.int32)}
            body = encode_request(replace(request, arrays=arrays))
        super().send(client, body)


def test_clients_that_are_sent_different_models_give_no_sum(tmp_path):
    ours = Secure(example("fedavg"), tmp_path)
    training = ours.training(ours.executor(Favouring(ours.responders)))
    with pytest.raises(TooFewClients, match="clients are left for a secure sum"):
        training.advance()


@hyperparameters
class ToEach(FedAvg):
    """Sends each client a model of its own, and does not say so."""

    server_sees = "sums"

    def broadcast(self, server, cohort):
        models = jnp.tile(server.model, (len(cohort), 1))
        return Downlink({"model": Streams.one_each(models + jnp.eye(*models.shape))})


def test_a_method_says_what_each_client_has_its_own_of(tmp_path, monkeypatch):
    ours = Secure(ToEach(sgd=PLAIN), tmp_path)
    with pytest.raises(ValueError, match="sends clients different arrays 'stream/mod"):
        ours.training().advance()
    monkeypatch.setattr(ToEach, "sent_to_each", frozenset({"model"}))
    training = ours.training()
    training.advance()
    assert np.abs(np.asarray(training.server.model)).max() < 10


def test_the_probe_is_open_or_refused(tmp_path):
    closed = SecureSums()
    with pytest.raises(
        ValueError,
        match=(
            r"needs each client's answer to the probe, which no sum hides; .* probe = "
        ),
    ):
        Secure(STREAMS, tmp_path, sums=closed).training()
    # a coordinator that asks all the same is refused by the clients
    ours = Secure(STREAMS, tmp_path, sums=closed)
    executor = Secure(STREAMS, tmp_path).executor(ours.transport)
    with pytest.raises(TooFewClients):
        ours.training(executor).advance()
    assert (
        len(ours.lines) == 4
        and "its job does not let it send what the request asks for" in ours.lines[0]
    )


def test_a_coordinator_that_asks_for_more_than_the_job_says_gets_nothing(tmp_path):
    ours = Secure(example("fedavg"), tmp_path)
    plain = Remote(example("fedavg"), clients(), softmax_model("float32"), tmp_path)
    with pytest.raises(TooFewClients):
        plain.training(plain.executor(ours.transport)).advance()
    assert "the array 'update/model' is missing" in plain.lines[0]
    # and clients whose job shows updates take no part in sums
    with pytest.raises(TooFewClients):
        ours.training(ours.executor(plain.transport)).advance()


@pytest.mark.parametrize("transform", [Cast(), Clip(0.05)])
def test_updates_that_change_their_length_are_not_added(transform, tmp_path):
    """At equal sizes and a falling rate r, r times the first sum less the second was to 93 %
    the vector of the one client that was clipped.
    """
    said = f"and {type(transform).__name__} makes it something else, or longer at one"
    with pytest.raises(ValueError, match=said):
        Secure(example("fedavg"), tmp_path, uplink=(transform,)).training()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        # A client that chose its own model sent back the one that it received.
        (MAPPER(), "a sum can be what another has changed"),
        # Of four clients, one had more than 90 % in a component's sum in 3 of 3 runs.
        (FedEM(), "sum can be what a single one has changed"),
        (FedDyn(sgd=SGD(steps=2), weights="samples"), "say weights = 'uniform'"),
        # A penalty by each client's number of rows: 124 of 124 counts from three sums.
        (FedAvg(sgd=SGD(ridge=1.0)), "ridge shortens each one's model"),
        (FedRep(head=SGD(ridge=1.0)), "ridge shortens each one's model"),
    ],
)
def test_factors_of_a_clients_own_are_not_added(method, said, tmp_path):
    """Sums of several rounds, in which they differ, are solved for one client."""
    with pytest.raises(ValueError, match=said):
        Secure(method, tmp_path).training()


def test_a_mean_that_clients_would_not_train_ends_the_run(tmp_path):
    """Before, they refused it round after round, and the coordinator waited for ever."""
    usual = Secure(example("fedavg"), tmp_path / "usual").training()
    usual.advance()
    largest = float(np.abs(usual.server.model).max())
    sums = SecureSums(range=1.9 * largest)
    with pytest.raises(ValueError, match="half of sum_range: raise sum_range of the"):
        Secure(example("fedavg"), tmp_path / "small", sums=sums).training().advance()


@pytest.mark.parametrize("name", ["ditto", "scaffold"])
def test_states_of_clients_go_on(name, tmp_path):
    """Clients keep Ditto's personal models, and SCAFFOLD's controls, whose changes are
    a second sum of each round.

    Controls that are changes of models by each client's number of steps showed a client
    whose number is another one: its own update, to a millionth.
    """
    method = example(name)
    if name == "scaffold":
        with pytest.raises(ValueError, match="two sums show a client whose number is"):
            Secure(method, tmp_path).training()
        method = replace(method, sgd=replace(method.sgd, epochs=1, steps=3))
    ours, expected = (
        Secure(method, tmp_path),
        simulated(method, clients(), ROUNDS),
    )
    training = ours.training()
    for _ in range(ROUNDS):
        training.advance()
    assert_close(training.server, expected.server)
    personal = ours.personal(training)
    for place, client in enumerate(clients().names):
        assert_close(personal[client], [leaf[place] for leaf in predictors(expected)])


def test_a_job_asks_for_it(tmp_path):
    # The template asks for it; a setting beside it stands in the next line.
    asked = "secure_aggregation = true"
    average = ('use = "finetune"', 'use = "fedavg"')
    assert (
        job_of(tmp_path, (asked, "secure_aggregation = false")).spec.privacy.sums
        is None
    )
    job = job_of(tmp_path, average)
    assert job.spec.privacy.sums == SecureSums() == plan_of(job).sums
    settings = (
        "secure_aggregation = true\nsum_threshold = 0.8\nsum_range = 8.0\nprobe ="
        ' "open"'
    )
    streams = ('use = "finetune"', 'use = "ucfl"\nstreams = 2')
    job = job_of(tmp_path, (asked, settings), streams)
    assert job.spec.privacy.sums == SecureSums(0.8, 8.0, True)
    assert job.identity != job_of(tmp_path, average).identity
    for changes, said in (
        (
            (('"finetune"', '"ucfl"'),),
            (
                "line 37: secure_aggregation shows the server sums only; ucfl's needs"
                " no more if streams is"
            ),
        ),
        (
            (('"finetune"', '"cfl"'),),
            "line 37: secure_aggregation shows the server sums only, and cfl's",
        ),
        (
            (('use = "finetune" ', 'use = "ucfl"\nstreams = 2 '),),
            "line 38: ucfl's server needs each client's answer",
        ),
        (
            (average, ("uplink = []", 'uplink = [{ use = "quantize" }]')),
            "line 37: secure_aggregation adds what",
        ),
        (
            ((asked, asked + "\nsum_threshold = 0.5"), average),
            "line 38: sum_threshold is 0.5; it must be from 0.66",
        ),
        (
            (average, ('"uniform"', '"poisson"')),
            "line 37: secure_aggregation needs clients enough",
        ),
        (
            ((asked, asked + "\nsum_range = 0"), average),
            "line 38: sum_range is 0; it must be at least 0.001",
        ),
        (
            ((asked, asked + '\nprobe = "x"'), average),
            "line 38: probe is 'x'; it must be 'refused'",
        ),
    ):
        with pytest.raises(ValueError) as refused:
            job_of(tmp_path, *changes)
        assert said in str(refused.value) and "\n" not in str(refused.value)
