"""Settings of methods: what is not a finite number is refused with its name, unless it
says that it may be infinite.
"""

import dataclasses
import typing

import numpy as np
import pytest

from fedtailor.aggregation.pipelines import Clip
from fedtailor.algorithms import CFL, MOON, UCFL, Ditto, FedALA, FedAvg
from fedtailor.protocol import SGD, Algorithm, Transform


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SGD, "lr"),
        (SGD, "weight_decay"),
        (SGD, "dp_norm"),
        (MOON, "mu"),
        (FedALA, "eta"),
        (Clip, "norm"),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_infinite_and_undefined_settings_are_refused(kind, name, value):
    others = {"dp_noise": 1.0} if name == "dp_norm" else {}
    with pytest.raises(
        ValueError, match=rf"^(\w+: )?{name} is -?(inf|nan); it must be "
    ):
        kind(**{name: value}, **others)


def test_thresholds_that_nothing_reaches_are_infinite():
    assert CFL(eps2=float("inf")).eps2 == float("inf")
    assert FedAvg(sgd=SGD(lr=1)).sgd.lr == 1.0, "a whole number is a float, as before"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FedAvg(sgd=0.1),
            "sgd is 0.1; it must be of the class SGD, such as SGD()",
        ),
        (lambda: FedAvg(sgd="fast"), "sgd is 'fast'; it must be of the class SGD"),
        (lambda: FedAvg(sgd=SGD), "sgd is the class SGD; make one of it: SGD()"),
        (lambda: FedAvg(sgd=None), "sgd is None; it must be of the class SGD"),
        (
            lambda: FedAvg(sgd={"lr": 0.1}),
            "sgd is {'lr': 0.1}; it must be of the class",
        ),
        (lambda: FedAvg(sgd=Clip(1.0)), "it must be of the class SGD"),
        (lambda: Ditto(lam="0.1"), "lam is '0.1'; it must be a number"),
        (lambda: Ditto(lam=True), "lam is True; it must be a number"),
        (lambda: SGD(lr=[0.1]), r"lr is [0.1]; it must be a number"),
        (lambda: SGD(lr=None), "lr is None; it must be a number"),
        (lambda: SGD(epochs=1.5), "epochs is 1.5; it must be a whole number"),
        (lambda: SGD(steps="3"), "steps is '3'; it must be a whole number or None"),
        (lambda: SGD(batch_size=32.0), "batch_size is 32.0; it must be a whole number"),
        (lambda: SGD(batch_size=None), "batch_size is None; it must be a whole number"),
        (lambda: SGD(drop_last="no"), "drop_last is 'no'; it must be True or False"),
        (lambda: Clip("1"), "norm is '1'; it must be a number"),
        (lambda: FedAvg(weights=3), "weights is 3; it must be 'samples' or 'uniform'"),
    ],
)
def test_settings_of_another_kind_are_refused_with_their_name(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_values_that_stand_for_numbers_are_taken():
    assert SGD(lr=np.float32(0.5)).lr == 0.5
    assert SGD(epochs=np.int64(2)).epochs == 2
    assert SGD(steps=None, ridge=None).ridge is None


WORDS = [
    (kind, field.name)
    for kind in [*Algorithm.registry.values(), *Transform.registry.values()]
    for field in dataclasses.fields(kind)
    if "Literal" in str(typing.get_type_hints(kind)[field.name])
    and kind.__module__.startswith("fedtailor.")
]
"""Settings that are one of a few words."""


@pytest.mark.parametrize(
    ("kind", "name"), WORDS, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_word_that_is_none_of_the_settings_words_is_refused(kind, name):
    """Whoever mistypes it must not get what the other words do not ask for."""
    with pytest.raises(ValueError, match=f"{name} is 'sample'; it must be "):
        kind(**{name: "sample"})


def test_words_are_listed_with_what_else_is_taken():
    with pytest.raises(ValueError, match=r"it must be 'samples' or 'uniform'$"):
        FedAvg(weights="sample")
    with pytest.raises(ValueError, match=r"it must be a whole number, 'auto' or None$"):
        UCFL(streams="aut")
