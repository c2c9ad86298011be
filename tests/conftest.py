"""Settings of every test process and of the processes it starts, made before fedtailor
and JAX are imported.
"""

import itertools
import os
import signal
from importlib.metadata import version
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

FINISHED = itertools.count()
CACHE = Path(__file__).parents[1] / ".cache"
# The command line reads the annotations of its own functions; it and _base hold no
# arrays.
PACKAGE = Path(__file__).parents[1] / "src" / "fedtailor"
CHECKED = [
    f"fedtailor.{part.parent.name}"
    for part in PACKAGE.glob("*/__init__.py")
    if part.parent.name not in ("_base", "cli")
]
# Most of the tests' time is XLA's, which compiles a thousand programs that then run for
# milliseconds: without LLVM's optimisations, and with the older of its two emitters of
# kernels, it takes a third of the time. A program in one piece needs a third of the
# memory maps, of which Linux gives a process 65,530.
QUICK_TO_COMPILE = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# As `_base.xla_flags` says, which is not imported yet.
if [int(part) for part in version("jax").split(".")[:2]] < [0, 11]:
    QUICK_TO_COMPILE.append("--xla_cpu_use_fusion_emitters=false")

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Users have none of these flags. With AS_SHIPPED=1 the tests do without: `make test-all`
# runs those marked `as_shipped`, which claim equal bits, once more like that.
if "AS_SHIPPED" not in os.environ:
    flags = [
        *QUICK_TO_COMPILE,
        os.environ.get("XLA_FLAGS", ""),
    ]  # of two settings of one flag the last one counts
    os.environ["XLA_FLAGS"] = " ".join(flags)
# A job in the background of a script ignores Ctrl-C, and so would all that it starts;
# tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says nothing where others use the processor, too.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")
# Making the checks takes each test process two thirds of what its imports take: CI does it.
if "SHAPES" in os.environ:
    jaxtyping.install_import_hook(CHECKED, "shapes.check")


def pytest_xdist_auto_num_workers():
    """One test process per core that this process may use, within the memory of an
    ordinary machine.
    """
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    )
    return min(cores, 8)


ONE_METHOD = Path(__file__).parent / "conformance"
"""Tests of one method each. What they show in their first setting, they show in all."""
PAGES = Path(__file__).parent / "pages"
"""Tests of the documentation and of the files of results, which `make docs` runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what `make test` runs as `quick` and the rest with the reason why it is left
    out, and sorts: the tests of every method first, method after method, then the slow
    ones.

    A process that runs a method's tests one after another compiles each of its programs
    once, and short tests at the end keep all processes busy to the last.
    """
    import selection  # not before the settings above
    from fedtailor.protocol import Algorithm

    def method(item):
        name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        return name if name in Algorithm.registry else None

    seconds = selection.measured()
    # Of a file whose tests all take longer CI runs the shortest.
    shortest = {}
    for item in items:
        taken = seconds.get(item.nodeid, 0)
        shortest[item.path] = min(taken, shortest.get(item.path, taken))
    longest = {path: max(selection.NIGHTLY_S, it) for path, it in shortest.items()}
    for item in items:
        # Each method is under one of the general checks, whatever it takes.
        if item.nodeid not in seconds or _is_general_check(item):
            continue
        item.add_marker(pytest.mark.slow)
        if seconds[item.nodeid] > longest[item.path]:
            item.add_marker(pytest.mark.nightly)
    repeated = _repeated(items, method, seconds)
    for item in [*repeated, *_further_settings(items)]:
        item.add_marker(pytest.mark.repeated)
        item.add_marker(pytest.mark.nightly)
    for item in items:
        if PAGES in item.path.parents:
            item.add_marker(pytest.mark.pages)
        if not any(item.get_closest_marker(mark) for mark in LEFT_OUT):
            item.add_marker(pytest.mark.quick)

    def turn(item):
        name = method(item)
        if name is not None:
            return 0, name
        return (1 if item.get_closest_marker("slow") else 2), ""

    items.sort(key=turn)


LEFT_OUT = ("slow", "repeated", "pages", "extra", "nightly")


def _is_general_check(item):
    return hasattr(item, "callspec") and "check" in item.callspec.params


def _repeated(items, method, seconds):
    """The further cases of tests that have one for each method, or several for one."""
    import selection  # not before the settings above

    cases = {}
    for item in items:
        if hasattr(item, "callspec"):
            test = f"{item.path.name}::{item.originalname}"
            cases.setdefault((item.path, test), []).append(item)
    found, changed = [], selection.changed_methods()
    for (path, test), of_test in cases.items():
        names = {method(item) for item in of_test} - {None}
        if _is_general_check(of_test[0]) and names:
            pairs = {}
            for item in of_test:
                params = item.callspec.params
                pairs[params["name"], params["check"]] = item
            slow = {pair for pair, item in pairs.items() if item.nodeid in seconds}
            first = selection.covering(pairs, slow)
            others = [pair for pair in pairs if pair not in first]
            second = selection.covering(others, slow)
            for pair in second:
                if pair[0] not in changed:
                    pairs[pair].add_marker(pytest.mark.slow)
            left = [item for pair, item in pairs.items() if pair not in first | second]
        elif len(names) > 2 * selection.EACH_TEST:
            chosen = selection.spread(test, names)
            left = [item for item in of_test if method(item) not in chosen]
        elif path.parent == ONE_METHOD:
            first = {method(item): item for item in reversed(of_test)}
            left = [item for item in of_test if first[method(item)] is not item]
        else:
            continue
        found += [item for item in left if method(item) not in changed]
    return found


def _further_settings(items):
    """Of each slow test with more than a few settings all but a few of them."""
    import selection  # not before the settings above

    settings = {}
    for item in items:
        if hasattr(item, "callspec") and _runs_in_ci(item):
            settings.setdefault((item.path, item.originalname), []).append(item)
    return [
        item for of_test in settings.values() for item in selection.further(of_test)
    ]


def _runs_in_ci(item):
    """Whether a slow test is one of those that CI runs."""
    return item.get_closest_marker("slow") and not item.get_closest_marker("nightly")


# Skips
# --------------------------------------------------------------------------------------
# `make test-all` and CI install everything and set NO_SKIPS: what is skipped all the same
# is listed, and fails the run unless allowed_skips.toml says why it may be.


def pytest_sessionfinish(session):
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if "NO_SKIPS" not in os.environ or terminal is None:
        return
    from skips import judged

    found = judged(terminal.stats.get("skipped", []))
    if any(why is None for _, _, why in found) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """What was skipped, and how many tests took how much processor time, that of the
    processes which they started included.
    """
    if hasattr(terminalreporter.config, "workerinput"):
        return
    if "NO_SKIPS" in os.environ:
        from skips import judged

        for test, reason, why in judged(terminalreporter.stats.get("skipped", [])):
            because = f"allowed: {why}" if why else "NOT ALLOWED"
            terminalreporter.write_line(f"skipped: {test}: {reason} ({because})")
    times, stats = os.times(), terminalreporter.stats
    seconds = sum(times[:4])
    count = sum(len(stats.get(kind, ())) for kind in ("passed", "failed"))
    terminalreporter.write_line(f"{count} tests, {seconds:.0f} s of processor time")


def pytest_runtest_teardown(item):
    """Forget compiled programs in time, as comparisons do."""
    if next(FINISHED) % 20 == 0:
        from fedtailor._base.memory import forget_programs_in_time  # after the settings

        forget_programs_in_time()


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A result directory (see `report.results`). Do not change it."""
    from lab.report.results import build

    return build(tmp_path_factory.mktemp("results"))
