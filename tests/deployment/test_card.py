"""Model cards say what was measured, and nothing else."""

import re

import polars as pl
import pytest
from scipy.stats import binomtest

import fedtailor as ft
from deployment_helpers import NAMES


def test_a_card_says_how_the_model_came_about(trained):
    run, path = trained
    card = ft.model_card(ft.open(path), NAMES[0])
    client = run.federation.client(NAMES[0])
    for split in ("train", "val", "test"):
        assert f"| {split} | {len(getattr(client, split).x)} |" in card
    assert "drawn by class, seed 1: test 0.3 and val 0.2 of each client's rows" in card
    assert "| mass | (number - " in card
    assert "and an input says so |" in card
    assert (
        "| town | one input for each of Oslo, Rome | is refused: training had none |"
        in card
    )
    assert "Target: verdict (classification; classes ill, well)." in card
    assert "- sgd.lr: 0.5" in card
    size = 4 * run.model.size
    assert "It reported in 4 of 4 rounds." in card
    assert f"| model, in rounds | 4 | {4 * size} |" in card


def test_a_card_begins_with_what_the_hub_reads(trained, monkeypatch):
    opened = ft.open(trained[1])
    nothing, head, text = ft.model_card(opened, NAMES[0]).split("---\n", 2)
    assert nothing == ""
    assert head.splitlines() == [
        "library_name: fedtailor",
        "pipeline_tag: tabular-classification",
        "tags:",
        '- "federated-learning"',
        '- "personalized"',
        f'- "{opened.stored.method}"',
        "metrics:",
        f'- "{opened.stored.metric}"',
    ]
    assert text.startswith("\n# Model card: ")
    # Of results of somebody else.
    monkeypatch.setattr(type(opened.stored), "metric", "<img src=x>")
    _, head, _ = ft.model_card(opened, NAMES[0]).split("---\n", 2)
    assert head.splitlines()[-1] == '- "\\u003cimg src=x>"'


def test_measurements_have_their_intervals(trained):
    run, path = trained
    card = ft.model_card(ft.open(path), NAMES[1])
    correct = run.row_outcomes().filter(pl.col("client") == NAMES[1])["correct"]
    bounds = binomtest(int(correct.sum()), len(correct)).proportion_ci(0.95, "wilson")
    row = re.search(r"\| accuracy, % \| (.*?) \| (.*?) to (.*?) \|", card)
    assert [float(value) for value in row.groups()] == [
        round(100 * value, 1)
        for value in (float(correct.mean()), bounds.low, bounds.high)
    ]
    row = re.search(r"\| .*AUC.*? \| (.*?) \| (.*?) to (.*?) \|", card)
    area, low, high = (float(value) for value in row.groups())
    assert 0 <= low < area <= high and low < high


def test_intervals_are_made_from_data_or_left_out(trained, moved):
    whole = ft.model_card(ft.open(moved), NAMES[0])
    for name in ("rows.parquet", "baseline.parquet"):
        (moved / name).unlink()
    assert ft.model_card(ft.open(moved), NAMES[0]) == whole
    (moved.parent / "table.csv").unlink()
    alone = ft.model_card(ft.open(moved), NAMES[0])
    assert "Intervals need the test rows" in alone
    assert " to " not in alone[alone.index("| metric") : alone.index("Intervals need")]


def test_a_damaged_checkpoint_is_said_and_not_taken_for_missing_data(moved):
    (moved / "rows.parquet").unlink()
    for checkpoint in moved.glob("checkpoint*.safetensors"):
        content = bytearray(checkpoint.read_bytes())
        content[-3] ^= 1
        checkpoint.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint.* is damaged"):
        ft.model_card(ft.open(moved), NAMES[0])


def test_a_newcomer_sent_nothing_in_training(trained):
    card = ft.model_card(ft.open(trained[1]), NAMES[2])
    assert "never took part in training" in card
    assert card.rstrip().endswith("This client sent nothing in training.")
