"""A small model with batch normalisation, for the problems of `classification` and
small images.
"""

import math
from dataclasses import dataclass
from typing import Any

from fedtailor.models import Model
from fedtailor.models.layered import Layered
from fedtailor.models.layers import Dense, InitStream, Relu, Reshape, Stack
from fedtailor.models.normalization import BatchNorm


@dataclass(frozen=True)
class Normal(Layered):
    """Batch normalisation between two dense layers; no path says so."""

    width: int = 4

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Any:
        size, width = math.prod(input_shape), self.width
        layers = [
            Dense(size, width, stream),
            BatchNorm(width),
            Relu(),
            Dense(width, outputs, stream),
        ]
        return Stack(layers if input_shape == (size,) else [Reshape((size,)), *layers])


def normal() -> Model:
    """`Normal` in double precision."""
    return Normal().bind((4,), 3, dtype="float64")
