"""`Tracker`: what every experiment tracker is sent of a run, and how a resumed run
continues in the same one.
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

from fedtailor._files import reason, replacing
from fedtailor.protocol import find_registered, require
from fedtailor.runs.summary import spread
from fedtailor.storage import Unusable
from fedtailor.storage.digests import is_sealed, sealed
from fedtailor.storage.manifest import settings
from fedtailor.training import Callback, Training

ENTRY_POINTS = "fedtailor.trackers"
"""Group of entry points in which other packages offer subclasses of `Tracker`, under
their names.
"""

Ended = Literal["finished", "interrupted", "failed"]

Setting = str | int | float | bool


class Tracker(Callback):
    """Base of all trackers: subclass it, set `name` and `package`, write `begin`, `log`
    and `end`.

    What is sent after each evaluation: the mean over clients of every metric on every
    split (`test/accuracy`, `unseen_test/accuracy` for clients that never train), the
    worst tenth of what the run is judged by (`test/accuracy_worst10`), the traffic so
    far (`traffic/bytes_down`, multicast, and `traffic/bytes_up`) and the time
    (`time/seconds`).

    With a directory, `tracker-NAME.json` in it holds the tracker's own id of the run
    and the last round that it was sent: a run that is resumed continues there, and
    rounds that are repeated after a kill are sent once.
    """

    name: ClassVar[str]
    """Its name in files and on the command line, and of the extra that installs it."""
    package: ClassVar[str]
    """What must be importable."""
    registry: ClassVar[dict[str, type["Tracker"]]] = {}

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        experiment: str = "fedtailor",
        run: str | None = None,
    ) -> None:
        """Nothing is written before the run starts.

        Args:
            directory: the run's own; without one, nothing can be resumed.
            experiment: under which the tracker shows the run.
            run: its name there; None = the method and the seed.

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
        """The library, or one of its modules. It is imported here, for it may be
        missing, so type checkers do not know it.
        """
        return import_module(f"{self.package}.{module}" if module else self.package)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            Tracker.registry[cls.name] = cls

    # what a tracker does
    # ----------------------------------------------------------------------------------

    @abstractmethod
    def begin(
        self, title: str, known: str | None, told: int, described: Mapping[str, Setting]
    ) -> tuple[str, int]:
        """Open a run of the tracker's.

        Args:
            title: its name.
            known: its id, where it was opened before.
            told: the last round that it was sent then; 0 for none.
            described: every setting by dotted name.

        Returns:
            Its id, and the last round in its store (`told`, if it cannot say).
        """

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write what was measured after a round to the disk."""

    @abstractmethod
    def end(self, ended: Ended) -> None:
        """Close what `begin` opened."""

    # how a run reports to it
    # ----------------------------------------------------------------------------------

    def on_start(self, training: Training, rounds: int) -> None:
        # Of several processes only the first one reports.
        if jax.process_index():
            return
        known, told = self._read()
        method = training.schedule[-1][0].about.name
        title = self.run or f"{method}, seed {training.seed}"
        with self._as_unusable():
            self._id, self._last_round = self.begin(
                title, known, told, _described(training, rounds)
            )
        self._write()

    def after_round(self, training: Training, evaluated: bool) -> None:
        if evaluated:
            self._report(training)

    def on_end(self, training: Training) -> None:
        # A run that a callback stopped is evaluated once more.
        self._report(training)

    def close(self, error: BaseException | None = None) -> None:
        if self._id is None:
            return
        self._id = None
        ended: Ended = "finished" if error is None else "failed"
        # A generator is closed when another run of its group is interrupted.
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            ended = "interrupted"
        with self._as_unusable():
            self.end(ended)

    def _report(self, training: Training) -> None:
        """Send the last round's measurements, unless the tracker has them."""
        if self._id is None or training.round <= self._last_round:
            return
        values = _measured(training)
        if values:
            with self._as_unusable():
                self.log(training.round, values)
            self._last_round = training.round
            self._write()

    @property
    def _file(self) -> Path | None:
        """Where the run's id and the last round are kept."""
        if self.directory is None:
            return None
        return self.directory / f"tracker-{self.name}.json"

    def _read(self) -> tuple[str | None, int]:
        """The tracker's id of the run, and the last round that it was sent."""
        if self._file is None or not self._file.exists():
            return None, 0
        try:
            saved = json.loads(self._file.read_text("utf-8"))
            require(is_sealed(saved), "its digest is wrong")
            return str(saved["run"]), int(saved["round"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise Unusable(
                f"{self._file} is damaged; remove it, and the tracker starts"
                " another run"
            ) from None

    def _write(self) -> None:
        if self._file is None:
            return
        saved = sealed({"run": self._id, "round": self._last_round})
        with self._as_unusable():
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._file) as temporary:
                temporary.write_text(json.dumps(saved), "utf-8")

    @contextmanager
    def _as_unusable(self) -> Iterator[None]:
        """Errors of the library, in one line. `Unusable` also ends a comparison, for the
        fault is not the method's.
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
    """The tracker of that name.

    Raises:
        ValueError: neither fedtailor nor an installed package has a tracker of that
            name, or the package's is broken.
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
    """Trackers by name, each once, for one run; arguments as of `Tracker`.

    Raises:
        ValueError: a tracker is unknown, or its library is not installed.
    """
    kinds = [find_tracker(name) for name in dict.fromkeys(names)]
    return [kind(directory, experiment=experiment, run=run) for kind in kinds]


def _measured(training: Training) -> dict[str, float]:
    """The last round's measurements by the tracker's names; empty if there are none."""
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


def _described(training: Training, rounds: int) -> dict[str, Setting]:
    """The settings of a run by dotted name."""
    return _flat(
        {
            "algorithm": settings(training.schedule[-1][0]),
            "model": settings(training.model),
            "participation": settings(training.participation),
            "clients": len(training.population),
            "rounds": rounds,
            "seed": training.seed,
            "metric": training.metric.name,
        }
    )


def _flat(described: Mapping[str, Any], prefix: str = "") -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for name, value in described.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = (
                value if isinstance(value, Setting) else str(value)
            )
    return settings
