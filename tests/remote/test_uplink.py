"""What clients do to their updates before they send them, over messages: as in the
simulation, with secrets besides.
"""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest

from conformance.examples import PLAIN
from fedtailor.aggregation.pipelines import Clip, GaussianNoise, Quantize, TopK
from fedtailor.algorithms import MRMTL, FedAvg
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.secret import SECRET, secret_in
from fedtailor.remote.wire.transport import TooFewClients
from fedtailor.testing import classification, softmax_model
from remote.federations import Remote
from remote.test_job import job_of

CLIENTS = 12
UNIFORM = FedAvg(sgd=PLAIN, weights="uniform")


def trained(training, rounds):
    for _ in range(rounds):
        training.advance()
    return training


def simulated(algorithm, clients, rounds, **options):
    machine = Settings(devices=1, canonical=True)
    return trained(
        simulate(
            algorithm, clients, softmax_model("float32"), settings=machine, **options
        ),
        rounds,
    )


def test_compressed_updates_give_the_models_of_the_simulation(tmp_path):
    """Error feedback is the client's, which has kept it through a restart of its
    process.
    """
    clients, uplink = classification(3), (Clip(0.05), TopK(0.2), Quantize(block=8))
    ours = Remote(UNIFORM, clients, softmax_model("float32"), tmp_path, uplink=uplink)
    training = trained(ours.training(), 2)
    ours.responders[clients.names[0]] = ours.client(clients.names[0])
    trained(training, 1)
    expected = simulated(UNIFORM, clients, 3, uplink=uplink)
    np.testing.assert_allclose(
        training.server.model, expected.server.model, rtol=0, atol=1e-5
    )
    assert training.ledger.totals() == expected.ledger.totals() and ours.lines == []


def test_noise_on_the_mean_is_that_of_the_simulation(tmp_path):
    """A simulated private run also draws its batches from a seed that holds a digest of
    the examples. Clients of machines draw theirs from the job's seed, so batches here
    are whole, and the server is told the digest.
    """
    whole = FedAvg(sgd=replace(PLAIN, batch_size=128), weights="uniform")
    noise = GaussianNoise(multiplier=0.5, norm=0.05, delta=0.01, quantile=0.5)
    options = {"participation": Participation(0.9, sampling="poisson")}
    clients = classification(CLIENTS)
    ours = Remote(
        whole, clients, softmax_model("float32"), tmp_path, uplink=(noise,), **options
    )
    training, expected = (
        trained(ours.training(data=clients.digest), 2),
        simulated(whole, clients, 2, uplink=(noise,), **options),
    )
    np.testing.assert_allclose(
        training.server.model, expected.server.model, rtol=0, atol=1e-5
    )
    assert (
        training.uplink_state[0]["norm"]
        == pytest.approx(expected.uplink_state[0]["norm"])
        != 0.05
    )
    for it in (training, expected):
        np.testing.assert_array_equal(
            it.metrics.values("client_epsilon", "all"),
            it.privacy.epsilons(2)["client_epsilon"],
        )
    assert (
        training.privacy.epsilons(2)["client_epsilon"][0]
        == expected.privacy.epsilons(2)["client_epsilon"][0]
        > 0
    )
    # with a secret, others than the coordinator cannot know who reports and which noise
    # is added
    hidden = trained(ours.training(secret=7), 1)
    assert (
        np.abs(
            np.asarray(hidden.server.model) - np.asarray(expected.server.model)
        ).max()
        > 1e-4
    )


PRIVATE = SGD(lr=0.1, steps=2, dp_noise=1.0, dp_norm=1.0)


@pytest.mark.parametrize(
    ("algorithm", "uplink"),
    [
        (UNIFORM, (GaussianNoise(norm=0.05, delta=0.01, by="client"),)),
        (MRMTL(sgd=PRIVATE), ()),
    ],
)
def test_a_clients_noise_is_its_secret(algorithm, uplink, tmp_path):
    """The coordinator knows the seed, and all that follows from it; what a client adds
    follows from its own.
    """
    clients = classification(2)
    ours = Remote(algorithm, clients, softmax_model("float32"), tmp_path, uplink=uplink)
    model = np.asarray(trained(ours.training(), 1).server.model)
    known = np.asarray(simulated(algorithm, clients, 1, uplink=uplink).server.model)
    assert np.abs(model - known).max() > 1e-3
    ours.start_again()
    again = trained(ours.training(), 1)
    np.testing.assert_array_equal(again.server.model, model)
    name = "example_epsilon" if algorithm is not UNIFORM else "client_epsilon"
    assert (again.metrics.values(name, "all") > 0).all() and ours.lines == []
    secrets = {secret_in(ours.store(client).directory) for client in clients.names}
    assert len(secrets) == 2 and all(0 <= secret < 2**64 for secret in secrets)
    # With another secret the same request had another answer: noise was averaged away.
    for client in clients.names:
        (ours.store(client).directory / SECRET).unlink()
    ours.start_again()
    with pytest.raises(TooFewClients):
        trained(ours.training(), 1)
    assert all("it has answered another request" in line for line in ours.lines)


def test_a_secret_is_drawn_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that was killed in between left an empty file, and never started again."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=r"cannot use .*: No space left"):
            secret_in(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert secret_in(tmp_path) == secret_in(tmp_path)


def test_a_secret_is_kept_and_for_its_owner_only(tmp_path):
    first = secret_in(tmp_path)
    assert (
        secret_in(tmp_path) == first
        and (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    )
    (tmp_path / SECRET).write_text("none\n")
    with pytest.raises(ValueError, match="is damaged: restore it from a copy"):
        secret_in(tmp_path)
    with pytest.raises(ValueError, match="cannot use"):
        secret_in(tmp_path / "nowhere")


def test_a_job_says_what_leaves_a_client(tmp_path):
    listed = (
        '[{ use = "clip", norm = 0.5 }, { use = "top-k", fraction = 0.1 }, { use ='
        ' "quantize" }]'
    )
    openly = ("secure_aggregation = true", "secure_aggregation = false")
    plan = plan_of(job_of(tmp_path, openly, ("uplink = []", f"uplink = {listed}")))
    assert [type(it) for it in plan.uplink] == [Clip, TopK, Quantize] and plan.uplink[
        1
    ].fraction == 0.1
    assert [one["type"] for one in plan.describe(0)["uplink"]] == [
        "Clip",
        "TopK",
        "Quantize",
    ]
    noise = ("uplink = []", 'uplink = [{ use = "gaussian-noise", by = "client" }]')
    with pytest.raises(ValueError, match="set evaluate = false"):
        plan_of(job_of(tmp_path, noise, ("evaluate = false", "evaluate = true")))
    quiet = plan_of(job_of(tmp_path, noise))
    assert quiet.clients_need_secrets and not quiet.coordinator_needs_secret
