"""Text of docstrings and of data as Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDE = 4
"""Spaces of indentation from which Markdown shows a paragraph as code."""


def escaped(text: str) -> str:
    """Text in which Markdown finds no markup but `code`."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([*_<>|\[\]{}$~])", r"\\\1", piece)
        for piece in pieces
    )


def paragraphs(doc: str) -> str:
    """A docstring as Markdown: formulas, which are indented, become blocks of code."""
    shown = []
    for paragraph in doc.strip("\n").split("\n\n"):
        lines = paragraph.split("\n")
        if all(line.startswith(" " * WIDE) or not line.strip() for line in lines):
            shown.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            shown.append("\n".join(_line(line) for line in lines))
    return "\n\n".join(shown)


def _line(line: str) -> str:
    bullet = re.match(r"\s*[*-] ", line)
    start = bullet[0] if bullet else ""
    return start + escaped(line[len(start) :])


def sentences(doc: str) -> list[str]:
    """The sentences of a docstring's prose."""
    prose = [
        " ".join(paragraph.split())
        for paragraph in doc.split("\n\n")
        if not paragraph.startswith(" " * WIDE)
    ]
    return [
        sentence
        for paragraph in prose
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", paragraph)
        if sentence
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, whose cells are Markdown already; "" without rows."""
    lines = [
        f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows
    ]
    if not lines:
        return ""
    return "\n".join(
        [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines, ""]
    )
