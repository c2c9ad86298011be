"""What a request is, is decided in one place, and nothing else gets through."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.remote.client.policy import Policy
from fedtailor.remote.wire.boosting import BOOST
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.request_kind import (
    METHOD_KEYS,
    TABLE_TASKS,
    TASKS,
    RequestKind,
    kind_of,
)
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    SHARES,
    STAGES,
    SUM,
    UNMASK,
    VECTORS,
)

METHOD = {"phase": 0, "seed": 0, "method": {"name": "fedavg"}}
STEP = {"steps": [{"kind": "start"}], "clients": 3}
OF_STAGE = {SHARES: {"among": ["a", "b", "c"]}, VECTORS: {"columns": ["a", "b", "c"]}}


def honest(task, *, boosts=False):
    """A request of an honest coordinator."""
    if task in TABLE_TASKS:
        said = {"hello": {"release": "0.3"}, "describe": {"step": "columns"}}
        return Request("job", 0, 0, task, "a", algorithm=said.get(task, {}))
    algorithm = dict(METHOD)
    if task in STAGES:
        kind = BOOST if boosts else "model"
        algorithm[SUM] = {"name": "s", "kind": kind, **OF_STAGE.get(task, {})}
    if boosts:
        algorithm[BOOST] = STEP if task in (KEYS, BOOST) else True
    return Request("job", 1, 0, task, "a", run="ab", algorithm=algorithm)


HONEST = [
    *(honest(task) for task in (*TABLE_TASKS, *TASKS) if task != BOOST),
    *(honest(task, boosts=True) for task in (BOOST, *STAGES)),
]


@pytest.mark.parametrize(
    "asked", HONEST, ids=lambda it: f"{it.task} {len(it.algorithm)}"
)
def test_what_an_honest_coordinator_asks_is_known(asked):
    boosts = BOOST in asked.algorithm
    expected = RequestKind.STEP if boosts else RequestKind.ROUND
    if asked.task in TABLE_TASKS:
        expected = RequestKind.TABLE
    assert kind_of(asked) is expected


ALL_KEYS = (
    *METHOD_KEYS,
    "release",
    "step",
    "sum",
    "boost",
    "mode",
    "newcomer",
    "x",
    "",
)
VALUES = st.sampled_from(
    [None, True, False, 0, 1, 10**30, "", "x", [], [None], {}, STEP]
)


def fits(task, key):
    """Whether a key belongs to a task at all."""
    own = {"hello": {"release"}, "describe": {"step", "epsilon", "delta", "ranges"}}
    if task in TABLE_TASKS:
        return key in own.get(task, ())
    more = {"personal": ("mode", "newcomer"), "evaluate": ("mode", "newcomer")}
    more |= dict.fromkeys(STAGES, ("sum", "boost")) | {BOOST: ("boost",)}
    return key in (*METHOD_KEYS, *more.get(task, ("mode",)))


@given(asked=st.sampled_from(HONEST), key=st.sampled_from(ALL_KEYS), value=VALUES)
def test_a_key_too_many_or_null_is_refused(asked, key, value):
    changed = replace(asked, algorithm={**asked.algorithm, key: value})
    refused = None
    try:
        found = kind_of(changed)
    except Refused as error:
        refused = error.code
    if value is None or not fits(asked.task, key):
        assert refused is Refusal.MALFORMED
    elif refused is None:
        # What is asked for has not become something else.
        assert found is kind_of(asked)
    # A policy never allows what this refuses.
    if refused is not None:
        with pytest.raises(Refused):
            Policy(federated_statistics=True).check_request(changed)


@given(
    asked=st.sampled_from([it for it in HONEST if SUM in it.algorithm]),
    key=st.sampled_from(["name", "kind", "number", "among", "columns", "x"]),
    value=VALUES,
)
def test_what_a_sum_is_said_to_be_is_exact(asked, key, value):
    said = {**asked.algorithm[SUM], key: value}
    changed = replace(asked, algorithm={**asked.algorithm, SUM: said})
    is_name = key == "name" and isinstance(value, str)
    is_number = key == "number" and type(value) is int
    is_list = key in OF_STAGE.get(asked.task, ()) and value == []
    other_kind = (
        key == "kind" and isinstance(value, str) and BOOST not in asked.algorithm
    )
    if is_name or is_number or is_list or other_kind:
        assert kind_of(changed) is kind_of(asked)
    else:
        with pytest.raises(Refused):
            kind_of(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"state_round": 0},
        {"durable_state_round": 0},
        {"reply": False},
        {"arrays": {"more": np.zeros(1)}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "task", ["hello", "statistics", "agreed", SHARES, VECTORS, CONFIRM, UNMASK]
)
def test_what_belongs_to_a_round_of_training_is_refused_elsewhere(task, change):
    with pytest.raises(Refused):
        kind_of(replace(honest(task), **change))


@pytest.mark.parametrize("value", [None, True, False, 0, {}, STEP], ids=str)
@pytest.mark.parametrize("task", ["client", "probe", "evaluate", *STAGES])
def test_no_key_leads_past_the_limit_of_rounds(task, value):
    """Before, {"boost": null} was answered in rounds beyond the policy's."""
    asked = replace(honest(task), round=6)
    asked = replace(asked, algorithm={**asked.algorithm, BOOST: value})
    with pytest.raises(Refused):
        Policy(rounds=5).check_request(asked)


def test_tables_are_no_part_of_a_round():
    for change in ({"round": 1}, {"run": "ab"}):
        for task in TABLE_TASKS:
            with pytest.raises(Refused):
                kind_of(replace(honest(task), **change))
    with pytest.raises(Refused) as error:
        kind_of(replace(honest("hello"), task="../../etc/passwd"))
    assert error.value.code is Refusal.UNKNOWN_TASK
