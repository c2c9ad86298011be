"""What people may give: command lines, experiment files, tables, manifests. Whatever it
is, it is taken or refused by a `ValueError`, and by the command line in one line."""

import contextlib
import copy
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tomli_w
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fedtailor._base.digests import with_digest
from fedtailor.cli import main
from fedtailor.data.tables import from_table
from fedtailor.engine.storage import check, load_models
from fedtailor.engine.storage.run_files import MANIFEST, SUMMARY
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.report import StoredRun
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.remote.client.policy import read_policy
from fedtailor.remote.job.job import read_job

JUNK = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1",
            "1.5",
            "1e30",
            "10" * 20,
            "nan",
            "inf",
            "None",
            "[",
            "{}",
            "a b",
            "é",
            "\x1b[1m",
            "../x",
            "...",
            "/dev/null",
            "--",
            "-",
            "true",
            "lr=1",
            "fedavg",
            "digits-rotated",
        ]
    ),
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=6,
)
WORDS = st.sampled_from(
    [
        "fedavg",
        "ditto",
        "local",
        "ucfl",
        "nothing",
        "digits-rotated",
        "digits-permuted",
        "table",
        "opened",
        "models",
        "table.csv",
        "a",
        "init",
        "serve",
        "join",
        "predict",
        "simulate",
        "policy",
        "audit",
    ]
)
OPTIONS = st.sampled_from(
    [
        "--rounds",
        "--seed",
        "--participation",
        "--evaluate-every",
        "--out",
        "--resume",
        "--devices",
        "--json",
        "--sgd.lr",
        "--sgd.epochs",
        "--sgd.batch-size",
        "--lam",
        "--clients",
        "--checkpoint-every",
        "--help",
        "--quick",
        "--seeds",
        "--canonical",
        "--init-policy",
        "--any-version",
        "--path",
        "--nothing",
        "-h",
        "--client",
        "--clients",
        "--data",
        "--table",
        "--format",
        "--missing",
        "--unknown",
        "--probabilities",
        "--coverage",
        "--calibrated",
        "--shapley",
        "--permutations",
        "--method",
        "--target",
        "--address",
        "--job",
        "--budget",
        "--track",
    ]
)
COMMANDS = st.sampled_from(
    [
        "run",
        "compare",
        "report",
        "algorithms",
        "scenarios",
        "check",
        "demo",
        "nothing",
        "--version",
        "models",
        "predict",
        "export",
        "card",
        "enroll",
        "unlearn",
        "contributions",
        "diagnose",
        "federation",
    ]
)
TRAINS = (
    "fedtailor.cli.commands.run.train",
    "fedtailor.cli.commands.demo.run",
    "fedtailor.cli.commands.compare.Comparison.run",
    "fedtailor.cli.commands.diagnose.diagnose_federation",
    "fedtailor.deployment.unlearning.run_on",
    "fedtailor.deployment.contributions.run_on",
    "fedtailor.engine.runs.result.newcomer_executor",
)

EXPERIMENT = {
    "title": "Fuzz",
    "seeds": [0, 1],
    "rounds": 2,
    "participation": 0.5,
    "sgd": {"lr": 0.1},
    "scenarios": {"a": {"use": "digits-rotated", "val": 0.25}},
    "algorithms": {
        "FedAvg": {"use": "fedavg", "grid": {"sgd": {"lr": [0.1, 0.2]}}},
        "Ditto": {"use": "ditto", "vary": {"lam": [0.1, 1.0]}},
    },
    "metrics": ["mean"],
    "figures": [],
    "published": {"mean": {"a": {"FedAvg": 1}}},
    "quick": {"rounds": 1},
}


def would_train(*arguments: Any, **options: Any) -> None:
    raise ValueError("this would train")


def try_command_line(arguments: list[str], folder: Path) -> None:
    """Exit code 0 without, or 2 with one line on the standard error; 1 is a fault of
    fedtailor.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        for name in TRAINS:
            stack.enter_context(patch(name, would_train))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(contextlib.chdir(folder))
        code = main(arguments)
    said = err.getvalue()
    usage = said == "" and arguments in ([], ["federation"])
    assert code in (0, 2) and (said.count("\n") == 1 or code == 0 or usage), (
        arguments,
        code,
        said[-500:],
    )
    assert "Traceback" not in said and "fault of fedtailor" not in said, (
        arguments,
        said[-500:],
    )


def try_text(text: str, folder: Path) -> None:
    """An experiment file is an experiment, or refused in one line."""
    path = folder / "e.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_experiment(path)
    except ValueError as error:
        assert "\n" not in str(error), str(error)


def replaced(content: Any, choices: list[int], value: Any) -> Any:
    """A JSON value of which one part, found by choosing down the tree, is another
    one.
    """
    content = copy.deepcopy(content)
    place = content
    for number, choice in enumerate(choices):
        if not isinstance(place, dict | list) or not place:
            break
        key = (
            list(place)[choice % len(place)]
            if isinstance(place, dict)
            else choice % len(place)
        )
        if number == len(choices) - 1 or not isinstance(place[key], dict | list):
            place[key] = value
            break
        place = place[key]
    return content


def without_none(value: Any) -> Any:
    """A value that TOML can hold."""
    if isinstance(value, dict):
        return {
            key: without_none(entry)
            for key, entry in value.items()
            if entry is not None
        }
    if isinstance(value, list):
        return [without_none(entry) for entry in value if entry is not None]
    return value


def try_read(read: Callable[[], Any]) -> None:
    try:
        read()
    except ValueError as error:
        assert "\n" not in str(error), str(error)


class Inputs:
    """Fuzzers that write into a folder; `run` and `models` are a finished run and an
    export of it.
    """

    def __init__(self, folder: Path, run: Path, models: Path) -> None:
        self.folder, self.run, self.models = folder, run, models
        self._summary = json.loads((run / SUMMARY).read_text())
        self._export = json.loads((models / "manifest.json").read_text())
        folder.mkdir(exist_ok=True)
        for there in (run.with_name("opened"), models, run.with_name("table.csv")):
            (folder / there.name).symlink_to(there)

    def command_lines(self, number: int, examples: int) -> int:
        words = st.lists(
            st.one_of(WORDS, OPTIONS, JUNK, st.tuples(OPTIONS, JUNK).map("=".join)),
            max_size=6,
        )
        lines = st.tuples(COMMANDS, words).map(lambda line: [line[0], *line[1]])
        return self._fuzz(
            lines, lambda line: try_command_line(line, self.folder), number, examples
        )

    def experiment_files(self, number: int, examples: int) -> int:
        def edited(choices: list[int], value: Any) -> str:
            return tomli_w.dumps(without_none(replaced(EXPERIMENT, choices, value)))

        good = tomli_w.dumps(EXPERIMENT)
        cuts = st.tuples(
            st.integers(0, len(good)), st.integers(0, 9), st.text(max_size=4)
        ).map(lambda cut: good[: cut[0]] + cut[2] + good[cut[0] + cut[1] :])
        parts = st.builds(
            edited,
            st.lists(st.integers(0, 20), min_size=1, max_size=5),
            VALUES.filter(_is_toml),
        )
        return self._fuzz(
            st.one_of(cuts, parts),
            lambda text: try_text(text, self.folder),
            number,
            examples,
        )

    def nested_files(self, number: int, examples: int) -> int:
        """Files in which names, tables or lists stand in one another, up to very deep."""

        def nested(drawn: tuple[int, str, str]) -> str:
            depth, kind, name = drawn
            around = {
                "dots": (f"{name}." * depth + f"{name} = 1"),
                "table": ("[" + f"{name}." * depth + f"{name}]"),
                "lists": (f"{name} = " + "[" * depth + "]" * depth),
                "inline": (f"{name} = " + "{ a = " * depth + "1" + " }" * depth),
                "json": "[" * depth + "]" * depth,
                "objects": '{"a": ' * depth + "1" + "}" * depth,
            }
            return around[kind]

        def attempt(drawn: tuple[int, str, str]) -> None:
            text = nested(drawn)
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                path = Path(folder)
                for name in ("job.toml", "policy.toml", "experiment.json", MANIFEST):
                    (path / name).write_text(text)
                for name in (SUMMARY, "manifest.json"):
                    (path / name).write_text(text)
                try_text(text, path)
                try_read(lambda: read_job(path / "job.toml"))
                try_read(lambda: read_policy(path))
                try_read(lambda: check(path))
                try_read(lambda: load_models(path))
                try_read(lambda: StoredRun(path).method)
                try_read(lambda: StoredRun(path).spread())
                try_read(lambda: StoredExperiment.read(path.parent, path.name))

        depths = st.sampled_from([1, 3, 49, 60, 200, 900, 5000])
        kinds = st.sampled_from(["dots", "table", "lists", "inline", "json", "objects"])
        names = st.sampled_from(["a", "data", "coordinator", "hours", "scenarios"])
        return self._fuzz(st.tuples(depths, kinds, names), attempt, number, examples)

    def tables(self, number: int, examples: int) -> int:
        cells = st.one_of(
            st.sampled_from(
                ["a", "b", "c", "1", "2", "3.5", "", "nan", "1e400", '"', ";", "\t"]
            ),
            JUNK,
        )
        rows = st.lists(st.lists(cells, min_size=1, max_size=5), max_size=12)
        heads = st.sampled_from(
            [
                "client,x,y",
                "client,y",
                "client;x;y",
                "client,client,y",
                "x",
                "",
                "\ufeffclient,x,y",
            ]
        )

        def attempt(drawn: tuple[str, list[list[str]]]) -> None:
            path = self.folder / "t.csv"
            text = "\n".join([drawn[0], *(",".join(row) for row in drawn[1])])
            path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
            with contextlib.suppress(
                ValueError
            ):  # it lists all that is wrong, line by line
                from_table(path, client="client", target="y")

        return self._fuzz(st.tuples(heads, rows), attempt, number, examples)

    def manifests(self, number: int, examples: int) -> int:
        """Well-formed files of other content, with digests that are right: only their
        reader can refuse them.
        """
        choices = st.lists(st.integers(0, 20), min_size=1, max_size=5)

        def attempt(drawn: tuple[list[int], Any]) -> None:
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                folder = Path(name)
                for kind, content in (("run", self._summary), ("models", self._export)):
                    original = self.run if kind == "run" else self.models
                    (folder / kind).mkdir()
                    for file in original.iterdir():
                        (folder / kind / file.name).symlink_to(file)
                    changed = replaced(content, *drawn)
                    path = (
                        folder / kind / (SUMMARY if kind == "run" else "manifest.json")
                    )
                    path.unlink()
                    path.write_text(
                        json.dumps(
                            with_digest(changed)
                            if isinstance(changed, dict)
                            else changed
                        )
                    )
                    try_read(lambda at=folder / kind: check(at))
                stored = folder / "run"
                try_read(
                    lambda: (
                        StoredRun(stored).spread(),
                        StoredRun(stored).seconds_per_round,
                    )
                )
                try_read(lambda: load_models(folder / "models"))
                (folder / "e").mkdir()
                (folder / "e" / "experiment.json").write_text(
                    json.dumps(replaced(self._summary, *drawn))
                )
                try_read(lambda: StoredExperiment.read(folder, "e"))
                (stored / MANIFEST).unlink()
                with contextlib.suppress(
                    TypeError, ValueError, AttributeError
                ):  # no value that TOML can hold
                    (stored / MANIFEST).write_text(
                        tomli_w.dumps(without_none(replaced(EXPERIMENT, *drawn)))
                    )
                    try_read(lambda: StoredRun(stored).method)

        return self._fuzz(st.tuples(choices, VALUES), attempt, number, examples)

    def _fuzz(
        self, strategy: Any, attempt: Callable[[Any], None], number: int, examples: int
    ) -> int:
        """Try examples that are drawn from a seed; how many were tried. The first bad
        one is raised.
        """
        tried = 0

        def one(drawn: Any) -> None:
            nonlocal tried
            tried += 1
            attempt(drawn)

        quiet = settings(
            max_examples=examples,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            phases=(
                Phase.generate,
            ),  # making a bad example small would take the time of many tries
        )
        seed(number)(quiet(given(strategy)(one)))()
        return tried


def _is_toml(value: Any) -> bool:
    try:
        tomli_w.dumps({"value": without_none(value)})
    except (TypeError, ValueError, AttributeError):
        return False
    return value is not None


INPUTS = (
    "command_lines",
    "experiment_files",
    "nested_files",
    "tables",
    "manifests",
)
