"""Colours of the blocks of code."""

from collections.abc import Iterator

from pygments.lexers.shell import BashLexer
from pygments.token import Name, Text, _TokenType


class Commands(BashLexer):
    """Shell commands whose options are tokens, so that no line ends after their hyphens."""

    def get_tokens_unprocessed(
        self, text: str, stack: tuple[str, ...] = ("root",)
    ) -> Iterator[tuple[int, _TokenType, str]]:
        for start, kind, value in super().get_tokens_unprocessed(text, stack):
            is_option = kind is Text and value.startswith("-")
            yield start, Name.Attribute if is_option else kind, value
