"""What a method's models cost: traffic, and time to the best result of FedAvg."""

from collections.abc import Mapping, Sequence

from fedtailor.accounting import WIRELESS_PRESETS, Wireless, time_to_reach
from fedtailor.report.measures import best_on_test
from fedtailor.report.stored import StoredRun
from fedtailor.report.tables import Cell, Number, mean_of

REFERENCE = "fedavg"
"""The method whose best accuracy is the target."""

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
"""What must stand by these columns."""


def reference(methods: Mapping[str, Sequence[StoredRun]]) -> str | None:
    """The first row that is FedAvg, whatever it is called, and has a test result.

    Returns:
        Its label; None where there is no such row.
    """
    for label, runs in methods.items():
        tested = [run for run in runs if run.is_tested]
        if tested and tested[0].method == REFERENCE:
            return label
    return None


def time_title(label: str, runs: Sequence[StoredRun]) -> str:
    """What a table with these columns says in its title.

    Args:
        label: of the reference's row.
        runs: of the reference.
    """
    return f"time to {label}'s best {runs[0].metric}"


def models(runs: Sequence[StoredRun]) -> list[Cell]:
    """Models down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [
        average([total.models_down for total in totals]),
        average([total.models_up for total in totals]),
    ]


def megabytes(runs: Sequence[StoredRun]) -> list[Cell]:
    """Megabytes down (multicast) and up, means over runs."""
    totals = [run.ledger.totals() for run in runs]
    return [
        average([total.bytes_down / 1e6 for total in totals], digits=1),
        average([total.bytes_up / 1e6 for total in totals], digits=1),
    ]


def times(runs: Sequence[StoredRun], references: Sequence[StoredRun]) -> list[Cell]:
    """Time to the best test mean of the reference's run with the same seed.

    Returns:
        One cell for each of the `WIRELESS_PRESETS`: the mean over runs, or "-" where a
        run does not get there or has no reference.
    """
    targets = {run.seed: best_on_test(run) for run in references}
    return [_time(runs, targets, name) for name in WIRELESS_PRESETS]


def ends(references: Sequence[StoredRun]) -> dict[int, list[float]]:
    """When the last round of each run is over.

    Returns:
        seed -> one time for each of the `WIRELESS_PRESETS`.
    """
    systems = WIRELESS_PRESETS.values()
    return {
        run.seed: [max(run.by_time(system), default=0.0) for system in systems]
        for run in references
    }


def reached_by(
    ends: Mapping[int, Sequence[float]], runs: Sequence[StoredRun]
) -> list[Cell]:
    """The test mean that is reached at a time.

    Args:
        ends: that time by seed, see `ends`.
        runs: of one method.

    Returns:
        One cell for each of the `WIRELESS_PRESETS`: the mean over runs, or "-" where a
        run has nothing measured by then, or its seed no time.
    """
    cells = []
    for i, system in enumerate(WIRELESS_PRESETS.values()):
        end_by_seed = {seed: times[i] for seed, times in ends.items()}
        cells.append(_at_times(runs, end_by_seed, system))
    return cells


def average(values: Sequence[float], digits: int = 0) -> Number:
    """The mean."""
    return mean_of(values, digits, deviation=False)


def _at_times(
    runs: Sequence[StoredRun], times: Mapping[int, float], system: Wireless
) -> Cell:
    reached = []
    for run in runs:
        values = [
            value
            for time, value in run.by_time(system).items()
            if time <= times.get(run.seed, 0.0)
        ]
        if not values:
            return "-"
        reached.append(values[-1])
    return runs[0].unit.number(reached)


def _time(
    runs: Sequence[StoredRun], targets: Mapping[int, float | None], system: str
) -> Cell:
    times = [_reached(run, targets.get(run.seed), system) for run in runs]
    known = [time for time in times if time is not None]
    return average(known) if len(known) == len(times) else "-"


def _reached(run: StoredRun, target: float | None, system: str) -> float | None:
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
