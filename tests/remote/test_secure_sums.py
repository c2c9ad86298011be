"""The protocol of secure sums, with clients in this process that are lost, lie, or are
asked for too much.
"""

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip(
    "cryptography", reason="secure sums need `cryptography` (extra federation)"
)
pytest.importorskip("Crypto", reason="secure sums need PyCryptodome (extra federation)")

from fedtailor.aggregation.secure_sums import (
    MAX_SHARE,
    NOISE,
    FixedPoint,
    SecureSums,
    add_up,
)
from fedtailor.aggregation.sum_shares import (
    ReleasedSums,
    SumHistory,
    largest_shares,
)
from fedtailor.remote.sums import client as sum_client
from fedtailor.remote.sums import server as sum_server
from fedtailor.remote.sums.client import SecureSumClient
from fedtailor.remote.sums.server import SecureSumServer
from fedtailor.remote.wire import secure_sums
from fedtailor.remote.wire.messages import Request, check_arrays
from fedtailor.remote.wire.refusals import Refused
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    SHARES,
    STAGES,
    SUM,
    UNMASK,
    VECTORS,
    neighbour_graph,
)
from fedtailor.remote.wire.transport import TooFewClients
from fedtailor.statistics.grid import WORDS, counts_in_words, from_grid
from remote.identification import jacobian, projection

pytestmark = pytest.mark.usefixtures("exact_sums")

SETTINGS = SecureSums()
NAMES = ("a", "b", "c", "d", "e")
SIZE = 40


class Circle:
    """Clients that each hold a vector; what each stage brought is kept, as a curious
    coordinator would.
    """

    def __init__(self, names=NAMES, settings=SETTINGS, size=SIZE, seed=0):
        rng = np.random.default_rng(seed)
        self.names, self.settings, self.lines = names, settings, []
        self.vectors = {
            name: rng.normal(size=size).astype(np.float32) for name in names
        }
        self.clients = {name: SecureSumClient(name, settings) for name in names}
        for name, client in self.clients.items():
            client.hold(0, {"model": self.vectors[name]})
        self.lost, self.seen, self.requests, self.round = {}, {}, {}, 0
        self.change = lambda stage, name, arrays: arrays
        self.relay = lambda stage, name, arrays: arrays

    def ask(self, stage):
        found = {}
        self.requests[stage.task] = {}
        for name, arrays in stage.arrays.items():
            if stage.task in self.lost.get(name, ()):
                continue
            settings = {"kind": "model", **stage.settings_for(name)}
            request = Request(
                "job",
                self.round,
                0,
                stage.task,
                name,
                algorithm={SUM: settings},
                arrays=self.relay(stage.task, name, dict(arrays)),
            )
            self.requests[stage.task][name] = request
            try:
                answer = self.change(stage.task, name, self.clients[name](request))
                check_arrays(answer, stage.expected[name])
                found[name] = answer
            except ValueError as error:
                self.lines.append(f"client {name}: {error}")
        self.seen[stage.task] = found
        return found

    def run(self, weights, **options):
        one = SecureSumServer(
            self.ask,
            self.names,
            len(self.vectors[self.names[0]]),
            self.settings,
            **options,
        )
        with self.hearing():
            return one.run(np.asarray(weights, np.float64))

    def hearing(self):
        """Notes what the server says until the end of the block."""
        return Lines(self.lines.append).of(COORDINATOR_LOG)

    def begin(self, round):
        """Have the clients hold the same vectors again, as in a round that changed
        nothing.
        """
        self.round = round
        for name, client in self.clients.items():
            client.hold(round, {"model": self.vectors[name]})

    def plain(self, weights, without=()):
        """The same sums of those that are not lost, whose weights grow so that rows
        keep their sums.
        """
        weights = np.asarray(weights, np.float64)
        there = np.array([name not in without for name in self.names])
        left = weights * there
        left *= np.abs(weights).sum(1, keepdims=True) / np.abs(left).sum(
            1, keepdims=True
        )
        return left @ np.stack(
            [self.vectors[name].astype(np.float64) for name in self.names]
        )


def losing(stage):
    """All stages from one on."""
    return STAGES[STAGES.index(stage) :]


WEIGHTS = [[0.4, 0.3, 0.1, 0.1, 0.1], [0.0, 0.1, 0.2, 0.3, 0.4]]


def test_the_sums_are_the_plain_ones_to_the_bound():
    circle = Circle()
    sums, there = circle.run(WEIGHTS)
    error = np.abs(sums - circle.plain(WEIGHTS)).max()
    assert 0 < error <= len(NAMES) / 2 * FixedPoint(64.0).step * (1 + 1e-9)
    assert there.all() and circle.lines == []
    # weights that do not sum to 1, and negative ones
    odd = [[2.0, -1.0, 0.5, 0.5, 1.0]]
    circle = Circle()
    np.testing.assert_allclose(
        circle.run(odd)[0], circle.plain(odd), atol=5 * 5 / 2 * FixedPoint(64.0).step
    )


def test_what_a_client_sends_looks_random_to_the_coordinator():
    circle = Circle(size=50_000)
    circle.run(WEIGHTS)
    plain = circle.vectors["a"].astype(np.float64)
    sent = circle.seen[VECTORS]["a"]["masked"]
    for row in sent:
        assert (
            abs(np.corrcoef(plain, row.view(np.int32).astype(np.float64))[0, 1]) < 0.02
        )
        counts = np.bincount(row >> 28, minlength=16)
        assert (
            (counts - 3125) ** 2 / 3125
        ).sum() < 45  # chi square, 15 degrees of freedom
    # nor does the sum of all but one say anything: the clients' own masks are still on
    # it
    others = sum(
        (circle.seen[VECTORS][name]["masked"] for name in "bcde"), np.zeros_like(sent)
    )
    assert (
        abs(
            np.corrcoef(plain, (sent + others)[0].view(np.int32).astype(np.float64))[
                0, 1
            ]
        )
        < 0.02
    )
    # the same vector in the same sum, masked anew: other numbers
    again = Circle(size=50_000)
    again.run(WEIGHTS)
    assert (again.seen[VECTORS]["a"]["masked"] != sent).mean() > 0.99


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("client", ["a", "d"])
def test_a_client_is_lost_at_any_stage_and_the_others_go_on(stage, client):
    circle = Circle()
    circle.lost[client] = losing(stage)
    if stage == CONFIRM:
        said = f"^{client} sent a vector and did not confirm whose vectors are in"
        with pytest.raises(TooFewClients, match=said):
            circle.run(WEIGHTS)
        assert UNMASK not in circle.seen
        return
    sums, there = circle.run(WEIGHTS)
    without = () if stage == UNMASK else (client,)
    np.testing.assert_allclose(
        sums, circle.plain(WEIGHTS, without), atol=10 * FixedPoint(64.0).step
    )
    assert there.all() and circle.lines == []


def test_a_sum_whose_clients_are_all_lost_is_not_there():
    circle = Circle(names=tuple("abcdefghij"))
    for name in "abc":
        circle.lost[name] = losing(VECTORS)
    others = [0.0, 0.0, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]
    sums, there = circle.run([[0.4, 0.3, 0.3, *[0] * 7], others])
    assert there.tolist() == [False, True] and not sums[0].any()
    expected = circle.plain([others], "abc")[0]
    np.testing.assert_allclose(sums[1], expected, atol=10 * FixedPoint(64.0).step)


@pytest.mark.parametrize(
    ("stage", "left"), [(KEYS, 2), (SHARES, 3), (VECTORS, 3), (UNMASK, 3)]
)
def test_below_the_threshold_there_is_no_sum(stage, left):
    """Two thirds of five are four; of those that came with keys, three are the
    least.
    """
    circle = Circle()
    for name in NAMES[left:]:
        circle.lost[name] = losing(stage)
    needed = 3 if stage == KEYS else 4
    said = (
        rf"^{left} of 5 clients are left for a secure sum, and it needs {needed}; the"
        r" round does not count \(docs: errors#too-few-clients\)$"
    )
    with pytest.raises(TooFewClients, match=said):
        circle.run(WEIGHTS)
    assert (UNMASK in circle.seen) == (stage == UNMASK)


def test_the_jobs_minimum_counts_vectors_that_arrive():
    circle = Circle()
    circle.lost["a"] = losing(VECTORS)
    with pytest.raises(
        TooFewClients, match="4 of 5 clients are left for a secure sum, and it needs 5"
    ):
        circle.run(WEIGHTS, minimum=5)


def test_a_sum_of_one_client_almost_alone_is_not_made():
    alone = [0.02, 0.95, 0.01, 0.01, 0.01]
    said = (
        "client b would be 95% of sum {}, which would not hide its vector (at most 90%)"
    )
    circle = Circle()
    sums, there = circle.run([alone, *WEIGHTS])  # the others are
    assert there.tolist() == [False, True, True] and circle.lines == [
        said.format(1) + "; it is left out of this round"
    ]
    np.testing.assert_allclose(
        sums[1:], circle.plain(WEIGHTS), atol=10 * FixedPoint(64.0).step
    )
    assert circle.seen[VECTORS]["a"]["masked"].shape == (2, SIZE) and not sums[0].any()
    circle = Circle()
    with pytest.raises(
        ValueError,
        match=(
            r"^client b would be 95% of sum 1.*use fewer streams, or weights that"
            r" differ"
        ),
    ):
        circle.run([alone])
    assert VECTORS not in circle.seen
    circle = Circle()  # of those that make a sum, one is lost
    circle.lost["a"] = losing(VECTORS)
    with pytest.raises(
        TooFewClients,
        match=r"^client b would be 95% of sum 1.* as others are lost; the round does",
    ):
        circle.run([[0.5, 0.475, 0.01, 0.01, 0.005]])
    assert UNMASK not in circle.seen


TWO_STREAMS = [
    [0.4, 0.12, 0.13, 0.11, 0.12, 0.12],
    [0.05, 0.19, 0.19, 0.19, 0.19, 0.19],
]


def test_sums_of_which_a_combination_is_one_client_are_not_computed():
    """Each sum hides everybody; a difference of both is one client to 90 % and more."""
    weights = np.array(TWO_STREAMS)
    shares = largest_shares(weights)
    assert weights.max() <= 0.4 and shares.max() > 0.9
    circle = Circle(tuple("abcdef"))
    with pytest.raises(
        ValueError,
        match=(
            r"^client a would be 95% of a combination of the sums, which would not hide"
            r" its vector \(at most 90%\); use fewer streams, or have more clients"
        ),
    ):
        circle.run(weights)
    assert VECTORS not in circle.seen
    # Either sum by itself is computed.
    for row in weights:
        Circle(tuple("abcdef")).run([row])


def test_clients_look_at_combinations_themselves():
    """A coordinator of another release does not."""
    circle = Circle(tuple("abcdef"))
    server = SecureSumServer(circle.ask, circle.names, SIZE, SETTINGS)
    server._unsafe_combination = lambda weights: ""
    with pytest.raises(TooFewClients, match="0 of 6 clients are left"):
        server.run(np.array(TWO_STREAMS))
    assert len(circle.lines) == 6 and all(
        "of a combination of the sums, which would not hide" in line
        for line in circle.lines
    )


def test_clients_that_were_told_different_weights_give_no_sum():
    """One that is told that others weigh much would else add to a sum of itself."""
    circle = Circle()

    def relay(stage, name, arrays):
        if stage == VECTORS and name == "a":
            arrays["weights"] = np.full((1, 5), 0.2)
        return arrays

    circle.relay = relay
    with pytest.raises(TooFewClients):
        circle.run(np.array([[0.2, 0.2, 0.2, 0.2, 0.2 - 1e-9]]))
    assert_not_confirmed(circle)


def assert_not_confirmed(circle):
    """Client a and the others refuse to open a sum, as the codes are of other ones."""
    told = dict(line.removeprefix("client ").split(": ", 1) for line in circle.lines)
    assert set(told) == set(NAMES)
    assert all(
        "did not confirm that the vectors of the same" in it for it in told.values()
    )
    assert all(
        it.startswith("client a did") for name, it in told.items() if name != "a"
    )


def test_clients_that_were_asked_different_things_give_no_sum():
    """Of a model whose update is known the others' parts could be subtracted."""
    circle, weights = Circle(), np.full((1, 5), 0.2)
    for alike in (True, False):
        for name, client in circle.clients.items():
            asked = "the model" if alike or name != "a" else "another model"
            client.hold(0, {"model": circle.vectors[name]}, asked=asked)
        if alike:
            sums, _ = circle.run(weights, asked="the model")
            assert np.abs(sums - circle.plain(weights)).max() < 1e-6
            assert circle.lines == []
            continue
        with pytest.raises(TooFewClients):
            circle.run(weights, asked="the model")
        assert_not_confirmed(circle)


@pytest.mark.parametrize("scope", ["run", "round"])
@pytest.mark.parametrize("later", [0, 1])
def test_sums_of_two_rounds_that_differ_by_one_client(scope, later, tmp_path):
    """In the scope of the run they are refused, and in that of a round if both are of
    one round: vectors are alike from round to round, and equal in one.
    """
    circle = Circle(settings=SecureSums(scope=scope))
    for name in NAMES:
        circle.clients[name] = SecureSumClient(name, circle.settings, tmp_path / name)
    circle.begin(0)
    everybody, without_e = np.full((1, 5), 0.2), np.array([[0.25] * 4 + [0.0]])
    circle.run(everybody)
    # A client that is started again knows what it has had a part in.
    for name in NAMES:
        circle.clients[name] = SecureSumClient(name, circle.settings, tmp_path / name)
    circle.begin(later)
    if scope == "round" and later:
        circle.run(without_e)
        assert circle.lines == []
        return
    with pytest.raises(TooFewClients):
        circle.run(without_e)
    assert set(circle.lines) == {
        f"client {name}: client e would be 100% of a combination of these and earlier"
        " sums, which would not hide its vector (at most 90%)"
        for name in NAMES
    }
    # The same sum again shows nothing that the first one did not.
    circle.begin(later)
    circle.run(everybody)


# (round, the client that is lost, from which stage on, clients that are given weight)
LOSSES = {
    "attempts": [
        (0, "e", VECTORS, NAMES),
        (0, "d", UNMASK, NAMES),
        (0, "a", SHARES, NAMES),
        (0, None, None, NAMES),
        (0, None, None, "abcd"),
    ],
    "rounds": [
        (0, None, None, NAMES),
        (1, "b", KEYS, NAMES),
        (2, "c", UNMASK, NAMES),
        (3, None, None, "acde"),
        (4, None, None, NAMES),
    ],
    "for good": [
        (0, "e", KEYS, NAMES),
        (1, "e", KEYS, NAMES),
        (2, None, None, NAMES),
        (3, None, None, "abcd"),
        (4, None, None, "abc"),
    ],
}


def learned(table, losses, scope):
    """All sums that a coordinator gets of vectors that stay the same."""
    circle = Circle(settings=SecureSums(scope=scope), size=2)
    circle.vectors = {name: np.array(table[name]) for name in NAMES}
    numbers = []
    for number, (round, lost, stage, weighed) in enumerate(losses):
        circle.begin(round)
        circle.lost = {} if lost is None else {lost: losing(stage)}
        weights = [[float(name in weighed) for name in NAMES]]
        with suppress(TooFewClients):
            sums, _ = circle.run(weights)
            numbers += [number, *np.ravel(sums)]
    return numbers


def known_of_clients(table, losses, scope):
    """How much of a combination of each client's numbers is known: 1 = one is."""
    cells = [(name, row) for name in NAMES for row in range(2)]
    known = projection(
        jacobian(lambda it: learned(it, losses, scope), table, cells, step=1.0)
    )
    pairs = known.reshape(len(NAMES), 2, len(NAMES), 2)
    return [np.linalg.eigvalsh(pairs[i, :, i]).max() for i in range(len(NAMES))]


@pytest.mark.parametrize("scope", ["run", "round"])
@pytest.mark.parametrize("losses", LOSSES)
def test_no_client_follows_from_all_sums_whoever_is_lost_when(
    losses, scope, monkeypatch
):
    rng = np.random.default_rng(0)
    # As far apart in each, so that a step is as long.
    table = {name: [it, it + 1] for name, it in zip(NAMES, rng.random(5), strict=True)}
    within = [
        (0, *it[1:]) if scope == "round" else it for it in LOSSES[losses]
    ]  # that scope promises nothing of several rounds
    assert len(learned(table, within, scope)) > 2
    assert max(known_of_clients(table, within, scope)) < 0.5
    if scope == "run":
        return
    # The test sees it: if nobody keeps a history, one does follow.
    monkeypatch.setattr(SumHistory, "released", lambda *_: ReleasedSums())
    monkeypatch.setattr(SumHistory, "may_add", lambda *_: True)
    assert max(known_of_clients(table, within, scope)) > 1 - 1e-6


def test_the_server_looks_at_earlier_sums_before_it_asks():
    circle, history = Circle(), SumHistory("run")
    earlier = ReleasedSums().with_sums(NAMES, np.full((1, 5), 0.2))
    history.record(0, ["model", None], earlier, NAMES)
    said = "client e would be 100% of a combination of these and earlier sums"
    with pytest.raises(ValueError, match=said):
        circle.run([[0.25] * 4 + [0.0]], history=history)
    circle.lost["e"] = losing(KEYS)
    with pytest.raises(TooFewClients, match=said + ".* as others are lost"):
        circle.run([[0.2] * 5], history=history)
    circle.lost["e"] = losing(VECTORS)
    with pytest.raises(TooFewClients, match=said + ".* as others are lost"):
        circle.run([[0.2] * 5], history=history)
    assert VECTORS in circle.seen and UNMASK not in circle.seen


def test_neighbours_on_a_ring_suffice(monkeypatch):
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", 4)
    names = tuple(f"client {number}" for number in range(9))
    among = neighbour_graph(names, 4)
    assert all(len(it) == 5 and name in it for name, it in among.items())
    assert all(
        (one in among[other]) == (other in among[one])
        for one in names
        for other in names
    )
    circle = Circle(names)
    circle.lost[names[4]] = losing(VECTORS)
    weights = np.full((1, 9), 1 / 9)
    sums, _ = circle.run(weights, neighbours=4)
    np.testing.assert_allclose(
        sums, circle.plain(weights, names[4]), atol=10 * FixedPoint(64.0).step
    )
    assert circle.seen[SHARES][names[0]]["shares"].shape[0] == 5


class LeavesOut(SecureSumServer):
    """Names a client in a sum, with its weight, that it does not ask."""

    def _advertise_keys(self):
        self._asked = [name for name in self._asked if name != LEFT_OUT]
        return super()._advertise_keys()

    def _survivors(self, answers):
        return np.array([name in answers or name == LEFT_OUT for name in self._names])


LEFT_OUT = "client 4"


def test_a_client_that_is_named_in_a_sum_without_a_part_is_missed(monkeypatch):
    """Before, of more than 51 clients one could be left out of a second sum of the same
    vectors without anybody knowing: the difference of both was its vector.
    """
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", 4)
    names = tuple(f"client {number}" for number in range(12))
    circle, weights = Circle(names), np.full((1, 12), 1 / 12)
    (first,), _ = circle.run(weights, neighbours=4)
    circle.begin(1)
    one = LeavesOut(circle.ask, names, SIZE, SETTINGS, neighbours=4)
    with suppress(TooFewClients):
        (second,), _ = one.run(weights)
        found = 12 * (first - second)
        assert np.abs(found - circle.vectors[LEFT_OUT]).max() > 1e-3
    # Its four neighbours miss it.
    assert sum("clients that have no part in" in line for line in circle.lines) == 4


def test_of_many_clients_some_may_be_lost_before_they_are_neighbours(monkeypatch):
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", 4)
    names = tuple(f"client {number}" for number in range(12))
    circle, weights = Circle(names), np.full((1, 12), 1 / 12)
    circle.lost[LEFT_OUT] = losing(KEYS)
    sums, _ = circle.run(weights, neighbours=4)
    step = FixedPoint(64.0).step
    np.testing.assert_allclose(sums, circle.plain(weights, LEFT_OUT), atol=12 * step)


def test_noise_hides_of_which_parts_a_sum_is(monkeypatch):
    """Each client's part is rounded, so that of its few possible values only one may add up to
    what was opened: without noise all counts of all clients follow from that.
    """
    names, sizes = ("a", "b", "c"), np.array([31, 83, 57])
    point, rng = FixedPoint(SETTINGS.range), np.random.default_rng(0)
    weights = sizes / sizes.sum()
    shares = {  # of rows with some property, at each client
        name: rng.integers(0, 5, SIZE).astype(np.float32) * np.float32(1 / size)
        for name, size in zip(names, sizes, strict=True)
    }
    parts = [
        np.rint(shares[name].astype(np.float64) * weight / point.step)
        for name, weight in zip(names, weights, strict=True)
    ]
    found = {}
    for deviation in (0.0, NOISE):
        monkeypatch.setattr("fedtailor.aggregation.secure_sums.NOISE", deviation)
        circle = Circle(names)
        circle.vectors = shares
        circle.begin(0)
        opened = np.rint(circle.run([weights])[0][0] / point.step)
        errors = opened - sum(parts)
        assert np.abs(errors).max() <= 4 * deviation / point.step + 1e-3
        found[deviation] = np.abs(errors) < 0.5
    assert found[0.0].all() and found[NOISE].mean() < 0.1


def test_the_same_vector_has_the_same_noise(monkeypatch):
    """In each try of a round it had another, and the mean of 25 sums with the same weights
    had little of it.
    """
    monkeypatch.setattr("fedtailor.aggregation.secure_sums.NOISE", NOISE)
    vector = np.zeros(10_000, np.float32)

    def part(secret, vector, *weights, name=("model", None)):
        client = SecureSumClient("a", SETTINGS, secret=secret)
        session = sum_client._Session("s", vector, name, ReleasedSums())
        return client._encoded(session, np.array(weights)).view(np.int32)

    assert [FixedPoint(it).noise / NOISE for it in (128.0, 64.0, 2.0, 0.5)] == [
        2,
        1,
        1,
        0.5,
    ]
    first, again = part(7, vector, 0.5, 0.5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, part(7, vector, 0.5)[0])
    assert 0.95 < first.std() * FixedPoint(64.0).step / (0.5 * NOISE) < 1.05
    for others in (
        part(8, vector, 0.5)[0],
        part(7, vector + 1e-20, 0.5)[0],
        part(7, vector, 0.5, name=("model", 1))[0],
    ):
        assert abs(np.corrcoef(first, others)[0, 1]) < 0.05


# clients and coordinators that lie
# ------------------------------------------------------------------------------------


def test_a_share_that_is_changed_on_the_way_is_noticed_and_its_reader_stays_away():
    circle = Circle()

    def relay(stage, name, arrays):
        if stage == VECTORS and name == "b":
            arrays["shares"] = arrays["shares"].copy()
            arrays["shares"][0, 20] ^= 1
        return arrays

    circle.relay = relay
    sums, _ = circle.run(WEIGHTS)
    assert circle.lines == [
        "client b: the share of client a cannot be read: it was changed on the way"
    ]
    np.testing.assert_allclose(
        sums, circle.plain(WEIGHTS, "b"), atol=10 * FixedPoint(64.0).step
    )


def test_a_client_that_opens_wrong_shares_is_named_and_done_without():
    names = tuple("abcdefg")
    circle = Circle(names)
    circle.lost["e"] = losing(VECTORS)  # so that shares of both kinds are needed
    circle.change = lambda stage, name, arrays: (
        {"shares": arrays["shares"] ^ np.uint8(7)}
        if (stage, name) == (UNMASK, "a")
        else arrays
    )
    weights = np.full((1, 7), 1 / 7)
    sums, _ = circle.run(weights)
    np.testing.assert_allclose(
        sums, circle.plain(weights, "e"), atol=10 * FixedPoint(64.0).step
    )
    said = {
        f"client a: its share of a secret of client {owner} is wrong; it is not used"
        for owner in names
    }
    assert set(circle.lines) == said
    # with none to spare there is no sum, rather than a wrong one
    circle = Circle(NAMES[:3])
    circle.settings = replace(SETTINGS, threshold=1.0)
    circle.change = lambda stage, name, arrays: (
        {"shares": arrays["shares"] ^ np.uint8(7)}
        if (stage, name) == (UNMASK, "a")
        else arrays
    )
    with pytest.raises(
        TooFewClients,
        match="do not unmask the sum with client a: some are wrong; the round does not",
    ):
        circle.run([[0.3, 0.3, 0.4]])


def test_a_client_never_opens_both_secrets_of_another():
    circle = Circle()
    circle.run(WEIGHTS)
    asked = circle.requests[UNMASK]["a"]
    with pytest.raises(ValueError, match="has no part in this sum"):  # it is over
        circle.clients["a"](asked)
    confirmed = circle.requests[CONFIRM]["a"]
    with pytest.raises(ValueError, match="has no part in this sum"):
        circle.clients["a"](confirmed)


class Splits(Circle):
    """A coordinator that tells clients different lists of the vectors that arrived, and
    asks all of them to open the sum.
    """

    def open(self, lists, neighbours=50):
        """Returns the clients the sum of whose vectors can be unmasked."""
        count = len(self.names)

        def relay(stage, name, arrays):
            if stage == CONFIRM:
                arrays["arrived"] = np.array([it in lists[name] for it in self.names])
            return arrays

        self.relay = relay
        options = {"neighbours": neighbours}
        server = SecureSumServer(self.ask, self.names, SIZE, self.settings, **options)
        # Who was told that it is lost, or refuses, confirms nothing to anybody.
        ask = server._run_stage

        def run_stage(stage):
            answers = dict(ask(stage))
            if stage.task == CONFIRM:
                for name, spec in stage.expected.items():
                    empty = np.zeros(spec["codes"].shape, np.uint8)
                    answers.setdefault(name, {"codes": empty})
            return answers

        server._run_stage = run_stage
        with self.hearing(), suppress(TooFewClients):
            server.run(np.full((1, count), 1 / count))
        among = neighbour_graph(self.names, neighbours)
        has_seed, has_key = set(), set()
        for owner in self.names:
            revealed = [it for it in among[owner] if it in self.seen[UNMASK]]
            needed = self.settings.reconstruction_threshold(len(among[owner]))
            seeds = sum(owner in lists[it] for it in revealed)
            if seeds >= needed:
                has_seed.add(owner)
            if len(revealed) - seeds >= needed:
                has_key.add(owner)
        # All pairwise masks with others cancel, or follow from these others' keys.
        found = has_seed
        while True:
            kept = {it for it in found if set(among[it]) <= found | has_key}
            if kept == found:
                return found
            found = kept


def split_lists(names, rng):
    """A few lists of the clients whose vectors arrived, and who is told which."""
    ring = secure_sums._ring(names)
    if rng.random() < 0.5:  # each says that others are lost
        lists = [set(rng.permutation(names)[rng.integers(1, 4) :]) for _ in range(2)]
    else:  # others between two arcs
        start, gap = rng.integers(len(names)), rng.integers(1, 5)
        turned = [*ring[start:], *ring[:start]]
        half = len(names) // 2
        lists = [set(names) - set(turned[at : at + gap]) for at in (0, half)]
        if rng.random() < 0.5:
            lists[1] -= set(turned[:gap])
    return {name: lists[rng.integers(2)] for name in names}


@pytest.mark.parametrize(("count", "neighbours"), [(7, 50), (9, 50), (13, 4), (20, 6)])
@pytest.mark.parametrize("threshold", [2 / 3, 0.8])
def test_a_sum_is_opened_that_all_of_its_clients_confirmed(
    count, neighbours, threshold, monkeypatch
):
    """Before, each client could be told of others that are lost: their keys opened, and the
    sum was the vector of a client; or a client remembered other sums than were opened.
    """
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", neighbours)
    names = tuple(f"client {number:02d}" for number in range(count))
    rng, opened, differ = np.random.default_rng(count), 0, 0
    is_seen = threshold < 0.6  # a higher one leaves less to split
    for checks in (True, False)[: 1 + is_seen]:
        if not checks:
            monkeypatch.setattr(sum_client.hmac, "compare_digest", lambda *_: True)
        for seed in range(6):
            circle = Splits(names, SecureSums(threshold=threshold), seed=seed)
            lists = split_lists(names, rng)
            if seed == 0:
                lists = {key: set(names) for key in names}
            found = circle.open(lists, neighbours)
            opened += checks and bool(found)
            is_split = bool(found) and any(lists[name] != found for name in found)
            assert not (checks and is_split)
            differ += is_split
    assert opened and bool(differ) == is_seen


def test_a_client_that_was_not_in_a_list_is_in_no_later_sum():
    """It remembers that it hides others in a sum which was opened without it."""
    circle = Splits(NAMES, SecureSums(threshold=2 / 3))
    without_e = dict.fromkeys(NAMES, set(NAMES) - {"e"})
    assert circle.open(without_e) == set("abcd")
    circle.begin(1)
    circle.relay = lambda stage, name, arrays: arrays
    with pytest.raises(TooFewClients):
        circle.run([[0.2] * 5])
    told = [line for line in circle.lines if "it has a part in sums of other" in line]
    assert len(told) == 4


@pytest.mark.parametrize("scope", ["run", "round"])
def test_a_round_goes_on_when_a_client_comes_back_that_did_not_confirm(scope):
    """Those that confirmed remember the sum, and so does the coordinator, though it was
    not opened: before, it asked again for one that was lost from it, and all refused.
    """
    circle = Circle(settings=SecureSums(scope=scope))
    circle.lost = {"b": losing(VECTORS), "d": losing(CONFIRM)}
    history = SumHistory(scope)
    first = SecureSumServer(circle.ask, NAMES, SIZE, circle.settings, history=history)
    with pytest.raises(TooFewClients, match=r"^d sent a vector and did not confirm"):
        first.run(np.full((1, 5), 0.2))
    assert first.remaining == tuple("acde")
    circle.begin(0)
    circle.lost = {}
    sums, _ = circle.run([[0.2] * 5], history=history)
    step = FixedPoint(64.0).step
    np.testing.assert_allclose(sums, circle.plain([[0.2] * 5], "b"), atol=10 * step)


def test_a_round_waits_for_a_client_that_did_not_confirm_and_stays_away():
    """Before, the run ended with an error of weights, as if nobody was lost."""
    circle = Circle(settings=SecureSums(scope="round"))
    circle.lost = {"d": losing(CONFIRM)}
    history = SumHistory("round")
    with pytest.raises(TooFewClients, match=r"^d sent a vector and did not confirm"):
        circle.run([[0.2] * 5], history=history)
    circle.begin(0)
    circle.lost = {}
    others = [name for name in NAMES if name != "d"]
    again = SecureSumServer(circle.ask, others, SIZE, circle.settings, history=history)
    with pytest.raises(TooFewClients, match=r"as others are lost \(d\); the round"):
        again.run(np.full((1, 4), 0.25))


@pytest.mark.parametrize("lost", [3, 4])
def test_as_many_around_a_client_confirm_as_the_threshold_says(monkeypatch, lost):
    """Before, one of two sides of a ring was enough, and one colluder on the other could
    have both sides confirm other lists.
    """
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", 10)
    names = tuple(f"client {number:02d}" for number in range(20))
    circle = Circle(names)
    ring = secure_sums._ring(names)
    circle.lost = {name: losing(KEYS) for name in ring[:lost]}
    # Those next to the gap have 11 around them, of whom 8 are needed.
    run = partial(circle.run, np.full((1, 20), 1 / 20), neighbours=10)
    if lost == 3:
        run()
        return
    with pytest.raises(TooFewClients, match="did not confirm"):
        run()
    assert any("only 7 vectors of the 11 clients" in line for line in circle.lines)


@pytest.mark.parametrize("kind", ["masking", "sealing"])
@pytest.mark.parametrize("of", ["nobody", "a"])
def test_who_sends_a_key_that_nobody_can_use_is_named_and_left_out(lines, kind, of):
    """Before, all others refused every sum, and not one line said whose key it was."""
    circle = Circle(settings=SecureSums(scope="round"))

    class Wrong(SecureSumServer):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            honest = self._run_stage

            def run_stage(stage):
                answers = {name: dict(it) for name, it in honest(stage).items()}
                if stage.task == KEYS:
                    key = np.zeros_like(answers["d"][kind])
                    answers["d"][kind] = key if of == "nobody" else answers["a"][kind]
                return answers

            self._run_stage = run_stage

    server = Wrong(circle.ask, NAMES, SIZE, circle.settings)
    sums, _ = server.run(np.full((1, 5), 0.2))
    step = FixedPoint(64.0).step
    np.testing.assert_allclose(sums, circle.plain([[0.2] * 5], "d"), atol=10 * step)
    assert any("client d: " in it and "left out" in it for it in lines)


def test_a_sum_names_no_more_clients_than_can_be_looked_at(monkeypatch):
    """With 16,384 names a message of 300 kB took 4 GB, also by an earlier sum's names."""
    monkeypatch.setattr(sum_client, "MAX_CLIENTS", 5)
    circle = Circle()
    circle.run([[0.2] * 5])
    monkeypatch.setattr(sum_client, "MAX_CLIENTS", 4)
    circle.begin(1)
    with pytest.raises(TooFewClients):
        circle.run([[0.2] * 5])
    assert all("name 5 clients, more than 4" in line for line in circle.lines)


def test_the_neighbours_of_a_sum_are_those_of_its_ring(monkeypatch):
    """Before, some clients that have each other as neighbours opened a sum of their own,
    and remembered one of all.
    """
    monkeypatch.setattr(sum_client, "MAX_NEIGHBOURS", 4)
    names = tuple(f"client {number:02d}" for number in range(12))
    circle = Circle(names)
    ring = secure_sums._ring(names)
    some = ring[:5]

    def graph(names, neighbours):
        usual = neighbour_graph(names, neighbours).items()
        rest = {
            name: tuple(it for it in near if it not in some) for name, near in usual
        }
        return rest | {name: tuple(sorted(some)) for name in some}

    monkeypatch.setattr(sum_server, "neighbour_graph", graph)
    with pytest.raises(TooFewClients):
        circle.run(np.full((1, 12), 1 / 12), neighbours=4)
    told = [line for line in circle.lines if "that are not next to it" in line]
    # The middle one of the five has those for neighbours.
    assert {line[7:16] for line in told} == set(some) - {some[2]}


class Watched(Circle):
    """Clients whose random numbers depend on the client and the stage only, so that two
    runs can be compared, while a coordinator asks for more between the stages.
    """

    def __init__(self, monkeypatch, hostile=lambda request: (), **options):
        self.hostile, self.refused = hostile, []
        self.numbers = np.random.default_rng(0)

        def draw(count):
            return self.numbers.bytes(count)

        monkeypatch.setattr(sum_client.os, "urandom", draw)
        monkeypatch.setattr("Crypto.Protocol.SecretSharing.rng", draw)
        monkeypatch.setattr(sum_server.secrets, "token_hex", lambda size: "session")
        super().__init__(**options)
        for name, client in self.clients.items():
            self.clients[name] = partial(self.answer, client)

    def answer(self, client, request):
        """An honest client's answer to a stage, after some that are not honest."""
        for other in self.hostile(request):
            self.numbers = np.random.default_rng(1)
            with pytest.raises(Refused):
                client(other)
            self.refused.append(request.task)
        place = NAMES.index(request.client)
        self.numbers = np.random.default_rng([place, STAGES.index(request.task)])
        return client(request)

    def answers(self, without=()):
        """The bytes of all answers, by stage and client."""
        return {
            (stage, name): {kind: array.tobytes() for kind, array in answer.items()}
            for stage, found in self.seen.items()
            for name, answer in found.items()
            if name not in without
        }


def more(request):
    """What a curious coordinator asks for beside an honest stage: other sums, other
    stages, other rounds, all at once, and nonsense.
    """
    settings = request.algorithm[SUM]
    for task in STAGES:
        for change in ({"name": "other"}, {"name": None}, {"name": ["session"]}):
            if task != KEYS:
                yield replace(
                    request, task=task, algorithm={SUM: {**settings, **change}}
                )
        if task not in (KEYS, request.task):
            yield replace(request, task=task)
    for change in ({"kind": "state"}, {"number": 0}, {"number": 10**30}):
        wrong = {SUM: {**settings, **change}}
        yield replace(request, task=KEYS, algorithm=wrong)
    yield replace(request, task=KEYS, round=request.round + 1)
    yield replace(request, task=KEYS, algorithm={})
    yield replace(request, task=KEYS, algorithm={SUM: "session"})


def test_the_honest_stages_stay_the_same_while_a_coordinator_asks_for_more(
    monkeypatch,
):
    honest = Watched(monkeypatch)
    sums, _ = honest.run(WEIGHTS)
    attacked = Watched(monkeypatch, more)
    same, _ = attacked.run(WEIGHTS)
    assert attacked.answers() == honest.answers()
    np.testing.assert_array_equal(same, sums)
    assert set(attacked.refused) == set(STAGES) and len(attacked.refused) > 300
    # And the comparison tells another answer.
    other = Watched(monkeypatch, seed=1)
    other.run(WEIGHTS)
    assert other.answers() != honest.answers()


@pytest.mark.parametrize("stage", [SHARES, VECTORS, UNMASK])
def test_the_other_clients_stages_stay_the_same_while_a_client_sends_nonsense(
    stage, monkeypatch
):
    honest = Watched(monkeypatch)
    honest.run(WEIGHTS)
    attacked = Watched(monkeypatch)
    noise = np.random.default_rng(5)

    def nonsense(task, name, arrays):
        if (task, name) != (stage, "e"):
            return arrays
        return {
            kind: np.frombuffer(noise.bytes(array.nbytes), array.dtype).reshape(
                array.shape
            )
            for kind, array in arrays.items()
        }

    attacked.change = nonsense
    with suppress(TooFewClients):
        attacked.run(WEIGHTS)
    same, wanted = attacked.answers("e"), honest.answers("e")
    # Who cannot read the shares that e has made for it stays away from then on.
    until = STAGES.index(VECTORS) if stage == SHARES else len(STAGES)
    for key, answer in wanted.items():
        if STAGES.index(key[0]) < until:
            assert same[key] == answer
    assert all(wanted[key] == answer for key, answer in same.items())


@pytest.fixture
def unchecked(monkeypatch):
    """A coordinator that asks for any weights, also of those that are left."""
    monkeypatch.setattr(sum_server, "unsafe_sums", lambda *arguments: {})
    monkeypatch.setattr(SecureSumServer, "_unsafe_combination", lambda self, it: "")


@pytest.mark.parametrize(
    "weights", [[0.5, 0.5, 0, 0, 0], [0.5, 0.4999, 0.0001, 0, 0]], ids=str
)
def test_clients_with_no_weight_do_not_make_a_sum_of_two_one_of_more(
    unchecked, weights
):
    """Three had keys, two a weight: each of the two could subtract its own vector."""
    circle = Circle()
    with pytest.raises(TooFewClients):
        circle.run([weights])
    assert all("a sum is over 2 clients" in line for line in circle.lines)
    assert len(circle.lines) == 5
    with pytest.raises(ValueError, match="sum 1 would be over 2 clients"):
        add_up(
            np.array([weights]),
            np.stack(list(circle.vectors.values())),
            NAMES,
            SETTINGS,
            ReleasedSums(),
        )


def test_a_client_counts_the_clients_whose_vectors_are_in_a_sum(unchecked):
    """Its policy says how many they are at least, to the end."""
    weights = [[0.25, 0.25, 0.25, 0.25, 0.0]]
    for least, lost, is_refused in (
        (4, (), False),
        (5, (), True),
        (4, ("a",), True),
        (3, ("a",), False),
        (4, ("e",), False),
    ):
        circle = Circle()
        for name in NAMES:
            circle.clients[name] = SecureSumClient(name, SETTINGS, least=least)
        circle.begin(0)
        for name in lost:
            circle.lost[name] = [UNMASK]
            circle.change = lambda stage, name, arrays, lost=lost: (
                {} if stage == VECTORS and name in lost else arrays
            )
        with pytest.raises(TooFewClients) if is_refused else nullcontext():
            circle.run(weights)
        told = [line for line in circle.lines if "a sum is over" in line]
        assert bool(told) == is_refused, (least, lost)


def whole_sums(circle, numbers, clients, weights):
    """The sums of whole numbers [c, n] of the clients of a circle."""
    for name, own in zip(circle.names, numbers, strict=True):
        words = counts_in_words(np.asarray(own))
        circle.clients[name].hold(0, {"model": words}, equally=clients)
    server = SecureSumServer(
        circle.ask, circle.names, len(numbers[0]), circle.settings, words=WORDS
    )
    with circle.hearing():
        opened, _, _ = server._open(weights)
    return from_grid(opened.reshape(-1, WORDS)).tolist()


def test_whole_numbers_are_added_with_the_same_weight_of_each(unchecked):
    """With the weights 81, 9 and 1 a sum of counts below 9 showed each, as its digits."""
    counts, same = np.array([[8], [0], [4]]), np.full((1, 3), 1 / 3)
    for weights, clients, is_refused in (
        (np.array([[81, 9, 1]]) / 91, 91, True),
        (np.array([[81, 9, 1]]) / 91, 3, True),
        (same, 4, True),
        (same, 3, False),
    ):
        circle = Circle(names=("a", "b", "c"))
        with pytest.raises(TooFewClients) if is_refused else nullcontext():
            assert whole_sums(circle, counts, clients, weights) == [12]
        assert bool(circle.lines) == is_refused


def test_whole_numbers_carry_into_the_next_word_also_where_clients_are_lost():
    """Of 2^31 and 2^31 no word tells that there were two."""
    numbers = np.array([[2**31, -1, 2**50]] * 5)
    for lost, left in (({}, 5), ({"b": losing(VECTORS)}, 4)):
        circle = Circle()
        circle.lost = lost
        found = whole_sums(circle, numbers, 5, np.full((1, 5), 0.2))
        assert found == (left * numbers[0]).tolist()


def test_weights_that_go_around_the_numbers_of_sums_are_refused(monkeypatch):
    """Sums are modulo 2^32. Before, the difference of two sums whose weights are nearly
    the same direction, and large, was one client's vector to 3e-8.
    """
    monkeypatch.setattr(sum_server, "normalized", lambda weights, surviving: weights)
    monkeypatch.setattr(sum_server, "unsafe_sums", lambda *arguments: {})
    monkeypatch.setattr(SecureSumServer, "_unsafe_combination", lambda self, it: "")
    large = np.full((2, 5), 1e8)
    large[1, 4] += 1
    for weights in (large, [[0.2, 0.2, 0.2, 0.2, 0.2001]], [[-1e300] * 5]):
        circle = Circle()
        with pytest.raises(TooFewClients):
            circle.run(weights)
        assert len(circle.lines) == 5
        assert all("have to add up to 1, or be 0" in line for line in circle.lines)
    # Nearly the same weights of the size that a server asks for are two sums.
    circle, close = Circle(), np.full((2, 5), 0.2)
    close[1, 3:] += 5e-8, -5e-8
    with pytest.raises(TooFewClients):
        circle.run(close)
    assert all("in a combination of the sums" in line for line in circle.lines)


def test_weights_with_which_the_others_round_to_zero_are_refused(
    unchecked, monkeypatch
):
    """The sum would be one client's vector, to many digits: here because nearly all of
    the weight was of clients that are lost.
    """
    monkeypatch.setattr(sum_server, "normalized", lambda weights, surviving: weights)
    circle = Circle(names=tuple("abcdefghij"))
    weights = np.full((1, 10), 1e-10)
    weights[0, 4] = 5e-9
    with pytest.raises(TooFewClients):
        circle.run(weights)
    assert sum("add up to 5.9e-09, and have to" in line for line in circle.lines) == 10
    circle.lines.clear()
    weights[0, :3] = (1 - weights[0, 3:].sum()) / 3
    for name in "abc":
        circle.lost[name] = [VECTORS]
    with pytest.raises(TooFewClients):
        circle.run(weights)
    told = [line for line in circle.lines if "all clients but e are so small" in line]
    assert len(told) == 7


@pytest.mark.parametrize("is_later", [False, True], ids=["one request", "two"])
def test_sums_in_whose_difference_the_others_round_to_zero_are_refused(
    unchecked, monkeypatch, is_later
):
    """Before, the difference was one client's vector to a hundredth, although no share of
    a combination was above the limit.
    """
    monkeypatch.setattr(SecureSumServer, "_unsafe_combination", lambda *_: "")
    monkeypatch.setattr(sum_server, "normalized", lambda weights, surviving: weights)
    names = tuple("abcdefghij")
    weights = np.full((2, 10), 0.1)
    weights[0, 1:3] += 5 * FixedPoint(SETTINGS.range).step * np.array([1, -1])
    assert largest_shares(weights).max() <= MAX_SHARE
    circle = Circle(names)
    if is_later:
        circle.run(weights[1:])
        assert circle.lines == []
        circle.begin(1)
    with pytest.raises(TooFewClients):
        circle.run(weights[:1] if is_later else weights)
    which = "these and earlier sums" if is_later else "the sums"
    said = f"in a combination of {which} the parts of all clients but"
    assert sum(said in line for line in circle.lines) == 10


@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "mixed"])
def test_a_sum_that_mixes_those_before_is_refused(is_repeated, unchecked, monkeypatch):
    """Many of them, each rounded in its own way, would show each client's digits."""
    monkeypatch.setattr(SecureSumServer, "_unsafe_combination", lambda *_: "")
    circle = Circle(names=tuple("abcdefgh"))
    groups = np.kron(np.eye(2), np.full((1, 4), 0.25))
    circle.run(groups)
    circle.begin(1)
    with nullcontext() if is_repeated else pytest.raises(TooFewClients):
        circle.run(groups[:1] if is_repeated else [[0.125] * 8])
    assert len(circle.lines) == (0 if is_repeated else 8)
    assert all("one is a combination of others" in it for it in circle.lines)


def test_a_neighbour_that_is_lost_has_no_weight_for_anybody():
    """Clients that are no neighbours of it take its weight for its part in the sum."""
    circle = Circle()

    def without_e(task, name, arrays):
        if task == VECTORS and name != "e":
            arrays["there"] = arrays["there"].copy()
            arrays["there"][NAMES.index("e")] = False
        return arrays

    circle.relay = without_e
    with pytest.raises(TooFewClients):
        circle.run(EVERYBODY)
    assert sum("have no part in this sum" in line for line in circle.lines) == 4


def test_clients_that_have_no_part_in_a_sum_hide_nobody():
    """Before, names without keys made the combination of two rounds look harmless."""
    circle, invented = Circle(), ("x", "y")

    def ask(stage):
        if stage.task == VECTORS:
            weights = np.zeros((1, 7))
            weights[0, :5], weights[0, 5 + circle.round] = 0.1, 0.5 - circle.round / 20
            weights[0, 4] += circle.round / 20
            arrays = {
                name: {**content, "weights": weights}
                for name, content in stage.arrays.items()
            }
            stage = replace(stage, arrays=arrays, columns=(*NAMES, *invented))
        return Circle.ask(circle, stage)

    for round in range(2):
        circle.begin(round)
        server = SecureSumServer(ask, NAMES, SIZE, SETTINGS)
        with circle.hearing(), pytest.raises(TooFewClients):
            server.run(np.asarray(EVERYBODY))
        assert len(circle.lines) == 5 * (round + 1)
    assert all("have no part in this sum" in line for line in circle.lines)


def test_more_weights_than_a_client_can_look_at_are_refused():
    circle = Circle()
    circle.relay = lambda task, name, arrays: (
        {**arrays, "weights": np.zeros((2**14, 5))} if task == VECTORS else arrays
    )
    with pytest.raises(TooFewClients):
        circle.run(WEIGHTS)
    assert all("are more than 16384" in line for line in circle.lines)
    circle.lines.clear()
    circle.relay = lambda task, name, arrays: (
        {**arrays, "weights": np.full((3, 5), 0.2)} if task == VECTORS else arrays
    )
    with pytest.raises(TooFewClients):
        circle.run(WEIGHTS)
    assert all("3 sums over 5 clients hide little" in line for line in circle.lines)


EVERYBODY = [[0.2] * 5]


def without_e(circle, **hold):
    """Whether the others make a sum without e, after one with all of the same vectors."""
    for name, client in circle.clients.items():
        client.hold(circle.round, {"model": circle.vectors[name]}, **hold)
    names, circle.names = circle.names, NAMES[:4]
    try:
        circle.run([[0.25] * 4], minimum=3)
    except TooFewClients:
        return False
    finally:
        circle.names = names
    return True


@pytest.mark.parametrize("scope", ["run", "round"])
def test_a_round_that_is_asked_again_later_gives_no_other_sum(scope):
    """Before, a later round let clients forget the sums of this one: two sums of the
    same vectors, with and without e, showed e's.
    """
    circle = Circle(settings=replace(SETTINGS, scope=scope))
    circle.run(EVERYBODY)
    circle.begin(1)
    circle.run(EVERYBODY)
    circle.begin(0)
    assert not without_e(circle)
    assert len(circle.lines) >= 4


def test_a_vector_of_one_run_is_not_added_in_the_name_of_another():
    circle = Circle(settings=replace(SETTINGS, scope="round"))
    circle.run(EVERYBODY)  # run ""
    assert not without_e(circle, run="other")  # the requests name run ""
    assert all("does not hold what it trained" in line for line in circle.lines)


@pytest.mark.parametrize("other", [True, 1.0, "1", [1], None])
def test_a_vector_has_one_name(other):
    """Before, number `true` was number 1 by another name, with a history of its own."""
    rng = np.random.default_rng(0)
    circle = Circle()
    circle.vectors = {
        name: rng.normal(size=(3, SIZE)).astype(np.float32) for name in NAMES
    }
    circle.begin(0)
    number = 1

    def named(stage):
        original = stage.settings_for
        object.__setattr__(
            stage,
            "settings_for",
            lambda name: {**original(name), "number": number},
        )
        return Circle.ask(circle, stage)

    def add(names, weights):
        vector = ("model", number)
        server = SecureSumServer(named, names, SIZE, SETTINGS, vector=vector)
        return server.run(np.asarray(weights))

    add(NAMES, EVERYBODY)
    circle.begin(1)
    number = other
    with pytest.raises(TooFewClients):
        add(NAMES[:4], [[0.25] * 4])
    assert len(circle.lines) == 4


def test_a_client_sends_a_vector_in_one_sum_only():
    """Two sums over other clients would differ by the vectors of those that are in one
    of them only.
    """
    circle = Circle()
    circle.run(WEIGHTS)
    with pytest.raises(TooFewClients):
        circle.run(WEIGHTS)
    assert circle.lines == [
        f"client {name}: it has sent its 'model' of this round in another sum, or has"
        " none"
        for name in NAMES
    ]


def alone(weights, weight):
    """Weights by which the first client is nearly alone."""
    changed = np.full_like(weights, (1 - abs(weight)) / 4)
    changed[:, 0] = weight
    return changed


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        (
            SHARES,
            {"masking": lambda it: it[[1, 0, 2, 3, 4]]},
            "its own keys in this sum are not those that it made",
        ),
        (
            SHARES,
            {"masking": lambda it: it[[0, 1, 2, 2, 4]]},
            "the clients of a sum are not distinct",
        ),
        (SHARES, {"sealing": lambda it: it[:3]}, "holds no 'sealing' of 5 clients"),
        (
            VECTORS,
            {"weights": lambda it: alone(it, 0.95)},
            "it would be 95% of a combination of the sums",
        ),
        (
            VECTORS,
            {"weights": lambda it: alone(it, -0.95)},
            "it would be 95% of a combination of the sums",
        ),
        (
            VECTORS,
            {"weights": lambda it: it * np.nan},
            "the weights of the sums are not well formed",
        ),
        (
            VECTORS,
            {"weights": lambda it: it[:, :4]},
            "the weights of the sums are not well formed",
        ),
        (
            VECTORS,
            {"there": lambda it: it & [True, True, True, False, False]},
            "only 3 of 5 clients are left",
        ),
        (VECTORS, {"there": lambda it: it[:2]}, "is not well formed"),
        (
            CONFIRM,
            {"arrived": lambda it: it & [True, False, False, False, True]},
            "only 2 of 5 vectors arrived, and 4",
        ),
        (
            CONFIRM,
            {"arrived": lambda it: it & [False, True, True, True, True]},
            "the vectors of other clients arrived",
        ),
        (CONFIRM, {"arrived": lambda it: it.astype(np.int8)}, "is not well formed"),
        (UNMASK, {"codes": lambda it: it ^ 1}, "client b did not confirm that the"),
        (UNMASK, {"codes": lambda it: it[:4]}, "holds no 'codes' of 5 clients"),
    ],
)
def test_a_client_refuses_requests_that_would_show_more(stage, change, said):
    circle = Circle()

    def relay(asked, name, arrays):
        if asked == stage and name == "a":
            arrays |= {
                key: np.asarray(edit(arrays[key])) for key, edit in change.items()
            }
        return arrays

    circle.relay = relay
    if stage == CONFIRM:
        with pytest.raises(
            TooFewClients, match=r"^a sent a vector and did not confirm"
        ):
            circle.run(WEIGHTS)
    else:  # the others go on
        sums, _ = circle.run(WEIGHTS)
    assert (
        len(circle.lines) == 1
        and said in circle.lines[0]
        and circle.lines[0].startswith("client a: ")
    )
    if stage != CONFIRM:
        np.testing.assert_allclose(
            sums,
            circle.plain(WEIGHTS, () if stage == UNMASK else "a"),
            atol=10 * FixedPoint(64.0).step,
        )


def test_a_client_adds_with_others_only():
    circle = Circle(("a", "b"))
    with pytest.raises(
        TooFewClients, match="2 of 2 clients are left for a secure sum, and it needs 3"
    ):
        circle.run([[0.5, 0.5]])
    client = SecureSumClient("a", SETTINGS)
    client.hold(0, {"model": np.zeros(2, np.float32)})
    settings = {"name": "s", "kind": "model"}
    keys = client(Request("job", 0, 0, KEYS, "a", algorithm={SUM: settings}))
    alone = {name: np.stack([array, array + 1]) for name, array in keys.items()}
    with pytest.raises(ValueError, match="it adds with 3 clients or more, not with 2"):
        client(
            Request(
                "job",
                0,
                0,
                SHARES,
                "a",
                algorithm={SUM: settings | {"among": ["a", "b"]}},
                arrays=alone,
            )
        )


def test_a_number_out_of_range_is_said_and_nothing_is_sent():
    circle = Circle()
    circle.clients["c"].hold(0, {"model": np.full(SIZE, 70, np.float32)})
    circle.run(WEIGHTS)
    said = (
        "client c: it would send a number of size 70, and sums hold numbers up to 64;"
        " raise sum_range of the job's"
    )
    assert len(circle.lines) == 1 and circle.lines[0].startswith(said)


def test_a_client_that_was_started_again_has_no_part():
    circle = Circle()

    def relay(stage, name, arrays):
        if (stage, name) == (VECTORS, "c"):
            circle.clients["c"] = SecureSumClient("c", SETTINGS)
        return arrays

    circle.relay = relay
    sums, _ = circle.run(WEIGHTS)
    assert circle.lines == [
        "client c: it was started again, and has no part in this sum"
    ]
    np.testing.assert_allclose(
        sums, circle.plain(WEIGHTS, "c"), atol=10 * FixedPoint(64.0).step
    )
    with pytest.raises(ValueError, match="does not hold what it trained in this round"):
        circle.clients["c"](replace(circle.requests[KEYS]["c"], round=1))


@pytest.mark.parametrize("threshold", [0.5, 1.01])
def test_thresholds_that_protect_nobody_are_refused(threshold):
    with pytest.raises(ValueError, match=r"it must be from 0\.66 \(two thirds\) to 1"):
        SecureSums(threshold)
    assert [
        SETTINGS.reconstruction_threshold(clients) for clients in (3, 4, 6, 9, 10)
    ] == [3, 3, 4, 6, 7]
    # Else one half of the clients reveals one secret of a client, and the other half the
    # other one.
    barely = SecureSums(0.66)
    assert all(
        2 * barely.reconstruction_threshold(clients) > clients
        for clients in range(3, 100)
    )


@pytest.mark.parametrize("scope", ["run", "round"])
@pytest.mark.parametrize("kinds", [("model", "control"), (0, 1)])
def test_sums_of_two_vectors_of_a_client_hide_it_together(scope, kinds):
    """One vector may follow from another: SCAFFOLD's control is the change of the model
    times a number, and two models of FedEM that begin alike stay alike. Before, the sum
    of everybody's models and that of the others' controls showed a client's to 100 %.
    """
    circle, vector = Circle(settings=replace(SETTINGS, scope=scope)), kinds[0]
    for name, client in circle.clients.items():
        model = circle.vectors[name]
        update = {"model": model, "control": -2 * model}
        if kinds == (0, 1):
            update = {"model": np.stack([model, model])}
        client.hold(0, update)

    def of_vector(stage):
        original = stage.settings_for
        named = {"kind": vector} if isinstance(vector, str) else {"number": vector}
        object.__setattr__(
            stage, "settings_for", lambda name: {**original(name), **named}
        )
        return Circle.ask(circle, stage)

    def add(names, weights):
        key = (vector, None) if isinstance(vector, str) else ("model", vector)
        server = SecureSumServer(of_vector, names, SIZE, SETTINGS, vector=key)
        with circle.hearing():
            return server.run(np.asarray(weights))[0]

    add(NAMES, EVERYBODY)
    vector = kinds[1]
    with pytest.raises(TooFewClients):
        add(NAMES[:4], [[0.25] * 4])
    assert circle.lines == [
        f"client {name}: client e would be 100% of a combination of these and earlier"
        " sums, which would not hide its vector (at most 90%)"
        for name in NAMES[:4]
    ]


@pytest.mark.parametrize("kinds", [("model", "control"), (0, 1)])
def test_clients_that_add_different_vectors_give_no_sum(kinds):
    """Before, a sum of one client's model and the others' controls, and one of its control
    and their models, together showed its model.
    """
    circle = Circle()
    for name, client in circle.clients.items():
        model = circle.vectors[name]
        update = {"model": model, "control": -2 * model}
        if kinds == (0, 1):
            update = {"model": np.stack([model, -2 * model])}
        client.hold(0, update)
    for own, others in (kinds, kinds[::-1]):

        def mixed(stage, own=own, others=others):
            original = stage.settings_for

            def settings_for(name):
                vector = own if name == NAMES[0] else others
                key = "kind" if isinstance(vector, str) else "number"
                return {**original(name), key: vector}

            object.__setattr__(stage, "settings_for", settings_for)
            return Circle.ask(circle, stage)

        key = (others, None) if isinstance(others, str) else ("model", others)
        one = SecureSumServer(mixed, NAMES, SIZE, SETTINGS, vector=key)
        circle.lines.clear()
        with circle.hearing(), pytest.raises(TooFewClients):
            one.run(np.asarray(EVERYBODY))
        assert_not_confirmed(circle)


THREE_SUMS = (
    (("v", "a", "b"), [1, 1, 1]),
    (("a", "c", "d"), [1, 1, 1]),
    (("b", "c", "d"), [1, -1, -1]),
)
"""The first less the second and the third is v's vector alone, and nobody has a part in
all of them.
"""


@pytest.mark.parametrize("scope", ["run", "round"])
def test_sums_that_nobody_sees_all_of_show_nobody(scope, tmp_path):
    """Clients know the sums that they have a part in. Before, a coordinator asked other
    ones each time, and a combination that none of them could look at was one client.
    """
    names = tuple("abcdv")
    circle = Circle(names, SecureSums(scope=scope))
    for name in names:
        circle.clients[name] = SecureSumClient(name, circle.settings, tmp_path / name)
    found = []
    for round, (among, weights) in enumerate(THREE_SUMS):
        circle.names = tuple(sorted(among))
        order = [among.index(name) for name in circle.names]
        for name in names:
            circle.clients[name] = SecureSumClient(
                name, circle.settings, tmp_path / name
            )
        circle.begin(round if scope == "run" else 0)
        with suppress(TooFewClients):
            found.append(circle.run([np.array(weights)[order] / 3], minimum=3)[0])
    assert len(found) == 1
    assert len(circle.lines) >= 2
    assert all("has a part in sums of other clients" in line for line in circle.lines)


def test_clients_that_are_lost_for_good_leave_sums_that_go_on(tmp_path):
    """Whoever is in the last sum has a part in all of them, and can look at all."""
    names = tuple("abcdefg")
    circle = Circle(names)
    circle.run([np.full(7, 1 / 7)])
    for round, left in enumerate(("abcdefg", "abcde", "abcde"), 1):
        circle.names = tuple(left)
        circle.begin(round)
        circle.run([np.full(len(left), 1 / len(left))])
    assert circle.lines == []
    # Half of them would be another half's difference.
    for left in ("abc", "abcdefg", "abcdf"):
        circle.names = tuple(left)
        circle.begin(9)
        with pytest.raises(TooFewClients):
            circle.run([np.full(len(left), 1 / len(left))])


def test_a_client_that_was_lost_from_a_sum_is_not_asked_for_the_next():
    """The others would refuse the sum."""
    circle, history = Circle(), SumHistory("run")
    earlier = ReleasedSums().with_sums(tuple("abcd"), np.full((1, 4), 0.25))
    history.record(0, ["model", None], earlier, "abcd")
    server = SecureSumServer(circle.ask, NAMES, SIZE, SETTINGS, history=history)
    sums, _ = server.run(np.array(EVERYBODY))
    assert set(circle.requests[KEYS]) == set(server.remaining) == set("abcd")
    expected = circle.plain(EVERYBODY, without="e")
    np.testing.assert_allclose(sums, expected, atol=10 * FixedPoint(64.0).step)


@pytest.mark.parametrize("scope", ["run", "round"])
def test_a_sum_without_a_client_that_was_lost_goes_on_without_it(scope):
    circle = Circle(settings=SecureSums(scope=scope))
    circle.lost["e"] = losing(VECTORS)
    circle.run(np.full((1, 5), 0.2))
    # The others gave their vectors to a sum with e, and opened one without it.
    later = 1 if scope == "run" else 0
    circle.begin(later)
    circle.lost["e"] = STAGES
    circle.run([[0.25, 0.25, 0.25, 0.25, 0]])
    assert circle.lines == []


@pytest.mark.parametrize("scope", ["run", "round"])
def test_the_sum_that_was_opened_counts_and_not_the_one_that_was_begun(
    scope, unchecked, monkeypatch
):
    monkeypatch.setattr(SecureSumServer, "_unsafe_combination", lambda *_: "")
    circle = Circle(settings=SecureSums(scope=scope))
    circle.lost["e"] = losing(VECTORS)
    circle.run(np.full((1, 5), 0.2))
    circle.begin(1 if scope == "run" else 0)
    circle.lost["e"] = STAGES
    # Its difference from the first one is d alone.
    with pytest.raises(TooFewClients):
        circle.run([[0.2, 0.2, 0.2, 0.35, 0]])
    assert len(circle.lines) == 4
    assert all("client d would be 100% of a combi" in it for it in circle.lines)


@pytest.mark.parametrize("seed", range(6))
def test_clients_keep_the_sums_that_the_server_has(seed):
    """Whoever is lost at whatever stage of whatever sums."""
    rng = np.random.default_rng(seed)
    names = tuple("abcdefghi")
    settings = SecureSums(threshold=2 / 3)
    circle = Circle(names, settings, size=2)
    has, are_all_done, lost, steady = ReleasedSums(), True, {}, set(names)
    for round in range(3):
        circle.begin(round)
        if round < 2:
            lost[str(rng.choice(sorted(steady)))] = losing(str(rng.choice(STAGES)))
        steady -= set(lost)
        circle.lost = lost
        circle.requests.pop(UNMASK, None)
        try:
            circle.run(rng.uniform(0.5, 1, size=(1, len(names))))
        except TooFewClients:
            are_all_done = False
        lost = dict.fromkeys(lost, STAGES)
        if UNMASK in circle.requests:
            weights = next(iter(circle.requests[VECTORS].values())).arrays["weights"]
            arrived = [name in circle.seen[VECTORS] for name in names]
            has = has.with_sums(names, np.where(arrived, weights, 0.0))
    assert len(has.weights) > 0
    for name in steady:
        kept = circle.clients[name]._history.released(2)
        assert len(kept.with_sums(names, has.weights).weights) == len(kept.weights)
        assert not are_all_done or kept.shows_the_same_as(has)


class InventsClients(SecureSumServer):
    """Names clients in a sum that do not exist, beside those that have keys."""

    def _collect_masked_vectors(self, shares, weights):
        self._names = (*self._names, *INVENTED)
        return super()._collect_masked_vectors(shares, weights)

    def _survivors(self, answers):
        names = (*NAMES, *INVENTED)
        return np.array([name in answers or name in INVENTED for name in names])


INVENTED = ("x", "y", "z")


@pytest.mark.parametrize(
    ("sums", "least", "said"),
    [
        ([[0.3, 0.3, 0.3, 0, 0, 0.03, 0.03, 0.04]], 5, "a sum is over 3 clients"),
        (
            [[0.125] * 8, [0.1, 0.1, 0.15, 0.1, 0.1, 0.15, 0.15, 0.15]],
            3,
            "it would be 100% of a combination of these and earlier sums over the",
        ),
        (
            [[1e-8, 1e-9, 1e-9, 1e-9, 1e-9, *[(1 - 1.4e-8) / 3] * 3]],
            3,
            "the parts of the other clients whose keys it has are so small",
        ),
    ],
    ids=["one sum", "two sums", "small weights"],
)
def test_clients_that_are_invented_do_not_hide_the_others(
    sums, least, said, unchecked, monkeypatch
):
    """As beyond 51 clients, where some of a sum are not among those with keys, and far
    away on the ring.
    """
    monkeypatch.setattr(sum_client, "neighbours_of", lambda client, names, most: NAMES)
    monkeypatch.setattr(sum_server, "normalized", lambda weights, left: weights)
    circle = Circle()
    for name in NAMES:
        circle.clients[name] = SecureSumClient(name, SETTINGS, None, least)
    for round, weights in enumerate(sums):
        circle.begin(round)
        one = InventsClients(circle.ask, NAMES, SIZE, SETTINGS)
        with suppress(TooFewClients):
            one.run(np.array([weights]))
    assert said in " ".join(circle.lines)
