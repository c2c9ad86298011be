"""Pages as notebooks: their text, and as cells the code that the tests execute.

The build executes all; where the environment has `NOTEBOOKS=quick`, as in CI, only those
that take seconds. The others then have no outputs of their own: what the page says that a
cell prints follows it as text.
"""

import ast
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = (
    "tutorial",
    "first-experiment",
    "own-data",
    "partition-data",
    "write-an-algorithm",
    "byzantine",
    "networks",
)
"""The pages that can be downloaded as notebooks."""
QUICK = ("partition-data",)
"""Those that CI executes: they take some ten seconds of processor time."""
WITH_COMMANDS = ("tutorial", "first-experiment")
"""Those that make the files which their commands read, so that these are cells, too."""
INSTALL = """\
# In Colab, or wherever fedtailor is not installed yet. From a checkout: %pip install -q .
%pip install -q fedtailor"""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n?", re.MULTILINE)
_SAVED = re.compile(r"[Ss]ave\s+(?:it|this|them)\s+as\s+`([\w.]+)`")
_RUN = re.compile(r"run\s+`python ([\w.]+)`")
_COMMANDS = re.compile(r"fedtailor (?:diagnose|compare|report|finalize) ")


def write(folder: Path) -> None:
    """Writes all notebooks into a folder, and executes those whose cells are new."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NOTEBOOKS:
        file = folder / f"{name}.ipynb"
        made = notebook(name)
        if name in QUICK or os.environ.get("NOTEBOOKS") != "quick":
            if file.exists() and _is_executed(json.loads(file.read_text()), made):
                continue
            made = executed(made)
        text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        file.write_text(text, encoding="utf-8")


def executed(made: dict[str, Any]) -> dict[str, Any]:
    """A notebook with the outputs of its cells, but for the one that installs.

    Its kernel runs in an empty directory.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbclient
    import nbformat

    with tempfile.TemporaryDirectory() as directory:
        client = nbclient.NotebookClient(
            nbformat.reads(json.dumps(made), as_version=4),
            timeout=600,
            record_timing=False,
            resources={"metadata": {"path": directory}},
        )
        # Sockets in that directory: no other user of the machine can connect.
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{directory}/kernel"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        found = client.execute(env={**os.environ, "PATH": path})
    return json.loads(nbformat.writes(found))


def _is_executed(file: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether a stored notebook has these cells, with outputs."""
    cells = [(it["id"], it["source"]) for it in file["cells"]]
    return cells == [(it["id"], it["source"]) for it in made["cells"]] and any(
        it.get("outputs") for it in file["cells"]
    )


def link(name: str, text: str) -> str:
    """The text of a page, with a link to its notebook below the first paragraph.

    Args:
        name: of the page; others than `NOTEBOOKS` stay as they are.
        text: its Markdown.
    """
    if name not in NOTEBOOKS:
        return text
    title, audience, rest = text.split("\n\n", 2)
    download = (
        f"{{download}}`Download this page as a notebook <generated/notebooks/{name}.ipynb>`"
        " (Jupyter, Colab)."
    )
    return "\n\n".join([title, audience, download, rest])


def add_link(app, page: str, source: list[str]) -> None:
    """Sphinx's event `source-read`: adds the link to a page's notebook."""
    source[0] = link(page, source[0])


def notebook(name: str) -> dict[str, Any]:
    """A page as a notebook of the format 4.5."""
    cells = [_code(INSTALL, tags=["skip-execution"])]
    if name == "tutorial":
        cells += [_text("The table of this tutorial is made up:"), _code(_made_table())]
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    end = 0
    for block in _BLOCK.finditer(page):
        before = page[end : block.start()]
        end = block.end()
        cells += [_text(before), *_cells_of(name, block, before)]
    cells.append(_text(page[end:]))
    cells = [cell for cell in cells if cell["source"]]
    for number, cell in enumerate(cells):
        digest = hashlib.sha256(f"{number} {''.join(cell['source'])}".encode())
        cell["id"] = digest.hexdigest()[:12]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells_of(name: str, block: re.Match[str], before: str) -> list[dict[str, Any]]:
    """The cells of a block of code: files are written, Python and commands run, and all
    else is text.
    """
    language, code = block[1], block[2].rstrip("\n")
    # The sentence that names a file stands last before its block.
    paragraph = before.rstrip().rpartition("\n\n")[2]
    saved = _SAVED.findall(paragraph)
    if language in ("python", "toml") and saved:
        cells = [_code(f"%%writefile {saved[-1]}\n{code}")]
        cells += [_code(f"!python {file}") for file in _RUN.findall(paragraph)]
        return cells
    if language == "python":
        return [_code(code)]
    lines = code.replace("\\\n", " ").splitlines()
    runs = language == "sh" and all(map(_COMMANDS.match, lines))
    if runs and name in WITH_COMMANDS:
        return [_code(f"%%sh\n{code}")]
    return [_text(block[0])]


def _made_table() -> str:
    """The program of `examples/hospitals.py` that makes its table."""
    source = (ROOT / "examples" / "hospitals.py").read_text(encoding="utf-8")
    needed = {"PATIENTS", "EFFECTS", "COMMON", "made_table"}
    parts = ["import numpy as np\nimport polars as pl"]
    for node in ast.parse(source).body:
        names = {getattr(it, "id", "") for it in getattr(node, "targets", ())}
        if needed & (names | {getattr(node, "name", "")}):
            parts.append(ast.get_source_segment(source, node) or "")
    return "\n\n".join([*parts, 'made_table().write_csv("hospitals.csv")'])


def _code(text: str, **metadata: Any) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }


def _text(text: str) -> dict[str, Any]:
    """Text; links and pictures between pages mean nothing outside the site."""
    plain = _LINK.sub(r"\1", _PICTURE.sub("", text)).strip()
    return {
        "cell_type": "markdown",
        "metadata": {},
        "source": plain.splitlines(keepends=True),
    }
