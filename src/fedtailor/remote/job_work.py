"""All that a client of a job is asked: whether it is ready, what its table holds, rounds.

A job whose clients agree on the preprocessing asks "statistics", perhaps "inputs", then
"agreed" before the first round.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedtailor.federation import SPLITS, Federation
from fedtailor.protocol import require
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.examples import federation_of, split_rows
from fedtailor.remote.job import Job
from fedtailor.remote.messages import Request
from fedtailor.remote.plan import plan_of
from fedtailor.remote.statistics import (
    OwnTable,
    Statistics,
    as_array,
    from_arrays,
    read_table,
)
from fedtailor.remote.table import Rows, read_rows
from fedtailor.remote.transport import Work
from fedtailor.remote.work import ClientWork

HELLO = "hello"
"""The task that asks a client whether it is ready.

It answers how many rows it trains, validates and tests on.
"""

STATISTICS = "statistics"
"""The task that asks for counts and sums of the client's training rows."""

INPUTS = "inputs"
"""The task that asks for sums of products of the inputs.

The request holds the statistics of all clients' columns, from which inputs follow.
"""

AGREED = "agreed"
"""The task that gives a client the statistics of all clients.

From these its table becomes examples; it answers nothing.
"""


class JobWork:
    """Answers the requests of a job (a `Work` for `Responder`).

    Args:
        job: of the federation.
        name: of this client.
        data: its file.
        store: what it keeps between rounds.
        make_work: makes what answers the requests of rounds, from the client's examples
            and its store; `ClientWork` by default.

    Raises:
        ValueError: the file does not fit the job.

    Attributes:
        sizes: [3] rows that train, validate and test.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        data: Path,
        store: ClientStore,
        make_work: Callable[[Federation, ClientStore], Work] | None = None,
    ) -> None:
        self._job, self._name = job, name
        self._store, self._make_work = store, make_work
        self._table: OwnTable | None = None
        self._agreed: Statistics | None = None
        self._rounds: Work | None = None
        if not job.schema.federated:
            rows = read_rows(data, job.schema)
            self._split = split_rows(len(rows.y), job.schema, job.seed, name)
            self._begin(rows)
        else:
            self._table = read_table(data, job.schema)
            self._split = split_rows(len(self._table.y), job.schema, job.seed, name)
            # A client that was started again goes on with what it agreed to.
            stored = Statistics.load(store.directory, job.schema)
            if stored is not None:
                self._agree(stored)
        self.sizes = np.array([len(self._split[split]) for split in SPLITS], np.int64)

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Do what a request asks.

        Raises:
            ValueError: it cannot be done; in one line.
        """
        if request.task == HELLO:
            return {"rows": self.sizes}
        if request.task in (STATISTICS, INPUTS, AGREED):
            return self._preprocess(request)
        require(
            self._rounds is not None,
            "it has not been told what the clients' tables hold together",
        )
        assert self._rounds is not None
        return self._rounds(request)

    def common_vectors(self) -> list[np.ndarray]:
        """Vectors that all machines can make by themselves (`Plan.common_vectors`)."""
        return plan_of(self._job, self._agreed).common_vectors()

    def _preprocess(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request about the client's table."""
        table, schema, train = self._table, self._job.schema, self._split["train"]
        require(table is not None, "this job takes tables as they stand")
        assert table is not None
        if request.task == STATISTICS:
            return {STATISTICS: as_array(table.statistics(train))}
        agreed = from_arrays(request.arrays, schema)
        if request.task == INPUTS:
            require(schema.decorrelate, "this job does not ask for products of inputs")
            return {STATISTICS: as_array(table.with_inputs(train, agreed))}
        require(
            not agreed.lacks_inputs(schema),
            "the job asks for sums of products, and there are none",
        )
        if agreed != self._agreed:
            # Stored once the table is known to fit: what is stored is used at once when
            # the client is started again.
            self._agree(agreed)
            agreed.save(self._store.directory)
        return {}

    def _agree(self, agreed: Statistics) -> None:
        """Make the table's examples from the statistics of all clients."""
        assert self._table is not None
        rows = self._table.rows(agreed)
        self._agreed = agreed
        self._begin(rows)

    def _begin(self, rows: Rows) -> None:
        """Get ready for rounds on these examples."""
        federation = federation_of(self._job, {self._name: rows})
        if self._make_work is not None:
            self._rounds = self._make_work(federation, self._store)
        else:
            plan = plan_of(self._job, self._agreed)
            self._rounds = ClientWork(plan, federation, self._store)
