"""`model_card`, which describes one client's model in Markdown."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtailor._base.choice import check_choice
from fedtailor._base.files import atomic_write, reason
from fedtailor._base.printable import markdown_text
from fedtailor.data.tables import Preprocessing
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.table import ALL_ROWS
from fedtailor.data.tables.target import label_text
from fedtailor.deployment.auditing import card_lines, read_audit
from fedtailor.deployment.calibration import (
    calibration_at,
    calibration_of,
    statement_of_final,
    unweighted_note,
)
from fedtailor.deployment.data import is_of_machines
from fedtailor.deployment.opening import OpenedRun
from fedtailor.deployment.thresholds import card_thresholds
from fedtailor.engine.storage import Damaged
from fedtailor.engine.storage.final_models import RECORD, RUNS, read_final
from fedtailor.engine.storage.run_files import ANSWERS, read_answers
from fedtailor.engine.training.asynchronous import Arrivals
from fedtailor.lab.baselines import CHOSEN, find_baseline
from fedtailor.lab.results.coverage import COVERAGE, coverages, source_text
from fedtailor.lab.results.units import unit_of
from fedtailor.models.metrics.metric import Metric, find_metric
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.models.tasks.times import comparisons
from fedtailor.protocol import Clients, client_ids
from fedtailor.statistics.decision.intervals import Interval
from fedtailor.statistics.decision.row_scores import (
    FEW_PAIRS,
    SCORES,
    metric_interval,
    weighted_scores,
)

CARDS = "cards"
"""Name of the folder of model cards in an export."""


def model_card(run: OpenedRun, client: str) -> str:
    """Describe a client's personal model in Markdown.

    The card covers the data, their split and preprocessing, the metrics on the client's
    own test rows, the method, and what the client sent. It begins with the YAML that
    Hugging Face's hub reads.

    Raises:
        ValueError: the run has no such client.

    Example:
        >>> _ = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2, directory="runs/carded"
        ... )
        >>> print(ft.model_card(ft.open("runs/carded"), federation.names[3]))
        ---
        library_name: fedtailor
        ...
    """
    check_choice(client, run.names, f"client of {run.path} called")
    # The client's row of the run's table of clients, by column.
    row = run.stored.clients.row(run.names.index(client), named=True)
    sections = [
        [*_front_matter(run)],
        [f"# Model card: {markdown_text(client)}", "", *_head(run, row)],
        ["## Data", "", *_data(run, row)],
        ["## Preprocessing", "", *_preprocessing(run.preprocessing)],
        ["## Measurements", "", *_measurements(run, client, row)],
        ["## Sets and calibration", "", *_sets(run, client)],
        *(
            [["## Thresholds", "", *lines]]
            if (lines := card_thresholds(run, _final_of(run), client))
            else []
        ),
        ["## Membership", "", *_membership(run, client)],
        ["## Method", "", *_method(run)],
        ["## What was shared", "", *_shared_data(run, client, row)],
    ]
    return "\n".join("\n".join([*lines, ""]) for lines in sections)


def write_cards(runs: Mapping[str, OpenedRun], directory: Path) -> list[Path]:
    """Write the model cards of some clients to a folder in a directory.

    Args:
        runs: client -> the run of its model.
        directory: where the folder goes.

    Returns:
        The files, in the order of the clients.

    Raises:
        ValueError: they cannot be written.
    """
    folder, files = directory / CARDS, []
    try:
        with atomic_write(folder) as temporary:
            temporary.mkdir()
            for number, (client, run) in enumerate(runs.items()):
                name = f"{file_name(client, number)}.md"
                (temporary / name).write_text(model_card(run, client), "utf-8")
                files.append(folder / name)
    except OSError as error:
        raise ValueError(
            f"cannot write {folder}: {reason(error)}; make room, or name another"
            " directory"
        ) from None
    return files


def file_name(client: str, number: int) -> str:
    """Make a file name from a client's number and name.

    Characters of the name that a file name should not have are replaced.
    """
    plain = re.sub(r"[^\w.-]+", "-", client).strip("-.")[:60]
    return f"{number:03d}-{plain or 'client'}"


def _front_matter(run: OpenedRun) -> Iterator[str]:
    """What Hugging Face's hub files a model under, as YAML. A JSON string is YAML, too;
    without < it is no HTML where a reader knows no YAML.
    """

    def text(value: str) -> str:
        return json.dumps(value).replace("<", "\\u003c")

    yield "---"
    yield "library_name: fedtailor"
    if run.preprocessing is not None:
        task = run.preprocessing.target.task
        if task in ("classification", "regression"):
            yield f"pipeline_tag: tabular-{task}"
    yield "tags:"
    for tag in ("federated-learning", "personalized", run.stored.method):
        yield f"- {text(tag)}"
    yield "metrics:"
    yield f"- {text(run.stored.metric)}"
    yield "---"


def _head(run: OpenedRun, row: dict[str, Any]) -> Iterator[str]:
    role = "took part in training"
    if row["unseen"]:
        role = "never took part in training and was served at its end"
    yield (
        f"A personal model for the client {markdown_text(row['client'])}, who {role}. It is"
        " meant for this client's own examples: nothing below says how good it is on"
        " others."
    )
    yield ""
    model, versions = run.manifest["model"], run.manifest.get("versions", {})
    network = model["architecture"]
    kind = network.get("type", "") if isinstance(network, dict) else str(network)
    shape = (
        f"inputs of shape {model['input_shape']}, {model['outputs']} outputs,"
        f" {model['dtype']}"
    )
    yield f"- model: {markdown_text(kind)}, {markdown_text(shape)}"
    versions_text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"- made by: {markdown_text(versions_text)}"


def _data(run: OpenedRun, row: dict[str, Any]) -> Iterator[str]:
    data, origin = run.manifest["data"], run.manifest.get("origin", {})
    # A federation of machines has no digest, as no machine has all data.
    digest = f" (digest {markdown_text(data['digest'])})" if "digest" in data else ""
    yield f"{markdown_text(data['name'])}, {data['clients']} clients{digest}."
    yield ""
    yield "| split | examples of this client |"
    yield "| --- | ---: |"
    for split in ("train", "val", "test"):
        yield f"| {split} | {row[split]:,} |"
    if run.preprocessing is not None:
        target = run.preprocessing.target
        kind = target.task
        if target.classes:
            labels = (markdown_text(label_text(label)) for label in target.classes)
            kind += f"; classes {', '.join(labels)}"
        yield ""
        yield f"Target: {markdown_text(target.name)} ({kind})."
    yield ""
    if is_of_machines(run.manifest):
        yield "Split: at the client, by the shares of the job; the rows never left it."
    else:
        yield _split(origin)


def _split(origin: dict[str, Any]) -> str:
    """Describe the split of the rows in one sentence."""
    if not origin:
        return "Split: as the federation was given in Python."
    options, seed = origin.get("parameters", {}), markdown_text(origin.get("seed"))
    if options.get(ALL_ROWS):
        return (
            "Split: none. All rows of the table were trained on, so that no test rows are"
            " left to measure this model on."
        )
    if origin.get("scenario") != "table":
        scenario = markdown_text(origin.get("scenario"))
        return f"Split: as the scenario {scenario} draws it, seed {seed}."
    test, val = options.get("test", 0.2), options.get("val", 0.1)
    shares = f"test {test:g} and val {val:g} of each client's rows"
    if "split" in options:
        rule = f"as the column {markdown_text(options['split'])} says"
    elif "time" in options:
        rule = (
            f"the last rows by the column {markdown_text(options['time'])} are the test, those"
            f" before them val ({shares})"
        )
    elif "folds" in options:
        rule = f"part {seed} of {markdown_text(options['folds'])} is the test"
    else:
        rule = f"drawn by class, seed {seed}: {shares}"
    if "group" in options:
        rule += f"; rows of one {markdown_text(options['group'])} stay together"
    return f"Split: {rule}."


def _preprocessing(preprocessing: Preprocessing | None) -> Iterator[str]:
    if preprocessing is None:
        yield (
            "None: the model takes arrays as they were in training. NaN and infinite"
            " numbers are refused."
        )
        return
    yield (
        "Learned from the training rows of clients that train, and saved next to the"
        " model (preprocessing.json). Rows are given by the names of these columns:"
    )
    yield ""
    yield "| column | what the model sees | a missing cell |"
    yield "| --- | --- | --- |"
    for column in preprocessing.columns:
        cells = map(
            markdown_text, (column.name, _input_text(column), _missing_text(column))
        )
        yield f"| {' | '.join(cells)} |"
    if preprocessing.decorrelation is not None:
        yield ""
        yield (
            "These inputs are then decorrelated: each is centred, and what the others"
            " say already is taken out of it (a symmetric matrix in"
            " preprocessing.json)."
        )
    if preprocessing.ignored:
        yield ""
        ignored = (
            f"{markdown_text(name)} ({markdown_text(why)})"
            for name, why in preprocessing.ignored.items()
        )
        yield f"Not looked at: {'; '.join(ignored)}."


def _input_text(column: ColumnEncoding) -> str:
    """Describe the inputs that a column gives."""
    if column.kind == "category":
        other = ", and one for all others" if column.other else ""
        return f"one input for each of {', '.join(column.categories)}{other}"
    if column.kind == "boolean":
        return "0 or 1"
    return f"({column.kind} - {column.mean:.6g}) / {column.deviation:.6g}"


def _missing_text(column: ColumnEncoding) -> str:
    """Describe the treatment of a missing cell."""
    if not column.indicator:
        return "is refused: training had none"
    fill = f"{column.fill:.6g}" if isinstance(column.fill, float) else column.fill
    return f"becomes {fill}, and an input says so"


def _measurements(run: OpenedRun, client: str, row: dict[str, Any]) -> Iterator[str]:
    """The metrics after the last round on the client's own rows."""
    measured = run.frame().filter(pl.col("client") == client)
    expected = _expectation(run, client)
    if expected is not None:
        yield expected
        return
    if measured.is_empty() and (row["val"] or row["test"]):
        yield "None: this client sent no measurements."
        return
    if measured.is_empty():
        yield "None: this client has neither validation nor test rows."
        return
    last = measured.filter(pl.col("round") == pl.col("round").max())
    cells = last.select("split", "metric", "value").iter_rows()
    values = {(split, metric): value for split, metric, value in cells}
    rows, naive = _test_rows(run, client)
    yield (
        f"After round {last['round'][0]}, on this client's own rows. The run is judged"
        f" by {markdown_text(run.stored.metric)}."
    )
    yield ""
    yield "| metric | test | 95 % interval | learning nothing | val |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name in dict.fromkeys(metric for _, metric in values):
        number_format = _NumberFormat(name)
        interval = _interval(rows, name, int(run.manifest["model"]["outputs"]))
        cells = (
            number_format.text(values.get(("test", name))),
            "" if interval is None else number_format.between(interval),
            number_format.text(naive.get(name)),
            number_format.text(values.get(("val", name))),
        )
        yield f"| {markdown_text(number_format.label)} | {' | '.join(cells)} |"
    yield ""
    if rows is None and is_of_machines(run.manifest):
        yield "Intervals need the test rows, which the client keeps."
    elif rows is None:
        yield (
            "Intervals need the test rows: the run did not keep them (keep_rows), and"
            " its data are not found."
        )
    else:
        yield (
            "The intervals say what other test rows of this client might give"
            f" ({row['test']} were there), not what another training might."
            ' "Learning nothing" is the majority class, or the mean, of its training'
            " rows."
        )
    if rows is not None and {"risk", "time", "event"} <= {*rows.columns}:
        found = comparisons(rows["time"], rows["event"] > 0.5, rows["risk"])
        yield (
            f"\nThe C-index rests on {found.pairs:,} comparable pairs of test rows, with"
            f" {int((rows['event'] > 0.5).sum()):,} events. Fewer than {FEW_PAIRS} pairs"
            " say nothing."
        )
    for warning in run.stored.warnings:
        if f"'{client}'" in warning:
            yield f"\n{markdown_text(warning)}"


def _membership(run: OpenedRun, client: str) -> Iterator[str]:
    """How well an attack tells the rows that this model was trained on."""
    audit = read_audit(run.path)
    if audit is None:
        yield (
            "Not audited: `fedtailor audit` says how well this model tells the rows that"
            " it was trained on."
        )
        return
    if audit.rounds != run.stored.summary["rounds"]:
        yield (
            f"Audited after round {audit.rounds}, and trained further since: audit again"
            " (`fedtailor audit`)."
        )
        return
    yield from card_lines(audit, client)


def _sets(run: OpenedRun, client: str) -> Iterator[str]:
    """What sets or intervals of this client hold, and its temperature."""
    final = _final_of(run)
    try:
        calibration = calibration_of(run) if final is None else calibration_at(final)
    except Damaged:
        raise
    except ValueError as error:
        # A card names no folder of the machine on which it was made.
        why = (
            str(error)
            if final is None
            else str(error).replace(str(final), "the folder")
        )
        yield f"None: {markdown_text(why)}."
        return
    threshold = calibration.threshold(client, COVERAGE)
    share, kind = f"{100 * COVERAGE:g} %", "sets"
    source, rows_of_source = source_text(threshold), "validation rows"
    if final is not None:
        source = source.replace("validation rows", "test rows")
        rows_of_source = "test rows"
    if calibration.kind == "numbers":
        kind = "intervals"
        yield (
            f"Intervals of {share} (`predict --coverage {COVERAGE:g}`): prediction plus or"
            f" minus {threshold.value:.4g}, from {source}."
        )
    else:
        yield (
            f"Sets of {share} (`predict --coverage {COVERAGE:g}`): all classes of"
            f" probability {max(1 - threshold.value, 0):.3f} or more, and the most"
            f" probable one, from {source}."
        )
    if threshold.source != "own":
        yield (
            f"This client has too few {rows_of_source} of its own, so that {share} holds on"
            " average over these clients, not for this one."
        )
    if run.preprocessing is not None and run.preprocessing.weight is not None:
        line = unweighted_note(run.preprocessing.weight)
        yield f"{line[0].upper()}{markdown_text(line[1:])}."
    rows = None if run.test_rows is None else run.test_rows[0]
    if final is not None:
        # Its test rows were trained on, or the sets are from them.
        rows = None
        statement = statement_of_final(final)
        assert statement is not None
        yield f"{statement[0].upper()}{statement[1:]}."
    if rows is not None:
        mine = rows.filter(pl.col("client") == client)
        for found in coverages(calibration, mine, COVERAGE):
            interval = found.share
            yield (
                f"Of its {found.rows:,} test rows the {kind} held"
                f" {100 * interval.estimate:.1f} % (95 % interval"
                f" {100 * interval.low:.1f} to {100 * interval.high:.1f})."
            )
    known = calibration.clients.get(client)
    if known is not None and known.temperature is not None:
        yield (
            f"Temperature (`predict --calibrated`): {known.temperature:.2f}; above 1 the"
            f" model was too sure of itself on its {rows_of_source}, below 1 too unsure."
        )


def _final_of(run: OpenedRun) -> Path | None:
    """The directory of final models that a run belongs to; None for other runs."""
    folder = run.path.parent.parent
    is_final = run.path.parent.name == RUNS and (folder / RECORD).is_file()
    return folder if is_final else None


def _expectation(run: OpenedRun, client: str) -> str | None:
    """What a comparison expects of a final model; None for other models."""
    folder = _final_of(run)
    if folder is None:
        return None
    record = read_final(folder)
    found = record.clients.get(client)
    if found is None or found.value is None:
        return (
            "None: the comparison that chose the method has no figure of this client."
        )
    number_format = _NumberFormat(record.metric)
    refitted = (
        f"No test rows are left: the model was refitted on all {record.rows:,} rows."
    )
    if record.kept:
        refitted = (
            f"The model was refitted on {record.rows:,} rows, without the {record.kept:,}"
            " test rows of the comparison's first split."
        )
    text = (
        f"{refitted} The"
        f" comparison that chose it measured the same method ({markdown_text(found.method)}),"
        f" trained on fewer rows, on rows of this client that no training saw"
        f" ({record.splits} splits): {number_format.label}"
        f" {number_format.text(found.value)}"
    )
    if found.low is None or found.high is None:
        return f"{text}."
    interval = Interval(found.value, found.low, found.high, np.nan)
    return f"{text}, 95 % interval {number_format.between(interval)}."


class _NumberFormat:
    """Formats the values of a metric."""

    def __init__(self, name: str) -> None:
        # A metric of the user may not be registered in this process.
        self.label, self._scale, self._digits = name, 1.0, 4
        if name in Metric.registry:
            unit = unit_of(name)
            self.label, self._scale = unit.label, unit.scale
            if find_metric(name).unit != "target":
                self._digits = unit.digits

    def text(self, value: float | None) -> str:
        if value is None or not np.isfinite(value):
            return ""
        return f"{self._scale * value:.{self._digits}f}"

    def between(self, interval: Interval) -> str:
        if not (np.isfinite(interval.low) and np.isfinite(interval.high)):
            return "unknown: one row"
        return f"{self.text(interval.low)} to {self.text(interval.high)}"


def _test_rows(
    run: OpenedRun, client: str
) -> tuple[pl.DataFrame | None, dict[str, float]]:
    """The outcomes of the client's test rows.

    Returns:
        The rows, or None if they are not available, and the metrics of a constant
        predictor on them, by name.
    """
    if run.test_rows is None:
        return None, {}
    rows, naive = (frame.filter(pl.col("client") == client) for frame in run.test_rows)
    naive = naive.filter(pl.col("split") == "test")
    rows = weighted_scores(rows, WEIGHT)
    return rows, dict(naive.select("metric", "value").iter_rows())


def _interval(rows: pl.DataFrame | None, metric: str, outputs: int) -> Interval | None:
    """The confidence interval of a metric; None if test rows do not determine it."""
    score = SCORES.get(metric)
    if rows is None or rows.is_empty() or score is None:
        return None
    if not score.determined(rows.columns, outputs):
        return None
    return metric_interval(rows, score)


def _method(run: OpenedRun) -> Iterator[str]:
    if run.is_baseline:
        yield from _baseline(run)
        return
    about, summary = run.algorithm.about, run.stored.summary
    yield f"{about.name}: {markdown_text(about.paper)}"
    yield ""
    yield f"- rounds: {markdown_text(summary.get('rounds'))}, seed {run.stored.seed}"
    for name, value in _flat(run.manifest["algorithm"]):
        yield f"- {markdown_text(name)}: {markdown_text(value)}"


def _baseline(run: OpenedRun) -> Iterator[str]:
    """What a baseline is, and what it chose on validation rows."""
    title = run.manifest["algorithm"].get("title", run.stored.method)
    yield f"{markdown_text(title)}: {find_baseline(run.stored.method).about}"
    yield ""
    chosen = run.stored.summary.get(CHOSEN, {})
    yield f"- seed {run.stored.seed}"
    for name, value in _flat(chosen):
        if not name.startswith("own."):
            yield f"- {markdown_text(name)}: {markdown_text(value)}"


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Flatten nested settings, without the names of their classes."""
    for name, value in settings.items():
        if name in ("name", "type"):
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _report_rounds(run: OpenedRun, client: str, rounds: int) -> list[int]:
    """The rounds in which the server took an answer of a client."""
    # They are drawn for the seen clients in the order of their ids.
    seen = run.stored.clients.filter(~pl.col("unseen"))
    ids = client_ids(tuple(seen["client"]))
    order = np.argsort(ids)
    clients = Clients(
        ids=ids[order],
        names=tuple(seen["client"].gather(order)),
        sizes=seen["train"].to_numpy()[order],
        groups=None,
        original_index=order,
    )
    row = clients.names.index(client)
    if (run.path / ANSWERS).exists():
        record = read_answers(run.path / ANSWERS, clients.names)
        taken = zip(record.step, record.client, strict=True)
        return [number for number, row in taken if clients.names[row] == client]
    spec = run.spec
    if spec.asynchronous is not None:
        arrivals = Arrivals(spec.asynchronous, spec.participation, clients, spec.seed)
        return [number for number in range(rounds) if row in arrivals.next_step()[0]]
    return [
        number
        for number in range(rounds)
        if spec.participation.sample(clients.ids, spec.seed, number, clients.sizes)[row]
    ]


def _shared_data(run: OpenedRun, client: str, row: dict[str, Any]) -> Iterator[str]:
    """What this client sent, from the run's ledger and participation."""
    if run.is_baseline and find_baseline(run.stored.method).is_alone:
        yield "It sent nothing: its model is trained on its own rows only."
        return
    if run.is_baseline:
        yield (
            "Of the sums above this client's part was computed in one process with the"
            " others': its rows were there, and no messages were counted."
        )
        return
    method = run.algorithm.about
    sent = [entry for entry in run.ledger.entries if entry.direction == "up"]
    if row["unseen"]:
        yield "This client sent nothing in training."
        probe_entries = [entry for entry in sent if entry.phase == "unseen"]
        if probe_entries:
            kinds = ", ".join(dict.fromkeys(entry.kind for entry in probe_entries))
            yield f"To be served it answered the probe with: {markdown_text(kinds)}."
        return
    rounds = int(run.stored.summary["rounds"])
    report_rounds = _report_rounds(run, client, rounds)
    yield (
        f"It reported in {len(report_rounds)} of {rounds} rounds. In training a client of"
        " this method"
    )
    yield ""
    yield f"- is sent: {markdown_text(method.down)}"
    yield f"- sends: {markdown_text(method.up)}"
    yield f"- keeps: {markdown_text(method.client_keeps)}"
    yield ""
    # The bytes of each message, by kind and time.
    messages: dict[str, list[int]] = {}
    for entry in sent:
        in_round = entry.phase == "round" and entry.round in report_rounds
        if not in_round and entry.phase != "probe":
            continue
        when = "in rounds" if in_round else "before training"
        size = entry.bytes_unicast // entry.clients if entry.bytes_unicast else 0
        messages.setdefault(f"{markdown_text(entry.kind)}, {when}", []).append(size)
    if not messages:
        yield "Nothing left this client."
        return
    yield "| sent by this client | messages | bytes in all |"
    yield "| --- | ---: | ---: |"
    for what, sizes in messages.items():
        yield f"| {what} | {len(sizes):,} | {sum(sizes):,} |"
    yield ""
    transforms = run.manifest.get("uplink", [])
    if transforms:
        names = ", ".join(markdown_text(one.get("type", "")) for one in transforms)
        yield f"Messages went through: {names}."
    else:
        yield "Messages went as they are: nothing was clipped, and no noise was added."
    yield "Single numbers (a loss, a weight) are not in the bytes."
