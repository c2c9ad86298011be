"""A task is one value: losses in files, a new task in one file, and losses that couple the
examples of a batch.
"""

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from fedtailor.models import (
    Classification,
    TokenCrossEntropy,
    cross_entropy,
    logistic,
    squared_error,
    token_cross_entropy,
)
from fedtailor.models.metrics import default_metrics
from fedtailor.models.tasks import (
    CoxPartial,
    LossFunction,
    Regression,
    Task,
    loss_of,
    plain_loss,
    register,
    registered_losses,
    task_of,
)
from fedtailor.protocol.plain import to_plain


@pytest.mark.parametrize(
    "loss", [*registered_losses().values(), TokenCrossEntropy(ignore=0)]
)
def test_a_loss_is_read_back_from_files_and_manifests(loss):
    assert loss_of(plain_loss(loss)) == loss
    assert loss_of(to_plain(loss)) == loss


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: jnp.abs(outputs - y).sum(-1),
        Classification(lambda outputs, y: outputs[:, 0]),
        Regression(lambda outputs, y: outputs[:, 0]),
    ],
)
def test_a_loss_that_only_the_user_knows_is_refused(loss):
    with pytest.raises(ValueError, match="only your code knows"):
        loss_of(plain_loss(loss))


@pytest.mark.parametrize("plain", ["absolute", {"type": "Median"}, 3, None])
def test_a_loss_that_there_is_not_is_refused_in_one_line(plain):
    with pytest.raises(ValueError) as error:
        loss_of(plain)
    assert "\n" not in str(error.value)


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="a loss 'squared_error' already"):
        register("squared_error", cross_entropy)


def test_manifests_have_the_notation_of_older_versions():
    # Otherwise older runs would be trained again, and private ones drawn anew.
    assert to_plain(squared_error) == "squared_error"
    assert to_plain(cross_entropy) == {
        "type": "Classification",
        "function": "_cross_entropy",
    }
    assert to_plain(token_cross_entropy) == {"type": "TokenCrossEntropy", "ignore": -1}


@pytest.mark.parametrize(
    ("loss", "measured", "main"),
    [
        (cross_entropy, ["loss", "accuracy"], "accuracy"),
        (squared_error, ["loss"], "loss"),
        (token_cross_entropy, ["loss"], "loss"),
    ],
)
def test_a_task_says_what_is_measured(loss, measured, main):
    model = logistic().bind((4,), 3, loss=loss)
    assert [metric.name for metric in default_metrics(model)] == measured
    assert model.metric == main


def test_a_loss_of_its_own_has_no_baseline_of_squared_errors():
    y = np.array([0.0, 1.0, 4.0])
    assert task_of(squared_error).baseline(y, y, 1)["loss"] > 0
    own = task_of(lambda outputs, y: jnp.abs(outputs[:, 0] - y))
    assert "loss" not in own.baseline(y, y, 1)
    assert own.baseline(y, y, 1)["rmse"] > 0


TASK_FILE = '''
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedtailor.models.tasks import Regression, register


@dataclass(frozen=True)
class Poisson(Regression):
    """Counts, whose logarithms the model predicts."""

    def __call__(self, outputs, y):
        logs = outputs.reshape(len(outputs), -1)
        counts = y.reshape(logs.shape).astype(outputs.dtype)
        return (jnp.exp(logs) - counts * logs).sum(-1)

    def predict(self, outputs):
        return np.exp(outputs)


poisson = register("poisson", Poisson())
'''

OPEN_FILE = """
import sys
import numpy as np
import counts
import fedtailor as ft

opened = ft.open(sys.argv[1])
assert opened.model.loss == counts.poisson
x = np.load(sys.argv[2])
np.save(sys.argv[3], np.stack([
    opened.personal(name).predict(x)[:, 0] for name in opened.names
]))
exported = ft.load_models(sys.argv[4])
for name in opened.names:
    np.testing.assert_array_equal(
        exported[name].predict(x), opened.personal(name).predict(x)
    )
"""


def test_a_new_task_is_one_file(tmp_path, monkeypatch):
    """It is trained, measured, saved, and opened in a fresh process."""
    (tmp_path / "counts.py").write_text(TASK_FILE)
    (tmp_path / "open_it.py").write_text(OPEN_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    from counts import poisson  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2)).astype(np.float32)
    rates = np.exp(1 + x @ [0.5, -0.5])
    y = rng.poisson(rates).astype(np.float32)
    federation = ft.federation.from_arrays(
        x, y, np.repeat(["a", "b", "c"], 80), loss=poisson
    )
    sgd = ft.SGD(lr=0.05, epochs=20)
    run = ft.run(
        ft.FedAvg(sgd=sgd),
        federation,
        logistic(),
        rounds=10,
        directory=tmp_path / "run",
    )
    run.export(tmp_path / "models")
    np.save(tmp_path / "x.npy", x)
    command = [
        *(sys.executable, tmp_path / "open_it.py", tmp_path / "run"),
        *(tmp_path / "x.npy", tmp_path / "predictions.npy", tmp_path / "models"),
    ]
    subprocess.run(command, check=True, timeout=300)
    predicted = np.load(tmp_path / "predictions.npy")
    # The maximum likelihood of these rows is the true rate within its standard error.
    np.testing.assert_allclose(
        np.log(predicted[0]).mean(), np.log(rates).mean(), atol=0.15
    )


@dataclass(frozen=True)
class Coupled(Task):
    """A loss of each example that depends on all others of its batch."""

    name: ClassVar[str] = "coupled"
    couples_examples: ClassVar[bool] = True

    def __call__(self, outputs, y):
        return self.losses(outputs, y, jnp.ones(len(outputs), outputs.dtype))

    def losses(self, outputs, y, weight=None):
        weight = jnp.ones(len(outputs), outputs.dtype) if weight is None else weight
        scores = jnp.where(weight > 0, outputs[:, 0], -jnp.inf)
        return jax.nn.logsumexp(scores) - outputs[:, 0] * y


def test_padding_is_told_to_losses_that_couple_examples():
    """A client of 5 examples in batches of 8 takes the step of its 5 examples."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(13, 3)).astype(np.float32)
    y = rng.normal(size=13).astype(np.float32)
    loss: LossFunction = Coupled()
    names = np.repeat(["a", "b"], [5, 8])
    federation = ft.federation.from_arrays(x, y, names, test=0.0, loss=loss)
    sgd = ft.SGD(lr=0.1, steps=1, batch_size=8)
    run = ft.run(ft.Local(sgd=sgd), federation, logistic(), rounds=1, seed=3)
    model = run.model
    start = ft.run(
        ft.Local(sgd=ft.SGD(lr=1e-30, steps=1)),
        federation,
        logistic(),
        rounds=1,
        seed=3,
    )

    for name, rows in (("a", slice(0, 5)), ("b", slice(5, 13))):
        theta = jnp.asarray(start.personal(name).theta)

        def mean_loss(theta, rows=rows):
            outputs = model.logits(theta, jnp.asarray(x[rows]))
            return model.losses(outputs, jnp.asarray(y[rows])).mean()

        expected = theta - 0.1 * jax.grad(mean_loss)(theta)
        np.testing.assert_allclose(
            run.personal(name).theta, expected, rtol=1e-5, atol=1e-6
        )


def test_losses_that_couple_examples_have_no_private_steps():
    """Alone an event has no risk set: its gradient was 0, and only noise was left."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(16, 3)).astype(np.float32)
    y = np.stack([rng.exponential(size=16), np.ones(16)], axis=1)
    names = np.repeat(["a", "b"], 8)
    federation = ft.federation.from_arrays(x, y, names, test=0.0, loss=CoxPartial())
    sgd = ft.SGD(lr=0.1, steps=1, dp_noise=1.0, dp_norm=1.0)
    with pytest.raises(ValueError, match=r"compares the examples of a batch.*discrete"):
        ft.run(ft.FedAvg(sgd=sgd), federation, logistic(), rounds=1)
