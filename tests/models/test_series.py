"""Models of series are PyTorch's, and their published equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models import conv1d, gru


def bound(architecture, steps=20, channels=3, outputs=4):
    model = architecture.bind((steps, channels), outputs)
    theta = model.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(5, steps, channels)).astype(np.float32)
    return model, model.params(theta), jnp.asarray(x)


def test_a_convolution_over_time_is_its_sum():
    model, params, x = bound(conv1d((6,), size=5))
    values = np.asarray(x)
    weight, bias = (
        np.asarray(it) for it in (params.layers[0].weight, params.layers[0].bias)
    )
    out = np.stack(
        [
            np.einsum("bkc,kco->bo", values[:, t : t + 5], weight) + bias
            for t in range(16)
        ],
        axis=1,
    )
    pooled = np.maximum(out, 0).reshape(5, 8, 2, 6).max(2).mean(1)
    dense = params.layers[-1]
    matrix = dense.weight.T if dense.transposed else dense.weight
    expected = pooled @ np.asarray(matrix) + np.asarray(dense.bias)
    np.testing.assert_allclose(model.logits(params, x), expected, atol=1e-5)


def test_a_step_of_the_gru_is_the_published_one():
    model, params, x = bound(gru(6), steps=1)
    layer = params["recurrent"][0]
    first = x[:, 0] @ np.asarray(layer.input_weight) + np.asarray(layer.input_bias)
    recurrent = np.asarray(layer.state_bias)
    r_in, z_in, n_in = np.split(first, 3, axis=1)
    r_h, z_h, n_h = np.split(recurrent, 3)
    sigmoid = lambda value: 1 / (1 + np.exp(-value))  # noqa: E731
    new = np.tanh(n_in + sigmoid(r_in + r_h) * n_h)
    state = (1 - sigmoid(z_in + z_h)) * new  # from a state of zeros
    head = params["classifier"]
    matrix = head.weight.T if head.transposed else head.weight
    expected = state @ np.asarray(matrix) + np.asarray(head.bias)
    np.testing.assert_allclose(model.logits(params, x), expected, atol=1e-5)


def test_a_batch_is_its_examples():
    for architecture in (conv1d((4, 4), size=3), gru(5, layers=2)):
        model, params, x = bound(architecture)
        one_by_one = jnp.concatenate(
            [model.logits(params, x[i : i + 1]) for i in range(5)]
        )
        np.testing.assert_allclose(model.logits(params, x), one_by_one, atol=1e-5)


@pytest.mark.extra
def test_they_equal_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch import nn

    model, params, x = bound(conv1d((6, 7), size=5))
    layers, inputs = [], torch.tensor(np.array(x)).swapaxes(1, 2)
    for layer in params.layers:
        if type(layer).__name__ != "Conv1dRelu":
            continue
        size, channels, outputs = layer.weight.shape
        conv = nn.Conv1d(channels, outputs, size)
        conv.weight.data = torch.tensor(np.array(layer.weight)).permute(2, 1, 0)
        conv.bias.data = torch.tensor(np.array(layer.bias))
        layers += [conv, nn.ReLU(), nn.MaxPool1d(2)]
    dense = params.layers[-1]
    head = nn.Linear(7, 4)
    matrix = dense.weight if dense.transposed else dense.weight.T
    head.weight.data = torch.tensor(np.array(matrix))
    head.bias.data = torch.tensor(np.array(dense.bias))
    expected = head(nn.Sequential(*layers)(inputs).mean(2)).detach().numpy()
    np.testing.assert_allclose(model.logits(params, x), expected, atol=1e-5)

    model, params, x = bound(gru(6, layers=2))
    net = nn.GRU(3, 6, num_layers=2, batch_first=True)
    for number, layer in enumerate(params["recurrent"]):
        for kind in ("input", "state"):
            end = ("ih" if kind == "input" else "hh") + f"_l{number}"
            weight = np.array(getattr(layer, f"{kind}_weight")).T
            getattr(net, f"weight_{end}").data = torch.tensor(weight)
            bias = np.array(getattr(layer, f"{kind}_bias"))
            getattr(net, f"bias_{end}").data = torch.tensor(bias)
    dense = params["classifier"]
    head = nn.Linear(6, 4)
    matrix = dense.weight if dense.transposed else dense.weight.T
    head.weight.data = torch.tensor(np.array(matrix))
    head.bias.data = torch.tensor(np.array(dense.bias))
    states, _ = net(torch.tensor(np.array(x)))
    expected = head(states[:, -1]).detach().numpy()
    np.testing.assert_allclose(model.logits(params, x), expected, atol=1e-5)
