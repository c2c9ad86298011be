"""`Verdict`: the end of a comparison, and the table with a row for each client.

The method for all clients, and another one for clients that need it, are chosen on
validation data (`fedtailor.statistics.decision.recommend`). All figures are of test data, which had
no part in the choice.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtailor.engine.storage.digests import finite
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.lab.results.units import Unit
from fedtailor.statistics.decision import (
    Hurt,
    Recommendation,
)

ALPHA = 0.05
"""Level of the verdicts after correction."""
MOST_CLIENTS = 12
"""A first screen shows no more clients than these."""


@dataclass(frozen=True)
class ClientVerdict:
    """What one client should use, and what it may expect.

    All values are in the unit of the metric. Intervals are [low, high]; gains are
    positive where the recommended method is better.

    Attributes:
        client: its name.
        test_rows: its test rows in one split.
        method: label of the method that it should use.
        use: the same in words.
        value: expected metric, the mean over seeds, with `low` and `high`.
        gain: gain over training alone, with an interval; None where the client should
            train alone.
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
        if self.gain is None:
            return ""
        _, low, high = self.gain
        return "helps" if low > 0 else "hurts" if high < 0 else "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """The end of a comparison.

    Attributes:
        recommendation: the methods that were chosen.
        unit: of the metric of the clients.
        subject: what was compared, one line.
        client_column: the column that names the clients.
        headline: the decision, a few sentences.
        methods: one sentence on each method and baseline that the table names.
        clients: one entry for each client.
        footnotes: how many verdicts hold, and what would settle the others.
        warnings: what makes the headline doubtful: a baseline is better, or could not be
            trained.
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
    headline: Sequence[str]
    methods: Sequence[str]
    clients: Sequence[ClientVerdict]
    footnotes: Sequence[str]
    warnings: Sequence[str] = field(default_factory=tuple)
    hurt: Hurt | None = None
    shared: str = ""

    def table(self, most: int | None = None) -> ReportTable:
        """The table with one row for each client.

        Args:
            most: the most rows; then those with a method of their own come first, and
                of the others those with the worst expected metric.
        """
        chosen, title = list(self.clients), ""
        own = self.recommendation.of_client
        note = (
            "Tested: rows of one split. Ranges: 95 % intervals, each for itself. Gains: + is"
            " better, unclear if the range contains 0; drawn towards the mean gain of all"
            " clients by as much as each is uncertain."
        )
        if most is not None and len(chosen) > most:
            sign = 1 if self.unit.higher_is_better else -1
            chosen.sort(
                key=lambda client: (
                    client.client not in own,
                    _last_if_nan(sign * client.value),
                )
            )
            chosen = chosen[:most]
            first = "a method of their own, then " if own else ""
            title = (
                f"The {most} of {len(self.clients)} clients with {first}the worst expected"
                " metric (all: --details)"
            )
        columns = [
            self.client_column,
            "use",
            f"expected\n{self.unit.label}",
            "gain over\ntraining alone",
            f"gain over\n{self._baseline_name()}",
        ]
        return ReportTable(
            title,
            columns,
            [self._row(client) for client in chosen],
            below=[self._row_below(client) for client in chosen],
            text=2,
            note=note,
        )

    def _baseline_name(self) -> str:
        """The baseline that the clients are compared with, if it is one and the same."""
        titles = {it.baseline for it in self.clients if it.over_baseline is not None}
        if len(titles) != 1:
            return "best baseline"
        # "logistic regression, alone"
        return titles.pop().partition(",")[0]

    def _row(self, client: ClientVerdict) -> list[Cell]:
        """What a client should use, and what it may expect."""
        value = self.unit.scale * client.value
        if math.isfinite(value):
            expected = f"{value:.{self.unit.digits}f}"
        elif client.test_rows:
            # An area under a curve needs rows of both classes.
            expected = "not defined"
        else:
            expected = "no test rows"
        return [
            client.client,
            client.use,
            Number(value, expected),
            self._gain_cell(client.gain),
            self._gain_cell(client.over_baseline),
        ]

    def _row_below(self, client: ClientVerdict) -> list[str]:
        """How sure that is."""
        scale, digits = self.unit.scale, self.unit.digits
        expected = ""
        if math.isfinite(client.low) and math.isfinite(client.high):
            low, high = scale * client.low, scale * client.high
            expected = f"{low:.{digits}f} to {high:.{digits}f}"
        elif math.isfinite(client.value):
            expected = "one row"
        return [
            f"{client.test_rows:,} tested",
            client.method,
            expected,
            self._interval_text(client.gain),
            self._interval_text(client.over_baseline),
        ]

    def _gain_cell(self, gain: tuple[float, float, float] | None) -> Cell:
        """A gain, and whether it is one."""
        if gain is None:
            return "-"
        center, low, high = (self.unit.scale * value for value in gain)
        if not (math.isfinite(low) and math.isfinite(high)):
            return Number(center, "too few rows")
        verdict = "better" if low > 0 else "worse" if high < 0 else "unclear"
        return Number(center, f"{self.unit.signed(center)} {verdict}")

    def _interval_text(self, gain: tuple[float, float, float] | None) -> str:
        """The ends of the interval of a gain; "" where there is none."""
        if gain is None or not all(map(math.isfinite, gain)):
            return ""
        _, low, high = (self.unit.scale * value for value in gain)
        return f"{self.unit.signed(low)} to {self.unit.signed(high)}"

    def as_dict(self) -> dict[str, Any]:
        """Converts the verdict to a dict for JSON."""
        return finite(
            {
                "subject": self.subject,
                "sentences": list(self.headline),
                "method": self.recommendation.method,
                "best_on_validation": self.recommendation.best,
                "equal_on_validation": list(self.recommendation.close),
                "methods": list(self.methods),
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
                        "sharing": it.verdict,
                        "baseline": it.baseline,
                        "baseline_value": it.baseline_value,
                        "gain_over_baseline": it.over_baseline,
                    }
                    for it in self.clients
                ],
                "hurt": None if self.hurt is None else asdict(self.hurt),
                "footnotes": list(self.footnotes),
                "warnings": list(self.warnings),
            }
        )


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value
