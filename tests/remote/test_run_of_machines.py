"""What can be done with the run of a federation of machines, command by command: as with
a simulated run, or it is said where.
"""

import json

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli.main import main
from fedtailor.engine.training import Callback
from fedtailor.models.metrics.metric import Metric
from fedtailor.remote.job.job import read_job
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines
from lab.trackers.test_trackers import Kept
from remote.jobs import NAMES, Clients

METRICS = sorted(
    name
    for name, kind in Metric.registry.items()
    if kind().applies(ft.models.logistic().bind((3,), 2)) and name != "perplexity"
)
ASKED = "metrics = " + json.dumps(METRICS)
THERE = "federation predict KIT"


class Stops(Callback):
    """Ends a run after two rounds."""

    def after_round(self, training, evaluated):
        return training.round == 2


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    ours = Clients(tmp_path_factory.mktemp("machines") / "wards", 2, rest=ASKED)
    ours.tracker = Kept(ours.directory / "run")
    ours.lines = []
    with Lines(ours.lines.append).of(COORDINATOR_LOG):
        ours.training = ours.train(NAMES, callbacks=[ours.tracker])
    return ours


def command(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def test_every_metric_is_measured_as_in_the_simulation(clients):
    assert clients.lines == []
    ours, expected = clients.training.metrics, clients.simulated(NAMES, 2).frame()
    keys = ["round", "client", "split", "metric"]
    found = pl.read_parquet(clients.directory / "run" / "metrics.parquet").sort(keys)
    assert {*METRICS, "loss"} <= {evaluation.metric for evaluation in ours.evaluations}
    assert found.select(keys).equals(expected.sort(keys).select(keys))
    np.testing.assert_array_equal(found["value"], expected.sort(keys)["value"])


def test_clients_that_measure_something_else_have_another_job(clients, tmp_path):
    other = Clients(tmp_path / "other", 2)
    assert other.job.identity != clients.job.identity


def test_a_metric_that_does_not_exist_is_told_with_its_line(tmp_path):
    with pytest.raises(ValueError, match=r"line 21: there is no metric 'roc'; did you"):
        Clients(tmp_path / "job", rest='metrics = ["roc"]')


def test_trackers_and_callbacks_follow(clients, tmp_path):
    title = clients.tracker.begun[0]
    assert "ditto" in title and sorted(clients.tracker.rounds) == [1, 2]
    assert clients.tracker.ended == "finished"
    stopped = Clients(tmp_path / "wards", 4)
    training = stopped.train(NAMES, callbacks=[Stops()])
    assert training.round == 2


def test_models_lists_what_clients_measured(clients, capsys):
    code, out, _ = command(capsys, "models", clients.directory / "run")
    assert code == 0 and "not kept" in out and "on test" in out
    code, out, _ = command(capsys, "models", clients.directory / "run", "--json")
    assert [entry["client"] for entry in json.loads(out)] == list(NAMES)
    assert all(entry["on_test"] is not None for entry in json.loads(out))


def test_check_finds_the_run_whole(clients, capsys):
    code, out, _ = command(capsys, "check", clients.directory / "run")
    assert code == 0 and "whole: a finished run of 2 rounds" in out


def test_card_says_what_was_measured_and_that_rows_stay_at_the_client(clients, capsys):
    code, out, _ = command(capsys, "card", clients.directory / "run", "--client", "a")
    assert code == 0
    assert "Split: at the client, by the shares of the job" in out
    assert (
        "| ROC AUC" in out and "Intervals need the test rows, which the client" in out
    )
    assert "it is the run of machines, which keep their rows" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "{run}", "{table}", "--client", "a"),
        ("export", "{run}", "--out", "{new}"),
        ("enroll", "{run}", "--data", "{table}", "--client", "e", "--out", "{new}"),
        ("unlearn", "{run}", "--client", "a", "--out", "{new}"),
        ("contributions", "{run}"),
    ],
)
def test_what_needs_examples_or_models_says_where(clients, capsys, tmp_path, arguments):
    places = {
        "run": clients.directory / "run",
        "table": clients.directory / "a.csv",
        "new": tmp_path / "new",
    }
    filled = [part.format(**places) for part in arguments]
    code, _, err = command(capsys, *filled)
    assert code == 2 and THERE in err and err.count("\n") == 1
    assert not places["new"].exists()


def test_report_names_the_command_for_a_single_run(clients, capsys):
    code, _, err = command(capsys, "report", clients.directory / "run")
    assert code == 2 and "is a single run, which `fedtailor models" in err


def test_an_opened_run_has_its_summary_and_ledger(clients):
    opened = ft.open(clients.directory / "run")
    assert opened.summary().rounds == 2 and opened.names == NAMES
    assert opened.ledger.totals().models_up == 2 * len(NAMES)
    assert type(opened.algorithm) is ft.Ditto
    with pytest.raises(ValueError, match=THERE):
        opened.personal("a")


def test_a_run_that_diverges_says_so_in_its_summary(tmp_path, capsys):
    ours = Clients(tmp_path / "wards", 3, method="fedavg")
    ours.path.write_text(ours.path.read_text().replace("lr = 0.1", "lr = 3e38"))
    ours.job = read_job(ours.path)
    with pytest.raises(ft.Diverged) as diverged:
        ours.train(NAMES, patience=600.0)
    summary = json.loads((ours.directory / "run" / "summary.json").read_text())
    assert summary["diverged"] == str(diverged.value)
    code, out, err = command(capsys, "models", ours.directory / "run")
    assert code == 2 and "diverged" in out + err
