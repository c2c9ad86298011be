import pytest

from fedtailor.report.experiment import Experiment
from report.results import NAME, build


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A result directory. Do not change it."""
    return build(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def experiment(results):
    return Experiment.read(results, NAME)
