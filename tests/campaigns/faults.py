"""What may happen to files: the process dies, the disk is full, a bit flips. Each
function is one try.
"""

import errno
import gc
import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from campaigns.file_events import Steps, watching
from campaigns.small_run import (
    FEDERATION,
    ROUNDS,
    boost_table,
    measured,
    start,
    start_on_table,
)
from fedtailor.cli import main
from fedtailor.data.federation.storage import load, save
from fedtailor.deployment import model_card, open_run
from fedtailor.deployment.calibration import calibration_at
from fedtailor.deployment.finalizing import finalize
from fedtailor.deployment.listing import list_models
from fedtailor.deployment.opening import models_at, runs_of_clients
from fedtailor.deployment.predictions import predictions
from fedtailor.engine.storage import check, load_models
from fedtailor.engine.storage.calibration_file import (
    read_calibration,
    write_calibration,
)
from fedtailor.engine.storage.final_models import RUNS, Expectation, FinalModels
from fedtailor.lab.report import StoredRun
from fedtailor.statistics.boosting import (
    BoostingProgress,
    BoostingSettings,
    boost_federation,
    load_boosted,
    load_progress,
    save_boosted,
    save_progress,
)

TREES = BoostingSettings(trees=3, least_rows=2)


class Killed(BaseException):
    """Not an `Exception`: nothing in the package may catch it."""


class Faults:
    """Tries in a folder of their own; the runs that they damage are made once.

    Attributes:
        folder: for files.
        whole: what an uninterrupted run measures.
        steps: changes of files in such a run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        start(folder / "warm up")  # compiled programs are written, too
        counted = Steps()
        with watching(folder / "whole", counted):
            done = start(folder / "whole")
        self.whole, self.steps = measured(folder / "whole"), counted.count
        done.export(folder / "models")
        save(FEDERATION, folder / "federation")
        start(folder / "half", rounds=ROUNDS - 1)
        self._table = start_on_table(folder / "opened")
        self._uses = self._use(folder / "opened")
        self._make_final(folder / "final")
        self._final_uses = self._use_final(folder / "final")
        self._models = {
            name: np.asarray(model.theta)
            for name, model in load_models(folder / "models").items()
        }
        self._facts = self._read(folder / "whole")
        (folder / "calibration").mkdir()
        self._calibration = calibration_at(folder / "opened")
        write_calibration(self._calibration, folder / "calibration")
        self._trees = boost_federation(FEDERATION, TREES).shared
        save_boosted(self._trees, folder / "trees")
        losses = np.linspace(0.7, 0.4, 1 + len(self._trees.trees)).tolist()
        self._boosting = BoostingProgress(self._trees, tuple(losses))
        save_progress(self._boosting, folder / "boosting", {"job": "a"})
        boost_table(self._table, folder / "boosted")
        self._uses_of_trees = self._use(folder / "boosted")

    def kill(self, rng: np.random.Generator) -> None:
        """The process dies at a random change, some bytes of what it was writing are
        lost; then the run is resumed.
        """
        directory, at = self._fresh("killed"), int(rng.integers(1, self.steps + 1))
        with watching(directory, Steps(Killed, first=at)), suppress(Killed):
            start(directory)
        gc.collect()  # the lock of a process goes with it
        for unfinished in directory.glob(".*.part/*"):
            if unfinished.is_file() and rng.random() < 0.5:
                content = unfinished.read_bytes()
                unfinished.write_bytes(content[: rng.integers(0, len(content) + 1)])
        start(directory, resume=directory.exists())
        assert measured(directory) == self.whole, f"killed at change {at}"
        assert all(finding.whole for finding in check(directory)), (
            f"killed at change {at}"
        )

    def fill_disk(self, rng: np.random.Generator) -> None:
        """The disk is full for some changes; the run ends in one line (or does not need
        them), and is resumed.
        """
        directory, at = self._fresh("full"), int(rng.integers(1, self.steps + 1))
        last = at + int(rng.integers(0, 5))
        full = Steps(
            lambda: OSError(errno.ENOSPC, "No space left on device"),
            first=at,
            last=last,
        )
        try:
            with watching(directory, full):
                start(directory)
        except ValueError as error:
            assert "\n" not in str(error) and "No space left" in str(error), repr(error)
        start(directory, resume=True)
        assert measured(directory) == self.whole, f"full from change {at} to {last}"

    def kill_finalize(self, rng: np.random.Generator) -> None:
        """The process dies while final models are made: there are those of before, as a
        whole, or the new ones, or none; and finalize makes them again.
        """
        at = int(rng.integers(1, self._comparison.steps + 1))
        with self._finalizing(rng, Steps(Killed, first=at)) as check_all:
            with suppress(Killed):
                finalize(self._comparison.results)
            gc.collect()
            check_all(f"killed at change {at}")

    def fill_disk_in_finalize(self, rng: np.random.Generator) -> None:
        """The disk is full for some changes while final models are made."""
        at = int(rng.integers(1, self._comparison.steps + 1))
        full = Steps(
            lambda: OSError(errno.ENOSPC, "No space left on device"),
            first=at,
            last=at + int(rng.integers(0, 5)),
        )
        with self._finalizing(rng, full) as check_all:
            try:
                finalize(self._comparison.results)
            except ValueError as error:
                text = str(error)
                assert "\n" not in text and "No space left" in text, repr(error)
            check_all(f"full from change {at}")

    @cached_property
    def _comparison(self) -> "Comparison":
        return Comparison(self.folder / "comparison")

    @contextmanager
    def _finalizing(self, rng: np.random.Generator, steps: Steps):
        """A block in which changes below a comparison's folder fail; then its final
        models are made again without faults.
        """
        made = self._comparison
        older = made.put_older() if rng.random() < 0.5 else made.remove()

        def check_all(what: str) -> None:
            _watched.close()
            found = made.found()
            assert found is None or found in (made.models, older), what
            finalize(made.results)
            assert made.found() == made.models, what
            # Folders of a process that is gone are removed by the next one.
            others = {path.name for path in made.folder.glob("[!.]*")}
            assert others == {"decision.json", "experiment.json", "model"}, what

        with ExitStack() as _watched:
            _watched.enter_context(watching(made.folder, steps))
            yield check_all

    def flip_bit_of_unfinished(self, rng: np.random.Generator) -> None:
        """A bit of a file of a run flips; resumed, the run is refused in one line or
        ends as if none had.
        """
        directory = self._copy("half")
        name = self._flip(directory, rng)
        try:
            start(directory, resume=True)
        except ValueError as error:
            assert "\n" not in str(error), name
        else:
            assert measured(directory) == self.whole, name

    def flip_bit_of_finished(self, rng: np.random.Generator) -> None:
        """A bit of a file of a finished run flips; a report reads what was written, or
        refuses it in one line.
        """
        self._flip_and_use("whole", rng, self._read, self._facts)

    def flip_bit_of_models(self, rng: np.random.Generator) -> None:
        """A bit of an export flips."""
        directory = self._copy("models")
        name = self._flip(directory, rng)
        try:
            found = load_models(directory)
        except ValueError as error:
            assert "\n" not in str(error), name
            return
        assert found.keys() == self._models.keys(), name
        assert all(
            np.array_equal(found[client].theta, theta)
            for client, theta in self._models.items()
        ), name

    def flip_bit_of_federation(self, rng: np.random.Generator) -> None:
        """A bit of a saved federation flips."""
        path = self._copy("federation")
        self._flip(path, rng)
        try:
            found = load(path)
        except ValueError as error:
            assert "\n" not in str(error)
            return
        assert found.names == FEDERATION.names and np.array_equal(found.x, FEDERATION.x)
        assert np.array_equal(found.y, FEDERATION.y)

    def flip_bit_of_calibration(self, rng: np.random.Generator) -> None:
        """A bit of the file of sets and temperatures flips."""
        directory = self._copy("calibration")
        self._flip(directory, rng)
        try:
            found = read_calibration(directory)
        except ValueError as error:
            assert "\n" not in str(error)
            return
        assert found.as_dict() == self._calibration.as_dict()

    def flip_bit_of_trees(self, rng: np.random.Generator) -> None:
        """A bit of a file of boosted trees flips."""
        path = self._copy("trees")
        self._flip(path, rng)
        try:
            found = load_boosted(path)
        except ValueError as error:
            assert "\n" not in str(error)
            return
        x = FEDERATION.x
        assert np.array_equal(found.outputs(x), self._trees.outputs(x))

    def flip_bit_of_boosting(self, rng: np.random.Generator) -> None:
        """A bit of the file of a boosting that is under way flips."""
        path = self._copy("boosting")
        self._flip(path, rng)
        try:
            found, origin = load_progress(path)
        except ValueError as error:
            assert "\n" not in str(error)
            return
        x = FEDERATION.x
        assert np.array_equal(found.model.outputs(x), self._trees.outputs(x))
        assert found.losses == self._boosting.losses and origin == {"job": "a"}

    def flip_bit_of_boosted(self, rng: np.random.Generator) -> None:
        """A bit of a run of federated boosting on a table flips."""
        self._flip_and_use("boosted", rng, self._use, self._uses_of_trees)

    def flip_bit_of_opened(self, rng: np.random.Generator) -> None:
        """A bit of a run on a table flips; its models predict and are described as
        before, or it is refused.
        """
        self._flip_and_use("opened", rng, self._use, self._uses)

    def flip_bit_of_final(self, rng: np.random.Generator) -> None:
        """A bit of final models flips, of their record or of a run in them."""
        self._flip_and_use("final", rng, self._use_final, self._final_uses)

    def _make_final(self, directory: Path) -> None:
        """Final models of the run on a table, as `fedtailor finalize` lays them out."""
        shutil.copytree(self.folder / "opened", directory / RUNS / "opened")
        names = open_run(self.folder / "opened").names
        FinalModels(
            run="opened",
            clients={name: Expectation("opened", "m", 0.8, 0.7, 0.9) for name in names},
            metric="accuracy",
            splits=3,
            rows=100,
            digest_of="",
        ).write(directory)

    def _use_final(self, directory: Path) -> str:
        """All that is made of final models: predictions, a list, a card."""
        predicted = predictions(models_at(directory), self._table, None).to_dicts()
        listed = [entry | {"run": None} for entry in list_models(directory)]
        card = model_card(runs_of_clients(directory, ["a"])["a"], "a")
        return json.dumps([predicted, listed, card], default=str)

    def _flip_and_use(
        self,
        kind: str,
        rng: np.random.Generator,
        use: Callable[[Path], str],
        expected: str,
    ) -> None:
        """Flip a bit of a run that has ended: what is made of it is as expected, or
        refused in one line.
        """
        directory = self._copy(kind)
        name = self._flip(directory, rng)
        try:
            found = use(directory)
        except ValueError as error:
            assert "\n" not in str(error), name
        else:
            assert found == expected, name

    def _use(self, directory: Path) -> str:
        """All that is made of the models of a run: what they predict, lists, a card,
        what the method tells.
        """
        predicted = predictions(
            models_at(directory),
            self._table,
            None,
            coverage=0.8,
            calibrated=True,
            calibration=calibration_at(directory),
        ).to_dicts()
        listed = [entry | {"run": None} for entry in list_models(directory)]
        told = [f"{one}" for one in StoredRun(directory).diagnostics.values()]
        return json.dumps(
            [predicted, listed, told, model_card(open_run(directory), "a")], default=str
        )

    def _fresh(self, name: str) -> Path:
        """A directory that is not there, whose path nothing else begins with."""
        path = self.folder / "try" / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(exist_ok=True)
        return path

    def _copy(self, name: str) -> Path:
        original, path = self.folder / name, self.folder / "try" / name
        path.parent.mkdir(exist_ok=True)
        if original.is_file():
            shutil.copy(original, path)
        else:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(original, path)
        return path

    def _flip(self, path: Path, rng: np.random.Generator) -> str:
        """Flip a random bit of a file, or of a random file of a directory."""
        files = (
            [path]
            if path.is_file()
            else sorted(entry for entry in path.rglob("*") if entry.is_file())
        )
        file = files[rng.integers(len(files))]
        content = bytearray(file.read_bytes())
        place = int(rng.integers(8 * len(content)))
        content[place // 8] ^= 1 << (place % 8)
        file.write_bytes(content)
        return f"{file.name}, bit {place}"

    def _read(self, directory: Path) -> str:
        """All that a report reads of a run."""
        run = StoredRun(directory)
        summary = {
            name: value for name, value in run.summary.items() if "seconds" not in name
        }
        summary["digests"] = sorted(summary["digests"])
        frames = [
            run.clients.to_dicts(),
            run.metrics.to_dicts(),
            run.ledger.frame().to_dicts(),
        ]
        manifest = {
            name: table for name, table in run.manifest.items() if name != "versions"
        }
        return json.dumps([summary, manifest, *frames], sort_keys=True, default=str)


class Comparison:
    """A comparison on a small table, whose choice is refitted.

    Attributes:
        results: its results.
        folder: of the experiment, in which final models are.
        models: the parameters of each client's final model, of an undisturbed call.
        steps: changes of files in such a call.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        rng = np.random.default_rng(0)
        rows = ["site,age,sick"]
        for site in "abc" * 30:
            age = rng.normal(50, 9)
            rows.append(f"{site},{age:.1f},{'yes' if age > 50 else 'no'}")
        (folder / "ill.csv").write_text("\n".join(rows) + "\n")
        self.results = folder / "results"
        options = "--client site --target sick --algorithms local fedavg --lr 0.3"
        options += " --rounds 3 --seeds 0 --baselines"
        command = ["compare", str(folder / "ill.csv"), *options.split()]
        assert main([*command, "--out", str(self.results)]) == 0
        self.folder = self.results / "ill"
        finalize(self.results)  # compiled programs are written, too
        self.remove()
        counted = Steps()
        with watching(self.folder, counted):
            finalize(self.results)
        self.steps, self.models = counted.count, self.found()
        finalize(self.results, method="fedavg", out=folder / "older")
        self._older = folder / "older"

    def put_older(self) -> dict[str, bytes]:
        """Put final models of another call there, and return their parameters."""
        self.remove()
        shutil.copytree(self._older, self.folder / "model")
        found = self.found()
        assert found is not None
        return found

    def found(self) -> dict[str, bytes] | None:
        """The parameters of the final models that are there; None if none are."""
        if not (self.folder / "model").exists():
            return None
        assert all(one.whole for one in check(self.folder / "model"))
        models = models_at(self.folder / "model")
        return {name: np.asarray(it.theta).tobytes() for name, it in models.items()}

    def remove(self) -> None:
        """Remove the final models."""
        shutil.rmtree(self.folder / "model", ignore_errors=True)


FAULTS = (
    "kill",
    "fill_disk",
    "kill_finalize",
    "fill_disk_in_finalize",
    "flip_bit_of_unfinished",
    "flip_bit_of_finished",
    "flip_bit_of_models",
    "flip_bit_of_federation",
    "flip_bit_of_calibration",
    "flip_bit_of_trees",
    "flip_bit_of_boosting",
    "flip_bit_of_boosted",
    "flip_bit_of_opened",
    "flip_bit_of_final",
)
