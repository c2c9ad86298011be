"""The tables of docs/speed.md, experiments.md and byzantine.md from benchmarks/measured.

python benchmarks/speed_tables.py --write    write them into the pages
python benchmarks/speed_tables.py            say whether they are up to date

A file holds one table with the command, machine, versions, commit and load of its
measurement. `RECORD=1 python benchmarks/NAME.py` writes one. In a page, the table stands
between the comments <!-- measured NAME --> and <!-- end of measured NAME -->.
"""

import argparse
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
MEASURED = HERE / "measured"


def table(name: str) -> str:
    """A measured table as Markdown, with what is known of its measurement."""
    found = json.loads((MEASURED / f"{name}.json").read_text("utf-8"))
    columns = found["columns"]
    rows = [columns, ["---"] * len(columns), *found["rows"]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def written(page: str) -> str:
    """A page with its tables as the files have them."""

    def of(found: re.Match[str]) -> str:
        name = found["name"]
        begin, end = f"<!-- measured {name} -->", f"<!-- end of measured {name} -->"
        return f"{begin}\n\n{table(name)}\n{end}"

    return re.sub(
        r"<!-- measured (?P<name>[\w-]+) -->\n.*?<!-- end of measured (?P=name) -->",
        of,
        page,
        flags=re.DOTALL,
    )


def pages() -> list[Path]:
    """The pages about speed, about several processes, and about Byzantine clients."""
    return [DOCS / name for name in ("speed.md", "experiments.md", "byzantine.md")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the pages")
    write, stale = parser.parse_args().write, []
    for page in pages():
        text = page.read_text("utf-8")
        if written(text) != text:
            stale.append(page.name)
            if write:
                page.write_text(written(text), "utf-8")
    if stale and not write:
        print(f"{', '.join(stale)}: run python benchmarks/speed_tables.py --write")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
