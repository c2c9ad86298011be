"""Pieces that are not fused are compiled once, stay apart in larger programs, and
change no result.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from fedtailor.models.no_fuse import no_fuse

TRACES = []


@partial(no_fuse, static=("times",))
def repeated(x, times):
    TRACES.append(times)
    return jnp.concatenate([x] * times)


@pytest.fixture(autouse=True)
def forget():
    TRACES.clear()


def test_outside_of_programs_it_is_traced_once():
    for _ in range(3):
        assert repeated(jnp.arange(3.5), 2).shape == (8,)
    assert len(TRACES) <= 1


def test_inside_a_program_it_stays_apart():
    def program(x):
        return repeated(jnp.sin(x), 3) * 2

    x = jnp.arange(64.0)
    compiled = jax.jit(program).lower(x).compile()
    assert " call(" in compiled.as_text()
    assert (
        " call("
        not in jax.jit(lambda x: jnp.concatenate([jnp.sin(x)] * 3) * 2)
        .lower(x)
        .compile()
        .as_text()
    )
    assert jnp.allclose(compiled(x), jnp.tile(jnp.sin(x), 3) * 2)


def test_it_can_be_differentiated_stacked_and_run_without_compilation():
    x = jnp.arange(4.0)
    assert jax.grad(lambda x: repeated(x, 3).sum())(x).tolist() == [3, 3, 3, 3]
    assert jax.vmap(lambda x: repeated(x, 2))(x[:, None]).shape == (4, 2)
    with jax.disable_jit():
        assert repeated(x, 2).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_off_the_cpu_it_is_the_function_itself(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for _ in range(2):
        repeated(jnp.arange(2), 5)
    assert TRACES == [5, 5]
