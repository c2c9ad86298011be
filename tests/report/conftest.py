import pytest

from fedtailor.report.experiment import Experiment
from report.results import NAME


@pytest.fixture(scope="session")
def experiment(results):
    return Experiment.read(results, NAME)
