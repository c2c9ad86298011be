"""How accuracies and losses are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedtailor.report.tables import mean_and_deviation


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

    def text(self, values: Sequence[float]) -> str:
        """Mean ± deviation over seeds."""
        return mean_and_deviation([self.scale * value for value in values], self.digits)


UNITS: Mapping[str, Unit] = {"accuracy": Unit("accuracy, %", 100.0, 1, True), "loss": Unit("loss", 1.0, 3, False)}
"""By the name of the metric."""
