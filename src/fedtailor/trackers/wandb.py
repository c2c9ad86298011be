"""Weights & Biases, offline unless WANDB_MODE says otherwise: `wandb sync` uploads what
is to be shared.
"""

import os
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from fedtailor.trackers.tracker import Ended, Setting, Tracker


class WandB(Tracker):
    """A run of a W&B project, in `wandb` in the run's directory (without one: here, or
    in WANDB_DIR).

    A resumed run writes another folder with the same id there; `wandb sync` makes one
    run of both.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def begin(
        self, title: str, known: str | None, told: int, described: Mapping[str, Setting]
    ) -> tuple[str, int]:
        # Nor does it report its own faults to its makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = self.library()
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
        )
        run_id = known or uuid.uuid4().hex[:12]
        self._run: Any = wandb.init(
            project=self.experiment,
            name=title,
            id=run_id,
            resume="allow",
            config=dict(described),
            dir=None if self.directory is None else str(self.directory),
            reinit="create_new",
            mode="offline" if os.environ.get("WANDB_MODE") is None else None,
            settings=quiet,
        )
        return run_id, told

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round, commit=True)

    def end(self, ended: Ended) -> None:
        self._run.finish(exit_code=0 if ended == "finished" else 1)
