"""A client's policy: what it refuses, and what it says."""

import dataclasses
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest

from fedtailor.remote.client.policy import (
    POLICY,
    Policy,
    default_policy_note,
    read_policy,
    write_policy,
)
from fedtailor.remote.job.job import read_job
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.secure_sums import SHARES, STAGES, SUM, VECTORS

JOB = """
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "label"
classes = ["no", "yes"]
preprocessing = "{preprocessing}"
[data.columns]
age = "number"
ward = ["surgery", "medicine"]
[model]
use = "logistic"
[method]
{method}
[training]
rounds = 20
[privacy]
evaluate = {evaluate}
{privacy}
"""
FEDAVG = 'use = "fedavg"'
SECURE = "secure_aggregation = true"
NOISY = 'uplink = [{ use = "gaussian-noise", by = "client" }]'
PRIVATE = f"{FEDAVG}\nsgd = {{ dp_noise = 1.0, dp_norm = 1.0 }}"
UCFL = 'use = "ucfl"\nstreams = 2\nsigma_batch = 0.1'


def job_of(
    directory, method=FEDAVG, privacy=SECURE, preprocessing="none", evaluate="false"
):
    path = directory / "job.toml"
    path.write_text(
        JOB.format(
            method=method,
            privacy=privacy,
            preprocessing=preprocessing,
            evaluate=evaluate,
        )
    )
    return read_job(path)


def request(task="client", round=0, **change):
    if task in STAGES:
        settings = {"name": "s", "kind": "model"}
        settings |= {SHARES: {"among": ["a"] * 9}, VECTORS: {"columns": []}}.get(
            task, {}
        )
        change.setdefault("algorithm", {SUM: settings})
    return Request("job", round, 0, task, "a", **change)


def refusal(policy, asked, now=None):
    try:
        policy.check_request(asked, now)
    except Refused as error:
        return error.code
    return None


def policy_of(directory, text):
    (directory / POLICY).write_text(text)
    return read_policy(directory)


def test_without_a_file_the_defaults_are_safe(tmp_path):
    policy = read_policy(tmp_path)
    assert policy == Policy()
    assert policy.secure_aggregation_only and not policy.federated_statistics
    policy.check_job(job_of(tmp_path))


@pytest.mark.parametrize(
    ("policy", "job", "said"),
    [
        (Policy(), {"privacy": ""}, "see this client's own updates"),
        (
            Policy(),
            {"method": UCFL, "privacy": SECURE + '\nprobe = "open"'},
            "would answer a probe openly",
        ),
        (
            Policy(secure_aggregation_only=False),
            {"privacy": "", "preprocessing": "federated"},
            "federated_statistics is false",
        ),
        (
            Policy(),
            {"evaluate": "true"},
            "(measurements is false, secure_aggregation_only is true)",
        ),
        (
            Policy(measurements=True),
            {"evaluate": "true"},
            "own sums of losses would be sent (secure_aggregation_only is true)",
        ),
        (Policy(noise_only=True), {}, "no noise would be added here"),
        (Policy(columns=("age", "label")), {}, "it uses 'ward' (not in columns)"),
        (Policy(columns=("age", "ward")), {}, "it uses 'label' (not in columns)"),
    ],
)
def test_a_job_that_the_policy_does_not_allow_is_refused(tmp_path, policy, job, said):
    with pytest.raises(ValueError, match=r"^the policy here does not allow this") as it:
        policy.check_job(job_of(tmp_path, **job))
    assert said in str(it.value) and "\n" not in str(it.value)


def test_all_reasons_are_said_at_once(tmp_path):
    job = job_of(tmp_path, privacy="", preprocessing="federated")
    with pytest.raises(ValueError, match=r"own updates .* single columns"):
        Policy().check_job(job)


@pytest.mark.parametrize(
    ("policy", "job"),
    [
        (Policy(secure_aggregation_only=False), {"privacy": ""}),
        (
            Policy(secure_aggregation_only=False, federated_statistics=True),
            {"privacy": "", "preprocessing": "federated"},
        ),
        (Policy(), {"preprocessing": "job"}),
        (
            Policy(measurements=True, secure_aggregation_only=False),
            {"evaluate": "true"},
        ),
        (Policy(noise_only=True), {"privacy": f"{SECURE}\n{NOISY}"}),
        (Policy(noise_only=True), {"method": PRIVATE}),
        (Policy(columns=("age", "label", "more", "ward")), {}),
        # A method without a probe has nothing to answer openly.
        (Policy(), {"privacy": SECURE + '\nprobe = "open"'}),
    ],
)
def test_a_job_that_the_policy_allows_is_not_refused(tmp_path, policy, job):
    policy.check_job(job_of(tmp_path, **job))


@pytest.mark.parametrize(
    ("task", "round", "code"),
    [
        ("client", 19, None),
        ("client", 20, Refusal.SPENT),
        ("sum-keys", 20, Refusal.SPENT),
        ("client", 10**6, Refusal.SPENT),
        ("evaluate", 20, None),  # after the last round
        ("personal", 20, None),
        ("evaluate", 21, Refusal.SPENT),
        ("probe", 21, Refusal.SPENT),
        ("hello", 0, None),
    ],
)
def test_rounds_beyond_the_policys_are_refused(task, round, code):
    assert refusal(Policy(rounds=20), request(task, round)) == code


@pytest.mark.parametrize(
    ("hours", "clock", "is_open"),
    [
        ("00:00-24:00", "00:00", True),
        ("00:00-24:00", "23:59", True),
        ("08:00-18:00", "07:59", False),
        ("08:00-18:00", "08:00", True),
        ("08:00-18:00", "18:00", False),
        ("20:00-06:00", "21:00", True),
        ("20:00-06:00", "05:59", True),
        ("20:00-06:00", "06:00", False),
        ("20:00-06:00", "19:59", False),
    ],
)
def test_requests_are_answered_in_the_policys_hours(hours, clock, is_open):
    now = datetime.strptime(clock, "%H:%M")
    for task in ("hello", "client", "statistics"):
        code = refusal(Policy(hours=hours), request(task), now)
        assert code == (None if is_open else Refusal.HOURS)


def sum_request(stage, clients):
    here = np.arange(10) < clients
    arrays = {"sum-vectors": {"there": here}, "sum-confirm": {"arrived": here}}
    asked = request(stage, arrays=arrays.get(stage, {}))
    if stage == SHARES:
        names = [f"client {number}" for number in range(clients)]
        asked.algorithm[SUM]["among"] = names
    return asked


@pytest.mark.parametrize("stage", ["sum-shares", "sum-vectors", "sum-confirm"])
def test_sums_over_fewer_clients_than_the_policy_says_are_refused(stage):
    policy = Policy(least_clients=5)
    assert refusal(policy, sum_request(stage, 5)) is None
    assert refusal(policy, sum_request(stage, 4)) == Refusal.POLICY
    # names that are listed twice do not count, nor do requests that say nothing
    assert refusal(policy, request(stage)) == Refusal.POLICY
    for wrong in ({}, {SUM: 3}, {SUM: {"among": 7}}):
        asked = request(stage, algorithm=wrong)
        assert refusal(policy, asked) == Refusal.MALFORMED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 0", "policy.toml, line 1: rounds is 0; it must be greater"),
        ("\nrounds = '5'", "policy.toml, line 2: rounds is '5'; it must be a whole"),
        ("epsilon = nan", "policy.toml, line 1: epsilon is nan;"),
        ("epsilon = -1", "epsilon is -1; it must be greater than 0"),
        ("hours = '24:00-00:00'", "hours is '24:00-00:00'; write the hours"),
        ("least_clients = 2", "least_clients is 2; it must be greater than or"),
        ("least_clients = 52", "least_clients is 52; it must be less than or"),
        ("noise_only = 1", "noise_only is 1; it must be true or false"),
        ("columns = 'age'", "columns is 'age'; it must be a list"),
        ("columns = [1]", "columns is [1]; it must be a text"),
        ("hours = '8-18'", "hours is '8-18'; write the hours as \"HH:MM-HH:MM\""),
        ("hours = '08:00-08:00'", "hours is '08:00-08:00'; write the hours"),
        ("hours = '00:00-24:30'", "hours is '00:00-24:30'; write the hours"),
        ("hours = 07:00:00", "policy.toml, line 1: hours is"),
        ("secure_agregation_only = false", "secure_aggregation_only"),
        (
            "[privacy]\nepsilon = 1.0",
            "policy.toml, line 1: there is no entry 'privacy'",
        ),
        ("[quick]\nruns = 9", "policy.toml, line 1: there is no entry 'quick'"),
        ("rounds =", "policy.toml is not a TOML file"),
    ],
)
def test_wrong_entries_end_in_one_line(tmp_path, text, said):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        policy_of(tmp_path, text)
    assert said in str(caught.value)


def test_a_policy_that_is_not_where_its_link_leads_is_not_none(tmp_path):
    """Before, the defaults held, which may allow more."""
    (tmp_path / "policy.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(ValueError, match=r"^cannot read .*policy.toml: No such file"):
        read_policy(tmp_path)


def test_what_init_policy_writes_is_the_default_with_the_jobs_rounds_and_columns(
    tmp_path,
):
    job = job_of(tmp_path)
    path = write_policy(tmp_path, job)
    assert read_policy(tmp_path) == Policy(rounds=20, columns=("age", "ward", "label"))
    read_policy(tmp_path).check_job(job)
    assert max(map(len, path.read_text().splitlines())) <= 88
    with pytest.raises(ValueError, match="there is a policy already"):
        write_policy(tmp_path, job)


def test_odd_names_of_columns_are_written_as_toml(tmp_path):
    names = ('a "b"', "c\\d", "größe", "x = 1 # y")
    schema = SimpleNamespace(used=(*names, "t"))
    write_policy(
        tmp_path, SimpleNamespace(spec=SimpleNamespace(rounds=3), schema=schema)
    )
    assert read_policy(tmp_path).columns == (*names, "t")


def test_the_policy_is_said_in_plain_words(tmp_path):
    job = job_of(tmp_path)
    lines = Policy(rounds=5, least_clients=4, hours="20:00-06:00").describe(job)
    assert lines == [
        "rounds      at most 5 of the job's 20 in a run, and 3 runs",
        "updates     seen in sums over 4 clients or more, never this client's own",
        "epsilon     at most 10 over all runs and jobs",
        "            (this job adds no noise here: no epsilon covers what is sent)",
        "statistics  of single columns may not be sent before training",
        "columns     age, ward, label",
        "hours       20:00-06:00",
    ]
    privacy = dataclasses.replace(job.spec.privacy, evaluate=True)
    job = dataclasses.replace(job, spec=dataclasses.replace(job.spec, privacy=privacy))
    assert "(this job also sends its own sums of losses)" in Policy().describe(job)[2]
    noisy = job_of(tmp_path, privacy=NOISY)
    many = tuple(f"a column number {number}" for number in range(30))
    policy = Policy(
        secure_aggregation_only=False, federated_statistics=True, columns=many
    )
    lines = policy.describe(noisy)
    assert lines[1].endswith("or this client's own")
    assert lines[3].endswith("(this job has this client add noise)")
    assert lines[4].endswith("may be sent before training")
    assert lines[-2].endswith("(30 in all)")
    assert all(len(line) <= 78 for line in lines)


def test_a_coordinator_knows_what_clients_refuse_by_default(tmp_path):
    assert default_policy_note(job_of(tmp_path)) is None
    line = default_policy_note(job_of(tmp_path, privacy="", preprocessing="federated"))
    assert line is not None and "\n" not in line and POLICY in line
    for name in ("secure_aggregation_only", "federated_statistics"):
        assert name in line
