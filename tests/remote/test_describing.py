"""Clients describe their tables: what leaves, what does not, and how often."""

import json

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import DIGEST_KEY, with_digest
from fedtailor._base.groups import MIN_ROWS
from fedtailor.aggregation.accounting.privacy import (
    composed_epsilon,
    gaussian_multiplier,
)
from fedtailor.cli import main
from fedtailor.data.tables.description import describe_columns
from fedtailor.remote.client.account import DESCRIBE, ClientAccount
from fedtailor.remote.client.describing import (
    ANSWER,
    FILE,
    NOISY,
    Question,
    describe_clients,
    kinds_of,
    preview,
    stored_description,
    what_is_sent,
)
from fedtailor.remote.client.policy import Policy
from fedtailor.remote.job.statistics import Statistics, as_array
from fedtailor.remote.keys.secret import SECRET
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal, Refused
from fedtailor.remote.wire.transport import TooFewClients
from remote.marked import NAMES, SEEN, MarkedClients
from remote.raw_messages import Raw, hostile

RANGES = {"age": (0.0, 100.0), "cost": (0.0, 10_000.0)}


def noisy(epsilon=2.0):
    return Question(step=NOISY, epsilon=epsilon, delta=1e-5, ranges=RANGES)


def request(clients, name, **algorithm):
    message = Request(
        clients.job.identity, 0, 0, DESCRIBE, name, nonce="0" * 32, algorithm=algorithm
    )
    return encode_request(message)


def test_the_description_is_that_of_the_rows_and_nothing_of_a_marked_table_leaves(
    tmp_path,
):
    clients = MarkedClients(tmp_path)
    described = describe_clients(clients.job, clients.tap, SEEN, 60, directory=tmp_path)
    assert not clients.leaks() and not any(clients.logs.values())
    describers = [clients.handlers[client]._describer for client in SEEN]
    columns, rows = {}, {}
    for name in kinds_of(clients.job.schema):
        columns[name] = pl.concat([it._columns(it._train)[name] for it in describers])
    for place, client in enumerate(SEEN):
        size = int(clients.handlers[client].sizes[0])
        start = sum(int(clients.handlers[name].sizes[0]) for name in SEEN[:place])
        rows[client] = np.arange(start, start + size)
    kinds = kinds_of(clients.job.schema)
    local = describe_columns(columns, kinds, rows, MIN_ROWS)
    assert described.rows == local.rows and not described.correlations
    for name in ("age", "cost", "dose"):
        np.testing.assert_allclose(described.edges[name], local.edges[name], rtol=1e-12)
    np.testing.assert_array_equal(described.histogram("age"), local.histogram("age"))
    for client in SEEN:
        for counts in described.counts[client].histograms.values():
            assert not any(0 < count < MIN_ROWS for count in counts)
    assert stored_description(tmp_path, clients.job) == described


def test_a_description_with_products_is_of_another_version(tmp_path):
    clients = MarkedClients(tmp_path)
    describe_clients(clients.job, clients.tap, SEEN, 60, directory=tmp_path)
    path = tmp_path / "description.json"
    content = json.loads(path.read_text())
    del content[DIGEST_KEY]
    content["description"]["correlated"] = ["age"]
    path.write_text(json.dumps(with_digest(content)))
    with pytest.raises(ValueError, match=r"of another version of fedtailor; a new job"):
        stored_description(tmp_path, clients.job)


@pytest.mark.parametrize("with_noise", [False, True])
def test_whatever_is_asked_no_cell_leaves(with_noise, tmp_path):
    clients = MarkedClients(tmp_path)
    describe_clients(
        clients.job, clients.tap, SEEN, 60, noisy() if with_noise else None
    )
    rng, requests = np.random.default_rng(3), clients.tap.requests.copy()
    for number in range(80):
        client, body = requests[rng.integers(len(requests))]
        fresh = clients.client(client, f"state{number % 9}")
        for changed in (hostile(rng, body), body):
            answer = fresh(changed)
            assert not clients.marks.found_in(answer)
            assert decode_reply(answer).refusal != Refusal.FAILED


def test_a_client_describes_its_table_once(tmp_path):
    """With other edges a coordinator would find single rows between two of them."""
    clients = MarkedClients(tmp_path)
    describe_clients(clients.job, clients.tap, SEEN, 60)
    first = dict(clients.tap.sent[-len(SEEN) :])
    again = clients.client("a")
    # the same is answered alike, over restarts
    bodies = [body for name, body in clients.tap.requests if name == "a"]
    assert decode_reply(again(bodies[-1])).arrays[ANSWER].tobytes() == (
        decode_reply(first["a"]).arrays[ANSWER].tobytes()
    )
    with pytest.raises(TooFewClients):
        describe_clients(clients.job, clients.tap, SEEN[:2], 60)
    for question in (
        {"step": "noisy", "epsilon": 1.0, "delta": 1e-5},
        {"step": "columns", "epsilon": 1.0},
    ):
        answer = decode_reply(again(request(clients, "a", **question)))
        assert answer.refusal in (Refusal.DESCRIBED, Refusal.MALFORMED)


def test_other_rows_are_not_described_beside_the_first(tmp_path):
    """The difference of two sums of which one has a row more is that row."""
    clients = MarkedClients(tmp_path)
    asked = request(clients, "a", step="columns")
    assert decode_reply(clients.client("a")(asked)).refusal is None
    frame = pl.read_csv(clients.files["a"])
    frame.head(len(frame) - 1).write_csv(clients.files["a"])
    again = clients.client("a")
    assert decode_reply(again(asked)).refusal is None  # the answer that was given
    counts = Request(
        clients.job.identity,
        0,
        0,
        DESCRIBE,
        "a",
        nonce="0" * 32,
        algorithm={"step": "counts"},
        arrays={"statistics": as_array(from_answer(clients, again(asked)))},
    )
    refused = decode_reply(again(encode_request(counts))).refusal
    assert refused == Refusal.OTHER_STATISTICS


def test_no_bin_is_as_narrow_as_a_number(tmp_path):
    """Pooled sums of any small deviation are taken: bins of a day said on which days
    somebody was there.
    """
    clients = MarkedClients(tmp_path)
    own = from_answer(
        clients, clients.client("a")(request(clients, "a", step="columns"))
    )
    age = own.columns["age"]
    for narrow in (False, True):
        count = 10**9 if narrow else age.count
        squares = max(age.squares * 2, 1e-6 * count) if narrow else age.squares
        pooled = own.model_copy(
            update={
                "columns": own.columns
                | {"age": age.model_copy(update={"count": count, "squares": squares})}
            }
        )
        describer = clients.handlers["a"]._describer
        counts = describer._counts(pooled, own).histograms["age"]
        assert (sum(counts) == 0) == narrow


@pytest.mark.parametrize("step", ["columns", "noisy"])
def test_only_a_question_for_counts_has_arrays(step, tmp_path):
    clients = MarkedClients(tmp_path)
    asked = Request(
        clients.job.identity,
        0,
        0,
        DESCRIBE,
        "a",
        nonce="0" * 32,
        algorithm={"step": step},
        arrays={"other": np.zeros(3)},
    )
    answer = decode_reply(clients.client("a")(encode_request(asked)))
    assert answer.refusal is Refusal.MALFORMED


def from_answer(clients, answer):
    """The statistics in an answer to "columns"."""
    text = decode_reply(answer).arrays[ANSWER].tobytes()
    return Statistics.from_json(text, clients.job.schema)


def test_a_job_that_was_interrupted_goes_on_with_the_same_clients(tmp_path):
    clients = MarkedClients(tmp_path)
    send, count = clients.tap.send, 0

    def broken(client, body):
        nonlocal count
        count += 1
        if count > len(SEEN):
            raise KeyboardInterrupt
        send(client, body)

    clients.tap.send = broken
    with pytest.raises(KeyboardInterrupt):
        describe_clients(clients.job, clients.tap, SEEN, 60, directory=tmp_path)
    clients.tap.send = send
    described = describe_clients(
        clients.job, clients.tap, NAMES, 60, directory=tmp_path
    )
    assert described.clients == SEEN


def test_noise_is_spent_and_hides_one_row(tmp_path):
    clients = MarkedClients(tmp_path)
    described = describe_clients(clients.job, clients.tap, SEEN, 60, noisy())
    assert not clients.leaks()
    noise = described.noise
    assert noise.epsilon == 2.0 and set(described.edges) == set(RANGES)
    multiplier = noise.deviation / np.sqrt(len(described.kinds))
    assert composed_epsilon([(multiplier, 1.0, 1)], 1e-5) <= 2.0
    account = ClientAccount(clients.store("a").client_directory)
    assert account.epsilons()["example"][0] == pytest.approx(2.0, rel=0.03)
    # a description belongs to no run
    limited = ClientAccount(clients.store("a").client_directory, most_runs=1)
    limited.check(Request("job", 0, 0, "client", "a", run="first"))
    # What is lost of the client's files is not drawn again.
    for name in (SECRET, FILE):
        (clients.store("a").directory / name).unlink()
    body = request(
        clients, "a", **noisy().model_dump(mode="json", exclude_defaults=True)
    )
    assert decode_reply(clients.client("a")(body)).refusal is Refusal.ANSWERED
    # two clients that start alike draw other noise
    one, two = (clients.client("b", f"state{i}") for i in range(2))
    body = request(clients, "b", **noisy().model_dump(mode="json"))
    answers = [
        decode_reply(client(body)).arrays[ANSWER].tobytes() for client in (one, two)
    ]
    assert answers[0] != answers[1]


def test_the_noise_is_as_large_as_it_says_on_counts_of_all_rows(tmp_path):
    """Which rows are training rows, the class of one decides: many counts changed with it."""
    clients = MarkedClients(tmp_path, rows=400)
    describe_clients(clients.job, clients.tap, SEEN, 60)
    describer = clients.handlers["a"]._describer
    deviation = noisy().noise(clients.job.schema).deviation

    def draw(number):
        asked = Request(
            *("job", number, 0, DESCRIBE, "a"), algorithm={"number": number}
        )
        return describer._noisy_counts(asked, noisy()).histograms["risk"][:2]

    draws = [draw(number) for number in range(40)]
    # Of another process, or with a file that was lost, the same question has the same noise.
    assert draw(0) == draws[0]
    rows = len(describer._table.y)
    assert rows > len(describer._train) + 4 * deviation * np.sqrt(2 / 40)
    assert abs(np.sum(draws, 1).mean() - rows) < 4 * deviation * np.sqrt(2 / 40)
    assert 0.7 * deviation < np.std(draws, 0).mean() < 1.3 * deviation


def test_the_smallest_noise_of_an_epsilon():
    multiplier = gaussian_multiplier(1.0, 1e-5)
    assert composed_epsilon([(multiplier, 1.0, 1)], 1e-5) <= 1.0
    assert composed_epsilon([(multiplier / 1.02, 1.0, 1)], 1e-5) > 1.0


@pytest.mark.parametrize(
    ("policy", "step", "allowed"),
    [
        ({}, "columns", False),
        ({"federated_statistics": True}, "columns", True),
        ({"federated_statistics": True, "noise_only": True}, "counts", False),
        ({"federated_statistics": True, "noise_only": True}, "noisy", True),
    ],
)
def test_the_policy_decides(policy, step, allowed):
    asked = Request("job", 0, 0, DESCRIBE, "a", algorithm={"step": step})
    if allowed:
        Policy(**policy).check_request(asked)
    else:
        with pytest.raises(Refused) as refusal:
            Policy(**policy).check_request(asked)
        assert refusal.value.code == Refusal.POLICY


def test_a_client_sees_what_it_would_send(tmp_path, capsys):
    clients = MarkedClients(tmp_path)
    text = preview(clients.job, "a", clients.files["a"])
    describe_clients(clients.job, clients.tap, SEEN, 60)
    (_, sent) = next(it for it in clients.tap.sent if it[0] == "a")
    assert decode_reply(sent).arrays[ANSWER].tobytes().decode() == text
    lines = what_is_sent(clients.job.schema, noisy())
    assert any("epsilon 2" in line for line in lines)
    assert main(["federation", "describe", "x", "--range", "age=0:1"]) == 2
    assert "--epsilon" in capsys.readouterr().err


def test_few_rows_are_not_described(tmp_path):
    clients = MarkedClients(tmp_path, rows=6)
    with pytest.raises(TooFewClients, match="0 of 4 clients"):
        describe_clients(clients.job, clients.tap, SEEN, 60)


@pytest.mark.parametrize(
    "change",
    [
        lambda counts: counts["histograms"].pop("age"),
        lambda counts: counts["histograms"].update(age=[1, 2]),
        lambda counts: counts["histograms"].update(age=[-1] * 20),
        lambda counts: counts["histograms"].update(age=[2**53 - 1] * 20),
        lambda counts: counts.update(products={"count": 1}),
        # of sums
        lambda sums: sums["columns"]["age"].update(mean=1e308),
        lambda sums: sums["columns"]["age"].update(squares=1e308),
        lambda sums: sums["columns"]["age"].update(count=2**53 - 1),
        lambda sums: sums["columns"]["age"].update(count=0, mean=0.0, squares=0.0),
        lambda sums: sums["columns"]["insured"].update(mean=0.5000001),
        lambda sums: sums["columns"]["insured"].update(mean=-1e308),
        lambda sums: sums["columns"]["risk"].update(categories={"other": 40}),
        lambda sums: sums["columns"]["ward"].update(mean=1.0),
        lambda sums: [
            each.update(count=0, missing=0, mean=0.0, squares=0.0)
            for each in sums["columns"].values()
        ],
    ],
)
def test_a_wrong_answer_is_named_and_the_others_are_described(change, tmp_path, lines):
    clients = MarkedClients(tmp_path)
    ask = clients.tap._clients["b"]

    def lies(body):
        message = Raw.of(ask(body))
        text = bytes(message.arrays[ANSWER][2])
        content = json.loads(text)
        try:
            change(content)
        except KeyError:  # it lies in the other step
            return bytes(message)
        text = json.dumps(content).encode()
        message.arrays[ANSWER] = ["U8", [len(text)], text]
        return bytes(message)

    clients.tap._clients["b"] = lies
    rows = {name: clients.handlers[name].sizes for name in SEEN}
    described = describe_clients(clients.job, clients.tap, rows, 60)
    assert described.clients == tuple(name for name in SEEN if name != "b")
    assert len(lines) == 1 and lines[0].startswith("client b: ")
    assert lines[0].endswith("; it is left out")


def test_histograms_of_a_wrong_type_leave_their_client_out(tmp_path, lines):
    """Before, its sums were kept, and so no further try described anybody."""
    clients = MarkedClients(tmp_path)
    ask, answers = clients.tap._clients["b"], []

    def lies(body):
        answers.append(ask(body))
        message = Raw.of(answers[-1])
        if len(answers) == 2:
            message.arrays[ANSWER] = ["F8", [1], bytes(8)]
        return bytes(message)

    clients.tap._clients["b"] = lies
    described = describe_clients(clients.job, clients.tap, SEEN, 60)
    assert described.clients == tuple(name for name in SEEN if name != "b")
    assert len(lines) == 1 and lines[0].startswith("client b: ")


def test_nobody_is_described_if_all_answers_are_wrong(tmp_path):
    clients = MarkedClients(tmp_path)
    rows = dict.fromkeys(SEEN, np.array([7, 0, 0]))
    with pytest.raises(TooFewClients, match="no client described its table"):
        describe_clients(clients.job, clients.tap, rows, 60)
