"""Quantize and TopK: what travels, what the server makes of it, and what comes
later.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.examples import PLAIN, TRAINED
from fedtailor.aggregation.pipelines import Cast, Clip, Quantize, TopK
from fedtailor.aggregation.pipelines.quantize import restored, rounded
from fedtailor.aggregation.pipelines.top_k import scattered
from fedtailor.algorithms import SCAFFOLD, FedAvg, FedEM, FedPer, UCFLParallel
from fedtailor.engine.runs import run, simulate
from fedtailor.protocol import Inbox
from fedtailor.testing import classification, softmax_model

FEDAVG = FedAvg(sgd=PLAIN)
D = 15  # of `softmax_model`


def trained(algorithm, rounds=2, **pipelines):
    training = simulate(
        algorithm, classification(), softmax_model("float32"), **pipelines
    )
    for _ in range(rounds):
        training.advance()
    return training


def up(training):
    """Kind -> bytes and scalars that a client sends up in a round."""
    frame = training.ledger.frame().filter(
        (pl.col("direction") == "up") & (pl.col("round") == 0)
    )
    rows = frame.select("kind", "clients", "bytes_unicast", "scalars").iter_rows()
    return {
        kind: (size / clients, scalars / clients)
        for kind, clients, size, scalars in rows
    }


def test_rounding_is_right_on_average_and_never_off_by_more_than_a_step():
    x = (
        jnp.asarray(np.random.default_rng(0).normal(size=40), jnp.float32)
        .at[7]
        .set(0.0)
    )
    draws = 4000
    whole, scale = jax.vmap(lambda key: rounded(x, 16, key))(
        jax.random.split(jax.random.key(1), draws)
    )
    assert (
        whole.dtype == jnp.int8
        and whole.shape == (draws, 40)
        and scale.shape == (draws, 3)
    )
    values = np.asarray(jax.vmap(lambda w, s: restored(w, s, 16))(whole, scale), float)
    step = np.repeat(np.asarray(scale[0], float), 16)[:40]
    assert np.abs(values - np.asarray(x)).max() < step.max() * (1 + 1e-5)
    assert (
        values.std(axis=0) > 0.05 * step
    ).sum() > 30  # they are drawn, not rounded to the nearest
    # a draw deviates by at most half a step from its mean: five deviations of the mean
    # of all
    assert (
        np.abs(values.mean(axis=0) - np.asarray(x)) < 5 * 0.5 * step / draws**0.5
    ).all()
    np.testing.assert_array_equal(values[:, 7], 0)


def test_all_zeros_stay_zeros():
    whole, scale = rounded(jnp.zeros(5), 2, jax.random.key(0))
    np.testing.assert_array_equal(restored(whole, scale, 2), np.zeros(5))


@pytest.mark.parametrize(
    "algorithm",
    [
        FEDAVG,
        SCAFFOLD(sgd=PLAIN),
        FedPer(sgd=PLAIN, part="bias"),
        UCFLParallel(sgd=TRAINED, streams=2),
    ],
    ids=lambda it: it.about.name,
)
def test_bytes_hardly_move_the_models(algorithm):
    """Whatever a client's vectors are changes of: one model or the nearest of several,
    a part, or zero.
    """
    full, coarse = trained(algorithm), trained(algorithm, uplink=(Quantize(block=8),))
    difference = np.abs(
        np.asarray(full.server.model) - np.asarray(coarse.server.model)
    ).max()
    moved = np.abs(np.asarray(full.server.model) - np.asarray(full.initial(0))).max()
    assert 0 < difference < 0.02 * moved


def test_the_ledger_counts_what_travels():
    assert up(trained(FEDAVG, 1)) == {"model": (4 * D, 0)}
    assert up(trained(FEDAVG, 1, uplink=(Quantize(block=8),))) == {
        "model": (D, 0),
        "model scale": (8, 0),
    }
    sparse = trained(FEDAVG, 1, uplink=(TopK(0.2),))
    assert up(sparse) == {"model": (3 * 4, 0), "model places": (3 * 2, 0)}
    both = trained(FEDAVG, 1, uplink=(TopK(0.2), Quantize()))
    assert up(both) == {"model": (3, 0), "model places": (6, 0), "model scale": (4, 0)}
    assert both.ledger.totals().models_up == sparse.ledger.totals().models_up == 5


CLIENT = SimpleNamespace(has_statistics=False)
"""A client, as far as top-k asks for it."""


def test_what_was_left_is_sent_later():
    """At any time all that was sent and what is kept are all that changed; small
    integers, so that sums are exact.
    """
    transform, start, rng = (
        TopK(0.3),
        jnp.zeros(10, jnp.float32),
        np.random.default_rng(0),
    )
    inbox = Inbox(
        {"model": start[None]}, {"model": jnp.ones(1, bool)}, {}, jnp.array(True)
    )
    kept, changed, arrived = transform.init(start), np.zeros(10), np.zeros(10)
    for _ in range(20):
        change = rng.integers(-9, 9, 10).astype(np.float32)
        sent, kept = transform.encode(
            {"model": jnp.asarray(change)}, inbox, kept, CLIENT
        )
        assert (
            sent["model"].shape == (3,)
            and len(set(np.asarray(sent["model places"]).tolist())) == 3
        )
        changed += change
        arrived += np.asarray(scattered(sent["model"], sent["model places"], 10))
        np.testing.assert_array_equal(arrived + np.asarray(kept), changed)
        assert np.abs(kept).max() <= np.abs(np.asarray(sent["model"])).min()
    assert np.abs(kept).max() > 0
    silent = Inbox(inbox.values, inbox.received, {}, jnp.array(False))
    _, after = transform.encode({"model": jnp.ones(10)}, silent, kept, CLIENT)
    np.testing.assert_array_equal(after, kept)  # who is not asked has sent nothing


def test_everything_is_nothing_left_out():
    full, whole = trained(FEDAVG), trained(FEDAVG, uplink=(TopK(1.0),))
    np.testing.assert_allclose(full.server.model, whole.server.model, rtol=0, atol=1e-6)
    fed = trained(FEDAVG, 3, uplink=(TopK(0.1),)).server.model
    lost = trained(FEDAVG, 3, uplink=(TopK(0.1, feedback=False),)).server.model
    assert np.abs(np.asarray(fed) - np.asarray(lost)).max() > 1e-4


def test_what_is_kept_survives_a_resume(tmp_path):
    options = {
        "uplink": (Clip(0.05), TopK(0.2), Quantize()),
        "downlink": (Cast(),),
        "checkpoint_every": 1,
    }
    clients, model = classification(), softmax_model("float32")
    run(FEDAVG, clients, model, 3, directory=tmp_path / "whole", **options)
    run(FEDAVG, clients, model, 1, directory=tmp_path / "parts", **options)
    run(FEDAVG, clients, model, 3, directory=tmp_path / "parts", resume=True, **options)
    for file in ("metrics.parquet", "ledger.parquet"):
        assert (tmp_path / "whole" / file).read_bytes() == (
            tmp_path / "parts" / file
        ).read_bytes()


@pytest.mark.parametrize(
    ("algorithm", "uplink", "message"),
    [
        (FedEM(sgd=PLAIN), (TopK(),), "set feedback = false"),
        (FEDAVG, (Quantize(), TopK()), "applies Quantize before TopK"),
        (FEDAVG, (Quantize(), Cast()), "applies Quantize before Cast"),
        (FEDAVG, (Clip(), Clip()), "applies Clip before Clip"),
    ],
)
def test_what_cannot_be_done_is_refused(algorithm, uplink, message):
    with pytest.raises(ValueError, match=message):
        trained(algorithm, 1, uplink=uplink)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "fraction is 0"),
        (lambda: TopK("1"), "fraction is '1'"),
        (lambda: Quantize(0), "block is 0"),
    ],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
