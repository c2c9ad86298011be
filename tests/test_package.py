"""The package as a whole: its version, its public names, and that importing it imports
nothing else.
"""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedtailor

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def fresh(*arguments):
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_changelog_begins_with_this_version():
    """Below what comes after it."""
    versions = re.findall(r"^## (\S+)", CHANGELOG.read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased" or versions[0] == fedtailor.__version__
    assert fedtailor.__version__ in versions[:2]


def test_the_citation_is_of_this_version():
    """Its date is that of the changelog."""
    citation = (CHANGELOG.parent / "CITATION.cff").read_text()
    (date,) = re.findall(r"^date-released: (\S+)", citation, re.MULTILINE)
    assert f"\nversion: {fedtailor.__version__}\n" in citation
    assert f"\n## {fedtailor.__version__} - {date}\n" in CHANGELOG.read_text()


def test_the_installed_version_is_that_of_the_sources():
    assert importlib.metadata.version("fedtailor") == fedtailor.__version__


def test_importing_the_package_imports_no_library():
    modules = {
        name.partition(".")[0]
        for name in fresh("-c", "import sys, fedtailor; print(*sys.modules)")
    }
    assert not modules & {
        "jax",
        "numpy",
        "scipy",
        "sklearn",
        "matplotlib",
        "polars",
        "optax",
        "equinox",
        "rich",
    }


def test_the_command_line_is_a_module_of_the_interpreter_too():
    assert fedtailor.__version__ in fresh("-m", "fedtailor", "--version")


@pytest.mark.parametrize("name", dir(fedtailor))
def test_every_public_name_is_there(name):
    assert getattr(fedtailor, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match="module 'fedtailor' has no attribute 'FedAverage'"
    ):
        fedtailor.FedAverage  # noqa: B018
