"""A command that ends with the process that started it: `fedtailor`, or a script.

Standard input is a pipe whose other end the starting process alone has. When that end
is closed, or its process is killed, this one gets SIGTERM: runs save their last round.

python benchmarks/workers/queued.py LOCK fedtailor compare FILE.toml
python benchmarks/workers/queued.py LOCK SCRIPT.py --option
"""

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from filelock import FileLock


def _end_with_parent() -> None:
    # Not sys.stdin, whose lock would be held when this process ends by itself.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    lock, program, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The worker of a queue that was killed finishes its round first.
    with FileLock(lock):
        if program == "fedtailor":
            from fedtailor.cli import main as fedtailor

            return fedtailor(arguments)
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
