"""`fedtailor federation describe`: what the clients' columns hold, before training."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor._base.choice import require
from fedtailor._base.printable import say, say_block
from fedtailor.cli.commands._federation_admin import DirArgument
from fedtailor.cli.commands.describe import check_out, show_description
from fedtailor.cli.options import as_option
from fedtailor.remote.wire.waits import check_wait

if TYPE_CHECKING:
    from fedtailor.remote.client.describing import Question
    from fedtailor.remote.keys.kit import Kit


@dataclass(frozen=True)
class Describe:
    """Have the clients of a federation describe their tables by counts and sums: rows,
    missing cells, categories, histograms, and where clients differ; with --epsilon, if the
    job has secure_aggregation. Or show, at a client, what it would send.
    """

    dir: DirArgument
    """Directory of the federation; or a client's kit, with --data."""
    data: Path | None = None
    """At a client: its examples. What it would send is printed, and nothing sent."""
    epsilon: float | None = None
    """Have clients add noise, and send counts only: at most this epsilon for each row."""
    delta: float = 1e-5
    """With --epsilon: probability that the guarantee may fail."""
    range: tuple[str, ...] = ()
    """With --epsilon: COLUMN=LOW:HIGH, the range of the histogram of a column of numbers.
    Others are counted as there or missing only.
    """
    listen: str = "0.0.0.0"
    """Address to listen on; all of this machine's by default."""
    wait: float = 600.0
    """Seconds to wait for the clients."""
    json: bool = False
    """Print one JSON object, with all counts, comparisons and pairs."""
    out: Path | None = None
    """Write a file instead: .md, .html or .json."""

    def __post_init__(self) -> None:
        check_wait(as_option("wait"), self.wait)
        check_out(self.out)
        require(
            self.epsilon is not None or not self.range,
            "--range is for counts with noise; give --epsilon, or leave it out",
        )


def describe(options: Describe) -> int:
    """Describes the clients' tables, or shows what one client would send."""
    from fedtailor.remote.keys.kit import read_kit

    if options.data is not None:
        _preview(read_kit(options.dir), options)
        return 0
    _describe(options)
    return 0


def _describe(options: Describe) -> None:
    from fedtailor.remote.client.describing import (
        check_described,
        describe_clients,
        stored_description,
        what_is_sent,
    )
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.keys.kit import COORDINATOR, JOB
    from fedtailor.remote.service import connected, wait_for_clients
    from fedtailor.remote.wire.transport import TooFewClients

    job, coordinator = read_job(options.dir / JOB), options.dir / COORDINATOR
    question = _question(options)
    if question is not None:
        question.check(job.schema)
    stored = stored_description(coordinator, job)
    if stored is None:
        if question is None:
            check_described(job)
        lines = what_is_sent(job.schema, question)
        _say_unless_json(options, "Each client is asked for:", *_bullets(lines))
        with connected(options.dir, host=options.listen) as connection:
            _say_unless_json(
                options,
                f"{job.title}: waiting for {', '.join(connection.clients)} at"
                f" {job.address}",
            )
            rows = wait_for_clients(connection, wait=options.wait)
            try:
                stored = describe_clients(
                    job,
                    connection.transport,
                    rows,
                    options.wait,
                    question,
                    directory=coordinator,
                )
            except TooFewClients as error:
                raise ValueError(str(error)) from None
    else:
        _say_unless_json(
            options,
            "As the clients described their tables before; they do so once a job.",
        )
    show_description(stored, job.title, as_json=options.json, out=options.out)


def _say_unless_json(options: Describe, *lines: str) -> None:
    """Says lines where the standard output is for people."""
    if not options.json:
        say(*lines)


def _bullets(lines: list[str]) -> list[str]:
    return [f"  - {line}" for line in lines]


def _preview(kit: "Kit", options: Describe) -> None:
    """Prints what a client would send; of this, nothing leaves."""
    from fedtailor.remote.client.describing import preview, what_is_sent
    from fedtailor.remote.client.policy import read_policy

    assert options.data is not None
    question, schema = _question(options), kit.job.schema
    if question is not None:
        question.check(schema)
    text = preview(kit.job, kit.name, options.data, question)
    if options.json:
        say_block(text)
        return
    say(f"{kit.name} would send:")
    say(*_bullets(what_is_sent(schema, question)))
    policy = read_policy(kit.directory)
    if not policy.federated_statistics:
        say("Its policy refuses that: federated_statistics is false.")
    elif policy.noise_only and question is None:
        say("Its policy refuses that: noise_only is true.")
    if question is None:
        say("The sums of its columns, in these words:")
        say_block(json.dumps(json.loads(text), indent=1))


def _question(options: Describe) -> "Question | None":
    """The settings of noisy counts; None without noise.

    Raises:
        ValueError: a setting is not valid.
    """
    from fedtailor.remote.client.describing import NOISY, Question

    if options.epsilon is None:
        return None
    ranges = {}
    for text in options.range:
        name, _, limits = text.rpartition("=")
        low, _, high = limits.partition(":")
        try:
            ranges[name] = (float(low), float(high))
        except ValueError:
            raise ValueError(
                f"--range {text} is none; write COLUMN=LOW:HIGH, such as age=0:100"
            ) from None
    require(
        0.01 <= options.epsilon <= 100 and 1e-12 <= options.delta < 1,
        f"--epsilon is {options.epsilon:g} and --delta {options.delta:g}; epsilon is 0.01"
        " to 100, delta 1e-12 to below 1",
    )
    return Question(
        step=NOISY, epsilon=options.epsilon, delta=options.delta, ranges=ranges
    )
