"""Data sets register where they stand: one file is enough."""

import dataclasses
import sys

import pytest

from fedtailor.data.datasets.registry import DATASETS, discover
from fedtailor.data.federation import Dataset, datasets

NEW = '''
import numpy as np
from fedtailor.data.federation import Dataset
from fedtailor.data.datasets import register

@register()
def toys(data_dir=None):
    """Three toys."""
    return Dataset(np.zeros((3, 1)), np.array([0, 1, 0]), 2, "toys")
'''


def test_a_new_data_set_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "toys.py").write_text(NEW)
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    monkeypatch.setattr(datasets, "toys", None, raising=False)
    monkeypatch.delitem(sys.modules, f"{datasets.__name__}.toys", raising=False)
    try:
        discover(datasets)
        assert (
            isinstance(DATASETS["toys"].read(), Dataset) and len(datasets.toys()) == 3
        )
        assert (
            DATASETS["toys"].summary == "Three toys." and DATASETS["toys"].sources == ()
        )
    finally:
        DATASETS.pop("toys", None)
        sys.modules.pop(f"{datasets.__name__}.toys", None)


def test_the_data_sets_are_functions_of_the_package_by_their_names():
    expected = (
        "cifar10 density digits emnist fashion_mnist femnist gaussian heart_disease"
        " mnist mnist_writers school sent140 spoken_digits synthetic synthetic_mixture"
        " tcga_brca"
    )
    assert sorted(DATASETS) == expected.split()
    for name, registered in DATASETS.items():
        assert getattr(datasets, name) is registered.read and name in datasets.__all__
        assert registered.name == name and len(registered.summary) > 20
        assert registered.summary.endswith(".")  # the whole sentence


@pytest.mark.parametrize(
    "source",
    {
        source.files: source for entry in DATASETS.values() for source in entry.sources
    }.values(),
    ids=str,
)
def test_sources_cannot_lose_their_checksum_or_https(source):
    """Of what is downloaded; the same holds when one is written anew."""
    if source.url is None:
        return
    assert source.url.startswith("https://")
    for change in ({"hashes": {}}, {"url": source.url.replace("https", "http")}):
        with pytest.raises(ValueError, match=r"needs a SHA-256|not an https address"):
            dataclasses.replace(source, **change)
