"""ResNet-18: equal to a plain PyTorch implementation, from whose state dict it starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor import models
from fedtailor.models.tree_paths import path_of

torch = pytest.importorskip(
    "torch", reason="PyTorch (the extra `torch`) is not installed"
)
pytestmark = [pytest.mark.extra, pytest.mark.slow]
nn = torch.nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Plain(nn.Module):
    """ResNet-18 as torchvision builds it, with its names."""

    def __init__(self, stem, classes):
        super().__init__()
        large = stem == "7x7"
        kernel = (7, 2, 3) if large else (3, 1, 1)
        self.conv1 = nn.Conv2d(3, 64, *kernel, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        for stage, width in enumerate((64, 128, 256, 512), 1):
            first = Block(max(64, width // 2), width, 1 if stage == 1 else 2)
            layer = nn.Sequential(first, Block(width, width, 1))
            self.add_module(f"layer{stage}", layer)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def trained(stem):
    """A module with statistics and scales as a trained one has them."""
    torch.manual_seed(0)
    module = Plain(stem, 5)
    for name, values in module.state_dict().items():
        if values.ndim == 1 and "fc" not in name:
            values += 0.3 * torch.rand(len(values))
    return module


def started(stem, shape, start):
    """The model with the parameters of a state dict, and images."""
    architecture = models.frozen(models.resnet(18, stem=stem), "conv1", start=start)
    model = architecture.bind((*shape, 3), 5, dtype="float64")
    whole, theta = models.merged(model, model.init(jax.random.key(0)))
    images = np.random.default_rng(0).standard_normal((6, *shape, 3), np.float32)
    inputs = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    return whole, whole.params(jnp.asarray(theta)), images, inputs


def test_predictions_are_pytorchs(tmp_path):
    from safetensors.torch import save_file

    module, path = trained("7x7"), tmp_path / "resnet18.safetensors"
    save_file(module.state_dict(), path)
    with jax.enable_x64(True):
        model, params, images, inputs = started("7x7", (64, 40), path)
        outputs = jax.jit(model.logits)(params, images)
    expected = module.double().eval()(inputs).detach().numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_training_renews_the_statistics_as_pytorch_does():
    module = trained("3x3")
    with jax.enable_x64(True):
        model, params, images, inputs = started("3x3", (16, 12), module.state_dict())
        outputs, renewed = jax.jit(model.train_outputs)(params, images, jnp.ones(6))
    expected = module.double().train()(inputs).detach().numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    ours = {
        path_of(keys): values
        for keys, values in jax.tree_util.tree_leaves_with_path(renewed)
    }
    for name, values in module.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(ours[name], values, rtol=1e-5, atol=1e-5)
