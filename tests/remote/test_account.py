"""What a client has answered and spent: once a round, over restarts and runs, on disk."""

import math
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.aggregation.accounting.privacy import (
    sampled_gaussian_epsilon,
    sgd_epsilon,
)
from fedtailor.remote.client.account import (
    ACCOUNT,
    ClientAccount,
    Release,
    digest_of,
)
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.request_kind import DESCRIBE
from remote.jobs import Clients
from remote.test_noise_over_machines import KINDS, released, remote, sent_models


def request(**change):
    fields = {
        "experiment": "job",
        "round": 0,
        "exchange": 0,
        "task": "client",
        "client": "a",
        "run": "aa",
        "algorithm": {"phase": 0},
        "arrays": {"stream/model": np.arange(4, dtype=np.float32)[None]},
    }
    return Request(**fields | change)


NOISY = Release(unit="client", multiplier=2.0, delta=1e-5, count=1)
STEPS = Release(
    unit="example", multiplier=1.5, delta=1e-5, count=10, batch_size=8, examples=100
)
OTHER = np.ones((1, 4), np.float32)


def refusal(account, asked):
    with pytest.raises(Refused) as caught:
        account.check(asked)
    return caught.value.code


def test_another_request_for_a_round_is_refused_and_the_same_is_not(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    for again in (account, ClientAccount(tmp_path)):  # and after a restart
        again.check(request(exchange=3, deadline=5.0, nonce="x"))
        again.check(request(durable_state_round=0))
        for change in (
            {"arrays": {"stream/model": OTHER}},
            {"reply": False},
            {"state_round": 0},
            {"algorithm": {"phase": 0, "newcomer": True}},
            {"algorithm": {"phase": 1}},
        ):
            assert refusal(again, request(**change)) == Refusal.ANSWERED
        for free in ({"round": 1}, {"task": "evaluate"}, {"run": "bb"}):
            again.check(request(arrays={"stream/model": OTHER}, **free))


def test_a_round_is_measured_in_one_phase(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(task="evaluate"))
    with pytest.raises(Refused, match="has answered another request"):
        account.check(request(task="evaluate", algorithm={"phase": 1}))


def test_two_phases_may_probe_in_one_round(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(task="probe"))
    account.check(request(task="probe", algorithm={"phase": 1}))
    assert refusal(account, request(task="probe", reply=False)) == Refusal.ANSWERED


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": "another"},
        {"run": "bb"},
        {"round": 1},
        {"task": "probe"},
        {"client": "b"},
        {"state_round": 0},
        {"reply": False},
        {"algorithm": {"phase": 1}},
        {"arrays": {"stream/model": OTHER}},
        {"arrays": {"stream/model": np.arange(4, dtype=np.float32)}},
        {"arrays": {"stream/model": np.arange(4, dtype=np.int32)[None]}},
        {"arrays": {"other": np.arange(4, dtype=np.float32)[None]}},
    ],
)
def test_everything_that_an_answer_depends_on_is_in_the_digest(change):
    assert digest_of(request(**change)) != digest_of(request())


def test_epsilon_adds_up_over_runs_jobs_and_restarts(tmp_path):
    account = ClientAccount(tmp_path)
    for number, (job, run) in enumerate([("x", "aa"), ("x", "bb"), ("y", "cc")]):
        for round in range(3):
            asked = request(experiment=job, run=run, round=round)
            account.record(asked, [NOISY, STEPS])
            account.record(asked, [NOISY, STEPS])  # the same answer again is free
        account = ClientAccount(tmp_path)
        count = 3 * (number + 1)
        epsilons = account.epsilons()
        wanted = sampled_gaussian_epsilon(2.0, 1.0, count, 1e-5)
        assert epsilons["client"] == (wanted, 1e-5)
        wanted = sgd_epsilon(1.5, 8, 100, 10 * count, 1e-5)
        assert epsilons["example"] == (wanted, 1e-5)


def test_noise_of_two_strengths_composes_and_the_smaller_delta_counts(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    account.record(
        request(round=1), [NOISY.model_copy(update={"multiplier": 1.0, "delta": 1e-6})]
    )
    epsilon, delta = account.epsilons()["client"]
    # Rényi divergences add: 1/2^2 + 1/1^2 = 1/0.894^2 (Mironov 2017, proposition 7)
    together = sampled_gaussian_epsilon((1 / 4 + 1) ** -0.5, 1.0, 1, 1e-6)
    assert delta == 1e-6
    assert epsilon == pytest.approx(together, rel=1e-10)


def test_no_more_epsilon_is_spent_than_the_policy_allows(tmp_path, client_lines):
    most = sampled_gaussian_epsilon(2.0, 1.0, 5, 1e-5) * (1 + 1e-9)
    account = ClientAccount(tmp_path, most_epsilon=most)
    for round in range(5):
        account.record(request(round=round), [NOISY])
    size = (tmp_path / ACCOUNT).stat().st_size
    for run in ("aa", "bb"):  # a new run does not help
        with pytest.raises(Refused, match="epsilon would be") as caught:
            account.record(request(round=5, run=run), [NOISY])
        assert caught.value.code == Refusal.SPENT
    assert (tmp_path / ACCOUNT).stat().st_size == size
    account.record(request(round=4), [NOISY])  # the same again
    assert len(client_lines) == 5
    assert client_lines[-1].startswith(
        f"round 5: epsilon {most:.2f} for all rows of this"
    )
    assert client_lines[-1].endswith(f"at most {most:g}")


def test_a_row_is_also_in_what_hides_the_whole_client(tmp_path):
    """Before, each of two jobs, one with noise on models and one with private steps, could
    spend all of the policy's epsilon on the same rows.
    """
    account = ClientAccount(tmp_path)
    account.record(request(), [STEPS])
    alone = account.epsilons()["example"][0]
    assert alone == sgd_epsilon(1.5, 8, 100, 10, 1e-5)
    # Noise on what private steps made takes nothing from them.
    account.record(request(round=1), [NOISY, STEPS.model_copy(update={"count": 1})])
    more = account.epsilons()
    assert more["example"][0] == pytest.approx(sgd_epsilon(1.5, 8, 100, 11, 1e-5))
    account.record(request(round=2), [NOISY])
    for it in (account, ClientAccount(tmp_path)):
        found = it.epsilons()
        # as one more sum, of which a row changes twice the norm
        one = sampled_gaussian_epsilon(1.0, 1.0, 1, 1e-5)
        assert max(one, more["example"][0]) < found["example"][0] < one + 2 * alone
    limited = ClientAccount(tmp_path, most_epsilon=found["example"][0])
    with pytest.raises(Refused, match="epsilon would be"):
        limited.record(request(round=3), [NOISY])


def test_exactly_the_policys_epsilon_may_be_spent_in_whatever_order(tmp_path):
    """Nothing is added up in rounds, so that no rounding lets one more through."""
    kinds = [NOISY, NOISY.model_copy(update={"multiplier": 1.7})]
    for name, order in (("one", [0, 1, 0, 1, 0]), ("two", [1, 0, 0, 0, 1])):
        (tmp_path / name).mkdir()
        account = ClientAccount(tmp_path / name)
        for round, kind in enumerate(order):
            account.record(request(round=round), [kinds[kind]])
        most = account.epsilons()["client"][0]
        (tmp_path / name / "again").mkdir()
        account = ClientAccount(tmp_path / name / "again", most_epsilon=most)
        for round, kind in enumerate(order):
            account.record(request(round=round), [kinds[kind]])
        with pytest.raises(Refused, match="epsilon would be"):
            account.record(request(round=9), [kinds[0]])


def test_runs_of_one_job_are_counted(tmp_path):
    account = ClientAccount(tmp_path, most_runs=2)
    account.record(request(run="aa"))
    account.record(request(run="bb"))
    account.check(request(run="aa", round=7))
    account.check(request(run="cc", experiment="another job"))
    assert refusal(account, request(run="cc")) == Refusal.SPENT


def test_two_processes_keep_one_account(tmp_path):
    one, other = ClientAccount(tmp_path), ClientAccount(tmp_path)
    one.record(request(), [NOISY])
    with pytest.raises(Refused) as caught:
        other.record(request(arrays={"stream/model": OTHER}), [NOISY])
    assert caught.value.code == Refusal.ANSWERED
    other.record(request(round=1), [NOISY])
    one.record(request(round=2), [NOISY])
    assert one.epsilons() == ClientAccount(tmp_path).epsilons()


def test_a_line_that_was_not_finished_never_counted(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    whole = account.path.read_bytes()
    account.path.write_bytes(whole + whole[:50])  # the power failed
    again = ClientAccount(tmp_path)
    assert again.epsilons() == account.epsilons()
    again.record(request(round=1), [NOISY])
    assert again.epsilons() == ClientAccount(tmp_path).epsilons()


def test_a_whole_last_line_counts_whatever_its_end(tmp_path):
    """Its answer may have left, if only its end was lost."""
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    whole = account.path.read_bytes()
    account.path.write_bytes(whole.removesuffix(b"\n"))
    again = ClientAccount(tmp_path)
    assert again.epsilons() == account.epsilons() and account.path.read_bytes() == whole
    again.record(request(round=1), [NOISY])
    assert again.epsilons() == ClientAccount(tmp_path).epsilons()


def zeros_from_the_second_line(content):
    first, _, rest = content.partition(b"\n")
    return first + b"\n" + bytes(len(rest))


@pytest.mark.parametrize(
    "damage",
    [
        zeros_from_the_second_line,
        lambda content: bytes(len(content)),
        lambda content: content.replace(b"\n", b"\r"),
        lambda content: content.replace(b"\n", b" "),
        lambda content: content + b"[" * 9999,
        *(
            lambda content, bit=bit: content[:-1] + bytes([content[-1] ^ 1 << bit])
            for bit in range(8)
        ),
    ],
)
def test_no_answer_is_taken_for_one_that_was_not_written(damage, tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    account.record(request(round=1), [NOISY])
    damaged = damage(account.path.read_bytes())
    account.path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"account\.jsonl is damaged after"):
        ClientAccount(tmp_path)
    assert account.path.read_bytes() == damaged


@pytest.mark.parametrize("place", [0, 20, 200, -3])
def test_a_damaged_account_is_said_in_one_line(tmp_path, place):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    account.record(request(round=1), [NOISY])
    content = bytearray(account.path.read_bytes())
    content[place] ^= 1
    account.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"account\.jsonl is damaged after") as caught:
        ClientAccount(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_is_answered_that_cannot_be_written_down(tmp_path, monkeypatch):
    account = ClientAccount(tmp_path)
    account.record(request())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    before = account.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=r"cannot keep the account .*: No space"):
            account.record(request(round=1), [NOISY])
    assert account.path.read_bytes() == before
    account.record(request(round=1), [NOISY])
    assert ClientAccount(tmp_path).epsilons() == account.epsilons()


def test_the_account_is_its_owners_only_and_says_what_it_holds(tmp_path):
    account = ClientAccount(tmp_path)
    account.record(request(), [NOISY])
    account.record(request(round=1), without_noise=True)
    account.record(request(run="bb", task="evaluate"), without_noise=True)
    assert account.path.stat().st_mode & 0o777 == 0o600
    rounds, spent, bare = account.describe()
    assert rounds == "answered so far: 2 rounds of training, in 2 runs of 1 job"
    assert spent.startswith("spent so far: epsilon") and "at most" not in spent
    assert bare.startswith("2 answers without noise")
    assert math.isfinite(account.epsilons()["client"][0])
    # Private steps, or counts with noise, say something about all rows, too.
    assert "for all rows of this client (delta" in spent
    account.record(request(round=2), [STEPS])
    _, spent, _ = account.describe()
    assert (
        "for all rows of this client in updates with noise of its own (delta" in spent
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_answers_a_round_once_also_after_a_restart(kind, tmp_path):
    ours = remote(tmp_path, *KINDS[kind])
    one, other = sent_models(ours)
    first = released(ours, one, run="aa")
    for _ in range(2):
        assert released(ours, other, run="aa") is None
        np.testing.assert_array_equal(released(ours, one, run="aa"), first)
        ours.responders = {name: ours.client(name) for name in ours.federation.names}
    # another run is answered with other noise, and counts
    account = ClientAccount(ours.store(ours.federation.names[0]).client_directory)
    ((unit, (spent, _)),) = account.epsilons().items()
    again = released(ours, one, run="bb")
    assert abs(np.corrcoef(again, first)[0, 1]) < 0.15
    account = ClientAccount(account.path.parent)
    assert account.epsilons()[unit][0] > spent


def test_a_request_is_not_answered_again_about_other_rows(tmp_path):
    """The answers before and after a row was added would differ by its effect, with noise
    that nobody is charged for.
    """
    ours = remote(tmp_path, *KINDS["client"])
    name = ours.federation.names[0]
    first = sent_models(ours)[0]
    assert released(ours, first) is not None
    share = ours.shares[name]
    ours.shares[name] = replace(share, x=share.x + np.float32(1e-3))
    ours.responders[name] = ours.client(name)
    assert released(ours, first) is None


def test_a_description_is_the_same_before_and_after_the_rows_are_known(tmp_path):
    """Clients with federated preprocessing are described first."""
    account = ClientAccount(tmp_path)
    asked = request(task=DESCRIBE, run="", algorithm={"step": "noisy"}, arrays={})
    account.record(asked, about="digest of counts")
    account.rows = "digest of rows"
    account.check(replace(asked), "digest of counts")
    account.record(request())
    account.rows = "of other rows"
    assert refusal(account, request()) is Refusal.ANSWERED


def test_an_account_that_was_replaced_is_named(tmp_path):
    """An older copy, beside a client that runs: its places were answered again."""
    account = ClientAccount(tmp_path)
    account.record(request())
    account.path.write_bytes(b"")
    with pytest.raises(
        ValueError, match="shorter than it was when this client read it"
    ):
        account.record(request(round=3))


NOISE = """
[privacy]
evaluate = false
uplink = [{ use = "gaussian-noise", by = "client", multiplier = 2.0, norm = 1.0 }]
"""


def test_a_request_is_not_answered_again_from_the_state_of_another_run(tmp_path):
    """Before, each answer had another noise, and one was charged: the mean of 3,279 of
    them had next to none.
    """
    clients = Clients(tmp_path / "job", rest=NOISE)
    plan, client = plan_of(clients.job), clients.client("a")
    model = plan.initial()[None]

    def ask(run, round):
        request = Request(
            *(clients.job.identity, round, 0, "client", "a"),
            deadline=time.time() + 60,
            run=run,
            state_round=round - 1,
            algorithm=plan.describe(0),
            arrays={"stream/model": model, "index/model": np.zeros(1, np.int32)},
        )
        return decode_reply(client(encode_request(request)))

    for round in range(2):
        assert ask("a", round).refusal is None
    again = ask("a", 1)
    assert again.refusal is None
    assert ask("b", 0).refusal is None
    assert ask("a", 1).refusal is Refusal.NO_STATE
    # From its beginning the run has the same states, and so the same answers.
    assert ask("a", 0).refusal is None
    np.testing.assert_array_equal(
        ask("a", 1).arrays["update/model"], again.arrays["update/model"]
    )
