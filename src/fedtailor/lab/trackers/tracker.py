"""`Tracker`, the base class of experiment trackers.

It decides what is logged of a run, and how a resumed run continues its log.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax

from fedtailor._base.choice import require
from fedtailor._base.digests import has_valid_digest, with_digest
from fedtailor._base.entry_points import find_registered, register_class
from fedtailor._base.files import atomic_write, reason
from fedtailor.engine.runs.summary import spread
from fedtailor.engine.storage import Unusable
from fedtailor.engine.training import Callback, Training
from fedtailor.protocol.plain import to_plain

ENTRY_POINTS = "fedtailor.trackers"
"""Group of entry points for subclasses of `Tracker` in other packages."""

RunStatus = Literal["finished", "interrupted", "failed"]

Setting = str | int | float | bool


class Tracker(Callback):
    """Base class of trackers.

    A subclass sets `name` and `package`, and implements `begin`, `log` and `end`.

    These values are logged after each evaluation: the mean over clients of every metric
    on every split (`test/accuracy`, or `unseen_test/accuracy` for clients that never
    train), the worst tenth of the run's main metric (`test/accuracy_worst10`), the
    traffic so far (`traffic/bytes_down`, multicast, and `traffic/bytes_up`) and the
    time (`time/seconds`).

    With a run directory, the file `tracker-NAME.json` holds the tracker's id of the run
    and the last round that was logged. A resumed run continues there, and a round that
    is repeated after a kill is logged once.

    Example:
        >>> from fedtailor.lab.trackers import Tracker
        >>> class Print(Tracker):
        ...     pass
        >>> Print.__name__
        'Print'
    """

    name: ClassVar[str]
    """Name in files and on the command line, and of the extra that installs it."""
    package: ClassVar[str]
    """Name of the library, which must be importable."""
    registry: ClassVar[dict[str, type["Tracker"]]] = {}

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        experiment: str = "fedtailor",
        run: str | None = None,
    ) -> None:
        """Make a tracker; nothing is written before the run starts.

        Args:
            directory: the run directory; without it the log cannot be resumed.
            experiment: name of the tracker's experiment or project.
            run: name of the run in the tracker; None stands for method and seed.

        Raises:
            ValueError: the library is not installed.
        """
        require(
            find_spec(self.package) is not None,
            f"tracking with {self.name} needs {self.package}, which is not installed:"
            f" pip install 'fedtailor[{self.name}]'",
        )
        self.directory = None if directory is None else Path(directory)
        self.experiment, self.run = experiment, run
        self._id: str | None = None
        self._last_round = 0  # the last one that the tracker was sent

    def library(self, module: str = "") -> Any:
        """Import the library, or one of its modules."""
        return import_module(f"{self.package}.{module}" if module else self.package)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            register_class(Tracker.registry, cls.name, cls, "tracker")

    # methods of a subclass
    # ----------------------------------------------------------------------------------

    @abstractmethod
    def begin(
        self,
        title: str,
        run_id: str | None,
        last_round: int,
        config: Mapping[str, Setting],
    ) -> tuple[str, int]:
        """Open a run in the tracker.

        Args:
            title: name of the run.
            run_id: the tracker's id of a run to continue; None opens a new one.
            last_round: the last round that was logged; 0 for none.
            config: all settings, by dotted name.

        Returns:
            The tracker's id of the run, and the last round in its store (or
            `last_round`, if the tracker cannot read its store).
        """

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write the measurements of a round to disk."""

    @abstractmethod
    def end(self, status: RunStatus) -> None:
        """Close what `begin` opened."""

    # methods of a callback
    # ----------------------------------------------------------------------------------

    def on_start(self, training: Training, rounds: int) -> None:
        # Of several processes only the first one logs.
        if jax.process_index():
            return
        run_id, last_round = self._read()
        method = training.schedule[-1][0].about.name
        title = self.run or f"{method}, seed {training.seed}"
        with self._short_errors():
            self._id, self._last_round = self.begin(
                title, run_id, last_round, _config_of(training, rounds)
            )
        self._write()

    def after_round(self, training: Training, evaluated: bool) -> None:
        if evaluated:
            self._report(training)

    def on_end(self, training: Training) -> None:
        # A run that a callback has stopped is evaluated once more.
        self._report(training)

    def close(self, error: BaseException | None = None) -> None:
        if self._id is None:
            return
        self._id = None
        status: RunStatus = "finished" if error is None else "failed"
        # The generator of a run is closed when another run of its group is interrupted.
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            status = "interrupted"
        with self._short_errors():
            self.end(status)

    def _report(self, training: Training) -> None:
        """Log the measurements of the last round, unless they have been logged."""
        if self._id is None or training.round <= self._last_round:
            return
        values = _last_measurements(training)
        if values:
            with self._short_errors():
                self.log(training.round, values)
            self._last_round = training.round
            self._write()

    @property
    def _file(self) -> Path | None:
        """The file that stores the run's id and the last round."""
        if self.directory is None:
            return None
        return self.directory / f"tracker-{self.name}.json"

    def _read(self) -> tuple[str | None, int]:
        """Read the tracker's id of the run (or None), and the last round logged."""
        if self._file is None or not self._file.exists():
            return None, 0
        try:
            saved = json.loads(self._file.read_text("utf-8"))
            require(has_valid_digest(saved), "its digest is wrong")
            return str(saved["run"]), int(saved["round"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise Unusable(
                f"{self._file} is damaged; remove it, and the tracker starts"
                " another run"
            ) from None

    def _write(self) -> None:
        if self._file is None:
            return
        saved = with_digest({"run": self._id, "round": self._last_round})
        with self._short_errors():
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._file) as temporary:
                temporary.write_text(json.dumps(saved), "utf-8")

    @contextmanager
    def _short_errors(self) -> Iterator[None]:
        """Turn errors of the library into `Unusable`, with a message of one line.

        `Unusable` also ends a comparison, as the error is not one of the method.
        """
        try:
            yield
        except Unusable:
            raise
        except Exception as error:
            raise Unusable(
                f"the tracker {self.name} failed: {reason(error)}; run without it, or"
                " mend that"
            ) from error


def find_tracker(name: str) -> type[Tracker]:
    """Find a tracker by name.

    Raises:
        ValueError: neither fedtailor nor an installed package has a tracker of that
            name, or the package cannot be imported.

    Example:
        >>> from fedtailor.lab.trackers import find_tracker
        >>> find_tracker("tensorboard").__name__
        'TensorBoard'
    """
    return find_registered(
        Tracker.registry, name, "tracker", ENTRY_POINTS, base=Tracker
    )


def find_trackers(
    names: Sequence[str],
    directory: Path | str | None = None,
    *,
    experiment: str = "fedtailor",
    run: str | None = None,
) -> list[Tracker]:
    """Make the trackers of a run.

    Args:
        names: names of the trackers; repeated ones are ignored.
        directory, experiment, run: see `Tracker`.

    Raises:
        ValueError: a tracker is unknown, or its library is not installed.
    """
    kinds = [find_tracker(name) for name in dict.fromkeys(names)]
    return [kind(directory, experiment=experiment, run=run) for kind in kinds]


def _last_measurements(training: Training) -> dict[str, float]:
    """The measurements of the last round, by name; empty if it was not evaluated."""
    values: dict[str, float] = {}
    for evaluation in training.metrics.evaluations:
        if evaluation.round != training.round:
            continue
        unseen = "unseen_" if evaluation.unseen else ""
        name = f"{unseen}{evaluation.split}/{evaluation.metric}"
        values[name] = float(evaluation.values.mean())
        if evaluation.metric == training.metric.name:
            over_clients = spread(evaluation.values, training.metric.higher_is_better)
            values[f"{name}_worst10"] = over_clients["worst10"]
    if values:
        totals = training.ledger.totals()
        values["traffic/bytes_down"] = float(totals.bytes_down)
        values["traffic/bytes_up"] = float(totals.bytes_up)
        values["time/seconds"] = training.seconds
    return values


def _config_of(training: Training, rounds: int) -> dict[str, Setting]:
    """The settings of a run by dotted name."""
    return _flat(
        {
            "algorithm": to_plain(training.schedule[-1][0]),
            "model": to_plain(training.model),
            "participation": to_plain(training.participation),
            "clients": len(training.population),
            "rounds": rounds,
            "seed": training.seed,
            "metric": training.metric.name,
        }
    )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = (
                value if isinstance(value, Setting) else str(value)
            )
    return settings
