"""All that a client of a job is asked, from the first greeting: who it is, what its
table holds, then the rounds.
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
"""The task that asks a client whether it is ready: it answers how many rows it trains,
validates and tests on.
"""

STATISTICS = "statistics"
"""The task that asks for counts and sums of the client's training rows."""

INPUTS = "inputs"
"""The task that tells what the columns hold together, and asks for sums of products of
the inputs that follow.
"""

AGREED = "agreed"
"""The task that tells the sum over all clients, from which the client's table becomes
examples.
"""


class JobWork:
    """Answers the requests of a job (a `Work` for `Responder`).

    Args:
        job: of the federation.
        name: of this client.
        data: its file.
        store: what it keeps between rounds.
        make_work: from its own examples and its store to what answers the requests of
            rounds; by default what the job's method does.

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
        self._job, self._name, self._store, self._make_work = (
            job,
            name,
            store,
            make_work,
        )
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
            known = Statistics.load(store.directory, job.schema)
            if known is not None:
                self._agree(known)
        self.sizes = np.array([len(self._split[split]) for split in SPLITS], np.int64)

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Do what a request asks.

        Raises:
            ValueError: it cannot be done; in one line.
        """
        if request.task == HELLO:
            return {"rows": self.sizes}
        if request.task in (STATISTICS, INPUTS, AGREED):
            require(self._table is not None, "this job takes tables as they stand")
            assert self._table is not None
            train = self._split["train"]
            if request.task == STATISTICS:
                return {STATISTICS: as_array(self._table.statistics(train))}
            agreed = from_arrays(request.arrays, self._job.schema)
            if request.task == INPUTS:
                require(
                    self._job.schema.decorrelate,
                    "this job does not ask for products of inputs",
                )
                return {STATISTICS: as_array(self._table.with_inputs(train, agreed))}
            require(
                not agreed.lacks_inputs(self._job.schema),
                "the job asks for sums of products, and there are none",
            )
            if agreed != self._agreed:
                self._agree(agreed)
                agreed.save(self._store.directory)
            return {}
        require(
            self._rounds is not None,
            "it has not been told what the clients' tables hold together",
        )
        assert self._rounds is not None
        return self._rounds(request)

    def common_vectors(self) -> list[np.ndarray]:
        """Vectors that all machines can make by themselves (`Plan.common_vectors`)."""
        return plan_of(self._job, self._agreed).common_vectors()

    def _agree(self, agreed: Statistics) -> None:
        assert self._table is not None
        rows = self._table.rows(agreed)
        self._agreed = agreed
        self._begin(rows)

    def _begin(self, rows: Rows) -> None:
        own = federation_of(self._job, {self._name: rows})
        if self._make_work is not None:
            self._rounds = self._make_work(own, self._store)
        else:
            self._rounds = ClientWork(
                plan_of(self._job, self._agreed), own, self._store
            )
