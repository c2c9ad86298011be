"""PyTorch modules as people write and use them, small, for `torch_modules.py`: kind, name
-> a function that makes the module, and an example of its inputs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

Case = tuple[Callable[[], nn.Module], torch.Tensor]

VECTORS = torch.zeros(1, 8)
IMAGES = torch.zeros(1, 3, 16, 16)
LARGE = torch.zeros(1, 3, 64, 64)
"""With 32 x 32 pixels, batch normalisation after five halvings has so few values that
PyTorch's own steps differ by more than the tolerance if its parameters change by 1e-14.
"""
SIGNALS = torch.zeros(1, 3, 24)
SEQUENCES = torch.zeros(1, 6, 5)
TOKENS = torch.arange(8)[None] + 1
CLASSES, WORDS = 5, 20


class Function(nn.Module):
    """Named layers, and a function of these and the inputs that is `forward`."""

    def __init__(self, forward: Callable[..., torch.Tensor], **layers: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / 3)


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Sequential:
    """A convolution with batch normalisation and ReLU."""
    options.setdefault("padding", size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, bias=False, **options),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def pooled(channels: int) -> nn.Sequential:
    """A head over feature maps."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def unet(up: Callable[[int, int], nn.Module]) -> nn.Module:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        first = m.first(x)
        second = m.second(F.max_pool2d(first, 2))
        third = m.third(F.max_pool2d(second, 2))
        y = m.fourth(torch.cat([m.up1(third), second], 1))
        y = m.fifth(torch.cat([m.up2(y), first], 1))
        return m.out(y).permute(0, 2, 3, 1)

    return Function(
        forward,
        first=conv(3, 4),
        second=conv(4, 8),
        third=conv(8, 8),
        up1=up(8, 8),
        fourth=conv(16, 8),
        up2=up(8, 4),
        fifth=conv(8, 4),
        out=nn.Conv2d(4, CLASSES, 1),
    )


def transposed(inputs: int, outputs: int) -> nn.Module:
    return nn.ConvTranspose2d(inputs, outputs, 2, stride=2)


def upsampled(mode: str) -> Callable[[int, int], nn.Module]:
    options = {} if mode == "nearest" else {"align_corners": mode == "bilinear"}

    def up(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Upsample(scale_factor=2, mode=mode, **options),
            nn.Conv2d(inputs, outputs, 3, padding=1),
        )

    return up


def shuffled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, 4 * outputs, 1), nn.PixelShuffle(2))


# networks for vectors and tables
# --------------------------------------------------------------------------------------


def mlp(*, norm: Callable[[int], nn.Module], act: nn.Module, rate: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16),
        norm(16),
        act,
        nn.Dropout(rate),
        nn.Linear(16, 16),
        norm(16),
        act,
        nn.Linear(16, CLASSES),
    )


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.gate = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(x))
        return self.head(gate * F.relu(self.plain(x)) + (1 - gate) * x)


class Experts(nn.Module):
    """A soft mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 6) for _ in range(3))
        self.gate, self.head = nn.Linear(8, 3), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        weights = self.gate(x).softmax(-1)
        return self.head(torch.einsum("be,beo->bo", weights, outputs))


class Routed(nn.Module):
    """A mixture that sends each example to one expert: shapes depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, CLASSES) for _ in range(2))
        self.gate = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        choice = self.gate(x).argmax(-1)
        y = x.new_zeros(len(x), CLASSES)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero()[:, 0]
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]))
        return y


class Cosine(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight, self.scale = parameter(CLASSES, inputs), parameter(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        similar = F.linear(F.normalize(x), F.normalize(self.weight))
        return self.scale * similar


class Standardised(nn.Module):
    """Running statistics of one's own, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.variance = 0.9 * self.variance + 0.1 * x.var(0, unbiased=False)
        return self.head((x - self.mean) / (self.variance + 1e-5).sqrt())


class Averaged(nn.Module):
    """An exponential average of its own weights, used in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.register_buffer("average", self.dense.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.average.lerp_(self.dense.weight.detach(), 0.1)
            return self.head(torch.relu(self.dense(x)))
        return self.head(torch.relu(F.linear(x, self.average, self.dense.bias)))


class BatchNormByHand(nn.Module):
    """Normalised by the batch, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = nn.Linear(8, 6), nn.Linear(6, CLASSES)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense(x)
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.variance = 0.9 * self.variance + 0.1 * variance.detach()
        return self.head(F.relu((x - mean) / torch.sqrt(variance + 1e-5)))


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(8, 4), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)


class LoRA(nn.Module):
    """A frozen dense layer with a change of low rank."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + 2 * self.up(self.down(self.dropout(x)))


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return self.head(F.relu(self.dense(x)))


class Crosses(nn.Module):
    """A deep and cross network over embedded columns."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 3)
        self.crosses = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
        self.deep, self.head = nn.Linear(24, 8), nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.table(x).flatten(1)
        y = first
        for cross in self.crosses:
            y = first * cross(y) + y
        return self.head(torch.cat([y, F.relu(self.deep(first))], 1))


class Factorization(nn.Module):
    """DeepFM: pairs of embedded columns beside a deep part."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.wide = nn.Embedding(WORDS, 4), nn.Embedding(WORDS, CLASSES)
        self.deep = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        pairs = y.sum(1).square() - y.square().sum(1)
        return self.wide(x).sum(1) + self.deep(y.flatten(1)) + pairs.sum(1)[:, None]


class TableTransformer(nn.Module):
    """FT-Transformer: every number of a row is a token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = parameter(8, 12), parameter(8, 12)
        self.token = parameter(1, 1, 12)
        layer = nn.TransformerEncoderLayer(
            12, 2, 24, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[..., None] * self.weight + self.bias
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        return self.head(self.norm(self.encoder(tokens)[:, 0]))


class Step(torch.autograd.Function):
    """The sign, with the derivative of the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


TABLES: dict[str, Case] = {
    "logistic regression": (lambda: nn.Linear(8, CLASSES), VECTORS),
    "MLP, BatchNorm, ReLU, dropout": (
        lambda: mlp(norm=nn.BatchNorm1d, act=nn.ReLU(), rate=0.3),
        VECTORS,
    ),
    "MLP, LayerNorm, GELU, dropout": (
        lambda: mlp(norm=nn.LayerNorm, act=nn.GELU(), rate=0.1),
        VECTORS,
    ),
    "self-normalising MLP (SELU, AlphaDropout)": (
        lambda: nn.Sequential(
            nn.Linear(8, 16), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(16, CLASSES)
        ),
        VECTORS,
    ),
    "highway network": (Highway, VECTORS),
    "soft mixture of experts": (Experts, VECTORS),
    "maxout": (
        lambda: Function(
            lambda m, x: m.head(m.dense(x).unflatten(1, (6, 3)).max(-1).values),
            dense=nn.Linear(8, 18),
            head=nn.Linear(6, CLASSES),
        ),
        VECTORS,
    ),
    "cosine classifier": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), Cosine(6)),
        VECTORS,
    ),
    "spectral norm": (
        lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(8, 8)),
            nn.LeakyReLU(),
            nn.Linear(8, CLASSES),
        ),
        VECTORS,
    ),
    "weight norm": (
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(8, 8)), nn.ELU(), nn.Linear(8, 5)
        ),
        VECTORS,
    ),
    "orthogonal weights": (
        lambda: nn.Sequential(
            parametrizations.orthogonal(nn.Linear(8, 8)), nn.Linear(8, CLASSES)
        ),
        VECTORS,
    ),
    "running statistics of one's own": (Standardised, VECTORS),
    "batch normalisation by hand": (BatchNormByHand, VECTORS),
    "average of its own weights": (Averaged, VECTORS),
    "tied autoencoder": (TiedAutoencoder, VECTORS),
    "LoRA": (
        lambda: nn.Sequential(LoRA(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, CLASSES)),
        VECTORS,
    ),
    "frozen body": (
        lambda: nn.Sequential(
            frozen(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, CLASSES)
        ),
        VECTORS,
    ),
    "noise in training": (Noisy, VECTORS),
    "embeddings, deep and cross": (Crosses, TOKENS),
    "DeepFM": (Factorization, TOKENS),
    "FT-Transformer": (TableTransformer, VECTORS),
    "radial basis functions (cdist)": (
        lambda: Function(
            lambda m, x: m.head(torch.exp(-(torch.cdist(x, m.centres) ** 2))),
            centres=parameter(6, 8),
            head=nn.Linear(6, CLASSES),
        ),
        VECTORS,
    ),
    "bilinear layer": (
        lambda: Function(
            lambda m, x: m.pair(m.dense(x), x),
            dense=nn.Linear(8, 4),
            pair=nn.Bilinear(4, 8, CLASSES),
        ),
        VECTORS,
    ),
    "hard routing to experts": (Routed, VECTORS),
    "autograd.Function": (
        lambda: Function(
            lambda m, x: m.head(Step.apply(m.dense(x))),
            dense=nn.Linear(8, 8),
            head=nn.Linear(8, CLASSES),
        ),
        VECTORS,
    ),
    "centred by the batch": (
        lambda: Function(
            lambda m, x: m.head(x - x.mean(0) if m.training else x),
            head=nn.Linear(8, CLASSES),
        ),
        VECTORS,
    ),
    "special functions": (
        lambda: Function(
            lambda m, x: m.head(torch.special.bessel_j0(m.dense(x))),
            dense=nn.Linear(8, 8),
            head=nn.Linear(8, CLASSES),
        ),
        VECTORS,
    ),
}

# images and signals
# --------------------------------------------------------------------------------------


class Excited(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 4), nn.Linear(4, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * scale[:, :, None, None]


class Attentive(nn.Module):
    """CBAM's attention over space."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.conv(both))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y += x
        return F.relu(y, inplace=True)


class Located(nn.Module):
    """A spatial transformer before a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(
            nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6)
        )
        self.net = nn.Sequential(conv(3, 4), pooled(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.locate(x).view(-1, 2, 3) + torch.eye(2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False))


class Coordinates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(5, 4), pooled(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, _, h, w = x.shape
        rows = torch.linspace(-1, 1, h).view(1, 1, h, 1).expand(b, 1, h, w)
        columns = torch.linspace(-1, 1, w).view(1, 1, 1, w).expand(b, 1, h, w)
        return self.net(torch.cat([x, rows, columns], 1))


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(1))


class Dropped(nn.Module):
    """Stochastic depth, as most code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = conv(3, 3), pooled(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        if self.training:
            keep = torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.8)
            y = y.div(0.8) * keep
        return self.head(x + y)


class Causal(nn.Module):
    """A temporal convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm = parametrizations.weight_norm
        self.first = weight_norm(nn.Conv1d(3, 6, 3, padding=2))
        self.second = weight_norm(nn.Conv1d(6, 6, 3, padding=4, dilation=2))
        self.side, self.head = nn.Conv1d(3, 6, 1), nn.Linear(6, CLASSES)
        self.dropout = nn.Dropout1d(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(F.relu(self.first(x)[..., :-2]))
        y = self.dropout(F.relu(self.second(y)[..., :-4]))
        return self.head(F.relu(y + self.side(x))[..., -1])


IMAGE_NETS: dict[str, Case] = {
    "LeNet-5": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 8, 3),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(72, 20),
            nn.Tanh(),
            nn.Linear(20, CLASSES),
        ),
        IMAGES,
    ),
    "tutorial CNN": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(0.25),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        ),
        IMAGES,
    ),
    "ResNet by hand": (
        lambda: nn.Sequential(conv(3, 6), Residual(6), nn.MaxPool2d(2), pooled(6)),
        IMAGES,
    ),
    "squeeze and excitation": (
        lambda: nn.Sequential(conv(3, 8), Excited(8), pooled(8)),
        IMAGES,
    ),
    "squeeze and excitation, convolutional head": (
        lambda: nn.Sequential(
            conv(3, 8),
            Excited(8),
            nn.Conv2d(8, CLASSES, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        IMAGES,
    ),
    "CBAM": (lambda: nn.Sequential(conv(3, 6), Attentive(), pooled(6)), IMAGES),
    "depthwise separable, ReLU6, hard swish": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 3, 3, groups=3, padding=1),
            nn.ReLU6(),
            nn.Conv2d(3, 8, 1),
            nn.Hardswish(),
            pooled(8),
        ),
        IMAGES,
    ),
    "ConvMixer": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 4, 4),
            nn.GELU(),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, 3, groups=6, padding="same"),
            nn.GELU(),
            nn.BatchNorm2d(6),
            pooled(6),
        ),
        IMAGES,
    ),
    "MLP-Mixer": (Mixer, IMAGES),
    "U-Net, transposed convolutions": (lambda: unet(transposed), IMAGES),
    "U-Net, bilinear upsampling": (lambda: unet(upsampled("bilinear")), IMAGES),
    "U-Net, nearest upsampling": (lambda: unet(upsampled("nearest")), IMAGES),
    "U-Net, bicubic upsampling": (lambda: unet(upsampled("bicubic")), IMAGES),
    "U-Net, pixel shuffle": (lambda: unet(shuffled), IMAGES),
    "convolutional autoencoder": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 3, 4, stride=2, padding=1, groups=3),
            nn.Sigmoid(),
        ),
        IMAGES,
    ),
    "spatial pyramid (adaptive max pooling)": (
        lambda: Function(
            lambda m, x: m.head(
                torch.cat(
                    [F.adaptive_max_pool2d(m.net(x), n).flatten(1) for n in (1, 2, 3)],
                    1,
                )
            ),
            net=conv(3, 4),
            head=nn.Linear(56, CLASSES),
        ),
        IMAGES,
    ),
    "spatial transformer": (Located, IMAGES),
    "coordinates as channels": (Coordinates, IMAGES),
    "stochastic depth": (Dropped, IMAGES),
    "maxima and means with ceil_mode, local response": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.PReLU(),
            nn.LocalResponseNorm(3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
            nn.Flatten(),
            nn.Linear(96, CLASSES),
        ),
        IMAGES,
    ),
    "patches (unfold)": (
        lambda: Function(
            lambda m, x: m.head(F.relu(m.dense(F.unfold(x, 4, stride=4).mT)).mean(1)),
            dense=nn.Linear(48, 8),
            head=nn.Linear(8, CLASSES),
        ),
        IMAGES,
    ),
    "instance norm with running statistics": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.ReLU(),
            pooled(4),
        ),
        IMAGES,
    ),
    "random leaky ReLU": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.RReLU(), pooled(4)),
        IMAGES,
    ),
    "convolutions of volumes": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3),
            nn.BatchNorm3d(4),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        ),
        torch.zeros(1, 2, 8, 8, 8),
    ),
    "convolutions of signals": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 5),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(6, 6, 3),
            nn.SiLU(),
            nn.AdaptiveMaxPool1d(3),
            nn.Flatten(),
            nn.Linear(18, CLASSES),
        ),
        SIGNALS,
    ),
    "temporal convolutions": (Causal, SIGNALS),
}

# sequences, sets, graphs
# --------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int, *, zeros: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.zeros = layer, nn.Linear(width, CLASSES), zeros

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.zeros:
            start = torch.zeros(1, x.shape[0], 8)
            return self.head(self.layer(x, (start, start))[0][:, -1])
        return self.head(self.layer(x)[0][:, -1])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(x.size(0), 8)
        cell = torch.zeros(x.size(0), 8)
        for step in range(x.size(1)):
            hidden, cell = self.cell(x[:, step], (hidden, cell))
        return self.head(hidden)


class Language(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(8, WORDS)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.table(x))[0])


class AttendingGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6, padding_idx=0)
        self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.score, self.head = nn.Linear(10, 1), nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.table(x))
        scores = self.score(torch.tanh(states)).masked_fill((x == 0)[..., None], -1e9)
        return self.head((states * scores.softmax(1)).sum(1))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6)
        self.gru, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (x > 0).sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.table(x), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.gru(packed)[1][0])


class Halting(nn.Module):
    """Reads until it has seen enough."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(5, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 8)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            if float(state.abs().min()) > 0.99:
                break
        return self.head(state)


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(6, 4, size) for size in (2, 3, 4))
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x).transpose(1, 2)
        maxima = [F.relu(conv(y)).max(dim=2).values for conv in self.convs]
        return self.head(self.dropout(torch.cat(maxima, 1)))


class Captions(nn.Module):
    """A recurrent layer over convolutions (CRNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv(3, 4, stride=2)
        self.gru, self.head = nn.GRU(32, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.gru(y)[0]).mean(1)


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.angle = nn.Linear(8, 9)
        self.points = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = self.angle(torch.max(self.turn(x), 2)[0]).view(-1, 3, 3) + torch.eye(3)
        y = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        return self.head(torch.max(self.points(y), 2, keepdim=True)[0].view(-1, 8))


class Graph(nn.Module):
    """Graph convolutions over a fixed graph of six nodes."""

    def __init__(self) -> None:
        super().__init__()
        edges = (torch.rand(6, 6) > 0.5).float() + torch.eye(6)
        self.register_buffer("edges", edges / edges.sum(1, keepdim=True))
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.relu(self.edges @ self.first(x)), 0.5, self.training)
        return (self.edges @ self.second(x)).mean(1)


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.rand(6, 6) > 0.3)
        self.dense, self.a, self.b = nn.Linear(5, 8), parameter(8), parameter(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dense(x)
        scores = F.leaky_relu((y @ self.a)[:, :, None] + (y @ self.b)[:, None], 0.2)
        scores = scores.masked_fill(~self.edges & ~torch.eye(6).bool(), float("-inf"))
        return self.head(F.elu(scores.softmax(-1) @ y).mean(1))


class Block(nn.Module):
    """nanoGPT's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)
        self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (c // 2) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.norm2(x))


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 12), nn.Embedding(8, 12)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.out = nn.LayerNorm(12), nn.Linear(12, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(0, x.size(1), dtype=torch.long, device=x.device)
        return self.out(self.norm(self.blocks(self.words(x) + self.places(places))))


class Rotary(nn.Module):
    """Attention with rotary positions and RMS normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, 8), nn.RMSNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, CLASSES)
        angles = torch.outer(torch.arange(8.0), 10.0 ** -torch.arange(0.0, 4.0))
        self.register_buffer("angles", angles, persistent=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles.cos(), self.angles.sin()
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(self.table(x))).chunk(3, -1)
        y = F.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True
        )
        return self.out(y[:, -1])


class Fourier(nn.Module):
    """FNet."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.mlp, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.head(F.gelu(self.mlp(self.norm(x + mixed)))[:, 0])


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.out(self.net(y, y, tgt_mask=mask))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return Function(
        lambda m, x: m.head(m.net(m.table(x), src_key_padding_mask=x == 0).mean(1)),
        table=nn.Embedding(WORDS, 8, padding_idx=0),
        net=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        head=nn.Linear(8, CLASSES),
    )


SEQUENCE_NETS: dict[str, Case] = {
    "LSTM": (
        lambda: Recurrent(nn.LSTM(5, 8, 2, dropout=0.1, batch_first=True), 8),
        SEQUENCES,
    ),
    "LSTM from torch.zeros": (
        lambda: Recurrent(nn.LSTM(5, 8, batch_first=True), 8, zeros=True),
        SEQUENCES,
    ),
    "GRU in both directions": (
        lambda: Recurrent(nn.GRU(5, 8, batch_first=True, bidirectional=True), 16),
        SEQUENCES,
    ),
    "RNN": (lambda: Recurrent(nn.RNN(5, 8, batch_first=True), 8), SEQUENCES),
    "LSTM cells in a loop": (Cells, SEQUENCES),
    "language model, tied": (Language, TOKENS),
    "GRU with attention": (AttendingGRU, TOKENS),
    "convolutions and GRU": (Captions, IMAGES),
    "bag of words (EmbeddingBag)": (
        lambda: nn.Sequential(
            nn.EmbeddingBag(WORDS, 8, padding_idx=0), nn.Linear(8, CLASSES)
        ),
        TOKENS,
    ),
    "TextCNN": (TextCNN, TOKENS),
    "DeepSets": (
        lambda: Function(
            lambda m, x: m.rho(F.relu(m.phi(x)).sum(1)),
            phi=nn.Linear(5, 8),
            rho=nn.Linear(8, CLASSES),
        ),
        SEQUENCES,
    ),
    "PointNet": (PointNet, SIGNALS),
    "graph convolutions": (Graph, SEQUENCES),
    "graph attention": (GraphAttention, SEQUENCES),
    "transformer encoder": (encoder, TOKENS),
    "transformer, encoder and decoder": (EncoderDecoder, TOKENS),
    "nanoGPT": (NanoGPT, TOKENS),
    "rotary attention": (Rotary, TOKENS),
    "FNet (Fourier)": (Fourier, TOKENS),
    "packed sequences": (Packed, TOKENS),
    "loop that stops by a value": (Halting, SEQUENCES),
}

# torchvision, with fewer channels or blocks where it has an option for that
# --------------------------------------------------------------------------------------


def vision() -> dict[str, Case]:
    """Networks of torchvision; none where it is not installed."""
    try:
        # Its compiled operations (of detectors) are missing where it was built for
        # another PyTorch. Networks for classification do without.
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(
                    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        from torchvision import models
    except ImportError:
        return {}
    classes = {"num_classes": CLASSES}
    resnet = models.resnet
    return {
        "ResNet-18": (lambda: models.resnet18(**classes), LARGE),
        "ResNet, bottlenecks": (
            lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], **classes),
            LARGE,
        ),
        "ResNeXt": (
            lambda: resnet.ResNet(
                resnet.Bottleneck,
                [1, 1, 1, 1],
                groups=4,
                width_per_group=8,
                **classes,
            ),
            LARGE,
        ),
        "AlexNet": (lambda: models.alexnet(**classes), LARGE),
        "VGG-11 with batch norm": (
            lambda: models.vgg.VGG(
                models.vgg.make_layers([8, "M", 16, "M", 512, "M"], batch_norm=True),
                **classes,
            ),
            LARGE,
        ),
        "SqueezeNet": (lambda: models.squeezenet1_1(**classes), LARGE),
        "DenseNet": (
            lambda: models.DenseNet(8, (2, 2, 2), 16, drop_rate=0.1, **classes),
            LARGE,
        ),
        "GoogLeNet": (
            lambda: models.GoogLeNet(aux_logits=False, init_weights=False, **classes),
            LARGE,
        ),
        "MobileNetV2": (
            lambda: models.MobileNetV2(width_mult=0.25, **classes),
            LARGE,
        ),
        "MobileNetV3": (
            lambda: models.mobilenet_v3_small(width_mult=0.25, **classes),
            LARGE,
        ),
        "ShuffleNetV2": (lambda: models.shufflenet_v2_x0_5(**classes), LARGE),
        "MNASNet": (lambda: models.mnasnet0_5(**classes), LARGE),
        "EfficientNet-B0": (lambda: models.efficientnet_b0(**classes), LARGE),
        "RegNet": (lambda: models.regnet_y_400mf(**classes), LARGE),
        "ConvNeXt": (
            lambda: models.ConvNeXt(
                [
                    models.convnext.CNBlockConfig(8, 16, 1),
                    models.convnext.CNBlockConfig(16, None, 1),
                ],
                stochastic_depth_prob=0.1,
                **classes,
            ),
            LARGE,
        ),
        "Swin": (
            lambda: models.SwinTransformer(
                [2, 2], 8, [2, 2], [2, 2], [2, 2], stochastic_depth_prob=0.1, **classes
            ),
            IMAGES,
        ),
        "ViT": (
            lambda: models.VisionTransformer(16, 4, 2, 2, 16, 32, 0.1, **classes),
            IMAGES,
        ),
        "segmentation (FCN head)": (
            lambda: Function(
                lambda m, x: F.interpolate(
                    m.head(m.net(x)), x.shape[2:], mode="bilinear"
                ).permute(0, 2, 3, 1),
                net=conv(3, 8, stride=2),
                head=models.segmentation.fcn.FCNHead(8, CLASSES),
            ),
            IMAGES,
        ),
    }


# Hugging Face, from a configuration
# --------------------------------------------------------------------------------------


def face() -> dict[str, Case]:
    """Networks of transformers; none where it is not installed."""
    try:
        import transformers as hf
    except ImportError:
        return {}
    small = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "num_labels": CLASSES,
        "pad_token_id": 0,
    }

    def logits(kind: Any, config: Any) -> Callable[[], nn.Module]:
        return lambda: Function(lambda m, x: m.net(x).logits, net=kind(config))

    gpt2 = hf.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=32
    )
    distil = hf.DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=5
    )
    llama = hf.LlamaConfig(**{**small, "num_key_value_heads": 1, "bos_token_id": 1})
    images = hf.ViTConfig(**{**small, "image_size": 16, "patch_size": 4})
    t5 = hf.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
    )
    return {
        "BERT": (
            logits(hf.BertForSequenceClassification, hf.BertConfig(**small)),
            TOKENS,
        ),
        "BERT, masked words (tied)": (
            logits(hf.BertForMaskedLM, hf.BertConfig(**small)),
            TOKENS,
        ),
        "RoBERTa": (
            logits(
                hf.RobertaForSequenceClassification,
                hf.RobertaConfig(**small),
            ),
            TOKENS,
        ),
        "DistilBERT": (
            logits(hf.DistilBertForSequenceClassification, distil),
            TOKENS,
        ),
        "ALBERT": (
            logits(
                hf.AlbertForSequenceClassification,
                hf.AlbertConfig(**small, embedding_size=8),
            ),
            TOKENS,
        ),
        "ELECTRA": (
            logits(
                hf.ElectraForSequenceClassification,
                hf.ElectraConfig(**small, embedding_size=8),
            ),
            TOKENS,
        ),
        "GPT-2": (logits(hf.GPT2LMHeadModel, gpt2), TOKENS),
        "Llama": (logits(hf.LlamaForCausalLM, llama), TOKENS),
        "T5's encoder": (
            lambda: Function(
                lambda m, x: m.head(m.net(x).last_hidden_state.mean(1)),
                net=hf.T5EncoderModel(t5),
                head=nn.Linear(16, CLASSES),
            ),
            TOKENS,
        ),
        "ViT (Hugging Face)": (logits(hf.ViTForImageClassification, images), IMAGES),
    }


def cases() -> dict[str, dict[str, Case]]:
    """Kind -> name -> module and example."""
    return {
        "vectors and tables": TABLES,
        "images and signals": IMAGE_NETS,
        "sequences, sets, graphs": SEQUENCE_NETS,
        "torchvision": vision(),
        "Hugging Face": face(),
    }
