"""How metrics are shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.metrics import find_metric
from fedtailor.report.tables import Number, mean_of


@dataclass(frozen=True)
class Unit:
    """How a metric is shown.

    Attributes:
        label: what an axis or a title says.
        scale: factor from stored to shown values.
        digits: after the point.
        higher_is_better: whether it is.
    """

    label: str
    scale: float
    digits: int
    higher_is_better: bool

    @property
    def axis(self) -> str:
        """The label of an axis, with the direction that is better."""
        return f"{self.label} ({'↑' if self.higher_is_better else '↓'} better)"

    def number(self, values: Sequence[float]) -> Number:
        """Mean and deviation over seeds, in the unit that is shown."""
        return mean_of([self.scale * value for value in values], self.digits)

    def text(self, values: Sequence[float]) -> str:
        """The same as text: "82.8 ± 1.7"."""
        return self.number(values).text

    def signed(self, value: float) -> str:
        """A difference in the unit that is shown, with its sign.

        What is rounded to zero is +0, never -0.
        """
        rounded = round(value, self.digits) + 0.0
        return f"{rounded:+.{self.digits}f}"


def unit_of(name: str) -> Unit:
    """How the metric of that name is shown.

    Raises:
        ValueError: there is no such metric.
    """
    metric = find_metric(name)
    title = metric.title
    # "Loss" is a word of a sentence, "AUC" is a name.
    if not title[1:2].isupper():
        title = title[0].lower() + title[1:]
    if metric.unit == "%":
        return Unit(f"{title}, %", 100.0, 1, metric.higher_is_better)
    return Unit(title, 1.0, 3, metric.higher_is_better)
