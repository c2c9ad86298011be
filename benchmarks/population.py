"""Rounds of a population whose client states are larger than memory: seconds, memory,
disk.

python benchmarks/population.py           one population, step by step
python benchmarks/population.py --flat    rounds of 10,000 and of 1,000,000 clients
"""

import argparse
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import jax
import numpy as np
from measuring import load, machine, show
from rich.console import Console
from rich.table import Table

from fedtailor.algorithms import Ditto, FedAvg
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import simulate
from fedtailor.engine.storage.checkpoint import load_tree, save_tree
from fedtailor.engine.training import Participation, Training
from fedtailor.models import mlp
from fedtailor.protocol import SGD
from fedtailor.statistics.decision import mean_interval

INPUTS, CLASSES, TRAIN, TEST = 16, 10, 10, 2
MODEL = mlp(925).bind((INPUTS,), CLASSES)
"""24,985 parameters: a state of 99,940 bytes."""
PLAIN = SGD(lr=0.01, batch_size=10)
METHOD = Ditto(sgd=PLAIN)
METHODS = {"fedavg": FedAvg(PLAIN), "ditto": METHOD}
"""UCFL and others that compare all pairs of clients are for thousands, not for a million."""
SIZES = (10_000, 1_000_000)
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory",
        type=Path,
        help="on a disk with room for two states of every client",
    )
    parser.add_argument(
        "--flat",
        nargs="*",
        choices=METHODS,
        metavar="METHOD",
        help="compare rounds of a small and of a large population",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    if options.flat is not None:
        table = compared(
            options.flat or METHODS,
            options.sizes,
            options.cohort,
            options.rounds,
            options.directory,
        )
        show(console, table, "population-flat", "jax")
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        console.print(
            measured(options.clients, options.cohort, options.rounds, Path(directory))
        )


def measured(clients: int, cohort: int, rounds: int, directory: Path) -> Table:
    size = 4 * MODEL.size
    title = (
        f"{clients:,} clients x {size:,} bytes = {clients * size / GIB:.1f} GiB of"
        f" states, {cohort:,} in a round"
    )
    table = Table(
        "step",
        "seconds",
        "anonymous memory at most, GiB",
        "disk, GiB",
        "load",
        title=title,
    )
    federation = population(clients)

    def start() -> Training:
        return simulate(
            METHOD,
            federation,
            MODEL,
            participation=Participation(count=cohort),
            directory=directory,
        )

    def step(name: str, call: Callable[[], object]) -> None:
        with peak() as found:
            seconds = timed(call)
        disk = on_disk(directory)
        table.add_row(
            name, f"{seconds:.2f}", f"{found[0] / GIB:.2f}", f"{disk / GIB:.2f}", load()
        )

    def a_round(training: Training) -> None:
        training.advance()
        jax.block_until_ready(training.server)

    def checkpoint() -> None:
        save_tree(directory / "checkpoint", training.snapshot())
        training.executor.saved()

    def touch() -> None:
        for part in np.array_split(np.arange(clients), -(-clients // cohort)):
            training.executor.states.write(
                part, training.executor.states.read(part, len(part))
            )

    training = start()
    for number in range(1, rounds + 1):
        step(f"round {number}", lambda: a_round(training))
    step("checkpoint", checkpoint)
    step("every state read and written once", touch)
    step("a round", lambda: a_round(training))
    step("checkpoint of all of them", checkpoint)
    step("evaluation of all clients", training.evaluate)
    step("a round", lambda: a_round(training))
    expected = training.executor.states.read(np.arange(cohort), cohort)["model"]
    training = start()
    step("resume", lambda: training.restore(load_tree(directory / "checkpoint")))
    step("the same round", lambda: a_round(training))
    np.testing.assert_array_equal(
        training.executor.states.read(np.arange(cohort), cohort)["model"], expected
    )
    return table


def compared(
    methods: Iterable[str],
    sizes: Sequence[int],
    cohort: int,
    rounds: int,
    directory: Path | None,
) -> Table:
    """Rounds of populations of several sizes, whose states are in a file."""
    table = Table(
        "method",
        "clients",
        "a round, s (median, least, most)",
        "anonymous memory at most, GiB",
        "disk, GiB",
        f"evaluation of {cohort:,} clients, s",
        "mean accuracy (95 %)",
        "load",
        title=f"{cohort:,} clients in a round, a model of {4 * MODEL.size:,} bytes",
    )
    for clients in sizes:
        federation = population(clients)
        for name in methods:
            with tempfile.TemporaryDirectory(dir=directory) as folder, peak() as found:
                training = simulate(
                    METHODS[name],
                    federation,
                    MODEL,
                    participation=Participation(count=cohort),
                    evaluate_clients=cohort,
                    settings=Settings(state_limit=0),
                    directory=Path(folder),
                )
                seconds = [timed(training.advance) for _ in range(rounds + 1)][1:]
                evaluation = timed(training.evaluate)
                disk = on_disk(Path(folder))
                accuracy = mean_interval(training.metrics.values(), of=clients)
            table.add_row(
                name,
                f"{clients:,}",
                f"{np.median(seconds):.2f} ({min(seconds):.2f}, {max(seconds):.2f})",
                f"{found[0] / GIB:.2f}",
                f"{disk / GIB:.2f}",
                f"{evaluation:.2f}",
                f"{accuracy.estimate:.3f} ({accuracy.low:.3f} to {accuracy.high:.3f})",
                load(),
            )
    return table


def on_disk(directory: Path) -> int:
    """The bytes that a directory's files take, without the holes of sparse ones."""
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


def timed(call: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    before = perf_counter()
    call()
    return perf_counter() - before


def population(clients: int) -> Federation:
    rng, each = np.random.default_rng(0), TRAIN + TEST
    x, y = (
        rng.integers(0, 256, (clients * each, INPUTS), np.uint8),
        rng.integers(0, CLASSES, clients * each),
    )
    rows = np.arange(len(x)).reshape(clients, each)
    train, test = (
        Ragged.cut(part.ravel(), np.full(clients, part.shape[1]))
        for part in np.split(rows, [TRAIN], axis=1)
    )
    names = tuple(f"client {index}" for index in range(clients))
    return Federation(
        x, y, train, Ragged.empty(clients), test, names, classes=CLASSES, scale=1 / 255
    )


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most anonymous memory of this process meanwhile, in bytes, looked at every 5
    ms (Linux).
    """
    found, done = [anonymous()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            found[0] = max(found[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def anonymous() -> int:
    """Memory of this process that no file stands for."""
    with open("/proc/self/status") as lines:
        return (
            next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            * 2**10
        )


if __name__ == "__main__":
    main()
