"""Whole clients, with a policy, an account and a log, before honest and other
coordinators.
"""

import shutil

import numpy as np
import pytest

from fedtailor.remote.client.audit import read_audit
from fedtailor.remote.client.client import account_of, responder_of
from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.keys.kit import Kit
from fedtailor.remote.server import coordinate as coordinating
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.run_log import RunLog, client_log
from fedtailor.remote.wire.secure_sums import KEYS, SHARES, STAGES, SUM
from remote.jobs import JOB, NAMES, Clients
from remote.test_coordinate import Dies

NOISE = """
[privacy]
evaluate = false
uplink = [{{ use = "gaussian-noise", by = "client", multiplier = 4.0 }}]
"""


SUMS = """
[privacy]
evaluate = false
secure_aggregation = true
"""


class Kits(Clients):
    """Clients with a kit each; their job adds noise."""

    policy = "secure_aggregation_only = false\n"
    privacy = NOISE

    def set_rounds(self, rounds):
        text = (JOB + self.privacy).format(rounds=rounds, **self.settings)
        self.path.write_text(text)
        self.job = read_job(self.path)

    def kit(self, name):
        directory = self.directory / "kits" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / POLICY).write_text(self.policy)
        return Kit(directory, name, self.job, b"", directory / "client.pem")

    def client(self, name):
        kit = self.kit(name)
        data = self.directory / f"{name}.csv"
        return responder_of(kit, self.store(name), data)

    def store(self, name):
        return ClientStore(self.kit(name).state, self.job.identity)

    def epsilon(self, name):
        return account_of(self.kit(name)).epsilons()["client"][0]

    def ask(self, name, respond=None, **change):
        """The reply to a request of a coordinator of one's own."""
        plan = plan_of(self.job)
        fields = {
            "experiment": self.job.identity,
            "round": 0,
            "exchange": 0,
            "task": "client",
            "client": name,
            "run": "aa",
            "algorithm": plan.describe(0),
            "arrays": {
                "stream/model": plan.initial()[None],
                "index/model": np.zeros(1, np.int32),
            },
        }
        respond = respond or self.client(name)
        return decode_reply(respond(encode_request(Request(**fields | change))))


@pytest.fixture(autouse=True)
def one_run(monkeypatch):
    """All runs are the same one, so that two of them can be compared."""
    monkeypatch.setattr(coordinating, "run_identity", lambda directory: "ab12")


def test_a_run_with_noise_goes_on_to_the_same_bits_after_kills(tmp_path):
    straight = Kits(tmp_path / "straight")
    straight.start(NAMES)  # each client draws its secret
    shutil.copytree(tmp_path / "straight", tmp_path / "killed")
    killed = Kits.__new__(Kits)
    killed.__dict__.update(straight.__dict__)
    killed.directory = tmp_path / "killed"
    straight.train(NAMES)
    with pytest.raises(MemoryError):
        killed.train(NAMES, callbacks=(Dies(after=2),))
    # A round that the coordinator began before it was killed, and did not save.
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(killed.directory / "run", checkpoint)
    with pytest.raises(MemoryError):
        killed.train(NAMES, resume=True, callbacks=(Dies(after=3),))
    shutil.rmtree(killed.directory / "run")
    shutil.copytree(checkpoint, killed.directory / "run")
    killed.train(NAMES, resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(
            killed.personal(name).theta, straight.personal(name).theta
        )
        assert killed.epsilon(name) == straight.epsilon(name)
        kinds = [entry["kind"] for entry in read_audit(straight.kit(name).state)]
        assert kinds == ["client"] * 4 + ["personal"]
        assert not any("refused" in it for it in read_audit(killed.kit(name).state))


def test_a_run_in_a_new_directory_draws_other_noise_and_goes_on_with_the_account(
    tmp_path, monkeypatch
):
    clients = Kits(tmp_path / "wards", rounds=2)
    runs = iter(("aa", "bb", "cc"))
    monkeypatch.setattr(coordinating, "run_identity", lambda directory: next(runs))
    thetas, epsilons = [], []
    for _ in range(3):
        training = clients.train(NAMES)
        thetas.append(np.asarray(training.server.model[0]))
        epsilons.append(clients.epsilon("a"))
        (clients.directory / "run").rename(tmp_path / f"run {len(thetas)}")
    assert epsilons == sorted(set(epsilons))
    assert np.abs(thetas[0] - thetas[1]).max() > 1e-3
    # The default policy allows a job three runs.
    assert clients.ask("a", run="dd").refusal == Refusal.SPENT


def test_a_coordinator_gets_no_more_than_the_policy_says(tmp_path):
    clients = Kits(tmp_path / "wards", rounds=20)
    clients.policy += "rounds = 5\nepsilon = 2.0\nruns = 100\n"
    respond = clients.client("a")
    refusals = {
        (task, round): clients.ask("a", respond, task=task, round=round).refusal
        for task, round in [("client", 5), ("client", 20), ("client", 10**6)]
    }
    assert set(refusals.values()) == {Refusal.SPENT}
    answers = []
    for number in range(40):  # other rounds, other runs
        run, round = f"{number // 5:02x}", number % 5
        answers.append(clients.ask("a", respond, run=run, round=round))
    given = [reply for reply in answers if reply.arrays]
    assert 0 < len(given) < 40
    assert clients.epsilon("a") <= 2.0
    assert {it.refusal for it in answers if not it.arrays} == {Refusal.SPENT}
    # A restart changes nothing; what was answered is answered again.
    again = clients.ask("a", run="00", round=0)
    np.testing.assert_array_equal(
        again.arrays["update/model"], given[0].arrays["update/model"]
    )
    assert clients.ask("a", run="77", round=0).refusal == Refusal.SPENT
    entries = list(read_audit(clients.kit("a").state))
    assert sum("refused" not in entry for entry in entries) == len(given) + 1


def test_a_round_that_the_job_does_not_have_is_refused_without_a_policy(tmp_path):
    clients = Kits(tmp_path / "wards", rounds=20)
    respond = clients.client("a")
    for round in (20, 10**6):
        assert clients.ask("a", respond, round=round).refusal == Refusal.ROUND
    assert clients.ask("a", respond, round=19).arrays


def test_a_job_that_was_sent_again_with_other_settings_goes_on_with_the_account(
    tmp_path,
):
    clients = Kits(tmp_path / "wards")
    assert clients.ask("a").arrays
    before = clients.epsilon("a")
    text = clients.path.read_text()
    clients.path.write_text(text.replace("multiplier = 4.0", "multiplier = 3.0"))
    clients.job = read_job(clients.path)
    assert clients.ask("a").arrays
    assert clients.epsilon("a") > before
    assert "in 2 runs of 2 jobs" in account_of(clients.kit("a")).describe()[0]


class Summed(Kits):
    """Clients with the default policy; their job adds updates behind masks."""

    policy, privacy = "", SUMS


def test_clients_without_a_policy_of_their_own_take_part_in_sums(tmp_path):
    clients = Summed(tmp_path / "wards", rounds=2)
    training = clients.train(NAMES)
    simulated = clients.simulated(NAMES, 2)
    for name in NAMES:
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-4,
            atol=1e-5,
        )
    kinds = [entry["kind"] for entry in read_audit(clients.kit("a").state)]
    assert training.round == 2
    assert kinds == [*("client", *STAGES) * 2, "personal"]


def test_sums_over_too_few_clients_are_refused_by_the_policy(tmp_path):
    clients = Summed(tmp_path / "wards", rounds=2)
    clients.policy = "least_clients = 4\n"
    respond = clients.client("a")
    description = plan_of(clients.job).describe(0)
    name = {"name": "s", "kind": "model"}
    assert clients.ask("a", respond).refusal is None
    for stage, wanted in ((KEYS, None), (SHARES, Refusal.POLICY)):
        among = {"among": ["a", "b", "c"]} if stage == SHARES else {}
        settings = description | {SUM: name | among}
        reply = clients.ask("a", respond, task=stage, algorithm=settings, arrays={})
        assert reply.refusal == wanted


def test_a_client_says_each_round_and_when_the_training_is_over(tmp_path):
    """And nothing of what was refused, or asked for again."""
    clients, lines = Kits(tmp_path / "wards", rounds=2), []
    RunLog(show=lines.append).listen(client_log("a"))

    def client(name):
        kit, data = clients.kit(name), clients.directory / f"{name}.csv"
        return responder_of(kit, clients.store(name), data)

    clients.client = client
    clients.train(NAMES)
    said = [line.split("INFO    ")[1] for line in lines if "INFO" in line]
    assert said[0].startswith("a: this job sends 16 numbers")
    assert "40 rows of a.csv fit the job 'wards'" in said[1]
    assert said[2].startswith("round 1: answered 'client' (")
    assert said[3].startswith("round 2: answered 'client' (")
    assert said[4].startswith("round 2: answered 'personal' (")
    assert said[5].startswith("the training is over; this client's own model is in ")
    assert said[6].startswith("predict with it: fedtailor federation predict ")
    assert len(said) == 7
    before = len(lines)
    assert clients.ask("a", client("a"), round=99).refusal == Refusal.ROUND
    assert not any("answered" in line for line in lines[before:])


def test_a_job_that_the_policy_does_not_allow_is_not_begun(tmp_path):
    clients = Kits(tmp_path / "wards")
    clients.policy = ""
    with pytest.raises(ValueError, match="the policy here does not allow this job"):
        clients.client("a")
    assert not list(read_audit(clients.kit("a").state))


@pytest.mark.parametrize("rounds", [3, -1, 2**31 - 1, np.nan])
def test_a_newcomer_makes_up_for_no_more_rounds_than_the_job_has(tmp_path, rounds):
    """It computes them in one go: a message of a kilobyte kept it computing for ever."""
    clients = Clients(tmp_path / "wards", method="local", rounds=2)
    client, plan = clients.client("a"), plan_of(clients.job)

    def ask(number):
        dtype = np.float32 if np.isnan(number) else np.int32
        arrays = {
            "stream/model": plan.initial()[None],
            "index/model": np.zeros(1, np.int32),
            "scalar/rounds": np.array(number, dtype),
        }
        request = Request(
            *(clients.job.identity, 1, 0, "init_unseen", "a"),
            run="ab",
            algorithm=plan.describe(0),
            arrays=arrays,
        )
        return decode_reply(client(encode_request(request))).refusal

    assert ask(rounds) is Refusal.ROUND
    assert ask(2) is None
