"""How many numbers a job sends of a client's cells, and from when on cells follow from them."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedtailor.algorithms import Then
from fedtailor.protocol import SGD, Algorithm
from fedtailor.remote.client.round_requests import RoundHandler
from fedtailor.remote.job.examples import federation_from_rows
from fedtailor.remote.job.exposure import Exposure, exposure_of
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused
from remote.identification import identified
from remote.jobs import Clients

OPEN = Exposure(size=24, rounds=200, cells=120, is_summed=False, has_noise=False)


def test_it_is_said_in_numbers():
    assert str(OPEN) == (
        "this job sends 4,800 numbers (24 in each of 200 rounds) made from your 120 cells,"
        " without noise, seen one by one"
    )
    OPEN.check(40)
    with pytest.raises(Refused, match=re.escape("40 for each cell")) as refusal:
        OPEN.check(39.9)
    assert refusal.value.code == Refusal.POLICY
    for safe in ({"is_summed": True}, {"has_noise": True}):
        replace(OPEN, **safe).check(1)


def test_a_job_counts_its_rounds_its_vectors_and_the_cells_that_train(tmp_path):
    """Before, a category counted once for each input that it becomes, a row once for each
    window that it is in, and a vector for all vectors of a round: a job could send many
    times more numbers for each cell than it said.
    """
    clients = Clients(tmp_path / "job", rounds=4)
    plan, schema = plan_of(clients.job), clients.job.schema
    size = plan.model.size
    assert schema.width == 3 and len(schema.columns) == 2
    found = exposure_of(plan, schema, 20)
    assert found == Exposure(size, 4, 20 * 3, False, False)
    for method, vectors in (("scaffold", 2), ("fedem", 3), ("local", 0)):
        other = replace(plan, algorithm=Algorithm.registry[method]())
        assert exposure_of(other, schema, 20).size == vectors * size


def test_noise_of_one_phase_does_not_cover_the_others(tmp_path):
    """Before, one round with private steps lifted the limit for all rounds without."""
    plan = plan_of(Clients(tmp_path / "job", rounds=4).job)
    fedavg = Algorithm.registry["fedavg"]
    noisy = fedavg(sgd=SGD(lr=0.1, epochs=1, batch_size=8, dp_noise=1.0, dp_norm=1.0))
    for first, has_noise in ((noisy, True), (fedavg(), False)):
        schedule = replace(plan, algorithm=Then(first, 1, noisy))
        assert schedule.has_noise_in_every_phase == has_noise
        assert schedule.clients_need_secrets


def test_what_is_sent_counts_not_what_a_method_says_that_it_sends():
    """A method of a plug-in, or a probe, may be larger than a model."""
    models, probe = {"model": np.zeros(24)}, {"gram": np.zeros((20, 100))}
    OPEN.check_sent(models, probes=0, most=1)  # `check` has looked at these
    with pytest.raises(Refused, match="400,000 numbers"):
        OPEN.check_sent(probe, probes=0, most=100)
    OPEN.check_sent(probe, probes=1, most=100)  # 12,000, as a run has six
    with pytest.raises(Refused, match="14,000 numbers"):
        OPEN.check_sent(probe, probes=7, most=100)  # a coordinator may ask every round
    for hidden in ({}, {"is_summed": True}, {"has_noise": True}):
        with pytest.raises(Refused, match="12,000 numbers"):
            replace(OPEN, **hidden).check_sent(probe, probes=1, most=99)


def test_a_client_counts_an_update_before_it_leaves(tmp_path):
    clients = Clients(tmp_path / "job", rounds=4, method="fedavg")
    plan = plan_of(clients.job)
    exposure = replace(exposure_of(plan, clients.job.schema, 20), size=1)
    handler = RoundHandler(
        plan,
        federation_from_rows(clients.job, {"a": clients.rows["a"]}),
        clients.store("a"),
        check_sent=partial(exposure.check_sent, most=0.1),
    )
    request = Request(
        *(clients.job.identity, 0, 0, "client", "a"),
        run="ab",
        algorithm=plan.describe(0),
        arrays={
            "stream/model": plan.initial()[None],
            "index/model": np.zeros(1, np.int32),
        },
    )
    said = f"{4 * plan.model.size} numbers ({plan.model.size} in each of 4 rounds)"
    with pytest.raises(Refused, match=re.escape(said)):
        handler(request)


ROWS, RATE = 8, 0.1


def updates(table, models):
    """The updates that a client sends of a linear regression, for given models."""
    x = np.stack([table["x"], table["z"], np.ones(ROWS)], axis=1)
    y = np.array(table["y"])
    sent = []
    for model in models:
        sent += (-RATE * 2 * (x @ model - y) @ x / ROWS).tolist()
    return sent


def of_sums(table):
    """The sums of products of which all these updates are made."""
    rows = np.stack([table["x"], table["z"], table["y"]], axis=1)
    return [*rows.sum(0), *(rows.T @ rows)[np.triu_indices(3)]]


def test_one_step_of_a_linear_model_shows_no_more_than_its_sums_of_products():
    """However many rounds: of so many rows no cell follows. With a step of its own for each
    row (a batch of one) each round shows rows.
    """
    rng = np.random.default_rng(0)
    table = {name: rng.normal(size=ROWS).tolist() for name in "xzy"}
    models = rng.normal(size=(20, 3))

    def together(it):
        return [*updates(it, models), *of_sums(it)]

    def of_single_rows(it):
        x, y = it["x"][0], it["y"][0]
        return [*updates(it, models), *(x * (y - x * slope) for slope in (0.0, 1.0))]

    assert identified(together, table, "xzy") == []
    assert (0,) in identified(of_single_rows, table, "xzy")
