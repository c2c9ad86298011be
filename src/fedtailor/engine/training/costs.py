"""What the exchanges of a run cost: their entries in its ledger."""

import numpy as np

from fedtailor.aggregation.accounting import Ledger, LedgerPhase
from fedtailor.aggregation.accounting.ledger import OwnNumbers
from fedtailor.models import Model
from fedtailor.protocol import Answers, Cohort, Downlink


def record_exchange(
    ledger: Ledger,
    purpose: LedgerPhase,
    round: int,
    model: Model,
    cohort: Cohort,
    downlink: Downlink,
    answers: Answers,
) -> None:
    """Record what was sent and computed in an exchange. Only clients that answered have
    sent something up.

    Args:
        ledger: where to record it.
        purpose: what the exchange was for.
        round: the number of rounds done before it.
        model: the model that is trained.
        cohort: the clients.
        downlink: what the clients received, after all pipelines.
        answers: what they sent.
    """
    gradients, forwards = answers.work
    ledger.record(
        round=round,
        phase=purpose,
        downlink=downlink,
        update=answers.sent,
        reporting=answers.reporting,
        gradients=gradients,
        forwards=forwards,
        extra_bytes=answers.extra_bytes(),
        own=_own_numbers(model, cohort),
    )


def _own_numbers(model: Model, cohort: Cohort) -> OwnNumbers | None:
    """How many numbers the network of each client of a cohort has; None if all have one
    network.
    """
    members = model.members
    if len(members) == 1:
        return None
    sizes = np.array([member.own_size for member in members], np.int64)
    names = [cohort.clients.names[row] for row in cohort.rows]
    indices = [model.member_of(name) for name in names]
    return OwnNumbers(model.size, sizes[indices])
