"""Networks as people write them in PyTorch, of the sizes that benchmarks train."""

from itertools import pairwise

import torch
from torch import nn

VOCABULARY = 90
LENGTH = 40
"""Characters, and tokens of a sequence, as in LEAF's Shakespeare (about)."""


class Block(nn.Module):
    """Two 3x3 convolutions next to the identity, or to a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images, with torchvision's names."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        for stage, (inputs, outputs) in enumerate(pairwise((64, 64, 128, 256, 512))):
            first = Block(inputs, outputs, 1 if inputs == outputs else 2)
            layer = nn.Sequential(first, Block(outputs, outputs, 1))
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


class Characters(nn.Module):
    """The next character by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.out = nn.Linear(64, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


class Encoder(nn.Module):
    """The next character by a transformer encoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.places = nn.Parameter(torch.zeros(LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embedding(x) + self.places).mean(1))


def lenet5(channels: int, side: int, classes: int, pool: type[nn.Module]) -> nn.Module:
    """LeNet-5 without padding."""
    side = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        pool(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        pool(2),
        nn.Flatten(),
        *dense((16 * side * side, 120, 84, classes)),
    )


def cnn_5x5(channels: int, side: int, classes: int) -> nn.Module:
    """The CNN with which PFLlib compares methods."""
    side = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense((64 * side * side, 512, classes)),
    )


def dense(widths: tuple[int, ...]) -> list[nn.Module]:
    """Dense layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return layers[1:]
