"""Equinox modules, Flax linen modules and plain functions as models."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from fedtailor import models

KEY = jax.random.key(0)


def small_mlp():
    return models.from_equinox(eqx.nn.MLP, in_size=4, out_size=3, width_size=5, depth=1)


def with_dropout(key):
    layers = [
        eqx.nn.Linear(4, 16, key=key),
        eqx.nn.Dropout(0.5),
        eqx.nn.Linear(16, 3, key=key),
    ]
    return eqx.nn.Sequential(layers)


class WithBatchNorm(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, mode, key):
        self.first, self.last = (
            eqx.nn.Linear(4, 5, key=key),
            eqx.nn.Linear(5, 3, key=key),
        )
        self.norm = eqx.nn.BatchNorm(5, "batch", mode=mode)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


def with_state(key):
    return eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")


def with_other_state(key):
    return eqx.nn.StateIndex(jnp.zeros(3))


class Counter(linen.Module):
    @linen.compact
    def __call__(self, x):
        self.variable("count", "calls", lambda: jnp.zeros(()))
        return linen.Dense(3)(x)


class LinenNet(linen.Module):
    classes: int
    norm: str = "group"
    rate: float = 0.5

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.Dense(8)(x)
        x = (
            linen.GroupNorm(2)(x)
            if self.norm == "group"
            else linen.BatchNorm(use_running_average=not train)(x)
        )
        x = linen.Dropout(self.rate, deterministic=not train)(x)
        return linen.Dense(self.classes)(x)


def test_equinox_module():
    model = small_mlp().bind((4,), 3)
    module, x = eqx.nn.MLP(4, 3, 5, 1, key=KEY), jnp.ones((2, 4))
    theta = model.init(KEY)
    assert model.size == 4 * 5 + 5 + 5 * 3 + 3 and not model.stochastic
    np.testing.assert_allclose(
        model.logits(model.params(theta), x), jax.vmap(module)(x), rtol=1e-6
    )
    gradient = jax.grad(
        lambda p: model.losses(model.logits(p, x), jnp.asarray([0, 1])).mean()
    )(model.params(theta))
    assert model.vector(gradient).shape == theta.shape


def test_equinox_modules_are_equal_by_their_arguments():
    assert small_mlp().bind((4,), 3) == small_mlp().bind((4,), 3)
    assert hash(small_mlp()) == hash(small_mlp())
    assert small_mlp() != models.from_equinox(
        eqx.nn.MLP, in_size=4, out_size=3, width_size=6, depth=1
    )
    assert models.from_equinox(with_dropout) == models.from_equinox(with_dropout)


@pytest.mark.parametrize(
    "architecture", [models.from_equinox(with_dropout), models.from_linen(LinenNet(3))]
)
def test_dropout_only_with_a_key(architecture):
    model = architecture.bind((4,), 3)
    assert model.stochastic
    params, x = model.params(model.init(KEY)), jnp.ones((6, 4))
    evaluated, again = model.logits(params, x), model.logits(params, x)
    trained = model.logits(params, x, KEY)
    np.testing.assert_array_equal(evaluated, again)
    np.testing.assert_array_equal(trained, model.logits(params, x, KEY))
    assert not jnp.allclose(trained, evaluated)
    assert not jnp.allclose(trained[0], trained[1])  # a mask for each example


def test_linen_module():
    model = models.from_linen(LinenNet(3)).bind((4,), 3)
    assert (
        model
        == models.from_linen(LinenNet(3)).bind((4,), 3)
        != models.from_linen(LinenNet(4)).bind((4,), 3)
    )
    theta, x = model.init(KEY), jnp.ones((2, 4))
    params = model.params(theta)
    expected = LinenNet(3).apply({"params": params}, x, train=False)
    np.testing.assert_allclose(model.logits(params, x), expected, rtol=1e-6)
    assert model.size == 4 * 8 + 8 + 16 + 8 * 3 + 3


def test_linen_module_over_tokens():
    class Bag(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(2)(linen.Embed(10, 4)(x).mean(1))

    model = models.from_linen(Bag(), input_dtype="int32").bind((3,), 2)
    assert not model.stochastic
    assert model.logits(
        model.params(model.init(KEY)), jnp.asarray([[1, 2, 3]])
    ).shape == (1, 2)


def trained(model, theta, batches):
    """theta after training steps that renew statistics and move nothing else, and the
    last outputs.
    """
    params = model.params(theta)
    for x, weight in batches:
        outputs, params = model.train_outputs(
            params, x, weight, KEY if model.stochastic else None
        )
    return model.vector(params), outputs


def padded(batches):
    """The same batches behind rows of padding."""
    return [
        (jnp.concatenate([x, 1e3 * jnp.ones((2, 4))]), jnp.asarray([*weight, 0, 0]))
        for x, weight in batches
    ]


BATCHES = [
    (jax.random.normal(jax.random.key(seed), (6, 4)) + seed, jnp.ones(6))
    for seed in range(3)
]


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batch_norm_of_equinox_is_equinox_s_own(mode):
    model = models.from_equinox(WithBatchNorm, mode).bind((4,), 3)
    module, state = eqx.nn.make_with_state(WithBatchNorm)(mode, key=KEY)
    for x, _ in BATCHES:
        expected, state = jax.vmap(
            module, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )(x, state)
    theta = model.init(KEY)
    renewed, outputs = trained(model, theta, BATCHES)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    evaluated = jax.vmap(
        eqx.nn.inference_mode(module), in_axes=(0, None), out_axes=(0, None)
    )(x, state)[0]
    np.testing.assert_allclose(
        model.logits(model.params(renewed), x), evaluated, rtol=1e-5, atol=1e-6
    )
    check_statistics(model, theta, renewed, size=11)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_a_batch_of_padding_moves_no_statistics_of_equinox(mode):
    """Neither the averages nor the counter of batches, before the first batch (which
    mode "ema" takes as it is) and after it.
    """
    model = models.from_equinox(WithBatchNorm, mode).bind((4,), 3)
    x, weight = BATCHES[0]
    step = jax.jit(model.train_outputs)
    params = model.params(model.init(KEY))
    for _ in range(2):
        _, after_padding = step(params, x, 0 * weight)
        np.testing.assert_array_equal(model.vector(after_padding), model.vector(params))
        params = step(params, x, weight)[1]


@pytest.mark.parametrize(
    "architecture",
    [
        models.from_equinox(WithBatchNorm, "batch"),
        models.from_linen(LinenNet(3, norm="batch", rate=0.0)),
    ],
    ids=["equinox", "flax"],
)
def test_features_of_a_training_step_are_by_the_statistics_of_its_batch(architecture):
    model, weight = architecture.bind((4,), 3), jnp.asarray([1.0, 1, 1, 1, 0, 0])
    params, (x, _) = model.params(model.init(KEY)), BATCHES[1]
    key = KEY if model.stochastic else None
    features = model.train_features(params, x, weight, key)
    outputs, _ = model.train_outputs(params, x, weight, key)
    np.testing.assert_allclose(
        model.head_outputs(params, features), outputs, rtol=1e-5, atol=1e-6
    )
    assert np.abs(features - model.features(params, x)).max() > 0.1
    np.testing.assert_allclose(
        features[:4],
        model.train_features(params, x[:4], weight[:4], key),
        rtol=1e-4,
        atol=1e-5,
    )


def test_batch_norm_of_flax_is_flax_s_own():
    model = models.from_linen(LinenNet(3, norm="batch", rate=0.0)).bind((4,), 3)
    module, theta = LinenNet(3, norm="batch", rate=0.0), model.init(KEY)
    variables = module.init({"params": KEY, "dropout": KEY}, BATCHES[0][0], train=False)
    taken = jax.tree.leaves(variables["params"])
    assert sum(leaf.size for leaf in taken) + 16 == model.size
    params = {key: dict(layer) for key, layer in model.params(theta).items()}
    statistics = {
        "mean": params["BatchNorm_0"].pop("running_mean"),
        "var": params["BatchNorm_0"].pop("running_var"),
    }
    variables = {"params": params, "batch_stats": {"BatchNorm_0": statistics}}
    for x, _ in BATCHES:
        expected, renewed = module.apply(
            variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": KEY}
        )
        variables = {**variables, **renewed}
    after, outputs = trained(model, theta, BATCHES)
    # Outputs near 0 are differences of larger numbers.
    np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)
    evaluated = module.apply(variables, x, train=False)
    np.testing.assert_allclose(
        model.logits(model.params(after), x), evaluated, rtol=1e-6
    )
    check_statistics(model, theta, after, size=16)


def check_statistics(model, theta, renewed, size):
    part = model.statistics
    assert (
        part.size == size and model.part("norm").size == size + {11: 10, 16: 16}[size]
    )
    assert (part.take(renewed) != part.take(theta)).any()
    np.testing.assert_array_equal(
        part.complement.take(renewed), part.complement.take(theta)
    )
    ignoring, _ = trained(model, theta, padded(BATCHES))  # padding enters no statistics
    np.testing.assert_allclose(ignoring, renewed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (models.from_equinox(with_state), "pass the module's class"),
        (models.from_equinox(with_other_state), "state other than BatchNorm's"),
        (models.from_linen(Counter()), r"collections \['count'\]"),
    ],
)
def test_other_state_is_refused(architecture, message):
    with pytest.raises(ValueError, match=message):
        architecture.bind((4,), 3)


def test_functions():
    def init(key):
        return {"center": jnp.zeros(3)}

    def apply(params, x):
        return params["center"] + 0 * x

    model = models.from_function(init, apply).bind((3,), 3, loss=models.squared_error)
    assert model == models.from_function(init, apply).bind(
        (3,), 3, loss=models.squared_error
    )
    theta, x = model.init(KEY), jnp.zeros((2, 3))
    gradient = jax.grad(
        lambda t: model.losses(
            model.logits(model.params(t), x), jnp.ones((2, 3))
        ).mean()
    )(theta)
    assert gradient.tolist() == [-2, -2, -2]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.from_equinox(eqx.nn.MLP, [4], 3, 5, 1), "cannot be hashed"),
        (lambda: models.from_linen(LinenNet), "takes an instance"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()


class Attends(eqx.Module):
    """Attention with dropout, to which no key is passed."""

    attention: eqx.nn.MultiheadAttention
    head: eqx.nn.Linear

    def __init__(self, *, key):
        self.attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.1, key=key)
        self.head = eqx.nn.Linear(4, 3, key=key)

    def __call__(self, x, *, key=None):
        return self.head(self.attention(x, x, x).mean(0))


class PassesKey(Attends):
    def __call__(self, x, *, key=None):
        return self.head(self.attention(x, x, x, key=key).mean(0))


class TakesNoKey(Attends):
    def __call__(self, x):
        return self.head(self.attention(x, x, x).mean(0))


def test_dropout_that_gets_no_key_is_told_in_one_line():
    x = jnp.ones((2, 5, 4))
    model = models.from_equinox(PassesKey).bind((5, 4), 3)
    assert model.logits(model.params(model.init(KEY)), x, KEY).shape == (2, 3)
    model = models.from_equinox(Attends).bind((5, 4), 3)
    with pytest.raises(
        ValueError, match="has dropout, and does not pass its key"
    ) as no:
        model.logits(model.params(model.init(KEY)), x, KEY)
    assert "\n" not in str(no.value)
    for make in (TakesNoKey, lambda key: eqx.nn.MultiheadAttention(2, 4, key=key)):
        with pytest.raises(ValueError, match="to be called on one example") as no:
            models.from_equinox(make).bind((5, 4), 3)
        assert "\n" not in str(no.value)
