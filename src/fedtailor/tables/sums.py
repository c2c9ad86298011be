"""Statistics of columns, from which their encodings follow.

A table on one machine is one part, whose sums are of all training rows. In a federation
of machines each client is a part: it computes counts and sums of its own rows, which are
then added up, so that no rows are sent.

A client sends no count of fewer than `MIN_ROWS` rows either, nor one from which it follows
as a difference (the number of all rows is known). What it sends are the sums of a table in
which each smaller group of rows is counted to the largest one: the rows of rare categories,
the missing cells, the rows whose value is not that of all others. A column that has values
in fewer rows is sent as one without values.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

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

MAX_NAMES, MAX_NAME_LENGTH = 1000, 200
"""The largest number of categories of a column that a client sends, and of characters of
one's name.
"""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]


class ColumnSums(BaseModel):
    """Counts and sums of a column over some rows.

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
        values: pl.Series,
        kind: Kind,
        agreed: Sequence[str] | None = None,
        least: int = MIN_ROWS,
    ) -> "ColumnSums":
        """Compute the sums of parsed cells, with null for missing cells.

        Args:
            values: the cells.
            kind: kind of the column.
            agreed: the categories to list; by default those that have enough rows.
            least: groups of fewer rows are counted to the largest one; 1 = sums of all
                rows as they are, which do not leave this machine.
        """
        if kind == "category":
            return _category_sums(values, agreed, least)
        numbers, missing = shown_numbers(values, kind, least)
        count = len(values) - missing
        if not count:
            return ColumnSums(missing=missing)
        mean = float(numbers.mean() or 0.0)  # type: ignore[arg-type]
        squares = float(((numbers - mean) ** 2).sum())
        return ColumnSums.model_construct(
            count=count, missing=missing, mean=mean, squares=squares
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
            f"column {name!r} has values in fewer than {MIN_ROWS} training rows of every"
            " client; take it out of the job",
        )
        indicator = self.missing > 0
        if kind == "category":
            alphabetical = sorted(self.categories)
            frequent = sorted(
                alphabetical, key=self.categories.__getitem__, reverse=True
            )
            require(
                bool(frequent),
                f"column {name!r} has no category in {MIN_ROWS} training rows of a"
                " client; list them in the job",
            )
            if agreed is not None:
                return ColumnEncoding(
                    name, kind, frequent[0], indicator, categories=tuple(agreed)
                )
            kept = [
                category
                for category in frequent[:MAX_CATEGORIES]
                if self.categories[category] >= MIN_ROWS
            ]
            return ColumnEncoding(
                name,
                kind,
                frequent[0],
                indicator,
                categories=tuple(sorted(kept)),
                other=self.rare > 0 or len(kept) < len(frequent),
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
    def of(
        x: Float32[NDArray, "rows inputs"], columns: Sequence[ColumnEncoding] = ()
    ) -> "InputSums":
        """Compute the sums of encoded rows, in which no few rows stand alone (see
        `without_few_rows`). Of several columns together the products may count fewer
        rows.

        Args:
            x: the rows.
            columns: the columns whose inputs these are, in their order.

        Raises:
            ValueError: there are not more rows than inputs, or few rows. The rows could
                then be reconstructed from their products, up to a rotation.
        """
        rows, inputs = x.shape
        require(
            rows > inputs and rows >= MIN_ROWS,
            f"its {rows} training rows are not more than the {inputs} inputs, or fewer"
            f" than {MIN_ROWS}: sums of products would give them away (leave inputs"
            " correlated: decorrelate = false in a job, keep_correlated of a table)",
        )
        return InputSums.of_all(without_few_rows(x, columns))

    @staticmethod
    def of_all(x: Float32[NDArray, "rows inputs"]) -> "InputSums":
        """The sums of rows as they are, which do not leave this machine."""
        mean, products = centered_products(x)
        return InputSums(
            count=len(x), mean=tuple(mean.tolist()), products=_upper_triangle(products)
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


def _row_counts(values: pl.Series) -> dict[Any, int]:
    """The number of rows of each value that is not missing, the most frequent first."""
    counts = values.drop_nulls().rename("value").value_counts(name="rows")
    in_order = counts.sort("rows", "value", descending=[True, False])
    return dict(in_order.iter_rows())


def shown_numbers(
    values: pl.Series, kind: Kind, least: int = MIN_ROWS
) -> tuple[pl.Series, int]:
    """The numbers of a column as they are counted.

    Args:
        values: the cells, with null for missing ones.
        kind: kind of the column, which is not "category".
        least: see `ColumnSums.of`.

    Returns:
        The numbers, and how many cells count as missing. All other cells that are not
        among the numbers count as their mean.
    """
    row_counts = _row_counts(values)
    count = sum(row_counts.values())
    mode = next(iter(row_counts), None)
    numbers = values.drop_nulls()
    if count < least or (kind == "boolean" and row_counts[mode] < least):
        return numbers.clear(), len(values)
    if count - row_counts[mode] < least <= row_counts[mode]:
        numbers = pl.repeat(mode, count, dtype=values.dtype, eager=True)
    if len(values) - count >= least:
        return numbers, len(values) - count
    # Few cells are missing. They are counted as the mean, which does not change by that;
    # but yes and no have no cells between them.
    if kind == "boolean":
        added = len(values) - len(numbers)
        numbers = numbers.append(pl.repeat(mode, added, dtype=values.dtype, eager=True))
    return numbers, 0


def _category_sums(
    values: pl.Series, agreed: Sequence[str] | None, least: int
) -> ColumnSums:
    """`ColumnSums.of` categories."""
    row_counts, rows = _row_counts(values), len(values)
    # Categories without enough rows are rare ones, and if these are few together they
    # are counted to the largest category. So are rows in which it is missing.
    categories = dict.fromkeys(agreed or (), 0)
    if sum(row_counts.values()) < least:
        return ColumnSums(missing=rows, categories=categories)
    listed = row_counts.keys() if agreed is None else agreed
    for name in list(row_counts)[:MAX_NAMES]:
        is_short = least == 1 or len(name) <= MAX_NAME_LENGTH
        if name in listed and row_counts[name] >= least and is_short:
            categories[name] = row_counts[name]
    count = sum(row_counts.values())
    rare, missing = count - sum(categories.values()), rows - count
    largest = max(categories, key=categories.__getitem__, default=None)
    if largest is not None and categories[largest] > 0 and rare < least:
        categories[largest] += rare
        rare = 0
    if missing < least:
        if largest is not None and categories[largest] > 0:
            categories[largest] += missing
        else:
            rare += missing
        missing = 0
    return ColumnSums.model_construct(
        count=rows - missing, missing=missing, categories=categories, rare=rare
    )


def without_few_rows(
    x: Float32[NDArray, "rows inputs"], columns: Sequence[ColumnEncoding] = ()
) -> Float32[NDArray, "rows inputs"]:
    """Inputs in which no group of fewer than `MIN_ROWS` rows differs from the others.

    An input that is the same in all but a few rows is so in all. Rows of a category that
    few rows have are counted to the largest one: else the inputs of the other categories
    together would show what these rows hold. A few gaps of numbers are filled with the
    mean of the others here: the mean of all clients may be far from it, and would show
    where the gaps are.

    Args:
        x: the rows.
        columns: see `InputSums.of`.
    """
    x, start = x.copy(), 0
    for column in columns:
        width = len(column.inputs) - column.indicator
        if column.kind == "category":
            _count_to_largest(x[:, start : start + width])
        elif column.kind in ("number", "date"):
            _fill_few_gaps(x[:, start])
        start += len(column.inputs)
    for index in range(x.shape[1]):
        values, counts = np.unique(x[:, index], return_counts=True)
        most = int(counts.argmax())
        if len(x) - counts[most] < MIN_ROWS <= counts[most]:
            x[:, index] = values[most]
    return x


def _count_to_largest(x: Float32[NDArray, "rows categories"]) -> None:
    """Count rows of categories with few rows to the largest one, in place."""
    width = x.shape[1]
    # Rows of a category that has no input are zeros.
    codes = np.where(x.any(axis=1), x.argmax(axis=1), width)
    counts = np.bincount(codes, minlength=width + 1)
    largest, few = int(counts.argmax()), counts[codes] < MIN_ROWS
    x[few] = 0
    if largest < width:
        x[few, largest] = 1


def _fill_few_gaps(x: Float32[NDArray, " rows"]) -> None:
    """Fill a few gaps of a standardised column with the mean of the others, in place.

    Gaps have been filled with the pooled mean, which is 0.
    """
    gaps = x == 0
    if 0 < gaps.sum() < min(MIN_ROWS, len(x)):
        x[gaps] = x[~gaps].mean(dtype=np.float64)


def _upper_triangle(matrix: Float64[NDArray, "inputs inputs"]) -> tuple[float, ...]:
    return tuple(matrix[np.triu_indices(len(matrix))].tolist())
