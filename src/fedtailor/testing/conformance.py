"""Properties that every method must have: `check_algorithm(MyMethod())` runs them all.

Each check trains the method for two or three rounds on five small clients, and raises
`AssertionError` where the property does not hold. A method that rightly lacks one is
exempted by name, with the reason.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.executors import DeviceExecutor
from fedtailor.federation import Federation
from fedtailor.models import Classification, cross_entropy
from fedtailor.protocol import SGD, Algorithm, Exchange, drive
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS
from fedtailor.testing.problems import (
    EXACT,
    classification,
    float64,
    predictors,
    softmax_model,
    train,
)
from fedtailor.training import Participation, Training
from fedtailor.training.personal import personal_models

GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
SAMPLED = Participation(count=3)
FOURFOLD = Classification(lambda outputs, y: 4.0 * cross_entropy(outputs, y))


def check_algorithm(
    algorithm: Algorithm,
    *,
    for_one_client: Algorithm | None = None,
    exempt: Mapping[str, str] | None = None,
) -> list[str]:
    """Run every check on a method with its settings.

    Args:
        algorithm: small batches and rates around 0.1 suit the problems.
        for_one_client: the same method for a population of one, where its settings ask
            for more clients.
        exempt: check -> why the method need not pass it.

    Returns:
        The names of the checks that it passed.

    Raises:
        AssertionError: a property does not hold; the message names the check.
        ValueError: an exemption that is no check.
    """
    exempt = exempt or {}
    unknown = sorted(set(exempt) - set(CHECKS))
    if unknown:
        raise ValueError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(CHECKS)}"
        )
    checks = {name: check for name, check in CHECKS.items() if name not in exempt}
    for name, check in checks.items():
        single = for_one_client if name == "one client" else None
        try:
            check(single or algorithm)
        except AssertionError as error:
            raise AssertionError(
                f"{algorithm.about.name} fails '{name}': {error}"
            ) from error
    return list(checks)


def federation(order: NDArray[np.int64] | None = None, **changes: Any) -> Federation:
    """Five ragged clients in two groups, one of them unseen, perhaps listed in another
    order.
    """
    clients = classification(groups=GROUPS, unseen=UNSEEN)
    if order is not None:
        assert clients.groups is not None
        splits = {
            split: getattr(clients, split).take(order)
            for split in ("train", "val", "test")
        }
        clients = replace(
            clients,
            **splits,
            names=tuple(clients.names[i] for i in order),
            groups=clients.groups[order],
            unseen=clients.unseen[order],
        )
    return replace(clients, **changes)


def participation_of(algorithm: Algorithm) -> Participation:
    """Three of four clients, or all where the method is only defined for all."""
    try:
        train(algorithm, federation(), softmax_model(), 0, participation=SAMPLED)
    except ValueError:
        return Participation()
    return SAMPLED


def states_of(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The server's and the clients' states, as a list of arrays."""
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((training.server, states))]


def assert_finite(models: Sequence[Any]) -> None:
    """No personal model holds NaN or infinity."""
    assert all(np.isfinite(leaf).all() for leaf in models), (
        "a personal model is not finite"
    )


def assert_same(ours: Any, expected: Any, **tolerance: Any) -> None:
    """Equal lists of arrays, to double precision."""
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, **(tolerance or EXACT))


def assert_equal(ours: Any, expected: Any) -> None:
    """Equal lists of arrays, to the bit."""
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# the checks
# --------------------------------------------------------------------------------------


def check_order(algorithm: Algorithm) -> None:
    """Results depend neither on the order of listing nor on devices nor on chunks."""
    with float64():
        participation = participation_of(algorithm)

        def trained(clients: Federation, **settings: Any) -> Training[DeviceExecutor]:
            return train(
                algorithm,
                clients,
                softmax_model(),
                3,
                participation=participation,
                **settings,
            )

        models = predictors(trained(federation()))
        assert_finite(models)
        # Three changes in one run, for each takes a program of its own: listed in another
        # order, on one device instead of all, two clients at a time instead of one.
        order = np.array([3, 0, 4, 2, 1])
        other = predictors(trained(federation(order), devices=1, chunk=2))
        assert_same(other, [leaf[order] for leaf in models])


def check_empty_round(algorithm: Algorithm) -> None:
    """A round in which nobody reports changes nothing."""
    if algorithm.participants == "all":
        return
    with float64():
        training = train(algorithm, federation(), softmax_model(), 2)
        before = _models(training)
        clients, nobody = training.executor.seen, np.zeros(4, bool)
        cohort = training._cohort(clients, np.arange(4), seen=True, reporting=nobody)
        downlink = algorithm.broadcast(training.server, cohort)
        answers = training.executor.exchange(
            Exchange("client", algorithm, cohort, downlink)
        )
        training.server = algorithm.server(training.server, downlink, answers, cohort)
        assert_equal(_models(training), before)


def check_identical_clients(algorithm: Algorithm) -> None:
    """Clients with equal data end with one model."""
    with float64():
        # 8 samples are one batch, so that all clients draw the same one
        same = classification(
            sizes=[8] * 5, same=True, groups=np.zeros(5, int), unseen=UNSEEN
        )
        for leaf in predictors(train(algorithm, same, softmax_model(), 2)):
            seen = leaf[~UNSEEN]
            np.testing.assert_allclose(
                seen, np.broadcast_to(seen[:1], seen.shape), **EXACT
            )


def check_one_client(algorithm: Algorithm) -> None:
    """A population of one trains."""
    with float64():
        single = replace(classification(clients=1, sizes=[20]), groups=np.zeros(1, int))
        models = predictors(train(algorithm, single, softmax_model(), 2))
        assert all(np.isfinite(leaf).all() for leaf in models), (
            "the model is not finite"
        )


def check_enrolment(algorithm: Algorithm) -> None:
    """An unseen client with a seen client's data gets its model: for methods whose
    personal model is a function of the server's models and the data."""
    with float64():
        # The unseen client, number 3, has the data of client 1, which are one batch.
        twins = np.array([0, 1, 2, 1, 4])
        base = classification(sizes=[8] * 5, groups=GROUPS[twins], unseen=UNSEEN)
        training = train(
            algorithm, replace(base, train=base.train.take(twins)), softmax_model(), 2
        )
        for leaf in predictors(training):
            np.testing.assert_allclose(leaf[3], leaf[1], **EXACT)


def check_no_trace(algorithm: Algorithm) -> None:
    """Unseen clients are served, twice alike, and leave no trace."""
    with float64():
        training = train(algorithm, federation(), softmax_model(), 2)
        before = states_of(training)
        first, second = predictors(training), predictors(training)
        assert_finite(first)
        assert_equal(first, second)
        assert_equal(states_of(training), before)


def check_never_sampled(algorithm: Algorithm) -> None:
    """A client of the population that no round sampled is served as a newcomer with its
    data is.
    """
    with float64():
        try:
            training = train(
                algorithm, federation(), softmax_model(), 0, participation=SAMPLED
            )
        except ValueError:
            return  # defined for full participation only
        reporting = np.array([False, True, True, True])
        for _ in range(2):
            training.advance(reporting)
        executor = training.executor
        never_sampled = np.array([0])
        models = drive(
            personal_models(training, executor.seen, never_sampled), executor
        )
        personal = jax.tree.leaves(models[training.population.names[0]])
        if training.phase.participated[0] or not training.phase.keeps_states:
            assert_finite(personal)
            return
        service = drive(
            training.service(executor.seen, never_sampled, seen=False), executor
        )
        newcomer = jax.tree.leaves(training.predictors(service))
        assert_equal(personal, [leaf[0] for leaf in newcomer])


def check_test_rows(algorithm: Algorithm) -> None:
    """Garbage in test rows changes no model, no weight and no choice."""
    with float64():
        clean = federation()
        x, y = clean.x.copy(), clean.y.copy()
        rows = clean.test.rows
        assert len(rows) > 0
        x[rows] = 1e3 * np.flip(x[rows], axis=-1) + 7.0
        y[rows] = (y[rows] + 1) % 3
        participation = participation_of(algorithm)
        trainings = [
            train(algorithm, clients, softmax_model(), 3, participation=participation)
            for clients in (clean, replace(clean, x=x, y=y))
        ]
        assert_equal(*(predictors(training) for training in trainings))
        assert_equal(*(states_of(training) for training in trainings))


def check_loss_scale(algorithm: Algorithm) -> None:
    """c F with rate eta / c trains the same models (for methods without a term of
    another scale).
    """
    c = 4.0
    with float64():
        model = softmax_model()
        rates = {
            field.name: replace(value, lr=value.lr / c)
            for field in fields(algorithm)  # pyright: ignore[reportArgumentType] (methods are dataclasses)
            if isinstance(value := getattr(algorithm, field.name), SGD)
        }
        slower = replace(algorithm, **rates)  # pyright: ignore[reportArgumentType]
        one = train(slower, federation(), replace(model, loss=FOURFOLD), 2)
        assert_same(
            predictors(one), predictors(train(algorithm, federation(), model, 2))
        )


def check_resume(algorithm: Algorithm) -> None:
    """A run that was stopped and resumed measures the same, to the bit."""
    with float64(), tempfile.TemporaryDirectory() as folder:

        def measured(directory: Path, rounds: int, resume: bool = False) -> list[bytes]:
            options: dict[str, Any] = {
                "directory": directory,
                "checkpoint_every": 2,
                "resume": resume,
            }
            run(algorithm, federation(), softmax_model(), rounds, **options)
            return [(directory / file).read_bytes() for file in (METRICS, LEDGER)]

        whole = measured(Path(folder) / "whole", 4)
        measured(Path(folder) / "parts", 2)
        assert measured(Path(folder) / "parts", 4, resume=True) == whole, (
            "a resumed run measures something else"
        )


CHECKS: dict[str, Callable[[Algorithm], None]] = {
    "order": check_order,
    "empty round": check_empty_round,
    "identical clients": check_identical_clients,
    "one client": check_one_client,
    "enrolment": check_enrolment,
    "no trace": check_no_trace,
    "never sampled": check_never_sampled,
    "test rows": check_test_rows,
    "loss scale": check_loss_scale,
    "resume": check_resume,
}
"""Name -> check."""


def _models(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The server's models and the clients' states: `states_of` without what a server
    may count also in an empty round.
    """
    model = getattr(training.server, "model", None)
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((model, states))]
