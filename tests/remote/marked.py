"""A federation of marked tables, and what of them is in the messages that leave a client.

Every cell is a number or a word that is nowhere else, and so are the names of columns
that the job does not ask for, and the directories.
"""

import logging
import re

import numpy as np
import polars as pl

from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.job import read_job
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.service import (
    Connection,
    agree_on_preprocessing,
    wait_for_clients,
)
from fedtailor.remote.wire.run_log import Lines, client_log
from fedtailor.remote.wire.transport import LoopbackTransport, Responder

NAMES = ("a", "b", "c", "d", "e")
SEEN = NAMES[:4]
ROUNDS = 2
JOB = """title = "marked"
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "cost"
val = 0.1
test = 0.2
preprocessing = "federated"
[data.columns]
age = "number"
dose = "number"
ward = "category"
risk = ["low", "high"]
insured = "boolean"
seen = "date"
[model]
use = "mlp"
hidden = 3
[method]
{method}
[training]
rounds = {rounds}
minimum = 3
[privacy]
{privacy}
"""
SUMMED_JOB = JOB
"""Behind masks no client tells anything of its columns."""
for told, said in (
    ('preprocessing = "federated"', 'preprocessing = "job"'),
    ('target = "cost"', 'target = "cost"\nscale = {{ mean = 4500, sd = 2500 }}'),
    ('age = "number"', "age = {{ mean = 55, sd = 20 }}"),
    ('dose = "number"', "dose = {{ mean = 10, sd = 8 }}"),
    ('ward = "category"\n', ""),
    ('seen = "date"', "seen = {{ mean = 1925-06-01, sd = 5000 }}"),
):
    assert told in SUMMED_JOB
    SUMMED_JOB = SUMMED_JOB.replace(told, said)
METHODS = {
    "fedavg": 'use = "fedavg"',
    "ditto": 'use = "ditto"',
    "ucfl": 'use = "ucfl"\nstreams = 2',
}


class Marks:
    """Byte strings that must not leave a client, each with what it stands for.

    Attributes:
        needles: found wherever they stand.
        numbers: texts of numbers, found only where a number begins (and ends, if the
            text is rounded): sums that may leave hold the same digits by chance.
    """

    NUMBER = re.compile(rb"(?<![0-9.])-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
    PREFIX = 10

    def __init__(self):
        self.needles, self.numbers = {}, {}

    def add_word(self, word):
        """Mark a text."""
        self.needles[word.encode()] = f"the text {word!r}"

    def add_number(self, value, what="the number", digits=6):
        """Mark a number, as text of so many digits or more, and as floats of both sizes
        and byte orders.
        """
        value = float(value)
        rounded = [f"{value:.{count}g}" for count in (digits, digits + 1, digits + 2)]
        for text in (repr(value)[: self.PREFIX], *rounded, f"{value:e}"):
            # Fewer digits are in other numbers by chance.
            if sum(map(str.isdigit, text)) >= digits:
                self.numbers[text.encode()] = f"{what} {value!r} as text"
        for dtype in ("<f4", ">f4", "<f8", ">f8"):
            content = np.array(value, dtype).tobytes()
            self.needles[content] = f"{what} {value!r} as {dtype}"

    def found_in(self, body):
        """What of all this a message holds."""
        found = [what for needle, what in self.needles.items() if needle in body]
        for text in set(self.NUMBER.findall(body)):
            what = self.numbers.get(text) or self.numbers.get(text[: self.PREFIX])
            if what is not None:
                found.append(what)
        return found


class Tap(LoopbackTransport):
    """Keeps every message in both directions.

    Attributes:
        requests: the client and the message, for each that the coordinator sent.
        sent: the same, for each that a client sent.
    """

    def __init__(self, clients):
        super().__init__(clients)
        self.requests, self.sent = [], []

    def send(self, client, body):
        """Have the client answer."""
        self.requests.append((client, body))
        super().send(client, body)
        self.sent.append(self._inbox[-1])

    def ask(self, client, body):
        """The client's answer to any bytes, outside of an exchange."""
        answer = self._clients[client](body)
        self.sent.append((client, answer))
        return answer


class MarkedClients:
    """A job and five clients with marked tables.

    Args:
        directory: for the files.
        method: key of `METHODS`.
        privacy: lines of the job's table [privacy].
        rows: rows of each table.
        job: text of the job; by default one with federated preprocessing, if what clients
            send is not summed.

    Attributes:
        marks: what must not leave.
        logs: the lines that each client logs.
    """

    def __init__(self, directory, method="fedavg", privacy="", rows=60, job=None):
        if job is None:
            job = SUMMED_JOB if "secure" in privacy else JOB
        self.directory = directory / "Qzdirectory"
        self.directory.mkdir()
        self.marks, self.logs = Marks(), {name: [] for name in NAMES}
        for name, lines in self.logs.items():
            Lines(lines.append, logging.WARNING).listen(client_log(name))
        self.marks.add_word("Qzdirectory")
        text = job.format(
            method=METHODS[method]
            + "\nsgd = { lr = 0.05, epochs = 1, batch_size = 8 }",
            privacy=privacy,
            rounds=ROUNDS,
        )
        (self.directory / "job.toml").write_text(text)
        self.job = read_job(self.directory / "job.toml")
        self.files = {
            name: self.directory / f"Qzfile{place}.csv"
            for place, name in enumerate(NAMES)
        }
        for place, path in enumerate(self.files.values()):
            self._write(path, place, rows)
        self.handlers = {}
        self.tap = Tap({name: self.client(name) for name in NAMES})

    def _write(self, path, place, rows):
        self.marks.add_word(path.stem)
        rng = np.random.default_rng(place)
        numbers = {
            "age": rng.uniform(20, 90, rows),
            "dose": rng.normal(5 * place, 3, rows),
            "cost": rng.uniform(100, 9000, rows),
            f"Qzcolumn{place}": rng.uniform(0, 1, rows),
        }
        for values in numbers.values():
            for value in values:
                self.marks.add_number(value)
        self.marks.add_word(f"Qzcolumn{place}")
        # A category that five rows have is told; all others are marked.
        ward = [f"Qzward{place}x{row}" for row in range(rows)]
        ward[: rows // 2] = ["surgery"] * (rows // 2)
        notes = [f"Qznote{place}x{row}" for row in range(rows)]
        days = [f"19{place}{row % 10}-0{1 + row // 10 % 9}-17" for row in range(rows)]
        for word in {*ward, *notes, *days} - {"surgery"}:
            self.marks.add_word(word)
        frame = pl.DataFrame(
            numbers
            | {
                "ward": ward,
                "risk": rng.choice(["low", "high"], rows),
                "insured": rng.choice(["yes", "no"], rows),
                "seen": days,
                "Qznotes": notes,
            }
        )
        self.marks.add_word("Qznotes")
        frame.write_csv(path)

    def store(self, name, directory="state"):
        """The client's states."""
        return ClientStore(self.directory / f"{directory}-{name}", self.job.identity)

    def client(self, name, directory="state"):
        """A client as it is after its process started."""
        store = self.store(name, directory)
        handler = JobHandler(self.job, name, self.files[name], store)
        self.handlers[name] = handler
        return Responder(
            self.job.identity,
            name,
            handler,
            handler.common_vectors,
        )

    def train(self):
        """All that an honest coordinator does: agree, train, serve a newcomer."""
        sizes = wait_for_clients(Connection(self.job, NAMES, self.tap), wait=60)
        statistics = agree_on_preprocessing(self.job, self.tap, SEEN, wait=60)
        self._mark_inputs(statistics, SEEN)
        run = self.directory / "run"
        own = {name: sizes[name] for name in SEEN}
        options = {"statistics": statistics}
        coordinate(self.job, self.tap, own, run, **options)
        agree_on_preprocessing(self.job, self.tap, NAMES, 60, statistics)
        self._mark_inputs(statistics, NAMES[len(SEEN) :])
        coordinate(self.job, self.tap, sizes, run, resume=True, **options)

    def _mark_inputs(self, statistics, names):
        """The model's inputs, too, are marked; zeros and ones are not."""
        for name in names:
            rows = self.handlers[name]._table.rows(statistics)
            for value in np.concatenate([rows.x.ravel(), rows.y.ravel()]):
                if value not in (0, 1):
                    self.marks.add_number(value, "the input", digits=8)

    def leaks(self):
        """What has left a client and must not: client -> findings."""
        found = {}
        for client, body in self.tap.sent:
            for what in self.marks.found_in(body):
                found.setdefault(client, []).append(what)
        return found
