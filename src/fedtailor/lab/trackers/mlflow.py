"""MLflow: logs to the store in MLFLOW_TRACKING_URI.

The default is a SQLite file in the current directory.
"""

import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from fedtailor.lab.trackers.tracker import RunStatus, Setting, Tracker

STORE = "sqlite:///mlflow.db"
"""MLflow's own default: `mlflow ui` in the same folder shows it."""
MAX_PARAM_LENGTH = 6000
"""Maximum number of characters in a parameter's value."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs settings as params, and measurements as metrics, to an MLflow run."""

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def begin(
        self,
        title: str,
        run_id: str | None,
        last_round: int,
        config: Mapping[str, Setting],
    ) -> tuple[str, int]:
        # MLflow sends telemetry by default; here the user has to opt in.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with warnings.catch_warnings():
            # MLflow warns about its own use of other libraries.
            warnings.simplefilter("ignore")
            entities = self.library("entities")
            self._client: Any = self.library("tracking").MlflowClient(
                tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or STORE
            )
            if run_id is not None:
                self._run_id = run_id
                self._client.update_run(run_id, status="RUNNING")
                history = self._client.get_metric_history(run_id, "round")
                return run_id, max((int(metric.step) for metric in history), default=0)
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
                entities.Param(key, str(value)[:MAX_PARAM_LENGTH])
                for key, value in config.items()
            ]
            self._client.log_batch(self._run_id, params=params)
            return self._run_id, last_round

    def log(self, round: int, values: Mapping[str, float]) -> None:
        milliseconds = int(time.time() * 1000)
        # `round` is logged last: a store that holds it holds all metrics of the round.
        metrics = [
            self.library("entities").Metric(name, value, milliseconds, round)
            for name, value in {**values, "round": float(round)}.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, status: RunStatus) -> None:
        self._client.set_terminated(self._run_id, STATUS[status])
