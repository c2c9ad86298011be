"""Models in bfloat16: vectors of 16 bits in messages and files, sums in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from conformance.examples import example
from conformance.problems import classification
from fedtailor.aggregation.mix import mix, weighted_sums
from fedtailor.data.federation import from_arrays
from fedtailor.models import Precision, logistic, lora, mlp, resnet
from fedtailor.models.precision import dtype_of
from fedtailor.protocol import Algorithm

BF16 = np.dtype(jnp.bfloat16)
ULP = 2.0**-8
"""The largest relative error of rounding to bfloat16 is half of this."""


def federation(clients=4, rows=30, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * rows, 3)).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5] > 0).astype(int)
    return from_arrays(x, y, np.repeat(np.arange(clients), rows), test=0.3)


def trained(dtype, algorithm=None, **options):
    algorithm = ft.FedAvg() if algorithm is None else algorithm
    model = mlp(8).bind((3,), 2, dtype=dtype)
    return ft.run(algorithm, federation(), model, rounds=3, **options)


def test_a_name_stands_for_a_precision():
    assert Precision.of("bfloat16") == Precision("bfloat16", "bfloat16", "float32")
    assert Precision.of("float64") == Precision("float64", "float64", "float64")
    mixed = Precision(compute="bfloat16")
    assert logistic().bind((3,), 2, dtype=mixed).precision == mixed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: logistic().bind((3,), 2, dtype="float8"), "dtype is 'float8'"),
        (lambda: Precision(compute="half"), "compute is 'half'"),
        (lambda: Precision(sums="bfloat16"), "sums of bfloat16"),
        (
            lambda: resnet(norm="batch").bind((8, 8, 3), 2, dtype="bfloat16"),
            "running statistics",
        ),
    ],
)
def test_what_does_not_work_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_averages_of_many_clients_are_summed_in_float32():
    """The mean of 3,000 vectors is the exact one, rounded once."""
    rows = np.random.default_rng(0).normal(1, 0.1, (3000, 5)).astype(BF16)
    weights = np.full((1, 3000), 1 / 3000)
    exact = rows.astype(np.float64).mean(0)
    mixed = mix(jnp.zeros((1, 5), jnp.bfloat16), jnp.asarray(rows), weights)
    assert mixed.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(mixed[0], np.float64), exact, rtol=ULP)
    sums = weighted_sums(jnp.asarray(rows), weights)
    assert sums.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(sums[0], np.float64), exact, rtol=1e-5)


def test_one_client_with_all_weight_is_returned_to_the_bit():
    rows = np.random.default_rng(0).normal(size=(4, 9)).astype(BF16)
    mixed = mix(jnp.zeros((1, 9), jnp.bfloat16), jnp.asarray(rows), np.eye(4)[2:3])
    np.testing.assert_array_equal(np.asarray(mixed[0]), rows[2])


@pytest.mark.parametrize("dtype", ["bfloat16", Precision(compute="bfloat16")])
def test_training_is_near_that_in_float32(dtype):
    full, half = trained("float32"), trained(dtype)
    for name in full.federation.names:
        ours, exact = half.personal(name).theta, full.personal(name).theta
        assert ours.dtype == half.model.precision.parameters
        # Three rounds, each rounded on its way down and up, and steps in bfloat16.
        np.testing.assert_allclose(np.float64(ours), exact, atol=6 * ULP)
    frames = [run.frame().filter(metric="loss")["value"] for run in (full, half)]
    np.testing.assert_allclose(*frames, rtol=0.05)


def test_adapters_in_mixed_precision_are_near_those_in_float32():
    """Frozen arrays keep their bits, and what is trained is in float32."""
    runs = []
    for dtype in ("float32", dtype_of("mixed")):
        model = lora(mlp(8), 2).bind((3,), 2, dtype=dtype)
        before = {path: model.frozen[path].copy() for path in model.frozen}
        run = ft.run(ft.FedAvg(), federation(), model, rounds=3)
        for path, array in before.items():
            np.testing.assert_array_equal(run.model.frozen[path], array)
            assert array.dtype == np.float32
        runs.append(run)
    full, mixed = runs
    for name in full.federation.names:
        ours, exact = mixed.personal(name).theta, full.personal(name).theta
        assert ours.dtype == np.float32 and not np.array_equal(ours, exact)
        np.testing.assert_allclose(ours, exact, atol=6 * ULP)


def test_small_steps_add_up_in_float32():
    """Steps of less than half a unit in the last place change the model together."""
    sgd = ft.SGD(lr=1e-3, steps=400, batch_size=8)
    runs = [trained(dtype, ft.FedAvg(sgd=sgd)) for dtype in ("float32", "bfloat16")]
    full, half = (np.float64(run.personal("0").theta) for run in runs)
    start = np.float64(
        trained("float32", ft.FedAvg(sgd=ft.SGD(lr=1e-30, steps=1))).personal("0").theta
    )
    moved = np.linalg.norm(full - start)
    assert np.linalg.norm(half - full) < 0.2 * moved


def test_shares_of_more_rows_than_16_bits_can_count_are_exact():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2)).astype(np.float32)
    data = from_arrays(x, (x[:, 0] > 0).astype(int), np.zeros(3000, int), test=0.5)
    model = logistic().bind((2,), 2, dtype="bfloat16")
    run = ft.run(ft.Local(), data, model, rounds=1)
    split = data.client(0).test
    correct = (run.personal("0").predict(split.x) == split.y).mean()
    rows = run.frame().filter(metric="accuracy", split="test")
    np.testing.assert_allclose(rows["value"].to_list()[-1], correct, atol=2 / 1500)


def test_messages_have_half_the_bytes():
    full, half = trained("float32"), trained("bfloat16")
    sent, of_halves = full.ledger.totals(), half.ledger.totals()
    assert 2 * of_halves.bytes_up == sent.bytes_up
    assert 2 * of_halves.bytes_down == sent.bytes_down


@pytest.mark.parametrize("dtype", ["bfloat16", Precision(compute="bfloat16")])
def test_files_keep_the_bits(dtype, tmp_path):
    """A run is resumed, opened and exported without a change."""
    whole = trained(dtype, ft.Ditto(), directory=tmp_path / "whole")
    model = mlp(8).bind((3,), 2, dtype=dtype)
    for rounds in (1, 3):
        resumed = ft.run(
            ft.Ditto(),
            federation(),
            model,
            rounds=rounds,
            directory=tmp_path / "parts",
            resume=True,
        )
    whole.export(tmp_path / "models")
    exported, opened = ft.load_models(tmp_path / "models"), ft.open(tmp_path / "whole")
    assert opened.model == model
    for name in whole.federation.names:
        theta = whole.personal(name).theta
        assert theta.dtype == model.precision.parameters
        for other in (resumed, opened):
            np.testing.assert_array_equal(other.personal(name).theta, theta)
        np.testing.assert_array_equal(exported[name].theta, theta)


@pytest.mark.repeated
@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_every_method_trains_in_bfloat16(name):
    clients = classification(groups=[0, 1, 0, 1, 1])
    model = mlp(5).bind((4,), 3, dtype="bfloat16")
    run = ft.run(example(name), clients, model, rounds=1)
    losses = run.frame().filter(metric="loss")["value"].to_numpy()
    assert len(losses) and np.isfinite(losses).all()
