"""`fedtailor export RUN --out DIR`: personal models as safetensors or ONNX files, with
a card for each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtailor._base.printable import say
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
    """A run directory, or final models (`fedtailor finalize`)."""
    out: Path
    """A new directory."""
    format: Literal["safetensors", "onnx"] = "safetensors"
    """The format of the models."""
    encoded: bool = False
    """onnx: graphs of a table take the model's inputs, which preprocessing.json gives,
    instead of the table's own columns."""
    clients: tuple[str, ...] = ()
    """Only these clients' models (default: all)."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def export(arguments: list[str]) -> int:
    """Exports the personal models with their cards."""
    options = parse(Options, arguments, "fedtailor export")
    from fedtailor._base.choice import require
    from fedtailor.deployment.calibration import calibration_at
    from fedtailor.deployment.card import write_cards
    from fedtailor.deployment.onnx_export import export_onnx
    from fedtailor.deployment.opening import runs_of_clients
    from fedtailor.engine.storage import Damaged, export_models
    from fedtailor.engine.storage.calibration_file import write_calibration
    from fedtailor.lab.experiments.option_text import given_model

    clients = tuple(dict.fromkeys(options.clients)) or None
    network = given_model(options.model)
    runs = runs_of_clients(options.run, clients, network)
    models = [run.personal(name) for name, run in runs.items()]
    if options.format == "onnx":
        export_onnx(models, options.out, encoded=options.encoded)
    else:
        require(
            not options.encoded,
            "--encoded is of --format onnx; exported vectors take encoded inputs as they"
            " are",
        )
        export_models(models, options.out)
    try:
        calibration = calibration_at(options.run, network)
    except Damaged:
        raise
    except ValueError:
        # Without rows for it there are models, and no sets of them.
        pass
    else:
        write_calibration(calibration.only(list(runs)), options.out)
    cards = write_cards(runs, options.out)
    say(
        f"{len(models)} models ({options.format}) and {len(cards)} cards:"
        f" {options.out.resolve()}"
    )
    return 0
