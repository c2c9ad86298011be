import pytest

from fedtailor.report.experiment import StoredExperiment
from report.results import NAME


@pytest.fixture(scope="session")
def experiment(results):
    return StoredExperiment.read(results, NAME)
