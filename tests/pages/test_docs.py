"""The Python code of the README and of docs/ runs as it stands there, and their
generated tables are up to date.
"""

import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import fedtailor
import fedtailor as ft
from conformance.examples import EXAMPLES, OPT_OUTS, opt_outs_table
from fedtailor.models.metrics import Metric
from fedtailor.protocol import Algorithm
from fedtailor.testing import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = {
    page.name: page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
RUN = {
    "boosting.md": 1,
    "README.md": 1,
    "index.md": 1,
    "own-data.md": 4,
    "partition-data.md": 4,
    "write-an-algorithm.md": 3,
    "asynchronous.md": 1,
    "byzantine.md": 1,
    "networks.md": 2,
    "models.md": 8,
    "models-in-use.md": 1,
    "regression.md": 2,
    "which-method.md": 1,
    "experiments.md": 2,
    "first-experiment.md": 3,
    "series.md": 1,
    "survival.md": 1,
    "limits.md": 1,
}
"""Page -> how many blocks of Python the tests below run. A page that gains one is to be
run, too.
"""

pytestmark = pytest.mark.skipif(
    len(PAGES) < 2, reason="docs are in the repository only, not in its archives"
)


def blocks(page, language="python"):
    """Code blocks of a page in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$",
        PAGES[page].read_text(),
        re.DOTALL | re.MULTILINE,
    )


def execute(page, namespace=None, first=0, end=None):
    """Run a page's blocks, or those from `first` to before `end`, one after another, as
    a reader would, in the current directory.
    """
    names = {"__name__": "docs"} | (namespace or {})
    for block in blocks(page)[first:end]:
        exec(compile(block, page, "exec"), names)
    return names


def section(page, name):
    """The text between two comments."""
    return re.search(
        rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->",
        PAGES[page].read_text(),
        re.DOTALL,
    )[1]


def test_every_block_of_python_is_run():
    assert {page: len(blocks(page)) for page in PAGES if blocks(page)} == RUN


PARTS, TRAINED = 2, 6
"""The blocks of models.md that need PyTorch are those from PARTS to before TRAINED."""


@pytest.mark.slow
def test_the_readme(tmp_path, monkeypatch, capsys):
    """Other processors add in another order, which moves last digits."""
    monkeypatch.chdir(tmp_path)
    found = execute("README.md")
    printed, shown = capsys.readouterr().out, blocks("README.md", "text")[0]
    assert re.findall("[a-z]+", printed) == re.findall("[a-z]+", shown)
    numbers = [re.findall(r"0\.\d+", text) for text in (printed, shown)]
    for ours, theirs in zip(*numbers, strict=True):
        assert float(ours) == pytest.approx(float(theirs), abs=0.06)
    test = found["federation"].client("client-03").test
    assert len(found["own"].predict(test.x)) == len(test.x) > 10


def test_the_front_page_shows_the_program_of_the_readme():
    for language in ("python", "text"):
        assert blocks("index.md", language) == blocks("README.md", language)


def test_the_front_page_quotes_what_is_printed():
    """The decision of the gallery, and the demo's figures where labels are permuted."""
    front = " ".join(PAGES["index.md"].read_text().split())
    printed = (ROOT / "docs" / "gallery" / "hospitals.txt").read_text()
    quoted = re.search(r"says of the four hospitals: \*(.*?)\*", front)[1]
    assert quoted in " ".join(printed.split())
    table = PAGES["first-experiment.md"].read_text().partition("digits-permuted, 3")[2]
    rows = {"with FedAvg": "FedAvg", "alone": "Local", "with UCFL": "UCFL, auto"}
    figures = re.findall(rf"([\d.]+ ± [\d.]+) % ({'|'.join(rows)})", front)
    assert {how for _, how in figures} == set(rows)
    for figure, how in figures:
        assert re.search(rf"^{rows[how]} +{figure} ", table, re.MULTILINE), how


@pytest.mark.parametrize("page", ["README.md", "index.md"])
def test_the_first_pages_count_methods(page):
    counted = re.findall(r"\b(\d+) methods\b", PAGES[page].read_text())
    assert set(map(int, counted)) == {len(Algorithm.registry)}


def test_the_readme_fits_on_two_screens():
    lines = PAGES["README.md"].read_text().splitlines()
    assert len(lines) <= 100
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120


def test_theory(capsys):
    execute("limits.md")
    assert capsys.readouterr().out == blocks("limits.md", "text")[0]


def test_regression(capsys):
    execute("regression.md", end=1)
    assert capsys.readouterr().out == blocks("regression.md", "text")[1]


@pytest.mark.slow
def test_series(capsys):
    rng = np.random.default_rng(0)
    parts = [
        pl.DataFrame(
            {
                "person": f"p{person}",
                "t": 10_000.0 * kind + np.arange(900),
                "a": rng.normal(kind, 1, 900),
                "activity": ["sit", "walk"][kind],
            }
        )
        for person in range(2)
        for kind in range(2)
    ]
    found = execute("series.md", {"ft": fedtailor, "frame": pl.concat(parts)})
    assert found["table"].x.shape[1:] == (128, 1)
    assert found["run"].summary().mean > 0.8


def test_survival(capsys):
    rng = np.random.default_rng(0)
    hospitals = [
        (rng.normal(size=(50, 3)), rng.exponential(1, 50), rng.random(50) < 0.7)
        for _ in range(2)
    ]
    found = execute("survival.md", {"hospitals": hospitals})
    assert found["fit"].coefficients.shape == (3,)


def test_models_that_come_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = execute("models.md", first=TRAINED)
    whole = found["whole"]
    x = found["digits"].client(0).test.x
    own = found["run"].personal(0)
    np.testing.assert_allclose(whole.outputs(x), own.outputs(x), rtol=0, atol=1e-4)
    assert own.model.size < whole.model.size
    assert (tmp_path / "base.safetensors").exists()


def test_byzantine(capsys):
    found = execute("byzantine.md")
    assert found["attackers"].sum() == 4
    assert found["opened"].test.sizes.sum() < found["honest"].test.sizes.sum()


@pytest.mark.slow
def test_late(capsys):
    """The times are those of the page; accuracies move with the machine."""
    execute("asynchronous.md")
    told = re.findall(r"answers in (\d+), .* (0\.\d+) \(", capsys.readouterr().out)
    shown = re.findall(
        r"answers in (\d+), .* (0\.\d+) \(", PAGES["asynchronous.md"].read_text()
    )
    assert len(told) == len(shown) == 3
    for (time, accuracy), (page_time, page_accuracy) in zip(told, shown, strict=True):
        assert time == page_time
        assert float(accuracy) == pytest.approx(float(page_accuracy), abs=0.05)


@pytest.mark.slow
def test_networks(capsys):
    found = execute("networks.md")
    shown = blocks("networks.md", "text")[1]
    *methods, counted = capsys.readouterr().out.splitlines()
    assert len(methods) == 5 and f"{counted}\n" == shown
    model, names = found["run"].model, found["federation"].names
    assert model.member_of(names[0]) != model.member_of(names[-1])


@pytest.mark.slow
def test_own_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = execute("own-data.md")
    shown = re.findall(r"^(\w+) +mean ([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in shown] == ["local", "fedavg", "ditto", "ucfl"]
    assert all(float(mean) > 0.7 for _, mean in shown)
    assert list(found["labels"]) == [found["rows"][0][-1]]
    np.testing.assert_array_equal(
        found["again"].transform([found["row"]]), found["inputs"]
    )
    np.testing.assert_array_equal(found["opened"].frame(), found["kept"].frame())
    assert f"# Model card: {found['row']['client']}" in found["card"]
    assert len(found["smaller"].federation) == 19


@pytest.mark.slow
def test_write_an_algorithm(tmp_path, monkeypatch, capsys):
    method, conformance, _ = blocks("write-an-algorithm.md")
    (tmp_path / "blend.py").write_text(method)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        exec(compile(conformance, "write-an-algorithm.md", "exec"), {})
    finally:
        sys.modules.pop("blend", None)
        Algorithm.registry.pop("blend", None)
    assert capsys.readouterr().out == blocks("write-an-algorithm.md", "text")[-1]


def test_every_group_of_entry_points_is_listed():
    groups = set()
    for file in (ROOT / "src").rglob("*.py"):
        groups |= set(
            re.findall(
                r'^(?:ENTRY_POINTS|GROUP) = "(fedtailor\..+)"$', file.read_text(), re.M
            )
        )
    page = PAGES["write-an-algorithm.md"].read_text()
    assert groups == set(re.findall(r"^\| `(fedtailor\.[\w.]+)` \|", page, re.M))


def test_a_predictor_of_ones_own_is_that_of_the_tests():
    tested = ROOT / "tests" / "conformance" / "gated.py"
    assert blocks("write-an-algorithm.md")[2] == tested.read_text()


@pytest.mark.slow
def test_the_first_experiment(tmp_path, monkeypatch, capsys):
    """Accuracies move with the machine."""
    from fedtailor.cli import main

    page = "first-experiment.md"
    monkeypatch.chdir(tmp_path)
    files = ("blend.py", "net.py", "data.py", "mine.toml")
    written = [*blocks(page), *blocks(page, "toml")]
    for name, text in zip(files, written, strict=True):
        Path(name).write_text(text)
    exec(compile(Path("data.py").read_text(), "data.py", "exec"), {})
    try:
        assert main(["compare", "mine.toml", "--details"]) == 0
        assert main(["report", "fedtailor-results", "mine", "--format", "latex"]) == 0
    finally:
        Algorithm.registry.pop("blend", None)
    printed, shown = capsys.readouterr().out, blocks(page, "text")[0]
    for row in re.findall(r"^(?:Local|FedAvg|Ditto|Blend) +\d.*", shown, re.MULTILINE):
        name, mean = row.split()[:2]
        found = re.search(rf"^{name} +([\d.]+)", printed, re.MULTILINE)
        assert float(found[1]) == pytest.approx(float(mean), abs=4)
    (tex,) = blocks(page, "latex")
    assert set(re.findall(r"^\w+ &", tex, re.M)) <= set(
        re.findall(r"^\w+ &", printed, re.M)
    )


def test_partition_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        for block in blocks("partition-data.md"):
            exec(compile(block, "partition-data.md", "exec"), names)
    finally:
        Metric.registry.pop("top_two", None)
    assert capsys.readouterr().out == "".join(blocks("partition-data.md", "text"))
    assert (tmp_path / "partition.png").stat().st_size > 3000


def test_diagnose(capsys):
    (block,) = blocks("which-method.md")
    exec(block, {})
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_parts_of_models(capsys):
    names = {}
    for block in blocks("models.md")[:PARTS]:
        exec(compile(block, "models.md", "exec"), names)
    assert capsys.readouterr().out == "".join(blocks("models.md", "text")[:PARTS])


@pytest.mark.slow
@pytest.mark.extra
def test_pytorch_modules(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch", reason="PyTorch (the extra `torch`) is not installed")
    monkeypatch.chdir(tmp_path)
    names = {"ft": fedtailor, "federation": fedtailor.scenarios.digits_rotated(seed=0)}
    for number, block in enumerate(blocks("models.md")[PARTS:TRAINED]):
        exec(compile(block, "models.md", "exec"), names)
        if number == 1:  # the client's model that goes back
            names["converted"] = names["own"].model, jnp.asarray(names["own"].predictor)
    shown = blocks("models.md", "text")[2:3]
    assert capsys.readouterr().out == "".join(shown)
    reader, images = names["SteadyReader"](), names["images"]
    reader.load_state_dict(names["load_file"]("reader-3.safetensors"))
    theirs = reader(names["inputs"]).detach().numpy()
    np.testing.assert_allclose(
        names["own"].outputs(images), theirs, rtol=1e-4, atol=1e-5
    )
    model, theta = names["converted"]
    ours = model.logits(model.params(theta), jnp.asarray(names["inputs"].numpy()))
    np.testing.assert_allclose(
        ours, names["scores"].detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_cluster(tmp_path):
    """With one process, which is the address's own machine; what several do has tests
    of its own.
    """
    script, share = blocks("experiments.md")
    (tmp_path / "train.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-W",
        "error::DeprecationWarning:__main__",
        "train.py",
        address,
        "1",
        "0",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "ditto" in ended.stdout
    assert (tmp_path / "runs" / "ditto" / "manifest.toml").exists()
    digits = ft.scenarios.digits_rotated(seed=0)
    path = ft.federation.save(digits, tmp_path / "digits.safetensors")
    names = {"ft": ft}
    exec(share.replace("digits.safetensors", str(path)), names)
    assert len(names["run"].metrics.values("accuracy")) == len(digits)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_toml(page):
    assert all(tomllib.loads(block) for block in blocks(page, "toml"))


def test_the_table_of_exemptions_is_the_suites():
    assert section("conformance.md", "exemptions") == opt_outs_table(), (
        "python -m conformance.examples prints it"
    )


def test_exemptions_are_of_methods_and_properties_that_there_are():
    assert {check for check, _ in OPT_OUTS} <= set(CHECKS)
    assert {method for _, method in OPT_OUTS} <= set(Algorithm.registry)
    assert all(OPT_OUTS.values())


def test_the_table_of_properties_is_the_suites():
    named = re.findall(
        r"^\| ([\w -]+) \| (.+) \|$",
        section("conformance.md", "properties"),
        re.MULTILINE,
    )[1:]
    assert named == [
        (name, " ".join(check.__doc__.split()).rstrip("."))
        for name, check in CHECKS.items()
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    links = re.findall(
        r"\]\((?!https?:|mailto:|#)([^)#]+)(?:#[^)]*)?\)", PAGES[page].read_text()
    )
    # `make docs` makes the generated pages, and checks the links to them.
    written = [link for link in links if not link.startswith("generated/")]
    missing = [link for link in written if not (PAGES[page].parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_a_formula_becomes_a_list(page):
    """Markdown takes a line that begins with "+ " or "1) " for one; lists here have
    "*", "-" and "1.".
    """
    prose = re.sub(r"^ *```.*?^ *```", "", PAGES[page].read_text(), flags=re.S | re.M)
    assert re.findall(r"^ *(?:\+|\d+\)) .*", prose, re.MULTILINE) == []


def test_of_every_method_it_is_said_what_a_coordinator_sees():
    table = re.search(
        r"^\| method \| from each client.*?\n\n",
        PAGES["federation-visibility.md"].read_text(),
        re.DOTALL | re.MULTILINE,
    )
    said = [
        name
        for row in table[0].strip().splitlines()[2:]
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    assert sorted(said) == sorted(Algorithm.registry)


def test_the_methods_whose_servers_only_average_are_listed():
    """Those that noise on the mean covers, and that late clients do not disturb."""
    listed = re.search(
        r"These methods can use this noise.*?\n\n",
        PAGES["privacy-noise.md"].read_text(),
        re.DOTALL,
    )
    averaging = {
        name
        for name, method in EXAMPLES.items()
        if method.server_only_averages and method.participants == "reporters"
    }
    assert set(re.findall(r"`([^`]+)`", listed[0])) == averaging
    assert not any(EXAMPLES[name].probes for name in averaging)


@pytest.mark.parametrize("side", ["coordinator", "client"])
def test_how_to_run_a_federation_is_a_page_for_each_side(side):
    lines = PAGES[f"federation-{side}.md"].read_text().splitlines()
    # Rows of tables are looked up, and cannot be broken.
    prose = [line for line in lines if not line.startswith("|")]
    assert 20 < len(prose) <= 120
    assert max(map(len, prose)) <= 160


def test_trees_and_mixed_models(tmp_path, monkeypatch):
    """On four clients of a number."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 2)).astype(np.float32)
    y = x[:, 0] + 0.1 * rng.normal(size=160)
    federation = fedtailor.data.federation.from_arrays(
        x, y, np.repeat(["VA", "b", "c", "d"], 40), test=0.2, val=0.2
    )
    names = {"federation": federation}
    for page in ("boosting.md", "regression.md"):
        exec(compile(blocks(page)[-1], page, "exec"), names)
    assert (tmp_path / "VA.safetensors").exists()
