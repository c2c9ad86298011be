"""The bar of a terminal."""

import io

from rich.console import Console

from fedtailor.cli.progress import _bar


def test_labels_in_square_brackets_are_shown_in_the_bar(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console",
        lambda **_: Console(file=shown, force_terminal=True, width=150),
    )
    with _bar("digits [/]", 2) as update:
        update(1, "Ditto [weak] on a [/]", 2)
    assert (
        "digits [/]" in shown.getvalue() and "Ditto [weak] on a [/]" in shown.getvalue()
    )
