"""One client of a federation: what answers its messages, within its policy."""

from pathlib import Path

from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.audit import AuditLog
from fedtailor.remote.client.policy import read_policy
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.keys.kit import STATE, Kit
from fedtailor.remote.wire.boosting import BOOST
from fedtailor.remote.wire.messages import Reply, Request
from fedtailor.remote.wire.regression import REGRESS
from fedtailor.remote.wire.request_kind import TABLE_TASKS, TASKS, step_of
from fedtailor.remote.wire.run_log import ASKED_FOR, client_log
from fedtailor.remote.wire.secure_sums import KEYS, STAGES
from fedtailor.remote.wire.transport import Recorder, Responder


def responder_of(kit: Kit, store: ClientStore, data: Path) -> Responder:
    """Read a client's policy and its file, and make what answers its messages.

    Args:
        kit: kit of the client.
        store: the client's states.
        data: the client's file.

    Raises:
        ValueError: the policy is not valid or does not allow the job, the account is
            damaged, or the file does not fit the job.
    """
    job, policy = kit.job, read_policy(kit.directory)
    policy.check_job(job)
    account = account_of(kit)
    handler = JobHandler(
        job,
        kit.name,
        data,
        store,
        account,
        policy.numbers_per_cell,
        policy.least_clients,
    )
    client_log(kit.name).info(
        f"{kit.name}: {handler.sizes.sum()} rows of {data.name} fit the job"
        f" {job.title!r}"
    )
    return Responder(
        job.identity,
        kit.name,
        handler,
        handler.common_vectors,
        check=policy.check_request,
        record=Narrator(kit, store, audit_of(kit.directory)),
        origin=handler.origin,
    )


ROUND_TASKS = ("probe", "client", *STAGES)
"""Tasks that are part of a round; others come before the first, or after one."""


_BEGINS = {
    BOOST: (
        "trees are boosted: adds, behind masks, rows and targets; then rows, gradients"
        " and curvatures by bins of columns, and losses"
    ),
    REGRESS: (
        "a regression is fitted: adds, behind masks, rows, and sums of columns and of"
        " their products at the coefficients so far"
    ),
}
"""What a client says when steps of a kind begin."""


class Narrator:
    """Says what a client has answered (a `Recorder` for `Responder`).

    Args:
        kit: kit of the client.
        store: the client's states.
        record: records the answer first.
    """

    def __init__(
        self,
        kit: Kit,
        store: ClientStore,
        record: Recorder,
    ) -> None:
        self._kit, self._store, self._record = kit, store, record
        self._info = client_log(kit.name).info

    def __call__(self, request: Request, reply: Reply, message: bytes) -> None:
        """Record an answer, then say that it was given."""
        self._record(request, reply, message)
        if reply.refusal is not None or reply.cache_miss:
            return
        if request.task not in (*TABLE_TASKS, *TASKS):
            return
        step = step_of(request)
        if step is not None:
            self._say_step(step, request)
            return
        # What is asked after a round names the number of rounds done.
        number = request.round + (request.task in ROUND_TASKS)
        self._info(
            f"round {number}: answered {request.task!r} ({len(message):,} bytes)",
            extra=ASKED_FOR,
        )
        if request.task == "personal":
            self._say_model("the training is over")

    def _say_step(self, step: str, request: Request) -> None:
        """Say what boosting or a regression sends when it begins, and that boosting is
        over.
        """
        if request.round == 0 and request.task == KEYS:
            self._info(_BEGINS[step])
        if request.task == BOOST:
            self._say_model("the boosting is over")

    def _say_model(self, what: str) -> None:
        model = self._store.directory / PERSONAL
        if not model.is_dir():
            self._info(f"{what}; this client has no model of its own")
            return
        self._info(f"{what}; this client's own model is in {model}")
        self._info(
            f"predict with it: fedtailor federation predict {self._kit.directory}"
            " --data NEW.csv --out predictions.csv"
        )


def account_of(kit: Kit) -> ClientAccount:
    """The account of a client, with the limits of its policy.

    Raises:
        ValueError: the policy or the account cannot be read.
    """
    policy = read_policy(kit.directory)
    return ClientAccount(
        kit.state,
        most_epsilon=policy.epsilon,
        most_runs=policy.runs,
        log=client_log(kit.name),
    )


def audit_of(kit: Path) -> AuditLog:
    """The log of the messages that left a client, by the directory of its kit."""
    tasks = (*TABLE_TASKS, *TASKS)
    return AuditLog(kit / STATE, tasks, before_training=TABLE_TASKS)
