"""Weights & Biases: logs offline unless WANDB_MODE is set; `wandb sync` uploads."""

import os
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from fedtailor.lab.trackers.tracker import RunStatus, Setting, Tracker


class WandB(Tracker):
    """Logs to a run of a W&B project, in the subdirectory `wandb` of the run directory.

    Without a run directory the files are in WANDB_DIR, or in the current directory. A
    resumed run writes another folder with the same id; `wandb sync` merges the two.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def begin(
        self,
        title: str,
        run_id: str | None,
        last_round: int,
        config: Mapping[str, Setting],
    ) -> tuple[str, int]:
        # W&B sends reports of its errors by default.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = self.library()
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
        )
        run_id = run_id or uuid.uuid4().hex[:12]
        self._run: Any = wandb.init(
            project=self.experiment,
            name=title,
            id=run_id,
            resume="allow",
            config=dict(config),
            dir=None if self.directory is None else str(self.directory),
            reinit="create_new",
            mode="offline" if os.environ.get("WANDB_MODE") is None else None,
            settings=settings,
        )
        return run_id, last_round

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round, commit=True)

    def end(self, status: RunStatus) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)
