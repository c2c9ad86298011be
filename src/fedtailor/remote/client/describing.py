"""Describes the tables of a federation's clients before anything is trained.

A client answers two requests, once a job: "columns" for the sums of its columns, as in
federated preprocessing, and "counts" for histograms whose edges follow from the pooled
sums. With noise it answers one, "noisy": counts alone, in ranges that were named
beforehand, because no sum without noise may decide on the edges.

Without noise they are of the training rows: of other rows, the difference to the sums of
federated preprocessing would count few. With noise they are of all rows, as single ones decide
which are training rows.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor._base.choice import require
from fedtailor._base.digests import DIGEST_KEY, has_valid_digest, with_digest
from fedtailor._base.files import atomic_write
from fedtailor._base.groups import MIN_ROWS
from fedtailor._base.printable import join_names, shortened
from fedtailor.aggregation.accounting.privacy import gaussian_multiplier, require_delta
from fedtailor.data.tables.description import (
    BINS,
    ClientCounts,
    CountNoise,
    Description,
    all_edges,
    class_counts_of,
    even_edges,
    histogram_of,
)
from fedtailor.data.tables.kinds import Kind
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.client.account import ClientAccount, Release
from fedtailor.remote.job.agreement import (
    MAX_ROWS,
    check_column_sums,
    check_own_sums,
)
from fedtailor.remote.job.examples import example_rows_of
from fedtailor.remote.job.job import Job, Schema
from fedtailor.remote.job.statistics import (
    OWN_FILE,
    ClientTable,
    Statistics,
    add_statistics,
    as_array,
    read_table,
    statistics_from_arrays,
)
from fedtailor.remote.keys.secret import secret_in, seed_from
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless, refusing
from fedtailor.remote.wire.request_kind import DESCRIBE
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.transport import TooFewClients, Transport, send_and_receive

T = TypeVar("T")

COLUMNS, COUNTS, NOISY = "columns", "counts", "noisy"
"""What a request asks for: sums of columns, then counts; or counts with noise."""

NARROWEST = 0.5
"""The least deviation of pooled sums for which rows are counted in bins, of the deviation of
the client's own: bins are a quarter of the pooled one wide.
"""

FILE = "description.json"
"""File of a client with its answers, and of the coordinator with those of all."""

ANSWER = "description"
"""Name of the array of an answer: JSON, as bytes."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Question(BaseModel):
    """What a request to describe asks for, as it stands in `Request.algorithm`.

    Attributes:
        step: `COLUMNS`, `COUNTS` or `NOISY`.
        epsilon, delta: what the noisy counts may spend, for adding or removing a row.
        ranges: column of numbers -> smallest and largest number of its histogram.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    step: Literal["columns", "counts", "noisy"]
    epsilon: Annotated[float, Field(ge=0.01, le=100)] | None = None
    delta: Annotated[float, Field(ge=1e-12, lt=1)] | None = None
    ranges: Annotated[
        dict[str, Annotated[tuple[Finite, Finite], Field(strict=False)]],
        Field(max_length=10_000),
    ] = Field(default_factory=dict)

    def noise(self, schema: Schema) -> CountNoise:
        """The noise on each count.

        One row adds 1 to one count of every column, so that all counts together change by
        the square root of the number of columns.
        """
        assert self.epsilon is not None and self.delta is not None
        multiplier = gaussian_multiplier(self.epsilon, self.delta)
        deviation = multiplier * math.sqrt(len(kinds_of(schema)))
        return CountNoise(epsilon=self.epsilon, delta=self.delta, deviation=deviation)

    def check(self, schema: Schema) -> None:
        """Check the settings of noisy counts.

        Raises:
            ValueError: one is missing, superfluous, or not of a column of numbers.
        """
        is_noisy = self.step == NOISY
        given = self.epsilon is not None and self.delta is not None
        require(
            given if is_noisy else not (given or self.ranges),
            "epsilon, delta and ranges belong to noisy counts, and only to them",
        )
        kinds = kinds_of(schema)
        for name, (low, high) in self.ranges.items():
            require(
                kinds.get(name) == "number" and low < high,
                f"{name!r} has the range {low:g} to {high:g}; a range is of a column of"
                " numbers of the job, and ascending",
            )


def what_is_sent(schema: Schema, question: Question | None = None) -> list[str]:
    """Say in lines what a client sends to describe its table."""
    kinds = kinds_of(schema)
    numbers = [name for name, kind in kinds.items() if kind in ("number", "date")]
    columns = f"{len(kinds)} column{'' if len(kinds) == 1 else 's'}"
    if schema.task == "survival":
        columns += (
            f" (of {schema.target!r}: in which of {len(schema.intervals)} intervals rows had"
            " the event or were last seen)"
        )
    least = f"no count of fewer than {MIN_ROWS} rows, no row, and no smallest or largest cell"
    if question is not None and question.step == NOISY:
        noise = question.noise(schema)
        return [
            f"how many of all its rows lie in each of {BINS} bins of the columns that"
            f" have a range, have each listed category, or lack the cell, for {columns}",
            f"each with Gaussian noise of deviation {noise.deviation:.3g}: epsilon"
            f" {noise.epsilon:g} for each row (delta {noise.delta:g}), for all counts"
            " together",
            least,
        ]
    return [
        f"of its training rows, for each of {columns}: how many cells are there and how"
        " many missing, mean and sum of squares of numbers, rows of each category",
        f"then, for {len(numbers)} columns of numbers or dates, rows in each of"
        f" {BINS} bins",
        least,
        "all without noise: no epsilon covers it",
    ]


def check_described(job: Job) -> None:
    """Check that a job lets clients describe their tables without noise.

    Raises:
        ValueError: sums of the same rows would show what one client hides.
    """
    require(
        job.spec.privacy.sums is None,
        "this job adds up what clients send (secure_aggregation), which beside a description"
        " would show what one client hides: describe the tables with --epsilon, or in a job of"
        " another federation",
    )


def kinds_of(schema: Schema) -> dict[str, Kind]:
    """The kinds of all columns of a job, with the target as the last one."""
    target: Kind = "number" if schema.outcomes is None else "category"
    return {**schema.kinds, schema.target: target}


class Describer:
    """Describes a client's table, at the client.

    Args:
        schema: columns of the job.
        table: the client's table.
        train: indices of its training rows.
        directory: directory of the client's states of this job.
        account: what the client has answered and spent.
        log: where it says what will be sent, before it is.
    """

    def __init__(
        self,
        schema: Schema,
        table: ClientTable,
        train: Int[NDArray, " n"],
        directory: Path,
        account: ClientAccount,
        log: logging.Logger,
    ) -> None:
        self._schema, self._table, self._train = schema, table, train
        self._path, self._account, self._log = directory / FILE, account, log

    def __call__(self, request: Request) -> Mapping[str, np.ndarray]:
        """Answer a request; the same one has the same answer again.

        Raises:
            Refused: it is not of this job, or another one was answered in its place.
        """
        with refusing(Refusal.MALFORMED):
            question = _question_of(request)
            question.check(self._schema)
        refuse_unless(
            len(self._train) >= MIN_ROWS,
            Refusal.FEW_ROWS,
            f"it has {len(self._train)} training rows, and describes {MIN_ROWS} or more",
        )
        with refusing(Refusal.NO_STATE):
            answers = _read(self._path)
        asked = _digest_of(request)
        known = answers.get(question.step)
        in_other_way = (question.step == NOISY) != (NOISY in answers)
        refuse_unless(
            known["asked"] == asked if known else not (answers and in_other_way),
            Refusal.DESCRIBED,
            f"it has described its table otherwise (in {self._path}); a job is described"
            " once, and a new one needs another seed",
        )
        if known:
            return {ANSWER: _bytes_of(known["answer"])}
        text = self._answer(request, question)
        answers[question.step] = {"asked": asked, "answer": text}
        _write(self._path, answers)
        return {ANSWER: _bytes_of(text)}

    def _answer(self, request: Request, question: Question) -> str:
        """The answer to a question that was not asked before."""
        if question.step == NOISY:
            with refusing(Refusal.FEW_ROWS):
                assert question.delta is not None
                require_delta(question.delta, len(self._table.y), "rows")
        if question.step != COUNTS:
            for line in what_is_sent(self._schema, question):
                self._log.info(f"describe: sends {line}")
        if question.step == NOISY:
            return self._noisy_counts(request, question).model_dump_json()
        own, directory = self._table.statistics(self._train), self._path.parent
        with refusing(Refusal.NO_STATE):
            sent = Statistics.load(directory, self._schema, OWN_FILE)
        # With a row more or less, the difference of both would be that row.
        refuse_unless(
            sent == own or (sent is None and question.step == COLUMNS),
            Refusal.OTHER_STATISTICS,
            "its rows differ from those whose sums it sent in this job, which it does"
            " once; start it with those rows, or take part in a new job, with another seed",
        )
        if question.step == COLUMNS:
            own.save(directory, OWN_FILE)
            return own.to_json()
        with refusing(Refusal.WRONG_STATISTICS):
            pooled = statistics_from_arrays(request.arrays, self._schema)
            check_column_sums(pooled, own, self._schema)
        return self._counts(pooled, own).model_dump_json()

    def _counts(self, pooled: Statistics, own: Statistics) -> ClientCounts:
        columns, kinds = self._columns(self._train), kinds_of(self._schema)
        sums, own_sums = (_sums_of(self._schema, it) for it in (pooled, own))
        histograms = {}
        for name, inner in all_edges(kinds, sums).items():
            # A bin with rows is a number that somebody has, if it is narrow.
            narrowest = NARROWEST * own_sums[name].deviation
            cells = columns[name]
            if sums[name].deviation < narrowest:
                cells = cells.clear(len(cells))
            histograms[name] = histogram_of(cells, inner)
        if self._schema.classes is not None:
            codes = self._table.y[self._train].astype(np.int64)
            histograms[self._schema.target] = class_counts_of(
                codes, len(self._schema.classes)
            )
        return ClientCounts(histograms=histograms)

    def _noisy_counts(self, request: Request, question: Question) -> ClientCounts:
        """Counts with noise, after the account has been charged for them.

        They are of all rows: which are training rows, the class of a single one decides, as
        classes are drawn evenly, and a missing row ends a window of others.
        """
        noise, rows = question.noise(self._schema), len(self._table.y)
        kinds, columns = kinds_of(self._schema), self._columns(np.arange(rows))
        release = Release(
            unit="example",
            multiplier=noise.deviation / math.sqrt(len(kinds)),
            delta=noise.delta,
            count=1,
            batch_size=rows,
            examples=rows,
        )
        counted = {
            name: _count_cells(columns[name], kinds[name], cells)
            for name, cells in noisy_cells(self._schema, question).items()
        }
        # The same counts have the same noise, also of another process, or after a backup;
        # others, or with another secret, are not told in their place.
        content = [counts.tobytes() for counts in counted.values()]
        secret, asked = secret_in(self._path.parent), _digest_of(request).encode()
        drawn_from = seed_from(secret, b"account", *content)
        self._account.record(request, [release], about=f"{drawn_from:016x}")
        rng = np.random.default_rng(seed_from(secret, asked, *content))
        histograms = {}
        for name, counts in counted.items():
            noisy = np.rint(counts + rng.normal(0, noise.deviation, len(counts)))
            noisy[noisy < MIN_ROWS] = 0
            histograms[name] = tuple(noisy.astype(np.int64).tolist())
        return ClientCounts(histograms=histograms)

    def _columns(self, rows: Int[NDArray, " n"]) -> dict[str, pl.Series]:
        """The cells of some rows of all columns, the target among them."""
        columns = {name: self._table.frame[name][rows] for name in self._schema.columns}
        target = self._schema.target
        if self._schema.task == "regression":
            columns[target] = pl.Series(self._table.y[rows], dtype=pl.Float64)
        else:
            columns[target] = self._table.outcomes()[rows]
        return columns


Cells = tuple[float, ...] | tuple[str, ...]


def noisy_cells(schema: Schema, question: Question) -> dict[str, Cells]:
    """What noisy counts are of, for each column: inner edges, categories, or nothing.

    A last count, which is not listed here, is that of missing cells; of a column of which
    nothing is listed, the first is that of all others.
    """
    cells: dict[str, Cells] = {}
    for name, kind in kinds_of(schema).items():
        listed = schema.outcomes if name == schema.target else schema.columns[name]
        if name in question.ranges:
            cells[name] = even_edges(*question.ranges[name])
        elif kind == "boolean":
            cells[name] = ("no", "yes")
        else:
            cells[name] = listed or ()
    return cells


def _count_cells(values: pl.Series, kind: Kind, cells: Cells) -> NDArray[np.int64]:
    """Rows of each cell and, in the last place, missing ones."""
    present = values.drop_nulls()
    missing = len(values) - len(present)
    if not cells:
        counts = [len(present)]
    elif kind == "boolean":
        yes = int(present.sum())
        counts = [len(present) - yes, yes]
    elif kind == "category":
        counts = [int((present == name).sum()) for name in cells]
    else:
        edges = np.array(cells, np.float64)
        bins = np.searchsorted(edges, present.to_numpy(), side="right")
        counts = np.bincount(bins, minlength=len(cells) + 1).tolist()
    return np.array([*counts, missing], np.int64)


def describe_clients(
    job: Job,
    transport: Transport,
    names: Collection[str],
    wait: float,
    question: Question | None = None,
    *,
    directory: Path | None = None,
) -> Description:
    """Have clients describe their tables.

    Args:
        job: the job.
        transport: carries messages to the clients.
        names: names of the clients that are ready, or their numbers of rows [3] by name.
            Those that refuse, or whose answer cannot be right, are left out.
        wait: seconds to wait for the answers to each message.
        question: settings of noisy counts; None without noise.
        directory: where the pooled sums are kept, so that a call that was interrupted can
            be repeated; None = nowhere.

    Raises:
        TooFewClients: nobody describes its table, or one that has begun is gone.
        ValueError: the question is not valid, or not of this job.
    """
    if question is None:
        check_described(job)
    schema = job.schema

    def ask(
        who: Collection[str], question: Question, **arrays: np.ndarray
    ) -> dict[str, bytes]:
        deadline = time.time() + wait
        requests = {
            name: Request(
                job.identity,
                0,
                0,
                DESCRIBE,
                name,
                deadline=deadline,
                algorithm=question.model_dump(mode="json", exclude_defaults=True),
                arrays=arrays,
            )
            for name in sorted(who)
        }
        expected = {ANSWER: ArraySpec((None,), "uint8")}
        result = send_and_receive(transport, requests, expected, minimum=1)
        # Who refuses, or answers something else, is left out; who is away may come back.
        if question.step == COUNTS and result.missing:
            raise TooFewClients(
                f"{join_names(result.missing)} sent the sums of its columns, and did not"
                " answer for the histograms: describe again once it is connected"
            )
        return {
            name: reply.arrays[ANSWER].tobytes()
            for name, reply in result.replies.items()
        }

    def parsed(
        texts: Mapping[str, bytes], read: Callable[[str, bytes], T]
    ) -> dict[str, T]:
        found = {}
        for name, text in texts.items():
            try:
                found[name] = read(name, text)
            except ValueError as error:
                COORDINATOR_LOG.warning(f"client {name}: {error}; it is left out")
        if not found:
            raise TooFewClients("no client described its table as the job asks")
        return found

    def sums_of(name: str, text: bytes) -> Statistics:
        sums = Statistics.from_json(text, schema)
        check_own_sums(sums, schema)
        rows = max(entry.count + entry.missing for entry in sums.columns.values())
        require(rows >= MIN_ROWS, f"its sums are of fewer than {MIN_ROWS} rows")
        if isinstance(names, Mapping) and name in names:
            sums.check_rows(int(names[name][0]), schema)
        return sums

    def keep(description: Description) -> Description:
        if directory is not None:
            content = json.loads(description.model_dump_json())
            _write(directory / FILE, {"job": job.identity, "description": content})
        return description

    if question is not None:
        question.check(schema)
        texts = ask(names, question)
        check = _expected_noisy(schema, question)
        counts = parsed(texts, lambda name, text: _counts_from(text, check))
        return keep(_noisy_description(schema, question, counts))
    stored = {} if directory is None else _stored(directory, job).get("sums", {})
    if stored:
        texts = {name: text.encode() for name, text in stored.items()}
        parts = parsed(texts, sums_of)
    else:
        parts = parsed(ask(names, Question(step=COLUMNS)), sums_of)
        if directory is not None:
            sums = {name: part.to_json() for name, part in parts.items()}
            _write(directory / FILE, {"job": job.identity, "sums": sums})
    pooled = add_statistics(parts.values())
    texts = ask(parts, Question(step=COUNTS), statistics=as_array(pooled))
    check = _expected_counts(schema, pooled)
    counts = parsed(texts, lambda name, text: _counts_from(text, check))
    parts = {name: parts[name] for name in counts}
    return keep(_description(schema, parts, pooled, counts))


def stored_description(directory: Path, job: Job) -> Description | None:
    """The description that a coordinator has kept; None if there is none of this job.

    Raises:
        ValueError: the file is damaged, or of another version.
    """
    content = _stored(directory, job).get("description")
    if content is None:
        return None
    try:
        return Description.model_validate_json(json.dumps(content))
    except ValidationError:
        raise ValueError(
            f"{directory / FILE} is of another version of fedtailor; a new job, with"
            " another seed, can be described again"
        ) from None


def preview(job: Job, name: str, data: Path, question: Question | None = None) -> str:
    """What a client would send first, as JSON; nothing is sent or written down.

    Args:
        job: the job.
        name: name of the client.
        data: the client's file.
        question: settings of noisy counts, of which the names of the counted columns are
            shown, as noise is drawn once; None without noise.

    Raises:
        ValueError: the file does not fit the job, or has too few rows; or see
            `check_described`.
    """
    if question is None:
        check_described(job)
    table = read_table(data, job.schema)
    examples = example_rows_of(table, job.schema, job.spec.seed, name)
    train = examples.training_rows
    require(
        len(train) >= MIN_ROWS,
        f"{data.name} has {len(train)} training rows; a client describes {MIN_ROWS} or"
        " more",
    )
    if question is not None:
        return json.dumps({"columns": list(kinds_of(job.schema))})
    return table.statistics(train).to_json()


def _stored(directory: Path, job: Job) -> dict[str, Any]:
    """What a coordinator has kept of this job."""
    content = _read(directory / FILE)
    return content if content.get("job") == job.identity else {}


def _description(
    schema: Schema,
    parts: Mapping[str, Statistics],
    pooled: Statistics,
    counts: Mapping[str, ClientCounts],
) -> Description:
    """The description of the tables of all clients."""
    kinds, pooled_sums = kinds_of(schema), _sums_of(schema, pooled)
    sums, rows = {}, {}
    for name, part in parts.items():
        sums[name] = _sums_of(schema, part)
        if schema.classes is not None:
            of_class = counts[name].histograms[schema.target]
            categories = dict(zip(schema.classes, of_class, strict=True))
            sums[name][schema.target] = ColumnSums(
                count=sum(of_class), categories=categories
            )
        rows[name] = max(entry.count + entry.missing for entry in sums[name].values())
    return Description(
        kinds=kinds,
        rows=rows,
        sums=sums,
        edges=all_edges(kinds, pooled_sums),
        counts=dict(counts),
    )


def _noisy_description(
    schema: Schema, question: Question, counts: Mapping[str, ClientCounts]
) -> Description:
    """The description that follows from noisy counts."""
    cells = noisy_cells(schema, question)
    edges = {name: cells[name] for name in question.ranges}
    sums, rows, histograms = {}, {}, {}
    for client, part in counts.items():
        sums[client] = {}
        for name, of_cells in part.histograms.items():
            bins, missing = of_cells[:-1], of_cells[-1]
            sums[client][name] = _sums_of_cells(
                cells[name], bins, missing, kinds_of(schema)[name]
            )
        totals = [entry.count + entry.missing for entry in sums[client].values()]
        rows[client] = round(float(np.mean(totals)))
        of_numbers = {name: part.histograms[name][:-1] for name in question.ranges}
        histograms[client] = ClientCounts(histograms=of_numbers)
    return Description.model_validate(
        {
            "kinds": kinds_of(schema),
            "rows": rows,
            "sums": sums,
            "edges": edges,
            "counts": histograms,
            "noise": question.noise(schema),
        }
    )


def _sums_of_cells(
    cells: Cells, bins: Sequence[int], missing: int, kind: Kind
) -> ColumnSums:
    """Sums of a column that follow from counts: numbers lie in the middle of a bin."""
    count = sum(bins)
    if not cells:
        return ColumnSums(count=count, missing=missing, rare=count)
    if kind == "category":
        categories = {str(name): rows for name, rows in zip(cells, bins, strict=True)}
        return ColumnSums(count=count, missing=missing, categories=categories)
    if kind == "boolean":
        middles = np.array([0.0, 1.0])
    else:
        inner = np.array(cells, np.float64)
        width = inner[1] - inner[0]
        middles = np.array([*(inner - width / 2), inner[-1] + width / 2])
    rows = np.array(bins, np.float64)
    mean = float(middles @ rows / count) if count else 0.0
    squares = float((middles - mean) ** 2 @ rows)
    return ColumnSums(count=count, missing=missing, mean=mean, squares=squares)


def _sums_of(schema: Schema, statistics: Statistics) -> dict[str, ColumnSums]:
    """The sums of all columns, the target among them; of classes there are none yet."""
    target = ColumnSums() if statistics.target is None else statistics.target
    return {**statistics.columns, schema.target: target}


def _expected_counts(schema: Schema, pooled: Statistics) -> dict[str, int]:
    """The number of bins of each histogram that a client sends."""
    sums = _sums_of(schema, pooled)
    bins = {name: BINS for name in all_edges(kinds_of(schema), sums)}
    if schema.classes is not None:
        bins[schema.target] = len(schema.classes)
    return bins


def _expected_noisy(schema: Schema, question: Question) -> dict[str, int]:
    kinds = kinds_of(schema)
    bins = {}
    for name, cells in noisy_cells(schema, question).items():
        is_number = kinds[name] == "number" and bool(cells)
        bins[name] = max(len(cells), 1) + is_number + 1
    return bins


def _counts_from(text: bytes, bins: Mapping[str, int]) -> ClientCounts:
    """Decode a client's counts.

    Raises:
        ValueError: the text is not valid, or its histograms are others.
    """
    try:
        counts = ClientCounts.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = shortened(".".join(map(str, first["loc"])))
        raise ValueError(
            f"these are not counts ({where}: {first['msg'].lower()})"
        ) from None
    found = {name: len(rows) for name, rows in counts.histograms.items()}
    require(
        found == dict(bins), "its counts are of other columns or bins than the job's"
    )
    most = max((sum(rows) for rows in counts.histograms.values()), default=0)
    require(most <= MAX_ROWS, f"its counts are of more than {MAX_ROWS:,} rows")
    return counts


def _question_of(request: Request) -> Question:
    try:
        return Question.model_validate_json(json.dumps(dict(request.algorithm)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = shortened(".".join(map(str, first["loc"])))
        raise ValueError(
            f"the question is not valid ({where}: {first['msg']})"
        ) from None


def _digest_of(request: Request) -> str:
    """A digest of what is asked, whatever run or round the request names."""
    digest = hashlib.sha256(
        json.dumps(dict(request.algorithm), sort_keys=True).encode()
    )
    for name in sorted(request.arrays):
        digest.update(name.encode() + np.asarray(request.arrays[name]).tobytes())
    return digest.hexdigest()


def _bytes_of(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _read(path: Path) -> dict[str, Any]:
    """Read a file of answers; empty if there is none.

    Raises:
        ValueError: it is damaged.
    """
    try:
        if not path.is_file():
            return {}
        content = json.loads(path.read_bytes())
        require(has_valid_digest(content), "it is not what was written")
        del content[DIGEST_KEY]
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(with_digest(content)) + "\n", encoding="utf-8")
