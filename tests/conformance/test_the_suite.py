"""The suite itself: it catches mutants, and the exemptions of the built-in methods are
what they are.
"""

from typing import Any

import numpy as np
import pytest

from conformance.examples import EXAMPLES, OPT_OUTS
from conformance.problems import (
    EXACT,
    float64,
    personal,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor.algorithms import Ditto, FedAvg
from fedtailor.protocol import (
    SGD,
    Algorithm,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Predictor,
    hyperparameters,
)
from fedtailor.testing import CHECKS, check_algorithm, softmax_model
from fedtailor.testing.problems import mlp_model

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
LR, STEPS, LAM = 0.2, 3, 0.8
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)


@hyperparameters
class WrongWeights(FedAvg):
    """Every client counts the same, whatever its samples."""

    def server(self, server: Any, down: Any, ups: ClientUpdate, cohort: Any) -> Any:
        return FedAvg(sgd=self.sgd, weights="uniform").server(server, down, ups, cohort)


@hyperparameters
class OneStepTooMany(FedAvg):
    """An off-by-one in the local loop."""

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        return state, {
            "model": local.sgd(
                inbox.only("model"), self.sgd, steps=local.steps(self.sgd) + 1
            )
        }


@hyperparameters
class WrongAnchor(Ditto):
    """The personal model is pulled to what the client sends instead of to what it
    received.
    """

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        sent = local.sgd(inbox.only("model"), self.sgd)
        return {
            "model": local.sgd(state["model"], self.sgd, proximal=(self.lam, sent))
        }, {"model": sent}


@hyperparameters
class Aliased(Ditto):
    """The personal model is the one that is sent (the aliasing of a public pFedMe)."""

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return local.sgd(state["model"] * 0 + state["model"], self.sgd)


def check_fedavg(algorithm: Algorithm) -> None:
    c = SIZES / SIZES.sum() * (1 - (1 - LR * A) ** STEPS)
    found = personal(
        train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 120)
    )[:, 0]
    np.testing.assert_allclose(found, (c * a).sum() / c.sum(), **EXACT)


def check_ditto(algorithm: Algorithm) -> None:
    c = 1 - (1 - LR * A) ** STEPS
    w = (c * a).sum() / c.sum()
    found = personal(
        train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 120)
    )[:, 0]
    np.testing.assert_allclose(found, (A * a + LAM * w) / (A + LAM), **EXACT)


@pytest.mark.parametrize(
    ("check", "right", "mutants"),
    [
        (
            check_fedavg,
            FedAvg(sgd=PLAIN),
            [WrongWeights(sgd=PLAIN), OneStepTooMany(sgd=PLAIN)],
        ),
        (
            check_ditto,
            Ditto(sgd=PLAIN, lam=LAM),
            [WrongAnchor(sgd=PLAIN, lam=LAM), Aliased(sgd=PLAIN, lam=LAM)],
        ),
    ],
    ids=["fedavg", "ditto"],
)
def test_closed_forms_catch_mutants(check, right, mutants):
    with float64():
        check(right)
        for mutant in mutants:
            with pytest.raises(AssertionError):
                check(mutant)


@hyperparameters
class ForgetsBody(FedAvg):
    """A round in which nobody reports sets the body to zero: a mean over nobody."""

    def server(self, server: Any, down: Any, ups: ClientUpdate, cohort: Any) -> Any:
        after = super().server(server, down, ups, cohort)
        model = mlp_model()
        if cohort.reporting.any() or server.model.shape[1] != model.size:
            return after
        return after.replace(model=after.model * model.part("head").mask)


@hyperparameters
class Breaks(FedAvg):
    """Raises an error of its own in the second round."""

    def broadcast(self, server: Any, cohort: Any) -> Any:
        if cohort.round == 1:
            raise KeyError("model")
        return super().broadcast(server, cohort)


@hyperparameters
class Needy(FedAvg):
    """Needs all clients in every round."""

    def check(self, population: Any) -> None:
        if population.reporters_per_round < len(population):
            raise ValueError("it needs all clients")


@hyperparameters
class Overshoots(FedAvg):
    """A server step of five times the clients' change, in running statistics too."""

    def server(self, server: Any, down: Any, ups: ClientUpdate, cohort: Any) -> Any:
        after = super().server(server, down, ups, cohort)
        return after.replace(model=5 * after.model - 4 * server.model)


def without(*names):
    """Exemptions from all checks but these."""
    return {name: "not asked here" for name in CHECKS if name not in names}


def test_a_network_with_a_head_refutes_what_a_linear_model_passes(capsys):
    with pytest.raises(AssertionError) as caught:
        check_algorithm(ForgetsBody(sgd=PLAIN), exempt=without("empty round"))
    message = str(caught.value)
    assert message.startswith(
        "fedavg fails 1 of 2 checks:\n  'empty round' on a network"
    )
    assert "A round in which nobody reports changes nothing." in message
    assert len(message) < 400  # no dump of arrays
    assert "1 of 2: empty round, on logistic regression" in capsys.readouterr().err


def test_all_failures_are_listed_with_those_that_raise(capsys):
    with pytest.raises(AssertionError, match="fails 4 of 4 checks") as caught:
        check_algorithm(
            Breaks(sgd=PLAIN), exempt=without("no trace", "one client"), progress=False
        )
    assert str(caught.value).count("it could not be run: KeyError: 'model'") == 4
    assert str(caught.value).count("(test_the_suite.py, line ") == 4
    assert capsys.readouterr().err == ""


def test_an_error_of_the_methods_own_is_no_refusal():
    @hyperparameters
    class Mistaken(FedAvg):
        def init_server(self, init, population):
            raise ValueError("operands could not be broadcast together")

    for name in ("never sampled", "late clients"):
        with pytest.raises(ValueError, match="broadcast together"):
            CHECKS[name](Mistaken(sgd=PLAIN))


def test_what_a_method_refuses_is_not_said_to_have_passed(capsys):
    passed = check_algorithm(
        Needy(sgd=PLAIN), only=["late clients"], models={"linear": softmax_model}
    )
    assert passed == []
    said = capsys.readouterr().err
    assert "does not apply, as the method refuses: it needs all clients" in said


def test_server_steps_beyond_the_average_of_statistics_are_caught():
    with pytest.raises(AssertionError, match="running_variance is negative"):
        CHECKS["running statistics"](Overshoots(sgd=PLAIN))


def test_exemptions_have_reasons():
    """Which ones there are stands in docs/conformance.md, which tests/pages/test_docs.py
    compares with these.
    """
    assert all(len(reason) >= 5 for reason in OPT_OUTS.values())


def test_every_method_is_run_with_settings_of_its_own():
    builtin = {
        name
        for name, kind in Algorithm.registry.items()
        if kind.__module__.startswith("fedtailor.")
    }
    assert builtin - set(EXAMPLES) == {"afl"}  # whose defaults suit the suite
