"""The papers' models: shapes, published sizes, arithmetic, dropout and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedtailor import models

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("architecture", "input_shape", "outputs", "size"),
    [
        (models.logistic(), (28, 28), 10, 7_850),
        (models.mlp(128), (784,), 10, 101_770),
        (models.mlp((32, 16)), (8, 8), 10, 2_778),
        (models.lenet5(), (28, 28), 10, 44_426),
        (models.lenet5("max"), (28, 28, 1), 62, 48_846),
        (models.lenet5(image_shape=(28, 28)), (784,), 10, 44_426),
        (models.lenet5(), (784,), 10, 44_426),
        (models.tutorial_cnn(), (32, 32, 3), 10, 62_006),
        (models.cnn(), (28, 28), 62, 1_206_590),
        (models.cnn_5x5(), (28, 28), 10, 582_026),
        (models.cnn_5x5(2048), (28, 28), 62, 2_278_334),
        (models.cnn_5x5((120, 64), (64, 64)), (32, 32, 3), 10, 307_842),
        (models.density(), (0,), 100, 100),
    ],
)
def test_shapes_and_sizes(architecture, input_shape, outputs, size):
    model = architecture.bind(input_shape, outputs)
    assert model.size == size
    theta = jax.eval_shape(model.init, KEY)
    x = jax.ShapeDtypeStruct((3, *input_shape), jnp.float32)
    logits = jax.eval_shape(
        lambda theta, x: model.logits(model.params(theta), x), theta, x
    )
    assert (
        theta.shape == (size,)
        and logits.shape == (3, outputs)
        and logits.dtype == jnp.float32
    )


def textbook(params, x, pool):
    """LeNet-5's and the CNN's layers with JAX's own convolution."""
    for weight, bias, pooled in params["convolutions"]:
        x = (
            lax.conv_general_dilated(
                x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            + bias
        )
        x = jax.nn.relu(x)
        if pooled:
            b, h, w, c = x.shape
            blocks = x.reshape(b, h // 2, 2, w // 2, 2, c)
            x = blocks.mean((2, 4)) if pool == "average" else blocks.max((2, 4))
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    for weight, bias in params["dense"][:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params["dense"][-1]
    return x @ weight + bias


def unpacked(network, pooled):
    convolutions = [
        layer
        for layer in network.layers
        if getattr(getattr(layer, "weight", None), "ndim", 0) == 4
    ]
    dense = [
        layer
        for layer in network.layers
        if getattr(getattr(layer, "weight", None), "ndim", 0) == 2
    ]
    return {
        "convolutions": [
            (layer.weight, layer.bias, pool)
            for layer, pool in zip(convolutions, pooled, strict=True)
        ],
        "dense": [
            (layer.weight.T if layer.transposed else layer.weight, layer.bias)
            for layer in dense
        ],
    }


@pytest.mark.parametrize(
    ("architecture", "input_shape", "pool", "pooled"),
    [
        (models.lenet5(), (16, 16), "average", (True, True)),
        (models.tutorial_cnn(), (20, 16, 3), "max", (True, True)),
        (models.cnn(), (8, 8), "max", (False, True)),
        (models.cnn_5x5((6, 5), (2, 3)), (16, 20, 3), "max", (True, True)),
    ],
)
def test_convolutional_models_equal_their_textbook_form(
    architecture, input_shape, pool, pooled
):
    with jax.enable_x64(True):
        model = architecture.bind(input_shape, 5, dtype="float64")
        theta = model.init(KEY)
        x = jax.random.normal(KEY, (3, *input_shape), jnp.float64)
        images, y = x.reshape(3, *input_shape[:2], -1), jnp.arange(3)

        def ours(theta):
            return model.losses(model.logits(model.params(theta), x), y).sum()

        def theirs(theta):
            return model.losses(
                textbook(unpacked(model.params(theta), pooled), images, pool), y
            ).sum()

        for got, expected in zip(
            jax.jit(jax.value_and_grad(ours))(theta),
            jax.jit(jax.value_and_grad(theirs))(theta),
            strict=True,
        ):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


def test_initial_weights_are_those_of_pytorch():
    """U(+-1/sqrt(fan in)): within the bound, and as wide as it; an embedding is
    standard normal.
    """
    model = models.lenet5().bind((28, 28), 10)
    layers = model.params(model.init(KEY)).layers
    for layer, fan_in in ((layers[1], 25), (layers[2], 150), (layers[4], 256)):
        for values in (layer.weight, layer.bias):
            assert float(jnp.abs(values).max()) * fan_in**0.5 <= 1
        assert abs(float(layer.weight.std()) * (3 * fan_in) ** 0.5 - 1) < 0.15
    model = models.lstm(500, embedding=10, hidden=2).bind((5,), 2)
    table = model.params(model.init(KEY))["embedding"].table
    assert abs(float(table.std()) - 1) < 0.05 and float(jnp.abs(table).max()) > 3


def test_dropout_only_with_a_key():
    plain, dropped = (
        models.cnn(dropout=dropout).bind((8, 8), 4) for dropout in (False, True)
    )
    assert not plain.stochastic and dropped.stochastic and plain.size == dropped.size
    theta, x = plain.init(KEY), jnp.cos(jnp.arange(5 * 64.0)).reshape(5, 8, 8)
    evaluated, trained, other = (
        dropped.logits(dropped.params(theta), x, key)
        for key in (None, jax.random.key(1), jax.random.key(2))
    )
    np.testing.assert_array_equal(evaluated, plain.logits(plain.params(theta), x))
    np.testing.assert_array_equal(
        trained, dropped.logits(dropped.params(theta), x, jax.random.key(1))
    )
    assert not jnp.allclose(trained, evaluated) and not jnp.allclose(trained, other)


def test_dropout_keeps_the_mean():
    dropout = models.layers.Dropout(0.25)
    out = dropout(jnp.ones(40_000), KEY)
    assert set(np.unique(out).tolist()) == {0.0, np.float32(1 / 0.75)}
    assert abs(float(out.mean()) - 1) < 0.02
    assert dropout(jnp.ones(3)).tolist() == [1, 1, 1]


def test_density_starts_uniform_and_fits_frequencies():
    model = models.density().bind((0,), 4)
    y = jnp.asarray([0, 0, 1, 2])
    theta = model.init(KEY)
    outputs = model.logits(model.params(theta), jnp.zeros((4, 0)))
    np.testing.assert_allclose(model.losses(outputs, y), np.log(4), rtol=1e-6)
    gradient = jax.grad(
        lambda t: model.losses(
            model.logits(model.params(t), jnp.zeros((4, 0))), y
        ).mean()
    )(theta)
    np.testing.assert_allclose(gradient, [0.25 - 0.5, 0, 0, 0.25], atol=1e-7)


def test_density_of_examples_with_inputs_is_refused():
    with pytest.raises(
        ValueError,
        match=(
            r"density\(\) looks at no inputs, and these examples have 8 x 8; choose"
            r" another"
        ),
    ):
        models.density().bind((8, 8), 4)


def test_lstm_ignores_padding_at_either_end():
    model = models.lstm(vocabulary=20, embedding=4, hidden=6, layers=2).bind((5,), 2)
    params = model.params(model.init(KEY))
    left, right = (
        jnp.asarray([[0, 0, 7, 3, 9], [0, 0, 0, 0, 0]]),
        jnp.asarray([[7, 3, 9, 0, 0], [0, 0, 0, 0, 0]]),
    )
    np.testing.assert_allclose(
        model.logits(params, left), model.logits(params, right), rtol=1e-6
    )
    other = model.logits(params, jnp.asarray([[0, 0, 3, 7, 9], [0, 0, 0, 0, 0]]))
    assert not jnp.allclose(other[0], model.logits(params, left)[0])
    assert jnp.isnan(
        model.logits(params, left + 15)[0]
    ).all()  # ids outside the vocabulary are never taken for others
    gradient = jax.grad(
        lambda p: model.losses(model.logits(p, left), jnp.asarray([0, 1])).sum()
    )(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


def test_numbers_drawn_in_blocks_are_those_of_one_call(monkeypatch):
    monkeypatch.setattr(models.layers, "BLOCK", 64)
    low = float(np.nextafter(np.float32(-1), np.float32(0)))
    for count in (64, 65, 128, 1000):
        expected = jax.random.uniform(KEY, (count,), jnp.float32, low, 1)
        stream = models.layers.InitStream()
        stream.uniform((count,), 1)
        drawn = stream.filled(KEY).uniform((count,), 1)
        np.testing.assert_array_equal(drawn, expected)


def test_lstm_step_is_the_published_cell():
    with jax.enable_x64(True):
        counting = models.layers.InitStream()
        models.layers.LSTM(3, 2, counting)
        layer = models.layers.LSTM(3, 2, counting.filled(KEY))
        x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 3)))
        hidden, cell = np.zeros(2), np.zeros(2)
        sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
        for now in np.asarray(x[0]):
            gates = now @ np.asarray(layer.input_weight) + hidden @ np.asarray(
                layer.state_weight
            )
            i, f, g, o = np.split(gates + np.asarray(layer.bias), 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(cell)
        np.testing.assert_allclose(
            layer(x, jnp.ones((1, 2), bool))[0, -1], hidden, atol=1e-7
        )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mlp((8, 0)), "0 wide"),
        (lambda: models.lenet5("median"), "choose 'average' or 'max'"),
        (lambda: models.lenet5().bind((8, 8), 10), "16x16 or more, not 8x8"),
        (lambda: models.cnn().bind((5, 5), 10), "6x6 or more"),
        (lambda: models.lenet5().bind((3072,), 10), "give image_shape"),
        (
            lambda: models.lenet5(image_shape=(32, 32)).bind((3072,), 10),
            "give image_shape",
        ),
        (lambda: models.cnn_5x5((8, 0)), "hidden layer of the 5x5 CNN is 0 wide"),
        (lambda: models.cnn_5x5(channels=(8,)), "give two numbers"),
        (lambda: models.lstm(1), "vocabulary is 1"),
        (lambda: models.lstm(10, layers=0), "layers is 0"),
        (lambda: models.lstm(10).bind((28, 28), 2), "token ids of shape"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_lstm_refuses_numbers_that_are_no_ids():
    model = models.lstm(10).bind((5,), 2)
    with pytest.raises(ValueError, match="token ids"):
        model.logits(model.params(model.init(KEY)), jnp.zeros((1, 5)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gru", {"layers": 10**9}),
        ("lstm", {"vocabulary": 9, "layers": 10**9}),
        ("resnet", {"depth": 6 * 10**11 + 2}),
        ("mlp", {"hidden": [8] * 20_000}),
    ],
)
def test_a_network_of_a_million_layers_is_not_built(name, settings):
    """It took all memory, by one number of a job or of a folder of somebody else's."""
    with pytest.raises(ValueError, match="it must be from 1 to 1000"):
        getattr(models, name)(**settings)
