"""One client of a federation: what answers its messages, within its policy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedtailor.federation import Federation
from fedtailor.remote.account import ClientAccount
from fedtailor.remote.audit import AuditLog
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.job_work import TABLE_TASKS, JobHandler
from fedtailor.remote.kit import STATE, Kit
from fedtailor.remote.policy import read_policy
from fedtailor.remote.transport import RequestHandler, Responder
from fedtailor.remote.work import TASKS


def responder_of(
    kit: Kit,
    store: ClientStore,
    data: Path,
    *,
    make_handler: Callable[[Kit, Federation, ClientStore], RequestHandler]
    | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Responder:
    """Read a client's policy and its file, and make what answers its messages.

    Args:
        kit: kit of the client.
        store: the client's states.
        data: the client's file.
        make_handler: function from the kit, the client's federation and its store to
            the handler of rounds; `RoundHandler` by default.
        log: called with lines for the user.

    Raises:
        ValueError: the policy is not valid or does not allow the job, the account is
            damaged, or the file does not fit the job.
    """
    job, policy = kit.job, read_policy(kit.directory)
    policy.check_job(job)
    make = None if make_handler is None else partial(make_handler, kit)
    account = account_of(kit, log)
    handler = JobHandler(job, kit.name, data, store, make, account, log)
    log(
        f"{kit.name}: {handler.sizes.sum()} rows of {data.name} fit the job"
        f" {job.title!r}"
    )
    return Responder(
        job.identity,
        kit.name,
        handler,
        handler.common_vectors,
        log,
        check=policy.check_request,
        record=audit_of(kit.directory),
        origin=handler.origin,
    )


def account_of(
    kit: Kit, log: Callable[[str], None] = lambda line: None
) -> ClientAccount:
    """The account of a client, with the limits of its policy.

    Raises:
        ValueError: the policy or the account cannot be read.
    """
    policy = read_policy(kit.directory)
    return ClientAccount(
        kit.state, most_epsilon=policy.epsilon, most_runs=policy.runs, log=log
    )


def audit_of(kit: Path) -> AuditLog:
    """The log of the messages that left a client, by the directory of its kit."""
    return AuditLog(kit / STATE, (*TABLE_TASKS, *TASKS))
