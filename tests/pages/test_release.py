"""Files for registries say what pyproject.toml says."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import fedtailor
import fedtailor.algorithms  # registers all methods
from fedtailor.protocol import Algorithm

ROOT = Path(__file__).parents[2]
if not (ROOT / "recipe").exists():
    pytest.skip("these files are in the repository only", allow_module_level=True)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = {"matplotlib": "matplotlib-base", "docstring-parser": "docstring_parser"}
"""Names that conda-forge has others for."""


def test_all_say_the_version():
    """That of CITATION.cff is tested with the package."""
    version = fedtailor.__version__
    cited = (ROOT / "CITATION.cff").read_text()
    described = json.loads((ROOT / "codemeta.json").read_text())
    assert described["version"] == version
    assert f"\ndate-released: {described['dateModified']}\n" in cited
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    assert f'{{% set version = "{version}" %}}' in recipe


def test_the_recipe_and_codemeta_have_the_dependencies():
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    runs = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    expected = ["python >={{ python_min }}"]
    for requirement in PROJECT["dependencies"]:
        name = re.match(r"[\w-]+", requirement)[0]
        expected.append(f"{CONDA.get(name, name)} {requirement[len(name) :]}")
    assert [line.removeprefix("    - ") for line in runs.splitlines()] == expected
    least = PROJECT["requires-python"].removeprefix(">=")
    assert f'{{% set python_min = "{least}" %}}' in recipe
    described = json.loads((ROOT / "codemeta.json").read_text())
    assert described["softwareRequirements"] == PROJECT["dependencies"]


def test_every_python_that_is_named_is_tried_by_the_workflow():
    prefix = "Programming Language :: Python :: "
    named = [
        classifier.removeprefix(prefix)
        for classifier in PROJECT["classifiers"]
        if re.fullmatch(rf"{prefix}3\.\d+", classifier)
    ]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    tried = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)[1]
    assert re.findall(r"[\d.]+", tried) == named
    assert f">={named[0]}" == PROJECT["requires-python"]
    assert ".ci/run" in workflow


def test_every_citation_of_the_paper_has_an_entry():
    paper = ROOT / "paper"
    text = (paper / "paper.md").read_text()
    cited = set(re.findall(r"@([A-Za-z]+\d{4}\w*)", text))
    entries = re.findall(r"^@\w+\{(\w+),$", (paper / "paper.bib").read_text(), re.M)
    assert cited == set(entries)
    assert len(entries) == len(set(entries))
    assert f"{len(Algorithm.registry)} methods" in text
