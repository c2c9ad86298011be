"""Links of the Markdown pages to other files of the repository.

Where the pages are read as files, such a link opens the file. The site has pages for a
few of them; other files are offered for download, and a folder is named without a link.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
PROJECT_PAGES = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}
"""Page of the site -> file in the root of the repository that it shows."""
LINK = re.compile(r"\[([^][]+)\]\(((?:\.\./)+[^)\s]+|docs/[^)\s]+)\)")


def rewrite(app, page: str, source: list[str]) -> None:
    """Sphinx's event `source-read`: changes links that lead out of docs/."""
    source[0] = rewritten(source[0], page)


def rewritten(text: str, page: str) -> str:
    """The text of a page, such as "generated/changelog", with links of the site."""
    folder = (DOCS / page).parent

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        path, hash_mark, anchor = target.partition("#")
        # Files of the root name pages as docs/NAME.md.
        file = (DOCS.parent if path.startswith("docs/") else folder) / path
        file = file.resolve()
        for name, shown in PROJECT_PAGES.items():
            if file == DOCS.parent / shown:
                file = DOCS / "generated" / f"{name}.md"
        if file.is_dir():
            return words
        if file.suffix == ".md" and not file.is_relative_to(DOCS):
            return f"{{download}}`{words.replace('`', '')} <{path}>`"
        up = "../" * len(folder.relative_to(DOCS).parts)
        inside = file.is_relative_to(DOCS)
        there = file.relative_to(DOCS if inside else DOCS.parent)
        start = up if inside else f"../{up}"
        return f"[{words}]({start}{there}{hash_mark}{anchor})"

    return LINK.sub(link, text)
