"""The short form of `make campaign`: a few tries of every kind, from fixed seeds."""

import logging
import os
from contextlib import suppress

import numpy as np
import polars as pl
import pytest

from campaigns.choosing import Choosing
from campaigns.client_process import ClientProcess
from campaigns.faults import FAULTS, Faults
from campaigns.file_events import Steps, watching
from campaigns.grammar import Message
from campaigns.hostile_client import HostileClient
from campaigns.hostile_coordinator import HostileCoordinator
from campaigns.inputs import INPUTS, Inputs
from campaigns.marked import Secrets
from campaigns.port import OpenPort
from campaigns.small_run import start
from campaigns.small_tables import SmallTables
from campaigns.sums import ChosenSums
from campaigns.twins import Twins
from campaigns.unsteady import Unsteady
from fedtailor.aggregation import secure_sums
from fedtailor.algorithms import FedALA
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.client.boosting import BoostingClient
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.sums import client as sum_client
from fedtailor.remote.sums import server as sum_server
from fedtailor.remote.wire import messages

TRIES = {
    "kill": 5,
    "fill_disk": 5,
    "flip_bit_of_opened": 10,
    "kill_finalize": 6,
    "fill_disk_in_finalize": 6,
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def inputs(faults, tmp_path_factory):
    return Inputs(
        tmp_path_factory.mktemp("inputs"),
        faults.folder / "whole",
        faults.folder / "models",
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_faults(faults, kind):
    for number in range(TRIES.get(kind, 20)):
        getattr(faults, kind)(np.random.default_rng(number))


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs(inputs, kind, caplog):
    caplog.set_level(logging.ERROR)
    assert getattr(inputs, kind)(0, 20) >= 10


@pytest.mark.slow
def test_a_campaign_notices_what_is_not_exact(tmp_path, monkeypatch):
    """What it looks for, made wrong: neither checkpoints nor the tables' files know
    what was written.
    """
    monkeypatch.setattr(
        "fedtailor.engine.storage.run_directory.frame_digest", lambda frame: ""
    )
    monkeypatch.setattr("fedtailor._base.parquet._has_valid_digest", lambda file: True)
    careless = Faults(tmp_path)
    with pytest.raises(AssertionError, match=r"(metrics|ledger).parquet, bit"):
        for number in range(300):
            with suppress(
                pl.exceptions.PanicException
            ):  # of the unchecked file's reader
                careless.flip_bit_of_unfinished(np.random.default_rng(number))


def test_changes_of_files_are_counted_and_fail(tmp_path):
    steps = Steps(lambda: OSError("no"), first=2, last=2)
    with watching(tmp_path, steps):
        (tmp_path / "a").mkdir()
        with pytest.raises(OSError, match="no"):
            (tmp_path / "a" / "b").write_text("")
        (tmp_path / "a" / "b").write_text("")
        (tmp_path / "a" / "b").replace(tmp_path / "c")
        (tmp_path / "c").unlink()
    (tmp_path / "d").write_text("")
    assert steps.count == 5
    start(tmp_path / "run", rounds=1)
    assert steps.count == 5


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A federation with marked tables, and clients in this process."""
    pytest.importorskip("cryptography", reason="keys need the extra federation")
    jobs = ("fedavg", "pooled")
    made = HostileCoordinator(tmp_path_factory.mktemp("marked") / "h", jobs)
    yield made
    made.stop()


@pytest.mark.parametrize("kind", ["hostile_coordinator", "doubled"])
def test_a_hostile_coordinator(marked, kind):
    for number in range(8):
        getattr(marked, kind)(np.random.default_rng(number))


def test_a_hostile_coordinator_is_answered_and_refused(marked):
    """Neither all nor nothing of what the grammar makes is refused."""
    for number in range(100, 104):
        marked.hostile_coordinator(np.random.default_rng(number))
    assert marked.counts["answered"] > 5 and marked.counts["refused"] > 5


@pytest.fixture(scope="module")
def choosing(tmp_path_factory):
    pytest.importorskip("cryptography", reason="keys need the extra federation")
    return Choosing(tmp_path_factory.mktemp("choosing") / "c")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("chosen_trees", {"start", "counts", "loss", "gradients"}),
        ("chosen_models", {"evaluate"}),
        ("chosen_descriptions", {"columns"}),
        ("without_one", {"without_one"}),
    ],
)
def test_a_coordinator_that_chooses(choosing, kind, said):
    for number in range(12 if kind.startswith("chosen") else 1):
        getattr(choosing, kind)(np.random.default_rng(number))
    assert said <= set(choosing.answered)


def test_a_campaign_notices_a_question_that_is_answered_twice(choosing, monkeypatch):
    monkeypatch.setattr(BoostingClient, "_out_of_order", lambda client, step: "")
    with pytest.raises(AssertionError, match=r"was answered|Counter"):
        for number in range(20):
            choosing.chosen_trees(np.random.default_rng(number))


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    pytest.importorskip("cryptography", reason="keys need the extra federation")
    return Twins(tmp_path_factory.mktemp("twins") / "t")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("twin_trees", {"start", "counts", "bins", "gradients", "split", "loss"}),
        ("twin_models", {"client", "personal", "init_unseen"}),
    ],
)
def test_what_no_mask_hides_of_an_answer_says_nothing_of_numbers(twins, kind, said):
    """Before, FedALA's clients said how many passes they made, which depends on losses."""
    for number in range(4 if kind == "twin_trees" else 2):
        getattr(twins, kind)(np.random.default_rng(number))
    assert said <= set(twins.answered)


def test_a_campaign_notices_work_that_depends_on_numbers(twins, monkeypatch):
    monkeypatch.setattr(FedALA, "work_tells_of_rows", False)
    with pytest.raises(AssertionError, match="'work'"):
        for number in range(20):
            twins.twin_models(np.random.default_rng(number))


def test_no_client_follows_from_sums_that_a_coordinator_chooses():
    sums = ChosenSums()
    for number in range(4):
        sums.chosen_sums(np.random.default_rng(number))
    assert min(sums.answered[it] for it in ("opened", "refused")) > 0


@pytest.mark.parametrize(
    ("careless", "seed"),
    [("vector", 49), ("asked", 22), ("weights", 58), ("small", 1)],
)
def test_a_campaign_notices_sums_that_show_a_client(careless, seed, monkeypatch):
    """Masks that do not depend on which vector is added, on the weights, or on what clients
    were asked; and weights with which others round to 0.
    """
    original = sum_client.mask_session

    def session(name, vector, columns, weights, asked):
        vector = ("", None) if careless == "vector" else vector
        asked = "" if careless == "asked" else asked
        weights = np.zeros(1) if careless == "weights" else weights
        return original(name, vector, columns, weights, asked)

    for module in (sum_client, sum_server):
        monkeypatch.setattr(module, "mask_session", session)
    if careless == "small":
        for module in (sum_client, secure_sums):
            monkeypatch.setattr(
                module, "others_hide", lambda weights: np.ones(weights.shape[1], bool)
            )
    with pytest.raises(AssertionError, match=r"% of|a sum over|round to 0"):
        ChosenSums().chosen_sums(np.random.default_rng(seed))


def test_nothing_follows_of_few_rows_of_small_tables(tmp_path):
    tables = SmallTables(tmp_path / "t")
    for number in range(5):
        tables.small_tables(np.random.default_rng(number))
    for number in range(40):
        tables.small_outcomes(np.random.default_rng(number))
    assert min(tables.answered[it] for it in ("chosen", "outcomes")) > 0


def test_a_campaign_notices_counts_of_few_rows(tmp_path, monkeypatch):
    """Each outcome is told as it is."""
    of = ColumnSums.of
    all_rows = staticmethod(lambda *arguments: of(*arguments, least=1))
    monkeypatch.setattr(ColumnSums, "of", all_rows)
    tables = SmallTables(tmp_path / "t")
    with pytest.raises(AssertionError, match="rows of"):
        for number in range(40):
            tables.small_outcomes(np.random.default_rng(number))


def test_what_leaves_a_client_is_searched_for_its_cells():
    numbers = np.array([47.182639, -0.5432198, 12.75])
    secrets = Secrets((b"zqname", b"47.1826"), numbers)
    other = np.array([1.0, 2.0, -0.5])
    harmless = [b"", b"failed", other.tobytes(), other.astype("f4").tobytes()]
    assert not any(secrets.in_message(body) for body in harmless)
    for body in (
        b"x zqname",
        b"column a is 47.1826 in 60 rows",
        b"abc" + numbers[:1].tobytes(),
        b"a" + numbers[1:].astype("<f4").tobytes(),
    ):
        assert secrets.in_message(body), body
    assert not secrets.in_message(b"zqname", request=b"zqname")  # it asked by that name


def test_a_campaign_notices_what_leaves(marked, monkeypatch):
    """A refusal that says what an error says."""
    original = messages.encode_reply

    def careless(reply):
        return original(reply) + (b"zqfile" if reply.refusal else b"")

    monkeypatch.setattr("fedtailor.remote.wire.transport.encode_reply", careless)
    with pytest.raises(AssertionError, match=r"the answer holds .*zqfile"):
        for number in range(20):
            marked.hostile_coordinator(np.random.default_rng(number))


def test_a_hostile_client(tmp_path):
    pytest.importorskip("cryptography", reason="keys need the extra federation")
    made = HostileClient(tmp_path / "h", ("fedavg",))
    for number in range(3):
        made.hostile_client(np.random.default_rng(number))
    assert made.answers > 10


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory):
    pytest.importorskip("cryptography", reason="keys need the extra federation")
    return Unsteady(tmp_path_factory.mktemp("unsteady") / "u", ("ditto",))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stopped", "cloned"])
def test_clients_that_do_not_stay(unsteady, kind):
    for number in range(2):
        getattr(unsteady, kind)(np.random.default_rng(number))
        assert unsteady.happened


@pytest.mark.slow
def test_a_campaign_notices_what_a_kill_has_changed(unsteady, monkeypatch):
    """Clients that start from the state that they wrote last, whoever accepted it."""
    load = ClientStore.load

    def careless(store, state_round, run):
        rounds = store.rounds(run)
        return load(store, max(rounds), run) if rounds else None

    monkeypatch.setattr(
        "fedtailor.remote.client.round_requests.ClientStore.load", careless
    )
    with pytest.raises(AssertionError, match=r"model|other measurements"):
        for number in range(8):
            unsteady.stopped(np.random.default_rng(number))


def test_a_message_in_pieces_is_the_message():
    request = messages.Request(
        "job", 1, 0, "client", "a", arrays={"stream/model": np.ones((1, 3), "f4")}
    )
    body = messages.encode_request(request)
    again = messages.decode_request(Message.of(body).encode())
    assert again.round == 1 and again.task == "client"
    np.testing.assert_array_equal(again.arrays["stream/model"], np.ones((1, 3)))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    "FEDTAILOR_PROCESS_TESTS" not in os.environ, reason="starts processes"
)
def test_a_real_process_and_a_real_port(tmp_path):
    process = HostileCoordinator(tmp_path / "process", ("ditto",), ClientProcess)
    port = OpenPort(tmp_path / "port")
    unsteady = Unsteady(tmp_path / "unsteady", ("ditto",))
    try:
        unsteady.stopped_process(np.random.default_rng(0))
        for number in range(3):
            process.client_process(np.random.default_rng(number))
            port.open_port(np.random.default_rng(number))
    finally:
        process.stop()
        port.stop()
