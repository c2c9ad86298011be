"""Runs the tasks of a round at a client, on the client's examples.

A request names the task, and the state to start from. The method, its hyper-parameters
and what may leave this machine are those of the client's own copy of the job.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, private_folder, reason
from fedtailor._base.groups import MIN_ROWS
from fedtailor.aggregation.secure_sums import MIN_CLIENTS, hidden_kinds
from fedtailor.data.federation import Federation, Split
from fedtailor.engine.client.private_steps import accounted_settings
from fedtailor.engine.executors import DeviceExecutor, Settings
from fedtailor.engine.storage.calibration_file import write_calibration
from fedtailor.engine.storage.export import (
    export_models,
    load_models,
    read_export_manifest,
)
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.engine.training.privacy import delta_of
from fedtailor.models import Model
from fedtailor.models.boosted_trees import BoostedTrees
from fedtailor.models.tasks import cross_entropy, squared_error, task_of
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    Answers,
    Cohort,
    Diverged,
    Exchange,
    init_pipeline,
    on_host,
)
from fedtailor.remote.client.account import (
    ClientAccount,
    Release,
    array_bytes,
    digest_of,
)
from fedtailor.remote.client.boosting import BoostingClient
from fedtailor.remote.client.regression import RegressionClient
from fedtailor.remote.client.steps import StepsClient
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.job.regression import ClientDesign
from fedtailor.remote.keys.secret import digest_of_secret, secret_in, seed_from
from fedtailor.remote.sums.client import SecureSumClient
from fedtailor.remote.wire.boosting import BOOST
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused, refuse_unless, refusing
from fedtailor.remote.wire.regression import REGRESS
from fedtailor.remote.wire.request_kind import (
    COMPUTING,
    METHOD_KEYS,
    MODE,
    NEWCOMER,
    SERVING,
    TRAINING,
    RequestKind,
    kind_of,
    step_of,
)
from fedtailor.remote.wire.run_log import client_log
from fedtailor.remote.wire.secure_sums import KEYS, STAGES, SUM
from fedtailor.remote.wire.vector_cache import INITIAL, is_vector
from fedtailor.remote.wire.wire import WORK, asked_of_all, named, read_downlink
from fedtailor.statistics.conformal import Calibration

PERSONAL = "personal"
"""Name of the directory of the personal model, within the client's state directory.

`fedtailor.load_models` reads it.
"""

SUMS = "sums.json"
"""File with the weights of the secure sums in which this client has a part."""

STEPS_SCOPE = "steps"
"""The scope of sums of steps: of boosting and of a regression."""

SUMMED_ROWS = "summed-rows"
"""File with the digest of the rows that these sums are of."""


KEPT = ("init_unseen", "personal")
"""Tasks whose results stay on this machine."""

TOO_LARGE = "too-large"
"""File with the code of the refusal that said that a number became too large here."""


class RoundHandler:
    """Answers the requests of training (a `RequestHandler` for `Responder`).

    Args:
        plan: what this client agreed to.
        federation: a federation of this client only.
        store: the client's states.
        account: what the client has answered and spent; by default the one next to the
            states, without limits.
        least_clients: the least number of clients in a sum.
        most_numbers: the most numbers that may leave in a run without masks and noise.
        design: the client's rows of a regression; None without one.
    """

    def __init__(
        self,
        plan: Plan,
        federation: Federation,
        store: ClientStore,
        account: ClientAccount | None = None,
        least_clients: int = MIN_CLIENTS,
        most_numbers: float = math.inf,
        design: ClientDesign | None = None,
    ) -> None:
        require(
            len(federation) == 1,
            f"a client's own data are one client's, not {len(federation)} clients'",
        )
        self._plan, self._store, self._federation = plan, store, federation
        self._account = account or ClientAccount(store.client_directory)
        # What answers are made of.
        self._all_rows = federation.digest
        if design is not None:
            self._all_rows += f" {design.digest}"
        self._account.rows = self._all_rows
        # Noise hides nothing from a coordinator that knows its seed.
        self._has_secret = plan.clients_need_secrets
        self._most_numbers = most_numbers
        with refusing(Refusal.NO_STATE):
            self._seed = secret_in(store.directory) if self._has_secret else plan.seed
        if self._has_secret:
            self._account.rows += f" {digest_of_secret(self._seed)}"
        self._rows = federation.digest.encode() if self._has_secret else b""
        self._sum_client: SecureSumClient | None = None
        if plan.sums is not None:
            history = store.directory / SUMS
            refuse_unless(
                history.exists() or not (store.directory / SUMMED_ROWS).exists(),
                Refusal.NO_STATE,
                f"{history} is lost: it says which sums were added up, so restore it, or begin"
                " a new job",
            )
            with refusing(Refusal.NO_STATE):
                self._sum_client = SecureSumClient(
                    federation.names[0],
                    plan.sums,
                    history,
                    least_clients,
                    secret_in(store.directory),
                )
        # Whether masks or noise hide what this client sends.
        self._is_hidden = self._sum_client is not None or self._has_secret
        # The state that `init_unseen` returned, and its (run, round, phase). It is needed
        # for the next requests only, and not written to disk.
        self._newcomer: tuple[tuple[str, int, int], Any] = (("", -1, -1), None)
        # By the key under which their steps stand in a request.
        self._steps: dict[str, StepsClient[Any]] = {}
        if plan.boosting is not None:
            self._steps[BOOST] = BoostingClient(plan, federation)
        if plan.regression is not None and design is not None:
            self._steps[REGRESS] = RegressionClient(plan, design)
        # By phase, computed once.
        self._initial_states: dict[int, Any] = {}
        self._descriptions: dict[int, str] = {}
        self._log = client_log(federation.names[0])
        # Results of a canonical executor do not depend on this machine's devices.
        self._executor = DeviceExecutor(
            federation, plan.model, Settings(devices=1, canonical=True)
        )

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request.

        Where masks or noise hide what is sent, that a number became too large to be sent
        is said once a job. It is something about the rows that nothing hides, and with
        models made for it a cell could be bisected, by one answer for each of its digits.

        Raises:
            Refused: the job does not allow the request, the state is not on this
                machine, or the model became NaN or infinite.
        """
        try:
            return self._answer(request)
        except _ModelTooLarge:
            raise
        except Refused as error:
            is_too_large = error.code in (Refusal.DIVERGED, Refusal.SUM_RANGE)
            if self._is_hidden and is_too_large:
                with atomic_write(self._store.directory / TOO_LARGE) as temporary:
                    temporary.write_text(error.code, "utf-8")
            raise

    def _answer(self, request: Request) -> Mapping[str, np.ndarray]:
        task, kind = request.task, kind_of(request)
        phase = self._check(request, kind)
        self._check_size()
        if task in STAGES:
            refuse_unless(
                self._sum_client is not None,
                Refusal.NOT_IN_JOB,
                "the job does not add updates behind masks",
            )
            assert self._sum_client is not None
            if task == KEYS and kind is RequestKind.STEP:
                self._take_step(request)
            return self._sum_client(request)
        if task == BOOST:
            self._take_step(request)
            return {}
        self._account.check(request)
        if task == "client":
            self._check_models(request)
        algorithm = self._plan.phase(phase)
        answers = self._run(request, algorithm)
        # What is sent as it is, and what is held for a sum.
        sent, hidden = dict[str, np.ndarray](), dict[str, np.ndarray]()
        is_summed = self._sum_client is not None and task == "client" and request.reply
        if task == "evaluate":
            scores = named(on_host(answers.output), "scores")
            sent = without_small_splits({name: it[0] for name, it in scores.items()})
            # Of a split that is not told nothing is, not even that it is infinite.
            if not _is_finite(sent):
                self._refuse_diverged(request)
        elif request.reply:
            sent = {
                f"update/{it}": rows.host()[0] for it, rows in answers.update.items()
            }
            if is_summed:
                for name in hidden_kinds(answers.update):
                    hidden[name] = sent.pop(f"update/{name}")
        self._record(request, algorithm, answers, sum(it.size for it in sent.values()))
        work = np.asarray(answers.work, np.int64)
        if algorithm.work_tells_of_rows and self._is_hidden:
            work = np.zeros_like(work)
        arrays = {WORK: work}
        if task == "client":
            # Save the state before answering: the coordinator may ask for it as soon as
            # it has accepted the answer.
            self._store.prune(
                request.state_round, request.durable_state_round, request.run
            )
            self._save(request, answers.states)
        elif task == "init_unseen":
            self._newcomer = (request.run, request.round, phase), answers.states
        elif task == "personal":
            with _refusing_other_arrays():
                self._store_personal(on_host(answers.output))
        if is_summed:
            asked = asked_of_all(request, algorithm.sent_to_each)
            self._hold(request, hidden, asked=asked)
        return arrays | sent

    def _hold(
        self,
        request: Request,
        update: Mapping[str, np.ndarray],
        scope: str = "",
        equally: int | None = None,
        *,
        asked: str,
    ) -> None:
        """Hold vectors for sums, which are of the same rows in all runs of a job.

        With a row more or less, the difference of two sums of all clients would be that
        row's part.
        """
        assert self._sum_client is not None
        path = self._store.directory / SUMMED_ROWS
        if not path.exists():
            self._sum_client.save()
            with atomic_write(path) as temporary:
                temporary.write_text(self._all_rows, "utf-8")
        refuse_unless(
            path.read_bytes() == self._all_rows.encode(),
            Refusal.UNSAFE_SUM,
            "its rows differ from those with which it took part in sums of this job;"
            " start it with those rows, or take part in a new job, with another seed",
        )
        self._sum_client.hold(
            request.round,
            update,
            request.run,
            scope=scope,
            equally=equally,
            asked=asked,
        )

    def _take_step(self, request: Request) -> None:
        """Take a step outside rounds, and hold the answer for its sum."""
        steps = self._steps_of(request)
        assert self._sum_client is not None
        # The names of its sum differ if the step is asked for again.
        algorithm = {
            name: value for name, value in request.algorithm.items() if name != SUM
        }
        step = replace(request, task=steps.key, algorithm=algorithm)
        self._account.check(step)
        vector = steps(step)
        self._account.record(step, without_noise=True)
        refuse_unless(
            (vector is None) == (request.task not in STAGES),
            Refusal.MALFORMED,
            f"a step of {steps.what} asks for a sum in its last message, or for none"
            " before",
        )
        if vector is not None:
            # Steps ask for the same rows again and again, so that the sums of all of
            # them may be combined, whatever the job says of rounds.
            self._hold(
                request,
                {steps.key: vector},
                scope=STEPS_SCOPE,
                equally=steps.clients,
                asked=steps.asked,
            )
        elif steps.own is not None:
            self._write_personal(steps.own)

    def _steps_of(self, request: Request) -> "StepsClient[Any]":
        """What takes the step that a request asks for.

        Raises:
            Refused: the job has none.
        """
        steps = self._steps.get(step_of(request) or "")
        if steps is None:
            raise Refused(
                Refusal.NOT_IN_JOB,
                "the job does not let clients boost trees, or fit a regression",
            )
        return steps

    def _check(self, request: Request, kind: RequestKind) -> int:
        """Check that the job allows a request.

        Returns:
            The requested phase of the schedule.

        Raises:
            Refused: the job does not allow it.
        """
        plan, task, settings = self._plan, request.task, request.algorithm
        refuse_unless(
            kind is not RequestKind.TABLE,
            Refusal.UNKNOWN_TASK,
            f"{task!r} is not a task of a round",
        )
        phase, mode = settings.get("phase"), settings.get(MODE, "")
        said = {name: settings[name] for name in METHOD_KEYS if name in settings}
        phases = range(len(plan.algorithm.phases()))
        # As text, in which 1, 1.0 and true differ.
        refuse_unless(
            type(phase) is int
            and phase in phases
            and mode in ("", *plan.phase(phase).modes)
            and json.dumps(said, sort_keys=True) == self._description(phase),
            Refusal.OTHER_METHOD,
            "the coordinator asks for another method, hyper-parameter or seed than this"
            " job's",
        )
        assert isinstance(phase, int)
        refuse_unless(
            task != "evaluate" or plan.evaluate,
            Refusal.NOT_IN_JOB,
            "the job does not let clients send what they measure",
        )
        refuse_unless(
            task != "probe" or plan.phase(phase).probes,
            Refusal.NOT_IN_JOB,
            "the job's method does not ask clients a probe",
        )
        refuse_unless(
            task != "probe" or plan.sums is None or plan.sums.open_probe,
            Refusal.NOT_IN_JOB,
            "the job does not let clients answer a probe openly",
        )
        if kind is RequestKind.ROUND:
            # Training adds models that are means over rows, steps add up rows: a client's
            # part of one kind is its part of the other times its number of rows, and sums
            # with the same weights would hide less together than by themselves.
            refuse_unless(
                not self._steps,
                Refusal.NOT_IN_JOB,
                "a job that boosts trees or fits a regression trains nothing else",
            )
            self._check_rounds(request)
            refuse_unless(
                INITIAL not in request.arrays
                or (phase > 0 and request.state_round < 0),
                Refusal.MALFORMED,
                "only a later phase begins with a model that is sent, and only without a"
                " state",
            )
            return phase
        steps = self._steps_of(request)
        refuse_unless(
            0 <= request.round < steps.most_steps,
            Refusal.ROUND,
            f"step {request.round + 1} of {steps.what} is asked for, and in this job it"
            f" takes {steps.most_steps} at most",
        )
        return phase

    def _check_size(self) -> None:
        """Check that no number became too large in this job so far.

        Raises:
            Refused: one did, and nothing more is answered.
        """
        path = self._store.directory / TOO_LARGE
        if path.exists():
            code = path.read_text("utf-8", errors="replace")
            raise Refused(
                Refusal.SUM_RANGE if code == Refusal.SUM_RANGE else Refusal.DIVERGED,
                "its numbers became too large in this job before, which it says once; it"
                " takes part in a new job, such as one with a lower learning rate",
            )

    def _check_models(self, request: Request) -> None:
        """Check that what is trained is far from the largest numbers of sums.

        Raises:
            Refused: it is not, whatever the rows are.
        """
        if self._plan.sums is None or not request.reply:
            return
        most = self._plan.sums.largest_model
        for name, array in request.arrays.items():
            if is_vector(name) and not (np.abs(array.astype(np.float64)) <= most).all():
                raise _ModelTooLarge(
                    Refusal.SUM_RANGE,
                    f"it is sent a model with an entry beyond {most:g}, half of sum_range"
                    " of the job's [privacy], which has to be larger",
                )

    def _description(self, phase: int) -> str:
        """What a request of a phase has to say about the method, as JSON."""
        if phase not in self._descriptions:
            text = json.dumps(self._plan.describe(phase), sort_keys=True)
            self._descriptions[phase] = text
        return self._descriptions[phase]

    def _check_rounds(self, request: Request) -> None:
        """Check the numbers of rounds in a request.

        Raises:
            Refused: the job has no such round, or the request names a state of a later
                round than its own.
        """
        round, last = request.round, self._plan.rounds
        # After the last round models are evaluated and delivered.
        is_training = request.task in TRAINING
        refuse_unless(
            0 <= round < last or (round == last and not is_training),
            Refusal.ROUND,
            f"round {round + 1} is asked for, and this job has {last}; for more rounds"
            " change its job.toml here",
        )
        for number in (request.state_round, request.durable_state_round):
            refuse_unless(
                -1 <= number <= round,
                Refusal.ROUND,
                f"in round {round + 1} the state after round {number + 1} is named",
            )
        # A newcomer makes up for rounds in one computation, which nothing interrupts.
        for name, number in request.arrays.items():
            refuse_unless(
                not (name.startswith("scalar/") and name.endswith("rounds"))
                or bool(((number >= 0) & (number <= last)).all()),
                Refusal.ROUND,
                f"more rounds are to be made up for than the {last} of this job",
            )

    def _record(
        self, request: Request, algorithm: Algorithm, answers: Answers, numbers: int
    ) -> None:
        """Record an answer, and what it spends, before anything follows from it.

        Args:
            request: the request.
            algorithm: the method of its phase.
            answers: the answer.
            numbers: how many numbers of it are sent as they are.

        Raises:
            ValueError: the client's policy does not allow it.
        """
        task, releases = request.task, []
        noise = self._plan.client_noise
        if noise is not None and task == "client" and request.reply:
            releases.append(
                Release(
                    unit="client",
                    multiplier=noise.multiplier,
                    delta=noise.delta,
                    count=1,
                )
            )
        if PRIVATE_STEPS in answers.update:
            # Steps count if they are not reported, too, as the next rounds start from
            # the state that they led to.
            sgd = accounted_settings([algorithm])
            assert sgd is not None and sgd.dp_noise is not None
            releases.append(
                Release(
                    unit="example",
                    multiplier=sgd.dp_noise,
                    delta=delta_of(sgd),
                    count=int(answers.update[PRIVATE_STEPS].host()[0]),
                    batch_size=sgd.batch_size,
                    examples=int(self._executor.seen.sizes[0]),
                )
            )
        is_sent = task == "evaluate" or (task in ("client", "probe") and request.reply)
        self._account.record(
            request,
            releases,
            without_noise=is_sent and not releases,
            numbers=0 if releases else numbers,
            most_numbers=self._most_numbers,
        )

    def _draw_seed(self, request: Request, states: Any) -> int | None:
        """The seed of what the client draws; None = that of the job.

        Noise follows from everything that changes what is released: another model, state
        or table has other noise, and the difference of two answers does not take it off.
        """
        if not self._has_secret:
            return None
        asked = request
        if request.task in SERVING:
            asked = replace(request, task=SERVING[0], reply=True)
        leaves = [array_bytes(leaf) for leaf in jax.tree.leaves(states)]
        return seed_from(self._seed, digest_of(asked).encode(), self._rows, *leaves)

    def _run(self, request: Request, algorithm: Algorithm) -> Answers:
        """Run the method's function for the task, and wait for its result.

        That a number became too large is something about the rows. It is said of what is
        sent: of a personal model never, and of a client's state only if the coordinator
        sees its updates.

        Raises:
            Refused: what would be sent is NaN or infinite, or the request does not fit.
        """
        executor, plan, task = self._executor, self._plan, request.task
        stays = task in (*KEPT, *COMPUTING) if self._is_hidden else task in KEPT
        states = None
        if task in ("client", "personal", "evaluate"):
            states = self._state(request, algorithm)
        cohort = Cohort(
            clients=executor.seen,
            rows=np.zeros(1, np.int64),
            seen=True,
            reporting=np.array([request.reply]),
            round=request.round,
            seed=self._seed,
            draw_seed=self._draw_seed(request, states),
        )
        exchange = Exchange(
            task=task,  # pyright: ignore[reportArgumentType] (checked by kind_of)
            algorithm=algorithm,
            cohort=cohort,
            downlink=read_downlink(request.arrays, request.algorithm.get(MODE, "")),
            states=states,
            uplink=plan.uplink if task == "client" else (),
            received_through=plan.downlink,
            metrics=plan.metrics if task == "evaluate" else (),
            unchecked=stays or task == "evaluate",
        )
        try:
            with _refusing_other_arrays():
                answers = executor.exchange(exchange).require_finite()
                if stays and request.reply and not _is_finite(answers.update):
                    raise Diverged(executor.seen.names[0], request.round)
        except Diverged:
            self._refuse_diverged(request)
        if stays and task == "client" and not _is_finite(answers.states):
            self._log.warning("its state became NaN or infinite; the one before stays")
            return replace(answers, states=states)
        return answers

    def _refuse_diverged(self, request: Request) -> NoReturn:
        """Say that a number became too large, which says something about the rows, too:
        once for each round and task.
        """
        self._account.record(request, without_noise=True)
        raise Refused(
            Refusal.DIVERGED,
            f"the model became NaN or infinite in round {request.round + 1}",
        ) from None

    def _state(self, request: Request, algorithm: Algorithm) -> Any:
        """The state that a request starts from, with a leading client axis [1, ...]."""
        if request.algorithm.get(NEWCOMER):
            created_in, state = self._newcomer
            refuse_unless(
                created_in == (request.run, request.round, request.algorithm["phase"]),
                Refusal.NO_STATE,
                "it was started again, and has no state as a newcomer yet",
            )
            return state
        initial = self._initial_state(request, algorithm)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(initial)]
        if leaves and request.state_round >= 0:
            shapes = [leaf.shape for leaf in leaves]
            leaves = self._load(request)
            refuse_unless(
                isinstance(leaves, list)
                and [np.shape(leaf) for leaf in leaves] == shapes,
                Refusal.NO_STATE,
                f"its state after round {request.state_round + 1} is not one of this"
                " method",
            )
            assert leaves is not None
        batched = [np.asarray(leaf)[None] for leaf in leaves]
        return jax.tree.unflatten(jax.tree.structure(initial), batched)

    def _load(self, request: Request) -> Any:
        """Load the state that a request names from the disk."""
        with refusing(Refusal.NO_STATE):
            return self._store.load(request.state_round, request.run)

    def _initial_state(self, request: Request, algorithm: Algorithm) -> Any:
        """The state of a client that has not taken part in this phase."""
        plan, initial = self._plan, request.arrays.get(INITIAL)
        if initial is not None:
            size = plan.model.size
            refuse_unless(
                initial.shape == (size,),
                Refusal.MALFORMED,
                f"the initial model has shape {initial.shape}; it must be ({size},)",
            )
            return self._begun(jnp.asarray(initial), algorithm)
        # Drawing the initial model takes longer than answering with a small one.
        phase = request.algorithm["phase"]
        if phase not in self._initial_states:
            theta = jnp.asarray(plan.initial())
            self._initial_states[phase] = self._begun(theta, algorithm)
        return self._initial_states[phase]

    def _begun(self, theta: jax.Array, algorithm: Algorithm) -> Any:
        """The states of a method and of the uplink that begin with a model."""
        state = algorithm.init_state(theta, self._plan.model)
        return state, init_pipeline(self._plan.uplink, theta)

    def _save(self, request: Request, states: Any) -> None:
        """Save the client's state (leaves [1, ...]), if the method has states."""
        leaves = [np.asarray(leaf)[0] for leaf in jax.tree.leaves(states)]
        if leaves:
            self._store.save(request.round, leaves, request.run)

    def _store_personal(self, predictors: Any) -> None:
        """Store the client's personal model (leaves [1, ...]), instead of the last, if it
        is finite.
        """
        if not _is_finite(predictors):
            self._log.warning(
                "its personal model became NaN or infinite; the one before stays, if there"
                " is one"
            )
            return
        federation = self._executor.federation
        self._write_personal(
            PersonalModel(
                federation.names[0],
                jax.tree.map(lambda leaf: leaf[0], predictors),
                self._plan.model,
                federation.shift,
                federation.scale,
            )
        )

    def _write_personal(self, model: PersonalModel) -> None:
        """Write the client's personal model, instead of the last.

        If the client is killed meanwhile, the coordinator asks for the model again.
        """
        with private_folder(self._store.directory, PERSONAL) as folder:
            export_models([model], folder / "new", own_examples=True)
            val = self._executor.federation.client(0).val
            calibration = own_calibration(model, val)
            if calibration is not None:
                write_calibration(calibration, folder / "new")
            directory = self._store.directory / PERSONAL
            if directory.exists():
                directory.rename(folder / "old")
            (folder / "new").rename(directory)


def load_own(path: Path, trained: Model, name: str) -> PersonalModel:
    """A client's own model, trained or boosted.

    Args:
        path: directory of the model.
        trained: the model of the job.
        name: name of the client.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    network = read_export_manifest(path)["model"]["architecture"]
    given = None if network == BoostedTrees.__name__ else trained
    return load_models(path, given)[name]


def own_calibration(model: PersonalModel, val: Split) -> Calibration | None:
    """What sets and intervals of a client's model are from: its own validation rows. Of
    this nothing leaves the client.

    Scores of numbers are in the unit of the model's targets.

    Returns:
        None without such rows, where the model predicts neither classes nor one number,
        or where it predicts NaN or infinity, which is no reason to refuse a request.
    """
    task = model.model.task
    if not len(val.y):
        return None
    if task == cross_entropy:
        of_true = model.probabilities(val.x)[np.arange(len(val.y)), val.y]
        kind, scores = "classes", 1 - of_true
    elif task == task_of(squared_error) and model.model.outputs == 1:
        kind = "numbers"
        scores = np.abs(model.outputs(val.x).reshape(-1) - val.y.reshape(-1))
    else:
        return None
    return Calibration.of(kind, {model.name: scores}) if _is_finite(scores) else None


@contextmanager
def _refusing_other_arrays() -> Iterator[None]:
    """Refuse a request whose arrays the method does not take, or that lacks one."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise Refused(
            Refusal.MALFORMED,
            "the request does not fit the method"
            f" ({type(error).__name__}: {reason(error)})",
        ) from None


class _ModelTooLarge(Refused):
    """What was sent is too large, before a row is looked at."""


def _is_finite(tree: Any) -> bool:
    """Whether all numbers of some arrays are finite."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(
        bool(np.isfinite(leaf).all())
        for leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    )


def without_small_splits(scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores in which a split of fewer than `MIN_ROWS` rows is one without rows.

    What a model makes of a single row tells its target.
    """
    kept = {}
    for name, array in scores.items():
        _, split, *_ = name.split("/")
        is_small = int(scores[f"scores/{split}/count"]) < MIN_ROWS
        kept[name] = np.zeros_like(array) if is_small else array
    return kept
