"""A skip needs a reason in allowed_skips.toml."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

from skips import ALLOWED, judged

TESTS = Path(__file__).parent


def report(test, reason):
    return SimpleNamespace(nodeid=test, longrepr=("a file", 1, f"Skipped: {reason}"))


def test_only_what_is_listed_is_allowed(tmp_path):
    listed = tmp_path / "skips.toml"
    listed.write_text(
        '[[skip]]\ntest = "tests/a/test_b.py*"\nsays = "no file"\nbecause = "large"\n'
    )
    reports = [
        report("tests/a/test_b.py::test_c[1]", "no file of that name"),
        report("tests/a/test_b.py::test_c[1]", "no torch"),
        report("tests/a/test_other.py", "no file of that name"),
    ]
    found = judged(reports, listed)
    assert [why for _, _, why in found] == ["large", None, None]
    assert found[1][:2] == ("tests/a/test_b.py::test_c[1]", "no torch")


def test_every_entry_is_of_a_test_that_there_is_and_says_why():
    for entry in tomllib.loads(ALLOWED.read_text())["skip"]:
        name = entry["test"].partition(".py")[0].removeprefix("*/") + ".py"
        assert list(TESTS.rglob(name)), name
        assert entry["says"] and len(entry["because"]) > 10
