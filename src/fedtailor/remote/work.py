"""The client's side of a round: it does what the job's method does with its own
examples, and keeps its own state.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedtailor.executors import DeviceExecutor, Settings
from fedtailor.federation import Federation
from fedtailor.protocol import (
    Algorithm,
    Cohort,
    Diverged,
    Exchange,
    init_pipeline,
    on_host,
    require,
)
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.held import INITIAL
from fedtailor.remote.messages import Request
from fedtailor.remote.plan import Plan
from fedtailor.remote.secret import secret_in
from fedtailor.remote.secure_sums import STAGES, SUM, hidden_kinds
from fedtailor.remote.sum_client import Summand
from fedtailor.remote.wire import WORK, named, read_downlink
from fedtailor.storage.export import export_models
from fedtailor.storage.personal_model import PersonalModel

NEWCOMER = "newcomer"
"""Of a request: the client predicts with the state that `init_unseen` made, as it never
took part.
"""

PERSONAL = "personal"
"""Directory, beside the client's states, with the personal model
(`fedtailor.load_models` reads it).
"""

TASKS = ("probe", "client", "init_unseen", "personal", "evaluate", *STAGES)


class ClientWork:
    """Answers the requests of a training (a `Work` for `Responder`).

    Args:
        plan: what this client agreed to.
        federation: of this client alone.
        store: what it keeps between rounds.
    """

    def __init__(self, plan: Plan, federation: Federation, store: ClientStore) -> None:
        require(
            len(federation) == 1,
            f"a client's own data are one client's, not {len(federation)} clients'",
        )
        self._plan, self._store = plan, store
        # noise that the coordinator could compute would hide nothing from it
        self._seed = (
            secret_in(store.directory) if plan.clients_need_secrets else plan.seed
        )
        self._summand = (
            None if plan.sums is None else Summand(federation.names[0], plan.sums)
        )
        # what `init_unseen` made, for the requests that follow it at once; never on the
        # disk
        self._newcomer: tuple[tuple[int, int], Any] = ((-1, -1), None)
        # canonical: what is computed here does not depend on how many devices this
        # machine has
        self._executor = DeviceExecutor(
            federation, plan.model, Settings(devices=1, canonical=True)
        )

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Do what a request asks.

        Raises:
            ValueError: it asks for something that the job does not hold, its state is
                not here, or the model became NaN or infinite.
        """
        plan, task, phase = self._plan, request.task, request.algorithm.get("phase")
        asked = {
            name: value
            for name, value in request.algorithm.items()
            if name not in (NEWCOMER, SUM)
        }
        agreed = isinstance(phase, int) and asked == plan.describe(phase)
        require(
            agreed,
            "the coordinator asks for another method, hyper-parameter or seed than this"
            " job's",
        )
        require(
            task in TASKS,
            f"this client does not know the task {task!r}; both sides need the same"
            " release",
        )
        require(
            task != "evaluate" or plan.evaluate,
            "the job does not let clients send what they measure",
        )
        open_probe = plan.sums is None or plan.sums.open_probe
        require(
            task != "probe" or open_probe,
            "the job does not let clients answer a probe openly",
        )
        assert isinstance(phase, int)
        if task in STAGES:
            require(
                self._summand is not None, "the job does not add updates behind masks"
            )
            assert self._summand is not None
            return self._summand(request)
        algorithm = plan.phase(phase)
        answers = self._run(request, algorithm)
        sent = {WORK: np.asarray(answers.work, np.int64)}
        if task == "client":
            self._store.prune(request.state_round, request.durable_state_round)
            self._keep(request.round, answers.states)
        elif task == "init_unseen":
            self._newcomer = (request.round, phase), answers.states
        elif task == "personal":
            self._store_personal(on_host(answers.output))
        elif task == "evaluate":
            return sent | {
                name: array[0]
                for name, array in named(on_host(answers.output), "scores").items()
            }
        if request.reply:  # who is not asked keeps its update to itself
            update = {kind: rows.host()[0] for kind, rows in answers.update.items()}
            if self._summand is not None and task == "client":
                self._summand.keep(
                    request.round,
                    {kind: update.pop(kind) for kind in hidden_kinds(update)},
                )
            sent |= {f"update/{kind}": array for kind, array in update.items()}
        return sent

    def _run(self, request: Request, algorithm: Algorithm) -> Any:
        """Have the algorithm's function for the task run, and wait for it."""
        executor, task = self._executor, request.task
        cohort = Cohort(
            clients=executor.seen,
            rows=np.zeros(1, np.int64),
            seen=True,
            reporting=np.array([request.reply]),
            round=request.round,
            seed=self._seed,
        )
        states = (
            self._state(request, algorithm)
            if task in ("client", "personal", "evaluate")
            else None
        )
        uplink = self._plan.uplink if task == "client" else ()
        downlink = read_downlink(request.arrays)
        measured = self._plan.measured if task == "evaluate" else ()
        exchange = Exchange(
            task,  # pyright: ignore[reportArgumentType] (checked against TASKS)
            algorithm,
            cohort,
            downlink,
            states,
            uplink,
            self._plan.downlink,
            measured,
        )
        try:
            return executor.exchange(exchange).checked()
        except Diverged:
            raise ValueError(
                f"its model became NaN or infinite in round {request.round + 1}"
            ) from None

    def _state(self, request: Request, algorithm: Algorithm) -> Any:
        """The state that a request continues from, as that of a cohort of one."""
        if request.algorithm.get(NEWCOMER):
            made_in, state = self._newcomer
            fits = made_in == (request.round, request.algorithm["phase"])
            require(fits, "it was started again, and has no state as a newcomer yet")
            return state
        first = self._first_state(request, algorithm)
        structure, leaves = (
            jax.tree.structure(first),
            [np.asarray(leaf) for leaf in jax.tree.leaves(first)],
        )
        if leaves and request.state_round >= 0:
            stored = self._store.load(request.state_round)
            fits = isinstance(stored, list) and [np.shape(leaf) for leaf in stored] == [
                leaf.shape for leaf in leaves
            ]
            require(
                fits,
                f"its state after round {request.state_round + 1} is not one of this"
                " method",
            )
            leaves = stored or leaves
        return jax.tree.unflatten(
            structure, [np.asarray(leaf)[None] for leaf in leaves]
        )

    def _first_state(self, request: Request, algorithm: Algorithm) -> Any:
        """What a client that has not taken part holds."""
        model, given = self._plan.model, request.arrays.get(INITIAL)
        theta = jnp.asarray(self._plan.initial() if given is None else given)
        require(
            theta.shape == (model.size,),
            f"the initial model has shape {theta.shape}; it must be ({model.size},)",
        )
        return algorithm.init_state(theta, self._plan.model), init_pipeline(
            self._plan.uplink, theta
        )

    def _keep(self, round: int, states: Any) -> None:
        leaves = _first(states)
        if leaves:
            self._store.save(round, leaves)

    def _store_personal(self, predictor: Any) -> None:
        """Put the personal model where the one before stood."""
        federation = self._executor.federation
        mine = jax.tree.map(lambda leaf: leaf[0], predictor)
        model = PersonalModel(
            federation.names[0],
            mine,
            self._plan.model,
            federation.shift,
            federation.scale,
        )
        place = self._store.directory / PERSONAL
        replace_directory(
            place, lambda path: export_models([model], path, own_examples=True)
        )


def replace_directory(place: Path, write: Any) -> None:
    """Let `write` make a directory beside `place`, then put it there."""
    new, old = (
        place.with_name(f".{place.name}.part"),
        place.with_name(f".{place.name}.old"),
    )
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    write(new)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _first(states: Any) -> list[np.ndarray]:
    """The only client's state, as a list of arrays on the host."""
    return [np.asarray(leaf)[0] for leaf in jax.tree.leaves(states)]
