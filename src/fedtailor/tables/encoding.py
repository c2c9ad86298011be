"""`ColumnEncoding`: one column as inputs of a model.

It is learned by scikit-learn and kept as plain numbers and text.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Float32
from numpy.typing import NDArray

from fedtailor.tables.kinds import MAX_CATEGORIES, Kind, Parsed

MIN_ROWS = 5
"""Training rows that a category needs for an input of its own.

Rarer ones share the input "other".
"""
OTHER = "other"


@dataclass(frozen=True)
class ColumnEncoding:
    """What the training rows of the clients that train say about one column.

    Attributes:
        name: of the column.
        kind: what it holds.
        fill: in the place of a missing cell: the median of numbers and dates, the most
            frequent category or boolean.
        indicator: whether an input says that the cell is missing; so if training rows
            miss cells.
        mean, deviation: numbers and dates become (value - mean) / deviation; 0 and 1
            for the other kinds.
        categories: one input for each.
        other: whether a further input stands for all other categories; so if training
            rows have rare ones.
        date_format: how dates are written as text.
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        names = [self.name]
        if self.kind == "category":
            names = [f"{self.name} = {category}" for category in self.categories]
            if self.other:
                names.append(f"{self.name} = ({OTHER})")
        if self.indicator:
            names.append(f"{self.name} is missing")
        return tuple(names)

    def encode(self, values: pl.Series, out: Float32[NDArray, "rows inputs"]) -> None:
        """Write the inputs of parsed values (null where missing) into `out`.

        Unknown categories are "other", or all zeros.
        """
        width = len(self.inputs) - self.indicator
        filled = values.fill_null(self.fill)
        if self.kind == "category":
            # "other" is the last input; without it, `width` stands for none.
            unknown = width - self.other
            known = list(range(len(self.categories)))
            codes = filled.replace_strict(
                list(self.categories), known, default=unknown
            ).to_numpy()
            out[:, :width] = 0
            rows = np.flatnonzero(codes < width)
            out[rows, codes[rows]] = 1
        else:
            # In float64: the difference of two dates would be lost in float32. What is
            # too large for that is infinite.
            with np.errstate(over="ignore"):
                out[:, 0] = (filled.to_numpy() - self.mean) / self.deviation
        if self.indicator:
            out[:, width] = values.is_null().to_numpy()

    def unknown(self, values: pl.Series) -> pl.Series:
        """Which cells [rows] hold a category that no input stands for."""
        if self.kind != "category" or self.other:
            return pl.Series([False] * len(values))
        return ~values.is_in(list(self.categories)).fill_null(True)


def fit_column(name: str, column: Parsed, train: pl.Series) -> ColumnEncoding:
    """Learn a column's encoding from its training rows.

    Args:
        name: of the column.
        column: its parsed cells, in all rows.
        train: a mask of the rows to learn from; one cell in them at least is not
            missing.
    """
    values = column.values.filter(train)
    indicator = values.null_count() > 0
    if column.kind == "category":
        # Numbers in the order of the texts stand for them: scikit-learn is twenty times
        # as fast on numbers.
        texts = values.drop_nulls().unique().sort()
        codes = values.rank("dense").cast(pl.Float64).to_numpy() - 1
        fill = _impute(codes, "most_frequent")
        frequent, other = _frequent_categories(np.where(np.isnan(codes), fill, codes))
        return ColumnEncoding(
            name,
            column.kind,
            texts[int(fill)],
            indicator,
            categories=tuple(texts[code] for code in frequent),
            other=other,
        )
    numbers = values.to_numpy().astype(np.float64)
    if column.kind == "boolean":
        fill = _impute(numbers, "most_frequent")
        return ColumnEncoding(name, column.kind, fill, indicator)
    fill = _impute(numbers, "median")
    mean, deviation = _standardise(np.where(np.isnan(numbers), fill, numbers))
    return ColumnEncoding(
        name,
        column.kind,
        fill,
        indicator,
        mean,
        deviation,
        date_format=column.date_format,
    )


def _impute(values: Float[NDArray, " rows"], strategy: str) -> float:
    from sklearn.impute import SimpleImputer

    imputer: Any = SimpleImputer(strategy=strategy).fit(values[:, None])
    return float(imputer.statistics_[0])


def _standardise(values: Float[NDArray, " rows"]) -> tuple[float, float]:
    from sklearn.preprocessing import StandardScaler

    scaler: Any = StandardScaler().fit(values[:, None])
    return float(scaler.mean_[0]), float(scaler.scale_[0])


def _frequent_categories(codes: Float[NDArray, " rows"]) -> tuple[list[int], bool]:
    """The codes with an input of their own, sorted, and whether others were seen."""
    from sklearn.preprocessing import OneHotEncoder

    encoder: Any = OneHotEncoder(
        min_frequency=MIN_ROWS,
        max_categories=MAX_CATEGORIES + 1,
        handle_unknown="infrequent_if_exist",
    ).fit(codes[:, None])
    infrequent = encoder.infrequent_categories_[0]
    rare = set() if infrequent is None else set(infrequent)
    frequent = [int(code) for code in encoder.categories_[0] if code not in rare]
    return frequent, bool(rare)
