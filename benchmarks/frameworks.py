"""Seconds of a round of federated averaging in public frameworks, in a plain PyTorch
loop, and here.

20 clients with 500 digits of MNIST each, batches of 10, one epoch, everyone takes part.
Every contender runs in a process of its own, and they take turns. Before anything is
timed, each must train the same model as fedtailor over the same batches. A framework
that cannot be imported is left out; it may live in a virtual environment of its own:

python benchmarks/frameworks.py --python fedjax=/venvs/fedjax/bin/python --python
pfl=... --python flower=... python benchmarks/frameworks.py --quick     only the MLP,
four clients, three turns
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from digits import Digits, digits
from measuring import cores, load, machine, ratio, show, take_turns
from pytorch_loop import network, to_torch
from rich.console import Console
from rich.table import Table
from rounds import CAREFUL_LR, LR, batch_orders, start
from torch.nn.utils import vector_to_parameters
from workers.worker import Task

HERE = Path(__file__).resolve().parent
CELLS = ("mlp-10", "lenet-10")
TEST_SIZE = 100
"""Test samples of each client."""


@dataclass(frozen=True)
class Framework:
    """Where a contender's worker is, and what must be installed for it."""

    worker: str
    package: str
    install: str = ""
    evaluates: bool = True


FRAMEWORKS = {
    "fedtailor": Framework("of_fedtailor.py", "fedtailor"),
    "loop": Framework("of_pytorch.py", "torch", evaluates=False),
    "fedjax": Framework("of_fedjax.py", "fedjax", "fedjax 'jax<0.6'"),
    "pfl": Framework("of_pfl.py", "pfl.model.pytorch", "pfl torch"),
    "flower": Framework("of_flower.py", "flwr, ray, torch", "'flwr[simulation]' torch"),
}
TOLERANCE = 1e-3
"""Difference of the two models after a round, relative to how far it moved ours."""


@dataclass(frozen=True)
class Contender:
    """A framework on so many processes, in each of them so many threads of PyTorch's or
    devices of JAX's.
    """

    framework: str
    threads: int = 1
    devices: int = 1
    processes: int = 1

    def __str__(self) -> str:
        names = {"loop": "plain PyTorch loop", "pfl": "pfl-research"}
        counts = (
            ("threads", self.threads),
            ("devices", self.devices),
            ("processes", self.processes),
        )
        return ", ".join(
            [
                names.get(self.framework, self.framework),
                *(f"{n} {what}" for what, n in counts if n > 1),
            ]
        )


def contenders() -> list[Contender]:
    """All of them; what does not use every core by itself, as fedtailor and Flower do,
    in each way of using them.
    """
    several = (
        Contender("loop", threads=cores()),
        Contender("fedjax", devices=cores()),
        Contender("pfl", threads=cores()),
        Contender("pfl", processes=cores()),
    )
    return [*map(Contender, FRAMEWORKS), *(several if cores() > 1 else ())]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="FRAMEWORK=PATH",
        help=(
            f"the Python that has a framework ({', '.join(FRAMEWORKS)}); default:"
            " this one"
        ),
    )
    parser.add_argument(
        "--turns", type=int, help="timed rounds of each kind (default 7, quick 3)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the MLP, a fifth of the clients, three turns",
    )
    options = parser.parse_args()
    pythons = dict(given.partition("=")[::2] for given in options.python)
    for name, path in pythons.items():
        if name not in FRAMEWORKS or not os.access(path, os.X_OK):
            parser.error(
                f"--python {name}={path}: give one of {', '.join(FRAMEWORKS)} and the"
                " path of a Python"
            )
    turns = options.turns or (3 if options.quick else 7)

    console = Console(width=150, highlight=False)
    console.print(machine("fedtailor", "jax", "torch"))
    present = {name for name in FRAMEWORKS if installed(name, pythons, console)}
    for name in CELLS[:1] if options.quick else CELLS:
        compare(
            digits(name, 4 if options.quick else 20, TEST_SIZE),
            present,
            pythons,
            turns,
            console,
        )


def installed(name: str, pythons: Mapping[str, str], console: Console) -> bool:
    """Whether a framework can be imported; if not, a line says how to install it."""
    framework, python = FRAMEWORKS[name], pythons.get(name, sys.executable)
    done = subprocess.run(
        [python, "-c", f"import {framework.package}"], capture_output=True, text=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        console.print(
            f"{name} is left out ({why}): python -m venv /venvs/{name} &&"
            f" /venvs/{name}/bin/pip install {framework.install or name}, then --python"
            f" {name}=/venvs/{name}/bin/python",
            soft_wrap=True,
            markup=False,  # brackets of extras
        )
    return not done.returncode


def compare(
    cell: Digits,
    present: set[str],
    pythons: Mapping[str, str],
    turns: int,
    console: Console,
) -> None:
    """Check and time the contenders on one cell, and print a table."""
    with TemporaryDirectory() as folder:
        model = prepare(cell, Path(folder))
        with processes(
            [c for c in contenders() if c.framework in present], pythons, Path(folder)
        ) as workers:
            differences = {
                contender: worker.difference(model)
                for contender, worker in workers.items()
            }
            times = take_turns(
                {
                    f"{contender}, {kind}": partial(worker.ask, kind)
                    for contender, worker in workers.items()
                    for kind in ("train", "evaluate")
                    if kind == "train" or FRAMEWORKS[contender.framework].evaluates
                },
                turns,
            )
    title = (
        f"{cell.name}, {len(cell.sizes)} clients, {cell.federation.name}; minimum /"
        f" median of {turns} turns, ms"
    )
    table = Table(
        "contender",
        "training",
        "with evaluation",
        "training : ours",
        "both : ours",
        "difference",
        title=title,
    )
    ours = next(iter(workers))
    for contender in workers:
        kinds = [
            (times.get(f"{contender}, {kind}"), times[f"{ours}, {kind}"])
            for kind in ("train", "evaluate")
        ]
        table.add_row(
            str(contender),
            *(str(theirs or "") for theirs, _ in kinds),
            *(ratio(theirs, mine) if theirs else "" for theirs, mine in kinds),
            f"{differences[contender]:.0e}",
        )
    show(console, table, "frameworks", "jax")
    console.print(f"load {load()}")


def prepare(cell: Digits, folder: Path) -> torch.Tensor:
    """Write down the task; fedtailor's model after a round of it, over batches in the
    order written there.
    """
    training = start(cell, CAREFUL_LR)
    theta, net, federation = (
        to_torch(cell, np.asarray(training.server.model[0])),
        network(cell),
        cell.federation,
    )
    vector_to_parameters(theta, net.parameters())
    torch.save(net, folder / "network.pt")
    training.advance()
    x, y, train, test = federation.x, federation.y, federation.train, federation.test
    clients = range(len(cell.sizes))
    Task(
        cell.name,
        *(
            np.stack([values[rows[client]] for client in clients])
            for rows in (train, test)
            for values in (x, y)
        ),
        order=np.stack(batch_orders(cell, training)),
        theta=theta.numpy(),
        batch_size=cell.batch_size,
        lr=LR,
        careful_lr=CAREFUL_LR,
    ).save(folder)
    return to_torch(cell, np.asarray(training.server.model[0]))


class Worker:
    """A contender's process."""

    def __init__(self, contender: Contender, python: str, folder: Path) -> None:
        self.contender, self.folder = contender, folder
        torchrun = [
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={contender.processes}",
        ]
        devices = f"--xla_force_host_platform_device_count={contender.devices}"
        script = [
            str(HERE / "workers" / FRAMEWORKS[contender.framework].worker),
            str(folder),
        ]
        paths = [
            str(HERE / "workers"),
            str(HERE),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": str(
                contender.threads
            ),  # of PyTorch; XLA does not look at it
            **({"XLA_FLAGS": devices} if contender.devices > 1 else {}),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.log = folder / f"{contender}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [python, *(torchrun if contender.processes > 1 else []), *script],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdin and self.process.stdout
        self.commands, self.answers = self.process.stdin, self.process.stdout

    def probe_downlink(self, command: str) -> None:
        """Have a command obeyed, and wait.

        Raises:
            SystemExit: the process has failed.
        """
        with suppress(BrokenPipeError):  # its process has ended; the answer says so
            print(command, file=self.commands, flush=True)
        if self.answers.readline() != "done\n":
            last = "\n".join(self.log.read_text().splitlines()[-20:])
            raise SystemExit(
                f"{last}\n{self.contender} failed at {command!r}; above is the end of"
                " what it said"
            )

    def difference(self, model: torch.Tensor) -> float:
        """How far its model lies from ours after the round that checks it, by the way
        that training moved ours.

        Raises:
            SystemExit: they do not agree.
        """
        self.ask("check")
        theirs = np.load(self.folder / "checked.npy")
        before = np.load(self.folder / "task.npz")["theta"]
        found = float(
            np.linalg.norm(theirs - model.numpy())
            / np.linalg.norm(model.numpy() - before)
        )
        if not found < TOLERANCE:
            raise SystemExit(
                f"{self.contender}: its model differs by {found:.1e} of the way that"
                " training moved ours"
            )
        return found

    def close(self) -> None:
        self.commands.close()
        self.process.wait()


@contextmanager
def processes(
    contenders: list[Contender], pythons: Mapping[str, str], folder: Path
) -> Iterator[dict[Contender, Worker]]:
    """The contenders' processes, for as long as they are needed."""
    workers: dict[Contender, Worker] = {}
    try:
        for contender in contenders:
            workers[contender] = Worker(
                contender, pythons.get(contender.framework, sys.executable), folder
            )
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
