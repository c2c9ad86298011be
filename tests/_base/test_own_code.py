"""Which code is the user's own, and what tells it."""

import sys
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import fedtailor as ft
from fedtailor._base.own_code import own_code
from fedtailor.algorithms.find import find_algorithm
from fedtailor.protocol import Algorithm, hyperparameters


def loss(outputs, y):
    return jnp.square(outputs - y)


def test_what_fedtailor_and_its_libraries_define_is_not_the_users():
    network = ft.models.mlp(8)
    assert own_code([ft.FedAvg(), network, ft.SGD(), jnp.sin, jax.grad(jnp.sin)]) == {}


@pytest.mark.parametrize(
    "value",
    [
        loss,
        {"loss": [loss]},
        partial(loss, y=0),
        jax.jit(loss),
        ft.models.from_function(lambda key: {}, loss),
    ],
    ids=["function", "dict", "partial", "compiled", "network"],
)
def test_a_function_of_the_users_is_found_where_it_stands(value):
    assert any(name.endswith("test_own_code.loss") for name in own_code([value]))


METHOD = """
from dataclasses import replace
import fedtailor as ft
from fedtailor.protocol import hyperparameters

@hyperparameters
class Edited(ft.FedAvg):
    about = replace(ft.FedAvg.about, name="edited")

    def personal(self, state, inbox, local):
        return inbox.only("model") * {factor}
"""


def test_a_run_is_not_continued_with_edited_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = ft.scenarios.digits_rotated(seed=0, clients=4)

    def method(factor):
        sys.modules.pop("edited_method", None)
        (tmp_path / "edited_method.py").write_text(METHOD.format(factor=factor))
        Algorithm.registry.pop("edited", None)
        return find_algorithm("edited_method.py:Edited", own_files=True)()

    run = partial(ft.run, federation=digits, model=ft.models.logistic(), rounds=1)
    try:
        run(algorithm=method(1), directory="kept")
        assert (
            run(algorithm=method(1), directory="kept", resume=True).training.round == 1
        )
        with pytest.raises(ValueError, match=r"code of edited_method\.Edited has cha"):
            run(algorithm=method(2), directory="kept", resume=True)
    finally:
        Algorithm.registry.pop("edited", None)
        sys.modules.pop("edited_method", None)


def test_a_class_without_a_name_of_its_own_is_not_stored(tmp_path):
    @hyperparameters
    class Other(ft.FedAvg):
        pass

    digits = ft.scenarios.digits_rotated(seed=0, clients=4)
    run = partial(ft.run, Other(), digits, ft.models.logistic(), rounds=1)
    assert run().summary().rounds == 1
    with pytest.raises(ValueError, match="Other has no `about` of its own, only that"):
        run(directory=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_class_that_is_not_decorated_is_refused():
    class Plain(ft.FedAvg):
        pass

    digits = ft.scenarios.digits_rotated(seed=0, clients=4)
    with pytest.raises(ValueError, match="Plain is not decorated; write @hyperparam"):
        ft.run(Plain(), digits, ft.models.logistic(), rounds=1)


class Shift:
    """What a network reads, through an object."""

    def apply(self, w, x):
        return x + OFFSET


OFFSET = 1.0


def helper(x):
    return x * 2


def reads(x):
    return helper(x) + OFFSET


def test_what_own_code_reads_counts(monkeypatch):
    found = own_code([reads])
    assert {name.rpartition(".")[2] for name in found} == {"reads", "helper"}
    assert any(name.endswith("Shift.apply") for name in own_code([Shift().apply]))
    before = own_code([reads])
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 2.0)
    changed = own_code([reads])
    assert [name for name in before if before[name] != changed[name]] == [
        f"{__name__}.reads"
    ]


def test_lambdas_of_one_name_are_told_apart_and_from_what_stands_around_them():
    both = {"__name__": "__main__"}
    exec("first, second, rounds = (lambda x: x + 1), (lambda x: x + 2), 1", both)
    (one,), (other,) = (
        set(own_code([both["first"]]).values()),
        set(own_code([both["second"]]).values()),
    )
    (together,) = own_code([both["first"], both["second"]]).values()
    assert len({one, other, together}) == 3


@dataclass(frozen=True)
class Settings:
    offset: float = 0.0


def test_what_dataclasses_generate_is_not_the_users():
    """Other versions of Python generate other code."""
    assert list(own_code([Settings()])) == [f"{__name__}.Settings"]


def test_a_structure_that_holds_itself_ends():
    knot = []
    knot.append([knot, loss])
    assert len(own_code([knot])) == 1
