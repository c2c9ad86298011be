"""Statistics of columns that are distributed over several tables.

Each client computes counts and sums of its own rows, which are then added up, so that
no rows are sent. Missing numbers are imputed by the mean; `fit_column`, which has all
rows, uses the median.
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
    MAX_DECORRELATED_INPUTS,
    Decorrelation,
    centered_products,
    decorrelation_from_moments,
)
from fedtailor.tables.encoding import MIN_ROWS, ColumnEncoding
from fedtailor.tables.kinds import MAX_CATEGORIES, Kind

MAX_NAMES = 1000
"""The largest number of categories of a column that a client sends."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Name = Annotated[str, Field(max_length=200)]


class ColumnSums(BaseModel):
    """Counts and sums of a column over some rows.

    Single rows cannot be reconstructed from them, unless there are very few rows.

    Attributes:
        count: number of cells that are not missing.
        missing: number of missing cells.
        mean: mean of the numbers (days for dates, 0 and 1 for booleans).
        squares: sum of the squared deviations from the mean.
        categories: number of rows of each category that is listed.
        rare: number of rows of all other categories.
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
        """Compute the sums of parsed cells, with null for missing cells.

        Args:
            values: the cells.
            kind: kind of the column.
            agreed: the categories to list. By default those with at least `MIN_ROWS`
                rows are listed, so that no single row is revealed.
        """
        present = values.drop_nulls()
        count, missing = len(present), values.null_count()
        if kind != "category":
            mean = float(present.mean() or 0.0)  # type: ignore[arg-type]
            squares = float(((present - mean) ** 2).sum())
            return ColumnSums(count=count, missing=missing, mean=mean, squares=squares)
        row_counts = dict(present.value_counts(sort=True).iter_rows())
        if agreed:
            categories = {name: row_counts.get(name, 0) for name in agreed}
        else:
            most_frequent = list(row_counts.items())[:MAX_NAMES]
            categories = {
                name: rows for name, rows in most_frequent if rows >= MIN_ROWS
            }
        rare = count - sum(categories.values())
        return ColumnSums(
            count=count, missing=missing, categories=categories, rare=rare
        )

    def __add__(self, other: "ColumnSums") -> "ColumnSums":
        """The sums over the rows of both.

        The formulae of Chan, Golub and LeVeque (1979, Updating Formulae) avoid
        cancellation.
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
        """The encoding of the column.

        Raises:
            ValueError: all cells are missing, or no category is listed.
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
    """Mean and products of encoded inputs over some rows, for their decorrelation.

    Attributes:
        count: number of rows.
        mean: [inputs] mean of the rows.
        products: [inputs (inputs + 1) / 2] the upper triangle, row by row, of the sum
            of the outer products of the rows' deviations from the mean.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    count: Count
    mean: Annotated[
        tuple[float, ...], Field(strict=False, max_length=MAX_DECORRELATED_INPUTS)
    ]
    products: Annotated[
        tuple[float, ...],
        Field(
            strict=False,
            max_length=MAX_DECORRELATED_INPUTS * (MAX_DECORRELATED_INPUTS + 1) // 2,
        ),
    ]

    @staticmethod
    def of(x: Float32[NDArray, "rows inputs"]) -> "InputSums":
        """Compute the sums of encoded rows.

        Raises:
            ValueError: there are not more rows than inputs. The rows could then be
                reconstructed from their products, up to a rotation.
        """
        rows, inputs = x.shape
        require(
            rows > inputs,
            f"its {rows} training rows are not more than the {inputs} inputs: sums of"
            " products would give them away (set decorrelate = false in the job)",
        )
        mean, products = centered_products(x)
        return InputSums(
            count=rows, mean=tuple(mean.tolist()), products=_upper_triangle(products)
        )

    def __add__(self, other: "InputSums") -> "InputSums":
        """The sums over the rows of both, by the formulae of `ColumnSums`."""
        count = self.count + other.count
        step = np.subtract(other.mean, self.mean)
        mean = np.array(self.mean) + step * (other.count / count)
        between = np.outer(step, step) * (self.count * other.count / count)
        products = self.matrix() + other.matrix() + between
        return InputSums(
            count=count, mean=tuple(mean.tolist()), products=_upper_triangle(products)
        )

    def fits(self, inputs: int) -> bool:
        """Whether these are sums of this number of inputs."""
        return (
            len(self.mean) == inputs
            and len(self.products) == inputs * (inputs + 1) // 2
            and self.count > 0
        )

    def decorrelation(self) -> Decorrelation | None:
        """The decorrelation of the rows; None if all rows are equal."""
        return decorrelation_from_moments(
            np.array(self.mean), self.matrix() / self.count
        )

    def matrix(self) -> Float64[NDArray, "inputs inputs"]:
        """The whole symmetric matrix of products."""
        size = len(self.mean)
        matrix = np.zeros((size, size))
        matrix[np.triu_indices(size)] = self.products
        return matrix + np.triu(matrix, 1).T


def _upper_triangle(matrix: Float64[NDArray, "inputs inputs"]) -> tuple[float, ...]:
    return tuple(matrix[np.triu_indices(len(matrix))].tolist())
