"""A finished run."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor._base.notebook import html_paragraphs, table_of_frame
from fedtailor._base.printable import one_line
from fedtailor.aggregation.accounting import Ledger
from fedtailor.data.federation import Federation
from fedtailor.data.tables import Preprocessing
from fedtailor.engine.executors import DeviceExecutor, Settings, newcomer_executor
from fedtailor.engine.runs.row_outcomes import row_outcomes
from fedtailor.engine.runs.summary import Summary, spread
from fedtailor.engine.storage import PersonalModel
from fedtailor.engine.storage.export import export_models
from fedtailor.engine.training import Metrics, Training
from fedtailor.engine.training.personal import personal_models
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Exchanges, Predictor, drive
from fedtailor.statistics.decision import mean_interval

if TYPE_CHECKING:
    import polars as pl


class Run:
    """A trained federation: personal models, measurements, traffic.

    Where clients are on machines of their own, their examples and personal models stay
    there, and what needs them (`personal`, `predict`, `row_outcomes`, `enroll`) is for
    these machines to do.

    Example:
        >>> own = run.personal(federation.names[3])
        >>> own.predict(federation.client(3).test.x).shape
        (18,)
        >>> run.metrics.values("accuracy").shape  # one for each client
        (20,)
    """

    def __init__(self, training: Training[Any], executor: Any, ledger: Ledger) -> None:
        self._training = training
        self._executor = executor
        self._ledger = ledger

    @cached_property
    def training(self) -> Training[DeviceExecutor]:
        """The final state (server, client states)."""
        return self._training

    @property
    def executor(self) -> DeviceExecutor:
        """The executor that answered for the clients."""
        return self._executor

    @property
    def ledger(self) -> Ledger:
        """The costs of training and of the delivery of the final models."""
        return self._ledger

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method (the last one of a schedule)."""
        return self.training.algorithm

    @cached_property
    def federation(self) -> Federation:
        data = self.executor.data
        # An executor of machines has a federation without their examples.
        return data if isinstance(data, Federation) else self.executor.federation

    @cached_property
    def model(self) -> Model:
        return self.training.model

    @cached_property
    def metrics(self) -> Metrics:
        """Evaluations by round."""
        return self.training.metrics

    def frame(self) -> "pl.DataFrame":
        """All evaluations: round, client, unseen, split, metric, value."""
        return self.metrics.frame(self.executor.data.names)

    @cached_property
    def _personal(self) -> dict[str, PersonalModel]:
        """The personal models that have been computed so far, by client. A cached property
        needs no `__init__`, which the subclass `OpenedRun` does not call.
        """
        return {}

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """How rows of the table become inputs; None if the data are not a table."""
        preprocessing = self.federation.preprocessing
        assert preprocessing is None or isinstance(preprocessing, Preprocessing)
        return preprocessing

    def personal(self, client: int | str) -> PersonalModel:
        """The personal model of a client, by name or position in the federation.

        Raises:
            ValueError: there is no such client.
        """
        index = self._index(client)
        drive(self.compute_personal([index]), self.executor)
        return self._personal[self._names[index]]

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of all clients, also of those whose examples are elsewhere."""
        return self.executor.data.names

    def _index(self, client: int | str) -> int:
        """The position of a client among all.

        Raises:
            ValueError: there is no such client.
        """
        if len(self._names) == len(self.federation):
            return self.federation.client(client).index
        if isinstance(client, str):
            require(client in self._names, f"no client is called {client!r}")
            return self._names.index(client)
        require(
            -len(self._names) <= client < len(self._names),
            f"there is no client {client}; there are {len(self._names)}, counted from 0",
        )
        return int(client) % len(self._names)

    def personal_models(self) -> dict[str, PersonalModel]:
        """The personal models of all clients, seen and unseen, by name."""
        drive(self.compute_personal(range(len(self._names))), self.executor)
        return {name: self._personal[name] for name in self._names}

    def compute_personal(self, clients: Iterable[int]) -> Exchanges[None]:
        """Compute the personal models of some clients, unless they are known already.

        Args:
            clients: positions in the federation.
        """
        require(
            not self.executor.clients_keep_models,
            "the personal models of a federation of machines are on its clients'"
            " machines; predict there, with `fedtailor federation predict KIT`",
        )
        missing = [
            client for client in clients if self._names[client] not in self._personal
        ]
        # One request for all clients of a table, not one for each client.
        for table in (self.executor.seen, self.executor.unseen):
            rows = np.flatnonzero(np.isin(table.original_index, missing))
            predictors = yield from personal_models(self.training, table, rows)
            for name, predictor in predictors.items():
                self._personal[name] = self._personal_model(name, predictor)

    def _personal_model(self, name: str, predictor: Predictor) -> PersonalModel:
        federation = self.federation
        return PersonalModel(
            name,
            predictor,
            self.model.of_client(name),
            federation.shift,
            federation.scale,
            self.preprocessing,
        )

    def predict(self, client: int | str, rows: Any, **options: Any) -> NDArray[Any]:
        """The predictions of a client's personal model.

        Args:
            client: by name or position in the federation.
            rows: inputs x [n, ...], as `PersonalModel.predict` takes them; or, for a run
                on a table, raw rows by the names of their columns (a frame, a dict, a
                list of dicts), as `PersonalModel.predict_rows` takes them.
            options: options of `predict_rows`: missing, unknown.

        Returns:
            What `PersonalModel.predict` or `predict_rows` returns: a prediction for each
            row [n].

        Raises:
            ValueError: there is no such client, or the rows are wrong; the message lists
                everything that is wrong with them.
        """
        # Raw rows go through the table's preprocessing. An array holds inputs like those
        # that the model was trained on.
        model = self.personal(client)
        if model.preprocessing is None or isinstance(rows, np.ndarray):
            return model.predict(rows, **options)
        return model.predict_rows(rows, **options)

    def row_outcomes(self) -> "pl.DataFrame":
        """The predictions of the final personal models for every test row.

        Returns:
            The columns client, row (its number in the data) and loss; for
            classifications also correct, prediction, confidence (the prediction's
            probability) and log_odds, for regressions squared_error and prediction.
        """
        return drive(row_outcomes(self.training, self.executor), self.executor)

    def enroll(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        name: str = "newcomer",
        group: int | None = None,
    ) -> PersonalModel:
        """Compute the personal model of a client that arrives after training, from its
        examples x [n, ...], y [n].

        The client is served like an unseen client: it answers the probe if the method has
        one, receives what the method sends to newcomers, and trains what the method lets
        it train.

        Raises:
            ValueError: the examples do not fit the federation, or the method cannot
                serve the client.
        """
        # The newcomer is the only client of a new executor, so that the trained state does
        # not change.
        federation = self.federation
        settings = getattr(self.executor, "settings", Settings())
        guest = newcomer_executor(
            federation, self.model, np.asarray(x), np.asarray(y), name, group, settings
        )
        newcomer = personal_models(self.training, guest.unseen, np.arange(1))
        return self._personal_model(name, drive(newcomer, guest)[name])

    def export(
        self, directory: Path | str, clients: Iterable[int | str] | None = None
    ) -> Path:
        """Write personal models into a new directory, which `load_models` reads.

        Args:
            directory: the directory to create.
            clients: names or positions in the federation; None = all clients.

        Raises:
            ValueError: the directory holds other files or cannot be written, or there
                is no such client.
        """
        if clients is None:
            models = list(self.personal_models().values())
        else:
            models = [self.personal(client) for client in clients]
        return export_models(models, directory)

    def __repr__(self) -> str:
        """The run in a line, such as "fedavg on digits: 20 clients, 10 rounds, seed 0;
        accuracy 0.912 (worst client 0.830); see summary()".
        """
        try:
            found = self.summary()
        except ValueError:  # an opened run whose files are damaged
            return object.__repr__(self)
        return one_line(
            f"{found.algorithm} on {found.federation}: {found.clients} clients,"
            f" {found.rounds} rounds, seed {found.seed}; {found.metric} {found.mean:.3f}"
            f" (worst client {found.worst:.3f}); see summary()"
        )

    def _repr_html_(self) -> str:
        """The run in a notebook: its numbers, and those of each client."""
        summary = self.summary()
        names, last = self.executor.data.names, self.training.round
        frame = self.metrics.frame(names)
        shown = frame.filter(frame["round"] == last).drop("round", "unseen")
        title = f"{summary.algorithm} on {summary.federation}"
        return (
            html_paragraphs([title])
            + summary._repr_html_()
            + table_of_frame(shown, f"clients after round {last}")
        )

    def _of_sample(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """What a summary says of an evaluation of some clients only.

        Args:
            values: [c] the metric of the seen clients that were evaluated.
        """
        training = self.training
        asked, clients = training.evaluate_clients, len(training.population)
        if asked is None or asked >= clients or not len(values):
            return {}
        found = mean_interval(values, of=clients)
        return {
            "evaluated_clients": len(values),
            "mean_low": found.low,
            "mean_high": found.high,
        }

    def summary(self) -> Summary:
        """The run in numbers."""
        training = self.training
        totals = self.ledger.totals()
        metric = training.metric
        values = self.metrics.values(metric.name)
        unseen = self.metrics.values(metric.name, unseen=True)
        privacy = training.privacy
        return Summary(
            algorithm=self.algorithm.about.name,
            federation=self.executor.data.name,
            rounds=training.round,
            seed=training.seed,
            clients=len(training.population),
            metric=metric.name,
            **spread(values, higher_is_better=metric.higher_is_better),
            unseen_mean=float(unseen.mean()) if len(unseen) else None,
            streams=self.ledger.last_streams(),
            models_down=totals.models_down,
            models_down_unicast=totals.models_down_unicast,
            models_up=totals.models_up,
            bytes_down=totals.bytes_down,
            bytes_up=totals.bytes_up,
            seconds=training.seconds,
            core_seconds=training.core_seconds,
            seconds_per_round=(
                float(np.median(training.round_seconds))
                if training.round_seconds
                else 0.0
            ),
            **({} if privacy is None else privacy.largest(training.round)),
            time=None if training.times is None else float(training.times[-1]),
            **self._of_sample(values),
        )
