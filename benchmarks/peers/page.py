"""docs/who-is-right.md from benchmarks/peers/results.

python benchmarks/peers/page.py --write    write it
python benchmarks/peers/page.py            say whether it is up to date
"""

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "who-is-right.md"
OURS = "fedtailor"
DIVERGED = 1e3
INTRODUCTION = """<!-- Written by benchmarks/peers/page.py --write -->
# Who is right

*For whom: you compare libraries, or doubt a number.*

Libraries of federated learning give different numbers for one method. Which is right?
Some properties of a method need no opinion: with a single client, for example, FedAvg
must be plain SGD. One script asks fedtailor and seven other libraries for
such properties, on least squares, where the exact answer is known.

In the table, a property **holds**, or the library is **off by** a number, or the
library has no such method or cannot be asked (-). The number is relative to how far
training moves the model: 0.6 is 60 % of the way. "Diverges" means that models grow
without bound.

A number says what a library computes, not whether it is good. A library may have a
reason: another published variant, or a default that its documentation names. All are
asked with the same settings, not with their own defaults. Coefficients that a method
learns (APFL's share) are held fixed.
"""
NOT_INSTALLED = (
    "FederatedScope 0.3.0 could not be installed together with these: it asks for numpy below"
    " 1.23, scikit-learn 1.0.2 and protobuf 3.19.4, for which there are no packages for"
    " Python 3.11. BlazeFL asks for Python 3.13; its checkout runs with 3.11."
)
EXPLANATIONS = {
    "one client is plain SGD": (
        "with one client, all rounds together are as many steps of SGD."
    ),
    "the order of clients": "the same clients in reversed order give the same models.",
    "a client in two halves": (
        "two clients with half of its samples each give the same model (one local step)."
    ),
    "stays at the common optimum": (
        "if one model is best for all clients and training starts there, nothing moves."
    ),
    "reaches the optimum of all": (
        "clients want different models, and take several local steps; after many rounds"
        " the model is at the minimum of the mean loss. The number is relative to the"
        " distance of FedAvg, which does not get there."
    ),
    "personal optimum": (
        "at the end a client's model v minimises f_i(v) + lambda/2 |v - w|^2, with its"
        " own loss f_i and the shared model w."
    ),
    "coupling off": (
        "mu = 0 of FedProx is FedAvg; lambda = 0 of Ditto and a share of 1 for APFL's"
        " own model are training alone."
    ),
    "full coupling": "APFL with a share of 0 for the own model is FedAvg.",
    "coupling acts": (
        "the coefficient has an effect: personal models with 0.5 differ from those with"
        " 0.25."
    ),
    "gradient of the mixture": (
        "APFL's own model moves by its share times the gradient at the mixture, two"
        " rounds of one step."
    ),
    "step after an inner step": (
        "Per-FedAvg, first order: the step after the inner step starts at w."
    ),
    "buffers are the server's": (
        "after a round, the server's running means of batch normalisation are the"
        " clients' average, and every client receives them."
    ),
}


def page() -> str:
    """The whole page."""
    found = _results()
    names = [one["library"] for one in found]
    cells = {
        (one["library"], row["property"], row["method"]): row
        for one in found
        for row in one["rows"]
    }
    lines = [INTRODUCTION, "## Properties", ""]
    lines += [f"* **{name}**: {text}" for name, text in EXPLANATIONS.items()]
    lines += ["", "## Who has them", "", "<!-- matrix -->", ""]
    lines.append(f"| property | method | {' | '.join(names)} |")
    lines.append(f"| --- | --- |{' ---: |' * len(names)}")
    asked = dict.fromkeys((key[1], key[2]) for key in cells)
    for name, method in asked:
        row = [_cell(cells.get((library, name, method))) for library in names]
        lines.append(f"| {name} | {method} | {' | '.join(row)} |")
    lines += ["", "<!-- end of matrix -->", "", "## What was asked, and how", ""]
    lines.append("| library | version or commit | command | packages |")
    lines.append("| --- | --- | --- | --- |")
    for one in found:
        packages = ", ".join(
            f"{name} {number}" for name, number in one["packages"].items() if number
        )
        lines.append(
            f"| {one['library']} | {one['version']} | `{one['command']}` | Python"
            f" {one['python']}, {packages} |"
        )
    reasons = {
        (row["cannot"], one["library"])
        for one in found
        for row in one["rows"]
        if "cannot" in row and row["cannot"] != "the library has no such method"
    }
    if reasons:
        lines += ["", "What cannot be asked (-), and why:", ""]
        lines += [f"* {library}: {reason}." for reason, library in sorted(reasons)]
    lines += ["", NOT_INSTALLED]
    history = tomllib.loads((HERE / "history.toml").read_text("utf-8"))
    lines += [
        "",
        "## Why",
        "",
        "What the code does where a property does not hold:",
        "",
    ]
    lines += [f"* {one['library']}: {one['what']}" for one in history["read"]]
    lines += [
        "",
        "## History",
        "",
        "Errors in methods that were reported in public, with their state in November 2026.",
        "",
        "| library | what | thread | state |",
        "| --- | --- | --- | --- |",
    ]
    for one in history["thread"]:
        home = f"https://github.com/{one['repository']}"
        library = f"[{one['library']}]({home})"
        # GitHub leads from the address of an issue to a pull request of this number.
        thread = re.sub(r"#(\d+)", rf"[#\1]({home}/issues/\1)", one["thread"])
        cells_ = (library, one["what"], thread, one["state"])
        lines.append(f"| {' | '.join(cells_)} |")
    return "\n".join(lines) + "\n"


def _results() -> list[dict[str, Any]]:
    """All libraries' results, ours first."""
    files = sorted((HERE / "results").glob("*.json"))
    found = [json.loads(path.read_text("utf-8")) for path in files]
    return sorted(found, key=lambda one: (one["library"] != OURS, one["library"]))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "cannot" in row:
        return "-"
    if row["holds"]:
        return "holds"
    # Nothing that converges is so far away.
    if row["error"] is None or row["error"] > DIVERGED:
        return "diverges"
    return f"off by {row['error']:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(page(), "utf-8")
        return 0
    if PAGE.read_text("utf-8") != page():
        print(f"{PAGE.name} is not up to date; run benchmarks/peers/page.py --write")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
