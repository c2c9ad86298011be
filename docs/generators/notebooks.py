"""Pages as notebooks: their text, and as cells the code that the tests execute.

The files are JSON, written here, so that the site needs no further package. A notebook
has no outputs: what a page says that its code prints stands below the cell as text.
"""

import ast
import hashlib
import json
import re
from pathlib import Path

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
    """Writes all notebooks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NOTEBOOKS:
        text = json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.ipynb").write_text(text, encoding="utf-8")


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


def notebook(name: str) -> dict:
    """A page as a notebook of the format 4.5."""
    cells = [_code(INSTALL)]
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


def _cells_of(name: str, block: re.Match[str], before: str) -> list[dict]:
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


def _code(text: str) -> dict:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }


def _text(text: str) -> dict:
    """Text; links and pictures between pages mean nothing outside the site."""
    plain = _LINK.sub(r"\1", _PICTURE.sub("", text)).strip()
    return {
        "cell_type": "markdown",
        "metadata": {},
        "source": plain.splitlines(keepends=True),
    }
