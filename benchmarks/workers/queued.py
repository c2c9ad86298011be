"""`fedtailor`, as a process that ends with the process that started it.

Standard input is a pipe whose other end the starting process alone has. When that end
is closed, or its process is killed, this one gets SIGTERM: runs save their last round.

python benchmarks/workers/queued.py LOCK compare FILE.toml
"""

import os
import signal
import sys
import threading

from filelock import FileLock

from fedtailor.cli import main as fedtailor


def _end_with_parent() -> None:
    # Not sys.stdin, whose lock would be held when this process ends by itself.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    lock, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The worker of a queue that was killed finishes its round first.
    with FileLock(lock):
        return fedtailor(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
