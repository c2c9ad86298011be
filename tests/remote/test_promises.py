"""A client answers what its policy allows, and nothing else: policies and jobs are drawn,
and what leaves is compared with the table that docs/privacy.md shows.
"""

import contextlib
import re
import tempfile
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedtailor.remote.client import round_requests
from fedtailor.remote.client.describing import check_described, preview
from fedtailor.remote.client.policy import Policy
from fedtailor.remote.client.promises import PROMISES, said
from fedtailor.remote.client.round_requests import RoundHandler, without_small_splits
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.wire.boosting import BOOST
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.request_kind import DESCRIBE, TABLE_TASKS, TASKS
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    SHARES,
    STAGES,
    SUM,
    VECTORS,
)
from remote.jobs import Clients
from remote.test_policy import NOISY, PRIVATE, SECURE, UCFL
from remote.test_policy import job_of as job_of_text

PRIVACY_PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
METHODS = {
    "fedavg": 'use = "fedavg"',
    "private": PRIVATE,
    "ucfl": UCFL,
}


@cache
def job_of(method, sums, noise, federated, evaluate, trees):
    """A job that asks for some things; None if no job can ask for all of them."""
    privacy = [SECURE] * sums + ['probe = "open"'] * (sums and method == "ucfl")
    privacy += [NOISY] * noise + ["[boosting]\ntrees = 10"] * trees
    with tempfile.TemporaryDirectory() as folder:
        try:
            return job_of_text(
                Path(folder),
                METHODS[method],
                "\n".join(privacy),
                "federated" if federated else "none",
                str(evaluate).lower(),
            )
        except ValueError:
            return None


JOBS = st.builds(
    job_of,
    st.sampled_from(sorted(METHODS)),
    *[st.booleans() for _ in range(5)],
)

POLICIES = st.builds(
    Policy,
    rounds=st.sampled_from([None, 5, 20]),
    noise_only=st.booleans(),
    secure_aggregation_only=st.booleans(),
    least_clients=st.sampled_from([3, 5]),
    federated_statistics=st.booleans(),
    measurements=st.booleans(),
    columns=st.sampled_from([None, ("age", "ward", "label"), ("age", "label")]),
    hours=st.sampled_from(["00:00-24:00", "20:00-06:00"]),
)


def allowed(policy, job):
    """Whether a policy allows a job, written down once more."""
    has_probe = "UCFL" in type(job.spec.algorithm).__name__
    is_private = getattr(job.spec.algorithm.sgd, "dp_noise", None) is not None
    has_noise = bool(job.spec.uplink) or is_private
    opens = job.spec.privacy.sums is None or has_probe
    measures = job.spec.privacy.evaluate and job.boosting is None
    plain = has_probe or job.schema.federated or measures
    plain = plain or job.boosting is not None or not has_noise
    statistics = job.schema.federated or job.boosting is not None
    return not (
        (policy.secure_aggregation_only and opens)
        or (policy.noise_only and plain)
        or (not policy.federated_statistics and statistics)
        or (measures and policy.secure_aggregation_only)
        or (measures and not policy.measurements)
        or (policy.columns is not None and "ward" not in policy.columns)
        or (policy.rounds == 5 and job.boosting is not None)
    )


@settings(suppress_health_check=list(HealthCheck))  # reading a job takes a while
@given(policy=POLICIES, job=JOBS)
def test_a_policy_allows_a_job_if_all_that_it_asks_for_may_leave(policy, job):
    assume(job is not None)
    reasons = list(policy.reasons_against(job))
    assert allowed(policy, job) == (not reasons)
    # The table says the same.
    others = (policy.columns is not None and "ward" not in policy.columns) or (
        policy.rounds == 5 and job.boosting is not None
    )
    kept = [it.what for it in PROMISES if it.asks(job) and not it.allows(policy)]
    assert bool(reasons) == bool(kept or others)


KEYS_AND_VALUES = st.dictionaries(
    st.sampled_from(
        ["boost", "sum", "mode", "newcomer", "step", "release", "rounds", ""]
    ),
    st.sampled_from([None, True, False, 0, "columns", "noisy", "0.3", {}, []]),
    max_size=2,
)


def asked(task, round, clients, boosts):
    """A request of an honest coordinator over so many clients."""
    there = np.arange(9) < clients
    names = [f"client {number}" for number in range(clients)]
    kind = BOOST if boosts else "model"
    algorithm = {"phase": 0, "seed": 0, "method": {}}
    arrays = {}
    if task in TABLE_TASKS:
        said = {"hello": {"release": "0.3"}, "describe": {"step": "columns"}}
        algorithm, round = said.get(task, {}), 0
    if task in STAGES:
        more = {SHARES: {"among": names}, VECTORS: {"columns": names}}
        algorithm[SUM] = {"name": "s", "kind": kind, **more.get(task, {})}
        arrays = {VECTORS: {"there": there}, CONFIRM: {"arrived": there}}.get(task, {})
    if boosts:
        step = {"steps": [{"kind": "start"}], "clients": clients}
        algorithm[BOOST] = step if task in (KEYS, BOOST) else True
    return Request("job", round, 0, task, "a", algorithm=algorithm, arrays=arrays)


@given(
    policy=POLICIES,
    task=st.sampled_from([*TABLE_TASKS, *TASKS]),
    round=st.sampled_from([0, 4, 5, 6, 19, 20, 21]),
    clients=st.sampled_from([3, 4, 5, 9]),
    hour=st.sampled_from([3, 12]),
    boosts=st.booleans(),
    more=KEYS_AND_VALUES,
)
def test_a_policy_answers_what_it_allows_whatever_keys_a_request_has(
    policy, task, round, clients, hour, boosts, more
):
    boosts = task == BOOST or (boosts and task in STAGES)
    honest = asked(task, round, clients, boosts)
    request = Request(
        **{**vars(honest), "algorithm": {**honest.algorithm, **more}},
    )
    is_changed = any(
        key not in honest.algorithm or honest.algorithm[key] != value
        for key, value in more.items()
    )
    is_training = task in ("client", *STAGES)
    may = policy.hours == "00:00-24:00" or hour == 3
    if task == "describe":
        may &= policy.federated_statistics and not policy.noise_only
    if policy.rounds is not None and not boosts and task not in TABLE_TASKS:
        may &= round + is_training <= policy.rounds
    if task in (SHARES, VECTORS, CONFIRM):
        may &= clients >= policy.least_clients
    try:
        policy.check_request(request, datetime(2026, 1, 1, hour))
    except Refused:
        assert is_changed or not may
        return
    if not is_changed:
        assert may
        return
    # Of the keys that were added, these two mean something; and what else may leave is
    # what may leave without them.
    if task == "describe" and more.get("step") == "noisy":
        assert policy.federated_statistics
        return
    assert set(more) - set(honest.algorithm) <= {"mode", "newcomer"}
    assert may


@pytest.mark.parametrize(
    ("rest", "is_hidden"),
    [
        (f"[privacy]\n{SECURE}", True),
        ("", False),  # the coordinator sees its update anyway
    ],
    ids=["sums", "open"],
)
def test_a_client_whose_updates_are_hidden_says_once_that_its_model_diverged(
    tmp_path, rest, is_hidden, monkeypatch
):
    """23 models made for it told the largest age of one row to seven digits."""
    clients = Clients(tmp_path / "job", method="fedavg", rest=rest)
    plan, client = plan_of(clients.job), clients.client("a")

    def ask(round, scale):
        model = np.full((1, plan.model.size), scale, np.float32)
        request = Request(
            *(clients.job.identity, round, 0, "client", "a"),
            run="ab",
            algorithm=plan.describe(0),
            arrays={"stream/model": model, "index/model": np.zeros(1, np.int32)},
        )
        return decode_reply(client(encode_request(request))).refusal

    assert ask(0, 0.1) is None
    if is_hidden:
        # Models next to the largest numbers are not trained at all.
        monkeypatch.setattr(RoundHandler, "_check_models", lambda self, request: None)
    assert ask(1, 3e38) is Refusal.DIVERGED
    after = Refusal.DIVERGED if is_hidden else None
    assert ask(2, 0.1) is after
    client = clients.client("a")  # started again
    assert ask(3, 0.1) is after


class Asking:
    """One client, and requests that a coordinator makes as it likes."""

    def __init__(self, directory, method, rest):
        self.clients = Clients(directory, method=method, rest=rest)
        self.plan, self.client = plan_of(self.clients.job), self.clients.client("a")

    def __call__(
        self, task, round, scale, *, state_round=-1, run="ab", reply=True, **more
    ):
        model = np.full((1, self.plan.model.size), scale, np.float32)
        request = Request(
            *(self.clients.job.identity, round, 0, task, "a"),
            state_round=state_round,
            reply=reply,
            run=run,
            algorithm=self.plan.describe(0) | more,
            arrays={"stream/model": model, "index/model": np.zeros(1, np.int32)},
        )
        reply = decode_reply(self.client(encode_request(request)))
        assert reply.refusal is None, reply.refusal
        return {name: array.tolist() for name, array in reply.arrays.items()}


PERSONAL_NAN = "its personal model became NaN or infinite"
HIDDEN = {
    "open": "",
    "noise": f"[privacy]\nevaluate = false\n{NOISY}",
    "sums": f"[privacy]\n{SECURE}",
}


@pytest.mark.parametrize("rest", HIDDEN.values(), ids=HIDDEN)
def test_a_personal_model_shows_in_no_answer(rest, tmp_path, client_lines):
    """Before, one message told whether a category has a training row: the model made for
    it overflows in such rows only, which was said without noise.
    """
    ask = Asking(tmp_path / "job", "finetune", rest)
    usual = ask("personal", 4, 0.1)
    former = ask.clients.personal("a").theta
    assert np.isfinite(former).all() and not client_lines
    assert ask("personal", 4, 3e38, run="ac") == usual
    np.testing.assert_array_equal(ask.clients.personal("a").theta, former)
    assert [PERSONAL_NAN in line for line in client_lines] == [True]
    ask("client", 0, 0.1)  # it takes part as before


@pytest.mark.parametrize("rest", HIDDEN.values(), ids=HIDDEN)
def test_a_state_shows_in_no_answer(rest, tmp_path, client_lines):
    ask = Asking(tmp_path / "job", "ditto", rest)
    usual = ask("init_unseen", 4, 0.1)
    assert ask("init_unseen", 4, 3e38, run="ac") == usual
    ask("personal", 4, 0.1, run="ac", newcomer=True)
    assert [PERSONAL_NAN in line for line in client_lines] == [True]
    if not rest:
        return  # the coordinator sees its update
    ask("client", 0, 0.1)
    # Nothing is sent of this round.
    ask("client", 1, 3e38, state_round=0, reply=False)
    state = ask.clients.store("a").load(1, "ab")
    assert all(np.isfinite(leaf).all() for leaf in state)


@pytest.mark.parametrize("method", ["fedproto", "fedgh", "fedtgp", "pacfl"])
def test_counts_of_classes_need_a_policy_that_lets_counts_leave(method, tmp_path):
    """From one sum with the weights 81, 9 and 1 those of three clients follow."""
    rest = f"[privacy]\n{SECURE}" if method == "fedproto" else ""
    clients = Clients(tmp_path / "job", method=method, rest=rest)
    said = "what tells how many rows each class has would be sent"
    said = f"{said} (federated_statistics is false)"
    open_ones = {"secure_aggregation_only": False, "measurements": True}
    assert said in list(Policy(**open_ones).reasons_against(clients.job))
    allowed = Policy(federated_statistics=True, **open_ones)
    assert not list(allowed.reasons_against(clients.job))
    # Clients add noise to their updates, and not to their answers to a probe.
    rest = f"[privacy]\nevaluate = false\n{NOISY}"
    noisy = Clients(tmp_path / "noisy", method=method, rest=rest)
    is_said = said in list(Policy(**open_ones).reasons_against(noisy.job))
    assert is_said == (method == "pacfl")


@pytest.mark.parametrize(
    ("rest", "is_refused"), [(f"[privacy]\n{SECURE}", True), ("", False)]
)
def test_jobs_that_count_classes_behind_masks_are_described_with_noise_only(
    rest, is_refused, tmp_path
):
    """What one client hides of its classes is what the others leave of the exact sum."""
    clients = Clients(tmp_path / "job", method="fedproto", rest=rest)
    with (
        contextlib.nullcontext()
        if not is_refused
        else pytest.raises(ValueError, match="would show what one client hides")
    ):
        check_described(clients.job)
        preview(clients.job, "a", clients.directory / "a.csv")
    handler = JobHandler(
        clients.job, "a", clients.directory / "a.csv", clients.store("a")
    )
    request = Request(
        *(clients.job.identity, 0, 0, DESCRIBE, "a"), algorithm={"step": "columns"}
    )
    if is_refused:
        with pytest.raises(Refused) as refused:
            handler(request)
        assert refused.value.code is Refusal.NOT_IN_JOB
    else:
        handler(request)


@pytest.mark.parametrize("method", ["fedproto", "ccvr", "fedavg"])
def test_no_client_tells_sums_of_its_columns_in_a_job_behind_masks(method, tmp_path):
    """What it hides in these is what the others leave of a sum of all."""
    clients = Clients(tmp_path / "job", method=method)
    text = clients.path.read_text()
    text = text.replace("[data]", '[data]\npreprocessing = "federated"')
    text = text.replace("epochs = 1", "steps = 2")
    clients.path.write_text(text)
    read_job(clients.path)
    clients.path.write_text(f"{text}[privacy]\n{SECURE}")
    with pytest.raises(ValueError, match="no client tells sums of its columns"):
        read_job(clients.path)
    clients.path.write_text(clients.path.read_text().replace("federated", "job"))
    with pytest.raises(ValueError, match="would show what one client hides"):
        check_described(read_job(clients.path))


def test_measurements_leave_once_a_round_and_not_by_default(tmp_path):
    """Many models that are made for it tell cells of the rows on which they are
    measured: 38 in one round gave 12 cells.
    """
    clients = Clients(tmp_path / "job", method="fedavg", rest=f"[privacy]\n{SECURE}")
    assert any("measurements" in it for it in Policy().reasons_against(clients.job))
    allowed = Policy(measurements=True)
    assert list(allowed.reasons_against(clients.job)) == [
        "this client's own sums of losses would be sent (secure_aggregation_only is true)"
    ]
    allowed = Policy(measurements=True, secure_aggregation_only=False)
    assert not list(allowed.reasons_against(clients.job))
    plan, client = plan_of(clients.job), clients.client("a")
    found = []
    for round, scale in ((1, 1.0), (1, 1.0), (1, 2.0), (2, 2.0), (2, 1.0)):
        model = plan.initial()[None] + np.float32(scale)
        arrays = {"stream/model": model, "index/model": np.zeros(1, np.int32)}
        request = Request(
            *(clients.job.identity, round, 0, "evaluate", "a"),
            run="ab",
            algorithm=plan.describe(0),
            arrays=arrays,
        )
        found.append(answer_of(client, request))
    assert [it.refusal for it in found] == [
        *(None, None, Refusal.ANSWERED),
        *(None, Refusal.ANSWERED),
    ]


@pytest.mark.parametrize("rows", [4, 5])
def test_an_infinite_loss_of_few_rows_is_not_told(tmp_path, rows, monkeypatch):
    """The refusal said of a model made for it whether a cell of these rows is larger."""
    rest = "[privacy]\nevaluate = true\n"
    clients = Clients(tmp_path / "job", method="fedavg", rest=rest)
    plan = plan_of(clients.job)
    monkeypatch.setattr(round_requests, "MIN_ROWS", 10**6 if rows < 5 else 1)
    arrays = {
        "stream/model": np.full_like(plan.initial(), 3e38)[None],
        "index/model": np.zeros(1, np.int32),
    }
    request = Request(
        *(clients.job.identity, 1, 0, "evaluate", "a"),
        run="ab",
        algorithm=plan.describe(0),
        arrays=arrays,
    )
    answer = answer_of(clients.client("a"), request)
    assert answer.refusal is (None if rows < 5 else Refusal.DIVERGED)
    assert not any(it.any() for name, it in answer.arrays.items() if "score" in name)


@pytest.mark.parametrize("entry", [np.float32(31.9), np.float32(32.1), np.int32(40)])
def test_models_next_to_the_largest_numbers_of_sums_are_not_trained(tmp_path, entry):
    """The round in which training went beyond them said how many rows of a category there
    are: a step changes an entry by the rate times their share.
    """
    clients = Clients(tmp_path / "job", method="fedavg", rest=f"[privacy]\n{SECURE}")
    plan = plan_of(clients.job)
    client, found = clients.client("a"), []
    for round, size in enumerate((entry, np.float32(0.1))):
        arrays = {
            "stream/model": np.full((1, plan.model.size), size),
            "index/model": np.zeros(1, np.int32),
        }
        request = Request(
            *(clients.job.identity, round, 0, "client", "a"),
            run="ab",
            algorithm=plan.describe(0),
            arrays=arrays,
        )
        found.append(answer_of(client, request).refusal)
    # It says nothing about the rows: the next model is trained.
    assert found == [None if entry < 32 else Refusal.SUM_RANGE, None]


def answer_of(client, request):
    return decode_reply(client(encode_request(request)))


def test_the_table_in_the_documentation_is_the_one_that_is_printed(tmp_path, capsys):
    page = PRIVACY_PAGE.read_text()
    for promise in PROMISES:
        row = next(line for line in page.split("\n") if f"| {promise.what} |" in line)
        assert promise.entries.replace(", ", "`, `") in row
        by_default = "yes" if promise.allows(Policy()) else "no"
        assert f"| {by_default} |" in row
        for name in re.findall(r"`(test_[a-z_0-9]+)`", row):
            found = [
                path
                for path in Path(__file__).parent.glob("test_*.py")
                if f"def {name}(" in path.read_text()
            ]
            assert found, name
    job = job_of("fedavg", False, False, True, True, False)
    lines = said(Policy(), job)
    assert f"stays       {PROMISES[3].what}" in lines
    assert all(len(line) <= 86 for line in lines)
    assert sum("this job asks for it" in line for line in lines) == 4


def test_what_is_measured_on_few_rows_stays():
    """The loss of one row tells its target."""
    scores = {
        f"scores/{split}/{name}": np.asarray(value)
        for split, rows in (("val", 4), ("test", 5))
        for name, value in (("count", rows), ("loss", 1.5), ("metrics/f1/rows", [3, 1]))
    }
    kept = without_small_splits(scores)
    assert not any(np.any(kept[name]) for name in scores if "/val/" in name)
    assert all(
        np.all(kept[name] == scores[name]) for name in scores if "/test/" in name
    )
