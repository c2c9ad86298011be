"""docs/reproduction.md and the pages behind it, from results/.

python benchmarks/reproduction.py --write    write them
python benchmarks/reproduction.py            say which are not up to date

docs/reproduction.md is written by hand but for its blocks, which begin with a comment:
"headlines PAPER", "sentences PAPER", or "table EXPERIMENT TABLE COLUMN". A page
docs/reproduction/PAPER.md holds every ordering of a paper, and what
benchmarks/reproduction-notes.md says of it; docs/reproduction/missing.md, what was not
run and what it would take.
"""

import argparse
import re
import tomllib
from collections.abc import Sequence, Set
from pathlib import Path

from orderings import (
    SMALLER,
    VERDICTS,
    Ordering,
    at_best_size,
    not_run,
    orderings,
    read_claims,
    unjudged,
    verdict_of,
    weakest,
)
from result_files import RESULTS, ROOT, read_tables

PAGE = ROOT / "docs" / "reproduction.md"
DETAILS = ROOT / "docs" / "reproduction"
BENCHMARKS = ROOT / "benchmarks"
NOTES = BENCHMARKS / "reproduction-notes.md"
QUEUE = BENCHMARKS / "evidence.toml"
WRITTEN = "<!-- Written by benchmarks/reproduction.py --write -->"
BLOCK = re.compile(
    r"(<!-- (?P<kind>headlines|sentences|table) (?P<what>[^>]*?) -->\n)"
    r".*?(<!-- end -->)",
    re.DOTALL,
)
WORDS = 8
"""Words of a sentence on the first page."""
NUMBER = re.compile(r"\{\{(?P<name>[^}]*)\}\}")
"""In notes: {{experiment / table / algorithm / column}}."""
TITLES = {
    "mestoukirdi-2022": "User-centric aggregation (Mestoukirdi et al. 2022)",
    "mansour-2020": "Three approaches (Mansour et al. 2020)",
    "chen-2022": "Self-FL (Chen et al. 2022)",
    "tang-2022": "Contextualized generalization (Tang et al. 2022)",
    "PFLlib": "PFLlib's leaderboard",
    "FedRep": "FedRep (Collins et al. 2021)",
    "FedProto": "FedProto (Tan et al. 2022)",
    "FedEM": "FedEM (Marfoq et al. 2021)",
    "kNN-Per": "kNN-Per (Marfoq et al. 2022)",
    "pFL-Bench": "pFL-Bench (Chen et al. 2022)",
}


def pages() -> dict[Path, str]:
    """Path -> text of every page, as results/ say."""
    found = {PAGE: filled(PAGE.read_text("utf-8"))}
    for paper in TITLES:
        found[DETAILS / f"{paper.lower()}.md"] = details(paper)
    found[DETAILS / "missing.md"] = missing()
    return found


def filled(page: str) -> str:
    """A page with its blocks as results/ say."""

    def block(match: re.Match[str]) -> str:
        kind, what = match["kind"], match["what"]
        make = {"headlines": headlines, "sentences": sentences, "table": table}[kind]
        return f"{match[1]}{make(what)}\n{match[4]}"

    return BLOCK.sub(block, page)


def headlines(paper: str) -> str:
    """What a paper says first, under its own settings and under others."""
    lines = []
    for headline in read_claims()["headline"]:
        if headline["paper"] != paper:
            continue
        quote = headline["quote"]
        groups: dict[tuple[str, str, str], list[Ordering]] = {}
        for one in _of(paper):
            if one.quote == quote:
                groups.setdefault((one.column, one.size, one.setting), []).append(one)
        lines += [f'**{headline["title"]}** ("{_short(quote)}")', ""]
        rows = []
        for column, size, setting in sorted(groups, key=_order):
            members = groups[column, size, setting]
            rows.append(
                (
                    column,
                    setting or "tuned",
                    _verdict(members),
                    _comparison(weakest(members), whole=False),
                    _at_best(members, whole=False),
                )
            )
        header = ("clients", "n_k, probe", "verdict", "weakest: ahead of", "best round")
        lines += _table(header, rows)
        missing = _missing(quote, {(column, setting) for column, _, setting in groups})
        if missing:
            lines += ["", f"Not run yet: {missing}."]
        lines.append("")
    return "\n".join(lines).rstrip()


def _order(group: tuple[str, str, str]) -> tuple[bool, bool, bool, bool]:
    """Rotated before relabelled, published sizes and settings first."""
    column, size, setting = group
    others = "other seeds" in setting
    return column == "permuted", size == SMALLER, others, "paper" not in setting


def _missing(quote: str, run: Set[tuple[str, str]]) -> str:
    """Settings of a headline that were not run, by column."""
    missing: dict[str, dict[str, None]] = {}
    for claim in read_claims()["claim"]:
        column, setting = claim["columns"][0], claim.get("setting")
        if claim["quote"] == quote and setting and (column, setting) not in run:
            # A setting may have several claims, by what it is compared with.
            missing.setdefault(column, {})[setting] = None
    return "; ".join(f"{column}: {', '.join(of)}" for column, of in missing.items())


def sentences(papers: str) -> str:
    """A row for each sentence of papers that is not a headline."""
    of_headlines = {one["quote"] for one in read_claims()["headline"]}
    groups: dict[tuple[str, str], list[Ordering]] = {}
    names = papers.split()
    for one in orderings():
        if one.paper in names and not one.in_table and one.quote not in of_headlines:
            groups.setdefault((one.paper, one.quote), []).append(one)
    rows = []
    for (paper, quote), members in groups.items():
        found = at_best_size(members)
        said = f'"{_short(quote)}"'
        if len(names) > 1:
            said = f"[{paper}](reproduction/{paper.lower()}.md): {said}"
        comparison = _comparison(weakest(found))
        rows.append((said, _verdict(found), comparison, _at_best(found)))
    header = ("in the paper's words", "verdict", "the weakest comparison", "best round")
    return "\n".join(_table(header, rows))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, without its last column where that has nothing but "-"."""
    if all(row[-1] == "-" for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def table(what: str) -> str:
    """A column of a table of results/, beside what is published."""
    experiment, name, column = what.split(maxsplit=2)
    lines = ["| method | here | published |", "| --- | ---: | ---: |"]
    for algorithm, row in read_tables(RESULTS / experiment / "tables.csv")[
        name
    ].items():
        here = f"{float(row[column]):.1f} ± {float(row[f'{column} std']):.1f}"
        lines.append(f"| {algorithm} | {here} | {row.get('published', '-')} |")
    return "\n".join(lines)


def missing() -> str:
    """The page of what the queue has that results/ do not, and what it would take."""
    entries = tomllib.loads(QUEUE.read_text("utf-8"))["experiment"]
    words = {
        "plan": "`--plan`",
        "rounds": "some rounds",
        "guess": "a guess",
    }
    lines = [
        WRITTEN,
        "",
        "# What was not run",
        "",
        "*For whom: you look for a published table that is not among the results.*",
        "`python benchmarks/evidence.py --only NAME` runs one of these. Core hours are of"
        " an AMD EPYC",
        "whose two cores had other work, too.",
        "",
        "| what | name | core hours | measured by |",
        "| --- | --- | ---: | --- |",
    ]
    for entry in entries:
        if not (RESULTS / entry["name"]).is_dir():
            lines.append(
                f"| {entry['fills']} | `{entry['name']}` | {entry['core_hours']:g} |"
                f" {words[entry['by']]} |"
            )
    return "\n".join([*lines, ""])


def details(paper: str) -> str:
    """The page of a paper: every ordering, what is not judged, notes."""
    found = _of(paper)
    lines = [
        WRITTEN,
        f"# {TITLES[paper]}: every ordering",
        "",
        "What the verdicts mean: [What is reproduced](../reproduction.md).",
        "Differences are in the table's units; a positive one is in favour of the",
        "method that is published to be better.",
    ]
    if found:
        counts = ", ".join(
            f"{verdict} {sum(one.verdict == verdict for one in found)}"
            for verdict in VERDICTS
        )
        lines += ["", f"{len(found)} published orderings: {counts}."]
    groups: dict[str, list[Ordering]] = {}
    for one in found:
        groups.setdefault(one.quote, []).append(one)
    for quote, members in groups.items():
        lines += [
            "",
            f'## "{" ".join(quote.split())}"',
            "",
            "| where | size | better, as published | here | than | here | difference | "
            "verdict |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_row(one) for one in members]
    commands = not_run(paper)
    if commands:
        lines += ["", "## Not run yet", ""]
        lines += [f"* `{command}`" for command in commands]
    left_out = unjudged(paper)
    if left_out:
        lines += ["", "## Not judged", ""]
        lines += [
            f'* {one["where"]}, "{_cell(one["quote"])}": {one["why"]}.'
            for one in left_out
        ]
    notes = _notes(paper)
    if notes:
        lines += ["", "## Notes", "", notes]
    return "\n".join(lines) + "\n"


def _of(paper: str) -> list[Ordering]:
    return [one for one in orderings() if one.paper == paper]


def _row(one: Ordering) -> str:
    where = f"{one.where} ({one.setting})" if one.setting else one.where
    ours, theirs = one.ours.text, one.theirs.text
    if one.published:
        ours = f"{ours} (published {one.published[0]})"
        theirs = f"{theirs} (published {one.published[1]})"
    verdict = one.verdict
    if one.margin:
        verdict += f", with a margin of {one.margin}"
    if one.at_best and one.at_best.verdict != one.verdict:
        verdict += f"; at the best round {one.at_best.verdict}: {one.at_best.gain}"
    cells = (where, one.size, one.above, ours, one.below, theirs, one.gain, verdict)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _comparison(one: Ordering, *, whole: bool = True) -> str:
    """A difference with its interval; `whole` names both methods and the column."""
    names = [name.removeprefix("UCFL, ") for name in (one.above, one.below)]
    notes = [one.column] if whole else []
    notes += ["smaller"] if one.size == SMALLER else []
    text = f"{' - '.join(names) if whole else names[1]}: {one.gain}"
    return f"{text} ({', '.join(notes)})" if notes else text


def _at_best(found: Sequence[Ordering], *, whole: bool = True) -> str:
    """The verdict at the best round by validation data; "-" where it is not known of all
    comparisons.
    """
    best = [one.at_best for one in found if one.at_best]
    if len(best) < len(found):
        return "-"
    if verdict_of(best) == verdict_of(found):
        return "same"
    comparison = _comparison(weakest(best), whole=whole)
    return f"{_verdict(best)}; {comparison}"


def _short(quote: str) -> str:
    """The first words of a sentence; all of it stands on the paper's page."""
    words = quote.split()
    return " ".join(words[:WORDS]) + (" ..." if len(words) > WORDS else "")


def _verdict(found: Sequence[Ordering]) -> str:
    """The verdict, and how many of several orderings are a yes."""
    verdict = f"**{verdict_of(found)}**"
    if len(found) > 1:
        verdict += f", {sum(one.verdict == 'yes' for one in found)} of {len(found)}"
    return verdict


def _notes(paper: str) -> str:
    """The notes on a paper, with their numbers from results/."""
    parts = re.split(r"^# (.+)\n", NOTES.read_text("utf-8"), flags=re.MULTILINE)
    of = dict(zip(parts[1::2], parts[2::2], strict=True))
    return NUMBER.sub(_number, of.get(paper, "")).strip()


def _number(match: re.Match[str]) -> str:
    experiment, name, algorithm, column = (
        part.strip() for part in match["name"].split("/")
    )
    row = read_tables(RESULTS / experiment / "tables.csv")[name][algorithm]
    if " ± " in row[column] or f"{column} std" not in row:
        return row[column]
    return f"{float(row[column]):.1f} ± {float(row[f'{column} std']):.1f}"


def _cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    old = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in old:
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages()[path], "utf-8")
        print(f"{path.relative_to(ROOT)}: {'written' if write else 'not up to date'}")
    return 0 if write or not old else 1


if __name__ == "__main__":
    raise SystemExit(main())
