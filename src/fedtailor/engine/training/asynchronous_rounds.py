"""The rounds of a server that does not wait for late clients: from which model each of
them began, and what its answer counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation.pipelines.change import received_rows
from fedtailor.engine.training.asynchronous import (
    AnswerOrder,
    AnswerRecord,
    AsynchronousServer,
)
from fedtailor.protocol import (
    NOT_SENT,
    Algorithm,
    Answers,
    Cohort,
    Downlink,
    Streams,
    Update,
    next_power_of_two,
    sums_type,
)


@dataclass
class AsynchronousRounds:
    """Which answers each round takes, and the server's states from which those clients
    began.

    In a simulation clients compute when their answers arrive, not when they begin: what
    they compute with has not changed since, as each of them begins again after its answer
    only.

    Attributes:
        settings: what the user asked for.
        order: whose answers the server takes in each step of a simulation; None = those
            that come first, over machines.
        began: [m] over machines, the round in which each client began whose answer is
            still to come; -1 = it is free.
        asks_again: whether those are to be asked again, as the server was restarted.
        record: over machines, whose answers each round took.
        servers: the server's state after each step from which clients may still train.
    """

    settings: AsynchronousServer
    order: AnswerOrder | None
    began: NDArray[np.int64]
    asks_again: bool = False
    record: AnswerRecord = field(default_factory=AnswerRecord)
    servers: dict[int, Any] = field(default_factory=dict)

    def came(
        self, round: int, answers: Answers
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Whose answers came first, and their ages, as `AnswerOrder.next_step`.

        Args:
            round: the number of rounds done.
            answers: of all clients, to an exchange that did not wait (`Exchange.first`).
        """
        self.began = np.array(answers.output)
        clients = np.flatnonzero(answers.reporting)
        ages = round - self.began[clients]
        self.began[clients] = -1
        return clients, ages

    def count(self, cohort: Cohort) -> None:
        """Record whose answers a round has counted."""
        if self.order is None:
            counted = cohort.reporting
            ages = cohort.round - cohort.began
            self.record.add(cohort.round, cohort.rows[counted], ages[counted])

    def downlink(self, algorithm: Algorithm, cohort: Cohort) -> Downlink:
        """The algorithm's messages to a cohort, to each client from the server's state
        of the round in which it began.
        """
        parts = []
        for step in np.unique(cohort.began):
            positions = np.flatnonzero(cohort.began == step)
            began_together = cohort.subset(positions)
            parts.append((positions, self.downlink_of_step(algorithm, began_together)))
        return merged_downlinks(parts, len(cohort))

    def downlink_of_step(self, algorithm: Algorithm, cohort: Cohort) -> Downlink:
        """The algorithm's message to clients that began in the same round, perhaps an
        earlier one, from the server's state of that round.
        """
        began = int(cohort.began[0])
        then = replace(cohort, round=began, age=None)
        return algorithm.broadcast(self.servers[began], then)

    def forget(self) -> None:
        """Forget the models from which nobody trains any more."""
        if self.order is None:
            oldest = self.began[self.began >= 0].min(initial=max(self.servers) + 1)
        else:
            oldest = self.order.oldest
        kept = {}
        for step, server in self.servers.items():
            if step >= oldest:
                kept[step] = server
        self.servers = kept

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint stores; the clock of a simulation is played again."""
        return {
            "servers": {str(step): server for step, server in self.servers.items()},
            "began": self.began,
            "record": self.record.snapshot(),
        }

    def restore(self, round: int, snapshot: Mapping[str, Any]) -> None:
        """Continue after a number of rounds, with what `snapshot` returned then."""
        servers = snapshot["servers"]
        self.servers = {int(step): server for step, server in servers.items()}
        self.began = np.array(snapshot["began"], np.int64)
        self.record = AnswerRecord.of(snapshot["record"])
        self.asks_again = True
        if self.order is not None:
            self.order.restore(round)


def merged_downlinks(
    parts: list[tuple[NDArray[np.int64], Downlink]], clients: int
) -> Downlink:
    """One downlink of several, each for some clients of a cohort.

    Args:
        parts: the positions in the cohort of a downlink's clients, and the downlink.
        clients: the size of the cohort.

    Returns:
        A downlink that sends each client what its part sends it. Rows of zeros, which
        nobody receives, fill up the streams to a power of two, so that programs are
        compiled for few sizes.
    """
    ((_, first), *others) = parts
    if not others:
        return first
    streams = {}
    for kind, sent in first.streams.items():
        columns = sent.recipients.shape[1]
        recipients = np.full((clients, columns), NOT_SENT, np.int32)
        values = []
        count = 0
        for positions, part in parts:
            each = part.streams[kind]
            recipients[positions] = np.where(
                each.recipients == NOT_SENT, NOT_SENT, each.recipients + count
            )
            values.append(jnp.asarray(each.values))
            count += len(each.values)
        padding = next_power_of_two(count) - count
        values.append(jnp.zeros((padding, *values[0].shape[1:]), values[0].dtype))
        streams[kind] = Streams(jnp.concatenate(values), recipients, sent.already_held)
    scalars = {}
    for name in first.scalars:
        number = np.asarray(first.scalars[name])
        scalars[name] = np.zeros(clients, number.dtype)
        for positions, part in parts:
            scalars[name][positions] = part.scalars[name]
    reply = np.ones(clients, bool)
    for positions, part in parts:
        reply[positions] = part.reply
    return replace(first, streams=streams, scalars=scalars, reply=reply)


def by_age(
    server: AsynchronousServer,
    update: Update,
    age: NDArray[np.int64],
    received: Downlink,
    newest: Downlink,
    is_statistic: NDArray[np.bool_] | None = None,
) -> Update:
    """What the server averages instead of what clients sent (`AsynchronousServer`).

    Args:
        server: the settings.
        update: what the clients sent, after all transforms.
        age: [c] the age of each client's answer.
        received: what the clients received.
        newest: what the server would send them now.
        is_statistic: `Cohort.is_statistic`. A change of running statistics from an older
            model must not be added to the newest one: variances might become negative.
    """
    rows = update.get("model")
    weight = server.weights(age)
    # An answer that counts whole, and whose client began from the newest model, stays as
    # it is, to the bit.
    is_whole = (weight == 1) & ((age == 0) | (server.step == "model"))
    if rows is None or bool(is_whole.all()):
        return update
    x = jnp.asarray(rows.values)
    sums = sums_type(x)
    w = jnp.asarray(received_rows("model", update, newest), sums)
    start = w
    if server.step == "change":
        start = jnp.asarray(received_rows("model", update, received), sums)
        if is_statistic is not None and len(is_statistic) == x.shape[-1]:
            start = jnp.where(is_statistic, w, start)
    s = jnp.asarray(rows.to_rows(weight, fill=0.0), sums)[:, None]
    stays = rows.to_rows(is_whole, fill=True)[:, None]
    moved = (w + s * (x.astype(sums) - start)).astype(x.dtype)
    return {**update, "model": replace(rows, values=jnp.where(stays, x, moved))}
