"""Answers all requests of a job at a client.

First the coordinator sends "hello". With federated preprocessing it then sends
"statistics", "inputs" (only if inputs are decorrelated) and "agreed". The tasks of
rounds follow (see `work`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedtailor.federation import SPLITS, Federation
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.examples import federation_of, split_rows
from fedtailor.remote.job import Job
from fedtailor.remote.messages import Request
from fedtailor.remote.plan import plan_of
from fedtailor.remote.refusals import Refusal, refuse_unless
from fedtailor.remote.statistics import (
    ClientTable,
    Statistics,
    as_array,
    from_arrays,
    read_table,
)
from fedtailor.remote.table import Rows, read_rows
from fedtailor.remote.transport import RequestHandler
from fedtailor.remote.work import RoundHandler

HELLO = "hello"
"""Task: report the numbers of training, validation and test rows."""

STATISTICS = "statistics"
"""Task: send counts and sums over the client's training rows."""

INPUTS = "inputs"
"""Task: send sums of products of the inputs.

The request holds the pooled statistics of all clients' columns, which determine how
columns become inputs.
"""

AGREED = "agreed"
"""Task: convert the table to examples, by the pooled statistics in the request.

The answer holds no arrays.
"""


class JobHandler:
    """Answers the requests of a job (a `RequestHandler` for `Responder`).

    Args:
        job: the job.
        name: name of this client.
        data: the client's file.
        store: the client's states.
        make_handler: function from the client's federation and store to the handler of
            rounds; `RoundHandler` by default.

    Raises:
        ValueError: the file does not fit the job.

    Attributes:
        sizes: [3] numbers of training, validation and test rows.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        data: Path,
        store: ClientStore,
        make_handler: Callable[[Federation, ClientStore], RequestHandler] | None = None,
    ) -> None:
        self._job, self._name = job, name
        self._store, self._make_work = store, make_handler
        self._table: ClientTable | None = None
        self._statistics: Statistics | None = None
        self._rounds: RequestHandler | None = None
        if not job.schema.federated:
            rows = read_rows(data, job.schema)
            self._split = split_rows(len(rows.y), job.schema, job.seed, name)
            self._begin(rows)
        else:
            self._table = read_table(data, job.schema)
            self._split = split_rows(len(self._table.y), job.schema, job.seed, name)
            # A client that is restarted continues with the same preprocessing.
            stored = Statistics.load(store.directory, job.schema)
            if stored is not None:
                self._convert_table(stored)
        self.sizes = np.array([len(self._split[split]) for split in SPLITS], np.int64)

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request.

        Raises:
            Refused: the client does not do the task.
        """
        if request.task == HELLO:
            return {"rows": self.sizes}
        if request.task in (STATISTICS, INPUTS, AGREED):
            return self._preprocess(request)
        refuse_unless(
            self._rounds is not None,
            Refusal.NO_STATISTICS,
            "this client has not received the statistics of all clients' tables",
        )
        assert self._rounds is not None
        return self._rounds(request)

    def common_vectors(self) -> list[np.ndarray]:
        """Vectors that all machines can compute (`Plan.common_vectors`)."""
        return plan_of(self._job, self._statistics).common_vectors()

    def _preprocess(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request about the client's table."""
        table, schema, train = self._table, self._job.schema, self._split["train"]
        refuse_unless(
            table is not None,
            Refusal.NOT_IN_JOB,
            "this job takes tables as they stand",
        )
        assert table is not None
        if request.task == STATISTICS:
            return {STATISTICS: as_array(table.statistics(train))}
        statistics = from_arrays(request.arrays, schema)
        if request.task == INPUTS:
            refuse_unless(
                schema.decorrelate,
                Refusal.NOT_IN_JOB,
                "this job does not ask for products of inputs",
            )
            return {STATISTICS: as_array(table.with_inputs(train, statistics))}
        refuse_unless(
            not statistics.needs_input_sums(schema),
            Refusal.WRONG_STATISTICS,
            "the job asks for sums of products, and there are none",
        )
        if statistics != self._statistics:
            # Save the statistics only after the table has been converted: a restart
            # uses them without another check.
            self._convert_table(statistics)
            statistics.save(self._store.directory)
        return {}

    def _convert_table(self, statistics: Statistics) -> None:
        """Convert the table to examples by pooled statistics, and begin."""
        assert self._table is not None
        rows = self._table.rows(statistics)
        self._statistics = statistics
        self._begin(rows)

    def _begin(self, rows: Rows) -> None:
        """Make the handler of rounds on these examples."""
        federation = federation_of(self._job, {self._name: rows})
        if self._make_work is not None:
            self._rounds = self._make_work(federation, self._store)
        else:
            plan = plan_of(self._job, self._statistics)
            self._rounds = RoundHandler(plan, federation, self._store)
