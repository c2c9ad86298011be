"""Methods whose functions return something else than they must: each is refused in one
line, where it would have trained something else.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.algorithms import Ditto, FedAvg
from fedtailor.engine.runs import simulate
from fedtailor.protocol import (
    SGD,
    CombinedPredictor,
    Diverged,
    Mixture,
    Streams,
    Transform,
    hyperparameters,
)
from fedtailor.testing import CHECKS, check_algorithm, softmax_model, train
from fedtailor.testing.conformance import federation
from fedtailor.testing.problems import float64

STEPS = SGD(lr=0.1, steps=1, batch_size=8)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """The problems' model is of double precision."""
    with float64():
        yield


class Sends(FedAvg):
    """Changes what FedAvg's server sends."""

    def changed(self, streams: Streams) -> Any:
        raise NotImplementedError

    def broadcast(self, server: Any, cohort: Any) -> Any:
        downlink = super().broadcast(server, cohort)
        changed = self.changed(downlink.streams["model"])
        return replace(downlink, streams={"model": changed})


@hyperparameters
class TooFewRows(Sends):
    def changed(self, streams: Streams) -> Any:
        return Streams(streams.values, streams.recipients[:-1])


@hyperparameters
class NoSuchStream(Sends):
    def changed(self, streams: Streams) -> Any:
        return Streams(streams.values, streams.recipients + 5)


@hyperparameters
class FlatRecipients(Sends):
    def changed(self, streams: Streams) -> Any:
        return Streams(streams.values, streams.recipients[:, 0])


@hyperparameters
class NoStreams(Sends):
    def changed(self, streams: Streams) -> Any:
        return streams.values


@hyperparameters
class NoDownlink(FedAvg):
    def broadcast(self, server: Any, cohort: Any) -> Any:
        return {"model": server.model}


@hyperparameters
class ServesTooFew(FedAvg):
    def serve(self, server: Any, cohort: Any) -> Any:
        few = np.arange(len(cohort)) > 0
        return self.broadcast(server, cohort.subset(few))


@hyperparameters
class OtherNumbers(FedAvg):
    def broadcast(self, server: Any, cohort: Any) -> Any:
        return replace(super().broadcast(server, cohort), scalars={"step": np.ones(3)})


@hyperparameters
class NoState(FedAvg):
    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        return None


@hyperparameters
class KeepsAnswers(FedAvg):
    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        return server.replace(model=answers["model"])


@hyperparameters
class Grows(Ditto):
    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        state, update = super().client(state, inbox, local)
        return {"model": jnp.stack([state["model"]] * 2)}, update


@hyperparameters
class Renames(Ditto):
    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        state, update = super().client(state, inbox, local)
        return {"own": state["model"]}, update


@hyperparameters
class OtherType(Ditto):
    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        state, update = super().client(state, inbox, local)
        return {"model": state["model"].astype(jnp.float16)}, update


@hyperparameters
class NoDict(FedAvg):
    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        return state, inbox.only("model")


@hyperparameters
class NoPair(FedAvg):
    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        return {"model": inbox.only("model")}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (TooFewRows, r"'model' has recipients of shape \(3, 1\) .* cohort's 4 clients"),
        (NoSuchStream, "has 1 streams, numbered from 0, and recipients of number 5"),
        (FlatRecipients, r"'model' has recipients of shape \(4,\)"),
        (NoStreams, "must be Streams"),
        (NoDownlink, "is dict; it must be a Downlink"),
        (OtherNumbers, r"'step' has shape \(3,\); .* cohort's 4 clients"),
        (NoState, r"NoState.server\(\) returned NoneType; .* such as AveragedModels"),
        (KeepsAnswers, "keeps an answer as it came"),
        (Grows, r"state\['model'\] is float64\[15\] before .* float64\[2,15\] after"),
        (Renames, r"state\['model'\] is float64\[15\] before .* not there after"),
        (OtherType, r"is float64\[15\] before .* float16\[15\] after"),
        (NoDict, r"No....\.client\(\) must return two things"),
        (NoPair, r"No....\.client\(\) must return two things"),
    ],
)
def test_what_a_round_returns_is_checked(method: type[FedAvg], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train(method(sgd=STEPS), federation(), softmax_model(), 1)


def test_what_is_served_is_checked() -> None:
    training = train(ServesTooFew(sgd=STEPS), federation(), softmax_model(), 1)
    with pytest.raises(ValueError, match="recipients of shape"):
        training.evaluate()


@hyperparameters
class OtherKind(FedAvg):
    """Its clients send what FedAvg's server does not read."""

    def client(self, state: Any, inbox: Any, local: Any) -> Any:
        return state, {"weights": inbox.only("model")}


def test_a_message_that_was_not_sent_is_named_beside_those_that_were() -> None:
    with pytest.raises(KeyError, match="clients sent weights, and no model"):
        train(OtherKind(sgd=STEPS), federation(), softmax_model(), 1)


@hyperparameters
class NoModel(FedAvg):
    def personal(self, state: Any, inbox: Any, local: Any) -> Any:
        return {"model": inbox.only("model")}


@hyperparameters
class UndecoratedModels(FedAvg):
    def personal(self, state: Any, inbox: Any, local: Any) -> Any:
        class Own(CombinedPredictor):
            pass

        return Own()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (NoModel, r"NoModel.personal\(\) returned dict; it must return a model"),
        (UndecoratedModels, "returned Own, which is not decorated; write @predictor"),
    ],
)
def test_what_predicts_is_checked(method: type[FedAvg], said: str) -> None:
    training = train(method(sgd=STEPS), federation(), softmax_model(), 0)
    with pytest.raises(ValueError, match=said):
        training.evaluate()


class Encodes(Transform):
    def encode(self, update: Any, inbox: Any, state: Any, local: Any) -> Any:
        return update


class Shrinks(Transform):
    def init(self, theta: Any) -> Any:
        return theta

    def encode(self, update: Any, inbox: Any, state: Any, local: Any) -> Any:
        return update, state[:5]


class Decodes(Transform):
    def decode(self, update: Any, downlink: Any, cohort: Any, state: Any) -> Any:
        return update


class SendsNothing(Transform):
    def send(self, downlink: Any) -> Any:
        return None


class ReceivesNothing(Transform):
    def receive(self, inbox: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Encodes, r"Encodes.encode\(\) must return two things, a dict"),
        (
            Shrinks,
            r"Shrinks.encode\(\) changes .* state is float64\[15\] before .*\[5\]",
        ),
        (Decodes, r"Decodes.decode\(\) must return two things, the updates by kind"),
        (SendsNothing, r"SendsNothing.send\(\) returned NoneType; .* Downlink"),
        (ReceivesNothing, r"ReceivesNothing.receive\(\) returned NoneType; .* Inbox"),
    ],
)
def test_what_transforms_return_is_checked(
    transform: type[Transform], said: str
) -> None:
    made = (hyperparameters(transform)(),)
    training = simulate(
        FedAvg(sgd=STEPS), federation(), softmax_model(), uplink=made, downlink=made
    )
    with pytest.raises(ValueError, match=said):
        training.advance()


@hyperparameters
class SendsNaN(Transform):
    def send(self, downlink: Any) -> Any:
        sent = downlink.streams["model"]
        spoiled = replace(sent, values=sent.values * jnp.nan)
        return replace(downlink, streams={"model": spoiled})


def test_a_transform_of_the_downlink_that_makes_nan_is_the_cause() -> None:
    """It was the network's first weights, and in later rounds the server."""
    training = simulate(
        FedAvg(sgd=STEPS), federation(), softmax_model(), downlink=(SendsNaN(),)
    )
    with pytest.raises(Diverged, match=r"a transform of the downlink made NaN .*model"):
        training.advance()


@hyperparameters
class NanServer(FedAvg):
    """Its server divides by zero."""

    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        after = super().server(server, downlink, answers, cohort)
        return after.replace(model=after.model * jnp.nan)


def test_a_server_that_makes_nan_is_named_as_the_cause() -> None:
    training = train(NanServer(sgd=STEPS), federation(), softmax_model(), 1)
    with pytest.raises(
        Diverged, match=r"server of NanServer made NaN .* finite answers"
    ):
        training.advance()
    with pytest.raises(
        Diverged, match=r"server of NanServer made NaN .* finite answers"
    ):
        training.evaluate()


@hyperparameters
class Twice(FedAvg):
    """Its mixture counts the model twice, and the loss of its predictions is wrong."""

    weights_of_models: tuple[float, ...] = (1.0, 1.0)

    def personal(self, state: Any, inbox: Any, local: Any) -> Any:
        theta = inbox.only("model")
        weights = jnp.array(self.weights_of_models, theta.dtype)
        return Mixture(weights, jnp.stack([theta, theta]))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.5, -0.5)])
def test_the_suite_finds_mixtures_that_are_not_convex(
    weights: tuple[float, ...],
) -> None:
    wrong = Twice(sgd=STEPS, weights_of_models=weights)
    with pytest.raises(AssertionError, match="at least 0, and sum to 1"):
        CHECKS["one client"](wrong)


def test_a_mixture_has_a_weight_for_each_model() -> None:
    wrong = Twice(sgd=STEPS, weights_of_models=(0.5, 0.25, 0.25))
    training = train(wrong, federation(), softmax_model(), 0)
    with pytest.raises(ValueError, match=r"mixture of 2 models .* shape \(3,\)"):
        training.evaluate()


@hyperparameters
class ReadsModels(FedAvg):
    """A median of models, though it says that its server sees sums only."""

    server_sees = "sums"

    def server(self, server: Any, downlink: Any, answers: Any, cohort: Any) -> Any:
        return server.replace(model=np.median(answers.host("model"), 0)[None])


def test_the_suite_finds_a_server_that_needs_more_than_it_says() -> None:
    with pytest.raises(AssertionError, match="asks for single clients' vectors"):
        check_algorithm(
            ReadsModels(sgd=STEPS),
            only=["sums"],
            models={"linear": softmax_model},
            progress=False,
        )
    assert CHECKS["sums"](FedAvg(sgd=STEPS)) is None
