"""Commands register where they stand, and other packages add theirs."""

import ast
import os
from importlib.metadata import EntryPoint
from importlib.resources import files

import pytest

from fedtailor.cli import commands, main, registry


def test_a_file_is_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "say_hello.py").write_text(
        '"""`fedtailor say-hello NAME`: greet somebody."""\n\n'
        'def say_hello(arguments):\n    print("Hello", *arguments)\n    return 3\n'
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert main(["say-hello", "Ada"]) == 3
    assert capsys.readouterr().out == "Hello Ada\n"
    assert main(["say-helo"]) == 2
    assert "did you mean 'say-hello'?" in capsys.readouterr().err


def test_every_command_is_explained_without_being_imported(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("algorithms", "compare", "demo", "report", "run", "scenarios"):
        line = next(
            line for line in shown.splitlines() if line.startswith(f"  {name} ")
        )
        assert len(line.split()) > 3
        source = files(commands).joinpath(f"{name}.py").read_text()
        doc = ast.get_docstring(ast.parse(source))
        assert doc.startswith(f"`fedtailor {name}")
        # the whole sentence, on however many lines of the file it stands
        sentence = " ".join(doc.partition("\n\n")[0].split())
        assert sentence.endswith(f": {line.split(maxsplit=1)[1]}.")
    assert max(map(len, shown.splitlines())) <= 110


@pytest.fixture
def offered(monkeypatch):
    """Entry points as installed packages declare them."""

    def offer(**values):
        entries = [
            EntryPoint(name, value, registry.GROUP) for name, value in values.items()
        ]
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda group: entries if group == registry.GROUP else [],
        )

    return offer


def test_other_packages_offer_commands(offered, capsys):
    offered(join="os.path:join", broken="no_such_module:command", run="os.path:join")
    assert registry.find("join") is os.path.join
    assert (
        registry.find("run").__module__ == "fedtailor.cli.commands.run"
    )  # fedtailor's own stay
    assert main(["broken"]) == 2
    said = capsys.readouterr().err
    assert (
        "the command 'broken' of no_such_module:command cannot be loaded:"
        " ModuleNotFoundError" in said
    )
    assert said.count("\n") == 1
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "  join " in shown and "(of os.path:join)" in shown
