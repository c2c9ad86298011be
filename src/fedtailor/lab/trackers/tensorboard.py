"""TensorBoard: event files in the run directory, written by tensorboardX.

TensorBoard itself is not needed to write them.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from fedtailor.lab.trackers.tracker import RunStatus, Setting, Tracker


class TensorBoard(Tracker):
    """Writes event files to the subdirectory `tensorboard` of the run directory.

    `tensorboard --logdir RESULTS` finds the files of all runs. Without a run directory
    they are in `tensorboard/TITLE TIME` in the current directory.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboardX"

    def begin(
        self,
        title: str,
        run_id: str | None,
        last_round: int,
        config: Mapping[str, Setting],
    ) -> tuple[str, int]:
        if self.directory is not None:
            folder = self.directory / "tensorboard"
        else:
            time = f"{datetime.now():%Y-%m-%d %H-%M-%S}"
            folder = Path("tensorboard") / f"{title.replace(os.sep, '-')} {time}"
        # tensorboardX names files by the time in seconds. The suffix makes the names of
        # two files of the same second different.
        suffix = f".{os.getpid()}.{last_round}"
        self._writer: Any = self.library().SummaryWriter(
            str(folder), filename_suffix=suffix
        )
        if run_id is None:
            rows = "\n".join(f"| {key} | {value} |" for key, value in config.items())
            self._writer.add_text(
                "settings",
                f"{self.experiment}: {title}\n\n| setting | value |\n|---|---|\n{rows}",
            )
        return folder.name, last_round

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, status: RunStatus) -> None:
        self._writer.close()
