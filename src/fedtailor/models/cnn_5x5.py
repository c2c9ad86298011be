"""The CNN with which PFLlib, FedEM and FedRep compare methods, with their widths."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.models.layered import Layered, dense_layers, image_of
from fedtailor.models.layers import (
    ConvPool,
    FlattenFeatureMaps,
    ImageConvPool,
    InitStream,
    Layer,
    Reshape,
    Stack,
)
from fedtailor.models.registry import register


@dataclass(frozen=True)
class CNN5x5(Layered):
    """Two 5x5 convolutions without padding, each with ReLU and 2x2 max-pooling, and
    dense layers.
    """

    hidden: tuple[int, ...]
    channels: tuple[int, int]
    image_shape: tuple[int, ...] | None = None
    micro_batch = 20

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        h, w, c = image_of(input_shape, self.image_shape, "the 5x5 CNN", smallest=16)
        first, second = self.channels
        # Each convolution shortens a side by 4 pixels, and each pooling halves it.
        final_h, final_w = (((side - 4) // 2 - 4) // 2 for side in (h, w))
        layers: list[Layer] = [
            Reshape((h, w, c)),
            ImageConvPool(c, first, 5, "max", stream),
            ConvPool(first, second, 5, "max", stream),
            FlattenFeatureMaps(),
            *dense_layers(final_h * final_w * second, (*self.hidden, outputs), stream),
        ]
        return Stack(layers)


@register
def cnn_5x5(
    hidden: int | Sequence[int] = 512,
    channels: Sequence[int] = (32, 64),
    image_shape: Sequence[int] | None = None,
) -> CNN5x5:
    """The CNN of the benchmarks: two 5x5 convolutions (ReLU, 2x2 max-pooling, no
    padding) and dense layers.

    For 28x28 images and ten classes the default is PFLlib's, with 582,026 parameters.
    `hidden=2048` is FedEM's for EMNIST (LEAF's, without its padding), and `hidden=(120,
    64), channels=(64, 64)` FedRep's for CIFAR-10.

    Args:
        hidden: width of the dense layer before the classes, or of each of several.
        channels: of the two convolutions.
        image_shape: as for `lenet5`.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: a width is below 1, there are not two convolutions, or (when bound)
            the inputs are not images of 16x16 or more.

    Example:
        >>> ft.models.cnn_5x5().bind((28, 28), 10).size
        582026
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if len(channels) != 2:
        raise ValueError(
            f"channels is {list(channels)}; give two numbers, one for each convolution"
        )
    for layer, layer_widths in (("hidden layer", widths), ("convolution", channels)):
        if min(layer_widths, default=1) < 1:
            raise ValueError(
                f"a {layer} of the 5x5 CNN is {min(layer_widths)} wide; it needs 1 or more"
            )
    return CNN5x5(
        widths,
        (channels[0], channels[1]),
        None if image_shape is None else tuple(image_shape),
    )
