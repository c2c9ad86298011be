"""Time to an event: targets are [time, event], where event is 1 if it occurred, and 0
if the subject was last seen without it (censored).

`DiscreteTime` is a sum over examples, so that mini-batches and clients are unbiased parts
of it. `CoxPartial` compares the examples of a batch with each other: with all rows of a
client in a batch it is Cox's model stratified by client.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.models.tasks.task import Decode, Task

GRID = 64
"""Number of times at which the metric c_index tells times apart."""


@dataclass(frozen=True)
class Survival(Task):
    """What both models have in common: a risk for each example.

    Attributes:
        grid: ascending times between which the metric c_index tells times apart.
        censoring: the share of training rows that are not censored at each time of the
            grid, with which the metrics uno and integrated_brier weigh rows; None = not
            known.
    """

    grid: tuple[float, ...] = ()
    censoring: tuple[float, ...] | None = field(default=None, kw_only=True)

    name: ClassVar[str] = "survival"
    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    metrics_of_tables: ClassVar[tuple[str, ...]] = ("c_index",)

    def risk(self, outputs: Float[Array, "b outputs"]) -> Float[Array, " b"]:
        """The risk of each example: who has a higher one has the event earlier."""
        raise NotImplementedError

    def uncensored(self, time: Float[Array, " n"]) -> Float[Array, " n"]:
        """The share of training rows that are not censored at some times, which are
        rounded up to the grid (traced).
        """
        shares = jnp.asarray(self.censoring, time.dtype)
        place = jnp.searchsorted(jnp.asarray(self.grid, time.dtype), time, side="left")
        return shares[jnp.minimum(place, len(shares) - 1)]

    def row_scores(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> dict[str, Shaped[Array, "b ..."]]:
        """`risk`, `time` and `event` [b] float32."""
        return {
            "risk": self.risk(outputs).astype(jnp.float32),
            "time": y[:, 0].astype(jnp.float32),
            "event": y[:, 1].astype(jnp.float32),
        }

    def baseline(
        self,
        y_train: Shaped[np.ndarray, "n ..."],
        y_test: Shaped[np.ndarray, "t ..."],
        outputs: int,
    ) -> dict[str, float]:
        has_events = bool(len(y_test) and (y_test[:, 1] > 0).any())
        return {"c_index": 0.5 if has_events else float("nan")}

    def describe(self, outputs: int) -> str:
        return "a survival model"

    def predict(self, outputs: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.risk(jnp.asarray(outputs)))

    def prediction_columns(
        self, outputs: NDArray[Any], decode: Decode, *, probabilities: bool
    ) -> dict[str, Any]:
        require(
            not probabilities,
            "survival models predict no classes; ask for the survival at some times with"
            " times",
        )
        return {"risk": self.predict(outputs)}


@dataclass(frozen=True)
class DiscreteTime(Survival):
    """A logistic model of the hazard in intervals of time (Andreux et al. 2020).

    Outputs [b, intervals] are the log-odds of having the event in an interval for who has
    not had it before. Who is censored in the second half of an interval counts as having
    survived it; who lives beyond the last one, as having survived all.

    Attributes:
        ends: ascending ends of the intervals; the first begins at 0.
        start: log-odds of each interval for an average example, from which models start.
    """

    ends: tuple[float, ...] = (1.0,)
    start: tuple[float, ...] = ()

    name: ClassVar[str] = "discrete_time"

    def __post_init__(self) -> None:
        ends = np.array(self.ends)
        require(
            len(ends) > 0 and ends[0] > 0 and bool((np.diff(ends) > 0).all()),
            f"the ends of intervals are {list(self.ends)}; they are above 0, and ascend",
        )
        require(
            len(self.start) in (0, len(self.ends)),
            f"start has {len(self.start)} log-odds for {len(self.ends)} intervals",
        )

    def outputs(self, classes: int | None, target_shape: tuple[int, ...]) -> int:
        return len(self.ends)

    def check_outputs(
        self, shape: tuple[int, ...], examples: int, outputs: int
    ) -> None:
        require(
            tuple(shape) == (examples, outputs),
            f"the network gives {tuple(shape[1:])} outputs for one example, and there are"
            f" {outputs} intervals of time; make its last layer as wide",
        )

    def __call__(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        time, event = y[:, :1], y[:, 1:] > 0
        ends = jnp.asarray(self.ends, outputs.dtype)
        begins = jnp.concatenate([jnp.zeros(1, outputs.dtype), ends[:-1]])
        has_event = event & (begins < time) & (time <= ends)
        # An event at time 0 lies in the first interval.
        has_event |= event & (time <= 0) & (begins == 0)
        survived = jnp.where(event, ends < time, (begins + ends) / 2 <= time)
        # log h = -softplus(-a), log(1 - h) = -softplus(a)
        terms = jnp.where(has_event, jax.nn.softplus(-outputs), 0.0)
        terms += jnp.where(survived & ~has_event, jax.nn.softplus(outputs), 0.0)
        return terms.sum(axis=-1)

    def risk(self, outputs: Float[Array, "b outputs"]) -> Float[Array, " b"]:
        """The logarithm of the cumulative hazard, relative to that of an average example."""
        hazard = jnp.log(jax.nn.softplus(outputs).sum(axis=-1))
        if not self.start:
            return hazard
        start = jnp.asarray(self.start, outputs.dtype)
        return hazard - jnp.log(jax.nn.softplus(start).sum())

    def survival_at(
        self, outputs: NDArray[Any], times: ArrayLike
    ) -> Float[np.ndarray, "n t"]:
        """The predicted share without the event at some times.

        Within an interval the hazard is spread evenly. After the last interval the share
        is that at its end.

        Args:
            outputs: [n, intervals].
            times: [t], of 0 or more.
        """
        log_survival = -np.cumsum(np.logaddexp(0.0, np.asarray(outputs, np.float64)), 1)
        log_survival = np.concatenate([np.zeros((len(outputs), 1)), log_survival], 1)
        ends = np.array([0.0, *self.ends])
        asked = np.asarray(times, np.float64)
        return np.exp([np.interp(asked, ends, row) for row in log_survival])

    def baseline(
        self,
        y_train: Shaped[np.ndarray, "n ..."],
        y_test: Shaped[np.ndarray, "t ..."],
        outputs: int,
    ) -> dict[str, float]:
        values = super().baseline(y_train, y_test, outputs)
        if not len(y_test):
            return values | {"loss": float("nan")}
        start = log_odds(y_train[:, 0], y_train[:, 1], self.ends)
        rows = np.broadcast_to(
            np.asarray(start, np.float32), (len(y_test), len(self.ends))
        )
        losses = self(jnp.asarray(rows), jnp.asarray(y_test))
        return values | {"loss": float(losses.mean())}

    def prediction_columns(
        self, outputs: NDArray[Any], decode: Decode, *, probabilities: bool
    ) -> dict[str, Any]:
        columns: dict[str, Any] = {"risk": self.predict(outputs)}
        if probabilities:
            survival = self.survival_at(outputs, self.ends)
            for number, end in enumerate(self.ends):
                columns[f"S({end:g})"] = survival[:, number]
        return columns


def log_odds(
    time: ArrayLike, event: ArrayLike, ends: Sequence[float]
) -> tuple[float, ...]:
    """Log-odds of the event in each interval, of rows as they are; a half is added to both
    counts, so that all are finite.
    """
    cells = outcome_cells(time, event, ends)
    return log_odds_of_counts(np.bincount(cells, minlength=2 * (len(ends) + 1)))


def outcome_cells(
    time: ArrayLike, event: ArrayLike, ends: Sequence[float]
) -> NDArray[np.int64]:
    """What happened to each row, as a number: counts of it are all that `log_odds` needs.

    Returns:
        [n] with J intervals: 0 to J - 1 for an event in this interval, J for a later one;
        J + 1 + k for who was last seen after the middles of k intervals.
    """
    times, seen = np.asarray(time, np.float64), np.asarray(event) > 0
    limits = np.asarray(ends, np.float64)
    with_event = np.searchsorted(limits, times, side="left")
    last_seen = np.searchsorted(middles(ends), times, side="right")
    return np.where(seen, with_event, len(limits) + 1 + last_seen)


def outcome_names(ends: Sequence[float]) -> tuple[str, ...]:
    """The names of the numbers of `outcome_cells`."""
    events = [f"event until {end:.9g}" for end in ends]
    last_seen = [f"last seen before {middle:.9g}" for middle in middles(ends)]
    return (*events, "event later", *last_seen, "last seen later")


def log_odds_of_counts(counts: ArrayLike) -> tuple[float, ...]:
    """`log_odds` from the number of rows of each of `outcome_cells`."""
    events, last_seen = np.asarray(counts, np.int64).reshape(2, -1)
    # Whoever had the event later, or was last seen after its middle, survived an interval.
    later = np.cumsum((events + last_seen)[::-1])[::-1][1:]
    odds = np.log((events[:-1] + 0.5) / (later + 0.5))
    return tuple(odds.tolist())


def survival_grid(ends: Sequence[float]) -> tuple[float, ...]:
    """Times at which the metric c_index tells times apart, where nothing but the ends of
    intervals is known: so many parts of each interval that there are about `GRID`.

    They are float32 numbers, as targets are.
    """
    parts = max(1, GRID // len(ends))
    limits = np.concatenate([[0.0], np.asarray(ends, np.float64)])
    shares = np.arange(1, parts + 1) / parts
    grid = limits[:-1, None] + np.diff(limits)[:, None] * shares
    return tuple(np.unique(grid.astype(np.float32)).astype(np.float64).tolist())


def middles(ends: Sequence[float]) -> NDArray[np.float64]:
    """The middle of each interval: who is censored after it counts as having survived."""
    limits = np.asarray(ends, np.float64)
    return (np.concatenate([[0.0], limits[:-1]]) + limits) / 2


_NOTHING = -1e30
"""The score of an example that no risk set has."""


@dataclass(frozen=True)
class CoxPartial(Survival):
    """Cox's partial likelihood among the examples of a batch. Outputs [b, 1] are the
    logarithms of hazard ratios.

    Attributes:
        efron: whether events at one time count as Efron (1977) has it; otherwise as
            Breslow (1974) has it.
    """

    efron: bool = True

    name: ClassVar[str] = "cox"
    couples_examples: ClassVar[bool] = True

    def outputs(self, classes: int | None, target_shape: tuple[int, ...]) -> int:
        return 1

    def __call__(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        return self.losses(outputs, y)

    def losses(
        self,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"] | None = None,
    ) -> Float[Array, " b"]:
        """For each event minus the logarithm of its share in its risk set; 0 for who is
        censored. The sum is minus the logarithm of the partial likelihood.
        """
        scores = outputs.reshape(len(outputs))
        is_row = jnp.ones(len(scores), bool) if weight is None else weight > 0
        event = (y[:, 1] > 0) & is_row
        # In descending order of time, a risk set is all that stands before, ties included.
        order = jnp.argsort(-y[:, 0], stable=True)
        time, eta = -y[order, 0], scores[order]
        died, there = event[order], is_row[order]
        last = jnp.searchsorted(time, time, side="right") - 1
        first = jnp.searchsorted(time, time, side="left")
        # A finite number that adds nothing stands for padding, whose derivative is 0.
        present = jnp.where(there, eta, _NOTHING)
        at_risk = jax.lax.cumlogsumexp(present)[last]
        terms = at_risk - eta
        if self.efron:
            shares = jnp.where(died, jnp.exp(present - at_risk), 0.0)
            zero = jnp.zeros(1, eta.dtype)
            share = jnp.concatenate([zero, jnp.cumsum(shares)])
            count = jnp.concatenate([zero, jnp.cumsum(died.astype(eta.dtype))])
            tied = share[last + 1] - share[first]
            number = jnp.maximum(count[last + 1] - count[first], 1.0)
            rank = count[:-1] - count[first]
            # Of rows without an event the logarithm could be of 0, and its derivative NaN.
            part = jnp.where(died, rank / number * tied, 0.0)
            terms += jnp.log1p(-part)
        terms = jnp.where(died, terms, 0.0)
        return jnp.zeros_like(terms).at[order].set(terms)

    def risk(self, outputs: Float[Array, "b outputs"]) -> Float[Array, " b"]:
        return outputs.reshape(len(outputs))
