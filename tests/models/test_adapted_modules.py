"""Frozen arrays and adapters of modules of other libraries."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import fedtailor as ft
from fedtailor.models import frozen, lora, merged
from fedtailor.models.frozen_arrays import placed
from fedtailor.testing import classification

SHAPE, CLASSES = (4,), 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, *SHAPE)), jnp.float32)
Y = jnp.array([0, 1, 2, 0, 1])
KEY = jax.random.key(0)


def moved(model):
    """A vector near the model's start."""
    start = model.init(KEY)
    return start + 0.1 * jax.random.normal(jax.random.key(1), start.shape)


# PyTorch
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip(
        "torch", reason="PyTorch (the extra `torch`) is not installed"
    )


@pytest.fixture(scope="module")
def encoder(torch):
    """A small transformer's layer over four numbers, with a large constant."""
    torch.manual_seed(0)
    nn = torch.nn

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(1, 8)
            self.place = nn.Parameter(torch.randn(4, 8), requires_grad=False)
            self.fixed = nn.Linear(8, 1 << 13).requires_grad_(False)
            self.narrow = nn.Linear(1 << 13, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x):
            tokens = self.embed(x.unsqueeze(-1)) + self.place
            tokens = tokens + 0.01 * self.narrow(torch.tanh(self.fixed(tokens)))
            return self.head(self.layer(tokens).mean(1))

    return Encoder()


@pytest.fixture(scope="module")
def network(torch, encoder):
    return ft.models.from_torch(encoder, torch.zeros(2, *SHAPE))


WHERE = "re:(linear\\d|out_proj|narrow).weight$"


@pytest.mark.extra
def test_a_pytorch_module_with_adapters_begins_as_itself_and_goes_back(
    torch, encoder, network
):
    whole = network.bind(SHAPE, CLASSES)
    adapted = lora(network, rank=2, where=WHERE, train="head").bind(SHAPE, CLASSES)
    assert len(adapted.architecture.adapted) == 4
    expected = whole.logits(whole.init(KEY), X)
    np.testing.assert_array_equal(adapted.logits(adapted.init(KEY), X), expected)
    np.testing.assert_allclose(
        expected, encoder.eval()(torch.tensor(np.asarray(X))).detach(), atol=1e-5
    )

    theta = moved(adapted)
    same, vector = merged(adapted, theta)
    assert same == whole
    state = ft.models.state_dict(same, vector)
    back = copy.deepcopy(encoder)
    back.load_state_dict({name: torch.tensor(each) for name, each in state.items()})
    np.testing.assert_allclose(
        adapted.logits(theta, X),
        back.eval()(torch.tensor(np.asarray(X))).detach(),
        atol=1e-5,
    )


@pytest.mark.extra
@pytest.mark.parametrize("wrap", [lora, frozen])
def test_what_pytorch_has_frozen_is_an_input_of_programs_too(encoder, network, wrap):
    options = {"where": WHERE, "rank": 2} if wrap is lora else {"where": "not head"}
    model = wrap(network, **options).bind(SHAPE, CLASSES)
    assert set(model.frozen) > set(model.architecture.arrays_of_inner())

    def outputs(theta, arrays):
        with placed(model.frozen, arrays):
            return model.logits(theta, X)

    start, arrays = model.init(KEY), model.frozen.on_device
    program = jax.make_jaxpr(outputs)(start, arrays)
    assert max(map(np.size, program.consts), default=0) < encoder.fixed.weight.numel()
    doubled = [2 * array for array in arrays]
    assert np.abs(outputs(start, doubled) - outputs(start, arrays)).max() > 1e-4


@pytest.mark.extra
def test_a_pytorch_module_starts_from_a_file(torch, encoder, network, tmp_path):
    trained = {
        name: (1.5 * tensor).numpy()
        for name, tensor in encoder.state_dict().items()
        if tensor.numel() < 1 << 13 and name != "place"
    }
    save_file(trained, tmp_path / "base.safetensors")
    model = lora(network, 2, WHERE, start=tmp_path / "base.safetensors")
    model = model.bind(SHAPE, CLASSES)
    encoder = copy.deepcopy(encoder)
    encoder.load_state_dict(
        {name: torch.tensor(each) for name, each in trained.items()}, strict=False
    )
    np.testing.assert_allclose(
        model.logits(model.init(KEY), X),
        encoder.eval()(torch.tensor(np.asarray(X))).detach(),
        atol=1e-5,
    )


# Flax
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linen():
    return pytest.importorskip("flax.linen")


@pytest.fixture
def flax_encoder(linen):
    class Encoder(linen.Module):
        @linen.compact
        def __call__(self, x):
            tokens = linen.Dense(8)(x[..., None])
            attended = linen.MultiHeadDotProductAttention(2, name="attention")(tokens)
            tokens = linen.LayerNorm()(tokens + attended)
            tokens = linen.Conv(8, (3,), name="conv")(tokens)
            return linen.Dense(CLASSES, name="head")(tokens.mean(axis=1))

    return ft.models.from_linen(Encoder())


def test_a_flax_module_with_adapters_begins_as_itself_and_can_be_merged(flax_encoder):
    whole = flax_encoder.bind(SHAPE, CLASSES)
    model = lora(flax_encoder, 2, "re:kernel$", seed=4).bind(SHAPE, CLASSES)
    assert {path for path, *_ in model.architecture.adapted} == {
        path for path in whole.paths if path.endswith("kernel")
    }
    np.testing.assert_array_equal(
        model.logits(model.init(KEY), X), whole.logits(whole.init(jax.random.key(4)), X)
    )
    theta = moved(model)
    same, vector = merged(model, theta)
    assert same == whole
    np.testing.assert_allclose(
        model.logits(theta, X), same.logits(jnp.asarray(vector), X), rtol=0, atol=1e-5
    )


# both
# --------------------------------------------------------------------------------------


def test_a_method_that_keeps_a_factor_at_home(network):
    federation = classification(4)
    adapted = lora(network, rank=2, where=WHERE)
    done = ft.run(
        ft.FedPer(sgd=ft.SGD(lr=0.1, steps=3, batch_size=8), part="lora_b"),
        federation,
        adapted,
        rounds=2,
    )
    assert done.model.frozen == adapted.bind(SHAPE, CLASSES).frozen
    a, b = done.model.part("lora_a"), done.model.part("lora_b")
    personal = [done.personal(name).theta for name in federation.names]
    np.testing.assert_array_equal(a.take(personal[0]), a.take(personal[1]))
    assert np.abs(b.take(personal[0]) - b.take(personal[1])).max() > 1e-4
