"""Whether an answer of a client can be that of an honest one.

The shapes and types of answers are checked when they arrive (`messages`). Here their
numbers are: one client, faulty or malicious, must not be able to ruin what all train.
An answer that is refused counts as one that did not come.

What is checked of an update:

* its change (see `pipelines.change`), after compression is undone, has a norm of at most
  the bound that the uplink keeps (`Clip`, `GaussianNoise`), if it keeps one;
* without such a bound, its norm is not far above what is usual (`largest_usual_norm`);
* numbers that methods send besides vectors are in the range that the method names
  (`Algorithm.ranges`), and indices are those of something that was sent.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.groups import MIN_ROWS
from fedtailor._base.tensors import is_float
from fedtailor.aggregation.pipelines.change import indices_kind, start_kind
from fedtailor.aggregation.pipelines.gaussian_noise import CLIP_NORM, WITHIN_CLIP_NORM
from fedtailor.models.metrics import Metric
from fedtailor.protocol import (
    MODEL_KINDS,
    PRIVATE_STEPS,
    ClientRows,
    Cohort,
    Downlink,
    Exchange,
    Pipeline,
    decode,
)

USUAL_FACTOR = 100.0
"""A change is refused if it is larger than this many times a usual one.

Clients differ in how many steps they take, and with them in how far they come.
"""

START_FACTOR = 10.0
"""No change is refused for its norm below this many times the norm of the received
model, and below this number: where the usual change is tiny, others may be larger.
"""

NUMBERS_FACTOR = 1e6
"""`USUAL_FACTOR` of messages that are not vectors of the model's size."""

ALONE_FACTOR = 1e12
"""`START_FACTOR` of a change that there is nothing to compare with."""

RECENT_ROUNDS = 5
"""The number of rounds from which the norm of a usual change is taken."""

ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Relative errors of 16-bit numbers; those of other numbers are 1e-6 at most."""

MAX_PRIVATE_STEPS = 10**6
"""The largest number of private steps that a client can have taken in a round."""

SLACK = 1e-3
"""Relative rounding errors of a bound that is computed by both sides."""


def largest_usual_norm(
    recent: Sequence[float] | NDArray[Any],
    cohort: Sequence[float] | NDArray[Any],
    received: float,
    factor: float = USUAL_FACTOR,
) -> float:
    """The largest norm of a change that is believed where no clip bounds it.

        max( factor x median, 10 max( |received model|, 1 ) )

    The median is that of recent rounds or, in the first round, that of the cohort; it is
    the lower of the two middle ones, so that of two clients the smaller one counts. It
    is wrong only if at least half of the clients are.

    Args:
        recent: norms of the changes that were accepted in recent rounds.
        cohort: norms of all changes of this round; may be infinite or NaN.
        received: norm of the model that the client received.
        factor: how many times the median is believed.
    """
    start = max(received, 1.0)
    norms = np.asarray(recent if len(recent) else cohort, float)
    if len(norms) < 2:
        return ALONE_FACTOR * start
    # NaN is sorted to the end, beyond infinity.
    median = float(np.sort(norms)[(len(norms) - 1) // 2])
    return max(factor * median, START_FACTOR * start)


def bound_of(uplink: Pipeline, norm: float | None, size: int) -> float | None:
    """The largest norm of a change that has gone through an uplink.

    Args:
        uplink: the transforms, in the order in which clients apply them.
        norm: clip norm of the round, if it is adaptive.
        size: number of entries of all vectors that a client sends.

    Returns:
        The bound; None if the uplink does not bound changes.
    """
    bound: float | None = None
    for transform in uplink:
        bound = transform.largest_norm(bound, size, norm)
    return bound


class UpdateCheck:
    """Checks the updates of the rounds of one phase, and remembers usual norms.

    Args:
        uplink: the transforms that clients apply to their updates.
    """

    def __init__(self, uplink: Pipeline) -> None:
        self._uplink = uplink
        self._recent: dict[str, deque[list[float]]] = {}

    def refuse(
        self,
        exchange: Exchange,
        answers: Mapping[int, Mapping[str, np.ndarray]],
    ) -> dict[int, str]:
        """Find the answers that no honest client can have sent.

        Args:
            exchange: the exchange, of the task "client" or "probe".
            answers: the updates that arrived, by position in the cohort; without those
                that are summed behind masks. Shapes and types are as expected, and
                numbers are finite.

        Returns:
            Why an answer is refused, in one line, by position in the cohort.
        """
        refused: dict[int, str] = {}
        for place, update in answers.items():
            try:
                self._check_numbers(exchange, place, update)
            except ValueError as error:
                refused[place] = str(error)
        rest = {
            place: update for place, update in answers.items() if place not in refused
        }
        if rest:
            refused |= self._check_norms(exchange, rest)
        return refused

    def _check_numbers(
        self, exchange: Exchange, place: int, update: Mapping[str, np.ndarray]
    ) -> None:
        """Check what a client sends besides vectors.

        Raises:
            ValueError: a number is out of its range.
        """
        cohort, streams = exchange.cohort, exchange.downlink.streams
        size = int(cohort.clients.sizes[cohort.rows[place]])
        ranges = dict(exchange.algorithm.ranges(size))
        ranges[PRIVATE_STEPS] = (0, MAX_PRIVATE_STEPS)
        ranges[WITHIN_CLIP_NORM] = (0, 1)
        models = streams.get("model")
        if models is not None:
            entries = int(models.values.shape[-1])
            received = int((models.recipients[place] >= 0).sum())
            for kind in MODEL_KINDS:
                ranges[indices_kind(kind)] = (0, entries - 1)
                ranges[start_kind(kind)] = (0, max(received - 1, 0))
        for kind, array in update.items():
            if kind not in ranges or not array.size:
                continue
            low, high = ranges[kind]
            smallest, largest = float(array.min()), float(array.max())
            is_rounded = is_float(array) and np.isfinite(high)
            tolerance = 1e-6 * max(abs(low), abs(high)) if is_rounded else 0.0
            require(
                low - tolerance <= smallest and largest <= high + tolerance,
                f"it sent {smallest if smallest < low else largest:g} as {kind!r}, which"
                f" is between {low:g} and {high:g}",
            )

    def _check_norms(
        self, exchange: Exchange, answers: Mapping[int, Mapping[str, np.ndarray]]
    ) -> dict[int, str]:
        """Compare the norms of changes with the bound, or with what is usual."""
        decoded = self._decoded(exchange, answers)
        places = list(answers)
        vectors = [kind for kind in decoded if kind in MODEL_KINDS]
        received = _received_models(exchange.downlink, places)
        norms: dict[str, dict[int, float]] = {}
        for kind, rows in decoded.items():
            if not jnp.issubdtype(rows[0].dtype, jnp.floating):
                continue
            norms[kind] = {}
            for row, place in enumerate(places):
                start = received[place].models if kind == "model" else None
                norms[kind][place] = _change_norm(rows[row], start)

        bounded_kinds: list[str] = []
        refused: dict[int, str] = {}
        if exchange.task == "client" and vectors:
            bounded_kinds, refused = self._check_bound(
                exchange,
                answers,
                received,
                {kind: norms[kind] for kind in vectors},
                sum(decoded[kind][0].size for kind in vectors),
            )
        is_round = exchange.task == "client"
        for kind, of_clients in norms.items():
            if kind in bounded_kinds:
                continue
            recent = self._recent.setdefault(kind, deque(maxlen=RECENT_ROUNDS))
            known = [norm for norms in recent for norm in norms] if is_round else []
            factor = USUAL_FACTOR if kind in MODEL_KINDS else NUMBERS_FACTOR
            cohort = list(of_clients.values())
            limits: dict[float, float] = {}  # by the norm of the received model
            accepted = []
            for place, norm in of_clients.items():
                start_norm = received[place].norm
                if start_norm not in limits:
                    limits[start_norm] = largest_usual_norm(
                        known, cohort, start_norm, factor
                    )
                limit = limits[start_norm]
                if not norm <= limit:
                    refused.setdefault(
                        place,
                        f"its change of {kind!r} has the norm {norm:.3g}, and what"
                        f" clients usually send is far below {limit:.3g}",
                    )
                elif place not in refused:
                    accepted.append(norm)
            if is_round:
                recent.append(accepted)
        return refused

    def _check_bound(
        self,
        exchange: Exchange,
        answers: Mapping[int, Mapping[str, np.ndarray]],
        received: Mapping[int, "_Received"],
        norms: Mapping[str, Mapping[int, float]],
        size: int,
    ) -> tuple[list[str], dict[int, str]]:
        """Compare changes with the bound that the uplink keeps.

        Returns:
            The kinds of message that it bounds, and why answers are refused.
        """
        announced = exchange.downlink.scalars.get(CLIP_NORM)
        adaptive = None if announced is None else float(np.max(np.asarray(announced)))
        bound = bound_of(self._uplink, adaptive, size)
        if bound is None:
            return [], {}
        refused = {}
        for place, update in answers.items():
            # What a client rounds is its model, which is larger than its change.
            rounding = max(
                ROUNDING.get(str(update[kind].dtype), 1e-6)
                for kind in norms
                if kind in update
            )
            limit = bound * (1 + SLACK) + rounding * (bound + received[place].norm)
            norm = float(np.sqrt(sum(norms[kind][place] ** 2 for kind in norms)))
            if not norm <= limit:
                refused[place] = (
                    f"its change has the norm {norm:.3g}, and the job's uplink"
                    f" ({_names(self._uplink)}) bounds it to {limit:.3g}"
                )
        return list(norms), refused

    def _decoded(
        self, exchange: Exchange, answers: Mapping[int, Mapping[str, np.ndarray]]
    ) -> Mapping[str, Any]:
        """The updates of the clients that answered, without compression, by kind."""
        kinds = next(iter(answers.values()))
        rows = {kind: [update[kind] for update in answers.values()] for kind in kinds}
        if exchange.task != "client":
            return rows
        # A transform with a state of the server changes updates (adds noise), which it
        # does only to those that are accepted.
        stateless = tuple(each for each in self._uplink if each.is_compression)
        if not stateless:
            return rows
        places = np.array(list(answers))
        cohort = exchange.cohort.subset(places)
        update = {
            kind: ClientRows(jnp.asarray(np.stack(values)), np.arange(len(places)))
            for kind, values in rows.items()
        }
        downlink = _of_clients(exchange.downlink, places, cohort)
        # Numbers that are far too large may overflow; their norm is then not finite.
        decoded, _ = decode(stateless, update, downlink, cohort, [()] * len(stateless))
        return {kind: values.host() for kind, values in decoded.items()}


def check_scores(
    scores: Mapping[str, np.ndarray],
    metrics: Sequence[Metric],
    rows: Mapping[str, int] | None,
) -> None:
    """Check that a client can have measured what it says.

    Args:
        scores: the arrays of its answer, by name (see `wire`).
        metrics: what it was asked to measure.
        rows: the client's number of rows in each split, as it said before training; None
            if they are not known.

    Raises:
        ValueError: a number of rows is another one, or a metric is out of its range.
    """
    for name, count in scores.items():
        _, split, *rest = name.split("/")
        if rest != ["count"]:
            continue
        expected = None if rows is None else rows[split]
        # A client does not say what it measured on few rows.
        if expected is not None and expected < MIN_ROWS:
            expected = 0
        require(
            int(count) >= 0 if expected is None else int(count) == expected,
            f"it measured {int(count)} rows of its split {split!r}"
            + ("" if expected is None else f", and it is to measure {expected}"),
        )
        if int(count) == 0:
            continue
        for metric in metrics:
            prefix = f"scores/{split}/statistics/{metric.name}/"
            statistic = {
                key.removeprefix(prefix): value
                for key, value in scores.items()
                if key.startswith(prefix)
            }
            low, high = metric.limits()
            for label, value in metric.values(statistic).items():
                # Stricter than the record of metrics, which computes the value with
                # those of other clients and would end the run.
                require(
                    bool(metric.can_be(value, rounding=5e-7)),
                    f"its {label} on the split {split!r} is {value:g}, which is between"
                    f" {low:g} and {high:g}",
                )


def require_finite_server(server: Any, round: int) -> None:
    """Require that the server's state can be trained on.

    Args:
        server: the state after a round.
        round: number of the round, from 0.

    Raises:
        ValueError: a number in it is NaN or infinite, or was in no earlier state.
    """
    for leaf in jax.tree.leaves(server):
        array = np.asarray(leaf) if isinstance(leaf, jax.Array) else None
        if array is None or not is_float(array):
            continue
        require(
            bool(np.isfinite(array).all()),
            f"the server's model became NaN or infinite in round {round + 1}, from"
            " answers that were all finite; the checkpoint of the round before is"
            " kept: lower the learning rates, of the server too",
        )


class _Received(NamedTuple):
    """What a client received.

    Attributes:
        models: the distinct models [k, d]; None if there is none.
        norm: the largest of their norms; 0 if there is none.
    """

    models: np.ndarray | None
    norm: float


def _received_models(downlink: Downlink, places: Sequence[int]) -> dict[int, _Received]:
    """The models that each client of the cohort received."""
    streams = downlink.streams.get("model")
    if streams is None:
        return dict.fromkeys(places, _Received(None, 0.0))
    values = np.asarray(streams.values)
    known: dict[bytes, _Received] = {}  # most clients receive the same
    received = {}
    for place in places:
        recipients = np.asarray(streams.recipients[place])
        key = recipients.tobytes()
        if key not in known:
            rows = np.unique(recipients[recipients >= 0])
            models = values[rows] if len(rows) else None
            norm = 0.0 if models is None else max(_norm(model) for model in models)
            known[key] = _Received(models, norm)
        received[place] = known[key]
    return received


def _change_norm(sent: np.ndarray, start: np.ndarray | None) -> float:
    """The norm of a client's change, from the nearest received vector or from zero.

    Args:
        sent: one vector [d], several [k, d], or other numbers.
        start: the received models [n, d]; None = the numbers are changes themselves.
    """
    if start is None or sent.ndim == 0 or sent.shape[-1] != start.shape[-1]:
        return _norm(sent)
    vectors = sent.reshape(-1, sent.shape[-1])
    squares = 0.0
    for vector in vectors:
        squares += min(_norm(vector - model) for model in start) ** 2
    return float(np.sqrt(squares))


def _norm(array: np.ndarray) -> float:
    """The Euclidean norm, which single precision may not be able to represent."""
    flat = array.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(flat))
        if not np.isfinite(norm):
            norm = float(np.linalg.norm(flat.astype(np.float64)))
    return norm


def _of_clients(downlink: Downlink, places: NDArray[Any], cohort: Cohort) -> Downlink:
    """A downlink for some clients of the cohort."""
    streams = {
        kind: replace(sent, recipients=sent.recipients[places])
        for kind, sent in downlink.streams.items()
    }
    return replace(downlink, streams=streams, reply=cohort.reporting)


def _names(uplink: Pipeline) -> str:
    """The transforms of an uplink with their norms, for messages."""
    names = []
    for transform in uplink:
        norm = getattr(transform, "norm", None)
        names.append(transform.name if norm is None else f"{transform.name} {norm:g}")
    return ", ".join(names)
