"""`python -m fedtailor.remote.demo [DIR]`: a federation of real processes on this
machine, beside its simulation.

A coordinator and four clients, each with a file of its own and known by its key, talk
over TLS on the loopback interface. One client is killed in the middle and comes back.
The personal models must be those of the simulation.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from fedtailor._memory import save_memory
from fedtailor.client.pool import split_sizes
from fedtailor.executors import Settings
from fedtailor.experiments import scenarios
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.examples import read_all
from fedtailor.remote.flower import require_flower
from fedtailor.remote.job import read_job
from fedtailor.remote.kit import JOB, make_federation, read_kit
from fedtailor.remote.plan import plan_of
from fedtailor.remote.processes import free_port, stop
from fedtailor.remote.work import PERSONAL
from fedtailor.runs import Run, run
from fedtailor.storage import Unusable, load_models
from fedtailor.storage.run_files import METRICS, read_frame

NAMES = ("north", "east", "south", "west")
METHOD = (
    '[method]\nuse = "ucfl"\nstreams = 2\nsgd = { lr = 0.05, momentum = 0.9, epochs ='
    " 1, batch_size = 32 }\n"
)
ROUNDS, KILLED, KILLED_AFTER = 6, "east", 2
WAIT_S = 180.0
"""How long to wait for a round."""

COMMAND = (
    "import sys; from fedtailor.cli import main; raise SystemExit(main(sys.argv[1:]))"
)


def main(arguments: list[str]) -> int:
    """Run the demonstration in a directory that is given, or in a temporary one; 0 if
    both results are equal.
    """
    require_flower()
    save_memory()
    with ExitStack() as stack:
        directory = Path(
            arguments[0]
            if arguments
            else stack.enter_context(tempfile.TemporaryDirectory())
        )
        federation = directory / "digits"
        files = prepare(federation)
        print(f"Simulating UCFL with two streams, {ROUNDS} rounds", flush=True)
        simulated = simulate(federation, files)
        print(
            "The same over TLS: a coordinator and four clients, each a process with its"
            " own file and key",
            flush=True,
        )
        deploy(federation, files)
        return compare(federation, simulated)


def prepare(
    directory: Path, method: str = METHOD, rounds: int = ROUNDS, privacy: str = ""
) -> dict[str, Path]:
    """Make a federation's directory with its keys, and a file for each client; client
    -> file.

    Each client sees digits turned by another angle.

    Args:
        directory: to be made.
        method: that table of the job.
        rounds: of training.
        privacy: that table of the job, if any.
    """
    images = scenarios.find("digits-rotated").build(0, clients=len(NAMES))
    x = (
        ((images.x - images.shift) * images.scale)
        .reshape(len(images.x), -1)
        .astype(np.float32)
    )
    columns = [f"p{number}" for number in range(x.shape[1])]
    directory.parent.mkdir(parents=True, exist_ok=True)
    job = directory.parent / f"{directory.name}-job.toml"
    classes = ", ".join(f'"{digit}"' for digit in range(10))
    job.write_text(
        'title = "rotated digits"\n[coordinator]\naddress ='
        f' "127.0.0.1:{free_port()}"\n[data]\ntarget = "digit"\nclasses ='
        f" [{classes}]\nvalidation = 0.0\ntest = 0.2\n[data.columns]\n"
        + "".join(f'{column} = "number"\n' for column in columns)
        + f'[model]\nuse = "mlp"\nhidden = 32\n{method}[training]\nrounds ='
        f" {rounds}\nminimum = {len(NAMES)}\ndeadline = {WAIT_S}\n{privacy}"
    )
    make_federation(directory, NAMES, job=job)
    files = {}
    for client, name in enumerate(NAMES):
        rows = np.concatenate(
            [split[client] for split in (images.train, images.val, images.test)]
        )
        files[name] = directory / f"{name}.csv"
        frame = pl.DataFrame(
            {column: x[rows, place] for place, column in enumerate(columns)}
        )
        frame.with_columns(digit=pl.Series(images.y[rows].astype(str))).write_csv(
            files[name]
        )
        (directory / "kits" / name / JOB).write_bytes((directory / JOB).read_bytes())
    return files


def simulate(directory: Path, files: Mapping[str, Path]) -> Run:
    """The job on this machine."""
    job = read_job(directory / JOB)
    clients, agreed = read_all(job, dict(sorted(files.items())))
    plan = plan_of(job, agreed)
    print(
        {
            name: split_sizes(clients)[place].tolist()
            for place, name in enumerate(clients.names)
        },
        "train, val, test",
    )
    settings = Settings(devices=1, canonical=True)
    return run(
        plan.algorithm,
        clients,
        plan.model,
        job.rounds,
        seed=job.seed,
        participation=job.participation,
        settings=settings,
    )


def deploy(
    directory: Path, files: Mapping[str, Path], killed: str | None = KILLED
) -> None:
    """The job as processes; one client is killed after some rounds, and started again.

    Raises:
        RuntimeError: the coordinator failed.
    """
    with (
        clients_of(directory, files) as clients,
        (directory / "serve.log").open("wb") as log,
    ):
        serving = start(["serve", str(directory), "--listen", "127.0.0.1"], log)
        try:
            if killed is not None:
                wait_for_round(directory, KILLED_AFTER, serving)
                clients[killed].kill()
                clients[killed].wait()
                print(
                    f"killed {killed} after round {rounds_done(directory)}; starting it"
                    " again",
                    flush=True,
                )
                with (directory / f"{killed}.log").open("ab") as again:
                    clients[killed] = start(
                        join_command(directory, killed, files), again
                    )
            code = serving.wait(WAIT_S * 2)
        finally:
            stop(serving)
    if code:
        raise RuntimeError(
            f"the coordinator ended with {code}; see {directory / 'serve.log'}"
        )


@contextmanager
def clients_of(
    directory: Path, files: Mapping[str, Path]
) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """All clients as processes, by name; what they say is in NAME.log."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in files:
            with (directory / f"{name}.log").open("ab") as log:
                processes[name] = start(join_command(directory, name, files), log)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            stop(process)


def start(arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """A command of `fedtailor federation` as a process."""
    command = [sys.executable, "-c", COMMAND, "federation", *arguments]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def rounds_done(directory: Path) -> int:
    """Rounds that the coordinator has measured and saved."""
    try:
        return int(str(read_frame(directory / "run" / METRICS)["round"].max()))
    except Unusable:
        return 0


def wait_for_round(
    directory: Path, round: int, serving: "subprocess.Popen[bytes]"
) -> None:
    """Wait until a round is done.

    Raises:
        RuntimeError: the coordinator ended, or takes too long.
    """
    end = time.monotonic() + WAIT_S
    while rounds_done(directory) < round:
        if serving.poll() is not None or time.monotonic() > end:
            raise RuntimeError(
                f"round {round} was not reached; see {directory / 'serve.log'}"
            )
        time.sleep(0.2)


def compare(directory: Path, simulated: Run) -> int:
    """Print both results; 0 if all personal models are equal to the bit."""
    frame = read_frame(directory / "run" / METRICS).filter(
        (pl.col("metric") == "accuracy")
        & (pl.col("split") == "test")
        & (pl.col("round") == pl.col("round").max())
    )
    deployed = dict(zip(frame["client"], frame["value"], strict=True))
    expected = dict(
        zip(
            simulated.federation.names,
            simulated.metrics.values("accuracy"),
            strict=True,
        )
    )
    models = personal_models(directory, list(expected))
    print(
        f"\n{'client':<8}  simulated  machines  largest difference between the two"
        " models"
    )
    furthest = 0.0
    for name, accuracy in expected.items():
        difference = float(np.abs(models[name] - simulated.personal(name).theta).max())
        furthest = max(furthest, difference)
        print(f"{name:<8}  {accuracy:9.4f}  {deployed[name]:8.4f}  {difference:.1e}")
    if deployed == expected and furthest == 0:
        print(
            "The machines' personal models and accuracies are equal to the"
            " simulation's, to the bit."
        )
        return 0
    print("The two differ.")
    return 1


def personal_models(directory: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The vectors of the personal models that the clients have stored, by name."""
    found = {}
    for name in names:
        kit = read_kit(directory / "kits" / name)
        path = ClientStore(kit.state, kit.job.identity).directory / PERSONAL
        found[name] = load_models(path)[name].theta
    return found


def join_command(directory: Path, name: str, files: Mapping[str, Path]) -> list[str]:
    """The arguments with which a client of the demonstration joins."""
    return ["join", str(directory / "kits" / name), "--data", str(files[name])]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
