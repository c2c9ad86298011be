"""Every ordering that the papers publish and docs/reproduction.md judges: difference,
interval over seeds, verdict.

python benchmarks/orderings.py                  prints them, one a line
python benchmarks/reproduction.py --write       writes the pages that show them

The orderings stand in orderings.toml, the numbers in results/. A verdict is "yes" where
the 95 % interval of the difference lies above 0 (above minus a margin, where the paper
says that two methods match), "no" where it lies below, and "open" otherwise. Intervals
are Welch's, of two means over seeds whose deviations may differ; the tables' rounding,
which could go either way, is added to them.
They treat the methods' seeds as unrelated, because results/ does not hold the single
seeds, and do not correct for the number of orderings.
"""

import argparse
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from result_files import RESULTS, ROOT, Row, read_tables
from scipy.stats import t as student

CLAIMS = ROOT / "benchmarks" / "orderings.toml"
VERDICTS = ("yes", "open", "no")
PUBLISHED, SMALLER = "published", "smaller"
"""The sizes of experiments."""
LAST, BEST = "mean", "best_val"
"""Tables of the mean after the last round, and at the best round by validation data."""


@dataclass(frozen=True)
class Measured:
    """A cell of a table.

    Attributes:
        mean: over seeds.
        deviation: over seeds.
        unit: of the last digit.
        text: as the page shows it.
        seeds: how many ended with a value.
        of: how many there were; the others diverged.
    """

    mean: float
    deviation: float
    unit: float
    text: str
    seeds: int
    of: int


@dataclass(frozen=True)
class Ordering:
    """One method published to be better than another in one column.

    Attributes:
        paper: short name.
        where: table or figure, and column if it has several.
        column: of the table.
        quote: in the paper's words.
        setting: what the paper leaves open, or sets otherwise; "" for all else.
        in_table: whether only a table of the paper says so, and no sentence.
        size: `PUBLISHED` or `SMALLER`.
        above: the method that is published to be better.
        below: the other one.
        ours: measured for `above`.
        theirs: measured for `below`.
        published: the paper's figures of both.
        lower: whether lower is better.
        margin: by how much `above` may be worse, where the paper says that both match.
        at_best: the same at each run's best round by validation data; None where the
            ordering is not of a mean after the last round, or the tables lack it.
    """

    paper: str
    where: str
    column: str
    quote: str
    setting: str
    in_table: bool
    size: str
    above: str
    below: str
    ours: Measured
    theirs: Measured
    published: tuple[str, str] | None
    lower: bool
    margin: float = 0.0
    at_best: "Ordering | None" = None

    @property
    def difference(self) -> float:
        """By how much `above` is better here, or worse where it is negative."""
        return (
            (self.theirs.mean - self.ours.mean)
            if self.lower
            else (self.ours.mean - self.theirs.mean)
        )

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Of the difference, 95 %, in digits of the table: rounded outwards, so that
        what is shown decides.
        """
        # a mean is off by up to half a unit, and so is a deviation, which is never less
        # than the table can show
        variances = [
            (cell.deviation + cell.unit / 2) ** 2 / cell.seeds
            for cell in (self.ours, self.theirs)
        ]
        freedom = sum(variances) ** 2 / sum(
            variance**2 / (cell.seeds - 1)
            for variance, cell in zip(variances, (self.ours, self.theirs), strict=True)
        )
        half = (
            student.ppf(0.975, freedom) * math.sqrt(sum(variances))
            + (self.ours.unit + self.theirs.unit) / 2
        )
        low, high = ((self.difference + end) / self.ours.unit for end in (-half, half))
        return math.floor(low) * self.ours.unit, math.ceil(high) * self.ours.unit

    @property
    def verdict(self) -> str:
        low, high = (bound + self.margin for bound in self.interval)
        return "yes" if low > 0 else "no" if high < 0 else "open"

    @property
    def gain(self) -> str:
        """Difference and interval as text, and if seeds diverged, how many did not."""
        bounds = (self.difference, *self.interval)
        difference, low, high = (_rounded(bound, self.ours.unit) for bound in bounds)
        text = f"{difference} [{low}, {high}]"
        for cell in (self.ours, self.theirs):
            if cell.seeds < cell.of:
                return f"{text}, {cell.seeds} of {cell.of} seeds"
        return text

    def __str__(self) -> str:
        return f"{self.below}: {self.gain}"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for ordering in orderings():
        relation = "matches" if ordering.margin else "better than"
        print(
            f"{ordering.verdict:4}  {ordering.paper} {ordering.where}: {ordering.above}"
            f" {relation} {ordering}"
        )


def verdict_of(found: Sequence[Ordering]) -> str:
    """What several orderings say of a sentence that claims them all."""
    verdicts = {one.verdict for one in found}
    return "no" if "no" in verdicts else "open" if "open" in verdicts else "yes"


def weakest(found: Sequence[Ordering]) -> Ordering:
    """The ordering on which the verdict of a sentence rests."""
    verdict = verdict_of(found)
    deciding = [one for one in found if one.verdict == verdict]
    return min(deciding, key=lambda one: (one.interval[0] + one.margin) / one.ours.unit)


def at_best_size(found: Iterable[Ordering]) -> list[Ordering]:
    """Those at the published size, and for columns that have none the others."""
    found = list(found)
    large = {one.column for one in found if one.size == PUBLISHED}
    return [one for one in found if one.size == PUBLISHED or one.column not in large]


def not_run(paper: str) -> list[str]:
    """Commands of a paper's experiments that results/ do not have."""
    claims = [claim for claim in read_claims()["claim"] if claim["paper"] == paper]
    names = [
        folder.name
        for claim in claims
        for folder in _experiments(claim)
        if not folder.exists()
    ]
    return [
        f"fedtailor compare experiments/{name.removesuffix('-quick')}.toml"
        + (" --quick" if name.endswith("-quick") else "")
        for name in dict.fromkeys(names)
    ]


def _experiments(claim: dict[str, Any]) -> tuple[Path, Path]:
    """The folders of what is above and of what is below in a claim."""
    above = claim["experiment"]
    return RESULTS / above, RESULTS / claim.get("below_experiment", above)


def orderings() -> Iterator[Ordering]:
    """All of them whose experiments have been run, in the order of the file.

    Raises:
        ValueError: results/ lack a number, or the paper's own numbers are in another
            order than the claim.
    """
    for _, _, ordering in orderings_of_experiments():
        yield ordering


def orderings_of_experiments() -> Iterator[tuple[str, str, Ordering]]:
    """As `orderings`, with the experiment of what is above and that of what is below."""
    for claim in read_claims()["claim"]:
        above, below = _experiments(claim)
        if not above.exists() or not below.exists():
            continue
        for column in claim["columns"]:
            for name in claim["below"]:
                yield above.name, below.name, _ordering(claim, column, name)


def unjudged(paper: str) -> list[dict[str, str]]:
    """Claims of a paper on which results/ allow no verdict, with the reason."""
    return [one for one in read_claims()["unjudged"] if one["paper"] == paper]


def _ordering(claim: dict[str, Any], column: str, below: str) -> Ordering:
    table = claim.get("table", LAST)
    experiment, other = _experiments(claim)
    rows = _rows(experiment, table)
    others = _rows(other, claim.get("below_table", table))
    scenario = column.removesuffix(", max over rounds on test")
    stated = (
        _published(rows[claim["above"]], scenario),
        _published(others[below], scenario),
    )
    lower, where, margin = (
        claim.get("lower", False),
        claim["where"],
        claim.get("margin", 0.0),
    )
    # Losses are small numbers, accuracies are in percent.
    digits = 3 if lower else 1
    place = where if scenario in where else f"{where}, {scenario}"
    ordering = Ordering(
        paper=claim["paper"],
        where=place,
        column=scenario,
        quote=claim["quote"],
        setting=claim.get("setting", ""),
        in_table=claim.get("row", False),
        size=SMALLER if experiment.name.endswith(("-quick", "-third")) else PUBLISHED,
        above=claim["above"],
        below=(
            below if "below_table" not in claim else f"{below} ({claim['below_table']})"
        ),
        ours=_measured(rows[claim["above"]], column, _seeds(experiment), digits),
        theirs=_measured(others[below], column, _seeds(other), digits),
        published=(
            None if stated[0] is None or stated[1] is None else (stated[0], stated[1])
        ),
        lower=lower,
        margin=margin,
    )
    if table == LAST and "below_table" not in claim:
        best, best_other = _rows(experiment, BEST), _rows(other, BEST)
        if claim["above"] in best and below in best_other:
            at_best = replace(
                ordering,
                ours=_measured(
                    best[claim["above"]], column, _seeds(experiment), digits
                ),
                theirs=_measured(best_other[below], column, _seeds(other), digits),
            )
            ordering = replace(ordering, at_best=at_best)
    if ordering.published:
        ours, theirs = (float(text.split()[0]) for text in ordering.published)
        ahead = (theirs - ours if lower else ours - theirs) + margin
        # A margin is the published difference, to a digit.
        if ahead < -1e-9 if margin else ahead <= 0:
            raise ValueError(
                f"{place}: {ordering.above} ({ours}) is not published above {below}"
                f" ({theirs})"
            )
    return ordering


def _published(row: dict[str, str], scenario: str) -> str | None:
    """The paper's figure for a row, as the table of one or of several scenarios has
    it.
    """
    name = "published"
    if any(column.endswith(", published") for column in row):
        name = f"{scenario}, published"
    figure, deviation = row.get(name) or "-", row.get(f"{name} std")
    return None if figure == "-" else f"{figure} ± {deviation}" if deviation else figure


def _measured(row: Row, column: str, seeds: int, digits: int = 1) -> Measured:
    """A cell "mean ± deviation", as reports of 0.1.0 wrote it, or two columns of
    numbers, rounded as the page shows.

    Args:
        row: of a table.
        column: header.
        seeds: of the experiment; the row may say that fewer ended.
        digits: number of decimals.
    """
    text = row[column]
    if " ± " not in text:
        deviation = float(row[f"{column} std"])
        text = f"{float(text):.{digits}f} ± {deviation:.{digits}f}"
    mean, deviation = text.split(" ± ")
    return Measured(
        float(mean),
        float(deviation),
        10.0 ** -min(len(mean.partition(".")[2]), 3),
        text,
        int(row.get(f"{column} runs", seeds)),
        seeds,
    )


def _rounded(value: float, unit: float) -> str:
    digits = max(round(-math.log10(unit)), 0)
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no -0.0


@cache
def _seeds(experiment: Path) -> int:
    report = experiment / "report.md"
    found = re.search(r"seeds ([\d, ]+);", report.read_text())
    if found is None:
        raise ValueError(f"{report} does not name its seeds")
    return len(found[1].split(","))


@cache
def read_claims() -> dict[str, list[dict[str, Any]]]:
    """The tables of orderings.toml."""
    return tomllib.loads(CLAIMS.read_text())


def _rows(experiment: Path, table: str) -> dict[str, Row]:
    """Row by algorithm; of `BEST`, none where the experiment does not have it."""
    tables = _tables(experiment)
    return tables.get(BEST, {}) if table == BEST else tables[table]


@cache
def _tables(experiment: Path) -> dict[str, dict[str, Row]]:
    return read_tables(experiment / "tables.csv")


if __name__ == "__main__":
    main()
