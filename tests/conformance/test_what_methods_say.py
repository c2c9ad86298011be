"""What the tables of methods say is what methods do: what travels, what is kept, what
the server sees, validation.
"""

import importlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.examples import TRAFFIC, example
from fedtailor.aggregation.accounting import MODEL_KINDS
from fedtailor.engine.client.pool import build_pool
from fedtailor.engine.client.trainer import DeviceTrainer
from fedtailor.models import by_client, logistic, lora, mlp
from fedtailor.protocol import Algorithm, ClientRows, Cohort, Exchange
from fedtailor.remote.wire.wire import answer_shapes
from fedtailor.testing import softmax_model, train
from fedtailor.testing.conformance import federation
from fedtailor.testing.problems import float64, mlp_model

CHANGES = {
    "fedbn": {"part": "bias"},  # the suite's model has no normalisation layers to keep
    "cgpfl-heur": {"mu": 1.0},  # with the default, four clients always have one context
}
ADAPTED = {
    # without adapters it is FedAvg
    "flexlora": lambda: lora(logistic(), rank=2, train="bias").bind(
        (4,), 3, dtype="float64"
    ),
    "fedex-lora": lambda: lora(logistic(), rank=2, local_rank=3).bind(
        (4,), 3, dtype="float64"
    ),
    "hetlora": lambda: lora(logistic(), rank=2).bind((4,), 3, dtype="float64"),
    # a linear model is all head, which is not part of it
    "fedgh": mlp_model,
    # with one width it is FedAvg
    "heterofl": lambda: by_client({federation().names[0]: mlp(3)}, default=mlp(5)).bind(
        (4,), 3, dtype="float64"
    ),
}
mixing = importlib.import_module("fedtailor.aggregation.mix")


@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_what_travels_is_kept_and_seen(name, monkeypatch):
    """One training for all facts, as each method is compiled for it."""
    algorithm, about = (
        replace(example(name), **CHANGES.get(name, {})),
        Algorithm.registry[name].about,
    )
    with float64():
        model = ADAPTED.get(name, softmax_model)()
        training = train(algorithm, federation(), model, 0)
        assert (about.client_keeps == "nothing") == (not training.phase.keeps_states)
        if about.server_sees not in ("nothing", "data"):
            vectors, numbers = seen_by_the_server(training, monkeypatch)
            assert (about.server_sees == "models") == vectors
            assert (about.server_sees == "sums, numbers") == (numbers and not vectors)
        sent, broadcast = [], type(algorithm).broadcast

        def keep(self, server, cohort):
            sent.append(broadcast(self, server, cohort))
            return sent[-1]

        monkeypatch.setattr(type(algorithm), "broadcast", keep)
        for _ in range(2):
            training.advance()
        if algorithm.server_sees == "sums":
            assert set().union(*map(differs, sent)) <= algorithm.sent_to_each
        frame = training.ledger.frame().filter(
            (pl.col("phase") == "round") & (pl.col("round") == 1)
        )
        up = int(frame.filter(pl.col("direction") == "up")["bytes_unicast"].sum())
        if about.server_sees == "nothing":
            assert up == 0
        # A machine says before it trains how many numbers it sends (a few are not a vector).
        # None has public inputs.
        most = algorithm.numbers_per_round(model) + 8
        assert name == "fedmd" or up <= 8 * most * len(training.population.names)
        if name in TRAFFIC:
            assert traffic(frame) == TRAFFIC[name]
            assert about.models_received == travelling(frame, mean_size(training))
        assert bool(about.validation) == asks_for_validation_data(training, monkeypatch)


def differs(downlink):
    """The kinds and numbers of which clients are sent different ones."""
    streams = {
        kind
        for kind, it in downlink.streams.items()
        if (it.recipients != it.recipients[0]).any()
    }
    numbers = {name for name, it in downlink.scalars.items() if np.ptp(it)}
    return streams | numbers


def test_only_methods_whose_rounds_differ_are_not_in_the_traffic_table():
    assert set(Algorithm.registry) - set(TRAFFIC) == {
        "cgpfl-heur",
        "l2gd",
    }  # contexts are chosen, coins are thrown


def traffic(frame):
    """(streams down, models a client receives, models it sends, scalars it receives,
    scalars it sends), by client.
    """
    models = frame.filter(pl.col("kind").is_in(list(MODEL_KINDS)))
    down, up = (
        models.filter(pl.col("direction") == direction) for direction in ("down", "up")
    )
    scalars = [
        frame.filter(pl.col("direction") == d)["scalars"].sum() / 4
        for d in ("down", "up")
    ]
    return (
        down["streams"].sum(),
        down["unicasts"].sum() / 4,
        up["unicasts"].sum() / 4,
        *scalars,
    )


def mean_size(training):
    """The numbers of a seen client's network, on average."""
    names = training.population.names
    return np.mean([training.model.of_client(name).own_size for name in names])


def travelling(frame, size):
    """`About.models_received` of a round's ledger; controls and the like do not count as
    models.
    """
    down = frame.filter((pl.col("direction") == "down") & (pl.col("kind") == "model"))
    received, streams = down["unicasts"].sum() / 4, down["streams"].sum()
    if not received:
        return "nothing"
    if down["bytes_unicast"].sum() < received * 4 * 8 * size:
        return "a part"
    return (
        "several" if received > 1 else "one of several" if streams > 1 else "one model"
    )


def seen_by_the_server(training, monkeypatch):
    """Whether the server's state depends on clients' vectors, given their weighted
    sums, and on clients' numbers.
    """
    algorithm, cohort = training.algorithm, training.round_cohort(np.ones(4, bool))
    vectors = numbers = False
    if algorithm.probes:
        start = training.server
        downlink = algorithm.probe_downlink(start, cohort)
        answers = training.executor.exchange(
            Exchange("probe", algorithm, cohort, downlink)
        )

        def after_probe(answers):
            return algorithm.aggregate_probe(start, answers, cohort)

        vectors, numbers = dependence(
            after_probe, answers, [cohort.sizes / cohort.sizes.sum()], monkeypatch
        )
    training.probe()
    server = training.server
    downlink = algorithm.broadcast(server, cohort)
    answers = training.executor.exchange(
        Exchange("client", algorithm, cohort, downlink)
    )
    cohort = Cohort(**{**vars(cohort), "reporting": answers.reporting})
    found = dependence(
        lambda it: algorithm.server(server, downlink, it, cohort),
        answers,
        [],
        monkeypatch,
    )
    return vectors or found[0], numbers or found[1]


def differ(one, other):
    """Whether two leaves of a server's state differ, numbers by more than rounding."""
    if one.shape != other.shape or one.dtype.kind in "US":
        return not np.array_equal(one, other)
    return not np.allclose(one, other, 1e-9, 1e-9, equal_nan=True)


def dependence(serve, answers, weights, monkeypatch):
    """Which of the answers change what `serve` makes of them, where sums by the weights
    that it mixes with stay.
    """
    mix, used = mixing._mix, list(weights)

    def recorded(theta, x, weights, **rest):
        used.extend(np.asarray(weights)[:, row] if len(x) == rows else ())
        return mix(theta, x, weights, **rest)

    def changed(ours):
        pairs = zip(
            jax.tree.leaves(serve(ours)), jax.tree.leaves(expected), strict=True
        )
        return any(differ(np.asarray(a), np.asarray(b)) for a, b in pairs)

    def perturbed(changes):
        moved = {}
        for kind, sent in answers.update.items():
            values = np.array(sent.values)
            values[sent.row] += changes(sent)
            moved[kind] = ClientRows(jnp.asarray(values), sent.row)
        return type(answers)(answers.reporting, moved)

    rows, row = next((len(sent.values), sent.row) for sent in answers.update.values())
    monkeypatch.setattr(mixing, "_mix", recorded)
    expected = jax.tree.map(np.asarray, serve(answers))
    monkeypatch.setattr(mixing, "_mix", mix)
    rng, w = np.random.default_rng(0), np.array(used).reshape(-1, 4)
    silent = np.eye(4) - np.linalg.pinv(w) @ w  # onto changes that no sum shows
    assert len(w) == 0 or np.abs(silent).max() > 0.1

    def of_vectors(sent):
        noise = 30 * rng.normal(
            size=sent.shape
        )  # large enough for what is chosen by distances
        return (
            np.tensordot(silent, noise, 1).astype(sent.dtype)
            if sent.values.ndim > 1
            else 0
        )

    def of_numbers(sent):
        return np.array([1, 0, 2, 0]).astype(sent.dtype) if sent.values.ndim == 1 else 0

    return changed(perturbed(of_vectors)), changed(perturbed(of_numbers))


def asks_for_validation_data(training, monkeypatch):
    """Whether a client's part of a round, or its personal model, reads the validation
    split (in tracing them).
    """
    asked, open_split = set(), DeviceTrainer._require_readable

    def recorded(local, split):
        asked.add(split)
        open_split(local, split)

    monkeypatch.setattr(DeviceTrainer, "_require_readable", recorded)
    training.probe()
    algorithm, model = training.algorithm, training.model
    pool, _ = build_pool([training.executor.federation], model.dtype)
    cohort = training.round_cohort(np.ones(4, bool))
    state = jax.tree.map(
        lambda rows: jnp.zeros(rows.shape[1:], rows.dtype),
        training.executor.client_states,
    )
    for task, downlink in (
        ("client", algorithm.broadcast(training.server, cohort)),
        ("personal", algorithm.serve(training.server, cohort)),
    ):
        exchange = Exchange(task, algorithm, cohort, downlink)
        answer_shapes(
            exchange, algorithm, (state, ()), model, jax.tree.map(jnp.asarray, pool)
        )
    monkeypatch.setattr(DeviceTrainer, "_require_readable", open_split)
    return "val" in asked
