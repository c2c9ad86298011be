"""What a client has answered and spent, on its own disk, over all runs of all jobs.

The coordinator is not trusted. In every run a client answers one request for each round
and task, as two answers about the same data say more than one. The same request gets the
same answer again, so that either side may be killed and go on.

The account is a file of JSON lines. A line is written before its answer leaves.
"""

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from fedtailor._base.choice import require
from fedtailor._base.digests import DIGEST_KEY, has_valid_digest, with_digest
from fedtailor._base.documentation import see
from fedtailor._base.files import reason
from fedtailor.aggregation.accounting.privacy import (
    composed_epsilon,
    composed_sgd_epsilon,
)
from fedtailor.engine.storage.lock import locked_lines
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless
from fedtailor.remote.wire.request_kind import DESCRIBE, STEPS
from fedtailor.remote.wire.run_log import CLIENTS

ACCOUNT = "account.jsonl"
"""File in the directory of a client's states."""

BEGUN = ".account"
"""File beside it from the first answer on, without which an account that is lost would be
a new one."""

LINE_START = b'{"time": "'
"""What each line of it begins with."""


class Release(BaseModel):
    """Noisy vectors that left a client, or private steps behind what left it.

    Attributes:
        unit: what the noise hides: the client with all its examples, or one example.
        multiplier: the standard deviation of the noise, divided by the largest norm
            that a unit adds.
        delta: probability that the guarantee may fail.
        count: number of vectors, or of steps.
        batch_size: expected number of examples in a step; 0 for vectors.
        examples: number of training examples; 0 for vectors.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    unit: Literal["client", "example"]
    multiplier: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    count: NonNegativeInt
    batch_size: NonNegativeInt = 0
    examples: NonNegativeInt = 0


class _Answer(BaseModel):
    """A line of the account: the answer to one request.

    Attributes:
        time: when it was given (UTC).
        job, run, phase, round, task: what it answers.
        request: digest of the request.
        releases: what it spent.
        without_noise: whether it holds something that no epsilon covers.
        numbers: how many numbers of it the coordinator sees one by one, without noise.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    time: str
    job: str
    run: str
    phase: int
    round: int
    task: str
    request: str
    releases: tuple[Release, ...] = ()
    without_noise: bool = False
    numbers: NonNegativeInt = 0

    @property
    def place(self) -> "_Place":
        """What may be answered once."""
        return _Place(self.job, self.run, self.phase, self.round, self.task)


class _Place(NamedTuple):
    """A task of a round of a run.

    Phases of a schedule have places of their own, as one may begin with a probe in the
    round in which the one before was evaluated with one. A round trains in one phase, and
    is measured in one.
    """

    job: str
    run: str
    phase: int
    round: int
    task: str


class ClientAccount:
    """The account of one client.

    Args:
        directory: directory of the client's states.
        most_epsilon: answers that would spend more in all are refused.
        most_runs: number of runs of one job that are answered; None = any number.
        log: where it says what has been spent, after every answer that spends.

    Attributes:
        path: the file.
        rows: digest of the rows that answers are about, and of the secret of their noise.
            With others the same request has another answer, and is refused.

    Raises:
        ValueError: the file cannot be read, or is damaged.
    """

    def __init__(
        self,
        directory: Path,
        *,
        most_epsilon: float = math.inf,
        most_runs: int | None = None,
        log: logging.Logger = CLIENTS,
    ) -> None:
        self.path, self.rows = directory / ACCOUNT, ""
        self._most_epsilon, self._most_runs, self._log = most_epsilon, most_runs, log
        self._size_read = 0
        self._answered: dict[_Place, str] = {}
        # Releases with a count of 1 -> count; and those of whole clients that no private
        # step is behind.
        self._spent: Counter[Release] = Counter()
        self._of_clients_only: Counter[Release] = Counter()
        self._without_noise = 0
        # job -> open numbers without noise, in all of its runs.
        self._numbers = Counter[str]()
        self._last: tuple[Request, str] | None = None
        self._begun = directory / BEGUN
        if self.path.exists():
            with self._locked() as file:
                self._read_new(file)
        require(
            bool(self._answered) or not self._begun.exists(),
            f"{self.path} is lost or damaged: it holds no answer, and there were some;"
            f" restore it from a backup{see('errors#a-damaged-account')}",
        )

    def check(self, request: Request, about: str = "") -> None:
        """Check that a request may be answered.

        Args:
            request: the request.
            about: see `record`.

        Raises:
            Refused: another request for the same task of the same round of this run
                was answered, or the job has begun too many runs.
        """
        place, answered = _place_of(request), self._answered
        refuse_unless(
            place not in answered or answered[place] == self._digest(request, about),
            Refusal.ANSWERED,
            f"it has answered another request for the task {place.task!r} in round"
            f" {place.round + 1} of this run, or with other rows; it answers one",
        )
        runs = _runs_of(answered, place.job) | _runs_of([place], place.job)
        refuse_unless(
            self._most_runs is None or len(runs) <= self._most_runs,
            Refusal.SPENT,
            f"the policy here lets a job run {self._most_runs} times, and this would be"
            " once more; raise runs to continue",
        )

    def record(
        self,
        request: Request,
        releases: Iterable[Release] = (),
        *,
        without_noise: bool = False,
        numbers: int = 0,
        most_numbers: float = math.inf,
        about: str = "",
    ) -> None:
        """Record an answer before it leaves; the same one again spends nothing.

        Args:
            request: the request.
            releases: what the answer spends.
            without_noise: whether it holds something that no epsilon covers.
            numbers: how many numbers of it the coordinator sees one by one, without
                noise, whatever they are: of models, probes, losses.
            most_numbers: the most that may leave in all runs of the job, as a coordinator
                that starts again asks about the same rows again.
            about: digest of what the answer is made of; by default `rows`, which are not
                known when a table is described.

        Raises:
            Refused: the request may not be answered (see `check`), or too much would be
                spent.
            ValueError: the file cannot be written.
        """
        releases = tuple(release for release in releases if release.count)
        with self._locked() as file:
            self._read_new(file)  # another process may have answered
            self.check(request, about)
            if _place_of(request) in self._answered:
                return
            answer = _Answer(
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                **_place_of(request)._asdict(),
                request=self._digest(request, about),
                releases=releases,
                without_noise=without_noise,
                numbers=numbers,
            )
            if releases:
                self._check_epsilons(releases)
            sent = self.numbers_of(request.experiment) + numbers
            refuse_unless(
                not numbers or sent <= most_numbers,
                Refusal.SPENT,
                f"with this answer {sent:,} numbers would have left in all runs of this"
                " job that neither masks nor noise hide, and the policy here sends"
                f" {most_numbers:,.0f} at most, for the cells of this client; train for"
                " fewer rounds or with a smaller model, or change numbers_per_cell in"
                " policy.toml",
            )
            line = json.dumps(with_digest(answer.model_dump(mode="json"))) + "\n"
            # What is spent must survive a power cut, which takes a hundredth of a second.
            # That a round was answered survives a kill of the process in any case. The first
            # line must be there if the file beside it is.
            is_first = not self._begun.exists()
            append(file, line.encode(), durable=bool(releases) or is_first)
            self._read_new(file)
            if is_first:
                self._begun.touch(mode=0o600)
        if releases:
            self._log.warning(f"round {request.round + 1}: {self._describe_epsilons()}")

    def _digest(self, request: Request, about: str = "") -> str:
        """The digest of a request, computed once for `check` and `record`."""
        if self._last is None or self._last[0] is not request:
            self._last = request, digest_of(request)
        asked = f"{self._last[1]} {about or self.rows}"
        return hashlib.sha256(asked.encode()).hexdigest()

    def epsilons(self, more: Iterable[Release] = ()) -> dict[str, tuple[float, float]]:
        """What all answers have spent.

        A row is in what hides the whole client, too: with another row, what is sent
        changes by up to twice the norm that the noise is measured by.

        Args:
            more: releases of a further answer.

        Returns:
            For each unit ("client", "example") that noise hides: epsilon and delta. The
            delta is the smallest of all releases.
        """
        spent, of_clients_only = self._spent.copy(), self._of_clients_only.copy()
        _add_releases(spent, of_clients_only, tuple(more))
        epsilons = {}
        for unit in ("client", "example"):
            of_unit = {key: n for key, n in spent.items() if key.unit == unit}
            if not of_unit:
                continue
            delta = min(key.delta for key in of_unit)
            if unit == "client":
                sums = [(key.multiplier, 1.0, n) for key, n in of_unit.items()]
                epsilon = composed_epsilon(sums, delta)
            else:
                steps = [
                    (key.multiplier, key.batch_size, key.examples, n)
                    for key, n in of_unit.items()
                ]
                steps += [
                    (key.multiplier / 2, 1, 1, n) for key, n in of_clients_only.items()
                ]
                epsilon = composed_sgd_epsilon(steps, delta)
            epsilons[unit] = epsilon, delta
        return epsilons

    def numbers_of(self, job: str) -> int:
        """How many numbers have left in all runs of a job that nothing hides."""
        return self._numbers[job]

    def describe(self) -> list[str]:
        """Say in lines what was answered and spent."""
        if not self._answered:
            return ["nothing was answered so far"]
        rounds = sum(place.task == "client" for place in self._answered)
        jobs = {place.job for place in self._answered}
        runs = {(job, run) for job in jobs for run in _runs_of(self._answered, job)}
        lines = [
            f"answered so far: {_count(rounds, 'round')} of training, in"
            f" {_count(len(runs), 'run')} of {_count(len(jobs), 'job')}"
        ]
        if self._spent:
            lines.append(f"spent so far: {self._describe_epsilons()}")
        if self._without_noise:
            lines.append(
                f"{_count(self._without_noise, 'answer')} without noise: no epsilon"
                " covers what they say"
            )
        return lines

    def _describe_epsilons(self) -> str:
        epsilons = self.epsilons()
        names = {
            "client": "for all rows of this client",
            "example": "for each row or window",
        }
        if len(epsilons) > 1:
            # Private steps and noisy counts hide a row, and not all of them.
            names["client"] += " in updates with noise of its own"
        parts = [
            f"epsilon {epsilon:.2f} {names[unit]} (delta {delta:g})"
            for unit, (epsilon, delta) in epsilons.items()
        ]
        most = f", at most {self._most_epsilon:g}"
        return "; ".join(parts) + (most if math.isfinite(self._most_epsilon) else "")

    def _check_epsilons(self, releases: Iterable[Release]) -> None:
        """Refuse releases with which more than `most_epsilon` would be spent."""
        if math.isinf(self._most_epsilon):
            return
        for epsilon, _ in self.epsilons(releases).values():
            refuse_unless(
                epsilon <= self._most_epsilon,
                Refusal.SPENT,
                f"with this answer epsilon would be {epsilon:.2f}, over all runs, and"
                f" the policy here allows {self._most_epsilon:g}",
            )

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the file for reading and appending; no other process does at this time.

        Raises:
            ValueError: it cannot be read or written.
        """
        try:
            with locked_lines(self.path) as file:
                yield file
        except OSError as error:
            raise ValueError(
                f"cannot keep the account {self.path}: {reason(error)}"
            ) from None

    def _read_new(self, file: IO[bytes]) -> None:
        """Read the lines that were added since the last call.

        Raises:
            ValueError: a line is damaged.
        """
        require(
            file.seek(0, os.SEEK_END) >= self._size_read,
            f"{self.path} is shorter than it was when this client read it: it was replaced;"
            " restore it from a backup, and start the client again",
        )
        file.seek(self._size_read)
        *lines, rest = file.read().split(b"\n")
        for line in lines:
            self._add(self._parse(line))
            self._size_read += len(line) + 1
        if not rest:
            return
        # A process was killed while it wrote the last line, so that its answer never left.
        if _is_torn(rest):
            file.truncate(self._size_read)
            return
        answer = self._parse(rest)
        append(file, b"\n")
        self._add(answer)
        self._size_read += len(rest) + 1

    def _parse(self, line: bytes) -> _Answer:
        try:
            content = json.loads(line)
            require(has_valid_digest(content), "it is not what was written")
            del content[DIGEST_KEY]
            return _Answer.model_validate_json(json.dumps(content))
        except (ValueError, RecursionError, ValidationError):
            raise ValueError(
                f"{self.path} is damaged after {len(self._answered)} answers, and says"
                " what this client has answered and spent; restore it from a backup"
                f"{see('errors#a-damaged-account')}"
            ) from None

    def _add(self, answer: _Answer) -> None:
        self._answered[answer.place] = answer.request
        self._without_noise += answer.without_noise
        self._numbers[answer.job] += answer.numbers
        _add_releases(self._spent, self._of_clients_only, answer.releases)


def _is_torn(rest: bytes) -> bool:
    """Whether this can be the beginning of a line, and is no whole one.

    A line has printable characters only. What begins otherwise, or goes on behind a whole
    line, was damaged, and may stand where answers were.
    """
    start = LINE_START[: len(rest)]
    if not rest.startswith(start) or not all(32 <= code < 127 for code in rest):
        return False
    try:
        json.JSONDecoder().raw_decode(rest.decode("ascii"))
    except ValueError:
        return True
    except RecursionError:
        pass
    return False


def _add_releases(
    spent: Counter[Release],
    of_clients_only: Counter[Release],
    releases: tuple[Release, ...],
) -> None:
    """Add the releases of one answer."""
    has_steps = any(it.unit == "example" for it in releases)
    for release in releases:
        one = release.model_copy(update={"count": 1})
        spent[one] += release.count
        if not has_steps:
            of_clients_only[one] += release.count


def _runs_of(places: Iterable[_Place], job: str) -> set[str]:
    """The runs of a job that are among these places."""
    return {
        place.run for place in places if place.job == job and place.task != DESCRIBE
    }


def append(file: IO[bytes], data: bytes, *, durable: bool = True) -> None:
    """Append bytes to an unbuffered file.

    Args:
        file: the file.
        data: the bytes.
        durable: whether to flush them to the disk, so that they survive a power cut.

    Raises:
        OSError: they cannot be written; the file is then as before.
    """
    end = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        if durable:
            os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def digest_of(request: Request) -> str:
    """SHA-256 of everything in a request that its answer depends on.

    What differs when the same thing is asked again (the number of the exchange, the
    deadline, the nonce, the state that is on the coordinator's disk) is left out.
    """
    names = (
        *("experiment", "run", "round", "task", "client", "state_round", "reply"),
        "algorithm",
    )
    asked = {name: getattr(request, name) for name in names}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for name, array in sorted(request.arrays.items()):
        digest.update(f"\0{name}\0".encode() + array_bytes(array))
    return digest.hexdigest()


def array_bytes(array: np.ndarray) -> bytes:
    """The type, shape and bytes of an array, for digests."""
    array = np.asarray(array)
    return f"{array.dtype.str}{array.shape}\0".encode() + array.tobytes()


def _place_of(request: Request) -> _Place:
    is_once = request.task in ("client", "evaluate", *STEPS)
    phase = 0 if is_once else request.algorithm.get("phase", 0)
    return _Place(request.experiment, request.run, phase, request.round, request.task)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
