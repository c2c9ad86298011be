"""`fedtailor card RUN --client X`: what must be known of one client's model before it
is used, as Markdown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._printable import say
from fedtailor.cli.options import parse
from fedtailor.cli.output import write_text


@dataclass(frozen=True)
class Options:
    """The model card of one client: data, split, preprocessing, measurements with
    intervals, method, what was sent.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    client: str
    """Whose model."""
    out: Path | None = None
    """Write the card to this file instead of the standard output."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def card(arguments: list[str]) -> int:
    """Prints or writes a model card."""
    options = parse(Options, arguments, "fedtailor card")
    from fedtailor.deployment import model_card, open_run
    from fedtailor.experiments.texts import given_model

    text = model_card(
        open_run(options.run, model=given_model(options.model)), options.client
    )
    write_text(text, options.out)
    if options.out is not None:
        say(options.out.resolve())
    return 0
