"""Writes all generated pages."""

from pathlib import Path

from generators import repository_links

DOCS = Path(__file__).parents[1]


def write(folder: Path) -> None:
    """Writes the generated pages, and removes those of an earlier build."""
    pages = project_pages()
    for name, text in pages.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads again what has changed only.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in folder.rglob("*.md"):
        if file.relative_to(folder).with_suffix("").as_posix() not in pages:
            file.unlink()


def project_pages() -> dict[str, str]:
    """The files of the repository's root that the site shows as they are."""
    return {
        name: (DOCS.parent / file).read_text()
        for name, file in repository_links.PROJECT_PAGES.items()
    }


def tidy_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Sphinx's event `autodoc-process-docstring`."""
