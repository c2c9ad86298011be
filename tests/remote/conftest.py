"""What the tests of federations hear of coordinators and clients."""

import pytest

from fedtailor.remote.wire.run_log import (
    CLIENTS,
    COORDINATOR_LOG,
    FEDERATION,
    Lines,
    client_log,
)

LOGGERS = (COORDINATOR_LOG, CLIENTS, *map(client_log, "abcd"))


@pytest.fixture(autouse=True)
def no_test_hears_another():
    """What a test has listening stops with it. A Flower app listens from its import on."""
    FEDERATION.handlers.clear()
    before = {logger: logger.handlers[:] for logger in LOGGERS}
    yield
    for logger, handlers in before.items():
        logger.handlers[:] = handlers


@pytest.fixture
def lines():
    """What coordinators say."""
    heard = []
    Lines(heard.append).listen(COORDINATOR_LOG)
    return heard


@pytest.fixture
def client_lines():
    """What clients say."""
    heard = []
    Lines(heard.append).listen(CLIENTS)
    return heard


@pytest.fixture
def exact_sums(monkeypatch):
    """Sums behind masks without noise, so that all else can be compared to the bit."""
    monkeypatch.setattr("fedtailor.aggregation.secure_sums.NOISE", 0.0)
