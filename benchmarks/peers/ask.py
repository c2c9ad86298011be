"""Ask a library for its properties: one JSON file.

python benchmarks/peers/ask.py ours
python benchmarks/peers/ask.py pfllib --source CHECKOUT --commit COMMIT
python benchmarks/peers/ask.py flower

Each in an environment that has the library. Writes benchmarks/peers/results/NAME.json;
page.py makes docs/who-is-right.md of these files.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", help="a module of this folder")
    parser.add_argument("--source", type=Path, help="a checkout of the library")
    parser.add_argument("--commit", default="", help="of the checkout")
    parser.add_argument("--only", default="", help="one property; others are kept")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(options.library)
    properties = importlib.import_module("properties")
    source = options.source.resolve() if options.source else None
    library = module.Library(source, options.commit)
    command = f"python benchmarks/peers/ask.py {options.library}"
    if source:
        command += f" --source CHECKOUT --commit {options.commit}"
    path = HERE / "results" / f"{options.library}.json"
    rows = properties.ask(library, options.only)
    if options.only:
        new = {(row["property"], row["method"]): row for row in rows}
        old = json.loads(path.read_text("utf-8"))["rows"]
        rows = [new.get((row["property"], row["method"]), row) for row in old]
    found = {
        "library": library.name,
        "version": library.version,
        "command": command,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "numpy", "jax")},
        "rows": rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for row in found["rows"]:
        said = row.get("cannot") or (
            "holds" if row["holds"] else f"off by {row['error']}"
        )
        print(f"{row['property']:30} {row['method']:10} {said} {row.get('error', '')}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main()
