"""Boosts trees over machines: the coordinator's side."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import private_folder, publish
from fedtailor._base.printable import join_names
from fedtailor.aggregation.secure_sums import MAX_CLIENTS, MIN_CLIENTS
from fedtailor.data.federation import SPLITS
from fedtailor.engine.storage import PersonalModel
from fedtailor.engine.storage.export import export_models
from fedtailor.remote.job.examples import template_of
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.keys.secret import run_identity
from fedtailor.remote.server.steps import StepsServer
from fedtailor.remote.wire.boosting import (
    BOOST,
    HALVINGS,
    SUMMED,
    expected_size,
    plain_end,
    plain_steps,
)
from fedtailor.remote.wire.transport import Transport
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingProgress,
    BoostingRequest,
    as_vectors,
    boost,
    load_progress,
    save_boosted,
    save_progress,
)

FOLDER = "boosted"
"""Directory of the shared trees, within that of the federation."""

TREES = "trees.safetensors"
"""The file of `fedtailor.statistics.boosting.save_boosted` in it."""

UNDER_WAY = "boosting.safetensors"
"""The file of the rounds so far, next to `FOLDER`, until that is there."""

SHARED = "shared"
"""The name under which the shared trees predict."""


def boost_clients(
    job: Job,
    transport: Transport,
    rows: Mapping[str, NDArray[np.int64]],
    directory: Path,
    *,
    statistics: Statistics | None = None,
    resume: bool = False,
    patience: float = 600.0,
    after_round: Callable[[int], None] = lambda rounds: None,
) -> BoostedModel:
    """Boost trees by a job, and have each client make and keep its own model.

    Args:
        job: the job, with [boosting].
        transport: carries messages to the clients.
        rows: numbers of training, validation and test rows [3] of each client, by name.
            All of them take part in every sum.
        directory: a new directory, for the shared trees.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.
        resume: continue after the last round of a boosting of this job and these
            clients that ended early. All of them begin a new run with the trees of that
            round.
        patience: how many seconds to retry a step that a client does not answer.
        after_round: called with the number of rounds of trees after each.

    Returns:
        The shared trees.

    Raises:
        ValueError: the job boosts no trees, or clients, rows and directory do not fit.
        TooFewClients: a client did not answer for `patience` seconds, or refused for
            good; the rounds so far are kept next to the directory, to `resume`.
    """
    require(
        job.boosting is not None,
        "the job boosts no trees: add the table [boosting] to job.toml, and give all"
        " clients the new file",
    )
    assert job.boosting is not None
    check_place(directory, resume=resume)
    require(
        MIN_CLIENTS <= len(rows) <= MAX_CLIENTS,
        f"boosting adds over {MIN_CLIENTS} to {MAX_CLIENTS} clients, and {len(rows)} are"
        " ready",
    )
    validating = sum(int(sizes[SPLITS.index("val")]) > 0 for sizes in rows.values())
    require(
        validating == 0 or validating >= MIN_CLIENTS,
        f"{validating} clients have validation rows, and their loss would be that of so few:"
        f" have {MIN_CLIENTS} or more (of three rows or more each), or leave out val",
    )
    origin = {"job": job.identity, "clients": sorted(rows)}
    if statistics is not None:
        origin["inputs"] = statistics.fingerprint
    under_way = directory.parent / UNDER_WAY
    progress = _progress(under_way, origin) if resume else None
    template = template_of(job, statistics)
    inputs = int(np.prod(template.input_shape, dtype=int))
    with private_folder(directory.parent, FOLDER) as folder:
        (folder / "run").mkdir()
        steps = StepsServer(
            BOOST,
            job,
            transport,
            sorted(rows),
            run_identity(folder / "run"),
            statistics,
            patience,
        )
        machines = _Machines(steps, inputs, template.classes)

        def end_round(progress: BoostingProgress) -> None:
            save_progress(progress, under_way, origin)
            after_round(len(progress.model.trees))

        model = boost(
            machines.ask,
            inputs,
            template.classes,
            job.boosting.settings,
            progress=progress,
            halvings=HALVINGS,
            after_round=end_round,
        )
        machines.finish(len(model.trees))
        network, (vector,) = as_vectors([model], steps.model)
        preprocessing = None
        if statistics is not None:
            # Rows to predict may have the target, which is not looked at.
            not_read = {job.schema.target: "the target column"}
            preprocessing = replace(
                statistics.preprocessing(job.schema), ignored=not_read
            )
        personal = PersonalModel(
            SHARED, vector, network, template.shift, template.scale, preprocessing
        )
        export_models([personal], folder / "new")
        save_boosted(model, folder / "new" / TREES)
        publish(folder / "new", directory)
        under_way.unlink()
    return model


def check_place(directory: Path, *, resume: bool) -> None:
    """Check that trees can be boosted into a directory, before clients are waited for.

    Raises:
        ValueError: it is there, or rounds are there to go on from and `resume` does not
            say so, or the other way round.
    """
    require(
        not directory.exists(),
        f"{directory} already exists; move it away to boost again",
    )
    under_way = directory.parent / UNDER_WAY
    require(
        resume or not under_way.exists(),
        f"{under_way} holds the rounds of a boosting that ended early; continue"
        " it with --resume, or delete it to start over",
    )
    require(
        under_way.is_file() or not resume,
        f"there is no boosting in {directory.parent} to resume; leave out --resume",
    )


def _progress(path: Path, origin: Mapping[str, Any]) -> BoostingProgress:
    """The rounds so far of a boosting of the same job and clients.

    Raises:
        ValueError: there are none, or they are of others.
    """
    progress, of = load_progress(path)
    for part in ("job", "inputs"):
        require(
            of.get(part) == origin.get(part),
            f"{path} is of another job.toml; delete it to start over",
        )
    gone, new = (
        join_names(sorted(set(one) - set(other))) or "none"
        for one, other in (
            (of.get("clients", []), origin["clients"]),
            (origin["clients"], of.get("clients", [])),
        )
    )
    require(
        gone == new == "none",
        f"{path} is of other clients (missing now: {gone}; new: {new}); wait for the"
        " same ones, or delete it to start over",
    )
    return progress


class _Machines:
    """Asks all clients for the sums of boosting."""

    def __init__(self, steps: StepsServer, inputs: int, classes: int | None) -> None:
        self._steps, self._inputs, self._classes = steps, inputs, classes
        self._waiting: list[BoostingRequest] = []
        self._root: NDArray[np.float64] | None = None
        self._width = 1

    def ask(self, request: BoostingRequest) -> NDArray[np.float64]:
        """The sum of all clients' answers.

        What needs no answer is sent with the next question, and the root of the next
        tree is asked for together with the loss of the last one.
        """
        if request.kind == "bins":
            ends = request.arrays["thresholds"]
            self._width = max((len(it) for it in ends), default=0) + 1
        if request.kind == "gradients" and self._root is not None:
            root, self._root = self._root, None
            if request.output == 0:
                return root
        self._waiting.append(request)
        if request.kind not in SUMMED:
            return np.zeros(0)
        asked = [request]
        if request.kind == "loss":
            asked.append(BoostingRequest("gradients", output=0))
        plain, arrays = plain_steps([*self._waiting, *asked[1:]])
        self._waiting = []
        shapes = [
            expected_size(it, self._inputs, self._classes, self._width) for it in asked
        ]
        sizes = [int(np.prod(shape)) for shape in shapes]
        numbers = self._steps.sum(plain, arrays, sum(sizes))
        parts = np.split(numbers, np.cumsum(sizes)[:-1])
        found = [it.reshape(shape) for it, shape in zip(parts, shapes, strict=True)]
        if len(found) > 1:
            self._root = found[1]
        return found[0]

    def finish(self, rounds: int) -> None:
        """Have all clients keep this number of rounds, and make their own models."""
        plain, arrays = plain_steps(self._waiting)
        plain["steps"] += plain_end(rounds)["steps"]
        self._steps.end(plain, arrays)
