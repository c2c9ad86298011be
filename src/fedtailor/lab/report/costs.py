"""Costs of methods: traffic, and time to the best result of FedAvg."""

from collections.abc import Mapping, Sequence

from fedtailor.aggregation.accounting import WIRELESS_PRESETS, Wireless, time_to_reach
from fedtailor.lab.results.measures import best_on_test
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, Number, mean_of

REFERENCE = "fedavg"
"""The method whose best result is the target."""

TIME_HEADERS = [
    f"time\nrho={system.rho:g}" + (",\nrandom" if system.mean_delay else "")
    for system in WIRELESS_PRESETS.values()
]
"""One column for each of the `WIRELESS_PRESETS`."""

TIME_NOTE = (
    "Times are in units of one model's downlink. rho: how much longer a model's uplink"
    " takes; random: computing takes every client 1 unit and a random delay of 1 on"
    " average, elsewhere 1 unit."
)
"""Note that explains these columns."""


def reference(methods: Mapping[str, Sequence[StoredRun]]) -> str | None:
    """The label of the first row whose method is FedAvg and that has a test result.

    Returns:
        The label, or None if there is no such row.
    """
    for label, runs in methods.items():
        tested_runs = [run for run in runs if run.is_tested]
        if tested_runs and tested_runs[0].method == REFERENCE:
            return label
    return None


def time_title(label: str, runs: Sequence[StoredRun]) -> str:
    """The part of a table's title that explains the columns of times.

    Args:
        label: label of the reference's row.
        runs: runs of the reference.
    """
    return f"time to {label}'s best {runs[0].unit.label.removesuffix(', %')}"


def models_sent(runs: Sequence[StoredRun]) -> list[Cell]:
    """Numbers of models sent down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [
        average([total.models_down for total in totals]),
        average([total.models_up for total in totals]),
    ]


def megabytes(runs: Sequence[StoredRun]) -> list[Cell]:
    """Megabytes sent down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [
        average([total.bytes_down / 1e6 for total in totals], digits=1),
        average([total.bytes_up / 1e6 for total in totals], digits=1),
    ]


def times_to_target(
    runs: Sequence[StoredRun], references: Sequence[StoredRun]
) -> list[Cell]:
    """The time to the best test mean of the reference's run with the same seed.

    Returns:
        One cell for each of the `WIRELESS_PRESETS`: the mean over runs, or "-" if a run
        does not reach the target or has no reference.
    """
    targets = {run.seed: best_on_test(run) for run in references}
    return [_mean_time(runs, targets, name) for name in WIRELESS_PRESETS]


def end_times(references: Sequence[StoredRun]) -> dict[int, list[float]]:
    """The time at which the last round of each run ends.

    Returns:
        seed -> one time for each of the `WIRELESS_PRESETS`.
    """
    ends = {}
    for run in references:
        by_time = [run.by_time(system) for system in WIRELESS_PRESETS.values()]
        ends[run.seed] = [max(values, default=0.0) for values in by_time]
    return ends


def values_at_end(
    end_times: Mapping[int, Sequence[float]], runs: Sequence[StoredRun]
) -> list[Cell]:
    """The test mean of a method at given times.

    Args:
        end_times: seed -> one time for each of the `WIRELESS_PRESETS`, see `end_times`.
        runs: runs of the method.

    Returns:
        One cell for each of the `WIRELESS_PRESETS`: the mean over runs, or "-" if a run
        has no evaluation by that time, or its seed has no time.
    """
    cells = []
    for number, system in enumerate(WIRELESS_PRESETS.values()):
        times = {seed: of_systems[number] for seed, of_systems in end_times.items()}
        cells.append(_value_at(runs, times, system))
    return cells


def average(values: Sequence[float], digits: int = 0) -> Number:
    """A cell with the mean, without a deviation."""
    return mean_of(values, digits, deviation=False)


def _value_at(
    runs: Sequence[StoredRun], times: Mapping[int, float], system: Wireless
) -> Cell:
    last_values = []
    for run in runs:
        values = [
            value
            for time, value in run.by_time(system).items()
            if time <= times.get(run.seed, 0.0)
        ]
        if not values:
            return "-"
        last_values.append(values[-1])
    return runs[0].unit.number(last_values)


def _mean_time(
    runs: Sequence[StoredRun], targets: Mapping[int, float | None], system: str
) -> Cell:
    times = [_time_to_target(run, targets.get(run.seed), system) for run in runs]
    known = [time for time in times if time is not None]
    return average(known) if len(known) == len(times) else "-"


def _time_to_target(run: StoredRun, target: float | None, system: str) -> float | None:
    if target is None:
        return None
    # `time_to_reach` looks for the first value that is at least the target.
    sign = 1 if run.unit.higher_is_better else -1
    curve = {done: sign * value for done, value in run.curve().items()}
    return time_to_reach(
        sign * target,
        curve,
        run.ledger.frame(),
        WIRELESS_PRESETS[system],
        samples=run.mean_samples,
    )
