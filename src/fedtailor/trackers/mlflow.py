"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, by default a SQLite file
here.
"""

import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from fedtailor.trackers.tracker import Ended, Setting, Tracker

STORE = "sqlite:///mlflow.db"
"""MLflow's own default: `mlflow ui` in the same folder shows it."""
LONGEST = 6000
"""Characters of a parameter's value that MLflow takes."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """A run of an MLflow experiment: settings as parameters, measurements as metrics by
    round.
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def begin(
        self, title: str, known: str | None, told: int, described: Mapping[str, Setting]
    ) -> tuple[str, int]:
        # MLflow reports its use to its makers by default; here only a user who asks for
        # that does.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with warnings.catch_warnings():
            # MLflow's own, about its use of other libraries.
            warnings.simplefilter("ignore")
            entities = self.library("entities")
            self._client: Any = self.library("tracking").MlflowClient(
                tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or STORE
            )
            if known is not None:
                self._run_id = known
                self._client.update_run(known, status="RUNNING")
                history = self._client.get_metric_history(known, "round")
                return known, max((int(metric.step) for metric in history), default=0)
            experiment = self._client.get_experiment_by_name(self.experiment)
            experiment_id = (
                self._client.create_experiment(self.experiment)
                if experiment is None
                else experiment.experiment_id
            )
            self._run_id = self._client.create_run(
                experiment_id, run_name=title
            ).info.run_id
            params = [
                entities.Param(key, str(value)[:LONGEST])
                for key, value in described.items()
            ]
            self._client.log_batch(self._run_id, params=params)
            return self._run_id, told

    def log(self, round: int, values: Mapping[str, float]) -> None:
        milliseconds = int(time.time() * 1000)
        # `round` comes last: a store that has it has everything of the round.
        metrics = [
            self.library("entities").Metric(name, value, milliseconds, round)
            for name, value in {**values, "round": float(round)}.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, ended: Ended) -> None:
        self._client.set_terminated(self._run_id, STATUS[ended])
