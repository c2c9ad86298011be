"""Answers all requests of a job at a client.

First the coordinator sends "hello". With federated preprocessing it then sends
"statistics" and "agreed". The tasks of rounds follow (see `work`). At any time it may ask
to "describe" the table.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.aggregation.secure_sums import MIN_CLIENTS
from fedtailor.data.federation import SPLITS
from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import NOISY, Describer, check_described
from fedtailor.remote.client.policy import has_probe
from fedtailor.remote.client.round_requests import RoundHandler
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.agreement import check_column_sums, check_scale
from fedtailor.remote.job.examples import (
    ExampleRows,
    example_rows_of,
    federation_from_rows,
)
from fedtailor.remote.job.exposure import NUMBERS_PER_CELL, exposure_of
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.regression import client_design
from fedtailor.remote.job.statistics import (
    MAX_INPUT,
    OWN_FILE,
    ClientTable,
    Statistics,
    as_array,
    read_table,
    statistics_from_arrays,
)
from fedtailor.remote.job.table import ClientExamples, read_rows
from fedtailor.remote.wire.fingerprints import OwnOrigin
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused, refuse_unless, refusing
from fedtailor.remote.wire.releases import RELEASE, talk
from fedtailor.remote.wire.request_kind import (
    DESCRIBE,
    HELLO,
    STATISTICS,
    RequestKind,
    kind_of,
)
from fedtailor.remote.wire.run_log import client_log


class JobHandler:
    """Answers the requests of a job (a `RequestHandler` for `Responder`).

    Args:
        job: the job.
        name: name of this client.
        data: the client's file.
        store: the client's states.
        account: what the client has answered and spent (see `RoundHandler`).
        numbers_per_cell: the most open numbers for each cell (see `exposure`).
        least_clients: the least number of clients in a sum.

    Raises:
        ValueError: the file does not fit the job.
        Refused: the job would send too many open numbers.

    Attributes:
        sizes: [3] numbers of training, validation and test rows.
        origin: where the answers come from.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        data: Path,
        store: ClientStore,
        account: ClientAccount | None = None,
        numbers_per_cell: float = NUMBERS_PER_CELL,
        least_clients: int = MIN_CLIENTS,
    ) -> None:
        self._job, self._name = job, name
        self._numbers_per_cell = numbers_per_cell
        self._least_clients = least_clients
        self._store = store
        self._account = account or ClientAccount(store.client_directory)
        self._data, self._log = data, client_log(name)
        self._table: ClientTable | None = None
        self._describer: Describer | None = None
        # The statistics of columns, once they are taken, if the job does not say them.
        self._taken: Statistics | None = None
        self._rounds: RoundHandler | None = None
        if job.schema.preprocessing == "none":
            rows = read_rows(data, job.schema)
            content = [np.asarray(rows.x).tobytes(), np.asarray(rows.y).tobytes()]
            times = rows.times
            self._examples = self._examples_of(rows)
            self._begin(rows)
        else:
            self._table = read_table(data, job.schema)
            cells = self._table.frame.write_csv().encode()
            content = [cells, np.asarray(self._table.y).tobytes()]
            times = self._table.times
            self._examples = self._examples_of(self._table)
            if not job.schema.federated:
                self._taken = Statistics.of_job(job.schema)
                self._taken.save(store.directory)  # to predict by
                self._begin(self._convert(self._taken), self._taken)
            else:
                self._go_on()
        split = self._examples.split
        self.sizes = np.array([len(split[part]) for part in SPLITS], np.int64)
        content += [split[part].tobytes() for part in SPLITS]
        if times is not None:
            content.append(times.tobytes())
        self.origin = OwnOrigin(
            store.client_directory, store.directory, content, self._log
        )

    def _go_on(self) -> None:
        """Continue with the pooled statistics that were taken before a restart."""
        self._taken = Statistics.load(self._store.directory, self._job.schema)
        if self._taken is None:
            return
        try:
            self._begin(self._convert(self._taken), self._taken)
        except Exception as error:  # no message may keep it from starting
            self._log.warning(
                f"{self._name} cannot go on as before with {self._data.name}: {error}"
            )

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request.

        Raises:
            Refused: the client does not do the task.
        """
        kind = kind_of(request)
        if request.task == HELLO:
            release = request.algorithm.get("release")
            refuse_unless(
                isinstance(release, str) and talk(release, RELEASE),
                Refusal.OTHER_RELEASE,
                f"the coordinator runs release {release!r} of fedtailor, and this"
                f" machine {RELEASE}; both need the same minor version: install it here"
                " or there",
            )
            return {
                "rows": self.sizes,
                "release": np.frombuffer(RELEASE.encode(), np.uint8),
            }
        if request.task == DESCRIBE:
            return self._describe(request)
        if kind is RequestKind.TABLE:
            return self._preprocess(request)
        refuse_unless(
            self._rounds is not None,
            Refusal.NO_STATISTICS,
            "it has not received the statistics of all clients' tables",
        )
        assert self._rounds is not None
        return self._rounds(request)

    def _describe(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request to describe the client's table."""
        if request.algorithm.get("step") != NOISY:
            with refusing(Refusal.NOT_IN_JOB):
                check_described(self._job)
        if self._describer is None:
            store = self._store
            self._describer = Describer(
                self._job.schema,
                self._read_again(),
                self._examples.training_rows,
                store.directory,
                self._account,
                self._log,
            )
        return self._describer(request)

    def _read_again(self) -> ClientTable:
        """The table before it became examples."""
        with refusing(Refusal.TABLE):
            table = self._table or read_table(self._data, self._job.schema)
        refuse_unless(
            self._has_same_examples(table),
            Refusal.TABLE,
            "the file has other rows than when this client was started",
        )
        return table

    def _has_same_examples(self, table: ClientTable) -> bool:
        """Whether a table is divided as the client's was when it was started."""
        return np.array_equal(self._examples_of(table).rows, self._examples.rows)

    def _examples_of(self, table: ClientExamples | ClientTable) -> ExampleRows:
        return example_rows_of(table, self._job.schema, self._job.spec.seed, self._name)

    def common_vectors(self) -> list[np.ndarray]:
        """Vectors that all machines can compute (`Plan.common_vectors`)."""
        return plan_of(self._job, self._taken).common_vectors()

    def _preprocess(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request about the client's table."""
        table, schema = self._table, self._job.schema
        train = self._examples.training_rows
        if table is None or not schema.federated:
            raise Refused(Refusal.NOT_IN_JOB, "this job asks for no sums of columns")
        if request.task == STATISTICS:
            own, sent = table.statistics(train), self._own_sent()
            # With a row more or less, the difference of both would be that row.
            refuse_unless(
                sent is None or own == sent,
                Refusal.OTHER_STATISTICS,
                "its rows differ from those whose sums it sent in this job, which it"
                " does once; start it with those rows, or take part in a new job, with"
                " another seed",
            )
            if sent is None:
                own.save(self._store.directory, OWN_FILE)
            return {STATISTICS: as_array(own)}
        with refusing(Refusal.WRONG_STATISTICS):
            pooled = statistics_from_arrays(request.arrays, schema)
        self._take(pooled)
        if self._rounds is None:
            self._begin(self._convert(pooled), pooled)
        return {}

    def _own_sent(self) -> Statistics | None:
        """The client's own statistics that it sent, also to describe its table."""
        with refusing(Refusal.NO_STATE):
            return Statistics.load(self._store.directory, self._job.schema, OWN_FILE)

    def _take(self, pooled: Statistics) -> None:
        """Take pooled statistics, which a client does once a job.

        With other ones the client would say more about its table, at least whether it
        refuses them. The same ones are taken again, so that both sides can be restarted.

        Raises:
            Refused: other statistics were taken, or these cannot hold the client's own.
        """
        schema, taken = self._job.schema, self._taken
        if taken is not None:
            refuse_unless(
                pooled == taken,
                Refusal.OTHER_STATISTICS,
                f"other pooled statistics are in {self._store.directory}; a job is"
                " prepared once, and a new one needs another seed",
            )
            return
        with refusing(Refusal.WRONG_STATISTICS):
            pooled.preprocessing(schema)
            sent = self._own_sent()
            if sent is not None:
                check_column_sums(pooled, sent, schema)
        # Save them before they are used: what they lead to must not depend on how often
        # this client is restarted.
        pooled.save(self._store.directory)
        self._taken = pooled

    def _convert(self, statistics: Statistics) -> ClientExamples:
        """Convert the table to examples by statistics, pooled or of the job.

        Raises:
            Refused: the table does not fit them.
        """
        assert self._table is not None
        train, schema = self._examples.training_rows, self._job.schema
        with refusing(Refusal.TABLE):
            if schema.federated:
                check_scale(statistics, self._table.statistics(train), schema)
            rows = self._table.rows(statistics)
        far = int((np.abs(rows.x) == MAX_INPUT).any(axis=1).sum())
        # A number that stays as it is may be as large.
        if far and any(map(schema.is_scaled, schema.columns)):
            self._log.warning(
                f"{self._data.name}: {far} rows have cells farther than {MAX_INPUT:g}"
                " standard deviations from the mean, which count as so far"
            )
        return rows

    def _begin(
        self, rows: ClientExamples, statistics: Statistics | None = None
    ) -> None:
        """Make the handler of rounds on these examples."""
        federation = federation_from_rows(self._job, {self._name: rows}, statistics)
        plan = plan_of(self._job, statistics)
        rows_trained = len(self._examples.training_rows)
        exposure = exposure_of(plan, self._job.schema, rows_trained)
        self._log.info(f"{self._name}: {exposure}")
        exposure.check(self._numbers_per_cell)
        most, asks = self._numbers_per_cell * exposure.cells, has_probe(self._job)
        if asks or not (exposure.is_summed or exposure.has_noise):
            probes = (
                ", with probes, whose size is the coordinator's choice" if asks else ""
            )
            self._log.info(
                f"{self._name}: at most {most:,.0f} numbers leave openly in all runs of"
                f" this job{probes}; {self._account.numbers_of(self._job.identity):,} have left"
                " so far"
            )
        design = None
        if plan.regression is not None:
            # A job with a regression begins before the client connects: a refusal afterwards
            # would be something about the rows.
            design = client_design(self._read_again(), plan.regression.model)
        self._rounds = RoundHandler(
            plan,
            federation,
            self._store,
            self._account,
            self._least_clients,
            most,
            design,
        )
