"""TensorBoard: event files beside the run, written by tensorboardX (TensorBoard itself
is not needed to write them).
"""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from fedtailor.trackers.tracker import Ended, Setting, Tracker


class TensorBoard(Tracker):
    """Event files in `tensorboard` in the run's directory: `tensorboard --logdir
    RESULTS` finds those of all runs.

    Without a directory, in `tensorboard/TITLE TIME` here.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboardX"

    def begin(
        self, title: str, known: str | None, told: int, described: Mapping[str, Setting]
    ) -> tuple[str, int]:
        if self.directory is not None:
            folder = self.directory / "tensorboard"
        else:
            time = f"{datetime.now():%Y-%m-%d %H-%M-%S}"
            folder = Path("tensorboard") / f"{title.replace(os.sep, '-')} {time}"
        # tensorboardX names a file by its second: of two in one second, the later one
        # would replace the other.
        suffix = f".{os.getpid()}.{told}"
        self._writer: Any = self.library().SummaryWriter(
            str(folder), filename_suffix=suffix
        )
        if known is None:
            rows = "\n".join(f"| {key} | {value} |" for key, value in described.items())
            self._writer.add_text(
                "settings",
                f"{self.experiment}: {title}\n\n| setting | value |\n|---|---|\n{rows}",
            )
        return folder.name, told

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, ended: Ended) -> None:
        self._writer.close()
