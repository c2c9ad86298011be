import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.accounting import SYSTEMS, Ledger, Wireless, accuracy_by_time, time_to_reach
from fedtailor.protocol import Downlink, Streams

CLIENTS = 20
H20 = 3.5977396571436819  # the 20th harmonic number
UNIT = {"t_min": 1.0, "inverse_mu": 0.0}


def models(count):
    return jnp.zeros((count, 3), jnp.float32)


def record(ledger, t, phase="round", streams=1, held=False, up=1, clients=CLIENTS, reporters=None):
    to = np.arange(clients)[:, None] % max(streams, 1)
    sent = {"model": Streams(models(streams), to, held)} if streams else {}
    ups = {"model": jnp.zeros((clients, up, 3), jnp.float32), "loss": jnp.zeros(clients)} if up else {}
    report = np.arange(clients) < (clients if reporters is None else reporters)
    ledger.record(t, phase, Downlink(sent, scalars={"a": 0.0}), ups, report, 7, 0)


def ledger_of(rounds, **what):
    ledger = Ledger()
    for t in range(rounds):
        record(ledger, t, **what)
    return ledger


@pytest.mark.parametrize(
    ("system", "compute", "rho"),
    [("slow uplink, unreliable clients", 1 + H20, 4), ("fast uplink", 1, 2), ("wired", 1, 1)],
)
@pytest.mark.parametrize("streams", [1, 4, 20])
def test_the_systems_of_the_paper(system, compute, rho, streams):
    frame = ledger_of(3, streams=streams).frame()
    times = SYSTEMS[system].times(frame, [0, 1, 3])
    np.testing.assert_allclose(times, np.array([0, 1, 3]) * (streams + compute + rho), rtol=1e-12)


def test_several_models_up_and_sequential_uplinks():
    frame = ledger_of(1, up=4, reporters=5).frame()
    assert Wireless(rho=2, **UNIT).times(frame, [1]) == pytest.approx(1 + 1 + 4 * 2)
    assert Wireless(rho=2, **UNIT, uplink="sequential").times(frame, [1]) == pytest.approx(1 + 1 + 5 * 4 * 2)


def test_the_server_waits_for_those_who_send():
    unreliable = Wireless(rho=1, t_min=0, inverse_mu=1)
    assert unreliable.times(ledger_of(1, reporters=2).frame(), [1]) == pytest.approx(1 + 1.5 + 1)
    assert unreliable.times(ledger_of(1, streams=0, up=0).frame(), [1]) == pytest.approx(H20)


def test_times_scale_with_the_downlink():
    frame = ledger_of(1).frame()
    assert Wireless(rho=2, t_min=3, inverse_mu=0, t_dl=10).times(frame, [1]) == pytest.approx(10 + 3 + 20)


def test_the_probe_takes_time_and_delivery_and_newcomers_do_not():
    ledger = Ledger()
    record(ledger, 0, "probe")
    for t in range(2):
        record(ledger, t, streams=4, held=t == 0)
    record(ledger, 2, "delivery", streams=4, up=0)
    record(ledger, 2, "unseen", streams=4)
    times = Wireless(rho=2, **UNIT).times(ledger.frame(), [0, 1, 2])
    np.testing.assert_allclose(times, [0, (1 + 1 + 2) + (0 + 1 + 2), (1 + 1 + 2) + (0 + 1 + 2) + (4 + 1 + 2)])


def test_only_vectors_of_the_models_size_take_time():
    ledger = Ledger()
    report = np.ones(2, bool)
    examples = {"example": Streams(jnp.zeros((1, 50, 3)), np.zeros((2, 1)))}
    ledger.record(0, "round", Downlink(examples), {"weights": jnp.zeros((2, 5))}, report, 7, 0)
    assert Wireless(rho=2, **UNIT).times(ledger.frame(), [1]) == pytest.approx(1)


def test_accuracy_by_time():
    accuracies = {0: 0.1, 2: 0.5, 4: 0.4, 5: 0.7}
    frame = ledger_of(5).frame()
    wired = SYSTEMS["wired"]
    curve = accuracy_by_time(accuracies, frame, wired)
    assert curve.columns == ["round", "time", "accuracy"]
    assert curve["time"].to_list() == pytest.approx([0, 6, 12, 15])
    assert curve["accuracy"].to_list() == [0.1, 0.5, 0.4, 0.7]
    assert time_to_reach(0.5, accuracies, frame, wired) == pytest.approx(6)
    assert time_to_reach(0.55, accuracies, frame, wired) == pytest.approx(15)
    assert time_to_reach(0.8, accuracies, frame, wired) is None


def test_before_the_first_round_no_time_has_passed():
    assert SYSTEMS["wired"].times(Ledger().frame(), [0]) == 0


@pytest.mark.parametrize("rounds", [[3], [-1]])
def test_rounds_that_the_ledger_does_not_have_are_refused(rounds):
    with pytest.raises(ValueError, match="2 rounds"):
        SYSTEMS["wired"].times(ledger_of(2).frame(), rounds)


@pytest.mark.parametrize("wrong", [{"rho": 0}, {"t_min": -1}, {"inverse_mu": -1}, {"t_dl": 0}, {"uplink": "parallel"}])
def test_impossible_systems_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Wireless(**({"rho": 1.0, **UNIT} | wrong))
