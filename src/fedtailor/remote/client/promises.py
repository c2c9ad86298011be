"""What may leave a client by its policy: the rows of the table in docs/privacy.md.

`Policy` and the handlers of requests keep these promises; here they are put in words, for
`federation policy KIT` and for the test that compares both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap

from fedtailor.remote.client.policy import (
    Policy,
    adds_noise,
    counts_classes,
    has_probe,
    measures,
    shows_own_counts,
    tells_columns,
)
from fedtailor.remote.job.job import Job


@dataclass(frozen=True)
class Promise:
    """Something that leaves a client only if its policy says so.

    Attributes:
        what: in words.
        entries: of the policy that let it leave, as they must stand there.
        allows: whether a policy lets it leave.
        asks: whether a job asks for it.
    """

    what: str
    entries: str
    allows: Callable[[Policy], bool]
    asks: Callable[[Job], bool]


PROMISES = (
    Promise(
        "its own updates, without masks",
        "secure_aggregation_only = false",
        lambda policy: not policy.secure_aggregation_only,
        lambda job: job.spec.privacy.sums is None,
    ),
    Promise(
        "its own answer to a probe, without masks and noise",
        "secure_aggregation_only = false, noise_only = false",
        lambda policy: not (policy.secure_aggregation_only or policy.noise_only),
        has_probe,
    ),
    Promise(
        "updates to which it adds no noise",
        "noise_only = false",
        lambda policy: not policy.noise_only,
        lambda job: not adds_noise(job),
    ),
    Promise(
        "before training: counts, means and sums of columns, names of categories",
        "federated_statistics = true, secure_aggregation_only = false, noise_only = false",
        lambda policy: policy.shows_statistics,
        tells_columns,
    ),
    Promise(
        "sums over clients of rows, gradients and losses, to boost trees",
        "federated_statistics = true, noise_only = false",
        lambda policy: policy.sends_statistics,
        lambda job: job.boosting is not None,
    ),
    Promise(
        "sums over clients of columns and of their products, to fit a regression",
        "federated_statistics = true, noise_only = false",
        lambda policy: policy.sends_statistics,
        lambda job: job.regression is not None,
    ),
    Promise(
        "counts of its rows, as they follow from own intercepts or Cox's regression",
        "federated_statistics = true, secure_aggregation_only = false, noise_only = false",
        lambda policy: policy.shows_statistics,
        shows_own_counts,
    ),
    Promise(
        "what tells how many of its rows each class has, by methods that need it",
        "federated_statistics = true",
        lambda policy: policy.federated_statistics,
        counts_classes,
    ),
    Promise(
        "its own sums of losses and of correct predictions, once a round",
        "measurements = true, secure_aggregation_only = false, noise_only = false",
        lambda policy: (
            policy.measurements
            and not (policy.secure_aggregation_only or policy.noise_only)
        ),
        measures,
    ),
)


def said(policy: Policy, job: Job) -> list[str]:
    """What may leave a client, in lines, and whether a job asks for it."""
    lines = []
    for promise in PROMISES:
        notes = []
        if not promise.allows(policy):
            notes.append(f"needs {promise.entries}")
        if promise.asks(job):
            notes.append("this job asks for it")
        may = "may leave" if promise.allows(policy) else "stays"
        lines.append(f"{may:<10}  {promise.what}")
        for note in notes:
            lines += [f"{'':<10}  {it}" for it in wrap(f"({note})", 74)]
    return lines
