"""What stands between clients and the server: clipping, 16-bit numbers, and what the
ledger counts of them.
"""

import sys
from importlib.metadata import EntryPoint

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.examples import PLAIN, TRAINED
from fedtailor._base.entry_points import import_modules
from fedtailor.aggregation import pipelines
from fedtailor.aggregation.pipelines import Cast, Clip, check_stages, find_transform
from fedtailor.aggregation.pipelines.clip import change_reference
from fedtailor.algorithms import SCAFFOLD, Ditto, FedAvg, HypCluster
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run, simulate
from fedtailor.protocol import Inbox, Transform
from fedtailor.testing import classification, predictors, softmax_model

FEDAVG = FedAvg(sgd=PLAIN)


def trained(algorithm=FEDAVG, rounds=2, **pipelines):
    training = simulate(
        algorithm, classification(), softmax_model("float32"), **pipelines
    )
    for _ in range(rounds):
        training.advance()
    return training


def moved(training):
    """How far the server's model is from where it began."""
    return float(jnp.linalg.norm(training.server.model[0] - training.initial(0)))


def test_a_bound_that_nobody_reaches_changes_no_bit():
    for algorithm in (
        FEDAVG,
        SCAFFOLD(sgd=PLAIN),
        Ditto(sgd=TRAINED),
        HypCluster(sgd=TRAINED, clusters=2),
    ):
        free, bounded = trained(algorithm), trained(algorithm, uplink=(Clip(1e6),))
        np.testing.assert_array_equal(free.server.model, bounded.server.model)


def test_a_clipped_round_moves_no_further_than_the_bound():
    assert moved(trained(rounds=1)) > 0.02
    bounded = trained(rounds=1, uplink=(Clip(0.01),))
    assert 0.003 < moved(bounded) <= 0.01 * (1 + 1e-5)


def test_the_change_is_measured_from_the_nearest_model_received():
    models = jnp.array([[0.0, 0.0], [4.0, 0.0], [9.0, 9.0]])
    inbox = Inbox(
        {"model": models},
        {"model": jnp.array([True, True, False])},
        {},
        jnp.array(True),
    )
    np.testing.assert_array_equal(
        change_reference("model", jnp.array([8.0, 8.0]), inbox), [4.0, 0.0]
    )
    np.testing.assert_array_equal(
        change_reference("gradient", jnp.array([8.0, 8.0]), inbox), [0.0, 0.0]
    )
    several = change_reference("model", jnp.array([[1.0, 0.0], [3.0, 0.0]]), inbox)
    np.testing.assert_array_equal(several, [[0.0, 0.0], [4.0, 0.0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_halve_the_bytes_and_hardly_move_the_models(dtype):
    full, half = trained(), trained(uplink=(Cast(dtype),), downlink=(Cast(dtype),))

    def sent(training, direction):
        frame = training.ledger.frame().filter(
            (pl.col("direction") == direction) & (pl.col("kind") == "model")
        )
        return frame["bytes_unicast"].sum()

    for direction in ("up", "down"):
        assert 2 * sent(half, direction) == sent(full, direction) > 0
    one, other = (np.concatenate(predictors(training)) for training in (full, half))
    assert full.server.model.dtype == half.server.model.dtype == np.float32
    difference = np.abs(one - other).max()
    assert 0 < difference < 0.02


def test_pipelines_survive_a_resume(tmp_path):
    options = {
        "uplink": (Clip(0.05), Cast()),
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
    with pytest.raises(ValueError, match=r"other settings .*downlink"):
        run(FEDAVG, clients, model, 4, directory=tmp_path / "parts", resume=True)


def test_the_debug_executor_applies_them_too():
    clients, options = (
        classification(clients=2, sizes=[9, 13]),
        {
            "uplink": (Clip(0.01),),
            "downlink": (Cast(),),
        },
    )
    fast, slow = (
        simulate(
            FEDAVG,
            clients,
            softmax_model("float32"),
            settings=Settings(debug=debug),
            **options,
        )
        for debug in (False, True)
    )
    for training in (fast, slow):
        training.advance()
    np.testing.assert_allclose(fast.server.model, slow.server.model, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Clip(0.0), "norm is 0"), (lambda: Cast("int8"), "dtype is 'int8'")],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


NEW = """
from typing import ClassVar

from fedtailor.protocol import Stage, Transform, hyperparameters


@hyperparameters
class Halve(Transform):
    name: ClassVar[str] = "halve"
    stage: ClassVar[Stage | None] = "noise"

    def encode(self, update, inbox, state, local):
        return {kind: value / 2 for kind, value in update.items()}, state
"""


def test_a_new_transform_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "halve.py").write_text(NEW)
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    monkeypatch.setattr(Transform, "registry", dict(Transform.registry))
    try:
        import_modules(pipelines.__name__)
        halve = find_transform("halve")()
        check_stages((Clip(), halve, Cast()))
        with pytest.raises(
            ValueError,
            match=(
                r"applies Halve before Clip; .* then gaussian-noise or halve, then"
                r" byzantine, then top-k"
            ),
        ):
            check_stages((halve, Clip()))
        np.testing.assert_allclose(
            trained(rounds=1, uplink=(halve,)).server.model,
            trained(rounds=1).server.model / 2,
        )
    finally:
        sys.modules.pop(f"{pipelines.__name__}.halve", None)


def test_a_transform_of_another_package_is_found_by_its_entry_point(monkeypatch):
    def offered(group, name=None):
        assert group == "fedtailor.transforms"
        return (
            [EntryPoint(name, "fedtailor.aggregation.pipelines:Clip", group)]
            if name == "outside"
            else []
        )

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", offered)
    monkeypatch.setattr(Transform, "registry", dict(Transform.registry))
    assert find_transform("outside") is Clip
    with pytest.raises(ValueError, match="there is no uplink transform 'inside'"):
        find_transform("inside")
