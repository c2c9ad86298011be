"""Every test of data sets has an empty cache and data directory of its own."""

import pytest


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def offline(monkeypatch):
    """No network, in a way that is quick and sure."""

    def fail(url, files, folder, hashes, archive_folder):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("fedtailor.data.datasets.store.download", fail)
