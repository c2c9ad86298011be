"""What several tables teach about a column together.

Each gives counts and sums of its own rows, and these add up. For clients that keep
their rows. Where `fit_column` sees all rows and imputes the median, here it is the
mean.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import numpy as np
import polars as pl
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedtailor.protocol import require
from fedtailor.tables.decorrelation import (
    MOST_INPUTS,
    Decorrelation,
    centred_products,
    decorrelation_of,
)
from fedtailor.tables.encoding import MIN_ROWS, ColumnEncoding
from fedtailor.tables.kinds import MAX_CATEGORIES, Kind

MAX_NAMES = 1000
"""Categories of one column that a client can name."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Name = Annotated[str, Field(max_length=200)]


class ColumnSums(BaseModel):
    """Counts and sums of a column over some rows.

    No row can be told from them unless there are very few.

    Attributes:
        count: cells that are not missing.
        missing: cells that are.
        mean: of the numbers (days of dates; 0 and 1 of booleans).
        squares: sum of their squared deviations from the mean.
        categories: rows of each category that is named.
        rare: rows of those that are not.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    count: Count = 0
    missing: Count = 0
    mean: float = 0.0
    squares: Annotated[float, Field(ge=0)] = 0.0
    categories: Annotated[dict[Name, Count], Field(max_length=MAX_NAMES)] = field(
        default_factory=dict
    )
    rare: Count = 0

    @staticmethod
    def of(
        values: pl.Series, kind: Kind, agreed: Sequence[str] | None = None
    ) -> "ColumnSums":
        """The sums of parsed cells (null where missing).

        Args:
            agreed: the only categories that there are. Without them, those of at least
                5 rows are named, so that no single row shows.
        """
        present = values.drop_nulls()
        count, missing = len(present), values.null_count()
        if kind != "category":
            mean = float(present.mean() or 0.0)  # type: ignore[arg-type]
            squares = float(((present - mean) ** 2).sum())
            return ColumnSums(count=count, missing=missing, mean=mean, squares=squares)
        rows_of = dict(present.value_counts(sort=True).iter_rows())
        if agreed:
            categories = {name: rows_of.get(name, 0) for name in agreed}
        else:
            most_frequent = list(rows_of.items())[:MAX_NAMES]
            categories = {
                name: rows for name, rows in most_frequent if rows >= MIN_ROWS
            }
        rare = count - sum(categories.values())
        return ColumnSums(
            count=count, missing=missing, categories=categories, rare=rare
        )

    def __add__(self, other: "ColumnSums") -> "ColumnSums":
        """The sums over the rows of both.

        By the formulae of Chan, Golub and LeVeque (1979, Updating Formulae), in which
        nothing cancels.
        """
        count = self.count + other.count
        share = other.count / count if count else 0.0
        step = other.mean - self.mean
        names = self.categories | other.categories
        return ColumnSums.model_construct(
            count=count,
            missing=self.missing + other.missing,
            mean=self.mean + step * share,
            squares=self.squares + other.squares + step * step * self.count * share,
            categories={
                name: self.categories.get(name, 0) + other.categories.get(name, 0)
                for name in names
            },
            rare=self.rare + other.rare,
        )

    @property
    def deviation(self) -> float:
        """Standard deviation; 1 where all numbers are equal."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0

    def encoding(
        self, name: str, kind: Kind, agreed: Sequence[str] | None = None
    ) -> ColumnEncoding:
        """How the column becomes inputs.

        Raises:
            ValueError: there is nothing to learn from.
        """
        require(
            self.count > 0,
            f"column {name!r} is missing in all training rows; take it out of the job",
        )
        indicator = self.missing > 0
        if kind == "category":
            alphabetical = sorted(self.categories)
            frequent = sorted(
                alphabetical, key=self.categories.__getitem__, reverse=True
            )
            kept = sorted(frequent[:MAX_CATEGORIES]) if agreed is None else list(agreed)
            require(
                bool(frequent) and self.categories[frequent[0]] > 0,
                f"column {name!r} has no category in {MIN_ROWS} training rows of a"
                " client; list them in the job",
            )
            other = agreed is None and (self.rare > 0 or len(frequent) > MAX_CATEGORIES)
            return ColumnEncoding(
                name, kind, frequent[0], indicator, categories=tuple(kept), other=other
            )
        if kind == "boolean":
            return ColumnEncoding(name, kind, float(self.mean >= 0.5), indicator)
        return ColumnEncoding(
            name, kind, self.mean, indicator, self.mean, self.deviation
        )


class InputSums(BaseModel):
    """Means and products of encoded inputs over some rows.

    From those of all clients together the inputs can be decorrelated.

    Attributes:
        count: of the rows.
        mean: [inputs].
        products: [inputs (inputs + 1) / 2] the upper triangle, row by row, of the sum
            of the outer products of the rows' deviations from the mean.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    count: Count
    mean: Annotated[tuple[float, ...], Field(strict=False, max_length=MOST_INPUTS)]
    products: Annotated[
        tuple[float, ...],
        Field(strict=False, max_length=MOST_INPUTS * (MOST_INPUTS + 1) // 2),
    ]

    @staticmethod
    def of(x: Float32[NDArray, "rows inputs"]) -> "InputSums":
        """The sums of encoded rows.

        Raises:
            ValueError: there are no more rows than inputs: they would follow from their
                products, up to a rotation.
        """
        rows, inputs = x.shape
        require(
            rows > inputs,
            f"its {rows} training rows are not more than the {inputs} inputs: sums of"
            " products would give them away (set decorrelate = false in the job)",
        )
        mean, products = centred_products(x)
        return InputSums(
            count=rows, mean=tuple(mean.tolist()), products=_triangle(products)
        )

    def __add__(self, other: "InputSums") -> "InputSums":
        """The sums over the rows of both, as those of columns."""
        count = self.count + other.count
        step = np.subtract(other.mean, self.mean)
        mean = np.array(self.mean) + step * (other.count / count)
        between = np.outer(step, step) * (self.count * other.count / count)
        products = self._matrix() + other._matrix() + between
        return InputSums(
            count=count, mean=tuple(mean.tolist()), products=_triangle(products)
        )

    def fits(self, inputs: int) -> bool:
        """Whether these are sums of so many inputs."""
        return (
            len(self.mean) == inputs
            and len(self.products) == inputs * (inputs + 1) // 2
            and self.count > 0
        )

    def decorrelation(self) -> Decorrelation | None:
        """What decorrelates the rows; None where they do not vary."""
        return decorrelation_of(np.array(self.mean), self._matrix() / self.count)

    def _matrix(self) -> Float64[NDArray, "inputs inputs"]:
        size = len(self.mean)
        matrix = np.zeros((size, size))
        matrix[np.triu_indices(size)] = self.products
        return matrix + np.triu(matrix, 1).T


def _triangle(matrix: Float64[NDArray, "inputs inputs"]) -> tuple[float, ...]:
    return tuple(matrix[np.triu_indices(len(matrix))].tolist())
