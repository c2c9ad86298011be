"""How accuracies and losses are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


UNITS: Mapping[str, Unit] = {"accuracy": Unit("accuracy, %", 100.0, 1, True), "loss": Unit("loss", 1.0, 3, False)}
"""By the name of the metric."""
