"""Late clients in experiment files and on the command line, with one meaning."""

import json

import pytest

from fedtailor.cli import main
from fedtailor.engine.training import AsynchronousServer
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.experiments.option_text import asynchronous_of_text
from fedtailor.lab.scenarios import digits_rotated

FILE = """
title = "t"
rounds = 2
participation = 10
asynchronous = {{ {file} }}
[scenarios.digits-rotated]
[algorithms.fedavg]
[algorithms.waiting]
use = "fedavg"
asynchronous = {{ {method} }}
"""


def test_a_file_and_the_command_line_say_the_same(tmp_path, monkeypatch):
    (tmp_path / "speeds.csv").write_text("client,slowness\na,2.5\nb,1\n")
    monkeypatch.chdir(tmp_path)
    written = 'buffer = 3, weight = "hinge", mean_delay = 1, slowness = "speeds.csv"'
    (tmp_path / "e.toml").write_text(FILE.format(file=written, method="buffer = 10"))
    fedavg, waiting = load_experiment(tmp_path / "e.toml").methods
    text = "3,weight=hinge,mean_delay=1,slowness=speeds.csv"
    assert fedavg.asynchronous == asynchronous_of_text(text)
    assert fedavg.asynchronous.slowness == (("a", 2.5), ("b", 1.0))
    assert fedavg.asynchronous.clock.mean_delay == 1
    assert waiting.asynchronous == AsynchronousServer(10)
    assert asynchronous_of_text(None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight=hinge", "asynchronous needs buffer"),
        ("0", "buffer is 0"),
        ("2,wait=3", "no setting of asynchronous is called 'wait'|wait"),
        ("2,mean_delay=-1", "mean_delay is -1"),
        ("2,mean_delay=soon", "mean_delay is 'soon'"),
        ("2,weight=3", "weight is 3"),
        ("2,a=x", "a is 'x'"),
        ("2,alpha=half", "alpha is 'half'"),
        ("2,slowness=none.csv", "cannot read none.csv"),
        ("2,slowness=wrong.csv", "line 2 of wrong.csv"),
        ("2,slowness=twice.csv", "a second time"),
        ("2,slowness=text.csv", "not a number"),
        ("2,slowness=empty.csv", "names no clients"),
        ("30", "only 20 clients train"),
    ],
)
def test_wrong_values_end_in_one_line(text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.csv").write_text("client,speed\na,2\n")
    (tmp_path / "twice.csv").write_text("client,slowness\na,2\na,3\n")
    (tmp_path / "text.csv").write_text("client,slowness\na,slow\n")
    (tmp_path / "empty.csv").write_text("client,slowness\n")
    command = [
        "run",
        "fedavg",
        "digits-rotated",
        "--rounds",
        "1",
        "--asynchronous",
        text,
    ]
    assert main(command) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told
    assert any(part in told for part in message.split("|"))


def test_a_run_says_when_its_server_was_done(capsys, tmp_path):
    command = ["run", "ditto", "digits-rotated", "--rounds", "2", "--participation"]
    command += [
        "8",
        "--asynchronous",
        "4,slowness=samples",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["time"] > 0 and summary["models_up"] == 8
    reported = []
    for name in digits_rotated(seed=0).names:
        assert main(["card", str(tmp_path / "run"), "--client", name]) == 0
        _, _, text = capsys.readouterr().out.partition("It reported in ")
        reported.append(int(text.split()[0]))
    assert sum(reported) == 8
