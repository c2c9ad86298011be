"""Where the documentation says more than a message."""

BASE = "docs: "
"""What stands before an anchor: the site has no public address."""


def see(anchor: str) -> str:
    """The end of a message that needs more than a line, such as " (docs: errors#x)".

    Args:
        anchor: a page of docs/ and a heading on it, "errors#diverged".
    """
    return f" ({BASE}{anchor})"
