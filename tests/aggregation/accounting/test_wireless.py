import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.aggregation.accounting import (
    WIRELESS_PRESETS,
    Ledger,
    Wireless,
    time_to_reach,
)
from fedtailor.algorithms import Ditto, FedAvg
from fedtailor.protocol import SGD, Downlink, Streams
from fedtailor.testing import softmax_model, train
from fedtailor.testing.problems import classification, float64

CLIENTS = 20
H20 = 3.5977396571436819  # the 20th harmonic number
UNIT = {"t_min": 1.0, "mean_delay": 0.0}


def models(count):
    return jnp.zeros((count, 3), jnp.float32)


def record(
    ledger,
    t,
    phase="round",
    streams=1,
    held=False,
    up=1,
    clients=CLIENTS,
    reporters=None,
    work=(7, 0),
):
    to = np.arange(clients)[:, None] % max(streams, 1)
    sent = {"model": Streams(models(streams), to, held)} if streams else {}
    ups = (
        {"model": jnp.zeros((clients, up, 3), jnp.float32), "loss": jnp.zeros(clients)}
        if up
        else {}
    )
    report = np.arange(clients) < (clients if reporters is None else reporters)
    ledger.record(t, phase, Downlink(sent, scalars={"a": 0.0}), ups, report, *work)


def ledger_of(rounds, **what):
    ledger = Ledger()
    for t in range(rounds):
        record(ledger, t, **what)
    return ledger


@pytest.mark.parametrize(
    ("system", "compute", "rho"),
    [
        ("slow uplink, unreliable clients", 1 + H20, 4),
        ("fast uplink", 1, 2),
        ("wired", 1, 1),
    ],
)
@pytest.mark.parametrize("streams", [1, 4, 20])
def test_the_systems_of_the_paper(system, compute, rho, streams):
    frame = ledger_of(3, streams=streams).frame()
    times = WIRELESS_PRESETS[system].times(frame, [0, 1, 3])
    np.testing.assert_allclose(
        times, np.array([0, 1, 3]) * (streams + compute + rho), rtol=1e-12
    )


def test_several_models_up_and_sequential_uplinks():
    frame = ledger_of(1, up=4, reporters=5).frame()
    assert Wireless(rho=2, **UNIT).times(frame, [1]) == pytest.approx(1 + 1 + 4 * 2)
    assert Wireless(rho=2, **UNIT, uplink="sequential").times(
        frame, [1]
    ) == pytest.approx(1 + 1 + 5 * 4 * 2)


def test_the_server_waits_for_those_who_send():
    unreliable = Wireless(rho=1, t_min=0, mean_delay=1)
    assert unreliable.times(ledger_of(1, reporters=2).frame(), [1]) == pytest.approx(
        1 + 1.5 + 1
    )
    assert unreliable.times(
        ledger_of(1, streams=0, up=0).frame(), [1]
    ) == pytest.approx(H20)


def test_times_scale_with_the_downlink():
    frame = ledger_of(1).frame()
    assert Wireless(rho=2, t_min=3, mean_delay=0, t_dl=10).times(
        frame, [1]
    ) == pytest.approx(10 + 3 + 20)


def test_the_probe_and_the_delivery_take_time_and_newcomers_do_not():
    ledger = Ledger()
    record(ledger, 0, "probe")
    for t in range(2):
        record(ledger, t, streams=4, held=t == 0)
    record(ledger, 2, "delivery", streams=4, up=0)
    record(ledger, 2, "unseen", streams=4)
    times = Wireless(rho=2, **UNIT).times(ledger.frame(), [0, 1, 2])
    one = (1 + 1 + 2) + (0 + 1 + 2)
    np.testing.assert_allclose(times, [0, one + 4, one + (4 + 1 + 2) + 4])


def test_twenty_final_models_take_nineteen_downlinks_more_than_one():
    def time(streams):
        ledger = ledger_of(2)
        record(ledger, 2, "delivery", streams=streams, up=0, work=(0, 0))
        return WIRELESS_PRESETS["wired"].times(ledger.frame(), [2])[0]

    assert time(20) - time(1) == pytest.approx(19)


@pytest.mark.parametrize("passes", [1, 5])
def test_a_method_that_computes_five_times_as_much_waits_five_times_as_long(passes):
    """20 clients with 30 samples; the random delays grow with the passes, too."""
    frame = ledger_of(1, work=(passes * CLIENTS * 30, 0)).frame()
    unreliable = WIRELESS_PRESETS["slow uplink, unreliable clients"]
    assert unreliable.times(frame, [1], samples=30) == pytest.approx(
        1 + passes * (1 + H20) + 4
    )
    assert unreliable.times(frame, [1]) == pytest.approx(
        1 + (1 + H20) + 4
    )  # as in the paper


def test_a_forward_pass_is_a_third_of_a_gradient():
    frame = ledger_of(1, work=(0, CLIENTS * 30)).frame()
    assert WIRELESS_PRESETS["wired"].times(frame, [1], samples=30) == pytest.approx(
        1 + 1 / 3 + 1
    )


def test_methods_that_train_longer_are_charged_for_it():
    """Ditto trains two models a round where FedAvg trains one; five epochs are five
    passes. The ledger says so.
    """
    clients = classification(
        clients=4, sizes=[8, 12, 16, 20], groups=[0, 0, 1, 1]
    )  # 14 samples each, in the mean
    once, long = (SGD(lr=0.1, epochs=epochs, batch_size=4) for epochs in (1, 5))

    def time(algorithm):
        with float64():
            frame = train(algorithm, clients, softmax_model(), 2).ledger.frame()
        after = [
            WIRELESS_PRESETS["wired"].times(frame, rounds, samples=14)
            for rounds in ([1], [2])
        ]
        return (after[1] - after[0])[
            0
        ]  # the second round: one model down, one up, and computing

    assert [
        time(FedAvg(sgd=once)),
        time(Ditto(sgd=once)),
        time(FedAvg(sgd=long)),
    ] == pytest.approx([3, 4, 7])


@pytest.mark.parametrize("samples", [0, -1, float("nan")])
def test_impossible_numbers_of_samples_are_refused(samples):
    with pytest.raises(ValueError, match="samples"):
        WIRELESS_PRESETS["wired"].times(ledger_of(1).frame(), [1], samples=samples)


def test_only_vectors_of_the_models_size_take_time():
    ledger = Ledger()
    report = np.ones(2, bool)
    examples = {"example": Streams(jnp.zeros((1, 50, 3)), np.zeros((2, 1)))}
    ledger.record(
        0, "round", Downlink(examples), {"weights": jnp.zeros((2, 5))}, report, 7, 0
    )
    assert Wireless(rho=2, **UNIT).times(ledger.frame(), [1]) == pytest.approx(1)


def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_that_has_it():
    accuracies = {0: 0.1, 2: 0.5, 4: 0.4, 5: 0.7}
    frame = ledger_of(5).frame()
    wired = WIRELESS_PRESETS["wired"]
    assert time_to_reach(0.5, accuracies, frame, wired) == pytest.approx(6)
    assert time_to_reach(0.55, accuracies, frame, wired) == pytest.approx(15)
    assert time_to_reach(0.8, accuracies, frame, wired) is None
    # 7 gradients of 20 clients of 0.35 samples each are one pass, of half as many
    # samples two
    assert time_to_reach(0.5, accuracies, frame, wired, samples=0.175) == pytest.approx(
        8
    )


def test_before_the_first_round_no_time_has_passed():
    assert WIRELESS_PRESETS["wired"].times(Ledger().frame(), [0]) == 0


@pytest.mark.parametrize("rounds", [[3], [-1]])
def test_rounds_that_the_ledger_does_not_have_are_refused(rounds):
    with pytest.raises(ValueError, match="2 rounds"):
        WIRELESS_PRESETS["wired"].times(ledger_of(2).frame(), rounds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rho": 0},
        {"t_min": -1},
        {"mean_delay": -1},
        {"t_dl": 0},
        {"uplink": "parallel"},
    ],
)
def test_impossible_systems_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Wireless(**({"rho": 1.0, **UNIT} | wrong))
