"""The files of results/: one CSV and one page an experiment.

python benchmarks/result_files.py --pack     tables/ and figures/ of a report become tables.csv
python benchmarks/result_files.py --check    says what is in results/ beside that

`fedtailor report RESULTS --out results --compact` writes a folder as it belongs here;
--pack makes one of a folder that was written without --compact. LaTeX, SVG and PNG
files are not kept: `fedtailor report` makes them from the runs.
"""

import argparse
import csv
import re
import shutil
from functools import cache
from pathlib import Path

from fedtailor.lab.report.document import REPORT_FILE, TABLES_FILE
from fedtailor.lab.results.tables import TABLE_NAME, stacked_columns

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
KEPT = {REPORT_FILE, TABLES_FILE, "evidence.json"}
"""Names of the files of an experiment."""
FIGURE = re.compile(r"\n*!\[[^\]]*\]\(figures/[^)]*\)\n?")

Row = dict[str, str]


@cache
def read_tables(path: Path) -> dict[str, dict[str, Row]]:
    """The tables of an experiment.

    Args:
        path: of its tables.csv.

    Returns:
        Name of the table -> algorithm -> column -> text. Tables without a column
        "algorithm" are left out.
    """
    tables: dict[str, dict[str, Row]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row.get("algorithm"):
                kept = {column: text for column, text in row.items() if text}
                tables.setdefault(row[TABLE_NAME], {})[row["algorithm"]] = kept
    return tables


def pack(folder: Path) -> None:
    """Turn tables/ and figures/ of a folder into tables.csv."""
    tables = folder / "tables"
    if tables.is_dir():
        columns_of = {
            path.stem: _columns(path) for path in sorted(tables.glob("*.csv"))
        }
        text = stacked_columns(columns_of)
        (folder / TABLES_FILE).write_text(text, encoding="utf-8")
        shutil.rmtree(tables)
    report = folder / REPORT_FILE
    page = FIGURE.sub("\n", report.read_text("utf-8")).rstrip() + "\n"
    report.write_text(page, "utf-8")
    shutil.rmtree(folder / "figures", ignore_errors=True)


def strays() -> list[str]:
    """Files of results/ that do not belong there."""
    return [
        str(path.relative_to(ROOT))
        for path in sorted(RESULTS.rglob("*"))
        if path.is_file()
        and path not in (RESULTS / "README.md", RESULTS / "demo.txt")
        and (path.parent.parent != RESULTS or path.name not in KEPT)
    ]


def _columns(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return {name: [row[number] for row in rows] for number, name in enumerate(header)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.pack:
        for report in sorted(RESULTS.glob(f"*/{REPORT_FILE}")):
            pack(report.parent)
    found = strays() if options.check else []
    for path in found:
        print(f"{path} does not belong there; run benchmarks/result_files.py --pack")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
