"""What conversions of PyTorch modules must not get wrong without a word: buffers that
change, derivatives at bounds, heads, tied weights, constants, starts, padding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor import models
from fedtailor.models.pytorch import OPERATIONS
from fedtailor.models.pytorch.operations import Context, Operation

torch = pytest.importorskip(
    "torch", reason="PyTorch (the extra `torch`) is not installed"
)
pytestmark = pytest.mark.extra
nn = torch.nn
functional = nn.functional
KEY = jax.random.key(0)
VECTORS = torch.zeros(1, 4)


def trained(module, model, batches):
    """Steps of SGD by PyTorch and by JAX from one start, on padded batches: the largest
    difference of parameters, buffers and predictions.
    """
    theta = model.init(KEY)
    state = models.state_dict(model, theta)
    module.load_state_dict({name: torch.tensor(one) for name, one in state.items()})
    optimizer = torch.optim.SGD(module.train().parameters(), lr=0.1)
    params = model.params(theta)

    def loss(params, x, weight):
        outputs, renewed = model.train_outputs(params, x, weight)
        return jnp.vdot(jnp.square(outputs - 1).mean(1), weight) / weight.sum(), renewed

    for batch in batches:
        optimizer.zero_grad()
        torch.square(module(torch.from_numpy(batch)) - 1).mean().backward()
        optimizer.step()
        x = jnp.concatenate([batch, 7 * jnp.ones((2, *batch.shape[1:]), batch.dtype)])
        weight = jnp.asarray([1.0] * len(batch) + [0.0] * 2)
        gradient, renewed = jax.grad(loss, has_aux=True)(params, x, weight)
        params = model.with_statistics(
            jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), renewed
        )
    ours = models.state_dict(model, model.vector(params))
    for name, values in module.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=1e-5)
    expected = module.eval()(torch.from_numpy(batches[0])).detach().numpy()
    predicted = model.logits(params, jnp.asarray(batches[0]))
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    return ours


def batches(*shape):
    return list(np.random.default_rng(0).standard_normal((3, 5, *shape), np.float32))


# buffers that training changes
# --------------------------------------------------------------------------------------


class Standardised(nn.Module):
    """Running statistics of one's own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.variance = 0.9 * self.variance + 0.1 * x.var(0, unbiased=False)
        return self.head((x - self.mean) / (self.variance + 1e-5).sqrt())


class Averaged(nn.Module):
    """Evaluation uses an average of the weights, which starts at these."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("average", self.head.weight.detach().clone())

    def forward(self, x):
        if self.training:
            self.average.lerp_(self.head.weight.detach(), 0.1)
            return self.head(x)
        return functional.linear(x, self.average, self.head.bias)


class Detached(nn.Module):
    """No gradient flows through what `torch.no_grad` surrounds."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        y = self.body(x)
        with torch.no_grad():
            scale = y.abs().mean(1, keepdim=True) + 1
        return self.head(y / scale)


class Views(nn.Module):
    """Writes into parts of arrays."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = self.head(x).clone()
        y[:, 0] += 1
        y[:, 1:] *= 2
        z = torch.zeros_like(y)
        z[:, 1] = y[:, 0]
        return y + z


def spectral():
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 3)
    )


@pytest.mark.parametrize(
    ("make", "statistics"),
    [
        (Standardised, ("mean", "variance")),
        (Averaged, ("average",)),
        (
            spectral,
            ("0.parametrizations.weight.0._u", "0.parametrizations.weight.0._v"),
        ),
        (Detached, ()),
        (Views, ()),
    ],
)
def test_buffers_and_gradients_are_pytorch_s(make, statistics):
    model = models.from_torch(make, VECTORS).bind((4,), 3)
    assert model.architecture.statistics(None) == statistics
    trained(make(), model, batches(4))


class Counting(nn.Linear):
    """In a buffer of integers, an attribute, or a buffer that is not stored."""

    def __init__(self, where):
        super().__init__(4, 3)
        self.where, self.steps = where, 0
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, x):
        if self.training and self.where == "buffer":
            self.count += 1
        if self.training and self.where == "attribute":
            self.steps += 1
        if self.training and self.where == "not stored":
            self.factor *= 0.9
        return super().forward(x) * self.factor


class Centred(nn.Linear):
    """An example changes what the others give."""

    def forward(self, x):
        return super().forward(x - x.mean(0) if self.training else x)


class Ranked(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.amax(0))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("buffer", "changes its buffer 'count' in training, which is int64.*float32$"),
        ("attribute", "changes its attribute 'steps' in a pass.*float32 buffer$"),
        ("not stored", "changes its buffer 'factor'.*leave persistent=False out$"),
    ],
)
def test_state_that_cannot_be_averaged_is_refused(where, message):
    with pytest.raises(ValueError, match=message):
        models.from_torch(lambda: Counting(where), VECTORS)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x))


class Mean(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight.data = self.first.weight.data

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pair(4, 3), "Pair gives a tuple; wrap it"),
        (lambda: Mean(4, 3), r"Mean gives torch.float32 \[\] for a batch of 4"),
        (lambda: Noisy(4, 3), "draws random numbers in evaluation mode"),
        (lambda: nn.Linear(5, 3), "PyTorch fails in Linear: mat1 and mat2"),
        (lambda: nn.LazyLinear(3), "LazyLinear has no shape for weight yet"),
        (
            lambda: nn.Linear(4, 3, device="meta"),
            "has weight on meta; move it to the CPU",
        ),
        (lambda: nn.Linear(4, 3, dtype=torch.bfloat16), "has weight as bfloat16"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)),
            "BatchNorm1d with momentum=None",
        ),
        (Overlapping, r"first\.weight and second.weight in one piece of memory"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        models.from_torch(make, torch.zeros(1, 4))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Centred,
            "in training mode what it gives for one example depends on the others",
        ),
        (
            Ranked,
            "in training mode what it gives for one example depends on the others",
        ),
    ],
)
def test_padding_must_not_change_examples(kind, message):
    with pytest.raises(ValueError, match=message):
        models.from_torch(lambda: kind(4, 3), VECTORS)


# derivatives
# --------------------------------------------------------------------------------------

POINTS = np.concatenate([np.arange(-7, 7.5, 0.5), [0.1, -0.1]])
ARGUMENTS = {
    "celu": (2.0,),
    "clamp": (-1.0, 2.0),
    "clamp_max": (1.0,),
    "clamp_min": (1.0,),
    "elu": (2.0, 1.5, 0.5),
    "hardtanh": (-2.0, 3.0),
    "leaky_relu": (0.1,),
    "pow": (0.0,),
    "softplus": (2.0, 4.0),
    "threshold": (1.0, 0.5),
}
PLAIN = (
    *("abs", "gelu", "hardsigmoid", "hardswish", "linalg_vector_norm", "log_sigmoid"),
    *("mish", "relu", "relu6", "selu", "sigmoid", "sign", "silu", "tanh"),
)


@pytest.mark.parametrize("name", [*sorted(ARGUMENTS), *PLAIN])
def test_derivatives_at_bounds_are_pytorch_s(name):
    """Of the value at each point, where functions have corners."""
    arguments = ARGUMENTS.get(name, ())
    x = torch.tensor(POINTS, requires_grad=True)
    y = getattr(torch.ops.aten, name)(x, *arguments)
    y.sum().backward()
    with jax.enable_x64(True):
        context = Context(jnp.float64, operation=Operation("y", name, ()))
        function = lambda x: OPERATIONS[name](context, x, *arguments)  # noqa: E731
        values = function(jnp.asarray(POINTS))
        derivatives = jax.grad(lambda x: function(x).sum())(jnp.asarray(POINTS))
    np.testing.assert_allclose(values, y.detach(), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(derivatives, x.grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["linalg_vector_norm", "std", "var"])
def test_derivatives_of_norms_of_equal_numbers_are_zero(name):
    x = torch.zeros(2, 3, dtype=torch.double, requires_grad=True)
    getattr(torch, {"linalg_vector_norm": "norm"}.get(name, name))(
        x, dim=1
    ).sum().backward()
    context = Context(jnp.float32, operation=Operation("y", name, ()))
    arguments = (2, [1]) if name == "linalg_vector_norm" else ([1],)
    gradient = jax.grad(lambda x: OPERATIONS[name](context, x, *arguments).sum())
    np.testing.assert_array_equal(gradient(jnp.zeros((2, 3))), x.grad)


# heads, tied layers, constants, starts
# --------------------------------------------------------------------------------------


class Cosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = (
            nn.Parameter(torch.randn(3, 5)),
            nn.Parameter(torch.ones(1)),
        )

    def forward(self, x):
        return self.scale * functional.linear(
            functional.normalize(x), functional.normalize(self.weight)
        )


class WithCosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 5), Cosine()

    def forward(self, x):
        return self.classifier(torch.relu(self.body(x)))


class Bare(nn.Module):
    """The last matrix belongs to the module itself."""

    def __init__(self):
        super().__init__()
        self.body, self.matrix = nn.Linear(4, 5), nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return torch.relu(self.body(x)) @ self.matrix


class Squeezing(nn.Module):
    """Dense layers inside, a convolution at the end: there is no head."""

    def __init__(self):
        super().__init__()
        self.gate, self.out = nn.Linear(2, 2), nn.Conv2d(2, 3, 1)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x.mean((2, 3))))
        return self.out(x * gate[:, :, None, None]).mean((2, 3))


def test_the_head_of_a_cosine_classifier_is_the_classifier():
    model = models.from_torch(WithCosine, VECTORS).bind((4,), 3)
    part = model.part("classifier.weight,classifier.scale")
    assert model.part("head").slices == part.slices
    assert model.feature_shape == (5,)
    x = jnp.asarray(batches(4)[0])
    theta = model.init(KEY)
    features = model.features(theta, x)
    outputs, expected = model.head_outputs(theta, features), model.logits(theta, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)


def test_the_last_matrix_is_the_head_and_a_convolution_is_none():
    model = models.from_torch(Bare, VECTORS).bind((4,), 3)
    assert model.part("head").slices == model.part("matrix").slices
    images = torch.zeros(1, 2, 4, 4)
    model = models.from_torch(Squeezing, images).bind((2, 4, 4), 3)
    assert "head" not in model.parts


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_tied_weights_are_one_parameter():
    model = models.from_torch(Tied, VECTORS).bind((4,), 4)
    assert model.paths == ("first.bias", "first.weight", "second.bias")
    assert "head" not in model.parts
    ours = trained(Tied(), model, batches(4))
    np.testing.assert_array_equal(ours["first.weight"], ours["second.weight"])


class Zeros(nn.Module):
    """Makes float32 numbers in its code."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        start = torch.zeros(1, x.shape[0], 6)
        ones = torch.ones(4, dtype=torch.float32)
        return self.head(self.rnn(x * ones, start)[0][:, -1].float())


def test_constants_of_the_code_are_taken():
    model = models.from_torch(Zeros, torch.zeros(1, 5, 4)).bind((5, 4), 3)
    trained(Zeros(), model, batches(5, 4))


def test_a_module_keeps_its_weights_and_a_function_draws_new_ones():
    module = nn.Linear(4, 3)
    model = models.from_torch(module, VECTORS).bind((4,), 3)
    for key in (KEY, jax.random.key(1)):
        weight = model.params(model.init(key))["weight"]
        np.testing.assert_array_equal(weight, module.weight.detach())
    anew = models.from_torch(lambda: nn.Linear(4, 3), VECTORS)
    anew = anew.bind((4,), 3)
    assert not np.allclose(anew.init(KEY), anew.init(jax.random.key(1)))


# operations
# --------------------------------------------------------------------------------------


class Applied(nn.Module):
    """A function between two layers."""

    def __init__(self, function, inputs):
        super().__init__()
        self.first, self.function = nn.Linear(inputs, 16), function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (self.function(self.first(x)) * self.scale).flatten(1)


def images(x):
    return x.view(-1, 1, 4, 4)


OF_VECTORS = {
    "gather": lambda x: x.gather(1, torch.tensor([[0, 3, 3]]).expand(len(x), -1)),
    "diff": lambda x: x.diff(dim=1),
    "topk": lambda x: x.topk(3, 1).values,
    "sort": lambda x: x.sort(1, descending=True).values,
    "empty parts": lambda x: torch.cat([torch.tensor([]), x.view(-1, 4, 4)], -2),
    "roll": lambda x: x.roll(2, 1),
    "cumprod": lambda x: x[:, :3].cumprod(1),
    "fourier": lambda x: torch.fft.rfft(x).abs(),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(
        1, torch.arange(16).expand(len(x), -1) // 4, x
    ),
    "cdist": lambda x: torch.cdist(x.view(-1, 4, 4), x.view(-1, 4, 4) + 1),
    "cosine": lambda x: functional.cosine_similarity(x, x.flip(1))[:, None],
    "pixel shuffle": lambda x: functional.pixel_shuffle(x.view(-1, 4, 2, 2), 2),
    "pixel unshuffle": lambda x: functional.pixel_unshuffle(images(x), 2),
    "groups": lambda x: functional.conv2d(
        x.view(-1, 4, 2, 2), torch.ones(6, 2, 2, 2), None, 1, 1, 1, 2
    ),
    "transposed": lambda x: functional.conv_transpose2d(
        x.view(-1, 4, 2, 2), torch.ones(4, 2, 3, 3), None, 2, 1, 1, 2
    ),
    "adaptive maxima": lambda x: functional.adaptive_max_pool2d(images(x), 3),
    "adaptive means": lambda x: functional.adaptive_avg_pool2d(images(x), 3),
    "maxima, ceil": lambda x: functional.max_pool2d(images(x), 3, 2, 1, ceil_mode=True),
    "maxima, dilated": lambda x: functional.max_pool2d(images(x), 2, 1, 0, 2),
    "means, ceil": lambda x: functional.avg_pool2d(images(x), 3, 2, 1, True),
    "means, without padding": lambda x: functional.avg_pool2d(
        images(x), 3, 2, 1, False, False
    ),
    "unfold": lambda x: functional.unfold(images(x), 2),
    "fold": lambda x: functional.fold(x.view(-1, 4, 4), (3, 3), 2),
    "grid": lambda x: functional.grid_sample(
        images(x),
        functional.affine_grid(
            torch.tensor([[[0.5, 0.1, 0.2], [0.0, 0.7, 0.1]]]).expand(len(x), -1, -1),
            [len(x), 1, 5, 5],
            align_corners=False,
        ),
        align_corners=False,
    ),
    "alpha dropout": nn.AlphaDropout(0.2),
    "feature dropout": nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Dropout2d(0.2)),
    "real part": lambda x: torch.fft.fft(x).real,
} | {
    f"{mode} to {size}": lambda x, mode=mode, size=size: functional.interpolate(
        images(x), size=size, mode=mode
    )
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    for size in (7, 3)
}


@pytest.mark.parametrize("name", OF_VECTORS)
def test_operations(name):
    """The conversion checks itself: outputs and gradients are PyTorch's."""
    models.from_torch(lambda: Applied(OF_VECTORS[name], 4), VECTORS)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_words(mode):
    def make():
        bag = nn.EmbeddingBag(9, 5, padding_idx=0, mode=mode)
        return nn.Sequential(bag, nn.Linear(5, 3))

    model = models.from_torch(make, torch.arange(8).view(2, 4)).bind((4,), 3)
    tokens = np.array([[0, 0, 0, 0], [1, 1, 2, 0], [3, 4, 5, 6]])
    theta, module = model.init(KEY), make()
    state = models.state_dict(model, theta)
    module.load_state_dict({name: torch.tensor(one) for name, one in state.items()})
    np.testing.assert_allclose(
        model.logits(theta, jnp.asarray(tokens)),
        module(torch.from_numpy(tokens)).detach(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_dropout_and_noise_draw_anew_in_every_step():
    class Random(nn.Linear):
        def forward(self, x):
            if self.training:
                x = x + torch.randn_like(x) * torch.rand(1)
                x = x * torch.empty_like(x).bernoulli_(0.8)
            return super().forward(x)

    model = models.from_torch(lambda: Random(4, 3), VECTORS).bind((4,), 3)
    assert model.stochastic
    x, theta = jnp.asarray(batches(4)[0]), model.init(KEY)
    one, two = (model.logits(theta, x, jax.random.key(key)) for key in (0, 1))
    assert not np.allclose(one, two)
    np.testing.assert_array_equal(model.logits(theta, x), model.logits(theta, x))


def test_recurrent_layers_are_pytorch_s():
    """Two layers in both directions: the conversion checks itself."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 3, 2, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    models.from_torch(Both, torch.zeros(1, 2, 2))


def test_shapes_of_a_recurrent_layer_do_not_take_a_pass_over_its_sequence(monkeypatch):
    """PyTorch traces all steps of a layer to find them, in each of four passes."""
    import torch._decomp.decompositions as decompositions

    calls = []
    cell = decompositions.lstm_cell

    def counted(*args, **kwargs):
        calls.append(cell)
        return cell(*args, **kwargs)

    monkeypatch.setattr(decompositions, "lstm_cell", counted)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 3, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0][:, -1]

    def converted(length):
        calls.clear()
        example = torch.zeros(1, length, 2)
        models.from_torch(Last(), example, check=False)
        return len(calls)

    assert converted(3) == converted(6) > 0
