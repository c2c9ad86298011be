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

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from fedtailor._base.choice import require
from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.hiding import (
    MAX_NAME_LENGTH,
    MAX_NAMES,
    RARE,
    counts_of,
    mean_and_squares,
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
        cells = shown(values, kind, least, agreed or ())
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
        mean, squares = mean_and_squares(cells.drop_nulls(), least)
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
        """Standard deviation; 1 where all numbers are equal, as far as floats tell."""
        return math.sqrt(self.squares / max(self.count, 1)) or 1.0

    def encoding(
        self, name: str, kind: Kind, agreed: Sequence[str] | None = None
    ) -> ColumnEncoding:
        """The encoding of the column.

        Raises:
            ValueError: all cells are missing, or no category is listed.
        """
        require(
            self.count > 0,
            f"no client says anything of column {name!r}: it has values in too few training"
            " rows, or mostly rare ones; take it out of the job",
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
