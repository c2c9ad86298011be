"""`policy.toml`: what a client allows, whatever the job and the coordinator ask.

A client takes part in the job of its copy of `job.toml`. Its policy limits that further,
and holds over all jobs and runs. Without a file the defaults apply.
"""

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from fedtailor._base.choice import require
from fedtailor._base.printable import join_names
from fedtailor.aggregation.secure_sums import MIN_CLIENTS
from fedtailor.engine.client.private_steps import private_settings
from fedtailor.engine.training import RoundCount
from fedtailor.protocol import noise_of
from fedtailor.protocol.document import read_document
from fedtailor.protocol.plain import ConfigError, parse
from fedtailor.remote.job.exposure import NUMBERS_PER_CELL
from fedtailor.remote.job.job import Job
from fedtailor.remote.keys.keys import write_new
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless
from fedtailor.remote.wire.request_kind import (
    DESCRIBE,
    TRAINING,
    RequestKind,
    clients_of_sum,
    kind_of,
)
from fedtailor.remote.wire.secure_sums import MAX_NEIGHBOURS

POLICY = "policy.toml"
"""File in a client's kit."""

_HOURS = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)", re.ASCII)
_ALL_DAY = "00:00-24:00"


def _check_hours(hours: str) -> str:
    match = _HOURS.fullmatch(hours)
    ends = ("", "") if match is None else (match[1] + match[2], match[3] + match[4])
    # From 24:00 on there is no time of the day.
    is_valid = match is not None and ends[0] < "2400" >= ends[1] and ends[0] != ends[1]
    require(is_valid, 'write the hours as "HH:MM-HH:MM", such as "20:00-06:00"')
    return hours


ClientCount = Annotated[int, Field(ge=MIN_CLIENTS, le=MAX_NEIGHBOURS + 1)]


@dataclass(frozen=True)
class Policy:
    """What a client allows.

    Attributes:
        rounds: most rounds of training in a run; None = those of the job, beyond which
            nothing is ever answered.
        runs: most runs of one job, as a coordinator that starts again asks the same
            rows once more.
        epsilon: the most that the client's answers may spend in all, over rounds, runs
            and jobs, where they have noise.
        noise_only: whether to take part only where nothing leaves without noise that
            the client adds, but numbers of rows and steps: no sums of columns, no losses,
            no probe, no boosting.
        secure_aggregation_only: whether to take part only where the coordinator sees
            sums over clients, and no client's own update.
        least_clients: least number of clients in a sum.
        federated_statistics: whether counts, means and sums of the columns, and names of
            their categories, may be sent before training, in federated preprocessing and
            to describe the table; sums over clients, to boost trees or fit a regression;
            and what tells how many rows each class has, by the methods that send it.
        measurements: whether sums of losses and of correct predictions may be sent, once
            for each round. No mask covers them, so they are this client's own: where
            `secure_aggregation_only` holds, none are sent. A coordinator that makes
            models for it learns cells of the rows on which they are measured.
        columns: columns that may be used, with the target; None = those of the job.
        hours: when requests are answered, "HH:MM-HH:MM" by this machine's clock.
        numbers_per_cell: the most numbers that all runs of a job send for each cell of
            the training rows, where the coordinator sees them one by one, without noise.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False
    )

    rounds: RoundCount | None = None
    runs: Annotated[int, Field(ge=1)] = 3
    epsilon: Annotated[float, Field(gt=0)] = 10.0
    noise_only: bool = False
    secure_aggregation_only: bool = True
    least_clients: ClientCount = MIN_CLIENTS
    federated_statistics: bool = False
    measurements: bool = False
    columns: tuple[str, ...] | None = None
    hours: Annotated[str, AfterValidator(_check_hours)] = _ALL_DAY
    numbers_per_cell: Annotated[float, Field(gt=0)] = NUMBERS_PER_CELL

    @property
    def sends_statistics(self) -> bool:
        """Whether sums of columns may be sent, which have no noise."""
        return self.federated_statistics and not self.noise_only

    @property
    def shows_statistics(self) -> bool:
        """Whether sums of its own columns may be sent, which have neither noise nor masks."""
        return self.sends_statistics and not self.secure_aggregation_only

    def check_job(self, job: Job) -> None:
        """Check that the policy allows a job.

        Raises:
            Refused: it does not; the line says all reasons.
        """
        reasons = list(self.reasons_against(job))
        refuse_unless(
            not reasons,
            Refusal.POLICY,
            f"the policy here does not allow this job: {'; '.join(reasons)}. Change"
            f" {POLICY} in the kit (join KIT --init-policy writes it), or agree on"
            " another job",
        )

    def reasons_against(self, job: Job) -> Iterator[str]:
        """Why the policy does not allow a job; nothing if it does."""
        if self.secure_aggregation_only and job.spec.privacy.sums is None:
            yield (
                "the coordinator would see this client's own updates"
                " (secure_aggregation_only is true)"
            )
        elif self.secure_aggregation_only and has_probe(job):
            yield (
                "this client would answer a probe openly (secure_aggregation_only is"
                " true)"
            )
        if self.noise_only:
            yield from _without_noise(job)
        if tells_columns(job) and not self.federated_statistics:
            yield (
                "sums over single columns would be sent (federated_statistics is false)"
            )
        if job.boosting is not None:
            yield from self._reasons_against_trees(job.boosting.settings.trees)
        if job.regression is not None and not self.federated_statistics:
            yield (
                "a regression would be fitted from sums of columns and of their products"
                " (federated_statistics is false)"
            )
        if shows_own_counts(job) and self.secure_aggregation_only:
            yield (
                "counts of this client's own rows would follow from the sums of a"
                " regression, in which it has its own intercept or baseline hazard"
                " (secure_aggregation_only is true)"
            )
        if measures(job):
            against = ["measurements is false"] * (not self.measurements)
            against += [
                "secure_aggregation_only is true"
            ] * self.secure_aggregation_only
            if against:
                yield (
                    "this client's own sums of losses would be sent"
                    f" ({join_names(against)})"
                )
        if counts_classes(job) and not self.federated_statistics:
            yield (
                "what tells how many rows each class has would be sent (federated_statistics is"
                " false)"
            )
        if self.columns is not None:
            used = job.schema.used
            others = [name for name in used if name not in self.columns]
            if others:
                yield f"it uses {', '.join(map(repr, others))} (not in columns)"

    def _reasons_against_trees(self, trees: int) -> Iterator[str]:
        """Why the policy does not allow this number of rounds of trees."""
        if not self.federated_statistics:
            yield (
                "trees would be boosted on sums of counts by column"
                " (federated_statistics is false)"
            )
        if self.rounds is not None and trees > self.rounds:
            yield f"it boosts {trees} rounds of trees (rounds = {self.rounds})"

    def check_request(self, request: Request, now: datetime | None = None) -> None:
        """Check that the policy allows a request.

        Args:
            request: the request.
            now: the time; by default that of this machine's clock.

        Raises:
            Refused: it does not.
        """
        kind = kind_of(request)
        clock = (datetime.now() if now is None else now).time()
        refuse_unless(
            self._is_open(clock),
            Refusal.HOURS,
            f"it is {clock:%H:%M}, and the policy here answers at {self.hours}",
        )
        is_noisy = request.algorithm.get("step") == "noisy"
        refuse_unless(
            request.task != DESCRIBE
            or (self.federated_statistics and (is_noisy or not self.noise_only)),
            Refusal.POLICY,
            "the policy here lets no sums over columns be sent to describe the table"
            " (federated_statistics and noise_only)",
        )
        # Rounds that the job does not have are refused by `RoundHandler`. A personal
        # model is made, and measured, after the last round, too.
        number = request.round + (request.task in TRAINING)
        # Steps are many a tree; `check_job` compares the trees.
        is_step = kind is RequestKind.STEP
        refuse_unless(
            self.rounds is None or number <= self.rounds or is_step,
            Refusal.SPENT,
            f"the policy here answers {self.rounds} rounds of a run",
        )
        clients = clients_of_sum(request)
        refuse_unless(
            clients is None or clients >= self.least_clients,
            Refusal.POLICY,
            f"the sum is over {clients} clients, and the policy here adds with"
            f" {self.least_clients} or more",
        )

    def _is_open(self, clock: time) -> bool:
        """Whether requests are answered at a time of the day."""
        first, end = self.hours.split("-")
        now = f"{clock:%H:%M}"
        if first < end:
            return first <= now < end
        return now >= first or now < end  # over midnight

    def describe(self, job: Job) -> list[str]:
        """Say in plain words what the policy allows, and what a job makes of it."""
        rounds = min(self.rounds or job.spec.rounds, job.spec.rounds)
        own = "never this client's own"
        if not self.secure_aggregation_only:
            own = "or this client's own"
        noise = "this job has this client add noise"
        if not adds_noise(job):
            noise = "this job adds no noise here: no epsilon covers what is sent"
        used = job.schema.used
        words = {
            "rounds": [
                f"at most {rounds} of the job's {job.spec.rounds} in a run, and"
                f" {self.runs} runs"
            ],
            "updates": [
                f"seen in sums over {self.least_clients} clients or more, {own}",
                *(
                    ["(this job also sends its own sums of losses)"]
                    * job.spec.privacy.evaluate
                ),
            ],
            "epsilon": [
                f"at most {self.epsilon:g} over all runs and jobs",
                f"({noise})",
            ],
            "statistics": [
                f"of single columns may{'' if self.shows_statistics else ' not'} be"
                " sent before training"
            ],
            "columns": textwrap.wrap(
                _listed(used if self.columns is None else self.columns), 64
            ),
            "hours": [self.hours],
        }
        lines = []
        for name, (first, *others) in words.items():
            lines.append(f"{name:<10}  {first}")
            lines += [f"{'':<10}  {line}" for line in others]
        return lines


def default_policy_note(job: Job) -> str | None:
    """What a coordinator should know of its job: whether clients agree by themselves.

    Returns:
        The line; None if a client without a policy takes part in the job.
    """
    reasons = list(Policy().reasons_against(job))
    if not reasons:
        return None
    return (
        f"clients refuse this job by default: {'; '.join(reasons)}. One that agrees"
        f" changes that in its {POLICY}"
    )


def read_policy(kit: Path) -> Policy:
    """Read the policy in a kit; the defaults if there is none.

    Raises:
        ValueError: the file cannot be read, or an entry is unknown or not valid; with
            file and line.
    """
    # A link that leads nowhere is a policy that cannot be read, and not none.
    if not os.path.lexists(kit / POLICY):
        return Policy()
    document = read_document(kit / POLICY, alone=True)
    try:
        return parse(Policy, document.content, what="entry")
    except ConfigError as error:
        raise ValueError(document.explain(error)) from None


def write_policy(kit: Path, job: Job) -> Path:
    """Write the default policy for a job into a kit.

    Returns:
        The path of the file.

    Raises:
        ValueError: there is a policy already, or the file cannot be written.
    """
    path, policy = kit / POLICY, Policy()
    require(
        not path.exists(), f"there is a policy already; edit {path}, or remove it first"
    )
    columns = json.dumps(job.schema.used, ensure_ascii=False)
    text = _TEMPLATE.format(
        rounds=job.spec.rounds,
        columns=columns,
        **{
            name: json.dumps(getattr(policy, name))
            for name in (
                *("runs", "epsilon", "noise_only", "secure_aggregation_only"),
                *("least_clients", "federated_statistics", "measurements", "hours"),
                "numbers_per_cell",
            )
        },
    )
    write_new(path, text.encode())
    return path


_TEMPLATE = """\
# What this client allows, whatever the job and the coordinator ask. The coordinator
# never sees this file. An entry that is left out has the value that stands here, apart
# from rounds and columns, which are then the job's.

# Most rounds of training in a run; and most runs of one job, as a coordinator that
# starts again asks about the same rows again.
rounds = {rounds}
runs = {runs}

# The most that all answers together may spend, where they have noise: with probability
# 1 - delta nothing that follows from them gets more than e^epsilon times as likely by
# this client's rows. true: take part only where nothing leaves without noise.
epsilon = {epsilon}
noise_only = {noise_only}

# true: the coordinator sees sums over clients, and never this client's own update. And
# the least number of clients in a sum, 3 to 51.
secure_aggregation_only = {secure_aggregation_only}
least_clients = {least_clients}

# true: counts, means and sums of columns may be sent before training, and the names of
# categories that five rows or more have, unless the job lists them: for federated
# preprocessing, and to describe the table (fedtailor federation describe); in sums over
# clients, rows by bins of columns, to boost trees (fedtailor federation boost), and
# products of columns, to fit a regression (fedtailor federation fit); and, by methods
# such as fedproto or pacfl, what tells how many rows each class has.
federated_statistics = {federated_statistics}

# true: sums of losses and of correct predictions over five rows or more may be sent,
# once a round, if the job says so. No mask covers them, so that they leave only if
# secure_aggregation_only is false, too: by models that are made for it a coordinator
# learns cells of the rows on which they are measured.
measurements = {measurements}

# The columns that may be used, with the target.
columns = {columns}

# When requests are answered, by this machine's clock; "20:00-06:00" is the night.
hours = {hours}

# The most numbers that all runs of a job send for each cell of your training rows,
# where the coordinator sees this client's own updates and no noise is added. Rows can
# follow from updates once they have as many numbers as the rows have cells.
numbers_per_cell = {numbers_per_cell}
"""


def _listed(names: Sequence[str], most: int = 12) -> str:
    """The first of some names, and how many there are if these are not all."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def has_probe(job: Job) -> bool:
    """Whether clients of a job answer a probe, which no sum hides."""
    return any(method.probes for method, _ in job.spec.algorithm.phases())


def measures(job: Job) -> bool:
    """Whether clients send sums of their own losses, after rounds of training."""
    return job.spec.privacy.evaluate and not job.adds_rows


def tells_columns(job: Job) -> bool:
    """Whether clients tell sums of their own columns before they train."""
    return job.schema.federated


def shows_own_counts(job: Job) -> bool:
    """Whether counts of single clients follow from the sums of a job's regression."""
    return job.regression is not None and job.regression.shows_clients


def counts_classes(job: Job) -> bool:
    """Whether clients of a job send how many rows each class has, without noise, which
    answers to a probe never have.
    """
    methods = [method for method, _ in job.spec.algorithm.phases()]
    return any(
        it.sends_class_counts and (it.probes or not adds_noise(job)) for it in methods
    )


def _without_noise(job: Job) -> Iterator[str]:
    """What would leave a client of a job without noise, in words."""
    if not adds_noise(job):
        yield "no noise would be added here (noise_only is true)"
    sent = {
        "sums of columns": tells_columns(job),
        "sums to boost trees": job.boosting is not None,
        "sums of a regression": job.regression is not None,
        "sums of losses": measures(job),
        "an answer to a probe": has_probe(job),
    }
    without = [what for what, is_sent in sent.items() if is_sent]
    if without:
        yield f"{join_names(without)} would be sent without noise (noise_only is true)"


def adds_noise(job: Job) -> bool:
    """Whether the job has clients add noise in every phase."""
    by_client = noise_of(job.spec.uplink, by="client")
    return by_client is not None or all(
        private_settings(method) for method, _ in job.spec.algorithm.phases()
    )
