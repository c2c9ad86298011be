"""The queue of experiments whose results are still missing: runs them one after the
other, in the background of all other work.

python benchmarks/evidence.py                 run what is missing, most worth first
python benchmarks/evidence.py --list          what is done, running, missing
python benchmarks/evidence.py --only NAME     one of them (or several)
python benchmarks/evidence.py --minutes 30    stop after so long
python benchmarks/evidence.py --cores 1       leave the other cores alone

evidence.toml lists the experiments. Their runs are kept in a directory outside the
repository, with a log of each experiment; the tables of a finished one go into
results/NAME, ready to be committed, with evidence.json, which says of which settings
they are. An experiment is missing while results/NAME has no such file, or has that of
other settings. The queue may be killed at any moment and started again: Ctrl-C, SIGTERM
and --minutes save the round that is under way, `kill -9` loses at most a minute.
An experiment that fails is recorded with its error, and the queue goes on; it is tried
again when the queue is started again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import platformdirs
from measuring import cores, load, machine
from rich.console import Console
from rich.table import Table

from fedtailor._base.choice import require
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import DirectoryLock, Unusable
from fedtailor.engine.storage.comparison_index import read_index
from fedtailor.engine.storage.lock import LOCK
from fedtailor.engine.storage.run_files import COMPARISON_INDEX
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORKER = HERE / "workers" / "queued.py"
RECORD = "evidence.json"
RUNNING = "running"
"""The file that holds the name of the entry that is run now."""
ESTIMATES = ("plan", "rounds", "guess")
"""What core hours rest on: `compare --plan`, some rounds, or nothing."""
NICENESS = 10
GRACE = 900.0
"""Seconds in which a stopped experiment may finish and save its round."""


@dataclass(frozen=True)
class Item:
    """An entry of the queue.

    Attributes:
        name: of its folder in results/.
        fills: which published table or figure.
        core_hours: estimate for all of its runs; None = its results say what they took.
        file: the experiment file.
    """

    name: str
    fills: str
    core_hours: float | None
    file: Path

    def comparison(self, directory: Path) -> Comparison:
        """The experiment, with its runs in a directory.

        Raises:
            ValueError: the experiment file is missing or wrong.
        """
        return Comparison(
            load_experiment(self.file), directory, Settings(), source=self.file
        )

    def digest(self, directory: Path) -> str:
        """A digest of the settings, which says whether results are of this entry."""
        return self.comparison(directory).digest()


@dataclass(frozen=True)
class Progress:
    """How far an entry is.

    Attributes:
        state: done, running, failed, or missing.
        runs: finished runs, and all of them; empty if the experiment file is wrong.
        hours: estimated core hours that are left.
        error: of a failed entry, or of one whose experiment file is wrong.
    """

    state: str
    runs: str
    hours: float
    error: str = ""


@dataclass
class Queue:
    """The entries of a queue, and where they are kept.

    Attributes:
        items: the entries, in their order.
        directory: run directories, logs and errors.
        results: where the tables of finished entries go.
    """

    items: Sequence[Item]
    directory: Path
    results: Path
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, names: Sequence[str]) -> int:
        """Run the missing entries.

        Args:
            names: of the entries to run; empty for all.

        Returns:
            The number of entries that failed.
        """
        failures = 0
        for item in self.items:
            if self.stopping.is_set():
                break
            if names and item.name not in names:
                continue
            try:
                digest = item.digest(self.directory)
                if self._is_done(item, digest):
                    continue
                error = self._run_item(item, digest)
            except (ValueError, OSError) as problem:
                error = str(problem)
            self._record_error(item, error)
            if error and not self.stopping.is_set():
                failures += 1
                _say(f"{item.name}: failed: {error}")
        return failures

    def progress(self, item: Item, running: str | None) -> Progress:
        """How far an entry is, by what is on the disk.

        Args:
            item: the entry.
            running: name of the entry that a queue is running now, if any.
        """
        core_hours = 0.0
        try:
            core_hours = self._core_hours(item)
            comparison = item.comparison(self.directory)
            done = self._is_done(item, comparison.digest())
            finished, runs = comparison.finished(), comparison.experiment.runs
        except ValueError as problem:
            return Progress("wrong", "", core_hours, str(problem))
        error_file = self._file(item, "error")
        error = error_file.read_text("utf-8") if error_file.exists() else ""
        if done:
            return Progress("done", f"{runs} of {runs}", 0.0)
        state = "running" if item.name == running else "failed" if error else "missing"
        left = core_hours * (1 - finished / runs)
        error = "" if state == "running" else error
        return Progress(state, f"{finished} of {runs}", left, error)

    def running(self) -> str | None:
        """Name of the entry that a queue is running now."""
        try:
            os.kill(int((self.directory / LOCK).read_text("utf-8")), 0)
            return (self.directory / RUNNING).read_text("utf-8")
        except (OSError, ValueError):
            # No queue has the lock, or its process has ended.
            return None

    def _run_item(self, item: Item, digest: str) -> str:
        """Run an entry and write its results.

        Returns:
            The error; "" if there is none, or the queue is stopped.
        """
        (self.directory / RUNNING).write_text(item.name, "utf-8")
        started = monotonic()
        commit, begun = _commit(), _now()
        _say(f"{item.name}: {item.fills}")
        # The tables are written by a report of their own.
        compare = ["compare", str(item.file), "--out", str(self.directory), "--json"]
        report = ["report", str(self.directory), item.name]
        report += ["--out", str(self.results), "--compact"]
        for arguments in (compare, report):
            error = self._work(item, arguments)
            if error or self.stopping.is_set():
                return error
        record = {
            "digest": digest,
            "commit": commit,
            "started": begun,
            "finished": _now(),
            "core_hours": self._hours_of_runs(item),
            "machine": machine("jax", "numpy"),
        }
        folder = self.results / item.name
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        _say(f"{item.name}: done in {(monotonic() - started) / 60:.0f} min: {folder}")
        return ""

    def _work(self, item: Item, arguments: Sequence[str]) -> str:
        """Run `fedtailor` in a process of its own, until it ends or the queue stops.

        Returns:
            The error; "" if there is none, or the queue is stopped.
        """
        log = self._file(item, "log")
        lock = str(self.directory / "worker.lock")
        with log.open("a", encoding="utf-8") as errors:
            print(f"{_now()} {' '.join(arguments)}", file=errors, flush=True)
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), lock, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C is for the queue, which ends the worker by its pipe.
                start_new_session=True,
            )
            assert worker.stdin is not None
            while worker.poll() is None and not self.stopping.is_set():
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(0.2)
            stopped = worker.poll() is None
            with suppress(OSError):
                worker.stdin.close()
            try:
                code = worker.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.kill()
                code = worker.wait()
        if code == 0 or stopped:
            return ""
        last = log.read_text("utf-8", "replace").strip().splitlines()[-1]
        return f"ended by signal {-code}" if code < 0 else last

    def _is_done(self, item: Item, digest: str) -> bool:
        return self._record(item).get("digest") == digest

    def _core_hours(self, item: Item) -> float:
        """What all runs of an entry take: an estimate, or what its results took.

        Raises:
            ValueError: there is neither.
        """
        if item.core_hours is not None:
            return item.core_hours
        hours = self._record(item).get("core_hours")
        require(hours is not None, "has no results yet, and lacks 'core_hours'")
        return hours

    def _record(self, item: Item) -> dict[str, Any]:
        """What is known of an entry's results; empty if there are none."""
        try:
            record = json.loads((self.results / item.name / RECORD).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _record_error(self, item: Item, error: str) -> None:
        path = self._file(item, "error")
        if error:
            path.write_text(error, "utf-8")
        else:
            path.unlink(missing_ok=True)

    def _hours_of_runs(self, item: Item) -> float | None:
        """Core hours of an entry's runs, in all starts; None if a run did not measure it."""
        seconds = read_index(self.directory / item.name / COMPARISON_INDEX).core_seconds
        return None if seconds is None else float(f"{seconds / 3600:.2g}")

    def _file(self, item: Item, ending: str) -> Path:
        folder = self.directory / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{item.name}.{ending}"


def read_queue(path: Path) -> list[Item]:
    """The entries of a queue's file.

    Raises:
        ValueError: the file cannot be read, or an entry is wrong.
    """
    try:
        entries = tomllib.loads(path.read_text("utf-8"))["experiment"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not a queue: {error}") from None
    items = [_item(path, entry) for entry in entries]
    names = [item.name for item in items]
    for name in names:
        require(names.count(name) == 1, f"{path}: {name} stands there twice")
    return items


def _item(path: Path, entry: dict[str, Any]) -> Item:
    name = entry.get("name")
    require(isinstance(name, str), f"{path}: an entry stands there without a name")
    require("fills" in entry, f"{path}: {name} lacks 'fills'")
    # What an estimate rests on says how far to trust it.
    together = ("core_hours" in entry) == ("by" in entry)
    require(together, f"{path}: {name} needs both 'core_hours' and 'by', or neither")
    unknown = entry.keys() - {"name", "file", "fills", "core_hours", "by"}
    require(not unknown, f"{path}: {name} has unknown keys: {', '.join(unknown)}")
    hours = entry.get("core_hours")
    if hours is not None:
        is_number = isinstance(hours, int | float)
        require(is_number, f"{path}: core_hours is {hours!r}; it must be a number")
        by, known = entry["by"], ", ".join(ESTIMATES)
        require(by in ESTIMATES, f"{path}: by is {by!r}; it must be one of {known}")
    file = ROOT / "experiments" / f"{name}.toml"
    if "file" in entry:
        file = path.parent / entry["file"]
    require(file.stem == name, f"{path}: {name} is not the name of {file.name}")
    return Item(name, entry["fills"], hours, file)


def show(queue: Queue, names: Sequence[str]) -> None:
    """Print how far all entries are."""
    running = queue.running()
    table = Table("name and what it fills", "state", "runs", "core h left", box=None)
    for column in table.columns[1:]:
        column.no_wrap = True
    total = 0.0
    errors = []
    for item in queue.items:
        if names and item.name not in names:
            continue
        progress = queue.progress(item, running)
        total += progress.hours
        hours = f"{progress.hours:.1f}"
        what = f"{item.name}\n  {item.fills}"
        table.add_row(what, progress.state, progress.runs, hours)
        if progress.error:
            errors.append(f"{item.name}: {progress.error}")
    console = Console(highlight=False)
    console.print(table, markup=False)
    for error in errors:
        console.print(error, markup=False)
    console.print(f"about {total:.1f} core hours left; runs in {queue.directory}")


def _commit() -> str:
    """The commit of the code, with "+" if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        command = [*git, "rev-parse", "--short", "HEAD"]
        commit = subprocess.check_output(command, stderr=subprocess.DEVNULL)
        changed = subprocess.call([*git, "diff", "--quiet", "HEAD", "--", "src"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.decode().strip() + ("+" if changed else "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(text: str) -> None:
    print(f"{_now()} {text} (load {load()})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="what is done and missing")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these experiments only"
    )
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--cores", type=int, help="cores to use (default: all)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=platformdirs.user_cache_path("fedtailor") / "evidence",
        help="of runs, logs and errors (default: %(default)s)",
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results", help="of finished tables"
    )
    parser.add_argument(
        "--queue", type=Path, default=HERE / "evidence.toml", help="the queue's file"
    )
    options = parser.parse_args()
    try:
        items = read_queue(options.queue)
    except ValueError as error:
        parser.error(str(error))
    for name in options.only:
        if name not in {item.name for item in items}:
            parser.error(f"{options.queue} has no {name}; --list shows what it has")
    if options.cores is not None and not 1 <= options.cores <= cores():
        parser.error(f"--cores is {options.cores}; it must be from 1 to {cores()}")
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes}; it must be more than 0")
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot use {options.directory}: {error.strerror}")
    queue = Queue(items, options.directory.resolve(), options.results.resolve())
    if options.list:
        show(queue, options.only)
        return 0
    lock = DirectoryLock(queue.directory)
    try:
        lock.acquire()
    except Unusable as error:
        parser.error(str(error))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: queue.stopping.set())
    if options.minutes is not None:
        timer = threading.Timer(60 * options.minutes, queue.stopping.set)
        timer.daemon = True
        timer.start()
    # At least so nice, also where the shell is nice already.
    os.nice(max(NICENESS - os.nice(0), 0))
    if options.cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    try:
        failures = queue.run(options.only)
    finally:
        (queue.directory / RUNNING).unlink(missing_ok=True)
        lock.release()
    if queue.stopping.is_set():
        _say("stopped; started again, the queue goes on where it was")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
