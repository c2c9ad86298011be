"""What a request is: which of its parts belong to its task, and what they may be.

This is the one place that decides it. The client's policy, its account and the handlers
of tasks go by `kind_of`, so that no part of a request means one thing to one of them and
something else to another. What does not belong to a task is refused, even if it is
null.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor.remote.wire.boosting import BOOST
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused, refuse_unless
from fedtailor.remote.wire.regression import REGRESS
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    SHARES,
    STAGES,
    SUM,
    UNMASK,
    VECTORS,
)

DESCRIBE = "describe"
"""Task: describe the client's table (see `describing`). It belongs to no run."""

HELLO = "hello"
"""Task: report the numbers of training, validation and test rows."""

STATISTICS = "statistics"
"""Task: send counts and sums over the client's training rows."""

AGREED = "agreed"
"""Task: convert the table to examples, by the pooled statistics in the request.

The answer holds no arrays.
"""

TABLE_TASKS = (HELLO, STATISTICS, AGREED, DESCRIBE)
"""Tasks before training, about the client's table."""

SERVING = ("init_unseen", "personal", "evaluate")
"""Tasks in which a client makes its personal model, with the same random numbers."""

TRAINING = ("client", *STAGES)
"""Tasks of a round of training; all others may follow the last round, too: a newcomer
answers a probe then.
"""

COMPUTING = ("probe", "client")
"""Tasks whose answers the next model is made of, and which may say that they became NaN."""

TASKS = (*COMPUTING, *SERVING, BOOST, *STAGES)
"""Tasks of rounds, of boosting and of a regression."""

STEPS = (BOOST, REGRESS)
"""Keys in a request's description of the method under which steps outside rounds stand."""

CLIENTS = "clients"
"""A key of a step: the number of clients in its sum."""

MODE = "mode"
"""Key in a request's description of the method: `Downlink.mode`, if it has one."""

NEWCOMER = "newcomer"
"""Key in a request's description of the method: the client is an unseen one.

Its state is the one that `init_unseen` returned.
"""

METHOD_KEYS = ("phase", "seed", "method", "inputs", "uplink", "downlink")
"""Keys of a request's description of the method that say what the job says
(`Plan.describe`); `RoundHandler` compares them with it.
"""

_TABLE_KEYS = {HELLO: {"release"}, DESCRIBE: {"step", "epsilon", "delta", "ranges"}}
_TABLE_ARRAYS = {
    HELLO: set(),
    DESCRIBE: set(),  # but those of counts
    STATISTICS: set(),
    AGREED: {STATISTICS},
}
_STAGE_ARRAYS = {
    KEYS: set(),  # those of a step are read by `StepsClient`
    SHARES: {"masking", "sealing"},
    VECTORS: {"shares", "there", "weights"},
    CONFIRM: {"arrived"},
    UNMASK: {"codes"},
}


class RequestKind(Enum):
    """What a request belongs to."""

    TABLE = "table"
    ROUND = "round"
    STEP = "step"


ClientName = Annotated[str, Field(max_length=128)]


class SumSettings(BaseModel):
    """What stands under `SUM` in the request of a stage.

    Attributes:
        name: the coordinator's name of the sum.
        kind: which of the client's vectors is added.
        number: which row of it, if it is asked for by rows.
        among: in `SHARES`, the names of the clients that share secrets.
        columns: in `VECTORS`, the names of the clients that the weights are of.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, Field(max_length=64)]
    kind: Annotated[str, Field(max_length=64)]
    number: Annotated[int, Field(ge=0)] | None = None
    among: list[ClientName] | None = None
    columns: list[ClientName] | None = None


def kind_of(request: Request) -> RequestKind:
    """Decide what a request is.

    Raises:
        Refused: its task is unknown, or a part of it does not belong to its task.
    """
    task, settings = request.task, request.algorithm
    refuse_unless(
        task in (*TABLE_TASKS, *TASKS),
        Refusal.UNKNOWN_TASK,
        f"this client does not know the task {task!r}; both sides need the same release",
    )
    if task in TABLE_TASKS:
        _check_bare(request)
        _refuse_others(task, settings, _TABLE_KEYS.get(task, set()))
        _refuse(
            request.round or request.run,
            f"{task!r} belongs to no round and no run",
        )
        asks_counts = task == DESCRIBE and settings.get("step") == "counts"
        _refuse_arrays(request, {STATISTICS} if asks_counts else _TABLE_ARRAYS[task])
        return RequestKind.TABLE
    allowed = set(METHOD_KEYS)
    if task in STAGES:
        allowed |= {SUM, *STEPS}
    elif task == BOOST:
        allowed |= {BOOST}
    else:
        allowed |= {MODE, NEWCOMER} if task in ("personal", "evaluate") else {MODE}
    _refuse_others(task, settings, allowed)
    mode, newcomer = settings.get(MODE, "x"), settings.get(NEWCOMER, True)
    _refuse(not (isinstance(mode, str) and mode), f"its {MODE} is {mode!r}")
    _refuse(newcomer is not True, f"its {NEWCOMER} is {newcomer!r}")
    if task not in (*STAGES, BOOST):
        return RequestKind.ROUND
    _check_bare(request)
    step = step_of(request)
    if task in STAGES:
        sum_kind = sum_settings(request).kind
        if task != KEYS or step is None:
            _refuse_arrays(request, _STAGE_ARRAYS[task])
        _refuse(
            (sum_kind if sum_kind in STEPS else None) != step,
            f"a sum of {sum_kind!r} is asked for as one of something else",
        )
        if step is None:
            return RequestKind.ROUND
    content = None if step is None else settings[step]
    is_later = task in STAGES and task != KEYS
    _refuse(
        content is not True if is_later else not isinstance(content, dict),
        "a step stands in the first message of its sum and in no other",
    )
    return RequestKind.STEP


def step_of(request: Request) -> str | None:
    """The one of `STEPS` to which a request belongs; None if it belongs to a round.

    Raises:
        Refused: it belongs to several.
    """
    found = [key for key in STEPS if key in request.algorithm]
    _refuse(len(found) > 1, "it belongs to steps of two kinds")
    return found[0] if found else None


def sum_settings(request: Request) -> SumSettings:
    """What the request of a stage says about its sum.

    Raises:
        Refused: it is not well formed, or has something that belongs to another stage.
    """
    plain: Any = request.algorithm.get(SUM)
    try:
        read = SumSettings.model_validate(plain)
    except ValidationError:
        raise Refused(
            Refusal.MALFORMED,
            f"what {request.task!r} says of its sum is not well formed",
        ) from None
    _refuse(None in plain.values(), "a setting of a sum is null")
    _refuse(
        (read.among is not None) != (request.task == SHARES)
        or (read.columns is not None) != (request.task == VECTORS),
        "the names of a sum's clients are missing, or of another stage",
    )
    return read


def clients_of_sum(request: Request) -> int | None:
    """The number of clients that a sum is said to be over; None for other requests.

    Beyond 51 clients, these are the neighbours of this one, until vectors have arrived.
    """
    if request.task == SHARES:
        return len(set(sum_settings(request).among or ()))
    if request.task in (VECTORS, CONFIRM):
        name = "there" if request.task == VECTORS else "arrived"
        array = request.arrays.get(name, np.zeros(0, bool))
        return int(np.count_nonzero(array))
    return None


def _check_bare(request: Request) -> None:
    """Check that a request has nothing that belongs to a round of training."""
    _refuse(
        request.state_round != -1 or request.durable_state_round != -1,
        f"{request.task!r} starts from no state, and names one",
    )
    _refuse(not request.reply, f"{request.task!r} is always answered")


def _refuse_others(task: str, settings: Mapping[str, Any], allowed: set[str]) -> None:
    others = sorted(set(settings) - allowed)
    _refuse(bool(others), f"{others[:1]} is not part of a request for {task!r}")
    nulls = sorted(name for name, value in settings.items() if value is None)
    _refuse(bool(nulls), f"{nulls[:1]} is null in a request for {task!r}")


def _refuse_arrays(request: Request, allowed: set[str]) -> None:
    others = sorted(set(request.arrays) - allowed)
    _refuse(bool(others), f"the array {others[:1]} is not part of {request.task!r}")


def _refuse(is_wrong: object, text: str) -> None:
    refuse_unless(not is_wrong, Refusal.MALFORMED, text)
