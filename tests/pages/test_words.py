"""Pages, docstrings and messages use the field's word for a thing that has a name;
CONTRIBUTING.md says why.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
if len(PAGES) < 2:
    pytest.skip("docs are in the repository only", allow_module_level=True)

REFUSED = {
    r"liars?|lying": "Byzantine clients, attackers",
    r"clients? that (?:lie|are late)": "Byzantine clients; asynchronous clients",
    r"anew": "again",
    r"(?:is|are|was|were) told(?! apart)": "an active verb: says, names, lists",
    r"by which": "with which, or two sentences",
    r"in place of": "instead of",
    r"(?:stand|stood|stands) still|until still": "converged",
    r"nobody is told|as was told": "an active verb",
    r"also if": "even if",
    r"(?:is|are) counted to": "counts as, is added to",
}
"""What no page and no source says -> what it says instead."""

QUOTED = {("poison.py", "liars"): "the name of a stream of random numbers"}
"""(file, words) -> why it may."""


def prose(text):
    """A page's text, its lines kept, without code, addresses of links and comments."""

    def blank(found):
        return "\n" * found[0].count("\n")

    for block in (r"^ *```.*?^ *```", r"^ *\$\$.*?\$\$", r"<!--.*?-->"):
        text = re.sub(block, blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", blank, text)
    return re.sub(r"\]\([^)]*\)", blank, text)


def faults(page, text):
    """A line for each refused word of a page."""
    found = []
    text = prose(text) if page.endswith(".md") else text
    # One search, in lower case, which is the fastest, says whether there is any.
    if not re.search(rf"\b(?:{'|'.join(REFUSED)})\b", text.lower()):
        return []
    for words, instead in REFUSED.items():
        for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE):
            said = " ".join(match[0].lower().split())
            if (page, said) in QUOTED:
                continue
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{page}:{line}: {said!r}; say: {instead}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_words_of_the_field(page):
    assert faults(page.name, page.read_text()) == []


def test_docstrings_and_messages_use_the_words_of_the_field():
    files = sorted((ROOT / "src").rglob("*.py"))
    assert len(files) > 100
    found = []
    for path in files:
        found += faults(path.name, path.read_text())
    assert found == []


def test_refused_words_are_found_in_prose_only():
    text = (
        "# Who lies\n\n`liars` are [clients](byzantine.md).\n\n```sh\nrun --byzantine\n```\n"
        "Nothing\nis told apart. The\nliars are told anew.\n"
    )
    assert faults("a.md", text) == [
        "a.md:10: 'liars'; say: Byzantine clients, attackers",
        "a.md:10: 'anew'; say: again",
        "a.md:10: 'are told'; say: an active verb: says, names, lists",
    ]
