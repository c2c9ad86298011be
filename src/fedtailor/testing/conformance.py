"""Checks of properties that every method must have; `check_algorithm` runs them all.

Each check trains the method for two or three rounds on five small clients, and raises
`AssertionError` if the property does not hold. A method that need not have a property
is exempted from its check by name, with a reason.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor._printable import say_status
from fedtailor.accounting import Wireless
from fedtailor.executors import DeviceExecutor
from fedtailor.federation import Federation
from fedtailor.models import Classification, Model, cross_entropy
from fedtailor.protocol import SGD, Algorithm, Exchange, drive
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS
from fedtailor.testing.problems import (
    EXACT,
    classification,
    float64,
    mlp_model,
    predictors,
    softmax_model,
    train,
)
from fedtailor.training import LateClients, Participation, Training
from fedtailor.training.personal import personal_models

GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
SAMPLED = Participation(count=3)
MakeModel = Callable[[], Model]
MODELS: dict[str, MakeModel] = {
    "logistic regression": softmax_model,
    "a network with a hidden layer": mlp_model,
}
"""What the properties are checked on. A linear model is all head, so that it does not tell
whether a method treats body and head as it should.
"""
SCALED_LOSS = Classification(lambda outputs, y: 4.0 * cross_entropy(outputs, y))


def check_algorithm(
    algorithm: Algorithm,
    *,
    for_one_client: Algorithm | None = None,
    exempt: Mapping[str, str] | None = None,
    progress: bool = True,
) -> list[str]:
    """Runs every check on a method with its settings, for each of `MODELS`.

    Args:
        algorithm: the method. Small batches and learning rates around 0.1 suit the
            problems.
        for_one_client: the same method with settings for a population of one client, if
            the settings of `algorithm` need more clients.
        exempt: name of a check -> the reason why the method need not pass it.
        progress: print a line on the standard error before each check, as each takes
            seconds to compile.

    Returns:
        The names of the passed checks.

    Raises:
        AssertionError: properties do not hold; the message lists all of them, one a line.
        ValueError: `exempt` has a name that is not a check.
    """
    exempt = exempt or {}
    unknown = sorted(set(exempt) - set(CHECKS))
    if unknown:
        raise ValueError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(CHECKS)}"
        )
    names = [name for name in CHECKS if name not in exempt]
    runs = [(kind, name) for kind in MODELS for name in names]
    failures = []
    for number, (kind, name) in enumerate(runs, 1):
        if progress:
            line = f"{number} of {len(runs)}: {name}, on {kind}"
            say_status(line)
        tested = algorithm
        if name == "one client" and for_one_client is not None:
            tested = for_one_client
        try:
            CHECKS[name](tested, MODELS[kind])
        except AssertionError as error:
            failures.append(f"'{name}' on {kind}: {_explain(name, error)}")
        # A method may raise anything, and the other checks still tell something.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            failures.append(f"'{name}' on {kind}: it could not be run: {reason}")
    if failures:
        count = f"{len(failures)} of {len(runs)} checks"
        raise AssertionError(
            "\n  ".join([f"{algorithm.about.name} fails {count}:", *failures])
        )
    return names


def _explain(name: str, error: AssertionError) -> str:
    """What a failed check means: the property, and by how much the results differ."""
    property_text = " ".join((CHECKS[name].__doc__ or "").partition("\n\n")[0].split())
    # NumPy's message is a table of both arrays, with the largest difference in a line.
    found = [
        line.strip()
        for line in str(error).splitlines()
        if line.startswith(("Max absolute difference", "Mismatched elements"))
    ]
    if not found:
        found = [line.strip() for line in str(error).splitlines() if line.strip()][:1]
    return f"expected: {property_text} Found: {'; '.join(found) or 'something else'}"


def federation(order: NDArray[np.int64] | None = None, **changes: Any) -> Federation:
    """Five clients of different sizes in two groups, one of them unseen.

    Args:
        order: permutation of the clients. By default they are not permuted.
        **changes: other fields of the federation to replace.
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


def participation_of(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> Participation:
    """Three of four clients, or all clients if the method needs all of them."""
    try:
        train(algorithm, federation(), make_model(), 0, participation=SAMPLED)
    except ValueError:
        return Participation()
    return SAMPLED


def states_of(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The states of the server and the clients, as a list of arrays."""
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((training.server, states))]


def assert_finite(models: Sequence[Any]) -> None:
    """Asserts that no personal model has NaN or infinity."""
    assert all(np.isfinite(leaf).all() for leaf in models), (
        "a personal model is not finite"
    )


def assert_same(actual: Any, expected: Any, **tolerance: Any) -> None:
    """Asserts that lists of arrays are equal, by default to double precision."""
    for actual_leaf, expected_leaf in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_leaf, expected_leaf, **(tolerance or EXACT))


def assert_equal(actual: Any, expected: Any) -> None:
    """Asserts that lists of arrays are bitwise equal."""
    for actual_leaf, expected_leaf in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(actual_leaf, expected_leaf)


# the checks
# --------------------------------------------------------------------------------------


def check_order(algorithm: Algorithm, make_model: MakeModel = softmax_model) -> None:
    """Results do not depend on the order of clients, the devices or the chunk size."""
    with float64():
        participation = participation_of(algorithm, make_model)

        def run_training(
            clients: Federation, **settings: Any
        ) -> Training[DeviceExecutor]:
            return train(
                algorithm,
                clients,
                make_model(),
                3,
                participation=participation,
                **settings,
            )

        models = predictors(run_training(federation()))
        assert_finite(models)
        # One run has all three changes, since each of them needs a new program: another
        # order, one device instead of all, and two clients at a time instead of one.
        order = np.array([3, 0, 4, 2, 1])
        permuted_models = predictors(
            run_training(federation(order), devices=1, chunk=2)
        )
        assert_same(permuted_models, [leaf[order] for leaf in models])


def check_empty_round(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """A round in which nobody reports changes nothing."""
    if algorithm.participants == "all":
        return
    with float64():
        training = train(algorithm, federation(), make_model(), 2)
        before = _models(training)
        clients, no_reporters = training.executor.seen, np.zeros(4, bool)
        cohort = training._cohort(
            clients, np.arange(4), seen=True, reporting=no_reporters
        )
        downlink = algorithm.broadcast(training.server, cohort)
        answers = training.executor.exchange(
            Exchange("client", algorithm, cohort, downlink)
        )
        training.server = algorithm.server(training.server, downlink, answers, cohort)
        assert_equal(_models(training), before)


def check_identical_clients(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """Clients with equal data end with one model."""
    with float64():
        # 8 samples are one batch, so all clients have the same batch.
        same = classification(
            sizes=[8] * 5, same=True, groups=np.zeros(5, int), unseen=UNSEEN
        )
        for leaf in predictors(train(algorithm, same, make_model(), 2)):
            seen = leaf[~UNSEEN]
            np.testing.assert_allclose(
                seen, np.broadcast_to(seen[:1], seen.shape), **EXACT
            )


def check_one_client(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """A population of one trains."""
    with float64():
        clients = replace(
            classification(clients=1, sizes=[20]), groups=np.zeros(1, int)
        )
        assert_finite(predictors(train(algorithm, clients, make_model(), 2)))


def check_enrolment(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """An unseen client with the data of a seen client gets the same model.

    The property holds for methods whose personal model is a function of the server's
    models and the client's data.
    """
    with float64():
        # The unseen client 3 has the data of client 1, which are one batch.
        data_source = np.array([0, 1, 2, 1, 4])
        clients = classification(
            sizes=[8] * 5, groups=GROUPS[data_source], unseen=UNSEEN
        )
        training = train(
            algorithm,
            replace(clients, train=clients.train.take(data_source)),
            make_model(),
            2,
        )
        for leaf in predictors(training):
            np.testing.assert_allclose(leaf[3], leaf[1], **EXACT)


def check_no_trace(algorithm: Algorithm, make_model: MakeModel = softmax_model) -> None:
    """Serving unseen clients twice gives the same models and changes no state."""
    with float64():
        training = train(algorithm, federation(), make_model(), 2)
        before = states_of(training)
        first, second = predictors(training), predictors(training)
        assert_finite(first)
        assert_equal(first, second)
        assert_equal(states_of(training), before)


def check_never_sampled(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """A seen client that was never sampled gets a newcomer's model."""
    with float64():
        try:
            training = train(
                algorithm, federation(), make_model(), 0, participation=SAMPLED
            )
        except ValueError:
            return  # The method needs full participation.
        reporting = np.array([False, True, True, True])
        for _ in range(2):
            training.advance(reporting)
        executor = training.executor
        never_sampled = np.array([0])
        models = drive(
            personal_models(training, executor.seen, never_sampled), executor
        )
        served = jax.tree.leaves(models[training.population.names[0]])
        if training.phase.participated[0] or not training.phase.keeps_states:
            assert_finite(served)
            return
        served_anew = drive(
            training.serve_newcomers(executor.seen, never_sampled), executor
        )
        newcomer = jax.tree.leaves(training.predictors(served_anew))
        assert_equal(served, [leaf[0] for leaf in newcomer])


def check_test_rows(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """Garbage in test rows changes neither the models nor the states."""
    with float64():
        original = federation()
        x, y = original.x.copy(), original.y.copy()
        rows = original.test.rows
        assert len(rows) > 0
        x[rows] = 1e3 * np.flip(x[rows], axis=-1) + 7.0
        y[rows] = (y[rows] + 1) % 3
        participation = participation_of(algorithm, make_model)
        trainings = [
            train(algorithm, clients, make_model(), 3, participation=participation)
            for clients in (original, replace(original, x=x, y=y))
        ]
        assert_equal(*(predictors(training) for training in trainings))
        assert_equal(*(states_of(training) for training in trainings))


def check_loss_scale(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> None:
    """The loss c F with learning rate eta / c trains the same models as F with eta.

    The property holds for methods without other terms in their objective.
    """
    factor = 4.0
    with float64():
        model = make_model()
        scaled_rates = {
            field.name: replace(value, lr=value.lr / factor)
            for field in fields(algorithm)  # pyright: ignore[reportArgumentType] (methods are dataclasses)
            if isinstance(value := getattr(algorithm, field.name), SGD)
        }
        scaled_algorithm = replace(algorithm, **scaled_rates)  # pyright: ignore[reportArgumentType]
        scaled = train(
            scaled_algorithm, federation(), replace(model, loss=SCALED_LOSS), 2
        )
        assert_same(
            predictors(scaled), predictors(train(algorithm, federation(), model, 2))
        )


def check_resume(algorithm: Algorithm, make_model: MakeModel = softmax_model) -> None:
    """A resumed run writes the same metrics and ledger as an uninterrupted run."""
    with float64(), tempfile.TemporaryDirectory() as folder:

        def run_files(
            directory: Path, rounds: int, resume: bool = False
        ) -> list[bytes]:
            options: dict[str, Any] = {
                "directory": directory,
                "checkpoint_every": 2,
                "resume": resume,
            }
            run(algorithm, federation(), make_model(), rounds, **options)
            return [(directory / file).read_bytes() for file in (METRICS, LEDGER)]

        uninterrupted = run_files(Path(folder) / "whole", 4)
        run_files(Path(folder) / "parts", 2)
        assert run_files(Path(folder) / "parts", 4, resume=True) == uninterrupted, (
            "a resumed run measures something else"
        )


def check_late(algorithm: Algorithm, make_model: MakeModel = softmax_model) -> None:
    """With late clients no answer is counted twice, and a round in which nobody is late is
    a round that waits. Methods that refuse late clients need not have the property.
    """
    with float64():

        def run_training(rounds: int, **options: Any) -> Training[DeviceExecutor]:
            return train(algorithm, federation(), make_model(), rounds, **options)

        try:
            together = LateClients(buffer=3)
            late = run_training(3, participation=SAMPLED, late=together)
        except ValueError:
            return
        waits = run_training(3, participation=SAMPLED)
        assert_equal(predictors(late), predictors(waits))

        clock = Wireless(rho=1, t_min=1, mean_delay=1)
        training = run_training(
            0, late=LateClients(buffer=3, clock=clock, slowness="samples")
        )
        for _ in range(4):
            states = jax.tree.leaves(training.executor.client_states)
            before = [np.array(leaf) for leaf in states]
            training.advance()
            after = jax.tree.leaves(training.executor.client_states)
            changed = np.zeros(len(training.population), bool)
            for old, new in zip(before, after, strict=True):
                rows = (old != np.asarray(new)).reshape(len(changed), -1)
                changed |= rows.any(axis=1)
            # Whose answer is not counted does not change.
            assert changed.sum() <= 3, "a client's state changes without its answer"
        counted = training.ledger.totals().models_up
        assert counted in (0, 12), f"4 steps of 3 answers counted {counted}"


CHECKS: dict[str, Callable[..., None]] = {
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
    "late clients": check_late,
}
"""All checks by name: functions of a method and, optionally, of what makes the model."""


def _models(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The server's models and the clients' states, as a list of arrays.

    Unlike `states_of`, they exclude counters that a server may advance in an empty
    round.
    """
    model = getattr(training.server, "model", None)
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((model, states))]
