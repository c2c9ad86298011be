"""Where the processor time of the tests goes: by folder, and by what it is spent on.

    python benchmarks/suite.py --out /tmp/suite -m 'not slow and not repeated'
    python benchmarks/suite.py --out /tmp/suite --table      # of a run that was measured
    python benchmarks/suite.py --out /tmp/suite --table --slow 1    # and writes tests/slow.txt

The first runs pytest with these arguments, compiled programs in an empty folder of its
own, and writes a line a test to `OUT`. With `--sample 10` it runs one test of ten, which
is enough to see where the time goes.

Every 10 ms of processor time a signal looks which
Python functions are running, and adds the processor time since the last look to what the
innermost of them is known for. So a call into XLA counts as compiling as a whole, though
Python sees nothing of it, and in whichever thread it is done. Time of processes that a
test starts is that of those that have ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = ROOT / "tests" / "slow.txt"
CAUSES = {
    "compiling": "XLA",
    "cache": "compiled programs to and from disk",
    "lowering": "from jaxprs to XLA's language",
    "tracing": "from Python to jaxprs",
    "importing": "modules, without the next line's part",
    "shapes": "checks of array shapes by beartype, and their making",
    "running": "everything else: compiled programs, NumPy, Python, pytest",
    "processes": "processes that tests start",
}
# Where a frame belongs that stands in a file whose path holds one of these pieces.
PLACES = (
    ("/jax/_src/compiler.py", "compiling"),
    ("/jax/_src/compilation_cache.py", "cache"),
    ("/jax/_src/interpreters/mlir.py", "lowering"),
    ("/jax/_src/interpreters/partial_eval.py", "tracing"),
    ("importlib._bootstrap", "importing"),
)
SHAPES = ("/jaxtyping/", "/beartype/", "<@beartype")
OWN = (f"{ROOT}/src/", f"{ROOT}/tests/")


def cause_of(frame):
    """What the innermost known function on the stack of `frame` is known for."""
    outside = True
    while frame is not None:
        file = frame.f_code.co_filename
        # A function of ours that checks its arguments runs below the check: only above
        # the innermost of ours does a frame of beartype mean that it is at work.
        if outside and any(piece in file for piece in SHAPES):
            return "shapes"
        if file.startswith(OWN):
            outside = False
        for piece, cause in PLACES:
            if piece in file:
                return cause
        frame = frame.f_back
    return "running"


class Clock:
    """The processor seconds of this process by cause, since the last `take`."""

    def __init__(self):
        self.seconds = defaultdict(float)
        self.before, self.children = self._times()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)

        self.programs = 0

    def count(self, event, seconds, **about):
        self.programs += event == "/jax/core/compile/backend_compile_duration"

    def _times(self):
        times = os.times()
        return (
            times.user + times.system,
            times.children_user + times.children_system,
        )

    def _look(self, signum, frame):
        now, _ = self._times()
        self.seconds[cause_of(frame)] += now - self.before
        self.before = now

    def take(self):
        now, children = self._times()
        self.seconds["running"] += now - self.before
        self.seconds["processes"] += children - self.children
        self.before, self.children = now, children
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        programs, self.programs = self.programs, 0
        return programs, taken


# The plugin for pytest
# --------------------------------------------------------------------------------------

if "FEDTAILOR_SUITE_OUT" in os.environ and __name__ == "benchmarks.suite":
    import pytest

    clock = Clock()
    # the process that hands tests to others runs none, and their time is no longer its
    distributing = False

    def pytest_configure(config):
        global distributing
        distributing = bool(
            getattr(config.option, "numprocesses", None)
        ) and not hasattr(config, "workerinput")

    def write(test):
        if distributing:
            return
        out = Path(os.environ["FEDTAILOR_SUITE_OUT"])
        programs, seconds = clock.take()
        line = json.dumps({"test": test, "programs": programs, **seconds})
        with (out / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(line + "\n")

    def pytest_collection_finish():
        import jax  # not before the tests' settings

        jax.monitoring.register_event_duration_secs_listener(clock.count)
        write("collection")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item):
        result = yield
        write(item.nodeid)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config, items):
        """Of `FEDTAILOR_SUITE_SAMPLE` tests one, by their names."""
        one_of = int(os.environ["FEDTAILOR_SUITE_SAMPLE"])
        drawn = [zlib.crc32(item.nodeid.encode()) % one_of == 0 for item in items]
        left = [item for item, taken in zip(items, drawn, strict=True) if not taken]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item, taken in zip(items, drawn, strict=True) if taken]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish():
        write("end")


# The table
# --------------------------------------------------------------------------------------


def read(out):
    """[(test, {cause: seconds}, XLA's programs)] of a measured run."""
    lines = []
    for file in sorted(out.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            test, programs = record.pop("test"), record.pop("programs")
            lines.append((test, record, programs))
    return lines


def folder_of(test):
    """`tests/remote` of `tests/remote/test_keys.py::test_it`; `tests` of what stands there."""
    path = test.partition("::")[0]
    return "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]


def table(lines):
    """Processor seconds by folder and cause, the largest folder first, in Markdown."""
    folders = defaultdict(lambda: defaultdict(float))
    for test, seconds, _ in lines:
        for cause, value in seconds.items():
            folders[folder_of(test)][cause] += value
            folders["all"][cause] += value
    rows = sorted(folders.items(), key=lambda row: -sum(row[1].values()))
    text = [
        f"| folder | all | {' | '.join(CAUSES)} |",
        "|---|" + "---:|" * (len(CAUSES) + 1),
    ]
    for name, seconds in rows:
        cells = [sum(seconds.values()), *(seconds[cause] for cause in CAUSES)]
        text.append(f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")
    return "\n".join(text)


def write_slow(lines, limit):
    """Writes `SLOW`: what took more than `limit` seconds, and how many; but of each file
    the cheapest third is not slow. Tests that it names and that were not measured stay.
    """
    files, measured = defaultdict(list), set()
    for test, seconds, _ in lines:
        if "::" in test:
            files[test.partition("::")[0]].append((sum(seconds.values()), test))
            measured.add(test)
    before = SLOW.read_text().splitlines() if SLOW.exists() else []
    head = [line for line in before if line.startswith("#")]
    slow = {}
    for line in before[len(head) :]:
        cost, test = line.split(" ", 1)
        if test not in measured:
            slow[test] = float(cost)
    for of_file in files.values():
        of_file.sort()
        for cost, test in of_file[-(-len(of_file) // 3) :]:
            if cost > limit:
                slow[test] = cost
    text = [*head, *(f"{slow[test]:.1f} {test}" for test in sorted(slow))]
    SLOW.write_text("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for lines")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument(
        "--sample", type=int, default=1, help="run one of so many tests"
    )
    parser.add_argument("--longest", type=int, default=0, help="so many tests, too")
    parser.add_argument(
        "--slow", type=float, help="name those above so many seconds in tests/slow.txt"
    )
    options, arguments = parser.parse_known_args()
    status = 0
    if not options.table:
        options.out.mkdir(parents=True, exist_ok=True)
        for file in options.out.glob("*.jsonl"):
            file.unlink()
        with tempfile.TemporaryDirectory() as cache:
            paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "FEDTAILOR_SUITE_OUT": str(options.out),
                "FEDTAILOR_SUITE_SAMPLE": str(options.sample),
                "JAX_COMPILATION_CACHE_DIR": cache,
            }
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "benchmarks.suite",
                *arguments,
            ]
            status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    lines = read(options.out)
    print(table(lines))
    if options.slow is not None:
        write_slow(lines, options.slow)
    tests = [line for line in lines if "::" in line[0]]
    tests.sort(key=lambda line: -sum(line[1].values()))
    for test, seconds, programs in tests[: options.longest]:
        print(f"{sum(seconds.values()):7.1f} s, {programs:4} programs: {test}")
    return status


if __name__ == "__main__":
    sys.exit(main())
