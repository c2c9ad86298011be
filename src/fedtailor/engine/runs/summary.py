"""One run in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.notebook import html_table
from fedtailor._base.printable import one_line


@dataclass(frozen=True)
class Summary:
    """One run in numbers.

    Attributes:
        metric: the metric that the run is judged by: by default the accuracy, or the
            loss if the data have no classes.
        mean: the mean of `metric` over clients, for their personal models on their own
            test splits after the last round.
        worst: the value of the worst client.
        worst10: the mean over the worst tenth of the clients.
        std: the standard deviation over clients.
        unseen_mean: the mean over clients that never took part; None if there are none.
        streams: the number of distinct models sent down in the last round.
        models_down: the number of distinct models sent (multicast), probe and delivery
            included.
        models_down_unicast: the number of models sent if each client were sent its own
            copy.
        models_up: the number of models (and gradients, controls) sent by clients.
        bytes_down, bytes_up: the bytes of everything that was sent, multicast, without
            single numbers (a loss, a weight): `Run.ledger.totals()` counts those as
            scalars.
        seconds: wall time, evaluation and compilation included. Trainings that share the
            devices divide their common time equally.
        core_seconds: processor time of all cores in these seconds, divided likewise; None
            if an earlier part of the run did not measure it.
        seconds_per_round: median wall time of a round without evaluation, likewise.
        client_epsilon, example_epsilon: the privacy spent, the largest epsilon of a
            client: for whole clients, and for single examples; None if the run does not
            promise this kind of privacy.
        time: when the server took its last step, by the clock of late clients
            (`AsynchronousServer`); None if it waits for all clients of a round.
        evaluated_clients: how many of the clients that take part were evaluated; None =
            all.
        mean_low, mean_high: where only some were evaluated, a 95 % confidence interval of
            the mean over all of them.

    Example:
        >>> result = run.summary()
        >>> result.algorithm, result.rounds, result.clients
        ('fedavg', 2, 20)
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
    core_seconds: float | None
    seconds_per_round: float
    client_epsilon: float | None = None
    example_epsilon: float | None = None
    time: float | None = None
    evaluated_clients: int | None = None
    mean_low: float | None = None
    mean_high: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """All fields by name; an epsilon only where privacy is promised, a time only where
        clients may be late, and an interval only where some clients were not evaluated.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None or name == "unseen_mean"
        }

    def __str__(self) -> str:
        return as_lines(self.as_dict())

    def _repr_html_(self) -> str:
        return html_table(("", "value"), self.as_dict().items())


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


def as_lines(values: Mapping[str, Any]) -> str:
    """Format the fields of a summary, one on each line."""
    width = max(map(len, values))
    return "\n".join(
        f"{name:<{width}}  {f'{value:.4f}' if isinstance(value, float) else one_line(value)}"
        for name, value in values.items()
    )
