"""Checks of properties that every method must have; `check_algorithm` runs them all.

Each check trains the method for two or three rounds on five small clients, and raises
`AssertionError` if the property does not hold. A method that need not have a property
is exempted from its check by name, with a reason.
"""

import inspect
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.printable import say_status
from fedtailor.aggregation.accounting import Wireless
from fedtailor.aggregation.secure_sums import SecureSums, hidden_kinds
from fedtailor.data.federation import Federation
from fedtailor.engine.executors import DeviceExecutor
from fedtailor.engine.runs import run
from fedtailor.engine.storage.run_files import LEDGER, METRICS
from fedtailor.engine.training import AsynchronousServer, Participation, Training
from fedtailor.engine.training.personal import personal_models
from fedtailor.models import Classification, Model, cross_entropy
from fedtailor.protocol import (
    SGD,
    Algorithm,
    Answers,
    ClientRows,
    Cohort,
    Downlink,
    Exchange,
    HiddenRows,
    RefusedStatistics,
    Sums,
    drive,
)
from fedtailor.testing.problems import (
    EXACT,
    classification,
    float64,
    mlp_model,
    normalized_model,
    predictors,
    softmax_model,
    train,
)

GROUPS = np.array([0, 1, 0, 1, 1])
UNSEEN = np.array([False, False, False, True, False])
SAMPLED = Participation(count=3)
MakeModel = Callable[[], Model]
LINEAR = "logistic regression"
MODELS: dict[str, MakeModel] = {
    LINEAR: softmax_model,
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
    only: Sequence[str] | None = None,
    models: Mapping[str, MakeModel] | None = None,
    progress: bool = True,
) -> list[str]:
    """Runs every check on a method with its settings, for each of `models`.

    Args:
        algorithm: the method. Small batches and learning rates around 0.1 suit the
            problems.
        for_one_client: the same method with settings for a population of one client, if
            the settings of `algorithm` need more clients.
        exempt: name of a check -> the reason why the method need not pass it.
        only: the names of the checks to run; None = all.
        models: name -> what makes the model; None = `MODELS`, a logistic regression and
            a network. The first of them has no body, so that a method which needs one
            is checked on models of its own.
        progress: print a line on the standard error before each check, as each takes
            seconds to compile.

    Returns:
        The names of the passed checks, without those of what the method refuses.

    Raises:
        AssertionError: properties do not hold; the message lists all of them, one a line.
        ValueError: `exempt` or `only` has a name that is not a check.

    Example:
        >>> from fedtailor.testing import check_algorithm
        >>> check_algorithm(ft.FedAvg(), only=["no trace"], progress=False)
        ['no trace']
    """
    exempt, models = exempt or {}, MODELS if models is None else models
    unknown = sorted({*exempt, *(only or ())} - set(CHECKS))
    if unknown:
        raise ValueError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(CHECKS)}"
        )
    names = [
        name for name in CHECKS if name not in exempt and (only is None or name in only)
    ]
    last = list(models)[-1]
    runs = [
        (kind, name)
        for kind in models
        for name in names
        if kind == last or name not in OWN_MODEL
    ]
    failures, refused = [], set()
    for number, (kind, name) in enumerate(runs, 1):
        if progress:
            line = f"{number} of {len(runs)}: {name}, on {kind}"
            say_status(line)
        tested = algorithm
        if name == "one client" and for_one_client is not None:
            tested = for_one_client
        try:
            refusal = CHECKS[name](tested, models[kind])
            if refusal is not None:
                refused.add(name)
                say_status(f"{name}: does not apply, as the method refuses: {refusal}")
        except AssertionError as error:
            failures.append(f"'{name}' on {kind}: {_explain(name, error)}")
        # A method may raise anything, and the other checks still tell something.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}{_place(algorithm, error)}"
            if kind == LINEAR and "is all of this model" in reason:
                reason += f"; leave it out with models={{...}}, as {kind} is all head"
            failures.append(f"'{name}' on {kind}: it could not be run: {reason}")
    if failures:
        count = f"{len(failures)} of {len(runs)} checks"
        raise AssertionError(
            "\n  ".join([f"{algorithm.about.name} fails {count}:", *failures])
        )
    return [name for name in names if name not in refused]


def _place(algorithm: Algorithm, error: Exception) -> str:
    """The last line of the method's own file that an error came through."""
    try:
        file = inspect.getfile(type(algorithm))
    except (OSError, TypeError):  # a class that was typed into a terminal
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f" ({Path(file).name}, line {frame.lineno}, in {frame.name})"
    return ""


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
    is_refused = isinstance(begun(algorithm, make_model, participation=SAMPLED), str)
    return Participation() if is_refused else SAMPLED


def begun(
    algorithm: Algorithm, make_model: MakeModel, **options: Any
) -> Training[DeviceExecutor] | str:
    """A training with options that a method may refuse, before its first round; or why it
    refuses them.

    Raises:
        ValueError: it cannot be run without these options either, which is not a
            refusal.
    """
    try:
        return train(algorithm, federation(), make_model(), 0, **options)
    except ValueError as error:
        train(algorithm, federation(), make_model(), 0)
        return str(error)


def states_of(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The states of the server and the clients, as a list of arrays."""
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((training.server, states))]


def _exchanged(
    training: Training[DeviceExecutor], reporting: NDArray[np.bool_]
) -> tuple[Cohort, Downlink, Answers]:
    """One exchange with the four seen clients: these, what they received, what they sent."""
    executor, algorithm = training.executor, training.algorithm
    cohort = training._cohort(
        executor.seen, np.arange(4), seen=True, reporting=reporting
    )
    downlink = algorithm.broadcast(training.server, cohort)
    answers = executor.exchange(Exchange("client", algorithm, cohort, downlink))
    return cohort, downlink, answers


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
    """Results do not depend on the order of clients, the devices, the chunk size, or where
    the clients' answers are added up.
    """
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
        # One run has all changes, since each of them needs a new program: another order,
        # one device instead of all, two clients at a time instead of one, and answers that
        # the server adds up instead of the clients' program.
        order = np.array([3, 0, 4, 2, 1])
        permuted_models = predictors(
            run_training(federation(order), devices=1, chunk=2, canonical=True)
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
        cohort, downlink, answers = _exchanged(training, np.zeros(4, bool))
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
    """A federation of one client can be trained."""
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
) -> str | None:
    """A seen client that was never sampled gets a newcomer's model."""
    with float64():
        training = begun(algorithm, make_model, participation=SAMPLED)
        if isinstance(training, str):
            return training
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
            return None
        served_anew = drive(
            training.serve_newcomers(executor.seen, never_sampled), executor
        )
        newcomer = jax.tree.leaves(training.predictors(served_anew))
        assert_equal(served, [leaf[0] for leaf in newcomer])
    return None


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
        trained = train(algorithm, federation(), model, 2)
        assert_same(predictors(scaled), predictors(trained))
        work = [it.ledger.totals() for it in (scaled, trained)]
        assert algorithm.work_tells_of_rows or (
            work[0].gradients == work[1].gradients
            and work[0].forwards == work[1].forwards
        ), "how much clients compute depends on losses; say so: work_tells_of_rows"


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


def check_late(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> str | None:
    """With late clients no answer is counted twice, and a round in which nobody is late is
    a round that waits. Methods that refuse late clients need not have the property.
    """
    with float64():

        def run_training(rounds: int, **options: Any) -> Training[DeviceExecutor]:
            return train(algorithm, federation(), make_model(), rounds, **options)

        together = AsynchronousServer(buffer=3)
        late = begun(
            algorithm, make_model, participation=SAMPLED, asynchronous=together
        )
        if isinstance(late, str):
            return late
        for _ in range(3):
            late.advance()
        waits = run_training(3, participation=SAMPLED)
        assert_equal(predictors(late), predictors(waits))

        clock = Wireless(rho=1, t_min=1, mean_delay=1)
        training = run_training(
            0,
            asynchronous=AsynchronousServer(buffer=3, clock=clock, slowness="samples"),
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
    return None


def check_running_statistics(
    algorithm: Algorithm, make_model: MakeModel = normalized_model
) -> str | None:
    """Running variances of batch normalisation stay above 0 in 15 rounds."""
    # The inputs are small, so that variances fall to a thousandth, and a step beyond the
    # average of the clients' statistics leads below 0.
    with float64():
        model, clients = normalized_model(), federation()
        try:
            small = replace(clients, x=0.05 * clients.x)
            training = train(algorithm, small, model, 0)
            for _ in range(15):
                training.advance()
                _require_variances(training, model)
        except RefusedStatistics as error:
            return str(error)
    return None


def _require_variances(training: Training[DeviceExecutor], model: Model) -> None:
    """Asserts that no running variance of the server's and the clients' models is
    negative.
    """
    states = training.executor.client_states
    kept = states.get("model") if isinstance(states, Mapping) else None
    for models in (getattr(training.server, "model", None), kept):
        if models is None or np.shape(models)[-1:] != (model.size,):
            continue
        assert_finite([np.asarray(models)])
        negative = model.negative_variance(np.asarray(models))
        assert negative is None, (
            f"{negative} is negative after round {training.round}; a server may average"
            " running statistics only (cohort.is_statistic)"
        )


def check_non_reporters(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> str | None:
    """What a client sent that does not report changes nothing."""
    with float64():
        training = begun(algorithm, make_model, participation=SAMPLED)
        if isinstance(training, str):
            return training
        reporting = np.array([True, False, True, True])
        cohort, downlink, answers = _exchanged(training, reporting)
        cohort = replace(cohort, reporting=answers.reporting)
        # The second client's answers are those of the first, which can be right ones.
        copied = {}
        for kind, rows in answers.items():
            values, (first, second) = jnp.asarray(rows.values), rows.row[:2]
            values = values.at[second].set(values[first])
            copied[kind] = replace(rows, values=values)
        states = [
            jax.tree.leaves(algorithm.server(training.server, downlink, it, cohort))
            for it in (answers, replace(answers, update=copied))
        ]
        assert_equal(*states)
    return None


def check_sums(
    algorithm: Algorithm, make_model: MakeModel = softmax_model
) -> str | None:
    """A server that says it sees sums needs nothing else of single clients."""
    try:
        SecureSums(open_probe=True).check(algorithm, ())
    except ValueError as error:
        return str(error)
    with float64():
        training = train(algorithm, federation(), make_model(), 0)
        cohort, downlink, answers = _exchanged(training, np.ones(4, bool))
        of_one = {kind: rows.values[0] for kind, rows in answers.items()}
        hidden = {kind: _hidden(answers[kind]) for kind in hidden_kinds(of_one)}
        # Reading more than sums raises an error.
        algorithm.server(
            training.server, downlink, replace(answers, update=hidden), cohort
        )
    return None


def _hidden(rows: ClientRows) -> HiddenRows:
    """The vectors of a few clients, of which sums are shown, however few they add."""

    def sums(weights: NDArray[np.float64], index: int | None) -> Sums:
        vectors = rows.host() if index is None else rows.host()[:, index]
        added = weights @ vectors.reshape(len(vectors), -1)
        return added, np.ones(len(weights), bool)

    return HiddenRows(rows.shape, np.dtype(rows.dtype), sums, lambda: (0, 0))


CHECKS: dict[str, Callable[..., str | None]] = {
    "order": check_order,
    "empty round": check_empty_round,
    "non-reporters": check_non_reporters,
    "identical clients": check_identical_clients,
    "one client": check_one_client,
    "enrolment": check_enrolment,
    "no trace": check_no_trace,
    "never sampled": check_never_sampled,
    "test rows": check_test_rows,
    "loss scale": check_loss_scale,
    "resume": check_resume,
    "late clients": check_late,
    "sums": check_sums,
    "running statistics": check_running_statistics,
}
"""All checks by name: functions of a method and, optionally, of what makes the model. They
return why the method refuses what the property is about, which then does not apply.
"""
OWN_MODEL = {"running statistics"}
"""The checks that have a model of their own."""


def _models(training: Training[DeviceExecutor]) -> list[NDArray[Any]]:
    """The server's models and the clients' states, as a list of arrays.

    Unlike `states_of`, they exclude counters that a server may advance in an empty
    round.
    """
    model = getattr(training.server, "model", None)
    states = training.executor.client_states
    return [np.asarray(leaf) for leaf in jax.tree.leaves((model, states))]
