"""Group and batch normalisation: the textbook's arithmetic, running statistics,
padding, and the zoo's networks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedtailor import models
from fedtailor.models.convolution import convolve, convolve_stride_2, pad
from fedtailor.models.equinox_norm import WeightedBatchNorm
from fedtailor.models.normalization import BatchNorm, GroupNorm

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def planes(*shape):
    return jnp.asarray(RNG.normal(3, 2, shape))


def test_group_norm_normalises_each_example_s_groups():
    x = planes(6, 3, 5, 4)  # [c, h, w, b]
    layer = GroupNorm(6, groups=2)
    out = np.asarray(layer(x)).reshape(2, 3 * 3 * 5, 4)
    np.testing.assert_allclose(out.mean(1), 0, atol=1e-10)
    groups = np.asarray(x).reshape(2, 45, 4)
    expected = (groups - groups.mean(1, keepdims=True)) / np.sqrt(
        groups.var(1, keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(out, expected, atol=1e-10)
    np.testing.assert_allclose(
        layer(x[..., :1])[..., 0], layer(x)[..., 0], atol=1e-10
    )  # no example sees another


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (6, 3)])
def test_batch_norm_is_that_of_pytorch(shape):
    """Training by the batch's mean and biased variance, running statistics with the
    unbiased one at momentum 0.1.
    """
    layer, axes, channels = (
        (BatchNorm(3), (1, 2, 3), (-1, 1, 1, 1))
        if len(shape) == 4
        else (BatchNorm(3), (0,), (-1,))
    )
    mean, variance = np.zeros(3), np.ones(3)
    for _ in range(2):
        x = planes(*shape)
        out, layer = layer.train(x, None, jnp.ones(6))
        flat = np.asarray(x)
        mean = 0.9 * mean + 0.1 * flat.mean(axes)
        variance = 0.9 * variance + 0.1 * flat.var(axes, ddof=1)
        normal = (flat - flat.mean(axes, keepdims=True)) / np.sqrt(
            flat.var(axes, keepdims=True) + 1e-5
        )
        np.testing.assert_allclose(out, normal, atol=1e-10)
    np.testing.assert_allclose(layer.running_mean, mean, atol=1e-10)
    np.testing.assert_allclose(layer.running_variance, variance, atol=1e-10)
    expected = (flat - mean.reshape(channels)) / np.sqrt(
        variance.reshape(channels) + 1e-5
    )
    np.testing.assert_allclose(layer(x), expected, atol=1e-10)


def test_padding_enters_no_statistics():
    x, weight = planes(3, 4, 5, 6), jnp.asarray([1.0, 1, 0, 1, 0, 1])
    out, layer = BatchNorm(3).train(x, None, weight)
    expected, alone = BatchNorm(3).train(x[..., weight > 0], None, jnp.ones(4))
    np.testing.assert_allclose(out[..., weight > 0], expected, atol=1e-10)
    for got, wanted in zip(jax.tree.leaves(layer), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-10)
    _, nobody = BatchNorm(3).train(x, None, jnp.zeros(6))
    assert nobody.running_mean.tolist() == [
        0,
        0,
        0,
    ] and nobody.running_variance.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("side", "size"), [(8, 3), (9, 3), (7, 5), (6, 2)])
def test_a_halved_convolution_is_every_second_pixel(side, size):
    x, kernel = planes(2, side, side + 1, 3), planes(size, size, 2, 4)
    for padding in (0, 1):
        every = convolve(pad(x, padding), kernel)[:, ::2, ::2]
        np.testing.assert_allclose(
            convolve_stride_2(pad(x, padding), kernel), every, atol=1e-10
        )


NETWORKS = [
    ("batch", models.lenet5(norm="batch"), (16, 16)),
    ("group", models.tutorial_cnn(norm="group"), (16, 16, 3)),
    ("batch", models.resnet(8, "batch"), (8, 8, 3)),
    ("group", models.resnet(8, "group"), (8, 8, 3)),
]


@pytest.mark.parametrize(("norm", "architecture", "shape"), NETWORKS)
def test_parts_and_statistics_of_the_zoo(norm, architecture, shape):
    model = architecture.bind(shape, 3, dtype="float64")
    theta, x = model.init(KEY), planes(4, *shape)
    assert model.has_statistics == (norm == "batch") and (
        model.micro_batch is None or norm == "group"
    )
    both, statistics = model.part("norm"), model.statistics
    affine = sum(
        model.part(path).size for path in model.paths if path.endswith(".scale")
    )
    assert both.size == affine * (4 if norm == "batch" else 2)
    assert (statistics.size * 2 == both.size) == (norm == "batch") and set(
        statistics.indices
    ) <= set(both.indices)

    def loss(theta):
        outputs, renewed = model.train_outputs(model.params(theta), x, jnp.ones(4))
        return model.losses(outputs, jnp.asarray([0, 1, 2, 0])).sum(), (
            outputs,
            model.vector(renewed),
        )

    slopes, (outputs, renewed) = jax.jit(jax.grad(loss, has_aux=True))(theta)
    moved = statistics.put(theta, 5 + statistics.take(theta))
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss, has_aux=True))(moved)[1][0], outputs
    )  # training ignores them
    assert (
        not statistics.take(slopes).any()
        and both.take(slopes).any()
        and both.complement.take(slopes).any()
    )
    np.testing.assert_array_equal(np.asarray(renewed != theta), statistics.mask)
    evaluate = jax.jit(lambda theta: model.logits(model.params(theta), x))
    evaluated = evaluate(theta)
    if norm == "group":
        np.testing.assert_allclose(evaluated, outputs, atol=1e-10)
    else:
        assert not np.allclose(evaluated, outputs)
        assert not np.allclose(evaluated, evaluate(moved))  # evaluation uses them
        of_evaluation = jax.grad(lambda theta: evaluate(theta)[:, 0].sum())(theta)
        assert not statistics.take(of_evaluation).any()
    features = jax.jit(model.features)(theta, x)
    np.testing.assert_allclose(
        model.head_outputs(theta, features), evaluated, atol=1e-10
    )


def textbook_resnet(params, x, norm):
    """ResNet-8 with JAX's own convolution, on images [b, h, w, c], in training."""

    def convolved(x, weight, stride=1):
        padding = ((1, 1), (1, 1))
        return lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def normal(x, layer):
        if norm == "batch":
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            return (x - mean) / jnp.sqrt(variance + 1e-5) * layer.scale + layer.bias
        groups = x.reshape(*x.shape[:3], 2, -1)
        mean, variance = (
            groups.mean((1, 2, 4), keepdims=True),
            groups.var((1, 2, 4), keepdims=True),
        )
        return ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(
            x.shape
        ) * layer.scale + layer.bias

    layers = params.layers
    x = jax.nn.relu(normal(convolved(x, layers[2].weight), layers[3]))
    for block in layers[5:8]:
        first, first_norm, _, second, second_norm = block.branch.layers
        stride = 1 if first.weight.shape[2] == first.weight.shape[3] else 2
        y = jax.nn.relu(normal(convolved(x, first.weight, stride), first_norm))
        y = normal(convolved(y, second.weight), second_norm)
        more = y.shape[3] - x.shape[3]
        x = jax.nn.relu(
            y
            + jnp.pad(
                x[:, ::stride, ::stride],
                ((0, 0), (0, 0), (0, 0), (more // 2, more // 2)),
            )
        )
    dense = layers[-1]
    return (
        x.mean((1, 2)) @ (dense.weight.T if dense.transposed else dense.weight)
        + dense.bias
    )


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_resnet_equals_its_textbook_form(norm):
    model = models.resnet(8, norm).bind((8, 8, 3), 3, dtype="float64")
    theta, x, y = model.init(KEY), planes(4, 8, 8, 3), jnp.asarray([0, 1, 2, 0])

    def ours(theta):
        return model.losses(
            model.train_outputs(model.params(theta), x, jnp.ones(4))[0], y
        ).sum()

    def theirs(theta):
        return model.losses(textbook_resnet(model.params(theta), x, norm), y).sum()

    for got, expected in zip(
        jax.jit(jax.value_and_grad(ours))(theta),
        jax.jit(jax.value_and_grad(theirs))(theta),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("depth", "size"), [(8, 75_290), (20, 269_722)])
def test_published_sizes(depth, size):
    model = models.resnet(depth).bind((32, 32, 3), 10)
    assert model.size - model.statistics.size == size
    assert models.resnet(depth, "group").bind((32, 32, 3), 10).size == size


def test_resnet_18_has_torchvisions_arrays():
    model = models.resnet(18).bind((224, 224, 3), 1000)
    assert model.size - model.statistics.size == 11_689_512
    assert model.paths[:2] == ("conv1.weight", "bn1.weight")
    assert "layer2.0.downsample.1.running_var" in model.paths
    assert model.part("head").size == 513_000
    assert models.resnet(18, stem="3x3").bind((8, 8, 3), 10).size > 11_000_000


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.resnet(19), "depth is 19; .* 8, 14, 20"),
        (lambda: models.resnet(8, stem="3x3"), "leave stem out"),
        (lambda: models.resnet(18, stem="5x5"), "choose '7x7' or '3x3'"),
        (lambda: models.resnet(18, "group"), "ResNet-18 has batch normalisation"),
        (lambda: models.resnet(18).bind((28, 28, 1), 10), "32x32 or more"),
        (lambda: models.resnet(norm="layer"), "choose 'group' or 'batch'"),
        (lambda: models.resnet().bind((4, 4, 3), 10), "8x8 or more"),
        (lambda: models.lenet5(norm="layer"), "choose 'group', 'batch' or None"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_variance_little_below_zero_counts_as_zero():
    """A mean of clients' variances that was added behind masks has noise. (One far below is a
    divergence, see test_batch_norm.)
    """
    layer = BatchNorm(2)
    x = jnp.ones((2, 3, 4, 4))
    found = []
    for variance in ([0.0, 1.0], [-1e-4, 1.0]):
        noisy = eqx.tree_at(lambda it: it.running_variance, layer, jnp.array(variance))
        found.append(np.asarray(noisy(x)))
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("mode", ["ema", "batch"])
def test_equinoxs_statistics_may_have_noise(mode):
    """Behind masks the mean of counters and flags that are 0 is not exactly 0."""
    norm = eqx.nn.BatchNorm(2, axis_name="batch", mode=mode)
    layer = WeightedBatchNorm(norm)
    index = layer.ema_state_index if mode == "ema" else layer.batch_state_index
    mean, variance = jnp.zeros(2), jnp.zeros(2).at[1].set(1)
    counter = layer.batch_counter if mode == "batch" else layer.ema_first_time_index
    x, found = jnp.ones((2, 3)), []
    for noise in (0.0, 2e-5, -2e-5):
        state = eqx.nn.State(layer)
        noisy = state.set(counter, jnp.zeros(()) + noise).set(
            index, (mean, variance + noise)
        )
        out, _ = layer(x, noisy, inference=True)
        found.append(np.asarray(out))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-3)
