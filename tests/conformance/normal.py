"""A small model with batch normalisation, for the problems of `classification`."""

from dataclasses import dataclass
from typing import Any

from fedtailor.models import Model
from fedtailor.models.layered import Layered
from fedtailor.models.layers import Dense, InitStream, Relu, Stack
from fedtailor.models.normalization import BatchNorm


@dataclass(frozen=True)
class Normal(Layered):
    """Batch normalisation between two dense layers; no path says so."""

    def network(self, input_shape: tuple[int, ...], outputs: int, stream: InitStream) -> Any:
        return Stack([Dense(input_shape[0], 4, stream), BatchNorm(4), Relu(), Dense(4, outputs, stream)])


def normal() -> Model:
    """`Normal` in double precision."""
    return Normal().bind((4,), 3, dtype="float64")
