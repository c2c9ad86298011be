"""Statistics of columns, from which their encodings follow.

A table on one machine is one part, whose sums are of all training rows. In a federation
of machines each client is a part: it computes counts and sums of its own rows, which are
then added up, so that no rows are sent.

A client sends no count of fewer than `MIN_ROWS` rows either, nor one from which it follows.
What it sends are the sums of another table, in which small groups of rows are hidden
(`fedtailor.data.tables.hiding`).
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import numpy as np
import polars as pl
from jaxtyping import Bool, Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedtailor._base.choice import require
from fedtailor.data.tables.decorrelation import (
    MAX_DECORRELATED_INPUTS,
    Decorrelation,
    centered_products,
    decorrelation_from_moments,
)
from fedtailor.data.tables.encoding import MIN_ROWS, ColumnEncoding
from fedtailor.data.tables.hiding import (
    MAX_NAME_LENGTH,
    MAX_NAMES,
    RARE,
    counts_of,
    multipliable,
    shown,
)
from fedtailor.data.tables.kinds import MAX_CATEGORIES, Kind

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
            agreed: categories that are listed in any case.
            least: the least rows of a group (see `hiding.shown`); 1 = sums of all rows as
                they are, which do not leave this machine.
        """
        cells = shown(values, kind, least)
        missing = cells.null_count()
        count = len(cells) - missing
        if kind == "category":
            names, rows = counts_of(cells)
            categories = dict.fromkeys(agreed or (), 0)
            categories |= dict(zip(names.tolist(), rows.tolist(), strict=True))
            rare = categories.pop(RARE, 0)
            return ColumnSums.model_construct(
                count=count, missing=missing, categories=categories, rare=rare
            )
        if not count:
            return ColumnSums(missing=missing)
        numbers = cells.drop_nulls()
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
        cells: Sequence[pl.Series], columns: Sequence[ColumnEncoding]
    ) -> "InputSums":
        """Compute the sums of the inputs of columns, as they are shown (see `hiding`).

        Products of inputs that would lead to few rows are 0, as if these inputs were
        uncorrelated with all others.

        Args:
            cells: the parsed cells of each column, with null for missing ones.
            columns: their encodings.

        Raises:
            ValueError: there are not more rows than inputs, or few rows.
        """
        x = np.empty((len(cells[0]), sum(len(it.inputs) for it in columns)))
        gaps, start = list[tuple[slice, int]](), 0
        cells = [
            shown(it, column.kind) for it, column in zip(cells, columns, strict=True)
        ]
        for values, column in zip(cells, columns, strict=True):
            end = start + len(column.inputs)
            column.encode(values, x[:, start:end])
            if column.indicator:
                gaps.append((slice(start, end - 1), end - 1))
            start = end
        is_sent = np.repeat(
            multipliable(cells, [column.kind for column in columns]),
            [len(column.inputs) for column in columns],
        )
        # All is computed with gaps that have the mean of this client's other cells. What
        # is sent are the sums with the value that all clients put there, which follow from
        # these: the value is not this client's to choose, and could say where gaps are.
        filling = np.eye(x.shape[1])
        for places, indicator in gaps:
            is_gap = x[:, indicator] == 1
            if is_gap.any() and not is_gap.all():
                mean = x[~is_gap, places].mean(axis=0)
                filling[indicator, places] = x[is_gap, places][0] - mean
                x[is_gap, places] = mean
        return InputSums.of_inputs(x, is_sent, filling)

    @staticmethod
    def of_inputs(
        x: Float64[NDArray, "rows inputs"],
        is_sent: Bool[NDArray, " inputs"] | None,
        filling: Float64[NDArray, "inputs inputs"] | None = None,
    ) -> "InputSums":
        """Compute the sums of x @ filling.

        Args:
            x: the inputs of the rows, where missing cells have the mean of the others.
            is_sent: the inputs whose products with each other are sent; None = the sums
                of rows as they are, which do not leave this machine.
            filling: what adds other values for missing cells; None = they keep the mean.

        Raises:
            ValueError: there are not more rows than inputs, or few rows. The rows could
                then be reconstructed from their products, up to a rotation.
        """
        rows, inputs = x.shape
        require(
            is_sent is None or (rows > inputs and rows >= MIN_ROWS),
            f"its {rows} training rows are not more than the {inputs} inputs, or fewer"
            f" than {MIN_ROWS}: sums of products would give them away (leave inputs"
            " correlated: keep_correlated of a job or a table)",
        )
        mean, products = centered_products(x)
        if is_sent is not None:
            products *= np.outer(is_sent, is_sent) | np.eye(inputs, dtype=np.bool_)
        if filling is not None:
            mean, products = mean @ filling, filling.T @ products @ filling
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
