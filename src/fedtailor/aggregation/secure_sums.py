"""Sums of clients' vectors, from which a server learns nothing else: their settings,
which sums hide each client, and the fixed-point numbers that are added.

Over machines they are computed behind masks (`fedtailor.remote`). A simulation computes the
same numbers from the vectors themselves (`hidden_update`), without noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, UInt32
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.sum_shares import (
    ReleasedSums,
    SumHistory,
    others_hide,
)
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    ClientRows,
    Cohort,
    HiddenRows,
    Pipeline,
    Sums,
)
from fedtailor.protocol.sgd import sgds_of

MIN_CLIENTS = 3
"""Minimum number of clients in a sum; with two, each learns the other's vector."""

MAX_SHARE = 0.9
"""Maximum share of a client in a combination of sums (see `sum_shares`).

A combination in which one client has a larger share is nearly that client's vector.
"""

LEAST_WEIGHT = 1e-3
"""A client with a smaller part of a sum hides nobody in it, and is not counted."""

LEAST_THRESHOLD = 0.66
"""The least `SecureSums.threshold`: two thirds, as people write them."""

MAX_CLIENTS = 2**11
"""The most clients of a sum: a client looks at every two of them, in seconds and some ten
megabytes.
"""

SCOPES = ("run", "round")
"""The sums of which no combination may show a client's vector: those of all rounds, or
those of each round by itself.
"""


_HEADROOM = 2.0**20
"""Steps reserved for rounding errors, which are at most half a step for each client, and
for noise.
"""

NOISE = 2.0**-16
"""Standard deviation of the noise that a client over machines adds to each number of a vector
before it weighs and rounds it (see `FixedPoint.noise`).

A client's part is a model in single precision, times its weight, rounded. Where it can be one
of few known models, which of all clients' add up to exactly this sum was a test of them in
each number of each round: all counts of all clients followed. Noise of some hundred roundings
hides these. (What the same sums of real numbers show it does not hide, see the page on
secure aggregation.)
"""

COUNTING_RANGE = 64.0
"""The largest `SecureSums.range` with which shares of rows are added: the noise of a client
has a deviation of 1.5e-5.
"""


@dataclass(frozen=True)
class SecureSums:
    """Settings of secure aggregation.

    Attributes:
        threshold: reconstruction threshold, as a fraction of a client's neighbours
            (including the client); from two thirds to 1.
        range: the largest absolute value of a number that a client can send.
        open_probe: whether clients answer a method's probe without masks.
        scope: the sums of which no combination may show a client's vector, one of
            `SCOPES`. A client's vectors are alike from round to round. So the sums of
            two rounds show a client that has a part in one of them only: in the scope
            "run" all clients have a part in every sum.
    """

    threshold: float = 2 / 3
    range: float = 64.0
    open_probe: bool = False
    scope: Literal["run", "round"] = "run"

    def __post_init__(self) -> None:
        require(
            self.scope in SCOPES,
            f"sum_scope is {self.scope!r}; it must be 'run' or 'round'",
        )
        # Of two lists of clients each is confirmed by as many as this. The smaller it is,
        # the fewer clients that confirm both make both sums open.
        require(
            LEAST_THRESHOLD <= self.threshold <= 1,
            f"sum_threshold is {self.threshold:g}; it must be from {LEAST_THRESHOLD:g}"
            " (two thirds) to 1",
        )
        # A sum is rounded to multiples of range / 2^31. With a larger range too few
        # digits of a model would remain.
        require(
            1e-3 <= self.range <= 1e6,
            f"sum_range is {self.range:g}; it must be at least 0.001, and at most"
            " 1000000",
        )

    def minimum(self, minimum: int, asked: int) -> int:
        """The number of clients that must answer in a round.

        Args:
            minimum: the number that the job asks for.
            asked: the number of clients that are asked.
        """
        return asked if self.scope == "run" else min(minimum, asked)

    def reconstruction_threshold(self, neighbours: int) -> int:
        """The number of shares that reconstruct a secret.

        Args:
            neighbours: number of shares that were made.
        """
        # More than half of the neighbours in any case: else one half could reveal one
        # secret of a client, and the other half the other one. 1e-9 makes 2/3 of 3 equal
        # to 2 in floating point.
        share = math.ceil(self.threshold * neighbours - 1e-9)
        return max(MIN_CLIENTS, neighbours // 2 + 1, share)

    @property
    def largest_model(self) -> float:
        """The largest absolute value of an entry of a model that clients train.

        From one next to `range`, the round in which training goes beyond would say how many
        of a client's rows have a category.
        """
        return self.range / 2

    def check_models(self, kind: str, sums: Float[np.ndarray, "s n"]) -> None:
        """Check that clients will train models that were added up.

        Args:
            kind: of the vectors; others than models are not sent to clients again.
            sums: of them.

        Raises:
            ValueError: they will not.
        """
        largest = float(np.abs(sums).max(initial=0.0))
        require(
            kind != "model" or largest <= self.largest_model,
            f"a mean of models has an entry of size {largest:g}, and clients train models"
            f" with entries up to {self.largest_model:g}, half of sum_range: raise"
            " sum_range of the job's [privacy], or lower the learning rate",
        )

    def check(self, algorithm: Algorithm, uplink: Pipeline) -> None:
        """Check that a method needs no more than sums.

        Args:
            algorithm: the method, or a schedule of several.
            uplink: the transforms that clients apply to their updates.

        Raises:
            ValueError: a method's server or probe needs the vectors of single clients, sums
                of its vectors show them, or a transform of the uplink gives something
                that cannot be added.
        """
        for method, _ in algorithm.phases():
            name = method.about.name
            advice = (
                f"; {name}'s needs no more if {method.about.sums_if}"
                if method.about.sums_if
                else f", and {name}'s needs more of each client; `fedtailor algorithms"
                " --by sees` lists methods that do not"
            )
            require(
                method.server_sees in ("sums", "nothing"),
                f"secure_aggregation shows the server sums only{advice}",
            )
            require(
                all(sgd.ridge is None for sgd in sgds_of(method)),
                f"secure_aggregation would not hide {name}'s clients: ridge shortens each"
                " one's model by its number of rows, which several sums show; say"
                " weight_decay",
            )
            require(
                not method.sums_show_clients,
                f"secure_aggregation would not hide {name}'s clients:"
                f" {method.sums_show_clients}",
            )
            require(
                not method.sends_class_counts or self.range <= COUNTING_RANGE,
                f"the noise of sums of numbers up to {self.range:g} would hide counts of"
                f" classes, which {name} needs: set sum_range to {COUNTING_RANGE:g} or less",
            )
            require(
                not method.probe_tells_columns,
                f"{name}'s clients would tell sums of their columns in answers to the probe,"
                " beside which a sum of all shows what one hides: choose settings of the"
                " method that need no probe, or leave out secure_aggregation",
            )
            require(
                self.open_probe or not method.probes,
                f"{name}'s server needs each client's answer to the probe, which no sum"
                " hides; leave out secure_aggregation, or have clients answer it"
                ' openly: probe = "open" in [privacy]',
            )
        for transform in uplink:
            require(
                transform.keeps_sums,
                "secure_aggregation adds what clients send, and"
                f" {type(transform).__name__} makes it something else, or longer at one"
                " client than at others, which several sums show; of the uplink, only"
                " gaussian-noise by = 'client' (which clips, too) goes with it",
            )

    def check_client_count(
        self, algorithm: Algorithm, clients: int, population: int
    ) -> None:
        """Check that a round has enough clients to hide the vector of each.

        Args:
            algorithm: the method, or a schedule of several.
            clients: number of clients that report in a round.
            population: number of clients that take part in training.

        Raises:
            ValueError: there are fewer than three clients, or fewer than two for each
                stream of UCFL, or too many; or other clients report in each round, and
                the scope is that of the run.
        """
        require(
            self.scope == "round" or clients == population,
            f"{clients} of {population} clients report in a round, and the differences"
            " of such sums show single clients: have all of them report (participation"
            ' = 1.0), or set sum_scope = "round" in [privacy], which hides a client in'
            " each round by itself only",
        )
        require(
            clients >= MIN_CLIENTS,
            f"secure_aggregation needs {MIN_CLIENTS} clients or more in a round, not"
            f" {clients}: of two, each knows the other's update",
        )
        require(
            population <= MAX_CLIENTS,
            f"secure_aggregation adds over up to {MAX_CLIENTS:,} clients, not"
            f" {population:,}; divide them into several federations",
        )
        for method, _ in algorithm.phases():
            sums = method.sums_per_round
            require(
                2 * sums <= clients or sums == 1,
                f"{sums} sums over {clients} clients hide little; secure_aggregation"
                f" needs two clients or more in a round for each of {method.about.name}'s"
                " streams",
            )


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point numbers in [-range, range], as integers modulo 2^32.

    Sums of the integers are exact. Rounding changes a number by at most half a step,
    and therefore a sum over n clients by at most n/2 steps.
    """

    range: float

    @property
    def step(self) -> float:
        """The distance between two neighbouring numbers: 3e-8 for a range of 64."""
        return self.range / (2.0**31 - _HEADROOM)

    @property
    def noise(self) -> float:
        """The standard deviation of a client's noise: 1.5e-5, and in proportion to ranges above
        64, or below 1.
        """
        return NOISE * max(self.range / 64, min(self.range, 1.0))

    def check(self, vector: Float[np.ndarray, "..."]) -> None:
        """Check that a vector can be encoded.

        Raises:
            ValueError: a number is out of range, or not finite.
        """
        largest = float(np.abs(vector).max(initial=0.0))
        require(
            largest <= self.range,
            f"it would send a number of size {largest:g}, and sums hold numbers up to "
            f"{self.range:g}; raise sum_range of the job's [privacy]",
        )

    def encode(self, values: Float[np.ndarray, "..."]) -> UInt32[np.ndarray, "..."]:
        """Encode numbers within the range as multiples of the step, modulo 2^32."""
        steps = np.rint(values.astype(np.float64) / self.step).astype(np.int64)
        return steps.astype(np.uint32)

    def decode(self, steps: UInt32[np.ndarray, "..."]) -> NDArray[np.float64]:
        """Decode encoded numbers, or the sum of encoded numbers."""
        return steps.view(np.int32).astype(np.float64) * self.step


def hidden_kinds(update: Mapping[str, Any]) -> list[str]:
    """The kinds of an update's messages that are summed behind masks.

    These are all kinds but the number of private steps.

    Args:
        update: the arrays of one client, or their shapes and types, by kind.

    Raises:
        ValueError: the update has scalars, which a server uses for more than sums.
    """
    hidden = [kind for kind in update if kind != PRIVATE_STEPS]
    scalars = [kind for kind in hidden if not len(update[kind].shape)]
    require(
        not scalars,
        f"clients would send numbers in addition to the model ({', '.join(scalars)}), which"
        " secure_aggregation does not hide; leave out the setting of the method that"
        " asks for them",
    )
    return hidden


def unsafe_combination(sums: ReleasedSums, past: bool) -> str:
    """Say which client a combination of sums would show; empty if none.

    Args:
        sums: the sums of a round, and those before with which they may be combined.
        past: whether there are sums before.
    """
    which = "these and earlier sums" if past else "the sums"
    if not sums.are_repeated:
        return (
            f"of {which} one is a combination of others, and none of them: the rounding of"
            " many such sums would show each client's digits"
        )
    share, client = sums.largest_share(MAX_SHARE)
    if share > MAX_SHARE:
        return (
            f"client {client} would be {share:.0%} of a combination of {which}, which"
            f" would not hide its vector (at most {MAX_SHARE:.0%})"
        )
    are_hidden = others_hide(sums.weights)
    if are_hidden.all():
        return ""
    largest = np.abs(sums.weights).max(axis=0)
    client = sums.names[int(np.where(are_hidden, 0, largest).argmax())]
    return (
        f"in a combination of {which} the parts of all clients but {client} are so small"
        " that they round to 0, and would not hide its vector"
    )


def unsafe_sums(
    weights: Float[np.ndarray, "s c"],
    surviving: Bool[np.ndarray, " c"],
    names: Sequence[str],
) -> dict[int, str]:
    """Find the sums in which one client's weight is too large to hide its vector, or that
    are over too few clients.

    Args:
        weights: weight of each client in each sum.
        surviving: whether each client has not dropped out.
        names: names of the clients.

    Returns:
        For the index of each such sum, a line.
    """
    unsafe = {}
    remaining = np.abs(np.where(surviving, weights, 0.0))
    for index, (sizes, count) in enumerate(
        zip(remaining, clients_of_sums(remaining), strict=True)
    ):
        client, total = int(sizes.argmax()), float(sizes.sum())
        if 0 < count < MIN_CLIENTS:
            unsafe[index] = (
                f"sum {index + 1} would be over {count} clients, and it has to be over"
                f" {MIN_CLIENTS} or more"
            )
        if sizes[client] > MAX_SHARE * total:
            unsafe[index] = (
                f"client {names[client]} would be {sizes[client] / total:.0%} of sum"
                f" {index + 1}, which would not hide its vector (at most"
                f" {MAX_SHARE:.0%})"
            )
    return unsafe


def clients_of_sums(weights: Float[np.ndarray, "s c"]) -> NDArray[np.int64]:
    """How many clients have a part [s] of each sum that is not negligible."""
    sizes = np.abs(weights)
    parts = sizes > LEAST_WEIGHT * sizes.sum(axis=1, keepdims=True)
    return parts.sum(axis=1)


def normalized(
    weights: NDArray[np.float64], surviving: Bool[np.ndarray, " c"]
) -> NDArray[np.float64]:
    """Normalize the weights of the surviving clients.

    Args:
        weights: [s, c] weight of each client in each sum.
        surviving: whether each client has not dropped out.

    Returns:
        [s, c] weights whose absolute values sum to 1 in each row. Weights of clients
        that dropped out are zero, and so are all weights of a row without survivors.
    """
    remaining = np.where(surviving, weights, 0.0)
    total = np.abs(remaining).sum(axis=1, keepdims=True)
    return np.divide(remaining, total, out=np.zeros_like(remaining), where=total > 0)


def add_up(
    weights: Float[np.ndarray, "s c"],
    vectors: Float[np.ndarray, "c n"],
    names: Sequence[str],
    settings: SecureSums,
    earlier: ReleasedSums,
) -> tuple[Sums, ReleasedSums]:
    """Weighted sums as all clients compute them together, if none of them leaves, without
    their noise.

    Args:
        weights: weight of each client in each sum.
        vectors: the clients' vectors.
        names: names of the clients.
        settings: of the sums.
        earlier: the sums with which these may be combined.

    Returns:
        The sums, and which of them are known: one that would not hide the vector of one
        client is left out. And `earlier` with these sums.

    Raises:
        ValueError: every sum, or a combination of them, would show the vector of one
            client, or a number is too large.
    """
    everyone = np.ones(len(names), bool)
    unsafe = unsafe_sums(weights, everyone, names)
    require(
        len(unsafe) < len(weights),
        "; ".join(unsafe.values()) + "; use fewer streams, or weights that differ less",
    )
    is_safe = np.array([index not in unsafe for index in range(len(weights))])
    scaled = normalized(weights[is_safe], everyone)
    line = unsafe_combination(
        earlier.with_sums(names, scaled), past=bool(earlier.names)
    )
    require(not line, f"{line}; use fewer streams, or have more clients in a round")
    point = FixedPoint(settings.range)
    point.check(vectors)
    total = np.zeros((len(scaled), vectors.shape[1]), np.uint32)
    for client, vector in enumerate(vectors.astype(np.float64)):
        for row, weight in enumerate(scaled[:, client]):
            total[row] += point.encode(weight * vector)
    remaining = np.abs(scaled).sum(axis=1)
    requested = np.abs(weights[is_safe]).sum(axis=1)
    scale = np.zeros_like(remaining)
    np.divide(requested, remaining, out=scale, where=remaining > 0)
    sums = np.zeros((len(weights), vectors.shape[1]))
    sums[is_safe] = point.decode(total) * scale[:, None]
    is_known = np.zeros(len(weights), bool)
    is_known[is_safe] = remaining > 0
    released = earlier.with_sums(names, normalized(scaled, everyone))
    return (sums, is_known), released


def hidden_update(
    update: Mapping[str, ClientRows],
    cohort: Cohort,
    reporting: Bool[np.ndarray, " c"],
    settings: SecureSums,
    history: SumHistory,
) -> dict[str, ClientRows]:
    """The update of a simulated cohort; the server gets secure sums of it only.

    Args:
        update: what the clients sent, by kind.
        cohort: the clients.
        reporting: which of them sent something.
        settings: of the sums.
        history: the sums that the server has had; it is added to.
    """
    names = [cohort.clients.names[row] for row in cohort.rows[reporting]]

    def hide(kind: str, rows: ClientRows) -> HiddenRows:
        sent = [0, 0]  # vectors by each client so far, and the entries of each

        def sums(weights: NDArray[np.float64], index: int | None) -> Sums:
            vectors = np.asarray(rows.host(), np.float64)[reporting]
            if index is not None:
                vectors = vectors[:, index]
            vectors = vectors.reshape(len(names), -1)
            earlier = history.released(cohort.round)
            result, released = add_up(
                weights[:, reporting], vectors, names, settings, earlier
            )
            settings.check_models(kind, result[0])
            history.record(cohort.round, [kind, index], released, names)
            sent[:] = sent[0] + int(result[1].sum()), vectors.shape[1]
            return result

        return HiddenRows(
            rows.shape, np.dtype(rows.dtype), sums, lambda: (sent[0], sent[1])
        )

    hidden = hidden_kinds({kind: rows.values[0] for kind, rows in update.items()})
    return {
        kind: hide(kind, rows) if kind in hidden else rows
        for kind, rows in update.items()
    }
