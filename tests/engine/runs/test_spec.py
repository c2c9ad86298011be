"""A run is a value, which any executor does."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedtailor as ft
from conformance.problems import classification
from fedtailor.aggregation.pipelines import Clip
from fedtailor.engine.executors import DeviceExecutor
from fedtailor.engine.runs import Store, run_on
from fedtailor.engine.training import Participation, RunSpec
from fedtailor.protocol import Executor


class Elsewhere:
    """An executor from outside the package: it has nothing but what the protocol names,
    which it hands on to another one, and notes the tasks.
    """

    promised = frozenset({*Executor.__annotations__, *vars(Executor)})

    def __init__(self, inner):
        self._inner, self.tasks = inner, []

    def __getattr__(self, name):
        if name not in self.promised:
            raise AttributeError(f"{name} is not part of an executor")
        return getattr(self._inner, name)

    def exchange(self, exchange):
        self.tasks.append(exchange.task)
        return self._inner.exchange(exchange)


def test_an_executor_from_outside_does_the_same_run(tmp_path):
    clients = classification(sizes=[11, 17, 23, 29, 35], seed=0)
    method = ft.Ditto(sgd=ft.SGD(lr=0.1, steps=2, batch_size=8))
    options = {
        "rounds": 3,
        "seed": 5,
        "participation": 2,
        "metrics": "balanced_accuracy",
    }
    straight = ft.run(
        method, clients, ft.models.logistic(), directory=tmp_path / "run", **options
    )
    executor = Elsewhere(DeviceExecutor(clients, straight.model))
    spec = RunSpec(method, straight.model, **options)
    run = run_on(executor, spec, store=Store(tmp_path / "elsewhere"))
    assert executor.tasks.count("client") == 3
    for name in clients.names:
        np.testing.assert_array_equal(
            run.personal(name).theta, straight.personal(name).theta
        )
    assert run.row_outcomes().equals(straight.row_outcomes())
    rows = clients.x[clients.test[0]], clients.y[clients.test[0]]
    newcomers = [one.enroll(*rows).theta for one in (run, straight)]
    np.testing.assert_array_equal(*newcomers)
    for file in ("manifest.toml", "metrics.parquet", "ledger.parquet"):
        one, other = (tmp_path / kind / file for kind in ("run", "elsewhere"))
        assert one.read_bytes() == other.read_bytes(), file


def test_a_spec_is_read_back_from_its_manifest(tmp_path):
    clients = classification(sizes=[11, 17, 23, 29, 35], seed=0)
    spec = RunSpec(
        ft.UCFL(streams=2),
        ft.models.mlp(4),
        2,
        seed=7,
        participation=Participation(count=2),
        uplink=(Clip(0.5),),
        metrics=("loss",),
        evaluate_every=2,
        until_converged=True,
    )
    run = ft.run(
        spec.algorithm,
        clients,
        spec.model,
        spec.rounds,
        seed=spec.seed,
        participation=spec.participation,
        uplink=spec.uplink,
        metrics=spec.metrics,
        evaluate_every=spec.evaluate_every,
        until_converged=spec.until_converged,
        directory=tmp_path,
    )
    opened = ft.open(tmp_path, federation=clients).spec
    assert opened.rounds == 2
    assert json.dumps(opened.to_plain()) == json.dumps(
        replace(spec, model=run.model).to_plain()
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"evaluate_every": 1.5}, "evaluate_every is 1.5"),
        ({"participation": 1.5}, "participation is 1.5"),
        ({"uplink": "clip"}, "uplink is 'clip'"),
        ({"algorithm": ft.FedAvg}, "the method is the class FedAvg"),
        ({"model": "mlp"}, "the model is 'mlp'"),
    ],
)
def test_a_wrong_setting_is_one_line(wrong, message):
    settings = {"algorithm": ft.FedAvg(), "model": ft.models.logistic(), "rounds": 1}
    with pytest.raises(ValueError, match=message):
        RunSpec(**(settings | wrong))
