import pytest

from fedtailor.lab.results.experiment import StoredExperiment
from lab.report.results import NAME


@pytest.fixture(scope="session")
def experiment(results):
    return StoredExperiment.read(results, NAME)
