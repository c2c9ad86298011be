"""What a method's models cost: traffic, and time to what FedAvg reaches at best."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedtailor.accounting import SYSTEMS, time_to_reach
from fedtailor.report.measures import best_on_test
from fedtailor.report.stored import StoredRun

REFERENCE = "FedAvg"
"""The row whose best accuracy is the target."""

TIME_HEADERS = [f"time\nrho={system.rho:g}" + (",\nrandom" if system.inverse_mu else "") for system in SYSTEMS.values()]
"""One column for each of the `SYSTEMS`."""

TIME_TITLE = f"time to {REFERENCE}'s best {{metric}}, in model downlinks"
"""What a table with these columns says, the metric to be filled in."""


def models(runs: Sequence[StoredRun]) -> list[str]:
    """Models down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [average([total.models_down for total in totals]), average([total.models_up for total in totals])]


def megabytes(runs: Sequence[StoredRun]) -> list[str]:
    """Megabytes down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [average([count / 1e6 for count in counts], digits=1) for counts in
            ([total.bytes_down for total in totals], [total.bytes_up for total in totals])]  # fmt: skip


def times(runs: Sequence[StoredRun], references: Sequence[StoredRun]) -> list[str]:
    """Time to the best test mean of the reference's run with the same seed, in each of the `SYSTEMS`; means over
    runs, "-" where a run does not get there or has no reference."""
    targets = {run.seed: best_on_test(run) for run in references}
    return [_time(runs, targets, name) for name in SYSTEMS]


def average(values: Sequence[float], digits: int = 0) -> str:
    """The mean as text."""
    return f"{np.mean(values):.{digits}f}"


def _time(runs: Sequence[StoredRun], targets: Mapping[int, float], system: str) -> str:
    reached = [_reached(run, targets.get(run.seed), system) for run in runs]
    found = [time for time in reached if time is not None]
    return average(found) if len(found) == len(reached) else "-"


def _reached(run: StoredRun, target: float | None, system: str) -> float | None:
    if target is None:
        return None
    sign = 1 if run.unit.higher_is_better else -1
    curve = {done: sign * value for done, value in run.curve().items()}
    return time_to_reach(sign * target, curve, run.ledger.frame(), SYSTEMS[system])
