"""Does a smaller suite catch what a larger one does? One-line changes, tried on both.

    python benchmarks/mutations.py --count 60 --out /tmp/mutants
    python benchmarks/mutations.py --count 20 --under algorithms --out /tmp/methods

Draws changes of operators, comparisons and numbers in src/ from a seed, makes each in a
copy of the checkout, and runs the tests that import the changed module, in stages: what
`make test` runs if it does not know what was changed, what it runs as it does know, what
CI runs, and everything but federations in processes. A stage runs only if those before it
passed, and begins with the test files that are named like the module. Changes come
before stages: what a stage lets pass waits until it has seen all of them. So
`--until covering`, which takes minutes a change, can come first. A line a stage is
written to `OUT`/mutants.jsonl, and a run that was ended goes on there.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = {"SHAPES": "1"}
# name -> (environment, mark expression)
STAGES = {
    "covering": ({"GIT_DIR": "/nowhere"}, "quick"),
    "make test": ({}, "quick"),
    "CI": (CHECKED, "not nightly"),
    "everything": (CHECKED, ""),
}
COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.In: ("in", "not in"),
}
COMPUTED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}


def changes(path):
    """[(line, column, old, new)] of a file; lines from 0, columns in bytes."""
    source = path.read_bytes()
    lines = source.splitlines()
    tree = ast.parse(source)
    typed = _annotations(tree)
    found = []

    def between(left, right, old, new):
        if left.end_lineno != right.lineno:
            return
        line = left.end_lineno - 1
        gap = lines[line][left.end_col_offset : right.col_offset]
        place = gap.find(old.encode())
        if place >= 0:
            found.append((line, left.end_col_offset + place, old, new))

    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            between(node.left, node.right, *COMPUTED[type(node.op)])
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            between(node.left, node.comparators[0], *COMPARED[type(node.ops[0])])
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            line, start, end = node.lineno - 1, node.col_offset, node.end_col_offset
            old = lines[line][start:end].decode()
            found.append((line, start, old, repr(node.value + 1)))
    return found


def _annotations(tree):
    """The ids of all nodes in annotations, which no test need notice."""
    roots = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            roots.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            roots.append(node.returns)
    return {id(node) for root in roots for node in ast.walk(root)}


def draw(under, count, seed):
    """`count` changes (path below ROOT, change), every changeable place as likely."""
    source = ROOT / "src" / "fedtailor" / under
    every = [
        (str(path.relative_to(ROOT)), change)
        for path in sorted(source.rglob("*.py"))
        for change in changes(path)
    ]
    return random.Random(seed).sample(every, count)


def importers(path):
    """The test files that import the module at `path` or what it defines, by name, and
    those of the folder of its package; for a method, the tests of every method besides.
    """
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    module = module.removesuffix(".__init__")
    wanted = {module}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            package = module
            while "." in package:
                package = package.rpartition(".")[0]
                wanted.add(f"{package}.{node.name}")
    found = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        if names & wanted:
            found.append(str(file.relative_to(ROOT)))
    # tests of a folder of the same name use the package through `fedtailor` itself
    mirror = ROOT / "tests" / module.split(".")[1]
    if mirror.is_dir():
        found += [str(one.relative_to(ROOT)) for one in mirror.rglob("test_*.py")]
    if ".algorithms." in module:
        found.append("tests/conformance/test_every_algorithm.py")
    return sorted(set(found))


def failing(folder, path, change, stage, timeout):
    """The first test of a stage that fails with the change in the copy at `folder`; ""
    if none does.
    """
    line, column, old, new = change
    file, tests = folder / path, importers(path)
    original = file.read_bytes()
    lines = original.splitlines(keepends=True)
    text = lines[line]
    assert text[column:].startswith(old.encode())
    lines[line] = text[:column] + new.encode() + text[column + len(old) :]
    file.write_bytes(b"".join(lines))
    environment, marks = STAGES[stage]
    stem = Path(path).stem
    tests.sort(key=lambda test: not Path(test).stem.startswith(f"test_{stem}"))
    try:
        return run_tests(folder, tests, environment, marks, timeout)
    finally:
        file.write_bytes(original)


def run_tests(folder, tests, environment, marks, timeout):
    """The first failing test, or an empty string."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, *tests]
    paths = {"PYTHONPATH": os.pathsep.join([f"{folder}/src", f"{folder}/tests"])}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment, **paths},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return "longer than the time limit"
    if done.returncode in (0, 5):  # all passed, or there is no such test
        return ""
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    return failed[0] if failed else done.stdout[-300:]


def copy(folder):
    """A copy of the checkout in a repository with two commits: tests that ask git what
    was changed find the changed file alone.
    """
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    pack = ["tar", "--create", "--null", "--files-from=-"]
    archive = subprocess.run(pack, cwd=ROOT, input=files, capture_output=True).stdout
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive, check=True)
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    for arguments in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "--all"],
        [*author, "commit", "--quiet", "--message", "as it is"],
        [*author, "commit", "--quiet", "--allow-empty", "--message", "again"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="", help="a folder of src/fedtailor")
    parser.add_argument("--until", choices=STAGES, default="everything")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a stage")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "mutants.jsonl"
    lines = record.read_text().splitlines() if record.exists() else []
    known = {(one["change"], one["stage"]): one for one in map(json.loads, lines)}
    drawn = draw(options.under, options.count, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder))
        left = list(range(len(drawn)))
        for stage in STAGES:
            for number in left:
                if (number, stage) in known:
                    continue
                path, change = drawn[number]
                test = failing(Path(folder), path, change, stage, options.timeout)
                line, _, old, new = change
                entry = {"change": number, "stage": stage, "test": test}
                entry |= {"file": path, "line": line + 1, "old": old, "new": new}
                known[number, stage] = entry
                with record.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                print(json.dumps(entry), flush=True)
            left = [number for number in left if not known[number, stage]["test"]]
            print(f"{stage}: {len(drawn) - len(left)} of {len(drawn)}", flush=True)
            if stage == options.until:
                return


if __name__ == "__main__":
    main()
