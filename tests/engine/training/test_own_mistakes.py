"""Mistakes in a user's own losses, predictors, metrics, callbacks and settings: each ends
in one line, where it gave wrong numbers or an error without a cause.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedtailor as ft
from fedtailor.aggregation.pipelines import Clip
from fedtailor.lab.baselines.federated import MixedEffects
from fedtailor.models import Classification
from fedtailor.models.metrics import Accuracy, Metric
from fedtailor.protocol import (
    SGD,
    CombinedPredictor,
    Diverged,
    ServerState,
    hyperparameters,
    predictor,
)
from fedtailor.testing import CHECKS

STEPS = SGD(lr=0.1, steps=1, batch_size=8)
DIGITS = ft.scenarios.digits_rotated(seed=0, clients=4)
RUN = partial(ft.run, rounds=1)
LOGISTIC = ft.models.logistic()


def one_hot_loss(outputs: Any, y: Any) -> Any:
    return -(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(outputs)).sum(-1)


def test_the_loss_of_classes_is_no_plain_function() -> None:
    """It was that of a regression with one output, 0 for all rows."""
    with pytest.raises(ValueError, match=r"give fedtailor\.models\.Classification"):
        RUN(ft.FedAvg(sgd=STEPS), replace(DIGITS, loss=one_hot_loss), LOGISTIC)
    task = replace(DIGITS, loss=Classification(one_hot_loss))
    usual = RUN(ft.FedAvg(sgd=STEPS), DIGITS, LOGISTIC).metrics.values("loss")
    found = RUN(ft.FedAvg(sgd=STEPS), task, LOGISTIC).metrics.values("loss")
    np.testing.assert_allclose(found, usual, rtol=1e-5)


def test_a_loss_returns_a_number_for_each_example() -> None:
    def mean(outputs: Any, y: Any) -> Any:
        return jnp.square(outputs[:, 0] - y).mean()

    x = np.ones((40, 2), np.float32)
    numbers = ft.federation.from_arrays(x, x[:, 0], np.repeat(range(4), 10), loss=mean)
    with pytest.raises(
        ValueError, match=r"shape \(\) for a batch of 8 .* shape \(8,\)"
    ):
        RUN(ft.FedAvg(sgd=STEPS), numbers, ft.models.linear())


@predictor
class TwiceAsWide(CombinedPredictor):
    """Two scores for each class."""

    models: jax.Array

    def outputs(self, model: Any) -> Any:
        params = model.params(self.models[0])
        return lambda x: jnp.concatenate([model.logits(params, x)] * 2, -1)


@hyperparameters
class PredictsTwice(ft.FedAvg):
    def personal(self, state: Any, inbox: Any, local: Any) -> Any:
        return TwiceAsWide(inbox["model"])


def test_outputs_of_an_own_predictor_are_what_the_task_needs() -> None:
    with pytest.raises(ValueError, match=r"\(20,\) outputs .* 10 classes"):
        RUN(PredictsTwice(sgd=STEPS), DIGITS, LOGISTIC)


@dataclass(frozen=True)
class Hits(Accuracy):
    """Whether any row of a block is right."""

    name: ClassVar[str] = "any_hit"

    def statistic(self, model: Any, outputs: Any, y: Any, weight: Any) -> Any:
        sums = super().statistic(model, outputs, y, weight)
        return {name: value > 0 for name, value in sums.items()}


@dataclass(frozen=True)
class Percent(Accuracy):
    """Per cent of per cent."""

    name: ClassVar[str] = "percent"

    def values_of_clients(self, statistic: Any) -> Any:
        (values,) = super().values_of_clients(statistic).values()
        return {self.name: 100 * values}


@dataclass(frozen=True)
class Nameless(Accuracy):
    pass


# Other tests look at all metrics that there are.
for wrong in (Hits, Percent):
    del Metric.registry[wrong.name]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (Hits(), "any_hit: statistic.. returns .* True or"),
        (Percent(), "metric percent gave .*; by its limits.. it is from 0 to 1"),
        (Nameless(), "Nameless has no `name` of its own, only that of 'accuracy'"),
    ],
    ids=["booleans", "limits", "name"],
)
def test_metrics_that_cannot_be_right_are_refused(metric: Accuracy, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RUN(ft.FedAvg(sgd=STEPS), DIGITS, LOGISTIC, metrics=[metric])


def test_only_true_ends_a_run() -> None:
    lines: list[str] = []

    def count(training: Any, evaluated: bool) -> Any:
        lines.append("a round")
        return len(lines)

    with pytest.raises(ValueError, match=r"count returned 1; a callback returns True"):
        RUN(ft.FedAvg(sgd=STEPS), DIGITS, LOGISTIC, rounds=2, progress=count)


@pytest.mark.parametrize(
    ("base", "members", "said"),
    [
        (ft.FedAvg, {"about": ft.FedAvg.about}, "method 'fedavg'"),
        (Accuracy, {"name": "accuracy"}, "metric 'accuracy'"),
        (Clip, {"name": "clip"}, "transform 'clip'"),
        (MixedEffects, {"name": "mixed"}, "baseline 'mixed'"),
    ],
    ids=["method", "metric", "transform", "baseline"],
)
def test_names_of_fedtailors_classes_are_taken(
    base: type, members: dict[str, Any], said: str
) -> None:
    """Every later run that asked for the name would get the new class."""
    with pytest.raises(ValueError, match=f"already a {said}; give Copy another name"):
        type("Copy", (base,), {"__module__": __name__, **members})


def test_what_a_method_says_of_itself_is_in_known_words() -> None:
    """Other words counted as the default: a server of sums saw models, "everyone" were
    the reporters.
    """
    said = (
        r"server_sees of 'mine' is 'sum'; it must be one of 'nothing', 'sums', 'sums, "
    )
    with pytest.raises(ValueError, match=said):
        replace(ft.FedAvg.about, name="mine", server_sees="sum")
    with pytest.raises(ValueError, match=r"in_common of 'mine' is 'all'; it must be"):
        replace(ft.FedAvg.about, name="mine", in_common="all")
    with pytest.raises(
        ValueError, match=r"Mine.participants is 'everyone'; it must be one of 'rep"
    ):

        class Mine(ft.FedAvg):
            participants = "everyone"


def test_numbers_and_words_of_arrays_are_settings() -> None:
    (word,) = np.array(["uniform"])
    sgd = SGD(steps=np.int64(2), batch_size=np.int64(8), drop_last=np.bool_(True))
    method = ft.FedAvg(sgd=sgd, weights=word)
    assert type(method.sgd.steps) is int
    assert type(method.sgd.drop_last) is bool
    assert type(method.weights) is str
    with pytest.raises(ValueError, match="lr is nan"):
        SGD(lr=np.float32("nan"))


class Plain(SGD):
    """Not decorated."""


class PlainClip(Clip):
    """Not decorated."""


def test_settings_and_transforms_are_decorated() -> None:
    with pytest.raises(ValueError, match="class Plain is not decorated"):
        ft.FedAvg(sgd=Plain())
    with pytest.raises(ValueError, match="class PlainClip is not decorated"):
        RUN(ft.FedAvg(sgd=STEPS), DIGITS, LOGISTIC, uplink=PlainClip())


@hyperparameters
class OwnState(ft.FedAvg):
    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        after = super().server(server, downlink, answers, cohort)

        class Undecorated(type(after)):
            pass

        return Undecorated(**vars(after))


def test_a_servers_state_is_decorated() -> None:
    assert not any("Undecorated" in name for name in ServerState.registry)
    with pytest.raises(ValueError, match="Undecorated, which is not decorated"):
        RUN(OwnState(sgd=STEPS), DIGITS, LOGISTIC)


def test_a_network_that_begins_with_nan_is_the_cause() -> None:
    network = ft.models.from_function(
        lambda key: jnp.full((64, 10), jnp.nan),
        lambda w, x: x.reshape(len(x), -1) @ w,
    )
    with pytest.raises(Diverged, match="network's first weights are not finite"):
        RUN(ft.FedAvg(sgd=STEPS), DIGITS, network)


def test_a_run_is_not_continued_with_another_optimizer(tmp_path: Any) -> None:
    """The manifest says of both that they are functions of optax."""

    def method(rate: float) -> ft.FedAvg:
        return ft.FedAvg(sgd=SGD(steps=1, batch_size=8, optimizer=optax.adam(rate)))

    run = partial(RUN, federation=DIGITS, model=LOGISTIC, directory=tmp_path / "kept")
    run(algorithm=method(0.1))
    run(algorithm=method(0.1), resume=True)
    with pytest.raises(ValueError, match="functions of method has changed since"):
        run(algorithm=method(0.2), resume=True)


@hyperparameters
class UsesAll(ft.FedAvg):
    """A mean over all clients of the cohort, whether they report or not."""

    participants = "all"

    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        return server.replace(model=answers.host("model").mean(axis=0)[None])


def test_the_suite_finds_a_server_that_uses_clients_that_do_not_report() -> None:
    with pytest.raises(AssertionError):
        CHECKS["non-reporters"](UsesAll(sgd=STEPS))
    assert CHECKS["non-reporters"](ft.FedAvg(sgd=STEPS)) is None
