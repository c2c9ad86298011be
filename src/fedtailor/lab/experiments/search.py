"""Search over a method's settings by Optuna, which proposes each from the validation
scores of those before it.

    [search]
    use = "optuna"
    trials = 30

    [algorithms.ditto.search]
    lam = {low = 0.01, high = 10.0, log = true}
    sgd = {lr = {low = 0.001, high = 0.3, log = true}, batch_size = [10, 32]}

A search that was stopped goes on: it is played again from its beginning, and the runs that
are finished are not trained again. Proposals depend on the seed and on the scores only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor._base.choice import require
from fedtailor._base.printable import one_line
from fedtailor.protocol.plain import ConfigError, KeyPath

if TYPE_CHECKING:
    pass

STUDIES = "optuna.journal"
"""The file next to the index with all trials:
`optuna.load_study(study_name=..., storage=JournalStorage(JournalFileBackend(path)))`.
"""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; integers if both are.

    Attributes:
        low: the smallest value.
        high: the largest one.
        log: whether ratios count, not differences.
    """

    low: float
    high: float
    log: bool = False


Space = Mapping[str, Range | tuple[Any, ...]]
"""Dotted name of a setting -> its range, or the values to choose from."""


def space_of(table: Mapping[str, Any], place: KeyPath) -> dict[str, Range | tuple]:
    """Read the space of a search.

    Args:
        table: nested tables, whose leaves are ranges or lists of values.
        place: of the table in the file, for errors.

    Raises:
        ConfigError: a leaf is neither, or its range is empty.
    """
    space: dict[str, Range | tuple[Any, ...]] = {}
    for name, value in table.items():
        here = (*place, name)
        if isinstance(value, list) and value:
            space[name] = tuple(value)
        elif isinstance(value, Mapping) and value.keys() & {"low", "high"}:
            space[name] = _range(name, value, here)
        elif isinstance(value, Mapping) and value:
            for inner, leaf in space_of(value, here).items():
                space[f"{name}.{inner}"] = leaf
        else:
            raise ConfigError(
                here,
                f"{name} is {value!r}; it must be a range, such as {{low = 0.01, high ="
                " 1.0, log = true}, or a list of values",
            )
    return space


def _range(name: str, table: Mapping[str, Any], place: KeyPath) -> Range:
    low, high, log = table.get("low"), table.get("high"), table.get("log", False)
    numbers = all(
        isinstance(end, int | float) and not isinstance(end, bool)
        for end in (low, high)
    )
    if (
        not numbers
        or not isinstance(log, bool)
        or table.keys() - {"low", "high", "log"}
    ):
        raise ConfigError(
            place, f"the range of {name} has low and high, two numbers, and log = true"
        )
    assert low is not None and high is not None
    if not low < high:
        raise ConfigError(
            place, f"low of {name} is {low}; it must be below high, {high}"
        )
    if log and low <= 0:
        raise ConfigError(
            place, f"low of {name} is {low}; with log = true it must be above 0"
        )
    return Range(low, high, log)


class Study:
    """One search: proposes settings, and learns from their scores."""

    def __init__(
        self,
        name: str,
        space: Space,
        seed: int,
        *,
        first: Mapping[str, Any] = {},
        file: Path | None = None,
    ) -> None:
        """Begin a search.

        Args:
            name: of the study.
            space: the settings.
            seed: of the proposals.
            first: settings to begin with, if they are all in the space.
            file: a journal to which the trials are added; None = they are not kept.

        Raises:
            ValueError: Optuna is not installed.
        """
        require(
            find_spec("optuna") is not None,
            "a search over settings needs Optuna, which is not installed: pip install"
            " 'fedtailor[optuna]'",
        )
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = None
        if file is not None:
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            storage = JournalStorage(JournalFileBackend(str(file)))
        self._space = {name: _distribution(leaf) for name, leaf in space.items()}
        self._study = optuna.create_study(
            storage=storage,
            study_name=one_line(name),
            sampler=optuna.samplers.TPESampler(seed=seed),
            direction="maximize",
        )
        if all(_is_in(first.get(name), leaf) for name, leaf in space.items()):
            self._study.enqueue_trial({name: first[name] for name in space})
        self._trial: optuna.trial.Trial | None = None

    def propose(self) -> dict[str, Any]:
        """The settings of the next trial, by dotted name."""
        self._trial = self._study.ask(self._space)
        return dict(self._trial.params)

    def tell(self, score: float | None) -> None:
        """Record the score of the last proposal; higher is better, None if it failed."""
        from optuna.trial import TrialState

        assert self._trial is not None
        if score is None:
            # The worst of all scores to Optuna, which takes no note of trials that FAIL.
            self._study.tell(self._trial, state=TrialState.PRUNED)
        else:
            self._study.tell(self._trial, score)


def _is_in(value: Any, leaf: Range | tuple[Any, ...]) -> bool:
    """Whether a search over this range or these values may propose a value."""
    if isinstance(leaf, tuple):
        return value in leaf
    return isinstance(value, int | float) and leaf.low <= value <= leaf.high


def _distribution(leaf: Range | tuple[Any, ...]) -> Any:
    """Optuna's word for a range, or for values to choose from."""
    from optuna import distributions

    if isinstance(leaf, tuple):
        return distributions.CategoricalDistribution(leaf)
    if isinstance(leaf.low, int) and isinstance(leaf.high, int):
        return distributions.IntDistribution(leaf.low, leaf.high, log=leaf.log)
    return distributions.FloatDistribution(leaf.low, leaf.high, log=leaf.log)
