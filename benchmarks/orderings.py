"""Every ordering that the papers publish and docs/reproduction.md judges: difference,
interval over seeds, verdict.

python benchmarks/orderings.py            prints them, one a line
python benchmarks/orderings.py --write    writes them into docs/reproduction.md

The orderings stand in orderings.toml, the numbers in results/; rows of
results/NAME-again-quick are of methods that were run again, and replace those of
results/NAME-quick. A verdict is "yes" where the 95 % interval of the difference lies
above 0, "no" where it lies below, and "open" otherwise. Intervals are Welch's, of two
means over seeds whose deviations may differ; the tables' rounding, which could go
either way, is added to them. They treat the methods' seeds as unrelated, because
results/ does not hold the single seeds, and do not correct for the number of orderings.
"""

import argparse
import csv
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scipy.stats import t as student

ROOT = Path(__file__).parents[1]
CLAIMS, RESULTS, PAGE = (
    ROOT / "benchmarks" / "orderings.toml",
    ROOT / "results",
    ROOT / "docs" / "reproduction.md",
)
VERDICTS = ("yes", "open", "no")
BLOCK = re.compile(
    r"(<!-- orderings (?P<paper>[\w-]+) -->\n).*?(<!-- end of orderings -->)", re.DOTALL
)


@dataclass(frozen=True)
class Measured:
    """A cell of a table: mean and deviation over seeds, and the unit of its last
    digit.
    """

    mean: float
    deviation: float
    unit: float
    text: str


@dataclass(frozen=True)
class Ordering:
    """One method published to be better than another in one column."""

    paper: str
    where: str
    quote: str
    above: str
    below: str
    ours: Measured
    theirs: Measured
    published: tuple[str, str] | None
    seeds: int
    lower: bool

    @property
    def difference(self) -> float:
        """By how much `above` is better here, or worse where it is negative."""
        return (
            (self.theirs.mean - self.ours.mean)
            if self.lower
            else (self.ours.mean - self.theirs.mean)
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference, 95 %, in digits of the table: rounded outwards, so that
        what is shown decides.
        """
        # a mean is off by up to half a unit, and so is a deviation, which is never less
        # than the table can show
        variances = [
            (cell.deviation + cell.unit / 2) ** 2 / self.seeds
            for cell in (self.ours, self.theirs)
        ]
        freedom = sum(variances) ** 2 / sum(
            variance**2 / (self.seeds - 1) for variance in variances
        )
        half = (
            student.ppf(0.975, freedom) * math.sqrt(sum(variances))
            + (self.ours.unit + self.theirs.unit) / 2
        )
        low, high = ((self.difference + end) / self.ours.unit for end in (-half, half))
        return math.floor(low) * self.ours.unit, math.ceil(high) * self.ours.unit

    @property
    def verdict(self) -> str:
        low, high = self.interval
        return "yes" if low > 0 else "no" if high < 0 else "open"

    def __str__(self) -> str:
        low, high = (_rounded(bound, self.ours.unit) for bound in self.interval)
        return (
            f"{self.below}: {_rounded(self.difference, self.ours.unit)} [{low}, {high}]"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the verdicts into docs/reproduction.md",
    )
    if parser.parse_args().write:
        PAGE.write_text(written(PAGE.read_text()))
        return
    for ordering in orderings():
        print(
            f"{ordering.verdict:4}  {ordering.paper} {ordering.where}: {ordering.above}"
            f" better than {ordering}"
        )


def written(page: str) -> str:
    """The page with its blocks of orderings as results/ say."""
    return BLOCK.sub(lambda found: found[1] + block(found["paper"]) + found[3], page)


def block(paper: str) -> str:
    """Verdicts on one paper: quotes, a row for each claim and column, and what is not
    judged.
    """
    found = [ordering for ordering in orderings() if ordering.paper == paper]
    if not found:
        return "\n".join([*_not_run(paper), *_not_judged(paper)]).lstrip() + "\n"
    rows: dict[tuple[str, str, str], list[Ordering]] = {}
    for ordering in found:
        rows.setdefault((ordering.where, ordering.quote, ordering.above), []).append(
            ordering
        )
    counts = ", ".join(
        f"{verdict} {sum(one.verdict == verdict for one in found)}"
        for verdict in VERDICTS
    )
    lines = [
        f"{len(found)} published orderings: {counts}.",
        "",
        (
            "| published to be better than the others | in the paper's words | yes |"
            " open | no |"
        ),
        "| --- | --- | --- | --- | --- |",
    ]
    for (where, quote, above), members in rows.items():
        first = members[0]
        published = f"published {first.published[0]}, " if first.published else ""
        cells = [
            f"{where}: **{above}** ({published}here {first.ours.text})",
            f'"{_cell(quote)}"',
        ]
        for verdict in VERDICTS:
            cells.append(
                "; ".join(_opponent(one) for one in members if one.verdict == verdict)
            )
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join([*lines, *_not_run(paper), *_not_judged(paper)]) + "\n"


def _not_run(paper: str) -> list[str]:
    """What is published to be better, in experiments that results/ do not have."""
    claims = [
        claim
        for claim in _claims()["claim"]
        if claim["paper"] == paper and not _is_run(claim)
    ]
    if not claims:
        return []
    lines = ["", "Not judged, because it has not been run:", ""]
    for where, quote, experiment in dict.fromkeys(
        (one["where"], one["quote"], one["experiment"]) for one in claims
    ):
        name = experiment.removesuffix("-quick")
        lines.append(
            f'* {where}, "{_cell(quote)}": `fedtailor compare experiments/{name}.toml'
            " --quick`."
        )
    return lines


def _not_judged(paper: str) -> list[str]:
    lines = ["", "Not judged, because results/ cannot carry it:", ""]
    return lines + [
        f'* {one["where"]}, "{_cell(one["quote"])}": {one["why"]}.'
        for one in unjudged(paper)
    ]


def _is_run(claim: dict[str, Any]) -> bool:
    return (RESULTS / claim["experiment"]).exists()


def orderings() -> Iterator[Ordering]:
    """All of them whose experiments have been run, in the order of the file.

    Raises:
        ValueError: results/ lack a number, or the paper's own numbers are in another
            order than the claim.
    """
    for claim in filter(_is_run, _claims()["claim"]):
        for column in claim["columns"]:
            for below in claim["below"]:
                yield _ordering(claim, column, below)


def unjudged(paper: str) -> list[dict[str, str]]:
    """Claims of a paper on which results/ allow no verdict, with the reason."""
    return [one for one in _claims()["unjudged"] if one["paper"] == paper]


def _ordering(claim: dict[str, Any], column: str, below: str) -> Ordering:
    experiment, table = RESULTS / claim["experiment"], claim.get("table", "mean")
    rows, others = (
        _table(experiment / "tables" / f"{name}.csv")
        for name in (table, claim.get("below_table", table))
    )
    scenario = column.removesuffix(", max over rounds on test")
    stated = (
        _published(rows[claim["above"]], scenario),
        _published(others[below], scenario),
    )
    lower, where = claim.get("lower", False), claim["where"]
    place = f"{where}, {scenario}" if len(rows[claim["above"]]) > 2 else where
    ordering = Ordering(
        paper=claim["paper"],
        where=place,
        quote=claim["quote"],
        above=claim["above"],
        below=(
            below if "below_table" not in claim else f"{below} ({claim['below_table']})"
        ),
        ours=_measured(rows[claim["above"]], column),
        theirs=_measured(others[below], column),
        published=(
            None if stated[0] is None or stated[1] is None else (stated[0], stated[1])
        ),
        seeds=_seeds(experiment / "report.md"),
        lower=lower,
    )
    if ordering.published:
        ours, theirs = (float(text.split()[0]) for text in ordering.published)
        if (ours >= theirs) if lower else (ours <= theirs):
            raise ValueError(
                f"{place}: {ordering.above} ({ours}) is not published above {below}"
                f" ({theirs})"
            )
    return ordering


def _published(row: dict[str, str], scenario: str) -> str | None:
    """The paper's figure for a row, as the table of one or of several scenarios has
    it.
    """
    name = f"{scenario}, published" if f"{scenario}, published" in row else "published"
    figure, deviation = row.get(name) or "-", row.get(f"{name} std")
    return None if figure == "-" else f"{figure} ± {deviation}" if deviation else figure


def _opponent(ordering: Ordering) -> str:
    return (
        str(ordering).replace(":", f" ({ordering.published[1]}):", 1)
        if ordering.published
        else str(ordering)
    )


def _measured(row: dict[str, str], column: str) -> Measured:
    """A cell "mean ± deviation", as reports of 0.1.0 wrote it, or two columns of
    numbers, rounded as the page shows.
    """
    text = (
        row[column]
        if " ± " in row[column]
        else f"{float(row[column]):.1f} ± {float(row[f'{column} std']):.1f}"
    )
    mean, deviation = text.split(" ± ")
    return Measured(
        float(mean),
        float(deviation),
        10.0 ** -min(len(mean.partition(".")[2]), 3),
        text,
    )


def _rounded(value: float, unit: float) -> str:
    digits = max(round(-math.log10(unit)), 0)
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no -0.0


def _cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _seeds(report: Path) -> int:
    found = re.search(r"seeds ([\d, ]+);", report.read_text())
    if found is None:
        raise ValueError(f"{report} does not name its seeds")
    return len(found[1].split(","))


@cache
def _claims() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(CLAIMS.read_text())


@cache
def _table(path: Path) -> dict[str, dict[str, str]]:
    """Row by name. What a method that was run again has in its own folder replaces what
    it had, in as many digits.
    """
    with path.open(newline="") as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    folder = path.parents[1]
    again = (
        folder.with_name(folder.name.removesuffix("-quick") + "-again-quick")
        / "tables"
        / path.name
    )
    if again.exists():
        for name, row in _table(again).items():
            if name in rows:
                rows[name] = {
                    column: _again(cell, row, column)
                    for column, cell in rows[name].items()
                }
    return rows


def _again(cell: str, row: dict[str, str], column: str) -> str:
    """A cell as the new row has it, where it has it, in the old one's digits."""
    if " ± " not in cell or f"{column} std" not in row:
        return cell
    digits = len(cell.split()[0].partition(".")[2])
    return f"{float(row[column]):.{digits}f} ± {float(row[f'{column} std']):.{digits}f}"


if __name__ == "__main__":
    main()
