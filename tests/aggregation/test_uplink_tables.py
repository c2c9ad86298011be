"""Transforms of updates as files and the command line write them, and the epsilon that
is shown.
"""

import json
from types import SimpleNamespace

import polars as pl
import pytest

from fedtailor.aggregation.pipelines import Cast, Clip, GaussianNoise, Quantize, TopK
from fedtailor.cli import main
from fedtailor.engine.training import Participation
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.experiments.option_text import uplink_of_texts
from fedtailor.lab.report.overview import _privacy
from fedtailor.protocol.plain import to_plain

FILE = """title = "Noise"
sampling = "poisson"
participation = 0.5
uplink = [{use = "quantize"}]
scenarios.digits-rotated = {}

[algorithms.Noisy]
use = "fedavg"
weights = "uniform"
uplink = [{use = "gaussian-noise", multiplier = 2, by = "client"}, {use = "top-k", fraction = 0.5}]

[algorithms.Plain]
use = "fedavg"
"""


def test_texts_name_the_first_setting_or_any():
    found = uplink_of_texts(
        [
            "clip:0.5",
            "gaussian-noise:2,norm=0.1,by=server,quantile=0.5",
            "top-k:0.1,feedback=false",
            "cast:float16",
        ]
    )
    wanted = (
        Clip(0.5),
        GaussianNoise(2, norm=0.1, quantile=0.5),
        TopK(0.1, feedback=False),
        Cast("float16"),
    )
    assert to_plain(found) == to_plain(wanted)
    assert uplink_of_texts([]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clp", "there is no uplink transform 'clp'; did you mean 'clip'?"),
        ("clip:x", "clip: norm is 'x'"),
        (
            "clip:nrom=1",
            "clip: there is no hyper-parameter 'nrom'; did you mean 'norm'?",
        ),
        ("gaussian-noise:1,2", "write '2' as name=value"),
        ("clip:-1", "clip: norm is -1.0; it must be above 0"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(text, message):
    with pytest.raises(ValueError, match=message) as refused:
        uplink_of_texts([text])
    assert "\n" not in str(refused.value)


def test_experiments_have_an_uplink_for_all_and_for_one(tmp_path):
    (tmp_path / "e.toml").write_text(FILE)
    noisy, plain = load_experiment(tmp_path / "e.toml").methods
    assert [type(it) for it in noisy.uplink] == [GaussianNoise, TopK] and noisy.uplink[
        0
    ].multiplier == 2
    assert [type(it) for it in plain.uplink] == [Quantize]
    assert noisy.scenario.participation == Participation(0.5, sampling="poisson")
    (tmp_path / "e.toml").write_text(FILE.replace("multiplier", "multiplyer"))
    with pytest.raises(
        ValueError,
        match=(
            r"e.toml, line 10: gaussian-noise: there is no hyper-parameter 'multiplyer'"
        ),
    ):
        load_experiment(tmp_path / "e.toml")


def test_a_run_shows_its_epsilon(capsys):
    arguments = [
        "run",
        "fedavg",
        "digits-rotated",
        "--clients",
        "8",
        "--rounds",
        "2",
        "--weights",
        "uniform",
        "--uplink",
        "gaussian-noise:3,delta=0.01",
        "quantize",
        "--json",
    ]
    assert main([*arguments, "--participation", "0.5", "--sampling", "poisson"]) == 0
    shown = capsys.readouterr()
    epsilon = json.loads(shown.out)["client_epsilon"]
    assert 0 < epsilon < 2 and f"client epsilon {epsilon:.2f}" in shown.err
    assert main([*arguments, "--participation", "0.5"]) != 0
    assert "use Poisson participation" in capsys.readouterr().err


def test_reports_say_what_was_given_away():
    def run(*epsilons):
        rows = [
            (round, "all", "client_epsilon", value)
            for round, value in enumerate(epsilons)
        ]
        frame = pl.DataFrame(
            [*rows, (len(epsilons) - 1, "test", "loss", 9.0)],
            orient="row",
            schema=["round", "split", "metric", "value"],
        )
        return SimpleNamespace(metrics=frame)

    experiment = SimpleNamespace(
        runs={"digits": {"Noisy": [run(1.0, 1.5), run(1.0, 1.25)], "Plain": [run()]}}
    )
    assert _privacy(experiment) == [
        "Privacy of Noisy on digits: at most client epsilon 1.50"
    ]
