"""`fedtailor card RUN --client X`: what must be known of one client's model before it
is used, as Markdown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._base.printable import say
from fedtailor.cli.options import parse
from fedtailor.cli.output import write_text


@dataclass(frozen=True)
class Options:
    """The model card of one client: data, split, preprocessing, measurements with
    intervals, method, what was sent.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, or final models (`fedtailor finalize`)."""
    client: str
    """Whose model."""
    out: Path | None = None
    """Write the card to this file instead of the standard output."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def card(arguments: list[str]) -> int:
    """Prints or writes a model card."""
    options = parse(Options, arguments, "fedtailor card")
    from fedtailor.deployment.card import model_card
    from fedtailor.deployment.opening import runs_of_clients
    from fedtailor.lab.experiments.option_text import given_model

    runs = runs_of_clients(options.run, [options.client], given_model(options.model))
    run = runs[options.client]
    text = model_card(run, options.client)
    write_text(text, options.out)
    if options.out is not None:
        say(options.out.resolve())
    return 0
