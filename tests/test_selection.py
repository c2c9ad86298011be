"""`make test` runs a covering part of the tests of every method."""

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import selection
from conformance.examples import OPT_OUTS
from fedtailor import algorithms
from fedtailor.protocol import Algorithm
from fedtailor.testing import CHECKS

NAMES = sorted(Algorithm.registry)
PAIRS = [
    (name, check) for name in NAMES for check in CHECKS if (check, name) not in OPT_OUTS
]


def kinds_of(names):
    return {Algorithm.registry[name].about.models_received for name in names}


def test_every_check_runs_on_eight_methods_of_different_kinds():
    """In `make test` on four, in CI on others, too."""
    first = selection.covering(PAIRS)
    second = selection.covering([pair for pair in PAIRS if pair not in first])
    assert first | second <= set(PAIRS) and not first & second
    for check in CHECKS:
        few = [name for name, of in first if of == check]
        assert len(few) >= 4, check
        names = [name for name, of in first | second if of == check]
        assert len(names) >= 8, check
        assert len(kinds_of(names)) >= 3, check


def test_every_method_passes_a_check():
    chosen = selection.covering(PAIRS)
    assert Counter(name for name, _ in chosen) == Counter(NAMES)
    assert selection.covering(reversed(PAIRS[:40])) <= set(PAIRS[:40])


def test_slow_pairs_are_left_out_where_others_are_there():
    slow = selection.covering(PAIRS)
    assert len(selection.covering(PAIRS, slow) & slow) < len(slow) / 4


def test_of_many_settings_a_few_are_kept_from_all_over():
    for count in range(20):
        left = selection.further(range(count))
        kept = sorted({*range(count)} - {*left})
        assert len(kept) == min(count, selection.SETTINGS)
        gaps = {after - before for before, after in itertools.pairwise(kept)}
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_another_test_of_every_method_runs_on_other_methods():
    chosen = [frozenset(selection.spread(test, NAMES)) for test in "abcd"]
    for names in chosen:
        assert len(names) == selection.EACH_TEST
        assert len(kinds_of(names)) >= 3
    # two tests may draw the same
    assert len(set(chosen)) >= 3
    assert selection.spread("a", ["ucfl", "local"]) == {"ucfl", "local"}


def test_a_helper_touches_the_methods_that_import_it(monkeypatch):
    def touched(*files):
        monkeypatch.setattr(selection, "_changed_files", lambda: set(files))
        return selection.changed_methods()

    folder = Path(algorithms.__file__).parent
    assert touched() == touched(folder / "__init__.py") == set()
    assert touched(folder / "ditto.py") >= {"ditto"}
    assert "fedavg" not in touched(folder / "ditto.py")
    helpers = {
        Path(module.__file__)
        for name, module in list(sys.modules.items())
        if name.startswith(f"{algorithms.__name__}.helpers.")
    }
    everywhere = [touched(helper) for helper in helpers]
    assert set().union(*everywhere) > {"ucfl"}
    assert any(0 < len(names) < len(NAMES) for names in everywhere)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a commit, whose folder stands in the place of ours."""

    def git(*arguments):
        options = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *options, *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "src").mkdir()
    git("init", "--initial-branch", "main")
    git("commit", "--allow-empty", "--message", "one")
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    return git


def test_changes_are_those_since_main(repository, tmp_path):
    assert selection._changed_files() == set()  # the first commit has none before it
    one, other = tmp_path / "src" / "one.py", tmp_path / "src" / "other.py"
    one.touch()
    repository("add", ".")
    repository("commit", "--message", "two")
    assert selection._changed_files() == {one}  # on main, since the commit before
    repository("checkout", "-b", "branch")
    repository("commit", "--allow-empty", "--message", "three")
    assert selection._changed_files() == set()
    one.write_text("1\n")
    other.touch()
    (tmp_path / "tests.py").touch()
    assert selection._changed_files() == {one, other}


def test_without_a_repository_nothing_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert selection._changed_files() == set()
