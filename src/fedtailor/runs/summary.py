"""One run in numbers."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Summary:
    """One run in numbers.

    Attributes:
        metric: what the run is judged by: by default the accuracy, or the loss where
            there are no classes.
        mean: of `metric` over clients, of their personal models on their own test
            splits after the last round.
        worst: the worst client's.
        worst10: the mean of the worst tenth of the clients.
        std: the standard deviation over clients.
        unseen_mean: mean over clients that never took part; None where there are none.
        streams: distinct models sent down in the last round.
        models_down: distinct models sent (multicast), probe and delivery included.
        models_down_unicast: models sent if every client had to be sent its own copy.
        models_up: models (and gradients, controls) sent by clients.
        bytes_down, bytes_up: bytes of everything that was sent, multicast, without
            single numbers (a loss, a weight): `Run.ledger.totals()` counts those as
            scalars.
        seconds: wall time, evaluation and compilation included; of trainings that share
            the devices' time, a share.
        seconds_per_round: median wall time of a round without evaluation, likewise.
        client_epsilon, example_epsilon: what was given away by the guarantees of
            differential privacy that there are, the largest of a client: of whole
            clients, of single examples; None where nothing is promised.
    """

    algorithm: str
    federation: str
    rounds: int
    seed: int
    clients: int
    metric: str
    mean: float
    worst: float
    worst10: float
    std: float
    unseen_mean: float | None
    streams: int
    models_down: int
    models_down_unicast: int
    models_up: int
    bytes_down: int
    bytes_up: int
    seconds: float
    seconds_per_round: float
    client_epsilon: float | None = None
    example_epsilon: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """All fields by name; an epsilon only where privacy is promised."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None or not name.endswith("_epsilon")
        }

    def __str__(self) -> str:
        width = max(len(field.name) for field in fields(self))
        lines = [
            f"{name:<{width}}  {_short(value)}"
            for name, value in self.as_dict().items()
        ]
        return "\n".join(lines)


def spread(
    values: NDArray[np.float64], higher_is_better: bool = True
) -> dict[str, float]:
    """How a metric varies over clients.

    Args:
        values: [c], one for each client.
        higher_is_better: direction of the metric.

    Returns:
        "mean", "worst", "worst10" (the mean of the worst tenth, at least one client)
        and "std"; NaN for no clients.
    """
    if not len(values):
        return dict.fromkeys(("mean", "worst", "worst10", "std"), float("nan"))
    worst_first = np.sort(values) if higher_is_better else np.sort(values)[::-1]
    worst_tenth = worst_first[: max(len(values) // 10, 1)]
    return {
        "mean": float(values.mean()),
        "worst": float(worst_first[0]),
        "worst10": float(worst_tenth.mean()),
        "std": float(values.std()),
    }


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
