"""Low-rank adapters: the base at first, every function at full rank, and what is merged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models import cnn, from_equinox, logistic, lora, merged, mlp
from fedtailor.models.plain import model_from_plain, plain_model
from fedtailor.models.survival import ProportionalHazards
from fedtailor.testing.problems import float64

SHAPE, CLASSES = (6,), 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, *SHAPE)), jnp.float32)
Y = jnp.array([0, 1, 2, 0, 1])


def bound(model=None, shape=SHAPE, **options):
    return lora(model or mlp(20), **options).bind(shape, CLASSES)


EQUINOX = from_equinox(eqx.nn.MLP, in_size=6, out_size=3, width_size=8, depth=2)
IMAGES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 28, 28)), jnp.float32)


@pytest.mark.parametrize(
    ("network", "x"),
    [(mlp(20), X), (mlp(5), X), (EQUINOX, X), (cnn(), IMAGES)],
    ids=["mlp", "transposed", "equinox", "cnn"],
)
def test_it_begins_as_the_base_to_the_bit(network, x):
    model = bound(network, x.shape[1:], rank=2, seed=4)
    base = network.bind(x.shape[1:], CLASSES)
    start = model.init(jax.random.key(0))
    expected = base.logits(base.init(jax.random.key(4)), x)
    np.testing.assert_array_equal(model.logits(start, x), expected)
    same, theta = merged(model, start)
    assert same == base
    np.testing.assert_array_equal(theta, base.init(jax.random.key(4)))


def test_theta_holds_the_factors_only():
    model = bound(rank=2)
    assert {"lora_a", "lora_b"} <= set(model.parts)
    # 6 -> 20 and 20 -> 3, of rank 2
    assert model.part("lora_a").size == 2 * 6 + 2 * 20
    assert model.part("lora_b").size == 20 * 2 + 3 * 2
    assert model.size == model.part("lora_a").size + model.part("lora_b").size
    only_b = bound(rank=2, freeze_a=True)
    assert only_b.size == 20 * 2 + 3 * 2 and all("lora_b" in p for p in only_b.paths)
    with_head = bound(rank=2, where="layers.1.weight", train="head")
    assert with_head.part("head").size == 20 * 3 + 3
    assert with_head.part("adapter").size == 2 * 6 + 20 * 2


@pytest.mark.parametrize("network", [mlp(20), mlp(5), EQUINOX])
def test_what_is_merged_computes_the_same(network):
    model = bound(network, rank=2, alpha=3.0)
    theta = model.init(jax.random.key(0))
    theta = theta + 0.1 * jax.random.normal(jax.random.key(1), theta.shape)
    whole, vector = merged(model, theta)
    np.testing.assert_allclose(
        whole.logits(jnp.asarray(vector), X), model.logits(theta, X), rtol=0, atol=1e-5
    )


def test_a_rank_above_the_matrix_is_its_own_and_keeps_the_scale():
    model = bound(logistic(), rank=50, where="layers.1.weight")
    assert model.part("lora_a").size == 3 * 6
    theta = jnp.ones(model.size)
    base = bound(logistic(), rank=2, where="layers.1.weight")
    change = model.logits(theta, X) - base.logits(base.init(jax.random.key(0)), X)
    # B A of ones is 3 everywhere.
    expected = 3 * np.asarray(X).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(change, np.tile(expected, 3), rtol=0, atol=1e-5)


def test_the_change_is_the_scaled_product_of_the_factors():
    model = bound(logistic(), rank=2, alpha=5.0, where="layers.1.weight")
    a = np.random.default_rng(2).normal(size=(2, 6))
    b = np.random.default_rng(3).normal(size=(3, 2))
    theta = model.part("lora_a").put(jnp.zeros(model.size), jnp.asarray(a.ravel()))
    theta = model.part("lora_b").put(theta, jnp.asarray(b.ravel()))
    base = bound(logistic(), rank=2, where="layers.1.weight")
    change = model.logits(theta, X) - base.logits(base.init(jax.random.key(0)), X)
    np.testing.assert_allclose(change, X @ (2.5 * b @ a).T, rtol=0, atol=1e-5)


def test_at_full_rank_a_linear_model_reaches_every_other():
    """With A a square matrix that can be inverted, B = (W - W0) A^-1 gives any W."""
    target = logistic().bind(SHAPE, CLASSES)
    wanted = target.init(jax.random.key(9))
    model = bound(logistic(), rank=3, where="layers.1.weight", train="bias")
    # The rank is that of the matrix, 3, so that B can be the identity.
    whole, start = merged(model, model.init(jax.random.key(0)))
    weight = whole.part("layers.1.weight")
    difference = np.asarray(weight.take(wanted) - weight.take(jnp.asarray(start)))
    theta = model.part("lora_b").put(
        jnp.zeros(model.size), jnp.asarray(np.eye(3, dtype=np.float32).ravel())
    )
    # The zoo stores this weight as [inputs, outputs].
    a = jnp.asarray(difference.reshape(6, 3).T.ravel())
    theta = model.part("lora_a").put(theta, a)
    theta = model.part("bias").put(theta, target.part("bias").take(wanted))
    np.testing.assert_allclose(
        model.logits(theta, X), target.logits(wanted, X), rtol=0, atol=1e-5
    )


def test_training_b_beside_the_identity_is_training_the_weight():
    """B A with A = I has the gradient of W, so that every step is the same."""
    with float64():
        x = X.astype(jnp.float64)
        full = logistic().bind((3,), 3, dtype="float64")
        adapted = lora(logistic(), rank=3, where="layers.1.weight", train="bias").bind(
            (3,), 3, dtype="float64"
        )
        theta = adapted.part("lora_a").put(
            adapted.init(jax.random.key(0)), jnp.eye(3).ravel()
        )
        a = adapted.part("lora_a")
        _, weights = merged(adapted, theta)
        weights = jnp.asarray(weights)

        def gradient(model, theta):
            def loss(theta):
                return model.losses(model.logits(theta, x[:, :3]), Y).mean()

            return jax.grad(loss)(theta)

        for _ in range(20):
            weights = weights - 0.5 * gradient(full, weights)
            step = a.put(gradient(adapted, theta), jnp.zeros(a.size))
            theta = theta - 0.5 * step
        np.testing.assert_allclose(
            merged(adapted, theta)[1], weights, rtol=0, atol=1e-10
        )


def test_adapters_of_a_network_that_predicts_times_to_an_event():
    model = ProportionalHazards(lora(mlp(20), rank=2, seed=4), (0.5, -1.0))
    model = model.bind(SHAPE, 2)
    base = mlp(20).bind(SHAPE, 1)
    risk = base.logits(base.init(jax.random.key(4)), X)
    start = model.init(jax.random.key(0))
    expected = risk + jnp.array([0.5, -1.0])
    np.testing.assert_allclose(model.logits(start, X), expected, rtol=0, atol=1e-6)
    # 6 -> 20 of rank 2, 20 -> 1 of rank 1, and two log-odds
    assert model.size == 2 * 6 + 20 * 2 + 20 + 1 + 2 and model.frozen is not None
    assert model_from_plain(plain_model(model), held=model.architecture.held) == model


def test_a_description_and_its_arrays_make_the_model_again():
    model = bound(rank=2, train="head", where="layers.1.weight")
    assert model_from_plain(plain_model(model), held=model.architecture.held) == model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bound(rank=0), "rank is 0"),
        (lambda: bound(alpha=0.0), "alpha is 0.0"),
        (lambda: bound(where="bias"), "names no matrix of the network; name weights"),
        (lambda: bound(train="head"), "is trained as a whole and has an adapter"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(make, message):
    with pytest.raises(ValueError, match=message):
        make()
