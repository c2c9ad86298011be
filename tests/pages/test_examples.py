"""Every file of examples/ runs, and prints what the gallery shows."""

import os
import re
import sys
from pathlib import Path

import pytest

import published

ROOT = Path(__file__).parents[2]
if not (ROOT / "examples").exists():
    pytest.skip("examples are in the repository only", allow_module_level=True)
sys.path.insert(0, str(ROOT / "docs"))

from generators import gallery  # noqa: E402

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TOLERANCE = 0.08
"""Of shares, such as accuracies: sums are taken in another order on other machines, and
a test row is a few hundredths of a small client.
"""
PROCESSES = {"five_processes", "own_service"}
LONG = {
    *("hospitals", "private_training", "pytorch_cnn", "shakespeare_lstm"),
    *("shakespeare_transformer", "wearables"),
}
"""Examples that take more than twenty seconds."""
DECISIONS = {
    "hospitals": "Decision: ",
    "wearables": "Use finetune to predict activity for all 24 persons: ",
}
"""Examples that print whole reports, whose wording has tests of its own -> what a report
decides.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            example.name, marks=[pytest.mark.nightly] if example.name in LONG else []
        )
        for example in gallery.examples()
    ],
)
def test_an_example_prints_what_the_gallery_shows(name, tmp_path, monkeypatch):
    if published.DATA.is_dir():
        monkeypatch.setenv("FEDTAILOR_DATA", str(published.DATA))
    if name in PROCESSES and "FEDTAILOR_PROCESS_TESTS" not in os.environ:
        pytest.skip("starts servers and clients; set FEDTAILOR_PROCESS_TESTS=1")
    printed = gallery.run(name, tmp_path)
    if printed.startswith("skipped"):
        pytest.skip(printed)
    assert (tmp_path / f"{name}.png").exists()
    if name in PROCESSES:  # times and digests, which differ from run to run
        return
    if name in DECISIONS:
        assert DECISIONS[name] in printed
        return
    shown = (gallery.RECORDED / f"{name}.txt").read_text()
    assert _words(printed) == _words(shown)
    for ours, theirs in zip(_shares(printed), _shares(shown), strict=True):
        assert abs(ours - theirs) <= TOLERANCE


def _words(text):
    """The text without its numbers, which last digits of sums may change."""
    return re.findall(r"[^\W\d]{3,}", text)


def _shares(text):
    """The numbers below 1 with three decimals."""
    return [float(found) for found in re.findall(r"\b0\.\d{3}\b", text)]


@pytest.mark.parametrize("example", gallery.examples(), ids=lambda one: one.name)
def test_an_example_is_shown_with_its_output_and_its_figure(example):
    assert example.title
    assert example.text
    if example.name in PROCESSES and not example.output.exists():
        pytest.skip("make gallery has not recorded it yet")
    assert example.output.exists(), "make gallery records it"
    assert example.figure.exists(), "make gallery records it"
    assert f"{example.name}.png" in example.source
