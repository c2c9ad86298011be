"""The generated pages of the site, and the examples that they show."""

import ast
import doctest
import inspect
import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pygments.token import Name

import fedtailor as ft

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("docs are in the repository only", allow_module_level=True)
sys.path.insert(0, str(ROOT / "docs"))

from generators import (  # noqa: E402
    agents,
    api,
    commands,
    highlight,
    measured,
    methods,
    notebooks,
    repository_links,
    schemas,
)
from generators.text import escaped, paragraphs, sentences  # noqa: E402


def test_every_public_name_has_a_place_in_the_reference():
    documented = set(api.main_names()) | {
        method.__name__ for method in methods.registered().values()
    }
    modules = {name for name in dir(ft) if inspect.ismodule(getattr(ft, name))}
    assert set(dir(ft)) - {"__version__"} == documented | modules
    assert modules <= {name.rpartition(".")[2] for name in api.PACKAGES} | {
        "algorithms"
    }


@pytest.mark.parametrize("package", api.PACKAGES)
def test_every_public_name_of_a_package_is_documented(package):
    module = import_module(f"fedtailor.{package}")
    assert [
        name
        for name in api.names_of(package)
        if not inspect.getdoc(getattr(module, name))
    ] == []


@pytest.mark.parametrize("name", api.main_names())
def test_every_main_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(ft, name))


WITHOUT_EXAMPLE = {
    "aggregation": {"reporter_weights", "restrict_to_reporters"},
    "statistics.decision": {"metric_interval"},
    "engine.executors": {
        "LockstepGroup",
        "Place",
        "newcomer_executor",
        "place_together",
    },
    "engine.storage": {"Checkpoints", "manifest"},
    "lab.trackers": {"MLflow", "TensorBoard", "WandB", "find_trackers"},
    "models": {"from_huggingface", "from_peft", "save_peft"},
}
"""Package -> names that only programs inside fedtailor call, or that need a package
that is not installed or a network's folder.
"""


@pytest.mark.parametrize(
    "package", sorted(set(api.PACKAGES) - set(api.WITHOUT_EXAMPLE))
)
def test_every_public_name_of_a_package_has_an_example(package):
    module = import_module(f"fedtailor.{package}")
    without = {
        name
        for name in api.names_of(package)
        if ">>> " not in inspect.getdoc(getattr(module, name))
    }
    assert without == WITHOUT_EXAMPLE.get(package, set())


def test_scenarios_are_called_alike():
    """So that one example is one of all."""
    for scenario in ft.scenarios.SCENARIOS.values():
        name, build = scenario.name, scenario.build
        seed, *others = inspect.signature(build).parameters.values()
        assert (seed.name, seed.default) == ("seed", 0), name
        for argument in others:
            # The scenario of a table takes the fields of `TableOptions`.
            if argument.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            assert argument.kind is inspect.Parameter.KEYWORD_ONLY, name
            assert argument.default is not inspect.Parameter.empty, name


def test_every_name_of_the_protocol_is_used_in_the_source():
    """So that there is a place at which to read how."""
    source = Path(ft.__file__).parent
    used = set()
    for path in source.rglob("*.py"):
        if path.parent == source / "protocol":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "fedtailor.protocol":
                used |= {alias.name for alias in node.names}
    assert not set(api.names_of("protocol")) - used


@pytest.fixture(scope="module")
def common():
    """What all examples go on from."""
    names = {}
    exec(api.BEGINNING, names)
    return names


def examples():
    """The names that have an example, with their package ("" is fedtailor itself)."""
    yield from (("", name) for name in api.main_names())
    for package in sorted(set(api.PACKAGES) - set(api.WITHOUT_EXAMPLE)):
        without = WITHOUT_EXAMPLE.get(package, set())
        names = (name for name in api.names_of(package) if name not in without)
        yield from ((package, name) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("package, name", list(examples()))
def test_examples_run(package, name, common, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    module = import_module(f"fedtailor.{package}") if package else ft
    doc = inspect.getdoc(getattr(module, name))
    for needed in ("torch", "flax", "equinox"):
        if f"import {needed}" in doc or f"from {needed} " in doc:
            pytest.importorskip(needed)
    names = dict(common)
    exec(api.FURTHER_BEGINNINGS.get(package, ""), names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    example = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    assert example.examples
    runner.run(example, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0


def test_every_method_has_a_page_that_says_all_of_it():
    pages = methods.pages()
    assert set(pages) == {f"methods/{name}" for name in methods.registered()}
    for name, method in methods.registered().items():
        page = pages[f"methods/{name}"]
        for fact in (method.about.paper, method.about.down, method.about.up):
            assert escaped(fact) in page
        for part in (
            "Use it",
            "When to use it",
            "What travels",
            "Hyper-parameters",
            "Properties",
        ):
            assert f"## {part}" in page


def test_the_overview_of_methods_is_what_they_say():
    shown = (ROOT / "docs" / "methods.md").read_text()
    assert f"<!-- methods -->\n{methods.overview()}<!-- end of methods -->" in shown, (
        "PYTHONPATH=docs:src:tests python -m generators.methods prints it"
    )
    for name in methods.registered():
        assert shown.count(f"[{name}](") == 2  # in one cell, and with its paper


@pytest.mark.parametrize("name", methods.registered())
def test_the_example_of_a_methods_page_is_of_that_method(name):
    compile(methods.code(name, methods.registered()[name]), name, "exec")
    assert f"ft.{methods.registered()[name].__name__}()" in methods.code(
        name, methods.registered()[name]
    )


def test_pages_say_when_a_method_suits_and_when_not():
    pages = methods.pages()
    ditto, several = pages["methods/ditto"], pages["methods/fedem"]
    assert "* each client can keep its personal model between rounds" in ditto
    assert "* the server may see sums only" in ditto
    assert "2.0 times as long as FedAvg's" in ditto
    assert "* the downlink is slow" in several and "downlink" not in ditto
    assert (
        "Take another when\n\n* the server must not see each client's"
        in pages["methods/ucfl"]
    )


def test_intervals_of_measured_numbers_are_students():
    figure = measured.Figure("x", "", "c", "l", "m", "", 50.0, 2.0, 3)
    # t(0.975, 2) = 4.3027; 4.3027 * 2 / sqrt(3) = 4.968
    assert figure.text == "50.0 [45.0, 55.0]"


def test_rows_of_results_belong_to_methods():
    assert (
        measured.method_of("mestoukirdi-2022-table-1-quick", "UCFL, 4 streams")
        == "ucfl"
    )
    assert (
        measured.method_of("mansour-2020-table-1", "HypCluster, clusters 3")
        == "hypcluster"
    )
    assert measured.method_of("mansour-2020-table-1", "(nothing learned)") is None


def test_every_command_is_on_the_page_of_commands():
    from fedtailor.cli import registry

    page = commands.page()
    for name, summary in registry.summaries().items():
        assert f"## fedtailor {name}\n" in page
        assert summary, name


def test_options_are_those_of_the_parser():
    program, description, rows = commands.options("card", [])
    assert program == "fedtailor card"
    assert "model card" in description
    found = {row.name: row.default for row in rows}
    shown = {"RUN": "required", "--client": "required", "--out": "None"}
    assert found.items() >= shown.items()


@pytest.mark.parametrize(
    "link, shown",
    [
        ("[log](../CHANGELOG.md)", "[log](generated/changelog.md)"),
        ("[all](../experiments)", "all"),
        ("[a](../benchmarks/orderings.toml)", "[a](../benchmarks/orderings.toml)"),
        ("[m](models.md#parts)", "[m](models.md#parts)"),
    ],
)
def test_links_out_of_the_docs_lead_into_the_site(link, shown):
    assert repository_links.rewritten(link, "experiments") == shown


def test_links_of_the_projects_files_are_seen_from_their_page():
    shown = repository_links.rewritten(
        "[w](docs/write-an-algorithm.md#own)", "generated/contributing"
    )
    assert shown == "[w](../write-an-algorithm.md#own)"


def test_formulas_of_docstrings_are_blocks_of_code():
    text = paragraphs("One *w*_i:\n\n    v <- v * 2\n\n* item [0, 1]")
    assert text == ("One \\*w\\*\\_i:\n\n```text\nv <- v * 2\n```\n\n* item \\[0, 1\\]")


def test_sentences_leave_formulas_out():
    assert sentences("One. Two (the\npaper).\n\n    x = 1. Y") == [
        "One.",
        "Two (the paper).",
    ]


def printed(capsys, *arguments):
    """What a command prints on the standard output."""
    from fedtailor.cli import main

    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_lists_as_json_are_what_their_schemas_say(capsys):
    for command, arguments in {
        "fedtailor algorithms --json": ["algorithms"],
        "fedtailor algorithms NAME --json": ["algorithms", "ditto"],
        "fedtailor scenarios --json": ["scenarios"],
        "fedtailor scenarios NAME --json": ["scenarios", "digits-rotated"],
    }.items():
        assert schemas.read(command, printed(capsys, *arguments, "--json"))


def test_a_regression_as_json_is_what_its_schema_says(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'abc'[row % 3]},{row % 7},{row % 5}" for row in range(30)]
    Path("t.csv").write_text("\n".join(["client,u,count", *rows]) + "\n")
    options = ["--client", "client", "--target", "count", "--model", "poisson"]
    assert schemas.read(
        "fedtailor fit TABLE --format json",
        printed(capsys, "fit", "t.csv", *options, "--format", "json"),
    )


@pytest.mark.slow
def test_results_as_json_are_what_their_schemas_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{client},{(7 * row) % 11},{(5 * row) % 7},{'yes' if row % 3 else 'no'}"
        for client in ("a", "b", "c")
        for row in range(40)
    ]
    Path("t.csv").write_text("\n".join(["client,u,v,label", *rows]) + "\n")
    two = ["--algorithms", "local", "fedavg", "--rounds", "2", "--seeds", "0", "1"]
    for command, arguments in {
        "fedtailor diagnose TABLE|SCENARIO --json": ["diagnose", "t.csv"],
        "fedtailor compare TABLE|EXPERIMENT --json": [
            *("compare", "t.csv", *two, "--lr", "0.1")
        ],
        "fedtailor run ALGORITHM SCENARIO --json": [
            *("run", "local", "table", "--path", "t.csv"),
            *("--rounds", "1", "--out", "run"),
        ],
        "fedtailor finalize RESULTS --json": ["finalize", "fedtailor-results"],
        "fedtailor contributions RESULTS --json": [
            "contributions",
            "fedtailor-results",
        ],
        "fedtailor describe TABLE --json": ["describe", "t.csv"],
        "fedtailor models PATH --json": ["models", "run"],
        "fedtailor audit RUN --json": ["audit", "run"],
        "fedtailor check PATH --json": ["check", "run"],
    }.items():
        assert schemas.read(command, printed(capsys, *arguments, "--json"))


def test_schemas_refuse_what_they_do_not_name():
    with pytest.raises(ValueError, match="extra"):
        schemas.read(
            "fedtailor check PATH --json",
            '[{"path": "a", "whole": true, "what": "a run", "extra": 1}]',
        )


def test_the_state_of_a_coordinator_is_what_its_schema_says():
    from dataclasses import fields

    from fedtailor.remote.client.audit import ENTRIES
    from fedtailor.remote.server.monitor import Status

    names = {field.name for field in fields(Status)}
    assert set(schemas.CoordinatorStatus.model_fields) == names | {"running"}
    assert set(schemas.AuditedMessage.model_fields) == {*ENTRIES, "refused"}


def test_every_schema_is_on_the_page_for_scripts():
    page = agents.page()
    for command in schemas.SCHEMAS:
        assert f"### {command}\n" in page


@pytest.mark.parametrize(
    "page",
    # reproduction.md is written by a script
    sorted({page.name for page in (ROOT / "docs").glob("*.md")} - {"reproduction.md"}),
)
def test_every_page_says_for_whom_it_is(page):
    assert "*For whom: " in (ROOT / "docs" / page).read_text()


SKILL = ROOT / "skills" / "fedtailor" / "SKILL.md"


def test_the_skill_has_the_published_form():
    """Agent Skills: a front matter with a name, that of the folder, and a description of
    at most 1,024 characters; at most 500 lines.
    """
    _, head, body = SKILL.read_text().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) < 500
    for step in ("Diagnose", "Compare", "Decide", "Finalize", "What never to do"):
        assert re.search(rf"^## .*{step}", body, re.MULTILINE), step


def test_the_skill_names_fields_of_what_compare_prints():
    """Beside the schemas, which leave a decision open."""
    named = set(re.findall(r"`(?:verdict\.)?(\w+)`", SKILL.read_text()))
    source = (ROOT / "src/fedtailor/lab").rglob("*.py")
    text = "".join(path.read_text() for path in source)
    for name in {
        "answer",
        "evidence",
        "candidates",
        "clients",
        "gains",
        "p_holm",
        "left_out",
    } & named:
        assert f'"{name}"' in text, name


def shell_commands():
    """The lines of the pages that call fedtailor, with the page of each."""
    pages = [ROOT / "README.md", SKILL, *(ROOT / "docs").glob("*.md")]
    for page in pages:
        blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.S | re.M)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            line = line.partition(" #")[0].strip()
            if line.startswith("fedtailor "):
                yield page.name, line


def options_known(words):
    """The options of a command line, without its values; None if they depend on files
    of the reader.
    """
    name, *rest = words
    if name in ("algorithms", "scenarios"):
        return {"--by", "--json"}
    if name.startswith("-") or (name == "run" and ".py:" in rest[0]):
        return None
    variant = {
        "federation": rest[:1],
        "run": rest[:2],
        "compare": ["E.toml" if rest and rest[0].endswith(".toml") else "T.csv"],
        "diagnose": ["T.csv"] if rest and "." in rest[0] else rest[:1],
    }.get(name, [])
    found = commands.options(name, variant)
    assert found is not None, words
    return {option for row in found[2] for option in row.name.split(", ")}


def test_commands_on_the_pages_have_the_options_that_they_use(monkeypatch):
    # Under pytest tyro compares the docstrings that it keeps with those of now, once in
    # ten times; `--help` of a method in another test has changed some.
    monkeypatch.setattr("random.random", lambda: 1.0)
    lines = list(shell_commands())
    assert len(lines) > 40
    known = {}
    for page, line in lines:
        words = line.split()[1:]
        if words == ["COMMAND"] or words[0].startswith("-"):
            continue
        key = tuple(words[:3] if words[0] == "run" else words[:2])
        if key not in known:
            known[key] = options_known(words)
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        if known[key] is not None:
            assert used - {"--help"} <= known[key], f"{page}: {line}"


def named_anchors():
    """The anchors of the documentation that messages name: those given to `see`."""
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "see":
                yield ast.literal_eval(node.args[0])


def anchor_of(title):
    """The anchor of a heading, as the site and GitHub make it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def headings(page):
    """The headings of a page of the documentation as anchors."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return {
        anchor_of(line.lstrip("# "))
        for line in re.findall(r"^#+ .*$", text, re.MULTILINE)
    }


def test_every_anchor_that_a_message_names_is_in_the_documentation():
    anchors = set(named_anchors())
    assert len(anchors) > 15
    for anchor in anchors:
        page, _, heading = anchor.partition("#")
        there = headings(page)
        assert not heading or heading in there, anchor  # without one it is the page


def test_every_message_that_is_explained_names_its_explanation():
    named = {anchor for anchor in named_anchors() if anchor.startswith("errors#")}
    sections = re.findall(
        r"^(#+) (.*)\n(?=\n[^#])", (ROOT / "docs" / "errors.md").read_text(), re.M
    )
    explained = {anchor_of(title) for marks, title in sections if marks != "#"}
    assert {f"errors#{title}" for title in explained} == named


def test_the_command_line_shows_the_anchor(tmp_path, capsys):
    from fedtailor.cli import main

    (tmp_path / "t.csv").write_text("client;x;y\na;1;0\n")
    table = str(tmp_path / "t.csv")
    arguments = ["compare", table, "--client", "client", "--target", "y"]
    assert main([*arguments, "--separator", ","]) == 2
    printed = capsys.readouterr().err
    assert printed.endswith("(docs: errors#lines-and-cells-of-a-text-file)\n")


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_holds_the_code_that_the_tests_of_its_page_run(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    notebook = json.loads(json.dumps(notebooks.notebook(name)))
    cells = notebook["cells"]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = ["".join(it["source"]) for it in cells if it["cell_type"] == "code"]
    assert "%pip install -q fedtailor" in code.pop(0)
    if name == "tutorial":
        example = (ROOT / "examples" / "hospitals.py").read_text()
        parts = code.pop(0).split("\n\n")
        assert parts[-1] == 'made_table().write_csv("hospitals.csv")'
        assert all(part in example for part in parts[1:-1])
    python = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    written = [re.sub(r"^%%writefile .*\n", "", it) for it in code]
    shown = [it for it in written if not it.startswith(("%%sh\n", "!python "))]
    if name == "first-experiment":
        shown = shown[:-1]  # mine.toml
    assert shown == [block.rstrip("\n") for block in python]
    for commands_of_cell in (it for it in code if it.startswith("%%sh\n")):
        assert commands_of_cell.removeprefix("%%sh\n") in page
    text = "".join(
        "".join(it["source"]) for it in cells if it["cell_type"] == "markdown"
    )
    assert not re.search(r"\]\((?!https?:)[\w./#-]+\.md", text), "links lead nowhere"
    linked = notebooks.link(name, page)
    assert f"<generated/notebooks/{name}.ipynb>" in linked
    assert linked.replace(linked.split("\n\n")[2] + "\n\n", "", 1) == page


def test_a_notebook_is_executed_again_when_its_cells_have_changed(
    tmp_path, monkeypatch
):
    text, calls = ["print(1)"], []

    def made(name):
        cells = [notebooks._code(notebooks.INSTALL, tags=["skip-execution"])]
        cells.append(notebooks._code(text[0]))
        for number, cell in enumerate(cells):
            cell["id"] = str(number)
        return {"cells": cells}

    def executed(notebook):
        calls.append("".join(notebook["cells"][1]["source"]))
        notebook["cells"][1]["outputs"] = [{"text": "1"}]
        return notebook

    monkeypatch.setattr(notebooks, "notebook", made)
    monkeypatch.setattr(notebooks, "executed", executed)
    monkeypatch.setenv("NOTEBOOKS", "quick")
    for _ in range(2):
        notebooks.write(tmp_path)
    assert calls == ["print(1)"] * len(notebooks.QUICK)
    text[0] = "print(2)"
    notebooks.write(tmp_path)
    assert calls[-1] == "print(2)"
    stored = json.loads((tmp_path / f"{notebooks.QUICK[0]}.ipynb").read_text())
    assert stored["cells"][1]["outputs"] == [{"text": "1"}]
    monkeypatch.delenv("NOTEBOOKS")
    calls.clear()
    notebooks.write(tmp_path)
    assert len(calls) == len(notebooks.NOTEBOOKS) - len(notebooks.QUICK)


def test_options_of_commands_are_tokens_which_no_line_divides():
    command = "fedtailor compare t.csv --client ward -m 3 --lr=0.1 # not --this\n"
    tokens = list(highlight.Commands().get_tokens(command))
    assert "".join(text for _, text in tokens) == command
    options = [text for kind, text in tokens if kind is Name.Attribute]
    assert options == ["--client", "-m", "--lr"]


def test_the_notebook_of_the_tutorial_makes_its_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = notebooks.notebook("tutorial")["cells"]
    exec("".join(cells[2]["source"]), {})
    assert len((tmp_path / "hospitals.csv").read_text().splitlines()) == 521
