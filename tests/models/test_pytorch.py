"""PyTorch modules: converted, checked, trained as PyTorch trains them, and given
back.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import train
from fedtailor import models
from fedtailor.algorithms import FedAvg
from fedtailor.data.federation import Federation, Ragged
from fedtailor.models.pytorch import OPERATIONS, operation
from fedtailor.protocol import SGD
from fedtailor.protocol.plain import to_plain

torch = pytest.importorskip(
    "torch", reason="PyTorch (the extra `torch`) is not installed"
)
safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.extra
nn = torch.nn
KEY = jax.random.key(0)


class Net(nn.Module):
    """Own convolutions (fused with pooling, strided, padded), BatchNorm, dropout,
    in-place operations, a residual.
    """

    def __init__(self):
        super().__init__()
        self.first, self.norm = (
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
        )
        self.second, self.third = (
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.Conv2d(4, 6, 3, padding=1),
        )
        self.dropout, self.hidden, self.head = (
            nn.Dropout(0.5),
            nn.Linear(6, 5),
            nn.Linear(5, 3),
        )

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.first(x)), inplace=True)
        x = x[:, :, ::2, ::2] + nn.functional.gelu(self.second(x))
        x = nn.functional.max_pool2d(torch.relu(self.third(x)), 2)
        x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.head(torch.tanh(self.hidden(self.dropout(x))))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6, padding_idx=0)
        self.recurrent, self.norm, self.head = (
            nn.GRU(6, 4, batch_first=True),
            nn.LayerNorm(4),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        return self.head(self.norm(self.recurrent(self.embedding(x))[0][:, -1]))


@pytest.fixture(scope="module")
def net():
    return models.from_torch(Net, torch.zeros(1, 2, 8, 8))


def loaded(model, theta):
    module = Net()
    module.load_state_dict(
        {
            name: torch.tensor(values)
            for name, values in models.state_dict(model, theta).items()
        }
    )
    return module


def test_a_converted_module_computes_what_pytorch_computes(net):
    """Data with channels last, and in PyTorch's order."""
    assert [one.name for one in net.training.operations].count("conv_relu_pool") == 1
    images = np.random.default_rng(0).standard_normal((5, 8, 8, 2)).astype(np.float32)
    last, first = net.bind((8, 8, 2), 3), net.bind((2, 8, 8), 3)
    theta = last.init(KEY)
    module = loaded(last, theta)
    x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(
        last.logits(last.params(theta), jnp.asarray(images)),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        first.logits(first.params(theta), jnp.asarray(x.numpy())),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )
    # training: batch statistics, padding left out, dropout off without a key
    module.dropout.p = 0.0
    expected = module.train()(x).detach().numpy()
    padded = jnp.concatenate([images, 100 * jnp.ones((2, 8, 8, 2), jnp.float32)])
    weight = jnp.asarray([1.0] * 5 + [0] * 2)
    outputs, renewed = last.train_outputs(last.params(theta), padded, weight)
    np.testing.assert_allclose(outputs[:5], expected, rtol=1e-4, atol=1e-5)
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(
            renewed[f"norm.{name}"], getattr(module.norm, name), rtol=1e-5, atol=1e-6
        )


def test_parts_statistics_dropout_and_starts(net):
    model = net.bind((8, 8, 2), 3)
    assert model.stochastic and model.has_statistics and model.statistics.size == 8
    assert model.part("head").slices == model.part("head.weight,head.bias").slices
    assert model.part("norm").size == 16 and model.part("last2").size == 18 + 35
    theta, other = model.init(KEY), model.init(jax.random.key(1))
    assert theta.tobytes() == model.init(KEY).tobytes() and not np.allclose(
        theta, other
    )
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 8, 8, 2)), jnp.float32)
    features = model.features(theta, x)
    assert features.shape == (4, *model.feature_shape) == (4, 5)
    np.testing.assert_allclose(
        model.head_outputs(theta, features),
        model.logits(model.params(theta), jnp.asarray(x)),
        rtol=1e-5,
        atol=1e-6,
    )
    trained, again = (
        model.train_outputs(model.params(theta), x, jnp.ones(4), jax.random.key(k))[0]
        for k in (0, 1)
    )
    assert not np.allclose(trained, again)


def test_a_module_starts_from_its_present_values_only_if_told_so():
    module = nn.Linear(4, 3)
    pretrained, anew = (
        models.from_torch(module, np.zeros((1, 4)), pretrained=told).bind((2, 2), 3)
        for told in (True, False)
    )
    for key in (KEY, jax.random.key(1)):
        np.testing.assert_array_equal(
            pretrained.params(pretrained.init(key))["weight"], module.weight.detach()
        )
    assert not np.allclose(anew.init(KEY), anew.init(jax.random.key(1)))
    assert pretrained != anew


@pytest.mark.parametrize("ending", [".pt", ".pth", ".ckpt", ".bin", ".npz", ".onnx"])
def test_state_dicts_are_not_named_like_files_of_another_format(ending, tmp_path):
    model = models.from_torch(lambda: nn.Linear(4, 3), torch.zeros(1, 4)).bind((4,), 3)
    path = tmp_path / f"client-3{ending}"
    with pytest.raises(ValueError, match=r"name it client-3\.safetensors$"):
        models.save_state_dict(model, model.init(KEY), path)
    assert not path.exists()


def test_what_makes_no_module_is_told_in_one_line():
    example = torch.zeros(1, 4)
    with pytest.raises(
        ValueError, match=r"^from_torch takes a torch.nn.Module.*not 3$"
    ):
        models.from_torch(3, example)
    with pytest.raises(
        ValueError,
        match=r"^from_torch calls Linear without .* 'in_features'; .* lambda: Linear\(",
    ):
        models.from_torch(nn.Linear, example)


def test_training_is_pytorch_s_and_models_go_back(tmp_path):
    """Two clients, full batches, one round of two epochs: plain PyTorch ends at the
    same models.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((14, 4)).astype(np.float32), rng.integers(0, 3, 14)
    rows, empty = Ragged.cut(np.arange(14), np.array([6, 8])), Ragged.empty(2)
    federation = Federation(x, y, rows, empty, empty, ("a", "b"), classes=3)
    module = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    )
    model = models.from_torch(module, torch.zeros(1, 4), pretrained=True).bind((4,), 3)
    sgd = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
    training = train(FedAvg(sgd=sgd), federation, model, 1)
    states = []
    for client in range(2):
        copied = nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
        )
        copied.load_state_dict(module.state_dict())
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            own = rows[client]
            nn.functional.cross_entropy(
                copied(torch.from_numpy(x[own])), torch.from_numpy(y[own])
            ).backward()
            optimizer.step()
        states.append(copied.state_dict())
    theta = np.asarray(training.server.model[0])
    file = models.save_state_dict(model, theta, tmp_path / "model.safetensors")
    back = safetensors_torch.load_file(file)
    for name, values in back.items():
        if not name.endswith("num_batches_tracked"):
            expected = (6 * states[0][name] + 8 * states[1][name]) / 14
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    copied.load_state_dict(back)  # every name is there
    outputs = copied.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(
        model.logits(model.params(jnp.asarray(theta)), jnp.asarray(x)),
        outputs,
        rtol=1e-4,
        atol=1e-5,
    )


class Scaled(nn.Linear):
    """With a constant."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        return super().forward(x) * self.scale


def test_a_run_s_manifest_says_the_same_of_a_module_made_anew():
    """As another process makes it that resumes the run."""

    def said(module, **options):
        model = models.from_torch(
            module, torch.zeros(1, 4), check=False, **options
        ).bind((4,), 3)
        return to_plain(model)

    assert said(Scaled) == said(Scaled)
    module, other = Scaled(), Scaled()
    other.load_state_dict(module.state_dict())
    assert said(module, pretrained=True) == said(other, pretrained=True)
    assert said(module, pretrained=True) != said(Scaled(), pretrained=True)
    other.scale += 1
    assert said(module, pretrained=True) != said(other, pretrained=True)


def test_sequences():
    model = models.from_torch(Words, torch.arange(8).reshape(2, 4) % 9).bind((4,), 2)
    theta, tokens = model.init(KEY), np.arange(12).reshape(3, 4) % 9
    module = Words()
    module.load_state_dict(
        {
            name: torch.tensor(values)
            for name, values in models.state_dict(model, theta).items()
        }
    )
    expected = module(torch.from_numpy(tokens)).detach().numpy()
    np.testing.assert_allclose(
        model.logits(model.params(theta), jnp.asarray(tokens)),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )
    assert (
        model.part("norm").size == 8
        and model.feature_shape == (4,)
        and not model.stochastic
    )


class Sequences(nn.Module):
    """Recurrent layers one upon another."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(
            3, 4, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True
        )
        self.rnn, self.head = nn.RNN(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.rnn(self.lstm(x)[0])[0][:, -1])


class Attending(nn.Module):
    """An encoder over patches behind a token of its own; the batch's size as `len`
    gives it.
    """

    def __init__(self):
        super().__init__()
        self.token, self.patches = (
            nn.Parameter(torch.zeros(1, 1, 8)),
            nn.Conv2d(2, 8, 4, 4),
        )
        self.encoder = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.1, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


class Numbers(nn.Module):
    """Operations between layers, and numbers that the code makes float32."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(9, 8))
        self.norm, self.head = nn.RMSNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        x = nn.functional.one_hot(x, 9).float().cumsum(1)[:, [0, 2, 3]].mean(1)
        x = nn.functional.selu(self.first(x / x.std(1, keepdim=True)))
        return self.head(self.norm(nn.functional.glu(x)))


def of_signals():
    return nn.Sequential(
        nn.Conv1d(4, 6, 3),
        nn.BatchNorm1d(6),
        nn.LeakyReLU(0.2),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(18, 3),
    )


def of_images():
    return nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LeakyReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize(
    ("make", "shape", "norm"),
    [
        (of_signals, (4, 8), 24),
        (of_images, (2, 8, 8), 16),
        (Sequences, (6, 3), 0),
        (Attending, (2, 8, 8), 32),
        (Numbers, (4,), 4),
    ],
    ids=["signals", "images", "recurrent", "attention", "numbers"],
)
def test_layers_and_operations(make, shape, norm):
    """Of a batch of another size than the conversion was checked on, and of theta's
    parts.
    """
    rng = np.random.default_rng(0)
    tokens = make is Numbers
    x = (
        rng.integers(0, 9, (7, *shape))
        if tokens
        else rng.standard_normal((7, *shape)).astype(np.float32)
    )
    model = models.from_torch(make, torch.from_numpy(x[:2])).bind(shape, 3)
    theta, module = model.init(KEY), make()
    state = models.state_dict(model, theta)
    module.load_state_dict(
        {name: torch.tensor(values) for name, values in state.items()}
    )
    expected = module.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(
        model.logits(model.params(theta), jnp.asarray(x)),
        expected,
        rtol=1e-4,
        atol=1e-5,
    )
    assert (
        sum(
            values.size
            for name, values in state.items()
            if not name.endswith("num_batches_tracked")
        )
        == model.size
    )
    assert model.part("norm" if norm else "nothing").size == norm
    head = module.head if hasattr(module, "head") else module[-1]
    assert model.part("head").size == head.weight.numel() + 3


class Holding(nn.Linear):
    """Holds a tensor that was computed from another."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.doubled = self.weight * 2


class Looping(nn.Linear):
    """One example after another."""

    def forward(self, x):
        return torch.stack(
            [nn.functional.linear(row, self.weight, self.bias) for row in x]
        )


class Twisted(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 2)

    def forward(self, x):
        return self.dense(torch.special.bessel_j0(x))


def test_what_cannot_be_converted_is_named_and_can_be_registered(monkeypatch):
    example = torch.zeros(1, 3)
    with pytest.raises(
        ValueError, match=r"Twisted cannot be converted.*'special_bessel_j0'.*register"
    ) as refused:
        models.from_torch(Twisted, example)
    assert "\n" not in str(refused.value)
    # what is registered wrongly is found by the comparison with PyTorch
    monkeypatch.setitem(OPERATIONS, "special_bessel_j0", None)
    operation("special_bessel_j0")(lambda context, x: jnp.cos(x))
    with pytest.raises(
        ValueError,
        match=r"Twisted cannot be converted: its output in training mode is .* away",
    ):
        models.from_torch(Twisted, example)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: models.from_torch(lambda: 3, torch.zeros(1, 3)),
            r"takes a torch\.nn\.Module",
        ),
        (lambda: models.from_torch(nn.ReLU, torch.zeros(1, 3)), "nothing to train"),
        (
            lambda: models.from_torch(nn.Linear(4, 3), torch.zeros(1, 5)),
            "^PyTorch fails in Linear: mat1 and mat2",
        ),
        (
            lambda: models.from_torch(nn.Linear(4, 3), torch.zeros(4)),
            r"gives torch.float32 \[3\] for a batch of 4",
        ),
        (
            lambda: models.from_torch(nn.Linear(4, 3), torch.zeros(0, 4)),
            r"with an input in it, not \[0, 4\]",
        ),
        (
            lambda: models.from_torch(
                nn.Linear(4, 3), (torch.zeros(1, 4), torch.zeros(1, 4))
            ),
            "Linear.forward takes input, and the example does not fit",
        ),
        (
            lambda: models.from_torch(lambda: Holding(4, 3), torch.zeros(1, 4)),
            "Holding cannot be copied",
        ),
        (
            lambda: models.from_torch(lambda: Looping(4, 3), torch.zeros(1, 4)),
            "^Looping .* for one size of batch only",
        ),
        (
            lambda: models.from_torch(
                nn.Linear(4, 3), torch.zeros(1, 4), check=False
            ).bind((5,), 3),
            "inputs have shape",
        ),
        (
            lambda: models.state_dict(models.mlp().bind((4,), 3), np.zeros(3)),
            "does not come from from_torch",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message) as refused:
        build()
    assert "\n" not in str(refused.value)


class _OfTwo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, mask):
        return self.layer(x * mask)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (_OfTwo, "_OfTwo.forward takes x, mask, and the example does not fit"),
        (
            lambda: torch.nn.DataParallel(torch.nn.Linear(4, 3)),
            "not a DataParallel: clients train on one device; pass the module in it",
        ),
        (lambda: torch.compile(torch.nn.Linear(4, 3)), "was given to torch.compile"),
        (
            lambda: torch.jit.script(torch.nn.Linear(4, 3)),
            "pass the torch.nn.Module that it was made from",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_around_a_module_is_said_with_what_to_pass(make, advice):
    with pytest.raises(ValueError, match=re.escape(advice)) as refused:
        models.from_torch(make, torch.zeros(1, 4))
    assert "\n" not in str(refused.value)


class Reader(torch.nn.Module):
    """Tokens with a mask, beside numbers; with running statistics."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(17, 6)
        self.numbers = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(10)
        self.head = torch.nn.Linear(10, 2)

    def forward(self, tokens, mask, numbers):
        read = (self.embedding(tokens) * mask[..., None]).sum(1)
        read = read / mask.sum(1, keepdim=True).clamp(min=1)
        both = torch.cat([read, torch.relu(self.numbers(numbers))], dim=1)
        return self.head(self.norm(both))


READ = {
    "tokens": torch.arange(35).reshape(5, 7) % 17,
    "mask": torch.arange(35).reshape(5, 7) % 4 != 1,
    "numbers": torch.linspace(-2, 2, 15).reshape(5, 3),
}


@pytest.fixture(scope="module")
def reader():
    """A module of several inputs, and its conversion."""
    module = Reader()
    return module, models.from_torch(module, READ)


def test_a_module_of_several_inputs_takes_them_by_the_names_of_its_arguments(reader):
    module, converted = reader
    inputs = converted.inputs
    assert str(inputs) == "mask [7], numbers [3], tokens [7]"
    model = converted.bind((inputs.size,), 2)
    packed = inputs.pack({name: part.numpy() for name, part in READ.items()})
    theta = model.init(jax.random.key(0))
    state = models.state_dict(model, theta)
    assert list(state) == list(module.state_dict())
    expected = module.eval()(**READ).detach().numpy()
    outputs = model.logits(theta, jnp.asarray(packed))
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    packed[:, :7] = 1  # the mask
    assert np.abs(model.logits(theta, jnp.asarray(packed)) - expected).max() > 1e-3
    assert converted.statistics({}) == ("norm.running_mean", "norm.running_var")


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ({"tokens": READ["tokens"]}, "missing a required argument: 'mask'"),
        ({**READ, "age": READ["mask"]}, "unexpected keyword argument 'age'"),
        (READ["tokens"], "Reader.forward takes tokens, mask, numbers"),
        ((READ["tokens"], READ["mask"]), "missing a required argument: 'numbers'"),
        (
            {**READ, "mask": [[1], [1, 1]]},
            "(of several inputs a tensor of each, by name)",
        ),
    ],
)
def test_other_inputs_than_the_module_takes_are_refused(example, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        models.from_torch(Reader, example)
    assert "\n" not in str(refused.value)
