"""Why a client refuses a request: a code for the coordinator, and a text for the client.

The texts of errors may hold cells of the client's table, names of its columns and paths
of its files. So no text leaves a client: an answer names one code of `Refusal`, and the
coordinator, which knows what it has asked for, says in its own words what the code
means. The text is logged at the client.

Any code that runs at a client may raise `Refused`. `transport.answer_message` alone
turns it, and every other exception, into an answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from fedtailor.remote.wire.releases import RELEASE


class Refusal(StrEnum):
    """The codes of refusals; nothing else about a refusal leaves a client."""

    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    OTHER_RELEASE = "other-release"
    OTHER_JOB = "other-job"
    OTHER_CLIENT = "other-client"
    OTHER_METHOD = "other-method"
    UNKNOWN_TASK = "unknown-task"
    NOT_IN_JOB = "not-in-job"
    LATE = "late"
    ROUND = "round"
    ANSWERED = "answered"
    POLICY = "policy"
    HOURS = "hours"
    SPENT = "spent"
    NO_AUDIT = "no-audit"
    NO_STATISTICS = "no-statistics"
    OTHER_STATISTICS = "other-statistics"
    WRONG_STATISTICS = "wrong-statistics"
    DESCRIBED = "described"
    FEW_ROWS = "few-rows"
    TABLE = "table"
    NO_STATE = "no-state"
    DIVERGED = "diverged"
    NO_PART_IN_SUM = "no-part-in-sum"
    UNSAFE_SUM = "unsafe-sum"
    SUM_RANGE = "sum-range"
    FAILED = "failed"

    @property
    def explanation(self) -> str:
        """What the code means, in the coordinator's words."""
        return _EXPLANATIONS[self]

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered later."""
        return self in _MAY_PASS


_EXPLANATIONS = {
    Refusal.UNREADABLE: "it cannot read the request; both sides need the same release",
    Refusal.MALFORMED: "the arrays of the request are not well formed, or too large",
    Refusal.OTHER_RELEASE: (
        f"it runs a release of fedtailor that does not talk to {RELEASE} here; both need"
        " the same minor version"
    ),
    Refusal.OTHER_JOB: "the job there differs from the coordinator's; copy its job.toml",
    Refusal.OTHER_CLIENT: "the request is for another client; one kit was copied",
    Refusal.OTHER_METHOD: (
        "the request asks for another method, hyper-parameter or seed than its job's"
    ),
    Refusal.UNKNOWN_TASK: (
        "it does not know the task; both sides need the same release"
    ),
    Refusal.NOT_IN_JOB: "its job does not let it send what the request asks for",
    Refusal.LATE: (
        "the request arrived after its deadline; if that happens often, compare the"
        " clocks of both machines"
    ),
    Refusal.ROUND: (
        "the request is of a round that its job does not have; copy the job.toml with"
        " more rounds to it"
    ),
    Refusal.ANSWERED: (
        "it has answered another request for this round of this run, and answers one;"
        " begin a new run"
    ),
    Refusal.POLICY: "its policy does not allow what the request asks for",
    Refusal.HOURS: "its policy does not let it answer at this time of the day",
    Refusal.SPENT: (
        "its policy lets it spend no more: rounds, runs or epsilon are used up"
    ),
    Refusal.NO_AUDIT: "it cannot write down what it sends; its disk may be full",
    Refusal.NO_STATISTICS: "it has not received the statistics of all clients' tables",
    Refusal.OTHER_STATISTICS: (
        "it has taken other pooled statistics for this job, and takes them once;"
        " continue the run in which it did, or begin a new job (with another seed)"
    ),
    Refusal.WRONG_STATISTICS: (
        "the pooled statistics cannot be those of tables among which is its own"
    ),
    Refusal.DESCRIBED: (
        "it has described its table for this job in another way, and does so once; begin"
        " a new job (with another seed)"
    ),
    Refusal.FEW_ROWS: "it has too few training rows for what the request asks for",
    Refusal.TABLE: "its table does not fit the pooled statistics",
    Refusal.NO_STATE: (
        "it does not hold the state that the request names; restore it there from a"
        " backup, or have it join as a new client"
    ),
    Refusal.DIVERGED: "its model became NaN or infinite in this round",
    Refusal.NO_PART_IN_SUM: (
        "it has no part in this sum; it was started again, or has sent its update"
    ),
    Refusal.UNSAFE_SUM: (
        "the sum would not hide its update: it has other rows than in sums before, or"
        " other clients take part, or a share that another client sent it is damaged;"
        " start it with its former rows, or begin a new job (with another seed)"
    ),
    Refusal.SUM_RANGE: (
        "its update has a number that sums cannot hold, or the model that it was sent one"
        " beyond half of these; raise sum_range of the job's [privacy]"
    ),
    Refusal.FAILED: "it failed",
}

_MAY_PASS = {
    Refusal.LATE,
    Refusal.HOURS,
    Refusal.NO_AUDIT,
    Refusal.NO_PART_IN_SUM,
    Refusal.FAILED,
}


class Refused(ValueError):
    """A client refuses a request.

    Args:
        code: what the coordinator learns.
        text: one line for the client's log. It never leaves the client.
    """

    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def refusing(code: Refusal) -> Iterator[None]:
    """Turn every `ValueError` of a block into `Refused` with this code."""
    try:
        yield
    except Refused:
        raise
    except ValueError as error:
        raise Refused(code, str(error)) from None


def refuse_unless(condition: bool, code: Refusal, text: str) -> None:
    """Raise `Refused(code, text)` unless the condition is True."""
    if not condition:
        raise Refused(code, text)
