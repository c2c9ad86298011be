"""The gallery: a page for each file in examples/, with what it printed and drew.

`make gallery` runs all examples and records them in docs/gallery; the tests run them
again, and compare what they print with what is recorded.
"""

import ast
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES, RECORDED = ROOT / "examples", ROOT / "docs" / "gallery"
ORDER = (
    "hospitals",
    "diagnose_first",
    "digits_turned",
    "unseen_clients",
    "own_method",
    "private_training",
    "pytorch_cnn",
    "shakespeare_lstm",
    "shakespeare_transformer",
    "wearables",
    "five_processes",
    "own_service",
)
"""The examples in the order of the gallery; others come last."""


@dataclass(frozen=True)
class Example:
    """A file of examples/."""

    name: str
    title: str
    text: str
    """What its docstring says below the title."""
    source: str

    @property
    def figure(self) -> Path:
        return RECORDED / f"{self.name}.png"

    @property
    def output(self) -> Path:
        return RECORDED / f"{self.name}.txt"


def examples() -> list[Example]:
    """All examples, in the order of the gallery."""
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    ordered = [name for name in ORDER if name in names]
    return [_read(name) for name in dict.fromkeys([*ordered, *names])]


def _read(name: str) -> Example:
    source = (EXAMPLES / f"{name}.py").read_text()
    doc = ast.get_docstring(ast.parse(source)) or ""
    title, _, text = doc.partition("\n\n")
    return Example(name, title.rstrip("."), text, source)


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    found = {f"gallery/{example.name}": page(example) for example in examples()}
    rows = [
        f"* [{example.title}]({example.name}.md). {example.text.split('. ')[0].rstrip('.')}."
        for example in examples()
    ]
    names = "\n".join(example.name for example in examples())
    index = "\n".join(
        [
            "# Gallery",
            "",
            (
                "*For whom: you would rather read a program than a page.* Each example"
                " is one file of `examples/`, takes less than a minute on two cores (the"
                " transformer some minutes), and is run by the tests."
                " `python examples/NAME.py` runs it."
            ),
            "",
            *(" ".join(row.split()) for row in rows),
            "",
            f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{names}\n```",
            "",
        ]
    )
    return found | {"gallery/index": index}


def page(example: Example) -> str:
    """The page of one example."""
    parts = [
        f"# {example.title}",
        f"*For whom: you look for an example to begin with.* {example.text}",
    ]
    if example.figure.exists():
        parts.append(f"![{example.title}](../../gallery/{example.figure.name})")
    if example.output.exists():
        printed = example.output.read_text().rstrip()
        parts += ["It prints", f"```text\n{printed}\n```"]
    parts += [f"`examples/{example.name}.py`:", f"```python\n{example.source}```"]
    return "\n\n".join(parts) + "\n"


def run(name: str, folder: Path) -> str:
    """Runs an example in a folder.

    Returns:
        What it printed; a line that begins with "skipped" if something is not installed.

    Raises:
        RuntimeError: it failed.
    """
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "MPLBACKEND": "agg",
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "skipped: " in done.stderr:
        return done.stderr.strip()
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    return done.stdout


def record(*names: str) -> None:
    """Runs examples, and keeps what they print and draw."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            printed = run(name, Path(folder))
            print(f"{name}: {len(printed.splitlines())} lines")
            if printed.startswith("skipped"):
                continue
            (RECORDED / f"{name}.txt").write_text(printed)
            figure = Path(folder) / f"{name}.png"
            if figure.exists():
                (RECORDED / figure.name).write_bytes(figure.read_bytes())


if __name__ == "__main__":
    record(*(sys.argv[1:] or [example.name for example in examples()]))
