"""The noise of a client does not come off, whatever a coordinator asks."""

from dataclasses import replace

import numpy as np
import pytest

from fedtailor import models
from fedtailor.aggregation.accounting.privacy import composed_epsilon
from fedtailor.aggregation.pipelines import Clip, GaussianNoise
from fedtailor.algorithms import MRMTL, FedAvg
from fedtailor.protocol import SGD
from fedtailor.remote.client.account import ACCOUNT, BEGUN, ClientAccount
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.testing import classification
from remote.federations import EXPERIMENT, Remote

NORM = 0.05
STEP = {"lr": 1.0, "steps": 1, "batch_size": 64}
PLAIN = FedAvg(sgd=SGD(**STEP), weights="uniform")
PRIVATE = SGD(**STEP, dp_noise=20.0, dp_norm=NORM)
NOISE = GaussianNoise(multiplier=2.0, norm=NORM, delta=0.01, by="client")
KINDS = {
    "client": (PLAIN, (NOISE,)),
    "steps": (MRMTL(sgd=PRIVATE), ()),
}

OVERFLOWING = {
    "client": (PLAIN, (NOISE,)),
    "kept": (MRMTL(sgd=SGD(**STEP | {"steps": 2}), lam=1.0), (NOISE,)),
    "steps": (replace(PLAIN, sgd=PRIVATE), ()),
}
"""Methods whose clients train the model that they are sent, and one that trains its own
model beside it.
"""


def remote(directory, algorithm=PLAIN, uplink=()):
    clients = classification(2)
    model = models.mlp(hidden=200).bind((4,), 3)  # 1,603 parameters
    return Remote(algorithm, clients, model, directory, uplink=uplink)


def request_of(ours, theta, **change):
    fields = {
        "experiment": EXPERIMENT,
        "round": 0,
        "exchange": 0,
        "task": "client",
        "client": ours.federation.names[0],
        "algorithm": ours.plan.describe(0),
        "arrays": {
            "stream/model": np.asarray(theta, np.float32)[None],
            "index/model": np.zeros(1, np.int32),
        },
    }
    return Request(**fields | change)


def released(ours, theta, **change):
    """How far the first client moves a model, as the coordinator learns it; None if the
    client refuses.
    """
    name = ours.federation.names[0]
    body = encode_request(request_of(ours, theta, **change))
    reply = decode_reply(ours.responders[name](body))
    if not reply.arrays:
        return None
    return reply.arrays["update/model"].reshape(-1) - theta


def sent_models(ours):
    """Two models that a coordinator may send."""
    rng = np.random.default_rng(0)
    size = ours.plan.model.size
    return [rng.normal(size=size).astype(np.float32) for _ in range(2)]


def true_changes(directory, algorithm):
    """The changes of both models without noise, each in a round of its own."""
    quiet = (Clip(NORM),) if algorithm is PLAIN else ()
    plain = algorithm if algorithm is PLAIN else MRMTL(sgd=SGD(**STEP))
    ours = remote(directory, plain, quiet)
    return [
        released(ours, theta, round=round)
        for round, theta in enumerate(sent_models(ours))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_is_asked_twice_does_not_take_the_noise_off(kind, tmp_path):
    """The difference of two answers with one noise would be that of the changes."""
    algorithm, uplink = KINDS[kind]
    first, second = true_changes(tmp_path / "quiet", algorithm)
    ours = remote(tmp_path / "noisy", algorithm, uplink)
    one, other = sent_models(ours)
    noisy = released(ours, one)
    assert abs(np.corrcoef(noisy, first)[0, 1]) < 0.15
    # The operator brings back a directory that knows the secret, and no answers.
    kept = ours.store(ours.federation.names[0]).client_directory
    for name in (ACCOUNT, BEGUN):
        (kept / name).unlink(missing_ok=True)
    ours.responders = {name: ours.client(name) for name in ours.federation.names}
    again = released(ours, other)
    assert abs(np.corrcoef(noisy - again, first - second)[0, 1]) < 0.15


@pytest.mark.parametrize("kind", OVERFLOWING)
def test_a_model_that_overflows_on_one_row_does_not_find_it(kind, tmp_path):
    """A refusal would be a bit about the rows, in every round, that no epsilon covers."""
    algorithm, uplink = OVERFLOWING[kind]
    answers = []
    for value in (1.0, 50.0):
        ours = remote(tmp_path / f"{value}", algorithm, uplink)
        name = ours.federation.names[0]
        rows = ours.shares[name]
        rows.x[rows.train[0][0], 0] = value
        ours.responders[name] = ours.client(name)
        theta = np.zeros(ours.plan.model.size, np.float32)
        theta[:200] = 1e37  # 1e37 is a number of 32 bits, and 50e37 is none
        answers.append(released(ours, theta))
    assert all(answer is not None for answer in answers)
    # What is sent is noise: at most some ten of its deviations.
    assert all(np.abs(answer[200:]).max() < 25 for answer in answers)


def test_no_number_of_the_coordinator_scales_the_noise(tmp_path):
    """With a clip norm of its own it would take the noise away."""
    ours = remote(tmp_path, *KINDS["client"])
    theta = sent_models(ours)[0]
    arrays = request_of(ours, theta).arrays | {"scalar/clip_norm": np.float32(1e-30)}
    change = released(ours, theta, arrays=arrays)
    assert np.abs(change).max() > 0.1


def test_a_job_that_begins_anew_has_other_noise_and_goes_on_with_its_account(tmp_path):
    """A coordinator in a new directory has another run, and the client's is the same."""
    spent, sent = [], []
    for run in ("a", "b"):
        ours = remote(tmp_path, PLAIN, (NOISE,))
        name = ours.federation.names[0]
        theta = sent_models(ours)[0]
        sent.append(released(ours, theta, run=run * 32))
        account = ClientAccount(ours.store(name).client_directory)
        spent.append(account.epsilons()["client"][0])
        # The same question again has the same answer, and costs nothing.
        np.testing.assert_array_equal(released(ours, theta, run=run * 32), sent[-1])
    expected = [composed_epsilon([(NOISE.multiplier, 1.0, n)], 0.01) for n in (1, 2)]
    np.testing.assert_allclose(spent, expected, rtol=1e-12)
    # One noise in both would leave only the difference of the changes, which is zero.
    difference = sent[1] - sent[0]
    deviation = np.sqrt(2) * NOISE.multiplier * NORM
    assert difference.std() == pytest.approx(deviation, rel=0.1)
