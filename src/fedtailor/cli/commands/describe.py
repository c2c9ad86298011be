"""`fedtailor describe TABLE`: what the columns of a table hold, and where its clients
differ, by counts and sums.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedtailor._base.choice import require
from fedtailor._base.printable import markdown_text, say
from fedtailor.cli.options import parse
from fedtailor.cli.output import write_text
from fedtailor.data.tables import ENDINGS

if TYPE_CHECKING:
    from fedtailor.data.tables.description import Description

OUTPUTS = (".md", ".html", ".json")


@dataclass(frozen=True)
class Options:
    """Describe the columns of a table: missing cells, categories, quantiles, histograms,
    correlations, and which clients differ.
    """

    table: Annotated[Path, tyro.conf.Positional]
    """The table."""
    client: str | None = None
    """The column that names the client of a row; without it the table is one client's."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that are codes."""
    missing: tuple[str, ...] = ()
    """Further words for a missing cell; COLUMN=WORD for a word of one column."""
    fold_case: bool = False
    """Read text in lower case, with single spaces: BASEL is Basel."""
    separator: str | None = None
    """What stands between the cells of a line (default: recognised)."""
    decimal: Literal[".", ","] | None = None
    """The decimal sign (default: recognised)."""
    thousands: str | None = None
    """The thousands mark (default: recognised, where the decimal sign is)."""
    encoding: str | None = None
    """How the text is encoded (default: recognised)."""
    sheet: str | None = None
    """The sheet of an Excel file (default: the first that has the named columns)."""
    least: int = 1
    """Hide counts of fewer rows, as a client of a federation of machines hides those of
    fewer than 5 from others; 1 = none.
    """
    json: bool = False
    """Print one JSON object, with all counts, comparisons and pairs."""
    out: Path | None = None
    """Write a file instead: .md, .html or .json."""

    def __post_init__(self) -> None:
        require(
            self.least >= 1, f"--least is {self.least}; it must be a number of rows"
        )
        check_out(self.out)


def describe(arguments: list[str]) -> int:
    """Prints the description of a table."""
    from fedtailor.cli.advice import as_typed
    from fedtailor.data.tables.describing import describe_table

    options = parse(Options, arguments, "fedtailor describe")
    require(
        options.table.name.lower().endswith(ENDINGS),
        f"{options.table} is not a table ({', '.join(ENDINGS)})",
    )
    with as_typed():
        description, notes = describe_table(
            options.table,
            client=options.client,
            drop=options.drop,
            categories=options.categories,
            missing=options.missing,
            fold_case=options.fold_case,
            separator=options.separator,
            decimal=options.decimal,
            thousands=options.thousands,
            encoding=options.encoding,
            sheet=options.sheet,
            least=options.least,
        )
    show_description(
        description, options.table.name, notes, as_json=options.json, out=options.out
    )
    return 0


def check_out(out: Path | None) -> None:
    """Refuse a file of a kind that no description is written to."""
    require(
        out is None or out.suffix.lower() in OUTPUTS,
        f"--out is {out}; it must end in {', '.join(OUTPUTS)}",
    )


def show_description(
    description: "Description",
    name: str,
    notes: tuple[str, ...] = (),
    *,
    as_json: bool = False,
    out: Path | None = None,
) -> None:
    """Prints a description, or writes it to a file.

    Args:
        description: the description.
        name: of what it is.
        notes: further sentences.
        as_json: whether to print JSON.
        out: the file; None = the standard output.
    """
    from fedtailor._base.digests import finite
    from fedtailor.lab.report.description import (
        as_markdown,
        description_as_dict,
        description_page,
        description_tables,
        sentences,
    )
    from fedtailor.lab.report.page import write_page

    suffix = "" if out is None else out.suffix.lower()
    if as_json or suffix == ".json":
        content = finite({**description_as_dict(description), "notes": notes})
        write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", out)
    elif suffix == ".html" and out is not None:
        write_page(description_page(description, f"{name}: description"), out)
    elif suffix == ".md":
        further = "".join(f"\n- {markdown_text(note)}" for note in notes)
        write_text(as_markdown(description) + further, out)
    else:
        say(*sentences(description), *notes)
        for table in description_tables(description).values():
            say("")
            table.show()
    if out is not None:
        say(f"Written: {out}")
