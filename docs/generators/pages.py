"""Writes all generated pages."""

import re
from pathlib import Path

from generators import (
    agents,
    api,
    commands,
    gallery,
    methods,
    notebooks,
    repository_links,
)

DOCS = Path(__file__).parents[1]


def write(folder: Path) -> None:
    """Writes the generated pages, and removes those of an earlier build."""
    pages = all_pages()
    for name, text in pages.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads again what has changed only.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in folder.rglob("*.md"):
        if file.relative_to(folder).with_suffix("").as_posix() not in pages:
            file.unlink()
    (folder / "llms.txt").write_text(agents.llms())
    notebooks.write(folder / "notebooks")


def all_pages() -> dict[str, str]:
    """Name of a page below docs/generated -> its text."""
    return {
        **project_pages(),
        **methods.pages(),
        **api.pages(),
        **gallery.pages(),
        "agents": agents.page(),
        "commands": commands.page(),
    }


def project_pages() -> dict[str, str]:
    """The files of the repository's root that the site shows as they are."""
    return {
        name: (DOCS.parent / file).read_text()
        for name, file in repository_links.PROJECT_PAGES.items()
    }


SECTION = re.compile(
    r"^\s*(Args|Arguments|Returns|Raises|Yields|Attributes|Example|Examples|Note):$"
)


def tidy_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Sphinx's event `autodoc-process-docstring`: makes reStructuredText of a docstring.

    Formulas, which docstrings indent, and pictures of text become literal blocks. The
    characters * and | of formulas in prose mean nothing else.
    """
    _list_fields(lines)
    text = "\n".join(lines)
    head, sections = text, ""
    for number, line in enumerate(lines):
        if SECTION.match(line):
            head, sections = "\n".join(lines[:number]), "\n".join(lines[number:])
            break
    shown = []
    for paragraph in head.split("\n\n"):
        rows = paragraph.split("\n")
        if paragraph.startswith("    ") or "\n---- " in paragraph:
            shown.append("::\n\n" + "\n".join(f"    {row}" for row in rows))
        elif rows[0].startswith("* ") and any(
            not row.startswith(("* ", " ")) for row in rows
        ):
            # A sentence that follows a list without an empty line.
            first = next(
                i for i, row in enumerate(rows) if not row.startswith(("* ", " "))
            )
            parts = ("\n".join(rows[:first]), "\n".join(rows[first:]))
            shown += [_plain(part) for part in parts]
        else:
            shown.append(_plain(paragraph))
    example = sections.partition("Example:\n")
    sections = _plain(example[0]) + "".join(example[1:])
    lines[:] = ("\n\n".join(shown) + ("\n" if sections else "") + sections).split("\n")


def _list_fields(lines: list[str]) -> None:
    """Makes a list of what `help` says of a class's fields, in place: wrapped lines under
    the heading would not be reStructuredText."""
    heading = "Hyper-parameters:"
    if heading not in lines:
        return
    start = lines.index(heading) + 1
    # A line that goes on is indented further than the first one.
    entries = "\n".join(lines[start:]).replace("\n        ", " ").split("\n")
    lines[start:] = ["", *(f"* {entry.strip()}" for entry in entries if entry), ""]


def _plain(text: str) -> str:
    """Text without markup but `code`, lists and tables."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"\*(?! )|\|", r"\\\g<0>", piece)
        for piece in pieces
    )
