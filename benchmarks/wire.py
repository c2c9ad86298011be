"""Seconds of a round over HTTPS: a coordinator and its clients, in three processes.

Each client answers with the vector that it was sent, and nothing is trained, so that
this is what messages cost: TLS, waiting, digests, checks and the log of a client.

python benchmarks/wire.py                               20 clients, vectors as long as LeNet-5's
python benchmarks/wire.py --clients 100 --numbers 50000  100 clients, 200 kB each way
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np
from measuring import Times, machine

from fedtailor.remote.demo import free_port
from fedtailor.remote.https.client import Connection, answer_messages
from fedtailor.remote.keys.kit import JOB, make_federation, read_kit
from fedtailor.remote.service import connected
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.transport import Responder, send_and_receive

PROCESSES = 2
"""Processes of clients."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument(
        "--numbers", type=int, default=61_706, help="of a vector, each way"
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds")
    parser.add_argument("--join", type=Path, nargs="*", help="answer for these kits")
    options = parser.parse_args()
    if options.join:
        answer(options.join)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder) / "wards"
        names = [f"c{number:03}" for number in range(options.clients)]
        make_federation(directory, names, address=f"127.0.0.1:{free_port()}")
        kits = [directory / "kits" / name for name in names]
        for kit in kits:
            shutil.copy(directory / JOB, kit)
        for first in range(PROCESSES):
            command = [sys.executable, __file__, "--join"]
            command += map(str, kits[first::PROCESSES])
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.terminate)
        connection = stack.enter_context(connected(directory, host="127.0.0.1"))
        vector = np.random.default_rng(0).random(options.numbers, np.float32)
        expected = {"vector": ArraySpec(vector.shape, "float32")}
        seconds = []
        for round in range(options.rounds + 1):
            requests = {
                name: Request(
                    connection.job.identity,
                    round,
                    0,
                    "client",
                    name,
                    deadline=time.time() + 120,
                    arrays={"vector": vector + np.float32(round)},
                )
                for name in names
            }
            begun = perf_counter()
            send_and_receive(
                connection.transport, requests, expected, minimum=len(names)
            )
            seconds.append(perf_counter() - begun)
    print(machine("numpy"))
    print(
        f"{options.clients} clients, {4 * options.numbers:,} bytes each way:"
        f" {Times(tuple(seconds[1:]))} ms a round (minimum / median of"
        f" {options.rounds})"
    )


def answer(kits: list[Path]) -> None:
    """Answer for clients, each in a thread, until this process is ended."""
    threads = []
    for directory in kits:
        kit = read_kit(directory)
        respond = Responder(
            kit.job.identity, kit.name, lambda request: dict(request.arrays)
        )
        thread = threading.Thread(
            target=answer_messages,
            args=(Connection(kit), respond),
            kwargs={"stop": threading.Event()},
        )
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
