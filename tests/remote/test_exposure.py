"""How many numbers a job sends of a client's cells, and from when on cells follow from them."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.algorithms import Then
from fedtailor.protocol import SGD, Algorithm
from fedtailor.remote.client.account import ClientAccount, Release
from fedtailor.remote.client.table_requests import JobHandler
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


def handler_of(clients, **limits):
    return JobHandler(
        clients.job, "a", clients.directory / "a.csv", clients.store("a"), **limits
    )


def asked(clients, task, number=0, **change):
    plan = plan_of(clients.job)
    return Request(
        *(clients.job.identity, number, 0, task, "a"),
        run="ab",
        algorithm=plan.describe(0),
        arrays={
            "stream/model": plan.initial()[None],
            "index/model": np.zeros(1, np.int32),
        },
        **change,
    )


def test_models_and_losses_are_one_sum(tmp_path):
    """Before, each of models, probes and losses could be as many as the limit."""
    rest = "[privacy]\nevaluate = true"
    clients = Clients(tmp_path / "job", rounds=2, method="fedavg", rest=rest)
    models = 2 * plan_of(clients.job).model.size
    cells = 3 * 24
    handler = handler_of(clients, numbers_per_cell=models / cells)
    for number in range(2):
        assert handler(asked(clients, "client", number))["update/model"].size
    # The same answer once more is no further number; losses are.
    assert handler(asked(clients, "client", 1, nonce="x"))["update/model"].size
    said = r"^with this answer \d+ numbers would .* sends 16 at most, "
    with pytest.raises(Refused, match=said) as refusal:
        handler(asked(clients, "evaluate", 2))
    assert refusal.value.code == Refusal.SPENT
    # A process that is started again knows it.
    with pytest.raises(Refused, match=said):
        handler_of(clients, numbers_per_cell=models / cells)(
            asked(clients, "evaluate", 2)
        )


def test_probes_and_models_are_one_sum(tmp_path, caplog):
    """A client is asked a probe in one round, and trains in the next. What the probe takes
    is the coordinator's choice: how many numbers there can be in all is said before.
    """
    caplog.set_level("INFO", "fedtailor")
    clients = Clients(tmp_path / "job", rounds=2, method='ucfl"\nwarm = 0 #')
    plan, cells = plan_of(clients.job), 3 * 24
    models = 2 * plan.model.size
    handler = handler_of(clients, numbers_per_cell=1e3)
    assert "with answers to a probe" in caplog.text
    assert "72,000 numbers at most leave openly in all runs" in caplog.text
    probe = sum(
        array.size
        for name, array in handler(asked(clients, "probe")).items()
        if name.startswith("update/")
    )
    shutil.rmtree(clients.store("a").client_directory)
    handler = handler_of(clients, numbers_per_cell=(models + probe - 1) / cells)
    handler(asked(clients, "probe"))
    handler(asked(clients, "client", 0))
    with pytest.raises(Refused, match=f"^with this answer {models + probe} numbers"):
        handler(asked(clients, "client", 1))


def test_what_noise_hides_is_not_counted_and_all_runs_of_a_job_are(tmp_path):
    """Before, each run began at 0: a coordinator that starts again could have three times
    as many numbers for each cell.
    """
    account, request = ClientAccount(tmp_path), asked_of(0)
    noisy = Release(unit="client", multiplier=2.0, delta=1e-5, count=1)
    account.record(request, [noisy], numbers=0, most_numbers=10)
    account.record(asked_of(1), numbers=10, most_numbers=10)
    with pytest.raises(Refused, match=r"^with this answer 11 numbers"):
        account.record(asked_of(2), numbers=1, most_numbers=10)
    account.record(asked_of(2), numbers=0, most_numbers=10)
    for it in (account, ClientAccount(tmp_path)):  # and after a restart
        assert (it.numbers_of("job"), it.numbers_of("another")) == (10, 0)
        with pytest.raises(
            Refused, match=r"^with this answer 11 numbers .* in all runs"
        ):
            it.record(replace(asked_of(2), run="bb"), numbers=1, most_numbers=10)
    another = replace(asked_of(2), experiment="another")
    account.record(another, numbers=10, most_numbers=10)


def asked_of(number):
    return Request("job", number, 0, "client", "a", run="aa", algorithm={"phase": 0})


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
