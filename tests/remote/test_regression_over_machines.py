"""Regressions over machines are those of pooled rows, behind masks."""

import dataclasses
import itertools

import numpy as np
import polars as pl
import pytest

from fedtailor.remote.client.policy import Policy
from fedtailor.remote.client.promises import said
from fedtailor.remote.client.round_requests import RoundHandler
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.examples import federation_from_rows
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.regression import client_design, design_names
from fedtailor.remote.job.statistics import read_table
from fedtailor.remote.server.regression import fit_clients
from fedtailor.remote.server.steps import StepRefused
from fedtailor.remote.service import agree_on_preprocessing
from fedtailor.remote.wire.messages import (
    decode_reply,
    decode_request,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.regression import REGRESS
from fedtailor.remote.wire.secure_sums import STAGES
from fedtailor.remote.wire.transport import Responder, TooFewClients
from fedtailor.statistics.grid import LARGEST
from fedtailor.statistics.regression import (
    ClientRows,
    RegressionRequest,
    RegressionRows,
    fit_from_sums,
    fit_table,
)
from fedtailor.statistics.regression.rows import Kept, Totals, sum_over, sums_from
from remote.jobs import NAMES, Clients
from remote.taps import Tap

REST = """
[privacy]
secure_aggregation = true
[regression]
model = "logistic"
"""


class Fitted(Clients):
    """Four clients whose job fits a regression."""

    def __init__(self, directory, rest=REST):
        super().__init__(directory, rest=rest)
        self.responders = {name: self.client(name) for name in NAMES}

    def client(self, name):
        plan, store = plan_of(self.job), self.store(name)
        data = federation_from_rows(self.job, {name: self.rows[name]})
        handler = RoundHandler(plan, data, store, design=self.design(name))
        return Responder(self.job.identity, name, handler, plan.common_vectors)

    def design(self, name):
        table = read_table(self.directory / f"{name}.csv", self.job.schema)
        return client_design(table, self.job.regression.model)

    def fit(self, transport=None, **options):
        return fit_clients(
            self.job, transport or Tap(self.responders), NAMES, **options
        )

    def pooled(self):
        frames = [
            pl.read_csv(self.directory / f"{name}.csv").with_columns(
                client=pl.lit(name)
            )
            for name in NAMES
        ]
        return pl.concat(frames)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Clients, all messages, and the regression."""
    clients = Fitted(tmp_path_factory.mktemp("fitted") / "job")
    tap = Tap(clients.responders)
    return clients, tap, *clients.fit(tap)


SURVIVAL = """title = "wards"
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "days"
event = "died"
intervals = [10, 20]
preprocessing = "job"
[data.columns]
age = "number"
ward = ["surgery", "medicine"]
[model]
use = "linear"
[method]
use = "fedavg"
sgd = { lr = 0.05, epochs = 1, batch_size = 8 }
[training]
rounds = 2
[privacy]
secure_aggregation = true
[regression]
model = "cox"
"""


def test_machines_fit_what_pooled_rows_fit_of_times(tmp_path):
    """With whole clients, which agree to the sums of a job, and a cell that is missing."""
    (tmp_path / "job.toml").write_text(SURVIVAL)
    job, rng = read_job(tmp_path / "job.toml"), np.random.default_rng(3)
    frames, responders = [], {}
    for name in NAMES:
        age = rng.uniform(20, 90, 40)
        ward = rng.choice(["surgery", "medicine"], 40)
        days = np.ceil(30 * rng.exponential(np.exp(-age / 60)))
        died = rng.choice(["yes", "no"], 40, p=[0.8, 0.2])
        frame = pl.DataFrame({"age": age, "ward": ward, "days": days, "died": died})
        frame = frame.with_columns(frame["age"].scatter(0, None))
        frame.write_csv(tmp_path / f"{name}.csv")
        frames.append(frame.with_columns(client=pl.lit(name)))
        store = ClientStore(tmp_path / name, job.identity)
        handler = JobHandler(job, name, tmp_path / f"{name}.csv", store)
        responders[name] = Responder(
            job.identity, name, handler, handler.common_vectors
        )
    tap = Tap(responders)
    statistics = agree_on_preprocessing(job, tap, NAMES, 60)
    found, notes = fit_clients(job, tap, NAMES, statistics=statistics)
    expected, _ = fit_table(
        pl.concat(frames), "cox", client="client", target="days", event="died"
    )
    assert found.names == expected.names
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-10)
    assert "4 rows are left out, as a cell is missing." in notes
    assert {decode_request(body).task for _, body in tap.requests} <= set(STAGES)


@pytest.mark.parametrize("intercept", ["common", "fixed"])
def test_machines_fit_what_pooled_rows_fit(tmp_path, intercept):
    rest = REST + f'intercept = "{intercept}"\n'
    clients = Fitted(tmp_path / "job", rest)
    found, notes = clients.fit()
    expected, _ = fit_table(
        clients.pooled(),
        "logistic",
        client="client",
        target="label",
        intercept=intercept,
    )
    assert found.names == expected.names
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-10)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
    assert (found.rows, found.clients, found.freedom) == (
        expected.rows,
        expected.clients,
        expected.freedom,
    )
    assert notes[0] == "Odds are those of label yes against no."
    assert notes[1].startswith("Categories are compared with the most frequent: ward")
    # Sums of machines are those of a simulation on the same grid, to the bit.
    parts = [
        RegressionRows(
            clients.design(name).rows, "logistic", own_intercept=intercept == "fixed"
        )
        for name in NAMES
    ]
    names = design_names(clients.job.schema)
    simulated = fit_from_sums(
        sum_over(parts, on_grid=True),
        names.names,
        "logistic",
        levels=names.levels,
        intercept=intercept,
    ).regression
    np.testing.assert_array_equal(found.coefficients, simulated.coefficients)
    np.testing.assert_array_equal(found.covariance, simulated.covariance)


def test_only_masks_leave_a_client(fitted):
    _, tap, *_ = fitted
    names = set()
    for _, body in tap.sent:
        reply = decode_reply(body)
        assert reply.refusal is None
        names |= {name for name in reply.arrays if len(reply.arrays[name])}
    assert names == {"masking", "sealing", "shares", "commitment", "masked", "codes"}


def test_lost_answers_are_asked_for_again(tmp_path, fitted, lines):
    clients, lost = Fitted(tmp_path / "job"), []

    def lose(client, request):
        is_lost = len(lost) < 3 and client == "b" and len(tap.sent) % 5 == 0
        if is_lost:
            lost.append(request.task)
        return is_lost

    tap = Tap(clients.responders, lose)
    object.__setattr__(clients.job, "deadline", 0.5)
    found, _ = clients.fit(tap)
    assert lost
    np.testing.assert_array_equal(found.coefficients, fitted[2].coefficients)
    gone = Tap(clients.responders, lambda client, _: client == "b")
    with pytest.raises(TooFewClients):
        clients.fit(gone, patience=0.1)


def test_a_client_that_was_started_again_ends_the_fit(tmp_path, lines):
    """It would refuse every retry: nobody waits for that."""
    clients, first = Fitted(tmp_path / "job"), Fitted(tmp_path / "first")
    begun = []

    def answer(body):
        begun.append(decode_request(body).round)
        return (clients if max(begun) == 0 else first).responders["a"](body)

    with pytest.raises(StepRefused, match="it was started again meanwhile"):
        clients.fit(Tap(clients.responders | {"a": answer}), patience=1e9)
    # The others confirmed sums with this client's, and confirm none without it.
    others = {name: clients.responders[name] for name in ("b", "c", "d")}
    with pytest.raises(StepRefused, match="make a new job"):
        fit_clients(clients.job, Tap(others), tuple(others), patience=1e9)
    assert not [line for line in lines if "retried" in line]


def test_a_cell_that_changes_beyond_single_precision_is_another_row(tmp_path):
    """Before, the same rows were those that are the same in single precision."""
    clients = Fitted(tmp_path / "job")
    clients.fit()
    path = clients.directory / "d.csv"
    rows = pl.read_csv(path)
    changed = rows["age"].to_list()
    changed[0] *= 1 + 1e-12
    rows.with_columns(age=pl.Series(changed)).write_csv(path)
    clients.responders["d"] = clients.client("d")
    with pytest.raises(StepRefused, match="client d"):
        clients.fit()


def questions(tap, name):
    """The first messages of all sums to a client."""
    found = [decode_request(body) for client, body in tap.requests if client == name]
    return [it for it in found if isinstance(it.algorithm.get(REGRESS), dict)]


def asking(request, kind, number, run, arrays):
    plain = {"kind": kind, "clients": 4}
    return dataclasses.replace(
        request,
        round=number,
        run=run,
        algorithm={**request.algorithm, REGRESS: plain},
        arrays=arrays,
    )


@pytest.mark.parametrize(
    ("kind", "arrays", "refusal"),
    [
        ("start", {}, Refusal.MALFORMED),
        ("spread", {"shift": np.zeros(3), "y_shift": np.zeros(1)}, Refusal.MALFORMED),
        ("clusters", {}, Refusal.MALFORMED),
        ("step", {"shared": np.float64(1)}, Refusal.MALFORMED),
        ("step", {"shared": np.zeros(2)}, Refusal.MALFORMED),
        ("step", {"shared": np.zeros(4)}, Refusal.MALFORMED),
        ("step", {"shared": np.full(3, np.nan)}, Refusal.MALFORMED),
        ("step", {"shared": np.zeros(3), "step": np.zeros(3)}, Refusal.MALFORMED),
    ],
)
def test_a_coordinator_asks_what_a_fit_asks(fitted, tmp_path, kind, arrays, refusal):
    """Each question has its place, and the job's size."""
    _, tap, *_ = fitted
    client = Fitted(tmp_path / "job").client("a")
    first = questions(tap, "a")[:4]
    for request in first:
        assert decode_reply(client(encode_request(request))).refusal is None
    more = asking(first[0], kind, len(first), first[0].run, arrays)
    assert decode_reply(client(encode_request(more))).refusal is refusal


def test_a_run_ends_after_as_many_questions_as_a_fit_may_need(fitted, tmp_path):
    _, tap, *_ = fitted
    client = Fitted(tmp_path / "job").client("a")
    many = dataclasses.replace(questions(tap, "a")[0], round=10_000)
    assert decode_reply(client(encode_request(many))).refusal is Refusal.ROUND


def test_steps_of_two_kinds_are_no_request(fitted, tmp_path):
    _, tap, *_ = fitted
    client = Fitted(tmp_path / "job").client("a")
    first = questions(tap, "a")[0]
    both = dataclasses.replace(
        first, algorithm={**first.algorithm, "boost": {"steps": [{"kind": "start"}]}}
    )
    assert decode_reply(client(encode_request(both))).refusal is Refusal.MALFORMED


def test_other_jobs_fit_no_regression(fitted, tmp_path):
    _, tap, *_ = fitted
    rest = "\n[privacy]\nsecure_aggregation = true\n"
    clients = Clients(tmp_path / "job", rest=rest)
    request = dataclasses.replace(
        questions(tap, "a")[0], experiment=clients.job.identity
    )
    reply = decode_reply(clients.client("a")(encode_request(request)))
    assert reply.refusal is Refusal.NOT_IN_JOB
    with pytest.raises(ValueError, match=r"add the table \[regression\]"):
        fit_clients(clients.job, Tap({}), NAMES)


def test_a_policy_decides_on_regressions(fitted):
    job = fitted[0].job
    assert any(
        "a regression would be fitted" in it for it in Policy().reasons_against(job)
    )
    allows = Policy(federated_statistics=True)
    assert not any("regression" in it for it in allows.reasons_against(job))
    noisy = Policy(federated_statistics=True, noise_only=True)
    assert any("sums of a regression" in it for it in noisy.reasons_against(job))


@pytest.mark.parametrize(
    ("rest", "shows"), [(REST, False), (REST + 'intercept = "fixed"\n', True)]
)
def test_a_policy_decides_on_own_intercepts(tmp_path, rest, shows):
    """Counts of each client follow from sums beside own intercepts."""
    job = Fitted(tmp_path / "job", rest).job
    masks_only = Policy(federated_statistics=True)
    reasons = " ".join(masks_only.reasons_against(job))
    assert ("counts of this client's own rows would follow" in reasons) == shows
    allows = Policy(federated_statistics=True, secure_aggregation_only=False)
    assert not any("regression" in it for it in allows.reasons_against(job))
    assert "stays       counts of its rows, as they follow" in " ".join(
        said(masks_only, job)
    )


def test_rows_with_missing_cells_are_left_out_and_counted(tmp_path):
    directory = tmp_path / "job"
    clients = Fitted(directory)
    text = clients.path.read_text().replace(
        "test = 0.25", 'test = 0.25\npreprocessing = "job"'
    )
    clients.path.write_text(text)
    job = read_job(clients.path)
    pl.DataFrame(
        {
            "age": [1.5, None, 3.0, 4.0],
            "ward": ["surgery", "medicine", None, "medicine"],
            "label": ["no", "yes", "yes", "yes"],
        }
    ).write_csv(directory / "e.csv")
    design = client_design(read_table(directory / "e.csv", job.schema), "logistic")
    assert design.missing == 2
    # Levels by name: medicine, surgery.
    np.testing.assert_array_equal(design.rows.x, [[1.5, 0, 1], [4, 1, 0]])
    np.testing.assert_array_equal(design.rows.y, [0, 1])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("secure_aggregation = true", "secure_aggregation = false", "behind masks"),
        ('"logistic"\n', '"cox"\n', "model cox needs an event"),
        ('"logistic"\n', '"poisson"\n', "needs a target that is a number"),
        ('"logistic"\n', '"logistic"\nintercept = "random"\n', "intercept"),
        ('"logistic"\n', '"logistic"\nerrors = "CR1"\n', "errors"),
        ('"logistic"\n', '"logistic"\n[boosting]\ntrees = 3\n', "make two jobs"),
    ],
)
def test_what_a_job_cannot_fit_is_told(tmp_path, old, new, problem):
    clients = Fitted(tmp_path / "job")
    head, _, tail = clients.path.read_text().rpartition("[regression]")
    text = head + "[regression]" + tail.replace(old, new)
    text = text if old in tail else text.replace(old, new)
    clients.path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_job(clients.path)


def test_counts_of_each_client_follow_beside_own_intercepts():
    """So they need a policy of their own. With a common intercept the sums have no part
    that is not linear in a client's counts, and many counts have the same sums.
    """
    rows, found = np.array([31, 37, 43]), {}
    for intercept in ("fixed", "common"):
        alike = set()
        for counts in itertools.product(range(1, 9), repeat=3):
            sums = 0.0
            for n, k in zip(rows.tolist(), counts, strict=True):
                x = np.repeat([1.0, 0.0], [k, n - k])[:, None]
                own = RegressionRows(
                    ClientRows(x, np.arange(n) % 3.0),
                    "linear",
                    own_intercept=intercept == "fixed",
                )
                width = 2 if intercept == "common" else 1
                units = {"shift": np.zeros(1), "scale": np.ones(1)}
                arrays = {"kept": np.arange(1), "shared": np.zeros(width), **units}
                arrays["y_units"] = np.array([0.0, 1.0])
                answer = own.answer(RegressionRequest("begin", arrays=arrays))
                information = sums_from(answer, width).information[-1, -1]
                sums = sums + np.array([k, information])
            alike.add(tuple(np.round(sums, 9).tolist()))
        found[intercept] = len(alike)
    assert found["common"] == 22  # 3 to 24 rows
    assert found["fixed"] > 0.9 * 8**3


def test_no_sum_is_one_without_a_client():
    """Before, a client whose numbers were too large added nothing, and one that is left out
    added its rows to one of two sums: the differences were theirs.
    """
    rng = np.random.default_rng(0)
    own = [
        ClientRows(rng.normal(size=(20, 2)), rng.poisson(3, 20) + 0.0) for _ in "abc"
    ]
    own.append(ClientRows(rng.normal(size=(20, 2)), np.zeros(20)))
    parts = [RegressionRows(it, "poisson", own_intercept=True) for it in own]
    ask = sum_over(parts)
    assert Kept.of(ask(RegressionRequest("kept"))) == Kept(3, 1, 0, 3)
    totals = Totals.of(ask(RegressionRequest("start")))
    np.testing.assert_allclose(totals.x, sum(it.x.sum(axis=0) for it in own[:3]))
    assert totals.rows == 60
    units = {"shift": np.zeros(2), "scale": np.ones(2), "y_units": np.array([0.0, 1])}
    begin = {"kept": np.arange(2), "shared": np.zeros(2), **units}
    ask(RegressionRequest("begin", arrays=begin))
    # Far too long steps have finite numbers, too.
    for size in (1e2, 3e2, 1e3, 1e5):
        step = {"shared": np.array([size, 0.0])}
        each = [part.answer(RegressionRequest("step", arrays=step)) for part in parts]
        assert (np.abs(each) < LARGEST).all()
    few = [RegressionRows(it, "poisson", own_intercept=True) for it in own[1:]]
    with pytest.raises(ValueError, match="only 2 clients have complete rows"):
        fit_from_sums(sum_over(few), "ab", "poisson", intercept="fixed")


def test_clients_whose_inputs_do_not_vary_hide_nobody():
    """Of a linear model with own intercepts their rows have a part in the errors only."""
    rng = np.random.default_rng(0)
    alike = [ClientRows(np.full((3, 1), place), rng.normal(size=3)) for place in (0, 1)]
    other = ClientRows(rng.normal(size=(20, 1)), rng.normal(size=20))
    parts = [RegressionRows(it, "linear", own_intercept=True) for it in (*alike, other)]
    with pytest.raises(ValueError, match="only 1 clients have complete rows"):
        fit_from_sums(sum_over(parts), "a", "linear", intercept="fixed")


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e5, 1e7])
def test_a_client_answers_what_it_is_asked_now(model, size):
    """Before, a client whose numbers became too large answered its last question: beside
    the others' answers to the next ones, all sums of its columns followed.
    """
    rng = np.random.default_rng(0)
    x, y = rng.normal(50, 10, (30, 2)), rng.integers(0, 2, 30).astype(float)
    far, start = np.array([size, -size, size]), np.zeros(3)
    units = {"shift": np.zeros(2), "scale": np.ones(2), "y_units": np.array([0.0, 1])}

    def begin(shared):
        rows = RegressionRows(ClientRows(x, y), model, own_intercept=False)
        arrays = {"kept": np.arange(2), "shared": shared, **units}
        return rows, rows.answer(RegressionRequest("begin", arrays=arrays))

    rows, _ = begin(start)
    found = rows.answer(RegressionRequest("step", arrays={"shared": far}))
    np.testing.assert_array_equal(found, begin(far)[1])


@pytest.mark.parametrize("units", [[5.0, 1.0], [0.0, 2.0]])
def test_only_numbers_have_units(fitted, tmp_path, units):
    _, tap, *_ = fitted
    client = Fitted(tmp_path / "job").client("a")
    first = questions(tap, "a")
    for request in first[:3]:
        assert decode_reply(client(encode_request(request))).refusal is None
    arrays = {**first[3].arrays, "y_units": np.array(units)}
    more = asking(first[0], "begin", 3, first[0].run, arrays)
    assert decode_reply(client(encode_request(more))).refusal is Refusal.MALFORMED


@pytest.mark.parametrize("age", [1e13, "1e13"])
def test_a_table_that_cannot_be_fitted_ends_its_client_before_anything_is_sent(
    tmp_path, age
):
    """Before, it refused the first sum: which rows its sums of columns hide followed."""
    table = pl.DataFrame({"age": [age], "ward": ["surgery"], "label": ["no"]})
    clients = Fitted(tmp_path / "job")
    table.write_csv(tmp_path / "far.csv")
    with pytest.raises(ValueError, match="a number of the table is 1e\\+13"):
        client_design(read_table(tmp_path / "far.csv", clients.job.schema), "logistic")
