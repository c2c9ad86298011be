"""Compares a federation of processes on this machine with its simulation.

Run `python -m fedtailor.remote.demo [DIR]`. A coordinator and four clients, each with
its own file and key, communicate over TLS on the loopback interface. One client is
killed after some rounds, and restarted. The personal models must be equal to those of
the simulation.
"""

import os
import socket
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

from fedtailor._base.memory import save_memory
from fedtailor._base.printable import say, say_block
from fedtailor.engine.client.pool import client_split_sizes
from fedtailor.engine.runs import Run
from fedtailor.engine.storage import Unusable, load_models
from fedtailor.engine.storage.run_files import METRICS, read_frame
from fedtailor.lab import scenarios
from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.examples import read_all
from fedtailor.remote.job.job import read_job
from fedtailor.remote.keys.keys import require_packages
from fedtailor.remote.keys.kit import JOB, make_federation, read_kit
from fedtailor.remote.simulation import simulate_job

NAMES = ("north", "east", "south", "west")
METHOD = """\
[method]
use = "ucfl"
streams = 2
sgd = { lr = 0.05, momentum = 0.9, epochs = 1, batch_size = 32 }
"""
ROUNDS = 6
KILLED = "east"
"""Name of the client that is killed."""
KILLED_AFTER = 2
"""The round after which it is killed."""
WAIT_S = 180.0
"""Seconds to wait for a round."""
STOP_S = 10.0
"""Seconds that a process may take to terminate."""

JOB_FILE = """\
title = "rotated digits"
[coordinator]
address = "127.0.0.1:{port}"
[data]
target = "digit"
classes = [{classes}]
val = 0.0
test = 0.2
[data.columns]
{columns}[model]
use = "mlp"
hidden = 32
{method}[training]
rounds = {rounds}
minimum = {minimum}
deadline = {deadline}
{privacy}"""

OPEN_POLICY = """\
# These clients let the coordinator see their own updates and measurements.
secure_aggregation_only = false
federated_statistics = true
measurements = true
"""

COMMAND = (
    "import sys; from fedtailor.cli import main; raise SystemExit(main(sys.argv[1:]))"
)


def main(arguments: list[str]) -> int:
    """Run the demonstration in the given directory, or in a temporary one.

    Returns:
        The exit code: 0 if both results are equal.
    """
    require_packages()
    save_memory()
    with ExitStack() as stack:
        if not arguments:
            arguments = [stack.enter_context(tempfile.TemporaryDirectory())]
        federation = Path(arguments[0]) / "digits"
        files = prepare(federation)
        say(f"Simulating UCFL with two streams, {ROUNDS} rounds")
        simulated = simulate_demo(federation, files)
        say(
            "The same over TLS: a coordinator and four clients, each a process with its"
            " own file and key",
        )
        deploy(federation, files)
        return compare_demo(federation, simulated)


def prepare(
    directory: Path, method: str = METHOD, rounds: int = ROUNDS, privacy: str = ""
) -> dict[str, Path]:
    """Make the directory of a federation with its keys, and a file for each client.

    The digits of each client are rotated by another angle.

    Args:
        directory: directory of the federation.
        method: the table [method] of the job.
        rounds: number of rounds.
        privacy: the table [privacy] of the job, if any.

    Returns:
        The file of each client, by name.
    """
    images = scenarios.find("digits-rotated").build(0, clients=len(NAMES))
    pixels = (images.x - images.shift) * images.scale
    x = pixels.reshape(len(pixels), -1).astype(np.float32)
    columns = [f"p{number}" for number in range(x.shape[1])]
    directory.parent.mkdir(parents=True, exist_ok=True)
    job = directory.parent / f"{directory.name}-job.toml"
    job.write_text(
        JOB_FILE.format(
            port=free_port(),
            classes=", ".join(f'"{digit}"' for digit in range(10)),
            columns="".join(f'{column} = "number"\n' for column in columns),
            method=method,
            rounds=rounds,
            minimum=len(NAMES),
            deadline=WAIT_S,
            privacy=privacy,
        )
    )
    make_federation(directory, NAMES, job=job)
    files = {}
    for client, name in enumerate(NAMES):
        splits = (images.train, images.val, images.test)
        rows = np.concatenate([split[client] for split in splits])
        frame = pl.DataFrame(x[rows], schema=columns, orient="row")
        digits = pl.Series(images.y[rows].astype(str))
        files[name] = directory / f"{name}.csv"
        frame.with_columns(digit=digits).write_csv(files[name])
        kit = directory / "kits" / name
        (kit / JOB).write_bytes((directory / JOB).read_bytes())
        (kit / POLICY).write_text(OPEN_POLICY)
    return files


def simulate_demo(
    directory: Path, files: Mapping[str, Path], replay: Path | None = None
) -> Run:
    """Run the job as a simulation, with late answers as in the run `replay`."""
    job = read_job(directory / JOB)
    clients, statistics = read_all(job, dict(sorted(files.items())))
    sizes = zip(clients.names, client_split_sizes(clients).tolist(), strict=True)
    say(f"{dict(sizes)} train, val, test")
    return simulate_job(job, clients, statistics, replay=replay)


def deploy(
    directory: Path, files: Mapping[str, Path], killed: str | None = KILLED
) -> None:
    """Run the job as processes.

    Args:
        directory: directory of the federation.
        files: the file of each client, by name.
        killed: name of the client that is killed after some rounds and restarted; None
            for no client.

    Raises:
        RuntimeError: the coordinator failed.
    """
    with (
        clients_of(directory, files) as clients,
        (directory / "serve.log").open("wb") as log,
    ):
        coordinator = start(["serve", str(directory), "--listen", "127.0.0.1"], log)
        try:
            if killed is not None:
                wait_for_round(directory, KILLED_AFTER, coordinator)
                clients[killed].kill()
                clients[killed].wait()
                say(
                    f"killed {killed} after round {rounds_done(directory)}; starting it"
                    " again",
                )
                clients[killed] = start_client(directory, killed, files)
            code = coordinator.wait(WAIT_S * 2)
        finally:
            stop(coordinator)
    if code:
        raise RuntimeError(
            f"the coordinator ended with {code}; see {directory / 'serve.log'}"
        )


@contextmanager
def clients_of(
    directory: Path, files: Mapping[str, Path]
) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Start a process for each client, and stop them at the end of the block."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in files:
            processes[name] = start_client(directory, name, files)
        yield processes
    finally:
        # All are asked to end before any is waited for.
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            stop(process)


def start_client(
    directory: Path, name: str, files: Mapping[str, Path]
) -> "subprocess.Popen[bytes]":
    """Start a client, whose output is appended to NAME.log."""
    with (directory / f"{name}.log").open("ab") as log:
        return start(join_command(directory, name, files), log)


def start(arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process that runs a command of `fedtailor federation`."""
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


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a process, and kill it if it does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Find a port that is not in use at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def rounds_done(directory: Path) -> int:
    """The number of rounds that the coordinator has evaluated and saved."""
    try:
        return int(str(read_frame(directory / "run" / METRICS)["round"].max()))
    except Unusable:
        return 0


def wait_for_round(
    directory: Path, round: int, coordinator: "subprocess.Popen[bytes]"
) -> None:
    """Wait until the coordinator has saved a round.

    Raises:
        RuntimeError: the coordinator ended, or takes too long.
    """
    end = time.monotonic() + WAIT_S
    while rounds_done(directory) < round:
        if coordinator.poll() is not None or time.monotonic() > end:
            raise RuntimeError(
                f"round {round} was not reached; see {directory / 'serve.log'}"
            )
        time.sleep(0.2)


def compare_demo(directory: Path, simulated: Run) -> int:
    """Print both results.

    Returns:
        The exit code: 0 if all personal models are equal to the bit.
    """
    frame = read_frame(directory / "run" / METRICS).filter(
        (pl.col("metric") == "accuracy")
        & (pl.col("split") == "test")
        & (pl.col("round") == pl.col("round").max())
    )
    deployed = dict(zip(frame["client"], frame["value"], strict=True))
    accuracies = simulated.metrics.values("accuracy")
    expected = dict(zip(simulated.federation.names, accuracies, strict=True))
    models = stored_models(directory, list(expected))
    say_block(
        f"\n{'client':<8}  simulated  machines  largest difference between the two"
        " models"
    )
    largest = 0.0
    for name, accuracy in expected.items():
        difference = float(np.abs(models[name] - simulated.personal(name).theta).max())
        largest = max(largest, difference)
        say(f"{name:<8}  {accuracy:9.4f}  {deployed[name]:8.4f}  {difference:.1e}")
    if deployed == expected and largest == 0:
        say(
            "The machines' personal models and accuracies are equal to the"
            " simulation's, to the bit."
        )
        return 0
    say("The two differ.")
    return 1


def stored_models(directory: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Load the parameters of the personal models that clients have stored, by name."""
    thetas = {}
    for name in names:
        kit = read_kit(directory / "kits" / name)
        path = ClientStore(kit.state, kit.job.identity).directory / PERSONAL
        thetas[name] = load_models(path)[name].theta
    return thetas


def join_command(directory: Path, name: str, files: Mapping[str, Path]) -> list[str]:
    """The arguments of the command with which a client joins."""
    return ["join", str(directory / "kits" / name), "--data", str(files[name])]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
