"""The perceptron on periodic embeddings is the published one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor import models
from fedtailor.models import periodic_mlp
from fedtailor.protocol import SGD


def bound(dtype="float32", **settings):
    architecture = periodic_mlp(5, frequencies=3, width=2, **settings)
    model = architecture.bind((4,), 3, dtype=dtype)
    return model, np.asarray(model.init(jax.random.key(0)))


def reference(params, x):
    """Equations (4) and (5) of the paper, input by input, and two dense layers."""
    _, embedding, first, _, head = params.layers
    frequency = np.asarray(embedding.frequency).reshape(4, 3)
    bias = np.asarray(embedding.bias).reshape(4, 2)
    parts = []
    for j in range(4):
        angles = 2 * np.pi * np.outer(x[:, j], frequency[j])
        waves = np.column_stack([np.sin(angles), np.cos(angles)])
        parts.append(np.maximum(0, waves @ np.asarray(embedding.weight)[j] + bias[j]))
    z = np.concatenate(parts, axis=1)
    for dense, is_last in ((first, False), (head, True)):
        weight = np.asarray(dense.weight)
        z = z @ (weight.T if dense.transposed else weight) + np.asarray(dense.bias)
        z = z if is_last else np.maximum(0, z)
    return z


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)]
)
def test_outputs_are_those_of_the_paper(dtype, tolerance):
    x = np.random.default_rng(0).normal(size=(7, 4))
    with jax.enable_x64(dtype == "float64"):
        model, theta = bound(dtype)
        params = model.params(jnp.asarray(theta))
        logits = model.logits(params, jnp.asarray(x, dtype))
        np.testing.assert_allclose(logits, reference(params, x), atol=tolerance)


def test_gradients_are_those_of_finite_differences():
    random = np.random.default_rng(1)
    x, y = random.normal(size=(7, 4)), random.integers(0, 3, 7)
    with jax.enable_x64(True):
        model, theta = bound("float64")

        def loss(theta):
            logits = model.logits(model.params(theta), jnp.asarray(x))
            return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(7), y])

        theta = jnp.asarray(theta)
        gradient, step = np.asarray(jax.grad(loss)(theta)), 1e-5
        steps = step * jnp.eye(len(theta))
        rise = jax.vmap(loss)(theta + steps) - jax.vmap(loss)(theta - steps)
        np.testing.assert_allclose(gradient, rise / (2 * step), atol=1e-9)
        frequencies = model.part("layers.1.frequency").take(gradient)
        assert np.all(frequencies != 0)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_parameters_are_counted_in_closed_form(shape):
    n, k, width, hidden, outputs = 6, 3, 5, 7, 4
    model = periodic_mlp(hidden, k, width).bind(shape, outputs)
    embedding = n * (k + 2 * k * width + width)
    dense = (n * width + 1) * hidden + (hidden + 1) * outputs
    assert model.size == embedding + dense
    assert model.part("head").size == (hidden + 1) * outputs


def test_initial_frequencies_have_the_given_deviation():
    model = periodic_mlp(1, frequencies=2000, width=1, sigma=0.25).bind((3,), 2)
    theta = np.asarray(model.init(jax.random.key(0)))
    frequency = model.part("layers.1.frequency").take(theta)
    assert abs(frequency.std() / 0.25 - 1) < 0.05 and abs(frequency.mean()) < 0.02


def test_penalties_of_weights_leave_frequencies_alone():
    model, _ = bound()
    params = model.params(model.init(jax.random.key(0)))
    embedding = params.layers[1]
    sgd = SGD(ridge=1.0)
    axes = [it.ndim for it in (embedding.frequency, embedding.weight, embedding.bias)]
    assert [float(sgd.penalty(it, 4)) for it in axes] == [0, 0.25, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "hidden is 0; it must be 1 or more"),
        ({"hidden": (4, -1)}, "hidden is -1"),
        ({"frequencies": 0}, "frequencies is 0"),
        ({"width": 0}, "width is 0"),
        ({"sigma": 0.0}, "sigma is 0.0; it must be a number above 0"),
        ({"sigma": float("nan")}, "sigma is nan"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        models.periodic_mlp(**settings)
