"""Methods that take a part of the model: what they send is that part's size, and wrong
parts end in one line.
"""

from dataclasses import fields
from functools import partial

import pytest

from conformance.problems import classification, float64, softmax_model, train
from fedtailor import algorithms, models
from fedtailor.protocol import SGD

ALL = [getattr(algorithms, name) for name in algorithms.__all__]
PARTED = {
    kind.about.name: kind
    for kind in ALL
    if "part" in {field.name for field in fields(kind)}
    and kind.about.name != "pfedhn"  # its part is what is generated
}
# The global part counts whole: only a model with adapters has something to count less.
PARTED["feddpa"] = partial(algorithms.FedDPA, share=0.0)
SENDS = {"fedala": "everything", "lg-fedavg": "last1"}
"""What travels with `part="last1"`, where it is not all but that."""
FURTHER = {"fedpac": 18 + 2 * 3 * 6, "gpfl": 3 * 5 + 2 * (25 + 3 * 5)}
"""Numbers beside the model's part: FedPAC's head (5 + 1 for each of 3 classes), and five
mean features and a share for each class, before and after training; GPFL's embeddings of
3 classes and two layers of five features."""


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def test_which_methods_take_a_part():
    assert set(PARTED) == {
        "fedper",
        "fedrep",
        "lg-fedavg",
        "fedbn",
        "fedbabu",
        "fedala",
        "fedas",
        "fedpac",
        "feddpa",
        "gpfl",
    }


@pytest.mark.parametrize("name", sorted(PARTED))
def test_the_ledger_counts_the_part_that_travels(name):
    with float64():
        model, algorithm = (
            mlp(),
            PARTED[name](part="last1", sgd=SGD(lr=0.1, steps=1, batch_size=8)),
        )
        training = train(algorithm, classification(clients=2), model, 1)
        sent = model.part(SENDS.get(name, "not last1")).size + FURTHER.get(name, 0)
        assert training.ledger.totals().bytes_up == 2 * 8 * sent


@pytest.mark.parametrize("name", sorted(PARTED))
@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("tail", "part 'tail' is nothing of this model"),
        ("*", r"part '\*' is all of this model"),
        ("head,body", "part 'head,body' is all of this model"),
        ("re:[", "part 're:\\['"),
    ],
)
def test_a_part_that_the_model_does_not_have_is_refused_with_those_that_it_has(
    name, part, said
):
    with pytest.raises(ValueError, match=said) as refusal:
        train(
            PARTED[name](part=part),
            classification(clients=2),
            models.mlp(5).bind((4,), 3),
            0,
        )
    assert "\n" not in str(refusal.value)
    assert (
        "the parts it has are: head, body, bias, last1" in str(refusal.value)
        or part == "re:["
    )


@pytest.mark.parametrize("name", sorted(set(PARTED) - {"fedbn"}))
def test_logistic_regression_is_all_head(name):
    with pytest.raises(
        ValueError,
        match="part 'head' is all of this model; the parts it has are: bias; or name",
    ):
        train(
            PARTED[name](part="head"),
            classification(clients=2),
            softmax_model("float32"),
            0,
        )


def test_fedbabu_must_train_something():
    with pytest.raises(
        ValueError, match="part 'everything' leaves fedbabu nothing to train"
    ):
        train(
            PARTED["fedbabu"](part="everything"),
            classification(clients=2),
            models.mlp(5).bind((4,), 3),
            0,
        )
