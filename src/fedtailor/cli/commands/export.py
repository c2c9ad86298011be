"""`fedtailor export RUN --out DIR`: personal models as safetensors or ONNX files, with
a card for each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtailor._printable import say
from fedtailor.cli.options import parse


@dataclass(frozen=True)
class Options:
    """Write the personal models of a run, the preprocessing of its table, and a model
    card for each client.

    safetensors: vectors that `fedtailor predict` and `fedtailor.load_models` read.
    onnx: one graph for each client, for any ONNX runtime; needs `pip install
    'fedtailor[onnx]'`.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    out: Path
    """A new directory."""
    format: Literal["safetensors", "onnx"] = "safetensors"
    """Of the models."""
    clients: tuple[str, ...] = ()
    """Only these clients' models (default: all)."""


def export(arguments: list[str]) -> int:
    """Exports the personal models with their cards."""
    options = parse(Options, arguments, "fedtailor export")
    from fedtailor.deployment.calibration import calibration_of
    from fedtailor.deployment.card import write_cards
    from fedtailor.deployment.onnx_export import export_onnx
    from fedtailor.deployment.opening import open_run
    from fedtailor.storage import Damaged, export_models
    from fedtailor.storage.calibration_file import write_calibration

    run = open_run(options.run)
    names = tuple(dict.fromkeys(options.clients)) or run.names
    models = [run.personal(name) for name in names]
    write = export_onnx if options.format == "onnx" else export_models
    write(models, options.out)
    try:
        calibration = calibration_of(run)
    except Damaged:
        raise
    except ValueError:
        # Without validation rows there are models, and no sets or intervals of them.
        calibration = None
    if calibration is not None:
        write_calibration(calibration.only(names), options.out)
    cards = write_cards(run, names, options.out)
    say(
        f"{len(models)} models ({options.format}) and {len(cards)} cards:"
        f" {options.out.resolve()}"
    )
    return 0
