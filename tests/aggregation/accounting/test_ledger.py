import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.aggregation.accounting import Ledger
from fedtailor.protocol import Downlink, Streams

SIZE = 10  # parameters of a model
BYTES = 4 * SIZE


def models(streams):
    return jnp.zeros((streams, SIZE), jnp.float32)


def everyone(count):
    return np.ones(count, bool)


def row(ledger, **where):
    """The one row of the frame with these values."""
    frame = ledger.frame().filter(
        *(pl.col(name) == value for name, value in where.items())
    )
    assert len(frame) == 1
    return frame.row(0, named=True)


def test_a_stream_costs_once_by_multicast_and_once_a_client_by_unicast():
    ledger = Ledger()
    to = np.array(
        [[2], [2], [-1], [0]]
    )  # nobody receives stream 1, client 2 receives nothing
    ledger.record(
        3, "round", Downlink({"model": Streams(models(3), to)}), {}, everyone(4), 0, 0
    )
    down = row(ledger, direction="down")
    assert (down["round"], down["phase"], down["kind"]) == (3, "round", "model")
    assert (down["streams"], down["unicasts"], down["clients"]) == (2, 3, 3)
    assert (down["bytes_multicast"], down["bytes_unicast"], down["scalars"]) == (
        2 * BYTES,
        3 * BYTES,
        0,
    )


def test_a_client_needs_a_stream_once_however_often_it_is_addressed():
    ledger = Ledger()
    to = np.array([[0, 1, 0, -1], [1, 1, 1, 1]])
    ledger.record(
        0, "round", Downlink({"model": Streams(models(2), to)}), {}, everyone(2), 0, 0
    )
    assert row(ledger, direction="down")["unicasts"] == 3


def test_only_reporters_are_charged_and_scalars_stand_apart():
    ledger = Ledger()
    report = np.array([True, False, True])
    ups = {  # four rows: the last is padding
        "model": jnp.zeros((4, SIZE), jnp.float16),
        "loss": jnp.zeros(4),
        "weights": jnp.zeros((4, 5), jnp.float32),
    }
    notes = {"temperature": 0.5, "steps": np.arange(3)}
    ledger.record(0, "round", Downlink(scalars=notes), ups, report, 70, 8)
    model = row(ledger, direction="up", kind="model")
    assert (
        model["clients"],
        model["unicasts"],
        model["bytes_unicast"],
        model["scalars"],
    ) == (2, 2, 2 * SIZE * 2, 0)
    assert row(ledger, direction="up", kind="loss")["scalars"] == 2
    assert row(ledger, direction="up", kind="loss")["bytes_unicast"] == 0
    assert row(ledger, direction="up", kind="weights")["bytes_unicast"] == 2 * 5 * 4
    assert row(ledger, direction="down", kind="steps")["scalars"] == 3
    assert row(ledger, direction="down", kind="temperature")["scalars"] == 3
    work = row(ledger, direction="compute")
    assert (work["clients"], work["gradients"], work["forwards"]) == (3, 70, 8)
    totals = ledger.totals()
    assert (totals.models_down, totals.models_up, totals.bytes_up) == (
        0,
        2,
        2 * (2 * SIZE + 20),
    )
    assert (
        totals.scalars_down,
        totals.scalars_up,
        totals.gradients,
        totals.forwards,
    ) == (6, 2, 70, 8)


def test_a_client_may_send_several_models():
    ledger = Ledger()
    ledger.record(
        0,
        "round",
        Downlink(),
        {"model": jnp.zeros((5, 3, SIZE), jnp.float32)},
        everyone(5),
        0,
        0,
    )
    assert row(ledger, direction="up")["unicasts"] == 15
    assert ledger.totals().models_up == 15
    assert ledger.totals().bytes_up == 15 * BYTES


def test_nobody_reports_and_nothing_is_sent():
    ledger = Ledger()
    ledger.record(0, "round", Downlink(), {"model": models(3)}, np.zeros(3, bool), 0, 0)
    assert ledger.frame()["direction"].to_list() == [
        "compute"
    ]  # the round is known to have been
    ledger.record(1, "delivery", Downlink(), {}, everyone(3), 0, 0)
    assert len(ledger.frame()) == 1


def test_examples_count_in_bytes_only():
    ledger = Ledger()
    examples = Streams(jnp.zeros((2, 6, 8), jnp.float32), np.array([[0], [1]]))
    ledger.record(0, "round", Downlink({"example": examples}), {}, everyone(2), 0, 0)
    totals = ledger.totals()
    assert (totals.models_down, totals.models_down_unicast, totals.bytes_down) == (
        0,
        0,
        2 * 6 * 8 * 4,
    )


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=20)
def test_user_centric_training_costs_what_the_paper_says(clients, streams, rounds):
    """One stream for the probe, none for the first round (theta^0 is there), m_t for
    each other and the delivery.
    """
    streams = min(clients, streams)
    to = np.arange(clients)[:, None] % streams
    ledger, all_report = Ledger(), everyone(clients)
    ups = {
        "gradient": models(clients),
        "sigma2": jnp.zeros(clients),
        "samples": jnp.zeros(clients),
    }
    ledger.record(
        0,
        "probe",
        Downlink({"model": Streams.everyone(models(1)[0], clients)}),
        ups,
        all_report,
        5,
        0,
    )
    for t in range(rounds):
        down = Downlink({"model": Streams(models(streams), to, already_held=t == 0)})
        ledger.record(t, "round", down, {"model": models(clients)}, all_report, 5, 0)
    deliver = Downlink({"model": Streams(models(streams), to)})
    ledger.record(rounds, "delivery", deliver, {}, all_report, 0, 0)
    ledger.record(
        rounds, "unseen", deliver, {"gradient": models(clients)}, all_report, 9, 9
    )
    totals = ledger.totals()
    assert totals.models_down == 1 + rounds * streams
    assert totals.models_down_unicast == clients + rounds * clients
    assert totals.models_up == clients + rounds * clients
    assert totals.bytes_down == totals.models_down * BYTES
    assert totals.bytes_down_unicast == totals.models_down_unicast * BYTES
    assert totals.bytes_up == totals.models_up * BYTES
    assert (totals.scalars_up, totals.gradients, totals.forwards) == (
        2 * clients,
        5 + 5 * rounds,
        0,
    )
    assert ledger.last_streams() == streams


def test_streams_of_the_last_round_and_the_delivery():
    ledger = Ledger()
    assert ledger.last_streams() == 0
    for t, count in enumerate((4, 3)):
        ledger.record(
            t,
            "round",
            Downlink({"model": Streams.all_to_all(models(count), 5)}),
            {},
            everyone(5),
            0,
            0,
        )
    assert ledger.last_streams() == 3
    ledger.record(2, "round", Downlink(), {}, everyone(5), 0, 0)
    assert ledger.last_streams() == 0
    ledger.record(
        3,
        "delivery",
        Downlink({"model": Streams.all_to_all(models(2), 5)}),
        {},
        everyone(5),
        0,
        0,
    )
    ledger.record(
        3,
        "unseen",
        Downlink({"model": Streams.all_to_all(models(5), 5)}),
        {},
        everyone(5),
        0,
        0,
    )
    assert ledger.last_streams() == 2


def test_model_and_control_are_two_streams():
    ledger = Ledger()
    sent = Streams.everyone(models(1)[0], 3)
    ledger.record(
        0, "round", Downlink({"model": sent, "control": sent}), {}, everyone(3), 0, 0
    )
    assert ledger.totals().models_down == ledger.last_streams() == 2


def test_frames_come_back(tmp_path):
    ledger = Ledger()
    assert ledger.frame().columns == Ledger.from_frame(ledger.frame()).frame().columns
    for t in range(2):
        down = Downlink(
            {"model": Streams.everyone(models(1)[0], 3)}, scalars={"a": 1.0}
        )
        ledger.record(t, "round", down, {"model": models(3)}, everyone(3), 2**40, 3)
    ledger.frame().write_parquet(tmp_path / "ledger.parquet")
    again = Ledger.from_frame(pl.read_parquet(tmp_path / "ledger.parquet"))
    assert again.frame().equals(ledger.frame())
    assert again.totals() == ledger.totals()
    again.record(2, "round", Downlink(), {}, everyone(3), 0, 0)
    assert len(again.frame()) == len(ledger.frame()) + 1
    with pytest.raises(ValueError, match="bytes_unicast"):
        Ledger.from_frame(ledger.frame().drop("bytes_unicast"))


def test_an_unknown_phase_is_refused():
    with pytest.raises(ValueError, match="evaluation"):
        Ledger().record(0, "evaluation", Downlink(), {}, everyone(1), 0, 0)
