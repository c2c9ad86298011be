"""`Verdict`: the end of a comparison, and the table with a row for each client.

The method for all clients, and another one for clients that need it, are chosen on
validation data (`fedtailor.statistics.decision.recommend`). All figures are of test data, which had
no part in the choice.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtailor._base.digests import finite
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.lab.results.units import Unit
from fedtailor.lab.results.words import Nouns
from fedtailor.statistics.decision import Hurt, Interval, Recommendation

ALPHA = 0.05
"""Level of the verdicts after correction."""
MOST_CLIENTS = 12
"""A first screen shows no more clients than these."""
MOST_CANDIDATES = 8
"""A table shows no more candidates than these."""
NO_DIFFERENCE_SHOWN = "no difference shown"
"""The verdict where an interval contains 0."""
_WORDS = {"helps": "better", "hurts": "worse", "cannot tell": NO_DIFFERENCE_SHOWN}


def in_words(gain: Interval) -> str:
    """A verdict as people read it: "better", "worse" or "no difference shown"."""
    return _WORDS[gain.verdict]


@dataclass(frozen=True)
class Candidate:
    """Something that could be used: a method, or what is trained beside methods, needs no
    pooled rows and keeps its models.

    Attributes:
        label: its name.
        mean: its mean on test rows over clients and seeds, in the unit of the metric.
        gain: gain over the recommended method with its interval, in the same unit; None
            for the recommended one.
    """

    label: str
    mean: float
    gain: Interval | None


@dataclass(frozen=True)
class ClientVerdict:
    """What one client should use, and what it may expect.

    All values are in the unit of the metric. Intervals are [low, high]; gains are
    positive where sharing is better.

    Attributes:
        client: its name.
        test_rows: its test rows in one split.
        method: label of the method that it should use.
        use: the same in words.
        value: expected metric, the mean over seeds, with `low` and `high`.
        gain: gain over training alone, with an interval: of the method that it should
            use; where all should train alone, of the method that `Verdict.shared`
            names; None where only this client should train alone.
        p, p_holm: p-value of the gain, also corrected for all clients.
        baseline: title of the best baseline that needs no pooled data, or "".
        baseline_value: its metric.
        over_baseline: gain over it, with an interval.
    """

    client: str
    test_rows: int
    method: str
    use: str
    value: float
    low: float
    high: float
    gain: tuple[float, float, float] | None = None
    p: float = math.nan
    p_holm: float = math.nan
    baseline: str = ""
    baseline_value: float = math.nan
    over_baseline: tuple[float, float, float] | None = None

    @property
    def verdict(self) -> str:
        """ "helps", "hurts" or "cannot tell", for this client alone."""
        return "" if self.gain is None else Interval(*self.gain, self.p).verdict

    @property
    def word(self) -> str:
        """The verdict as people read it; "" without a gain."""
        return _word_of(self.gain)


@dataclass(frozen=True)
class Verdict:
    """The end of a comparison.

    Attributes:
        recommendation: the methods that were chosen.
        unit: of the metric of the clients.
        subject: what was measured, one line.
        client_column: the column that names the clients.
        nouns: what a client is called.
        answer: which method to use, one sentence.
        evidence: why, and whether sharing helps on average: at most three sentences.
        candidates: what could be used, best first.
        candidates_unit: of the metric of their means.
        summary: for how many clients sharing is better and worse, or "".
        clients: one entry for each client.
        advice: what would settle the verdicts that are open, or "".
        warnings: what makes the answer doubtful.
        hurt: how many clients what they should use leaves worse off than training alone;
            None where nothing is compared with that.
        shared: the method that all that is said of sharing is about: the recommended one
            or, where all should train alone, the best of the others on validation data;
            "" without any.
    """

    recommendation: Recommendation
    unit: Unit
    subject: str
    client_column: str
    nouns: Nouns
    answer: str
    evidence: Sequence[str]
    candidates: Sequence[Candidate]
    candidates_unit: Unit
    summary: str
    clients: Sequence[ClientVerdict]
    advice: str = ""
    warnings: Sequence[str] = field(default_factory=tuple)
    hurt: Hurt | None = None
    shared: str = ""

    @property
    def _differs(self) -> bool:
        """Whether clients use different methods."""
        return bool(self.recommendation.of_client)

    def candidates_table(self, most: int = MOST_CANDIDATES) -> ReportTable:
        """The best candidates, with the recommended one among them."""
        chosen, unit = self.recommendation.method, self.candidates_unit
        best = list(self.candidates[:most])
        if all(it.gain is not None for it in best):
            best[-1:] = [it for it in self.candidates if it.gain is None]
        rows: list[list[Cell]] = []
        for it in best:
            gain: Cell = "(recommended)"
            if it.gain is not None:
                gain = _gain_cell(
                    unit, (it.gain.estimate, it.gain.low, it.gain.high), "no interval"
                )
            mean = unit.scale * it.mean
            rows.append([it.label, Number(mean, f"{mean:.{unit.digits}f}"), gain])
        columns = ["candidate", f"mean\n{unit.label}", f"gain over {chosen}\n(95 %)"]
        return ReportTable(self.subject, columns, rows)

    def first_screen(self, most: int = MOST_CLIENTS) -> ReportTable | None:
        """One line for each client; the clients that most is known about come first.

        Args:
            most: the most lines; of more clients, those with a method of their own come
                first, then those that sharing makes worse, then better.

        Returns:
            None where all clients have the same figures, or are more than `most` and
            have the same method and verdict: the summary says it.
        """
        words = {client.word for client in self.clients}
        is_same = not self._differs and len(words) == 1
        figures = {(client.value, client.gain) for client in self.clients}
        if is_same and (len(self.clients) > most or len(figures) == 1):
            return None
        chosen, title = sorted(self.clients, key=_by_gain), ""
        if len(chosen) > most:
            own = self.recommendation.of_client
            order = ("worse", "better", NO_DIFFERENCE_SHOWN, "")
            chosen.sort(key=lambda it: (it.client not in own, order.index(it.word)))
            title = f"{most} of {len(chosen)} {self.nouns.many} (all: --details)"
            chosen = chosen[:most]
        columns = [self.client_column, "test rows\na split", self.unit.label]
        by = "sharing" if self._differs else self.shared
        columns.append(f"gain of {by}\n(95 %)")
        text = 1
        if not is_same:
            columns.append("\nverdict")
        if self._differs:
            columns.insert(1, "use")
            text = 2
        rows = []
        for client in chosen:
            row = [client.client, Number(client.test_rows, f"{client.test_rows:,}")]
            row += [self._value_cell(client), _gain_cell(self.unit, client.gain)]
            if not is_same:
                row.append(client.word)
            if self._differs:
                row.insert(1, client.method)
            rows.append(row)
        note = (
            f"Gain over training alone, shrunk towards the mean gain of all {self.nouns.many}"
            " (the more uncertain, the more); + is better."
        )
        return ReportTable(title, columns, rows, text=text, note=note)

    def table(self) -> ReportTable:
        """The table with one row for each client, and all that is known of it."""
        note = (
            "Test rows: of one split. Ranges: 95 % intervals, each for itself. Gains: + is"
            " better; shrunk towards the mean gain of all"
            f" {self.nouns.many} (the more uncertain, the more)."
        )
        columns = [
            self.client_column,
            "use",
            f"expected\n{self.unit.label}",
            "gain of sharing over\ntraining alone",
        ]
        if self._has_baselines:
            columns.append(f"gain over\n{self._baseline_name()}")
        clients = sorted(self.clients, key=_by_gain)
        return ReportTable(
            "",
            columns,
            [self._row(client) for client in clients],
            below=[self._row_below(client) for client in clients],
            text=2,
            note=note,
        )

    @property
    def _has_baselines(self) -> bool:
        """Whether a client is compared with a baseline that is not what it uses."""
        return any(it.over_baseline is not None for it in self.clients)

    def _baseline_name(self) -> str:
        """The baseline that the clients are compared with, if it is one and the same."""
        titles = {it.baseline for it in self.clients if it.over_baseline is not None}
        if len(titles) != 1:
            return "best baseline"
        # "logistic regression, alone"
        return titles.pop().partition(",")[0]

    def _value_cell(self, client: ClientVerdict) -> Number:
        """The metric that a client may expect."""
        value = self.unit.scale * client.value
        if math.isfinite(value):
            return Number(value, f"{value:.{self.unit.digits}f}")
        # An area under a curve needs rows of both classes.
        return Number(value, "not defined" if client.test_rows else "no test rows")

    def _row(self, client: ClientVerdict) -> list[Cell]:
        """What a client should use, and what it may expect."""
        row = [
            client.client,
            client.use,
            self._value_cell(client),
            _gain_cell(self.unit, client.gain),
        ]
        if self._has_baselines:
            row.append(_gain_cell(self.unit, client.over_baseline))
        return row

    def _row_below(self, client: ClientVerdict) -> list[str]:
        """How sure that is."""
        scale, digits = self.unit.scale, self.unit.digits
        expected = ""
        if math.isfinite(client.low) and math.isfinite(client.high):
            low, high = scale * client.low, scale * client.high
            expected = f"{low:.{digits}f} to {high:.{digits}f}"
        elif math.isfinite(client.value):
            expected = "one row"
        row = [f"{client.test_rows:,} tested", client.method, expected, client.word]
        if self._has_baselines:
            row.append(_word_of(client.over_baseline))
        return row

    def as_dict(self) -> dict[str, Any]:
        """Converts the verdict to a dict for JSON.

        Values and gains are in the unit of the metric: an accuracy is a share.
        """
        return finite(
            {
                "subject": self.subject,
                "answer": self.answer,
                "evidence": list(self.evidence),
                "method": self.recommendation.method,
                "best_on_validation": self.recommendation.best,
                "equal_on_validation": list(self.recommendation.close),
                "sharing_by": self.shared,
                "candidates": [
                    {
                        "name": it.label,
                        "mean": it.mean,
                        "gain": None
                        if it.gain is None
                        else (it.gain.estimate, it.gain.low, it.gain.high),
                    }
                    for it in self.candidates
                ],
                "summary": self.summary,
                "clients": [
                    {
                        "client": it.client,
                        "test_rows": it.test_rows,
                        "method": it.method,
                        "use": it.use,
                        "expected": it.value,
                        "low": it.low,
                        "high": it.high,
                        "gain": it.gain,
                        "p": it.p,
                        "p_holm": it.p_holm,
                        "sharing": it.word,
                        "baseline": it.baseline,
                        "baseline_value": it.baseline_value,
                        "gain_over_baseline": it.over_baseline,
                    }
                    for it in self.clients
                ],
                "hurt": None if self.hurt is None else asdict(self.hurt),
                "advice": self.advice,
                "warnings": list(self.warnings),
            }
        )


def _word_of(gain: tuple[float, float, float] | None) -> str:
    """The verdict on a gain as people read it; "" without one."""
    return "" if gain is None else in_words(Interval(*gain, math.nan))


def _by_gain(client: ClientVerdict) -> float:
    """Sorts clients by their gains, the largest first, and those without one last."""
    gain = math.nan if client.gain is None else client.gain[0]
    return math.inf if math.isnan(gain) else -gain


def _range_text(unit: Unit, gain: tuple[float, float, float] | None) -> str:
    """The ends of the interval of a gain; "" where there is none."""
    if gain is None or not all(map(math.isfinite, gain)):
        return ""
    _, low, high = (unit.scale * value for value in gain)
    return f"{unit.signed(low)} to {unit.signed(high)}"


def _gain_cell(
    unit: Unit, gain: tuple[float, float, float] | None, unknown: str = "too few rows"
) -> Cell:
    """A gain with its interval, such as "-0.5 (-1.7 to +0.7)".

    Args:
        unit: of the metric.
        gain: the gain and the ends of its interval, stored values; or None.
        unknown: said instead of an interval that is not known.
    """
    if gain is None or math.isnan(gain[0]):
        return "-"
    if not any(gain):
        return Number(0.0, "the same scores")
    center = unit.scale * gain[0]
    ends = _range_text(unit, gain) or unknown
    return Number(center, f"{unit.signed(center)} ({ends})")
