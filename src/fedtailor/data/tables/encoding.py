"""`ColumnEncoding`: the encoding of one column as inputs of a model.

It follows from sums over the training rows (`fedtailor.data.tables.sums.ColumnSums`), and is
stored as plain numbers and text.
"""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.tables.kinds import Kind

OTHER = "other"


@dataclass(frozen=True)
class ColumnEncoding:
    """The encoding of a column, fitted to the training rows of seen clients.

    Attributes:
        name: name of the column.
        kind: kind of its values.
        fill: the value for missing cells: the mean for numbers and dates, and the most
            frequent value for categories and booleans.
        indicator: whether there is an input that is 1 for missing cells. There is one
            if cells are missing in training rows.
        mean, deviation: numbers and dates become (value - mean) / deviation; 0 and 1
            for other kinds.
        categories: categories that have an input.
        other: whether there is an input for all other categories. There is one if
            training rows have infrequent categories.
        date_format: format of dates that are stored as text.
        unit: what stands after every number that is stored as text.
    """

    name: str
    kind: Kind
    fill: float | str
    indicator: bool
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    other: bool = False
    date_format: str | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        # Of a file of somebody else, too.
        is_text = isinstance(self.fill, str)
        require(
            is_text == (self.kind == "category"),
            f"missing cells of {self.name!r} become {self.fill!r}, which is no {self.kind}",
        )
        require(
            len(set(self.categories)) == len(self.categories),
            f"a category of {self.name!r} stands there twice",
        )
        require(self.deviation > 0, f"the deviation of {self.name!r} is not above 0")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        names = [self.name]
        if self.kind == "category":
            names = [f"{self.name} = {category}" for category in self.categories]
            if self.other:
                names.append(f"{self.name} = ({OTHER})")
        if self.indicator:
            names.append(f"{self.name} is missing")
        return tuple(names)

    @property
    def fill_text(self) -> str:
        """The value for missing cells, for a sentence."""
        if isinstance(self.fill, float):
            return f"{self.fill:.6g}"
        return repr(self.fill)

    def encode(
        self,
        values: pl.Series,
        out: Float[NDArray, "rows inputs"],
        most: float = math.inf,
    ) -> None:
        """Encode parsed values, with null for missing cells, and write them to `out`.

        Unknown categories are encoded as "other", or as zeros if there is no such
        input. Numbers that become larger than `most` count as so large.
        """
        width = len(self.inputs) - self.indicator
        filled = values.fill_null(self.fill)
        if self.kind == "category":
            # The code of an unknown category is that of "other", which is the last
            # input, or `width` if there is no such input.
            codes = filled.replace_strict(
                list(self.categories),
                list(range(len(self.categories))),
                default=width - self.other,
            ).to_numpy()
            out[:, :width] = 0
            rows = np.flatnonzero(codes < width)
            out[rows, codes[rows]] = 1
        else:
            # Compute in float64, as float32 is too coarse for dates. Values that
            # overflow in float32 become infinite.
            with np.errstate(over="ignore"):
                scaled = (filled.to_numpy() - self.mean) / self.deviation
                out[:, 0] = np.clip(scaled, -most, most)
        if self.indicator:
            out[:, width] = values.is_null().to_numpy()

    def unknown(self, values: pl.Series) -> pl.Series:
        """A mask [rows] of cells with a category that has no input."""
        if self.kind != "category" or self.other:
            return pl.Series([False] * len(values))
        return ~values.is_in(list(self.categories)).fill_null(True)
