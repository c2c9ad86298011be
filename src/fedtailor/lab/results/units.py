"""Units in which metrics are displayed."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.lab.results.tables import Number, mean_of
from fedtailor.models.metrics import find_metric


@dataclass(frozen=True)
class Unit:
    """The unit and format in which a metric is displayed.

    Attributes:
        label: label of an axis or a title.
        scale: factor from stored to displayed values.
        digits: number of decimals.
        higher_is_better: direction of the metric.
    """

    label: str
    scale: float
    digits: int
    higher_is_better: bool

    @property
    def axis(self) -> str:
        """The label of an axis, with the direction that is better."""
        return f"{self.label} ({'↑' if self.higher_is_better else '↓'} better)"

    def number(self, values: Sequence[float], mean: float | None = None) -> Number:
        """A cell with mean and deviation of stored values over seeds.

        Args:
            values: one for each seed.
            mean: used instead of their mean.
        """
        scaled = None if mean is None else self.scale * mean
        return mean_of([self.scale * value for value in values], self.digits, scaled)

    def text(self, values: Sequence[float]) -> str:
        """Mean and deviation of stored values as text, such as "82.8 ± 1.7"."""
        return self.number(values).text

    def signed(self, value: float) -> str:
        """Formats a difference in the displayed unit with its sign; zero is +0."""
        rounded = round(value, self.digits) + 0.0
        return f"{rounded:+.{self.digits}f}"


def unit_of(name: str) -> Unit:
    """The unit of the metric with the given name.

    Raises:
        ValueError: there is no such metric.
    """
    metric = find_metric(name)
    title = metric.title
    # "Loss" is a word of a sentence, "AUC" and "R2" are names.
    if title[1:2].islower():
        title = title[0].lower() + title[1:]
    if metric.unit == "%":
        return Unit(f"{title}, %", 100.0, 1, metric.higher_is_better)
    return Unit(title, 1.0, 3, metric.higher_is_better)
