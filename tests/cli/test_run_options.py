"""Options of `fedtailor run` that stand for models, and options that are given twice."""

import json

import pytest

from fedtailor.cli import main
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.lab.experiments.option_text import architecture_of_text
from fedtailor.models import mlp, resnet


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("mlp:hidden=8", mlp(8)),
        ("mlp:8", mlp(8)),
        ("resnet:depth=8,norm=group", resnet(depth=8, norm="group")),
    ],
)
def test_a_model_is_written_as_its_name_and_arguments(text, model):
    assert architecture_of_text(text) == model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope", "there is no model 'nope'"),
        ("mlp:hiden=3", "did you mean 'hidden'"),
        ("mlp:hidden=a", "hidden is 'a'"),
        ("mlp:8,9", "--model mlp:8,9: write '9' as name=value"),
        ("not_there.py:net", "there is no file not_there.py"),
    ],
)
def test_a_wrong_model_is_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        architecture_of_text(text)


def test_run_trains_the_model_that_it_is_given(tmp_path, capsys):
    (tmp_path / "my_small_net.py").write_text(
        "import fedtailor as ft\ndef net(width: int = 4):\n    return ft.models.mlp(width)\n"
    )
    out = tmp_path / "run"
    model = f"{tmp_path / 'my_small_net.py'}:net"
    options = ["--clients", "4", "--rounds", "1", "--out", str(out), "--model", model]
    assert main(["run", "fedavg", "digits-rotated", *options]) == 0
    assert "hidden = [\n    4,\n]" in (out / MANIFEST).read_text()


def test_an_option_given_twice_is_refused(capsys):
    twice = ["--metrics", "roc_auc", "--rounds", "1", "--metrics", "f1_macro"]
    assert main(["run", "fedavg", "digits-rotated", *twice]) == 2
    assert "--metrics is given twice; give it once, with all" in capsys.readouterr().err


def test_a_plan_says_what_a_round_needs_and_trains_nothing(capsys, tmp_path):
    options = ["--clients", "4", "--plan", "--out", str(tmp_path / "run")]
    assert main(["run", "ditto", "digits-rotated", *options, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    parts = ("streams", "states", "training", "answers")
    assert plan["total"] == sum(plan[part] for part in parts)
    # Four models of clients before the round, and four after it.
    assert plan["states"] == 8 * plan["model"]
    assert plan["are_sums"]
    assert main(["run", "ditto", "digits-rotated", *options]) == 0
    assert "a round needs, without data and program" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_plan_says_the_rate_of_adapters(capsys):
    options = ["--clients", "4", "--plan", "--model", "mlp:hidden=4,lora=2"]
    assert main(["run", "fedavg", "digits-rotated", *options]) == 0
    said = "0.025 (by default, adapters train at 0.5 times the scenario's rate)"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["run", "fedavg", "digits-rotated", *options, "--sgd.lr", "0.05"]) == 0
    assert "0.05 (by default," in capsys.readouterr().out
