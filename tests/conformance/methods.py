"""The table of docs/methods.md: `PYTHONPATH=src:tests python -m conformance.methods`
prints it.
"""

import re

import fedtailor.algorithms  # noqa: F401 (fills the registry)
from fedtailor.cli.commands.algorithms import GROUPS, fact_of, group
from fedtailor.protocol import Algorithm

COLUMNS = ("down", "up", "keeps", "sees", "validation", "unseen")


def methods_table() -> str:
    """What all methods say of themselves, a table for each group by what travels."""
    lines = []
    for heading in GROUPS["travels"]:
        lines += [
            f"### A client receives: {heading}",
            "",
            f"| method | source | {' | '.join(COLUMNS)} |",
            "|---" * 8 + "|",
        ]
        for name, kind in sorted(Algorithm.registry.items()):
            if group(kind.about, "travels") == heading:
                source = re.match(r".*?\b\d{4}\b", kind.about.paper)
                cells = (
                    name,
                    source[0] if source else "-",
                    *(fact_of(kind.about, column) for column in COLUMNS),
                )
                lines.append(f"| {' | '.join(cell or 'not used' for cell in cells)} |")
        lines.append("")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(methods_table(), end="")
