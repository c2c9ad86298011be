"""Trees boosted over machines are those of a simulation, behind masks."""

import contextlib
import dataclasses

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.data.federation import SPLITS
from fedtailor.engine.storage.export import load_models
from fedtailor.remote.client.describing import COLUMNS, COUNTS, describe_clients
from fedtailor.remote.client.policy import Policy
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.job.examples import (
    federation_from_rows,
    read_all,
    split_client_rows,
)
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import Statistics, as_array, read_table
from fedtailor.remote.server.boosting import (
    SHARED,
    TREES,
    UNDER_WAY,
    boost_clients,
)
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.server.steps import StepRefused
from fedtailor.remote.service import (
    Connection,
    agree_on_preprocessing,
    wait_for_clients,
)
from fedtailor.remote.simulation import simulate_job
from fedtailor.remote.sums.server import SecureSumServer
from fedtailor.remote.wire.boosting import BOOST, most_steps, read_steps
from fedtailor.remote.wire.messages import (
    Request,
    decode_reply,
    decode_request,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.request_kind import (
    AGREED,
    CLIENTS,
    DESCRIBE,
    STATISTICS,
)
from fedtailor.remote.wire.secure_sums import KEYS, SUM
from fedtailor.remote.wire.transport import TooFewClients
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingProgress,
    BoostingRows,
    boost_federation,
    load_boosted,
    save_boosted,
    save_progress,
)
from remote.jobs import NAMES, Clients
from remote.marked import SEEN, MarkedClients
from remote.taps import Tap

INPUTS = 3  # age, and one for each ward
REST = """
[privacy]
secure_aggregation = true
[boosting]
trees = 5
leaves = 4
least_rows = 5
bins = 16
"""


class Boosted(Clients):
    """Four clients whose job boosts trees."""

    def __init__(self, directory, rest=REST):
        super().__init__(directory, rest=rest)
        self.responders = {name: self.client(name) for name in NAMES}

    def boost(self, transport=None, **options):
        transport = transport or Tap(self.responders)
        return boost_clients(
            self.job,
            transport,
            self.sizes(NAMES),
            self.directory / "boosted",
            **options,
        )

    @property
    def simulated(self):
        data = federation_from_rows(self.job, self.rows)
        settings = self.job.boosting.settings
        return data, boost_federation(data, settings, on_grid=True)


@pytest.fixture(scope="module")
def boosted(tmp_path_factory):
    """Clients, all messages, and the trees."""
    clients = Boosted(tmp_path_factory.mktemp("boosted") / "job")
    tap = Tap(clients.responders)
    return clients, tap, clients.boost(tap)


def same_trees(found, expected):
    assert len(found.trees) == len(expected.trees)
    np.testing.assert_array_equal(found.baseline, expected.baseline)
    for ours, theirs in zip(found.trees, expected.trees, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            for field in dataclasses.fields(one):
                np.testing.assert_array_equal(
                    getattr(one, field.name), getattr(other, field.name)
                )


def test_machines_boost_the_trees_of_a_simulation_to_the_bit(boosted):
    clients, _, model = boosted
    data, simulated = clients.simulated
    same_trees(model, simulated.shared)
    assert len(model.trees) > 0
    plain = boost_federation(data, clients.job.boosting.settings).shared
    np.testing.assert_allclose(
        model.outputs(data.x), plain.outputs(data.x), rtol=1e-10, atol=1e-10
    )


def test_each_client_keeps_the_model_that_it_chose(boosted):
    clients, _, _ = boosted
    data, simulated = clients.simulated
    for name in NAMES:
        own = load_models(clients.store(name).directory / PERSONAL)[name]
        x = np.asarray(data.client(name).test.x)
        found = np.log(own.probabilities(x))
        expected = simulated.models[name].outputs(x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_coordinator_keeps_the_shared_trees(boosted):
    clients, _, model = boosted
    folder = clients.directory / "boosted"
    same_trees(load_boosted(folder / TREES), model)
    data, _ = clients.simulated
    shared = load_models(folder)[SHARED]
    found = np.log(shared.probabilities(data.x))
    np.testing.assert_allclose(found, model.outputs(data.x), rtol=1e-5, atol=1e-5)


def test_only_masks_leave_a_client(boosted):
    """No answer holds an array of numbers but masked ones."""
    clients, tap, _ = boosted
    names = set()
    for _, body in tap.sent:
        reply = decode_reply(body)
        assert reply.refusal is None
        names |= {name for name in reply.arrays if len(reply.arrays[name])}
        if reply.task == BOOST:
            assert not reply.arrays
    assert names == {"masking", "sealing", "shares", "commitment", "masked", "codes"}
    steps = {decode_request(body).round for _, body in tap.requests}
    most = most_steps(clients.job.boosting.settings, 1)
    assert max(steps) < most


def test_lost_answers_are_asked_for_again(tmp_path, lines):
    clients = Boosted(tmp_path / "job")
    lost = []

    def lose(client, request):
        is_lost = len(lost) < 4 and client == "b" and len(tap.sent) % 5 == 0
        if is_lost:
            lost.append(request.task)
        return is_lost

    tap = Tap(clients.responders, lose)
    object.__setattr__(clients.job, "deadline", 0.5)
    model = clients.boost(tap)
    assert len(set(lost)) > 1, lost
    assert any("it is retried" in line for line in lines)
    same_trees(model, clients.simulated[1].shared)


def test_a_boosting_that_ended_early_goes_on_to_the_same_bits(tmp_path):
    """The client that was lost comes back as a new process, which remembers nothing."""
    clients = Boosted(tmp_path / "job")
    deadline, grown = clients.job.deadline, []

    def end_round(rounds):
        grown.append(rounds)
        if rounds == 3:
            object.__setattr__(clients.job, "deadline", 0.3)

    tap = Tap(clients.responders, lambda client, _: client == "b" and 3 in grown)
    with pytest.raises(TooFewClients):
        clients.boost(tap, patience=0.1, after_round=end_round)
    assert grown == [0, 1, 2, 3]
    assert not (clients.directory / "boosted").exists()
    object.__setattr__(clients.job, "deadline", deadline)
    with pytest.raises(ValueError, match="continue it with --resume, or delete it"):
        clients.boost()
    clients.responders["b"] = clients.client("b")
    more = []
    model = clients.boost(resume=True, after_round=more.append)
    assert more == [3, 4, 5]
    same_trees(model, clients.simulated[1].shared)
    assert not (clients.directory / UNDER_WAY).exists()
    for name in NAMES:
        own = load_models(clients.store(name).directory / PERSONAL)[name]
        data, simulated = clients.simulated
        x = np.asarray(data.client(name).test.x)
        found, expected = (
            np.log(own.probabilities(x)),
            simulated.models[name].outputs(x),
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_only_a_boosting_of_the_same_job_and_clients_goes_on(tmp_path):
    clients = Boosted(tmp_path / "job")
    with pytest.raises(ValueError, match=r"there is no boosting in .* to resume"):
        clients.boost(resume=True)
    path = clients.directory / UNDER_WAY
    empty = BoostedModel(2, np.zeros(1), (), [np.zeros(1)] * 2)
    progress = BoostingProgress(empty, (0.5,))
    origin = {"job": clients.job.identity, "clients": list(NAMES)}
    for changed, problem in (
        ({"job": "another"}, "is of another job.toml"),
        ({"clients": ["a", "b", "x"]}, "missing now: x; new: c, d"),
    ):
        save_progress(progress, path, origin | changed)
        with pytest.raises(ValueError, match=problem) as error:
            clients.boost(resume=True)
        assert "\n" not in str(error.value)
    save_boosted(empty, path)
    with pytest.raises(ValueError, match="holds no boosting that is under way"):
        clients.boost(resume=True)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        clients.boost(resume=True)


def first_steps(tap, name):
    return [
        decode_request(body)
        for client, body in tap.requests
        if client == name and decode_request(body).task in (KEYS, BOOST)
    ]


def test_what_is_not_a_step_is_refused(boosted, tmp_path):
    _, tap, _ = boosted
    clients = Boosted(tmp_path / "job")
    steps = first_steps(tap, "a")

    def ask(request, **changes):
        fresh = clients.client("a")
        return decode_reply(
            fresh(encode_request(dataclasses.replace(request, **changes)))
        )

    def changed(request, **step):
        algorithm = {**request.algorithm}
        algorithm[BOOST] = {**algorithm[BOOST], **step}
        return algorithm

    first = steps[0]
    assert ask(first, run="f").refusal is None
    for run, (request, changes, refusal) in enumerate(
        [
            (first, {"round": 1}, Refusal.NO_STATE),
            (first, {"round": 10**6}, Refusal.ROUND),
            (first, {"algorithm": changed(first, clients=2)}, Refusal.UNSAFE_SUM),
            (first, {"algorithm": changed(first, clients="x")}, Refusal.UNSAFE_SUM),
            (first, {"algorithm": changed(first, steps=[])}, Refusal.MALFORMED),
            (
                first,
                {"algorithm": changed(first, steps=[{"kind": "gradients"}])},
                Refusal.MALFORMED,
            ),
            (
                first,
                {"algorithm": changed(first, steps=[{"kind": "finish"}] * 2)},
                Refusal.MALFORMED,
            ),
            (first, {"task": BOOST}, Refusal.MALFORMED),
            (
                first,
                {"algorithm": changed(first, steps=[{"kind": "finish"}])},
                Refusal.MALFORMED,
            ),
            (
                first,
                {"algorithm": {**first.algorithm, BOOST: True}},
                Refusal.MALFORMED,
            ),
            (first, {"task": "client"}, Refusal.MALFORMED),
            (
                first,
                {"algorithm": changed(first, steps=[{"kind": "answer"}])},
                Refusal.MALFORMED,
            ),
            (
                first,
                {"algorithm": changed(first, steps=[{"kind": "loss", "input": 99}])},
                Refusal.MALFORMED,
            ),
            (first, {"arrays": {"0/x": np.zeros(3)}}, Refusal.MALFORMED),
        ]
    ):
        answer = ask(request, run=f"{run:x}", **changes)
        assert answer.refusal is not None, changes
        assert answer.refusal in (refusal, Refusal.SPENT), (changes, answer.refusal)


def asking(request, *kinds, step=0, run="f", arrays=None, **fields):
    """A request of a step that asks for these kinds."""
    steps = [{"kind": kind, **fields} for kind in kinds]
    plain = {**request.algorithm[BOOST], "steps": steps}
    return dataclasses.replace(
        request,
        round=step,
        run=run,
        algorithm={**request.algorithm, BOOST: plain},
        arrays=arrays or {},
    )


@pytest.fixture
def answers(monkeypatch):
    """The kinds of questions that clients have computed an answer to."""
    computed, original = [], BoostingRows.answer

    def answer(rows, request):
        computed.append(request.kind)
        return original(rows, request)

    monkeypatch.setattr(BoostingRows, "answer", answer)
    return computed


def test_a_message_of_many_questions_is_refused_before_any_is_answered(
    boosted, tmp_path, answers
):
    """3,000 questions in 67 KiB took 5 GB and more than a minute."""
    _, tap, _ = boosted
    client = Boosted(tmp_path / "job").client("a")
    first = first_steps(tap, "a")[0]
    for run, kinds in enumerate((["start"] * 3000, ["start"] * 2, ["start", "loss"])):
        asked = asking(first, *kinds, run=f"{run:x}")
        assert decode_reply(client(encode_request(asked))).refusal is Refusal.MALFORMED
    many = {f"{place}/candidates": np.zeros((2, 1)) for place in range(3000)}
    asked = asking(first, *["counts"] * 3000, run="a", arrays=many)
    assert decode_reply(client(encode_request(asked))).refusal is not None
    assert answers == []


def test_candidates_thresholds_and_trees_are_those_of_the_jobs_size(boosted, tmp_path):
    clients, tap, _ = boosted
    settings = clients.job.boosting.settings
    most = (settings.most_bins - 1) * 7
    sent = [
        (request.algorithm[BOOST]["steps"], request.arrays)
        for request in first_steps(tap, "a")
    ]
    for steps, arrays in sent:
        read_steps({"steps": steps}, arrays, INPUTS, 1, settings)
    for size, is_right in ((most, True), (most + 1, False)):
        step = {"steps": [{"kind": "counts"}]}
        arrays = {"0/candidates": np.zeros((INPUTS, size))}
        with pytest.raises(ValueError) if not is_right else contextlib.nullcontext():
            read_steps(step, arrays, INPUTS, 1, settings)
    ends = np.arange(1.0 * INPUTS * settings.most_bins)
    wide = {"0/ends": ends, "0/bins": np.full(INPUTS, settings.most_bins)}
    with pytest.raises(ValueError, match="not well formed"):
        read_steps({"steps": [{"kind": "bins"}]}, wide, INPUTS, 1, settings)
    for end in (np.nan, np.inf):
        no_number = {"0/ends": np.array([end]), "0/bins": np.array([1, 0, 0])}
        with pytest.raises(ValueError, match="not well formed"):
            read_steps({"steps": [{"kind": "bins"}]}, no_number, INPUTS, 1, settings)
        with pytest.raises(ValueError, match="no proper value"):
            for steps, arrays in sent:
                wrong = {
                    name: np.full_like(it, end) if name.endswith("value") else it
                    for name, it in arrays.items()
                }
                read_steps({"steps": steps}, wrong, INPUTS, 1, settings)
    smaller = dataclasses.replace(settings, most_leaves=2)
    with pytest.raises(ValueError, match="more leaves than the job's"):
        for steps, arrays in sent:
            read_steps({"steps": steps}, arrays, INPUTS, 1, smaller)


@pytest.mark.parametrize(
    ("kinds", "fields"),
    [
        (["start"], {}),
        (["counts"], {}),
        (["baseline", "loss"], {}),
        (["gradients"], {"output": 0}),  # its root came with the loss
        (["split"], {"moves": [[0, 0, 0, 3, True]]}),
        (["split"], {"moves": [[5, 0, 0, 1, True]]}),
        (["split"], {"moves": [[0, 0, 0, 1, True], [0, 0, 0, 3, True]]}),
        (["split"], {}),
        (["loss"], {"moves": [[0, 0, 0, 1, True]]}),
        (["loss"], {}),
    ],
    ids=str,
)
def test_a_coordinator_cannot_ask_a_question_again(boosted, tmp_path, kinds, fields):
    """Each question comes once in a run, and as often as the job's trees need it."""
    _, tap, _ = boosted
    client = Boosted(tmp_path / "job").client("a")
    steps = first_steps(tap, "a")
    until = next(
        place
        for place, request in enumerate(steps)
        if request.algorithm[BOOST]["steps"][-1]["kind"] == "gradients"
    )
    run = steps[0].run
    for request in steps[: until + 1]:
        assert decode_reply(client(encode_request(request))).refusal is None
    arrays = {"0/candidates": np.zeros((INPUTS, 3))} if kinds == ["counts"] else {}
    arrays |= {"0/baseline": np.zeros(1)} if "baseline" in kinds else {}
    more = asking(steps[0], *kinds, step=until + 1, run=run, arrays=arrays, **fields)
    assert decode_reply(client(encode_request(more))).refusal is Refusal.MALFORMED


def test_thresholds_are_searched_for_as_often_as_the_search_takes(boosted, tmp_path):
    _, tap, _ = boosted
    client = Boosted(tmp_path / "job").client("a")
    first = first_steps(tap, "a")[0]
    found = [decode_reply(client(encode_request(asking(first, "start")))).refusal]
    for step in range(1, 13):
        arrays = {"0/candidates": np.full((INPUTS, 3), step / 10)}
        asked = asking(first, "counts", step=step, arrays=arrays)
        found.append(decode_reply(client(encode_request(asked))).refusal)
    assert found[:11] == [None] * 11 and found[11] is Refusal.MALFORMED


@pytest.mark.parametrize("scope", ["run", "round"])
def test_the_same_questions_without_a_client_are_not_answered(tmp_path, scope, lines):
    """Steps count as one round: else the difference of two sums is one client's."""
    rest = REST.replace("[boosting]", f'sum_scope = "{scope}"\n[boosting]')
    clients = Boosted(tmp_path / "job", rest=rest)
    whole = Tap(clients.responders)
    clients.boost(whole)
    clients.responders = {name: clients.client(name) for name in NAMES}
    with pytest.raises(TooFewClients):
        boost_clients(
            clients.job,
            Tap(clients.responders),
            clients.sizes(NAMES[:3]),
            clients.directory / "again",
            patience=0.0,
        )
    assert any(Refusal.UNSAFE_SUM.explanation in line for line in lines), lines


def test_counts_are_added_with_the_same_weight_of_each_client(tmp_path, monkeypatch):
    """With other weights one sum shows each client's counts, as its digits."""
    clients = Boosted(tmp_path / "job")
    opened = SecureSumServer._open
    monkeypatch.setattr(
        SecureSumServer,
        "_open",
        lambda self, weights: opened(self, np.array([[8, 4, 2, 1]]) / 15),
    )
    with pytest.raises(TooFewClients):
        clients.boost(patience=0.0)


class Favouring(Tap):
    """Asks all clients but one for rows below thresholds that no row is above."""

    def send(self, client, body):
        request = decode_request(body)
        if client != NAMES[0] and BOOST in request.algorithm:
            arrays = {
                name: np.full_like(array, 1e12) if "candidates" in name else array
                for name, array in request.arrays.items()
            }
            body = encode_request(dataclasses.replace(request, arrays=arrays))
        super().send(client, body)


def test_clients_that_are_asked_different_questions_give_no_sum(tmp_path):
    """The others' counts are those of all their rows, and what is left is one client's."""
    clients = Boosted(tmp_path / "job")
    with pytest.raises(StepRefused, match="the sum would not hide its rows"):
        clients.boost(Favouring(clients.responders), patience=0.0)


def table_clients(directory):
    """Clients with tables that are boosted, whose categories are all listed."""
    return MarkedClients(directory, privacy=REST.partition("[privacy]")[2])


def test_clients_that_boost_tell_nothing_of_their_columns(tmp_path):
    """Beside the sums of all rows, sums of the others' columns show what one hides."""
    clients = table_clients(tmp_path)
    assert agree_on_preprocessing(clients.job, clients.tap, SEEN, 60)
    assert not clients.tap.sent
    pooled = as_array(Statistics.of_job(clients.job.schema))
    for task, settings, arrays in (
        (STATISTICS, {}, {}),
        (AGREED, {}, {STATISTICS: pooled}),
        (DESCRIBE, {"step": COLUMNS}, {}),
        (DESCRIBE, {"step": COUNTS}, {STATISTICS: pooled}),
    ):
        request = Request(
            *(clients.job.identity, 0, 0, task, "a"), algorithm=settings, arrays=arrays
        )
        reply = decode_reply(clients.client("a")(encode_request(request)))
        assert reply.refusal is Refusal.NOT_IN_JOB
    with pytest.raises(ValueError, match="would show what one client hides"):
        describe_clients(clients.job, clients.tap, SEEN, 60)


@pytest.mark.parametrize("size", [1e6, 1e300])
def test_no_prediction_makes_a_sum_too_large(tmp_path, size):
    """A client said so, once: from the prediction at which it does, how many rows there are
    of a category and class followed.
    """
    clients = Boosted(tmp_path / "job", REST.replace("trees = 5", "trees = 50"))
    client, plan = clients.client("a"), plan_of(clients.job)

    def ask(step, run, *steps, **arrays):
        algorithm = {
            **plan.describe(0),
            BOOST: {"steps": [{"kind": kind} for kind in steps], CLIENTS: 4},
            SUM: {"name": f"{run}{step}", "kind": BOOST},
        }
        named = {name.replace("_", "/"): array for name, array in arrays.items()}
        named = {name.removeprefix("at/"): array for name, array in named.items()}
        request = Request(
            *(clients.job.identity, step, 0, KEYS, "a"),
            run=run,
            algorithm=algorithm,
            arrays=named,
        )
        return decode_reply(client(encode_request(request))).refusal

    assert ask(0, "a", "start") is None
    bins = {"at_0_ends": np.zeros(0), "at_0_bins": np.zeros(INPUTS, np.int64)}
    # All that are wrong about their class have a loss of so much each.
    given = {**bins, "at_1_baseline": np.array([size])}
    assert ask(1, "a", "bins", "baseline", "loss", **given) is None
    assert ask(0, "b", "start") is None


def test_a_job_that_boosts_trains_nothing_else(tmp_path):
    """With the weights 1, 1, 1 and 1/2 of numbers of rows a sum of models, which are means
    over rows, and one of boosting, which adds up rows, were one client's together.
    """
    clients = Boosted(tmp_path / "job")
    plan = plan_of(clients.job)
    arrays = {
        "stream/model": plan.initial()[None],
        "index/model": np.zeros(1, np.int32),
    }
    request = Request(
        *(clients.job.identity, 0, 0, "client", "a"),
        run="ab",
        algorithm=plan.describe(0),
        arrays=arrays,
    )
    reply = decode_reply(clients.responders["a"](encode_request(request)))
    assert reply.refusal is Refusal.NOT_IN_JOB
    tap, sizes = Tap(clients.responders), clients.sizes(NAMES)
    with pytest.raises(ValueError, match="run fedtailor federation boost"):
        coordinate(clients.job, tap, sizes, tmp_path / "run")
    data = federation_from_rows(clients.job, clients.rows)
    with pytest.raises(ValueError, match="run fedtailor federation boost"):
        simulate_job(clients.job, data)


def test_which_rows_train_does_not_depend_on_their_classes(tmp_path):
    """Of three clients of 100 rows, sums over training and over validation rows gave how many
    of a class each has.
    """
    schema = Boosted(tmp_path / "job").job.schema
    rng = np.random.default_rng(0)
    few, many = np.arange(100) < 2, rng.integers(0, 2, 100)
    splits = [split_client_rows(y.astype(int), schema, 29, "b") for y in (few, many)]
    for part in SPLITS:
        np.testing.assert_array_equal(*(split[part] for split in splits))
    assert set(splits[0]["val"]) != set(range(10))


def test_the_loss_of_few_clients_is_not_asked_for(tmp_path):
    """Beside two clients without validation rows it is that of the third: of its one row."""
    clients = Boosted(tmp_path / "job")
    rows = {name: sizes.copy() for name, sizes in clients.sizes(NAMES).items()}
    for name in NAMES[:2]:
        rows[name][1] = 0
    with pytest.raises(ValueError, match="2 clients have validation rows"):
        boost_clients(clients.job, Tap(clients.responders), rows, tmp_path / "boosted")


def test_the_same_questions_with_a_row_less_are_not_answered(tmp_path, lines):
    """The difference of the sums of targets would be that row's target."""
    clients = Boosted(tmp_path / "job")
    clients.boost()
    rows = clients.rows["a"]
    clients.rows["a"] = dataclasses.replace(rows, x=rows.x[:-1], y=rows.y[:-1])
    clients.responders = {name: clients.client(name) for name in NAMES}
    with pytest.raises(TooFewClients):
        boost_clients(
            clients.job,
            Tap(clients.responders),
            clients.sizes(NAMES),
            clients.directory / "again",
            patience=0.0,
        )
    assert any(
        line.startswith("client a:") and Refusal.UNSAFE_SUM.explanation in line
        for line in lines
    )


def test_a_step_is_taken_once_and_only_in_its_place(boosted, tmp_path):
    _, tap, _ = boosted
    clients = Boosted(tmp_path / "job")
    client = clients.client("a")
    steps = first_steps(tap, "a")[:4]
    for request in steps:
        for _ in range(2):
            assert decode_reply(client(encode_request(request))).refusal is None
    # An earlier step with other content is another request for the same place.
    other = dataclasses.replace(steps[1], arrays={})
    assert decode_reply(client(encode_request(other))).refusal == Refusal.ANSWERED
    restarted = clients.client("a")
    again = decode_reply(restarted(encode_request(steps[3])))
    assert again.refusal == Refusal.NO_STATE


def test_a_job_without_boosting_answers_no_step(boosted, tmp_path):
    _, tap, _ = boosted
    clients = Boosted(tmp_path / "job", rest=REST.partition("[boosting]")[0])
    request = dataclasses.replace(
        first_steps(tap, "a")[0], experiment=clients.job.identity
    )
    answer = decode_reply(clients.client("a")(encode_request(request)))
    assert answer.refusal == Refusal.NOT_IN_JOB
    with pytest.raises(ValueError, match=r"add the table \[boosting\]"):
        clients.boost()


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("[boosting]\ntrees = 3\n", "needs sums behind masks"),
        (REST.replace("trees = 5", "trees = 0"), "trees"),
        (REST.replace("trees = 5", "tree = 5"), "tree"),
        (REST.replace("leaves = 4", "leaves = 1"), "leaves"),
        (REST.replace("bins = 16", "bins = 300"), "bins"),
    ],
)
def test_settings_of_trees_are_checked_where_they_stand(rest, problem, tmp_path):
    with pytest.raises(ValueError, match=problem) as error:
        Boosted(tmp_path / "job", rest=rest)
    assert "job.toml" in str(error.value) and "\n" not in str(error.value)


def test_boosting_is_part_of_what_a_client_agrees_to(tmp_path):
    with_trees = Boosted(tmp_path / "one").job
    without = Boosted(tmp_path / "two", REST.partition("[boosting]")[0]).job
    other = Boosted(tmp_path / "three", REST.replace("trees = 5", "trees = 6")).job
    assert len({it.identity for it in (with_trees, without, other)}) == 3


def test_a_policy_decides_on_trees(tmp_path):
    job = Boosted(tmp_path / "job").job
    allowed = Policy(
        federated_statistics=True, measurements=True, secure_aggregation_only=False
    )
    assert not list(allowed.reasons_against(job))
    for policy, words in (
        (Policy(), "federated_statistics"),
        (Policy(federated_statistics=True, noise_only=True), "noise_only"),
        (Policy(federated_statistics=True, rounds=4), "rounds = 4"),
    ):
        assert any(words in reason for reason in policy.reasons_against(job))


def test_models_of_machines_predict_on_the_command_line(boosted, tmp_path, capsys):
    clients, _, model = boosted
    data, _ = clients.simulated
    np.save(tmp_path / "x.npy", np.asarray(data.x))
    place = str(clients.directory / "boosted")
    assert main(["predict", place, str(tmp_path / "x.npy")]) == 0
    shown = capsys.readouterr().out.split()[1:]
    found = [int(line.split(",")[1]) for line in shown]
    np.testing.assert_array_equal(found, model.outputs(data.x).argmax(axis=1))


def test_machines_boost_tables_of_any_units(tmp_path):
    """Numbers stay in their units, and a missing cell has an input that says so. The shared
    trees take raw rows, the target among them.
    """
    clients = table_clients(tmp_path)
    for path in clients.files.values():
        frame = pl.read_csv(path)
        far = frame["age"] * 1e6
        frame.with_columns(age=far.scatter([3, 5], [None, None])).write_csv(path)
    clients.tap = Tap({name: clients.client(name) for name in NAMES})
    rows = wait_for_clients(Connection(clients.job, SEEN, clients.tap), wait=60)
    statistics = agree_on_preprocessing(clients.job, clients.tap, rows, 60)
    folder = tmp_path / "boosted"
    model = boost_clients(clients.job, clients.tap, rows, folder, statistics=statistics)
    data, _ = read_all(clients.job, {name: clients.files[name] for name in SEEN})
    settings = clients.job.boosting.settings
    same_trees(model, boost_federation(data, settings, on_grid=True).shared)
    thresholds = np.concatenate([it.threshold for trees in model.trees for it in trees])
    assert thresholds.max() > 2e7  # an age, in millionths of a year
    own = load_models(folder)[SHARED]
    schema = clients.job.schema
    # What a client predicts from, too.
    rows_of_a = read_table(clients.files["a"], schema, target=False)
    assert rows_of_a.rows(statistics).x.max() > 2e7
    read = [*schema.columns, schema.target]  # the target may be there, and is not read
    frame = pl.read_csv(clients.files["a"]).select(read)
    x = own.preprocessing.transform(frame, missing="impute", unknown="other")
    found = own.preprocessing.decode(own.predict(x).reshape(-1))
    expected = own.preprocessing.decode(model.outputs(x))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
